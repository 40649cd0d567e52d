"""Adapt an earlier value to an operator's input: dtype, dims and range."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS, dtype_name
from fluidlite.testing.fuzz.builder import Builder
from fluidlite.testing.fuzz.recipe import Array
from fluidlite.testing.fuzz.tolerance import wide


def fitted(b: Builder, each: Sequence[Array], opened: bool) -> str | None:
    """Derive a value with the dtype, dims and range of the arrays (one a batch) from the pool; None if impossible.

    ``each``: the arrays of the operator's sample.
    ``opened``: whether the first dim is the batch.
    """
    if not each[0].size or any(not a.size for a in each):
        return None
    dtype = dtype_name(each[0].dtype)
    floating = dtype in ALL_FLOATS
    sources = [n for n in b.pool[-16:] if _fits(b, n, opened, floating, dtype)]
    if not sources:
        return None
    name: str | None = str(b.any(sources))
    assert name is not None
    if b.dtype(name) != dtype:
        name = b.out("cast", {"X": name}, {"in_dtype": b.dtype(name), "out_dtype": dtype})
    target = each[0].shape
    if name is not None:
        name = _sized(b, name, target, opened)
    if name is None or b.dims(name) != [a.shape for a in each]:
        return None
    low = min(float(wide(a).min()) for a in each)
    high = max(float(wide(a).max()) for a in each)
    name = _ranged(b, name, low, high) if floating else _within(b, name, low, high)
    return name if name is not None and name in b.pool else None


def _fits(b: Builder, name: str, opened: bool, floating: bool, dtype: str) -> bool:
    if (name in b.open) != opened or any(0 in dims for dims in b.dims(name)):
        return False
    return b.dtype(name) in ALL_FLOATS if floating else b.dtype(name) == dtype


def _sized(b: Builder, name: str, target: tuple[int, ...], opened: bool) -> str | None:
    """Reshape a value to other dims; elements are repeated or dropped if their number differs."""
    dims = b.dims(name)[0]
    if dims == target:
        return name
    start = 1 if opened else 0
    have, want = int(np.prod(dims[start:])), int(np.prod(target[start:]))
    lead = [-1] if opened else [1]
    flat: str | None = name
    if have != want:
        if len(dims) != 2 or (not opened and dims[0] != 1):
            flat = b.out("reshape", {"X": name}, {"shape": [*lead, have]})
        if flat is not None and have < want:
            flat = b.out("expand", {"X": flat}, {"expand_times": [1, -(-want // have)]})
        if flat is not None and have * -(-want // have) != want:
            flat = b.out("slice", {"Input": flat}, {"axes": [1], "starts": [0], "ends": [want]})
    if flat is None or b.dims(flat)[0] == target:
        return flat
    return b.out("reshape", {"X": flat}, {"shape": [*(lead if opened else []), *target[start:]]})


def _ranged(b: Builder, name: str, low: float, high: float) -> str | None:
    minimum, maximum = b.range(name)
    if low <= minimum and maximum <= high:
        return name
    middle, reach = (low + high) / 2, (high - low) / 2

    def scaled(name: str | None, factor: float, bias: float) -> str | None:
        return None if name is None else b.out("scale", {"X": name}, {"scale": factor, "bias": bias})

    candidates: list[Callable[[], str | None]] = [
        lambda: b.out("clip", {"X": name}, {"min": low, "max": high}),
        lambda: scaled(b.out("tanh", {"X": name}), reach * 0.97, middle),
        lambda: scaled(b.out("sin", {"X": name}), reach * 0.97, middle),
        lambda: scaled(b.out("sigmoid", {"X": name}), 2 * reach * 0.97, middle - reach * 0.97),
    ]
    result = b.any(candidates)()
    if result is None:
        return None
    minimum, maximum = b.range(result)
    return result if low <= minimum and maximum <= high else None


def _within(b: Builder, name: str, low: float, high: float) -> str | None:
    minimum, maximum = b.range(name)
    if (low <= minimum and maximum <= high) or b.dtype(name) == "bool":
        return name
    if low < 0 or b.dtype(name) not in ("int32", "int64"):
        return None
    count = b.fresh((1,), b.dtype(name), False, high - low + 1, high - low + 1)
    result = b.out("elementwise_mod", {"X": name, "Y": count}, {"floor": True})
    if result is not None and low:
        result = b.out("scale", {"X": result}, {"scale": 1.0, "bias": float(int(low))})
    return result
