"""Place: where data lives, as a value with a text form."""

from __future__ import annotations

import re
from typing import Any, Union

from fluidlite.base.errors import PlaceError

_KIND = re.compile(r"[a-z][a-z0-9_]*(:[a-z][a-z0-9_]*)*\Z")
MOST_INDEX = 10**9
"""The highest index of a place: texts with more digits are refused, and so are such places."""


class Place:
    """One device's memory: a kind and an index. The set of kinds is open.

    There is one object of each kind and index, so that places are equal, and hash, by these alone; ``str(place)``
    always shows the index and :meth:`parse` reads it back. Every API that takes a place takes its text too.

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
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index <= MOST_INDEX:
            raise PlaceError(f"the index of place {kind!r} is {index!r:.40}; it must be an int from 0 to {MOST_INDEX}")
        made = object.__new__(cls)
        object.__setattr__(made, "kind", kind)
        object.__setattr__(made, "index", index)
        return _places.setdefault((kind, index), made)  # of two threads both get the same

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a Place is a value; {name!r} cannot be set")

    @staticmethod
    def parse(text: Union[str, Place]) -> Place:
        """Read ``kind[:index]``; the last ``:digits`` is the index. A Place passes through.

        Raises
        ------
        PlaceError
            If the text has not that form.
        """
        if isinstance(text, Place):
            return text
        if not isinstance(text, str):
            raise PlaceError(f"{text!r} is not a place; give a Place or text such as 'cpu' or 'opencl:0'")
        kind, colon, last = text.rpartition(":")
        if colon and last.isdecimal() and last.isascii() and len(last) <= len(str(MOST_INDEX)):
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
    """Return ``Place("cuda", index)``; whether such a device is there shows when it is used."""
    return Place("cuda", index)


def CUDAPinnedPlace() -> Place:
    """Fluid's name for host memory that a GPU reads quickly; here it is the CPU's place."""
    return CPUPlace()


FLUID_PLACES = {"CPUPlace": "cpu", "CUDAPlace": "cuda", "CUDAPinnedPlace": "cpu"}
"""Fluid's names, which are always there, and the kind that each means; devices may name others."""
