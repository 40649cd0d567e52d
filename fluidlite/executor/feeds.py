"""Feeds at the edge: what the user gives becomes tensors that fit what the program declares, or one clear error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import NUMPY, is_float
from fluidlite.base.errors import FeedError
from fluidlite.framework.program import Block
from fluidlite.framework.spec import Spec
from fluidlite.framework.tensor import Tensor
from fluidlite.framework.transfer import borrow, contiguous
from fluidlite.framework.variable import Variable
from fluidlite.framework.vartype import dtype_of
from fluidlite.platform.context import Context


def feed_tensors(block: Block, feed: Mapping[str, Any], host: Context) -> dict[str, Tensor]:
    """Check feeds and borrow their memory.

    Raises
    ------
    FeedError
        For an unknown variable, wrong dims, wrong dtype, or a missing LoD.
    """
    found: dict[str, Tensor] = {}
    for name, value in feed.items():
        variable = block.find_var(name) if isinstance(name, str) else None
        if variable is None:
            names = [v.name for v in block.vars.values() if v.is_data]
            near = [known for known in names if isinstance(name, str) and known.lower() == name.lower()]
            hint = f"; did you mean {near[0]!r}?" if near else f"; its data variables are {', '.join(names) or 'none'}"
            raise FeedError(f"the feed names {name!r}, which the program does not have{hint}")
        tensor = value if isinstance(value, Tensor) else _borrowed(variable, value, host)
        if isinstance(value, Tensor):
            if value.allocation is None:
                raise FeedError(f"the feed of {name!r} is a tensor without data; set it first")
            tensor = contiguous(value)
        _check(variable, tensor.spec)
        found[name] = tensor
    return found


def _borrowed(variable: Variable, value: Any, host: Context) -> Tensor:
    declared = variable.spec
    if isinstance(value, np.ndarray):
        array = value
        if array.dtype == object:
            raise FeedError(
                f"the feed of {variable.name!r} holds Python objects (rows of different lengths?); expected numbers"
            )
    else:
        try:
            array = np.asarray(value)
        except ValueError as exc:
            raise FeedError(f"the feed of {variable.name!r} cannot become an array: {exc}") from None
        if array.dtype == object or array.dtype.kind in "USO":
            raise FeedError(
                f"the feed of {variable.name!r} is {type(value).__name__}; "
                "expected an array, a list of numbers, or a Tensor"
            )
        if declared is not None:
            array = _numbers(variable, array, declared.dtype)
    dtype = dtype_of(array.dtype)
    if declared is not None and dtype != declared.dtype and np.can_cast(array.dtype, NUMPY[declared.dtype], "safe"):
        array = array.astype(NUMPY[declared.dtype])
        dtype = declared.dtype
    return borrow(np.ascontiguousarray(array), Spec.of(array.shape, dtype), host)


def _numbers(variable: Variable, array: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """Python numbers have no dtype of their own: they take the declared one, if it can hold them."""
    with np.errstate(all="ignore"):
        made = array.astype(NUMPY[dtype], copy=False)
    if is_float(dtype):
        lost = np.isfinite(array).all() and not np.isfinite(made.astype(np.float64)).all()
    else:
        lost = not np.array_equal(made, array)
    if lost:
        raise FeedError(
            f"the feed of {variable.name!r} holds numbers that are no {dtype}; the program declares {variable.spec!r}"
        )
    return made


def _check(variable: Variable, spec: Spec | None) -> None:
    declared = variable.spec
    assert spec is not None
    if declared is None:
        return
    name = variable.name
    if spec.dtype != declared.dtype:
        raise FeedError(
            f"the feed of {name!r} is {spec!r}; the program declares {declared!r}"
            f"\n  Do: array.astype({declared.dtype!r})"
        )
    if not declared.fits(spec):
        hint = ""
        if len(spec.dims) == len(declared.dims) - 1 and declared.dims[-1] == 1:
            hint = "\n  Do: array.reshape(-1, 1)"
        elif len(spec.dims) == len(declared.dims) - 1 and declared.dims[0] == -1:
            hint = "\n  Do: give it a batch dimension, array[None]"
        raise FeedError(
            f"the feed of {name!r} has dims {list(spec.dims)}; the program declares {list(declared.dims)}{hint}"
        )
    if declared.lod_level and len(spec.lod) != declared.lod_level:
        raise FeedError(
            f"the feed of {name!r} has {len(spec.lod)} LoD levels; the program declares {declared.lod_level}"
            "\n  Do: fluid.create_lod_tensor(array, [lengths], place), or a DataFeeder"
        )
