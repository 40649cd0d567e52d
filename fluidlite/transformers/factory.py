"""Which transformer ``make_transformer`` makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fluidlite.base.errors import FluidError, PlaceError
from fluidlite.platform.devices import devices
from fluidlite.platform.place import Place
from fluidlite.transformers.transformer import Transformer

_NAMES = {"gpu": "cuda"}
"""What some kinds of places are called here too."""


class TransformerFactory:
    """Makes transformers of one kind; call it.

    Attributes
    ----------
    name : str
        One of :func:`transformer_choices`, perhaps with an index: ``"gpu:1"``.
    """

    def __init__(self, name: str, place: Place | None, options: dict[str, Any]) -> None:
        self.name = name
        self.place = place
        self.options = options

    def __call__(self) -> Transformer:
        """Make a transformer."""
        return Transformer(self.place, **self.options)

    def __repr__(self) -> str:
        return f"<TransformerFactory {self.name!r}>"


def transformer_choices() -> list[str]:
    """Names that :func:`make_transformer_factory` takes: the kinds of places that can be used here, sorted.

    ``"gpu"`` means cuda. A kind whose driver or library is missing is left out.
    """
    called = {kind: name for name, kind in _NAMES.items()}
    return sorted(called.get(kind, kind) for kind, reason in devices.kinds().items() if not reason)


def make_transformer_factory(name: str, **options: Any) -> TransformerFactory:
    """Return a factory of transformers of a kind.

    Parameters
    ----------
    name : str
        One of :func:`transformer_choices`; ``"gpu:1"`` means the second device of the kind.
    **options
        Arguments of :class:`Transformer`, such as ``seed``.

    Raises
    ------
    ValueError
        If there is no such transformer; the message lists the choices.
    """
    choices = transformer_choices()
    try:
        asked = Place.parse(name)
        place = Place(_NAMES.get(asked.kind, asked.kind), asked.index)
        devices.unit(place)
    except FluidError as exc:
        raise PlaceError(
            f"there is no transformer {name!r} here; the choices are {', '.join(choices)}\n  Since: {exc}"
        ) from None
    return TransformerFactory(name, place, options)


_default = TransformerFactory("default", None, {})
_current: Callable[[], Transformer] = _default


def set_transformer_factory(factory: Callable[[], Transformer] | None) -> None:
    """Say what :func:`make_transformer` calls; None: the host's transformer again.

    Raises
    ------
    ValueError
        If it cannot be called.
    """
    global _current
    if factory is not None and not callable(factory):
        raise PlaceError(
            f"a transformer factory is {factory!r}; expected a callable\n  Do: make_transformer_factory(name)"
        )
    _current = factory if factory is not None else _default


def make_transformer() -> Transformer:
    """Make a transformer by the factory that was set; by default, on the host's place."""
    return _current()
