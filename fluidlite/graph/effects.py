"""What changes state, and when: assignments, sequences and snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from types import EllipsisType
from typing import Any, Union

import numpy as np

from fluidlite.base.errors import ProgramError
from fluidlite.compiler.ir.node import SEQUENTIAL, WRITE, Action, append
from fluidlite.graph.value import Effect, Like, Value, as_value, create, emit, filled, ints_of, one_program, value_like
from fluidlite.program.variable import Variable


def _target(item: Any) -> Value:
    if isinstance(item, Variable) and not isinstance(item, Action):
        found = as_value(item)
        if found.is_cell or (found.persistable and found.is_input):
            return found
    named = repr(item.name) if isinstance(item, Variable) else repr(item)
    raise ProgramError(f"{named} cannot be assigned; expected a variable, a persistent tensor or a temporary")


def assign(lvalue: Value, rvalue: Like) -> Effect:
    """Return the action that stores a value in a variable, persistent tensor or temporary.

    It runs in the computations whose results need it, where the program makes it; :func:`sequential` puts it elsewhere.

    Parameters
    ----------
    lvalue : Value
    rvalue : Value, number or array_like
        Of the same dtype, with dims that broadcast to those of ``lvalue``.

    Returns
    -------
    Effect
        As a result of a computation it gives None.

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
    made = create(Effect, f"assign_{target.name}", target.block)
    append(target.block, WRITE, [value.name], made, {"state": target.name})
    return made


def fill(x: Value, scalar: float) -> Effect:
    """Return the action that fills a variable, persistent tensor or temporary with a number that its dtype has."""
    target = _target(x)
    number = scalar.item() if isinstance(scalar, np.number) else scalar
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise ProgramError(f"fill takes a number, got {scalar!r}")
    return assign(target, filled(number, target.shape, target.dtype, target))


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
        shadow = np.broadcast_to(np.zeros((), "int8"), dims)[item]
    except IndexError as exc:
        raise ProgramError(f"{target.name!r} {list(dims)} has no part {item!r}: {exc}") from None
    part = value_like(value, target.dtype, target)
    if part.shape != shadow.shape:
        part = broadcast(part, shadow.shape)
    if not shadow.size:
        return assign(target, target)
    lead, rows, row = _rows(dims, keys)
    flat = emit("reshape2", {"X": target}, {"shape": [lead, row]})
    updates = emit("reshape2", {"X": part}, {"shape": [len(rows), row]})
    ids = value_like(rows, beside=target)
    new = emit("scatter", {"X": flat, "Ids": ids, "Updates": updates}, {"overwrite": True})
    return assign(target, emit("reshape2", {"X": new}, {"shape": list(dims)}))


def _rows(dims: tuple[int, ...], keys: tuple[Any, ...]) -> tuple[int, np.ndarray[Any, Any], int]:
    """Dims as a matrix of rows that are set as a whole: their number, those set, and the length of one."""
    dots = [i for i, key in enumerate(keys) if key is Ellipsis]
    if dots:
        middle = [slice(None)] * (len(dims) - len(keys) + 1)
        keys = (*keys[: dots[0]], *middle, *keys[dots[0] + 1 :])
    keys = (*keys, *[slice(None)] * (len(dims) - len(keys)))
    inner = len(dims)
    while inner and keys[inner - 1] in (slice(None), slice(0, dims[inner - 1]), slice(None, None, 1)):
        inner -= 1
    lead = prod(dims[:inner])
    rows = np.arange(lead, dtype="int64").reshape(dims[:inner])[keys[:inner]]
    return lead, np.ascontiguousarray(rows).reshape(-1), prod(dims[inner:])


def sequential(ops: Sequence[Union[Value, Effect]]) -> Any:
    """Return what runs its parts in order, each once; its value is the last one's.

    What a part needs, and no part before it has run, runs after the reads and writes of the same state in the parts
    before it.

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
    if isinstance(last, Action):
        effect = create(Effect, "sequential", block)
        append(block, SEQUENTIAL, [part.name for part in parts], effect, {})
        return effect
    made = create(Value, "sequential", block, last.spec)
    append(block, SEQUENTIAL, [part.name for part in parts], made, {})
    return made


def value_of(tensor: Value) -> Value:
    """Return a snapshot: what a variable, persistent tensor or temporary holds where the program makes this.

    Returns
    -------
    Value
        Later assignments do not change it.
    """
    return emit("assign", {"X": as_value(tensor)})


def broadcast(x: Like, shape: Sequence[int]) -> Value:
    """Return a value repeated to other dims, by NumPy's rule.

    Parameters
    ----------
    x : Value, number or array_like
    shape : sequence of int

    Raises
    ------
    ValueError
        If the dims do not broadcast to ``shape``.
    """
    value, wanted = value_like(x), tuple(ints_of("shape", shape, -1))
    have = value.shape
    added = len(wanted) - len(have)
    fits = added >= 0 and all(a in (1, b) for a, b in zip(have, wanted[added:], strict=True))
    if not fits:
        raise ProgramError(f"{value.name!r} {list(have)} does not broadcast to {list(wanted)}")
    if have == wanted:
        return value
    wide = emit("reshape2", {"X": value}, {"shape": [1] * added + list(have)}) if added else value
    if 0 in wanted:
        return filled(0, wanted, value.dtype, value)
    times = [b // a for a, b in zip(wide.shape, wanted, strict=True)]
    return emit("expand", {"X": wide}, {"expand_times": times}) if set(times) != {1} else wide
