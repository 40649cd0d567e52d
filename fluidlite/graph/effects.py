"""Actions that change state: assignments and sequences; and snapshots of state."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from types import EllipsisType
from typing import Any, Union

import numpy as np

from fluidlite.base.errors import ProgramError
from fluidlite.compiler.ir.node import SEQUENTIAL, WRITE, Action, Node, append_operator
from fluidlite.graph.value import Effect, Like, Value, as_value, create, emit, full, ints_of, one_program, value_like
from fluidlite.program.variable import Variable


def _target(item: Any) -> Value:
    if isinstance(item, Variable) and not isinstance(item, Action):
        target = as_value(item)
        if target.is_cell or (target.persistable and target.is_input):
            return target
    name = repr(item.name) if isinstance(item, Variable) else repr(item)
    raise ProgramError(f"{name} cannot be assigned; expected a variable, a persistent tensor or a temporary")


def assign(lvalue: Value, rvalue: Like) -> Effect:
    """Return the action that stores a value in a variable, persistent tensor or temporary.

    It runs in computations whose results need it, at its position in the program; :func:`sequential` changes the order.

    Parameters
    ----------
    lvalue : Value
    rvalue : Value, number or array_like
        Has the same dtype, and dims that broadcast to those of ``lvalue``.

    Returns
    -------
    Effect
        As a result of a computation it is None.

    Raises
    ------
    ValueError
        If ``lvalue`` cannot be assigned, or dtype or dims do not fit.
    """
    target = _target(lvalue)
    value = value_like(rvalue, target.dtype, target)
    one_program([target, value], "assign")
    if value.dtype != target.dtype:
        raise ProgramError(
            f"{target.name!r} is {target.spec!r}; it is assigned {value.spec!r}\n  Do: ng.cast(value, {target.dtype!r})"
        )
    if value.shape != target.shape:
        value = broadcast(value, target.shape)
    effect = create(Effect, f"assign_{target.name}", target.block)
    append_operator(target.block, WRITE, [value.name], effect, {"state": target.name})
    return effect


def fill(x: Value, scalar: float) -> Effect:
    """Return the action that fills a variable, persistent tensor or temporary with a number."""
    target = _target(x)
    number = scalar.item() if isinstance(scalar, np.number) else scalar
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise ProgramError(f"fill takes a number, got {scalar!r}")
    return assign(target, full(number, target.shape, target.dtype, target))


def set_item(tensor: Value, item: Any, value: Like) -> Effect:
    """Return the action ``tensor[item] = value``.

    Parameters
    ----------
    tensor : Value
        A variable, persistent tensor or temporary, of known dims.
    item : int, slice, ``...``, or a tuple of them
    value : Value, number or array_like
        Broadcast to the dims of ``tensor[item]``.
    """
    target = _target(tensor)
    dims = target.shape
    if any(d < 0 for d in dims):
        raise ProgramError(f"{target.name!r} is {list(dims)}; a part of it is set where its dims are known")
    keys = item if isinstance(item, tuple) else (item,)
    if any(isinstance(key, bool) or not isinstance(key, (int, np.integer, slice, EllipsisType)) for key in keys):
        raise ProgramError(f"{target.name!r} is set at {item!r}; use ints, slices and ...")
    try:
        selection = np.broadcast_to(np.zeros((), "int8"), dims)[item]
    except IndexError as exc:
        raise ProgramError(f"{target.name!r} {list(dims)} has no part {item!r}: {exc}") from None
    part = value_like(value, target.dtype, target)
    if part.shape != selection.shape:
        part = broadcast(part, selection.shape)
    if not selection.size:
        return assign(target, target)
    num_rows, rows, row_length = _rows(dims, keys)
    flat = emit("reshape2", {"X": target}, {"shape": [num_rows, row_length]})
    updates = emit("reshape2", {"X": part}, {"shape": [len(rows), row_length]})
    ids = value_like(rows, beside=target)
    new = emit("scatter", {"X": flat, "Ids": ids, "Updates": updates}, {"overwrite": True})
    return assign(target, emit("reshape2", {"X": new}, {"shape": list(dims)}))


def _rows(dims: tuple[int, ...], keys: tuple[Any, ...]) -> tuple[int, np.ndarray[Any, Any], int]:
    """Return dims as a matrix whose rows are set entirely: number of rows, indices of those set, and row length."""
    ellipses = [i for i, key in enumerate(keys) if key is Ellipsis]
    if ellipses:
        middle = [slice(None)] * (len(dims) - len(keys) + 1)
        keys = (*keys[: ellipses[0]], *middle, *keys[ellipses[0] + 1 :])
    keys = (*keys, *[slice(None)] * (len(dims) - len(keys)))
    inner = len(dims)
    while inner and keys[inner - 1] in (slice(None), slice(0, dims[inner - 1]), slice(None, None, 1)):
        inner -= 1
    num_rows = prod(dims[:inner])
    rows = np.arange(num_rows, dtype="int64").reshape(dims[:inner])[keys[:inner]]
    return num_rows, np.ascontiguousarray(rows).reshape(-1), prod(dims[inner:])


def sequential(ops: Sequence[Union[Value, Effect]]) -> Any:
    """Return a value or action that runs its parts in order, each once; its value is that of the last part.

    Operators that a part needs and no earlier part has run execute after the reads and writes of the same state in
    earlier parts.

    Parameters
    ----------
    ops : sequence of Value or Effect

    Returns
    -------
    Value or Effect
        An Effect, if the last part is one.

    Raises
    ------
    ValueError
        If it is empty, or holds something else.
    """
    parts: list[Any] = list(ops) if isinstance(ops, (list, tuple)) else [ops]
    if not parts:
        raise ProgramError("sequential takes one part or more")
    for part in parts:
        if not isinstance(part, Variable):
            raise ProgramError(f"a part of sequential is {part!r}; expected a value or an action of the graph")
    last = parts[-1]
    one_program(parts, "sequential")
    block = last.block.program.current_block()
    kind: type[Node] = Effect if isinstance(last, Action) else Value
    value = create(kind, "sequential", block, last.spec)
    append_operator(block, SEQUENTIAL, [part.name for part in parts], value, {})
    return value


def value_of(tensor: Value) -> Value:
    """Return a snapshot of a variable, persistent tensor or temporary at this position in the program.

    Returns
    -------
    Value
        Later assignments do not change it.
    """
    return emit("assign", {"X": as_value(tensor)})


def broadcast(x: Like, shape: Sequence[int]) -> Value:
    """Return a value that is broadcast to other dims, by NumPy's rule.

    Parameters
    ----------
    x : Value, number or array_like
    shape : sequence of int

    Raises
    ------
    ValueError
        If the dims do not broadcast to ``shape``.
    """
    value, target_dims = value_like(x), tuple(ints_of("shape", shape, -1))
    dims = value.shape
    added = len(target_dims) - len(dims)
    fits = added >= 0 and all(a in (1, b) for a, b in zip(dims, target_dims[added:], strict=True))
    if not fits:
        raise ProgramError(f"{value.name!r} {list(dims)} does not broadcast to {list(target_dims)}")
    if dims == target_dims:
        return value
    reshaped = emit("reshape2", {"X": value}, {"shape": [1] * added + list(dims)}) if added else value
    if 0 in target_dims:
        return full(0, target_dims, value.dtype, value)
    times = [b // a for a, b in zip(reshaped.shape, target_dims, strict=True)]
    return emit("expand", {"X": reshaped}, {"expand_times": times}) if set(times) != {1} else reshaped
