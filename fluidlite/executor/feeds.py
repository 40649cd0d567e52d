"""Feeds: converts the user's values to tensors, and checks them against the declared variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fluidlite.base.arguments import is_masked, refuse_mask
from fluidlite.base.dtypes import NUMPY
from fluidlite.base.errors import FeedError
from fluidlite.compiler.arguments import holds
from fluidlite.compiler.ir.graph import Graph
from fluidlite.platform.context import Context
from fluidlite.program.block import Block
from fluidlite.program.edit import sub_blocks
from fluidlite.program.variable import Variable
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Spec, dims_problem
from fluidlite.tensor.transfer import borrow, contiguous
from fluidlite.tensor.var_type import dtype_of


def feed_tensors(block: Block, feed: Mapping[str, Any], host: Context, of_places: bool = False) -> dict[str, Tensor]:
    """Check feeds and borrow their memory.

    ``of_places``: they are those of several places, each of which gets a part of the rows: any number of rows fits.
    Raises FeedError for an unknown variable, wrong dims, wrong dtype, or a missing LoD.
    """
    tensors: dict[str, Tensor] = {}
    for name, value in feed.items():
        variable = block.find_var(name) if isinstance(name, str) else None
        if variable is None:
            names = [v.name for v in block.vars.values() if v.is_data]
            near = [each for each in names if isinstance(name, str) and each.lower() == name.lower()]
            hint = f"; did you mean {near[0]!r}?" if near else f"; its data variables are {', '.join(names) or 'none'}"
            raise FeedError(f"the feed names {name!r}, which the program does not have{hint}")
        tensor = value if isinstance(value, Tensor) else _borrow(variable, value, host, of_places)
        if isinstance(value, Tensor):
            if value.allocation is None:
                raise FeedError(f"the feed of {name!r} is a tensor without data; set it first")
            tensor = contiguous(value)
        _check_spec(variable, tensor.spec, of_places)
        tensors[name] = tensor
    return tensors


def _borrow(variable: Variable, value: Any, host: Context, of_places: bool) -> Tensor:
    declared = variable.spec
    if isinstance(value, Variable):
        raise FeedError(
            f"the feed of {variable.name!r} is the variable {value.name!r}, which has no values of its own"
            "\n  Do: fetch its value from Executor.run, and feed that"
        )
    is_array = isinstance(value, np.ndarray)
    if is_masked(value):
        refuse_mask(f"the feed of {variable.name!r}", value, FeedError)
    try:
        array = np.asarray(value)
    except Exception as exc:  # __array__ of a user's class may raise anything
        reason = str(exc) or type(exc).__name__
        raise FeedError(f"the feed of {variable.name!r} cannot become an array: {reason}") from exc
    if array.dtype == object or array.dtype.kind in "SU":
        raise FeedError(
            f"the feed of {variable.name!r} holds Python objects (texts, None, rows of different lengths, or integers "
            "beyond 64 bits?); expected numbers"
            if is_array or isinstance(value, (list, tuple))
            else f"the feed of {variable.name!r} is {type(value).__name__}; "
            "expected an array, a list of numbers, or a Tensor"
        )
    problem = dims_problem(array.shape, "bool")
    if problem:
        raise FeedError(f"the feed of {variable.name!r} {problem}")
    if declared is not None:
        _check_dims(variable, array.shape, of_places)  # before conversions and copies
        if not is_array and array.dtype.kind in "biuf":
            array = _as_declared_dtype(variable, array, declared.dtype)
    try:
        array = _as_supported_dtype(variable, array)
        return borrow(np.ascontiguousarray(array), Spec.of(array.shape, dtype_of(array.dtype)), host)
    except MemoryError:
        raise FeedError(
            f"the feed of {variable.name!r} has {array.size:,} elements; there is no memory for a contiguous copy"
            "\n  Do: feed an array that is contiguous and of the declared dtype, or fewer rows"
        ) from None


def _as_supported_dtype(variable: Variable, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the array in native byte order, and in the declared dtype if that is a safe cast.

    Raises FeedError for a dtype that no variable can have and that has no safe cast to the declared one.
    """
    declared = variable.spec
    if declared is not None and array.dtype is NUMPY[declared.dtype]:
        return array  # the common case
    native = array.dtype.newbyteorder("=")
    target = NUMPY[declared.dtype] if declared is not None else native
    if native != target and native.kind in "biuf" and np.can_cast(native, target, "safe"):
        return array.astype(target)
    if native not in NUMPY.values():
        dtype = declared.dtype if declared is not None else "float32"
        advice = f"array.real.astype({dtype!r})" if native.kind == "c" else f"array.astype({dtype!r})"
        if native.names is not None:
            advice = f"feed one of its fields, such as array[{native.names[0]!r}]"
        raise FeedError(
            f"the feed of {variable.name!r} is {array.dtype}, which no variable is; the program declares {declared!r}"
            f"\n  Do: {advice}"
        )
    return array if array.dtype.isnative else array.astype(native)


def _as_declared_dtype(variable: Variable, array: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """Return Python numbers, which have no dtype, in the declared dtype; raise FeedError if it cannot hold them."""
    if not holds(dtype, array):
        raise FeedError(
            f"the feed of {variable.name!r} holds numbers that are no {dtype}; the program declares {variable.spec!r}"
        )
    return array.astype(NUMPY[dtype], copy=False)


def _check_spec(variable: Variable, spec: Spec | None, of_places: bool) -> None:
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
    _check_dims(variable, spec.dims, of_places)
    if declared.lod_level and len(spec.lod) != declared.lod_level:
        raise FeedError(
            f"the feed of {name!r} has {len(spec.lod)} LoD levels; the program declares {declared.lod_level}"
            "\n  Do: fluid.create_lod_tensor(array, [lengths], place), or a DataFeeder"
        )


def is_dim_allowed(declared: int, dim: int) -> bool:
    """Whether a dim agrees with the declared one, where -1 allows any."""
    return declared in (-1, dim)


def _check_dims(variable: Variable, dims: Sequence[int], of_places: bool) -> None:
    """Raise FeedError unless the dims agree with the declared ones, where -1 allows any."""
    assert variable.spec is not None
    declared = (-1, *variable.spec.dims[1:]) if of_places and variable.spec.dims else variable.spec.dims
    if dims == declared or (len(dims) == len(declared) and all(map(is_dim_allowed, declared, dims))):
        return
    hint = ""
    if len(dims) == len(declared) - 1 and declared[-1] == 1:
        hint = "\n  Do: array.reshape(-1, 1)"
    elif len(dims) == len(declared) - 1 and declared[0] == -1:
        hint = "\n  Do: give it a batch dimension, array[None]"
    raise FeedError(f"the feed of {variable.name!r} has dims {list(dims)}; the program declares {list(declared)}{hint}")


def check_read(graph: Graph, feeds: Iterable[str]) -> None:
    """Check that no feed is overwritten by the graph's program before an operator reads it.

    Persistable variables are exempt: the scope keeps the new value.

    Raises FeedError with the variable, and the operator that computes it.
    """
    variables = {name: graph.block.find_var(name) for name in feeds}
    unread = {name for name, variable in variables.items() if variable is None or not variable.persistable}
    for op in graph.written:
        if not unread:
            return
        if op.definition.marker:
            continue
        unread.difference_update(op.input_arg_names)
        for index in sub_blocks(op):
            unread.difference_update(name for each in graph.program.blocks[index].ops for name in each.input_arg_names)
        for name in op.output_arg_names if unread else ():
            if name in unread:
                raise FeedError(
                    f"variable {name!r} is fed, and {op} computes it before anything reads what was fed"
                    f"\n  Do: leave {name!r} out of the feed, or use a program without that operator, "
                    f"whose {name!r} is made by layers.data"
                )
