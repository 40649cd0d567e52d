"""Spec: the metadata of a tensor (dims, dtype, LoD, layout), for inference, planner and kernels."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import prod
from typing import Any
from weakref import _remove_dead_weakref, ref  # type: ignore[attr-defined]

from fluidlite.base.dtypes import ITEMSIZE, dtype_name
from fluidlite.base.lru_cache import CacheInfo, count_cache
from fluidlite.tensor.layout import PLAIN, Layout

Dims = tuple[int, ...]
Lod = tuple[tuple[int, ...], ...]
"""Level by level offsets, coarsest first: ``((0, 2, 5),)`` is sequences of 2 and 3 rows."""

TENSOR_ARRAY = "tensor_array"
"""The kind of an array of tensors: its dims are those of an element, and it has no bytes of its own."""
MAX_RANK = 64
"""The maximum rank of a NumPy array."""
MAX_VALUES = 4096
"""Maximum number of values that an operator takes as metadata from one input."""
MAX_TABLE_VALUES = 1 << 20
"""The same for an input that it takes as a table."""
MAX_NBYTES = 1 << 47
"""Bytes that one process can address; dims of 0 are not counted, so that strides stay within the limit too."""


def dims_problem(dims: Sequence[int], dtype: str) -> str:
    """Why no tensor can have these dims (-1: unknown), as the end of a sentence; "" if one can."""
    if len(dims) > MAX_RANK:
        return f"has {len(dims)} dims; at most {MAX_RANK} are possible"
    nbytes = prod([d for d in dims if d > 0]) * ITEMSIZE[dtype]
    if nbytes > MAX_NBYTES:
        dims_text = ", ".join(f"{d:.3e}" if 1 << 63 < d < 1 << 1000 else str(d) if d < 1 << 64 else "?" for d in dims)
        return f"has dims [{dims_text}] of {dtype}, which are more than 2**47 bytes"
    return ""


class _Interned(ref["Spec"]):
    """A weak reference to a spec, with its key in the table of interned specs."""

    __slots__ = ("key",)
    key: tuple[Any, ...]


def _forget(dead: ref[Spec]) -> None:
    _remove_dead_weakref(_interned, dead.key)  # type: ignore[attr-defined]  # atomic; keeps a newer spec


_interned: dict[tuple[Any, ...], _Interned] = {}
"""Interned specs that are in use, by their fields."""
count_cache("specs in use", lambda: CacheInfo(len(_interned), None, 0, 0))
_uids = itertools.count()


class Spec:
    """Immutable metadata of one tensor; make one with :meth:`of`, which interns.

    Equal specs are one object: they are equal, and hash, by identity. So are their copies.

    Attributes
    ----------
    dims : tuple of int
        Logical dims; -1 if unknown at build time.
    dtype : str
    lod_level : int
        Number of LoD levels.
    lod : tuple of tuple of int
        The offsets of each level; empty at build time.
    layout : Layout
    value : tuple of numbers or None
        The tensor's values, if an operator takes them as metadata (a slot with ``value=True``).
    kind : str
        ``"dense"``, ``"selected_rows"`` or ``"tensor_array"``.
    size, nbytes : int
        Number of elements and of bytes (-1 if dims are unknown).
    known : bool
        Whether every dim is known.
    uid : int
        A unique number of this object: a key that does not keep it alive.
    weight : int
        An estimate of its bytes, for caches.
    """

    __slots__ = (
        "__weakref__",
        "dims",
        "dtype",
        "is_static",
        "kind",
        "layout",
        "lod",
        "lod_level",
        "nbytes",
        "size",
        "uid",
        "value",
        "weight",
    )
    dims: Dims
    dtype: str
    lod: Lod
    lod_level: int
    layout: Layout
    kind: str
    value: tuple[float, ...] | None
    size: int
    nbytes: int
    is_static: bool
    uid: int
    weight: int

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
        """Return the spec of these fields (``lod_level`` defaults to the number of levels of ``lod``)."""
        level = len(lod) if lod_level is None else lod_level
        key = (tuple(dims), dtype, lod, level, type(layout), layout.name, kind, value)
        reference = _interned.get(key)
        if reference is not None:
            alive = reference()
            if alive is not None:
                return alive
        self = object.__new__(Spec)
        self.dims = clean = tuple(map(int, key[0]))
        self.dtype = dtype_name(dtype)
        self.lod, self.lod_level, self.layout, self.kind, self.value = lod, level, layout, kind, value
        self.uid = next(_uids)
        is_array = kind == TENSOR_ARRAY
        all_known = not is_array and min(clean, default=0) >= 0
        self.size = 0 if is_array else prod(clean) if all_known else -1
        self.nbytes = 0 if is_array else layout.nbytes(clean, self.dtype) if all_known else -1
        self.weight = 600 + 40 * (sum(map(len, lod)) + (len(value) if value is not None else 0))
        self.is_static = self.size >= 0
        interned = _Interned(self, _forget)
        interned.key = key = (clean, self.dtype, *key[2:])
        while (existing := _interned.setdefault(key, interned)) is not interned:  # setdefault is atomic
            alive = existing()
            if alive is not None:
                return alive
            _forget(existing)
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
            "dims": self.dims,
            "dtype": self.dtype,
            "lod": self.lod,
            "lod_level": self.lod_level,
            "layout": self.layout,
            "kind": self.kind,
            "value": self.value,
        }
        if "lod" in changes and "lod_level" not in changes:
            fields["lod_level"] = len(changes["lod"])
        fields.update(changes)
        return Spec.of(**fields)

    @property
    def rank(self) -> int:
        """Number of dims."""
        return len(self.dims)

    def fits(self, other: Spec) -> bool:
        """Whether an exact spec matches this one, whose -1 dims match any; for tensor arrays only the dtype counts."""
        if self.kind == other.kind == TENSOR_ARRAY:
            return self.dtype == other.dtype
        return (
            self.dtype == other.dtype
            and self.kind == other.kind
            and len(self.dims) == len(other.dims)
            and all(a in (-1, b) for a, b in zip(self.dims, other.dims, strict=True))
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return Spec.of, (self.dims, self.dtype, self.lod, self.lod_level, self.layout, self.kind, self.value)

    def __repr__(self) -> str:
        lod = f", lod={self.lod}" if self.lod else (f", lod_level={self.lod_level}" if self.lod_level else "")
        extra = "" if self.kind == "dense" else f", {self.kind}"
        return f"{self.dtype}{list(self.dims)}{lod}{extra}"


def specs_of(specs: Spec | Sequence[Spec]) -> tuple[Spec, ...]:
    """Return the spec or specs that an inference function returned for a slot, as a tuple."""
    return (specs,) if isinstance(specs, Spec) else tuple(specs)


def dims_compatible(a: int, b: int) -> bool:
    """Whether two dims may be equal."""
    return a == b or a < 0 or b < 0


def all_dims_compatible(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether two lists of dims may be equal."""
    return len(a) == len(b) and all(map(dims_compatible, a, b))


def merged_dims(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """Merge two lists of dims of the same length: -1 where they differ."""
    return tuple(x if x == y else -1 for x, y in zip(a, b, strict=True))
