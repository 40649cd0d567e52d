"""Indexing of variables, ``x[1:3, ..., None]``: appends slice, strided_slice and unsqueeze2 operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fluidlite.base.errors import ProgramError

if TYPE_CHECKING:
    from fluidlite.program.variable import Variable

_OPEN_END = 2**30
"""The end of an open slice: larger than every dim, and exact in float32, the dtype of constant attributes."""


Slices = list[tuple[int, Any, Any, Any]]
"""Axis, start, end and stride of slices; a bound may be a variable."""


def indexed(variable: Variable, key: Any) -> Variable:
    """Return the part of a variable that an index selects.

    ``key``: a variable is an integer [1]. None inserts a dim of 1. Ints and variables drop their dim; a tensor without
    remaining dims is [1].
    Raises ProgramError if the index is of another kind, or has more items than the variable has dims.
    """
    keys = key if isinstance(key, tuple) else (key,)
    slices: Slices = []
    dropped, new_axes = list[int](), []
    axis = rank = 0
    for item in _expanded(variable, keys):
        if item is None:
            new_axes.append(rank)
            rank += 1
            continue
        rank += _add_item(variable, slices, dropped, axis, item)
        axis += 1
    out = _append_slice(variable, slices, dropped) if slices else variable
    if new_axes and len(dropped) == len(variable.shape):
        new_axes.pop()  # without remaining dims it is [1] already
    if not new_axes:
        return out
    block = variable.block.program.current_block()
    wide, shape = block.create_temporary(out.dtype), block.create_temporary(out.dtype, stop_gradient=True)
    block.append_op("unsqueeze2", {"X": out}, {"Out": wide, "XShape": shape}, {"axes": new_axes})
    return wide


def _expanded(variable: Variable, keys: tuple[Any, ...]) -> list[Any]:
    """Return the items with ``...`` expanded."""
    count = sum(item is not None and item is not Ellipsis for item in keys)
    rank = len(variable.shape)
    if count > rank:
        raise ProgramError(
            f"variable {variable.name!r} {list(variable.shape)} is indexed by {count} items; it has {rank} dims"
        )
    dots = [i for i, item in enumerate(keys) if item is Ellipsis]
    if len(dots) > 1:
        raise ProgramError(f"variable {variable.name!r} is indexed by more than one ...")
    if not dots:
        return list(keys)
    return [*keys[: dots[0]], *[slice(None)] * (rank - count), *keys[dots[0] + 1 :]]


def _add_item(variable: Variable, slices: Slices, dropped: list[int], axis: int, item: Any) -> int:
    """Add one item to the slice; return the number of dims that remain of its axis, 0 or 1."""
    if _is_variable(item) or (isinstance(item, int) and not isinstance(item, bool)):
        end = _OPEN_END if isinstance(item, int) and item == -1 else item + 1
        slices.append((axis, item, end, 1))
        dropped.append(axis)
        return 0
    if not isinstance(item, slice):
        raise ProgramError(
            f"variable {variable.name!r} is indexed by {item!r}; use ints, slices, integer variables, ... and None"
        )
    step = 1 if item.step is None else item.step
    if item.start is item.stop is None and isinstance(step, int) and step == 1:
        return 1
    for bound in (item.start, item.stop, step):
        if bound is not None and not _is_variable(bound) and (isinstance(bound, bool) or not isinstance(bound, int)):
            raise ProgramError(f"variable {variable.name!r} is sliced by {bound!r}; use ints and integer variables")
    if isinstance(step, int) and step == 0:
        raise ProgramError(f"variable {variable.name!r} is sliced with step 0")
    is_reversed = isinstance(step, int) and step < 0
    if is_reversed and isinstance(item.stop, int) and item.stop == -1:
        raise ProgramError(f"variable {variable.name!r} is sliced backwards to its last element: nothing is left")
    start = (-1 if is_reversed else 0) if item.start is None else item.start
    end = (-1 if is_reversed else _OPEN_END) if item.stop is None else item.stop  # -1: before the first
    slices.append((axis, start, end, step))
    return 1


def _is_variable(item: Any) -> bool:
    from fluidlite.program.variable import Variable

    return isinstance(item, Variable)


def _append_slice(variable: Variable, slices: Slices, dropped: list[int]) -> Variable:
    """Append ``slice``, or ``strided_slice`` if a step is not 1."""
    block = variable.block.program.current_block()
    axes, starts, ends, strides = zip(*slices, strict=True)
    bounds = {"starts": starts, "ends": ends}
    strided = any(_is_variable(step) or step != 1 for step in strides)
    if strided:
        bounds["strides"] = strides
    inputs: dict[str, Any] = {"Input": variable}
    attrs: dict[str, Any] = {"axes": axes, "decrease_axis": dropped}
    flags = [1] * len(axes)
    for name, values in bounds.items():
        attrs[name] = [(1 if name == "strides" else 0) if _is_variable(value) else value for value in values]
        if not any(map(_is_variable, values)):
            continue
        flags = [-1 if _is_variable(value) else flag for value, flag in zip(values, flags, strict=True)]
        inputs[name.capitalize() + "TensorList"] = [
            value if _is_variable(value) else _constant(variable, value) for value in values
        ]
    out = block.create_temporary(variable.dtype)
    block.append_op("strided_slice" if strided else "slice", inputs, {"Out": out}, {**attrs, "infer_flags": flags})
    return out


def _constant(variable: Variable, value: int) -> Variable:
    block = variable.block.program.current_block()
    out = block.create_temporary("int32", stop_gradient=True)
    block.append_op("fill_constant", {}, {"Out": out}, {"shape": [1], "value": float(value), "dtype": "int32"})
    return out
