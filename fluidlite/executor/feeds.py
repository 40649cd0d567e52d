"""Feeds at the edge: what the user gives becomes tensors that fit what the program declares, or one clear error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fluidlite.base.dtypes import NUMPY, is_float
from fluidlite.base.errors import FeedError
from fluidlite.compiler.ir.graph import Graph
from fluidlite.platform.context import Context
from fluidlite.program.block import Block
from fluidlite.program.edit import sub_blocks
from fluidlite.program.variable import Variable
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Spec, dims_problem
from fluidlite.tensor.transfer import borrow, contiguous
from fluidlite.tensor.var_type import dtype_of


def feed_tensors(block: Block, feed: Mapping[str, Any], host: Context) -> dict[str, Tensor]:
    """Check feeds and borrow their memory.

    Raises FeedError for an unknown variable, wrong dims, wrong dtype, or a missing LoD.
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
    if isinstance(value, Variable):
        raise FeedError(
            f"the feed of {variable.name!r} is the variable {value.name!r}, which has no values of its own"
            "\n  Do: fetch its value from Executor.run, and feed that"
        )
    own = isinstance(value, np.ndarray)
    if own and type(value) is not np.ndarray and isinstance(value, np.ma.MaskedArray):  # np.ma: 10 ms to import
        raise FeedError(
            f"the feed of {variable.name!r} is a masked array; no variable has a mask"
            "\n  Do: array.filled(0), or feed array.data and array.mask"
        )
    try:
        array = np.asarray(value)
    except Exception as exc:  # whatever an __array__ of the user's raises
        why = str(exc) or type(exc).__name__
        raise FeedError(f"the feed of {variable.name!r} cannot become an array: {why}") from exc
    if array.dtype == object or array.dtype.kind in "SU":
        raise FeedError(
            f"the feed of {variable.name!r} holds Python objects (texts, None, rows of different lengths, or integers "
            "beyond 64 bits?); expected numbers"
            if own or isinstance(value, (list, tuple))
            else f"the feed of {variable.name!r} is {type(value).__name__}; "
            "expected an array, a list of numbers, or a Tensor"
        )
    problem = dims_problem(array.shape, "bool")
    if problem:
        raise FeedError(f"the feed of {variable.name!r} {problem}")
    if declared is not None:
        _check_dims(variable, array.shape)  # before anything is converted or copied
        if not own and array.dtype.kind in "biuf":
            array = _numbers(variable, array, declared.dtype)
    try:
        array = _known_dtype(variable, array)
        return borrow(np.ascontiguousarray(array), Spec.of(array.shape, dtype_of(array.dtype)), host)
    except MemoryError:
        raise FeedError(
            f"the feed of {variable.name!r} has {array.size:,} elements; there is no memory for a contiguous copy"
            "\n  Do: feed an array that is contiguous and of the declared dtype, or fewer rows"
        ) from None


def _known_dtype(variable: Variable, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array in this machine's byte order, and in the declared dtype where that holds every number.

    Raises FeedError for a dtype that no variable has, and that the declared one does not hold.
    """
    declared = variable.spec
    if declared is not None and array.dtype is NUMPY[declared.dtype]:
        return array  # as nearly all are
    native = array.dtype.newbyteorder("=")
    wanted = NUMPY[declared.dtype] if declared is not None else native
    if native != wanted and native.kind in "biuf" and np.can_cast(native, wanted, "safe"):
        return array.astype(wanted)
    if native not in NUMPY.values():
        dtype = declared.dtype if declared is not None else "float32"
        do = f"array.real.astype({dtype!r})" if native.kind == "c" else f"array.astype({dtype!r})"
        if native.names is not None:
            do = f"feed one of its fields, such as array[{native.names[0]!r}]"
        raise FeedError(
            f"the feed of {variable.name!r} is {array.dtype}, which no variable is; the program declares {declared!r}"
            f"\n  Do: {do}"
        )
    return array if array.dtype.isnative else array.astype(native)


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
    _check_dims(variable, spec.dims)
    if declared.lod_level and len(spec.lod) != declared.lod_level:
        raise FeedError(
            f"the feed of {name!r} has {len(spec.lod)} LoD levels; the program declares {declared.lod_level}"
            "\n  Do: fluid.create_lod_tensor(array, [lengths], place), or a DataFeeder"
        )


def fits(declared: int, dim: int) -> bool:
    """Whether a dim is as declared."""
    return declared in (-1, dim)


def _check_dims(variable: Variable, dims: Sequence[int]) -> None:
    """Raise FeedError unless the dims are those that the program declares; -1 takes anything."""
    assert variable.spec is not None
    declared = variable.spec.dims
    if dims == declared or (len(dims) == len(declared) and all(map(fits, declared, dims))):
        return
    hint = ""
    if len(dims) == len(declared) - 1 and declared[-1] == 1:
        hint = "\n  Do: array.reshape(-1, 1)"
    elif len(dims) == len(declared) - 1 and declared[0] == -1:
        hint = "\n  Do: give it a batch dimension, array[None]"
    raise FeedError(f"the feed of {variable.name!r} has dims {list(dims)}; the program declares {list(declared)}{hint}")


def check_read(graph: Graph, feeds: Iterable[str]) -> None:
    """See that nothing is fed which the run of a graph's program would write over before anything reads it.

    State may be: the scope keeps what is written.

    Raises FeedError with the variable, and the operator that computes it.
    """
    known = {name: graph.block.find_var(name) for name in feeds}
    unread = {name for name, variable in known.items() if variable is None or not variable.persistable}
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
