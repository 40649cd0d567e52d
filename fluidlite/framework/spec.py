"""Spec: all that inference, planner and kernels know of a tensor without its bytes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import prod
from typing import Any

from fluidlite.base.dtypes import dtype_name
from fluidlite.framework.layout import PLAIN, Layout

Dims = tuple[int, ...]
Lod = tuple[tuple[int, ...], ...]
"""Level by level offsets, coarsest first: ``((0, 2, 5),)`` is sequences of 2 and 3 rows."""

_interned: dict[tuple[Any, ...], Spec] = {}
_MOST_INTERNED = 65536
_uids = itertools.count()


class Spec:
    """Immutable metadata of one tensor; make one with :meth:`of`, which interns.

    Attributes
    ----------
    dims : tuple of int
        Logical dims; -1 where unknown at build time.
    dtype : str
    lod_level : int
        How many LoD levels.
    lod : tuple of tuple of int
        The offsets of each level; empty at build time.
    layout : Layout
    value : tuple of numbers or None
        The numbers themselves, where an operator takes them as metadata (a slot with ``value=True``).
    kind : str
        ``"dense"``, ``"selected_rows"`` or ``"tensor_array"``.
    size, nbytes : int
        Number of elements and of bytes (-1 where dims are unknown).
    uid : int
        Names this object: a key that hashes faster than the facts do.

    Equal specs are nearly always one object, so that checks by identity are cheap and equality is right.
    """

    __slots__ = (
        "_hash", "_key", "dims", "dtype", "kind", "layout", "lod", "lod_level", "nbytes", "size", "uid", "value",
    )  # fmt: skip
    dims: Dims
    dtype: str
    lod: Lod
    lod_level: int
    layout: Layout
    kind: str
    value: tuple[float, ...] | None
    size: int
    nbytes: int
    uid: int
    _key: tuple[Any, ...]
    _hash: int

    @staticmethod
    def of(
        dims: Sequence[int],
        dtype: str,
        lod: Lod = (),
        lod_level: int | None = None,
        layout: Layout = PLAIN,
        kind: str = "dense",
        value: tuple[float, ...] | None = None,
    ) -> Spec:
        """Return the spec of these facts (``lod_level`` defaults to the number of levels of ``lod``)."""
        level = len(lod) if lod_level is None else lod_level
        key = (tuple(dims), dtype, lod, level, layout, kind, value)
        found = _interned.get(key)
        if found is not None:
            return found
        self = object.__new__(Spec)
        clean = tuple(int(d) for d in key[0])
        self.dims, self.dtype, self.lod, self.lod_level, self.layout, self.kind, self.value = (
            clean, dtype_name(dtype), lod, level, layout, kind, value,
        )  # fmt: skip
        self._key = (clean, self.dtype, lod, level, layout, kind, value)
        self._hash = hash(self._key)
        self.uid = next(_uids)
        known = all(d >= 0 for d in clean)
        self.size = prod(clean) if known else -1
        self.nbytes = layout.nbytes(clean, self.dtype) if known else -1
        if len(_interned) >= _MOST_INTERNED:  # identity is only a short cut; equality stays right
            _interned.clear()
        _interned[self._key] = self
        return self

    def with_(self, **changes: Any) -> Spec:
        """Return a spec that differs in the named fields (``lod`` also sets ``lod_level``)."""
        for name, value in changes.items():
            if getattr(self, name) is not value:
                break
        else:
            if "lod" not in changes or self.lod_level == len(self.lod):
                return self
        fields: dict[str, Any] = {
            "dims": self.dims, "dtype": self.dtype, "lod": self.lod, "lod_level": self.lod_level,
            "layout": self.layout, "kind": self.kind, "value": self.value,
        }  # fmt: skip
        if "lod" in changes and "lod_level" not in changes:
            fields["lod_level"] = len(changes["lod"])
        fields.update(changes)
        return Spec.of(**fields)

    @property
    def rank(self) -> int:
        """Number of dims."""
        return len(self.dims)

    @property
    def known(self) -> bool:
        """Whether every dim is known."""
        return self.size >= 0

    def fits(self, other: Spec) -> bool:
        """Whether an exact spec agrees with this one, whose -1 dims take anything."""
        return (
            self.dtype == other.dtype
            and self.kind == other.kind
            and len(self.dims) == len(other.dims)
            and all(a in (-1, b) for a, b in zip(self.dims, other.dims, strict=True))
        )

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Spec) and self._key == other._key)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        lod = f", lod={self.lod}" if self.lod else (f", lod_level={self.lod_level}" if self.lod_level else "")
        extra = "" if self.kind == "dense" else f", {self.kind}"
        return f"{self.dtype}{list(self.dims)}{lod}{extra}"
