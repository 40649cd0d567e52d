"""Layout: the physical order of a tensor's logical dims in memory."""

from __future__ import annotations

from math import prod

from fluidlite.base.dtypes import ITEMSIZE
from fluidlite.base.errors import RegistryError


class Layout:
    """A physical layout.

    Parameters
    ----------
    name : str
        Its text, part of kernel keys.
    permutation : tuple of int, optional
        For a strided layout, the logical axes from the slowest to the fastest in memory;
        None for the plain (C) order of any rank. Opaque layouts, such as blocked ones, are
        subclasses that belong to a library; they override :meth:`nbytes` and set ``opaque``.
    """

    opaque = False

    def __init__(self, name: str, permutation: tuple[int, ...] | None = None) -> None:
        self.name = name
        self.permutation = permutation

    def nbytes(self, dims: tuple[int, ...], dtype: str) -> int:
        """The bytes of a tensor of these dims."""
        return prod(dims) * ITEMSIZE[dtype]

    def strides(self, dims: tuple[int, ...]) -> tuple[int, ...]:
        """Strides in elements, by logical axis."""
        order = self.permutation if self.permutation is not None else tuple(range(len(dims)))
        strides = [0] * len(dims)
        step = 1
        for axis in reversed(order):
            strides[axis] = step
            step *= max(dims[axis], 1)
        return tuple(strides)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Layout) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"Layout({self.name!r})"


PLAIN = Layout("plain")
NHWC = Layout("NHWC", (0, 2, 3, 1))
NDHWC = Layout("NDHWC", (0, 2, 3, 4, 1))
_LAYOUTS = {layout.name: layout for layout in (PLAIN, NHWC, NDHWC)}


def layout_named(name: str) -> Layout:
    """Return the layout of a name in a kernel's ``layouts=``; raise RegistryError if the name is unknown."""
    layout = _LAYOUTS.get(name)
    if layout is None:
        raise RegistryError(f"no layout is called {name!r}; there are {', '.join(_LAYOUTS)}")
    return layout
