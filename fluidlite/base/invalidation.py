"""The epoch: what tells calls that skip every look-up that the world is as it was.

Whoever changes something that such a call depends on, and that it does not look at itself, begins a new epoch after
the change: registries, policies, observers, devices and contexts, scopes, storages. Whoever keeps a result of
look-ups notes the epoch **before** looking things up, and looks again when it is another.
"""

from __future__ import annotations


class Epoch:
    """The present epoch of the process.

    Attributes
    ----------
    now : object
        Another object in each epoch. An object, not a number: making a new one needs no lock, and who kept an old
        one never takes a later one for it.
    """

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = object()

    def begin(self) -> None:
        """Begin another epoch: something changed that calls depend on."""
        self.now = object()


epoch = Epoch()
