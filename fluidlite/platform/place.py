"""Place: where data lives, as a value with a text form."""

from __future__ import annotations

import re
from typing import Any, Union

from fluidlite.base.errors import PlaceError

_KIND = re.compile(r"[a-z][a-z0-9_]*(:[a-z][a-z0-9_]*)*\Z")
MAX_INDEX = 10**9
"""The maximum index of a place; larger ones, and texts with more digits, are refused."""


class Place:
    """The memory of one device: a kind and an index. Plugins add kinds.

    Places are interned: one object for each kind and index, compared and hashed by identity. ``str(place)`` always
    shows the index, and :meth:`parse` reads it back. Every API that takes a place also takes its text.

    Parameters
    ----------
    kind : str
        ``"cpu"``, ``"opencl"``, ``"torch:mps"``, ...: lower case words joined by colons.
    index : int
        Which device of that kind, from 0.
    """

    __slots__ = ("index", "kind")
    kind: str
    index: int

    def __new__(cls, kind: str, index: int = 0) -> Place:
        """Return the one place of a kind and index."""
        if not isinstance(kind, str) or not _KIND.match(kind):
            raise PlaceError(f"{kind!r} is not a place kind; a kind is lower-case words, such as 'cpu' or 'torch:mps'")
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index <= MAX_INDEX:
            raise PlaceError(f"the index of place {kind!r} is {index!r:.40}; it must be an int from 0 to {MAX_INDEX}")
        place = object.__new__(cls)
        object.__setattr__(place, "kind", kind)
        object.__setattr__(place, "index", index)
        return _places.setdefault((kind, index), place)  # atomic: two threads get the same object

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a Place is a value; {name!r} cannot be set")

    @staticmethod
    def parse(text: Union[str, Place]) -> Place:
        """Read ``kind[:index]``; the last ``:digits`` is the index. A Place passes through.

        Raises
        ------
        PlaceError
            If the text does not have that form.
        """
        if isinstance(text, Place):
            return text
        if not isinstance(text, str):
            raise PlaceError(f"{text!r} is not a place; give a Place or text such as 'cpu' or 'opencl:0'")
        kind, colon, last = text.rpartition(":")
        if colon and last.isdecimal() and last.isascii() and len(last) <= len(str(MAX_INDEX)):
            return Place(kind, int(last))
        if colon and last[:1].isdecimal():
            raise PlaceError(f"{text!r} is not a place; its index {last!r} is not a number")
        return Place(text, 0)

    def __str__(self) -> str:
        return f"{self.kind}:{self.index}"

    def __repr__(self) -> str:
        return f"Place({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Place, (self.kind, self.index))


_places: dict[tuple[str, int], Place] = {}

PlaceLike = Union[Place, str]


def CPUPlace() -> Place:
    """Return ``Place("cpu", 0)``."""
    return Place("cpu", 0)


def CUDAPlace(index: int = 0) -> Place:
    """Return ``Place("cuda", index)``; whether the device is available is checked at its first use."""
    return Place("cuda", index)


def CUDAPinnedPlace() -> Place:
    """Fluid's name for host memory that a GPU reads quickly; here it is the CPU's place."""
    return CPUPlace()


FLUID_PLACES = {"CPUPlace": "cpu", "CUDAPlace": "cuda", "CUDAPinnedPlace": "cpu"}
"""Fluid's names of places, always defined, and the kind of each; devices may define others."""
