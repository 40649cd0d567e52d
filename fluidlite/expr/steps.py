"""A function of states applied step by step: ``states[t], emitted[t] = step(states[t - 1], inputs[t], parameters)``.

This is a recurrence over sequences (an RNN). Rows are stored in step-major order: the rows of step 0 of all sequences,
then the rows of step 1 of the sequences that are long enough, and so on. Sequences are sorted by length, longest first,
so the sequences of a step are a prefix of those of the step before (Fluid's ``LoDTensor2BatchFunctor``). ``arrange``
converts rows of a LoD to that order and back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fluidlite.base.dtypes import FLOATS
from fluidlite.expr.indexing import take
from fluidlite.expr.number import Number, Numeric, number
from fluidlite.expr.tensor import Dims, Tensor, refuse, same_dims, symbol, tensor, topological_order
from fluidlite.expr.views import concat, full, slice_axis, transpose

Tensors = Sequence[Tensor]
StepFunction = Callable[..., tuple[Tensors, Tensors]]
"""``function(states, inputs, parameters, **static)`` returns the new states and the saved results, with the same number
of rows. Each row is computed from the same row of the states and inputs only.
"""


@dataclass(frozen=True, eq=False)
class Unread:
    """An operand that a step does not read. It has only dims (for an input, those of a row) and a dtype."""

    dims: Dims
    dtype: str


@dataclass(frozen=True, eq=False)
class Step:
    """The function of a step, and its arguments that are no tensors.

    ``static``: its keyword arguments; the ``repr`` of each identifies it.
    ``inputs``, ``parameters``: one entry for each argument of the function; None: it is an operand.
    ``transposed``: for each parameter that is an operand, whether it is passed transposed, as matmuls read it.
    """

    function: StepFunction
    static: tuple[tuple[str, Any], ...]
    inputs: tuple[Unread | None, ...]
    parameters: tuple[Unread | None, ...]
    transposed: tuple[bool, ...] = ()

    def __call__(self, states: Tensors, inputs: Tensors, parameters: Tensors) -> tuple[Tensor, ...]:
        """Return the new states and the saved results, from the operands that are read."""
        flags = self.transposed or (False,) * len(parameters)
        xs, rows = iter(inputs), states[0].dims[0]
        params = iter([transpose(x) if flag else x for x, flag in zip(parameters, flags, strict=True)])
        all_inputs = [next(xs) if x is None else full((rows, *x.dims), 0, x.dtype) for x in self.inputs]
        all_params = [next(params) if x is None else full(x.dims, 0, x.dtype) for x in self.parameters]
        new_states, saved = self.function(states, all_inputs, all_params, **dict(self.static))
        return (*new_states, *saved)

    def at(self, values: Mapping[str, Any]) -> Step:
        """The same step with sizes evaluated."""
        inputs, parameters = (
            tuple(x and replace(x, dims=tuple(number(d.evaluate(values)) for d in x.dims)) for x in group)
            for group in (self.inputs, self.parameters)
        )
        static = tuple((name, x.at(values) if isinstance(x, Step) else x) for name, x in self.static)
        return Step(self.function, static, inputs, parameters, self.transposed)


def steps(
    function: StepFunction,
    states: Tensors,
    inputs: Tensors,
    parameters: Tensors = (),
    offsets: Tensor | None = None,
    backward: bool = False,
    **static: Any,
) -> list[Tensor]:
    """The states after each step, and the saved results of each step, for all rows.

    Parameters
    ----------
    function : callable
        A step. It is traced for any number of rows; its matmuls multiply rows by a parameter.
    states : sequence of Tensor
        The initial states: a row for each sequence, in the order of ``arrange(..., "sequences")``.
    inputs : sequence of Tensor
        At least one; all have the same number of rows, in step-major order.
    parameters : sequence of Tensor
        Operands that all steps share.
    offsets : Tensor, optional
        The offsets of a LoD with one sequence for each row of a state. None: all sequences have equal length.
    backward : bool
        Run from the last step to the first: each sequence then begins with its own last step.
    **static
        Keyword arguments of the function; the ``repr`` of each identifies it.

    Raises
    ------
    ProgramError
        If dims do not fit, the step changes the dims or the dtype of a state, or it joins rows.
    """
    if not states or not inputs:
        refuse("steps need a state and an input")
    open_ = next((name for name, value in static.items() if isinstance(value, (Number, Tensor))), None)
    if open_ is not None:
        refuse(f"{open_} is {static[open_]}, which no step is told; make the attribute static, or it an operand")
    step = Step(function, tuple(sorted(static.items())), (None,) * len(inputs), (None,) * len(parameters))
    return make_steps(step, states, inputs, parameters, offsets, backward)


def make_steps(
    step: Step, states: Tensors, inputs: Tensors, parameters: Tensors, offsets: Tensor | None, backward: bool
) -> list[Tensor]:
    rows = inputs[0].dims[0]
    if any(not same_dims(x.dims[:1], [rows]) for x in inputs):
        refuse(f"steps over inputs of different rows: {list(inputs)}")
    if offsets is not None and offsets.op != "offsets":
        refuse(f"steps over sequences of {offsets}; expected the offsets of an operand's LoD")
    symbols = [
        symbol_of(f"@{kind}", k, x, rows) for kind, group in (("S", states), ("X", inputs)) for k, x in enumerate(group)
    ]
    params = [symbol("@P", k, x.dims, x.dtype) for k, x in enumerate(parameters)]
    before, xs = symbols[: len(states)], symbols[len(states) :]
    outs = step(before, xs, params)
    for x, state in zip(outs, states, strict=False):
        if x.dtype != state.dtype or x.dtype not in FLOATS or not same_dims(x.dims[1:], state.dims[1:]):
            refuse(f"a step makes the state {x} of {state}")
    read = set(topological_order(outs))
    _need_rows(outs, symbols)
    step = replace(step, inputs=_unread(step.inputs, xs, read, 1), parameters=_unread(step.parameters, params, read, 0))
    reads = [x for x, symbol_ in zip(inputs, xs, strict=True) if symbol_ in read]
    weights = [x for x, symbol_ in zip(parameters, params, strict=True) if symbol_ in read]
    flags = tuple(_is_read_transposed(x, outs) for x in params if x in read)
    step = replace(
        step, transposed=tuple(a != b for a, b in zip(step.transposed or (False,) * len(flags), flags, strict=True))
    )
    weights = [transpose(x) if flag else x for x, flag in zip(weights, flags, strict=True)]
    ends = () if offsets is None else (offsets,)
    facts = (step, (len(states), len(reads), len(weights)), rows, backward, tuple((x.dims[1:], x.dtype) for x in outs))
    return results_of(tensor("steps", (*states, *reads, *weights, *ends), facts, (), states[0].dtype))


def results_of(x: Tensor) -> list[Tensor]:
    """All results of a ``steps`` tensor."""
    rows, specs = x.params[2], x.params[4]
    return [tensor("step_result", (x,), (k,), (rows, *dims), dtype) for k, (dims, dtype) in enumerate(specs)]


def _need_rows(results: Tensors, operands: Tensors) -> None:
    """Raise ProgramError where a step combines rows: the rows of one step are not the rows of all steps."""
    rows, row_wise = operands[0].dims[:1], set(operands)
    for x in topological_order(results):
        if any(arg in row_wise for arg in x.args):
            if not same_dims(x.dims[:1], rows):
                refuse(f"{x} joins rows; a step computes each of that row of states and inputs")
            row_wise.add(x)


def _is_read_transposed(x: Tensor, results: Tensors) -> bool:
    """Whether only matmuls read a parameter, and all of them contract its last axis."""
    readers = [(user, k) for user in topological_order(results) for k, arg in enumerate(user.args) if arg is x]
    return x.rank == 2 and all(
        user.op == "contract" and len(user.params[2]) == 2 and user.params[k][1] not in user.params[2]
        for user, k in readers
    )


def symbol_of(slot: str, k: int, x: Tensor, rows: Numeric) -> Tensor:
    return symbol(slot, k, (number(rows), *x.dims[1:]), x.dtype)


def _unread(
    entries: tuple[Unread | None, ...], symbols: Tensors, read: set[Tensor], lead: int
) -> tuple[Unread | None, ...]:
    """For each argument of a step an ``Unread`` if the step does not read it, else None."""
    operands = iter(symbols)
    return tuple(
        entry if entry is not None else None if (x := next(operands)) in read else Unread(x.dims[lead:], x.dtype)
        for entry in entries
    )


# Step-major order


def arrange(x: Tensor, offsets: Tensor, kind: str = "rows", inverse: bool = False, reverse: bool = False) -> Tensor:
    """The rows of sequences in step-major order, or (``"sequences"``) one row for each sequence, sorted by length.

    ``inverse``: convert back. ``reverse``: step 0 is the last row of each sequence.
    """
    return tensor("arrange", (x, offsets), (kind, inverse, reverse), x.dims, x.dtype)


def step_table(kind: str, backward: bool, offsets: Tensor, rows: Numeric, count: Numeric) -> Tensor:
    """A table of row indices, in step-major order.

    ``kind``: ``"before"``: for each row the index of its previous state in the initial states followed by all rows;
    ``"after"``: for each row the index of the next row of its sequence; ``"ends"``: for each sequence the index of its
    first row. An index equal to ``rows`` means that no such row exists.
    ``count``: the length of the table.
    """
    return tensor("step_table", (offsets,), (kind, backward, number(rows)), (number(count),), "int64")


def states_before(first: Tensor, states: Tensor, offsets: Tensor | None, backward: bool) -> Tensor:
    """For each row the state before its step."""
    rows, batch = states.dims[0], first.dims[0]
    if offsets is not None:
        table = step_table("before", backward, offsets, rows, rows)
        return take(concat([first, states], 0), table, 0, "clamp")
    if backward:
        return slice_axis(concat([states, first], 0), 0, batch, rows)
    return slice_axis(concat([first, states], 0), 0, 0, rows)


def states_after(states: Tensor, first: Tensor, offsets: Tensor | None, backward: bool) -> Tensor:
    """For each row the value at the next step of its sequence, else 0: the adjoint of ``states_before``."""
    rows, batch = states.dims[0], first.dims[0]
    if offsets is not None:
        return _with_zero(states, step_table("after", backward, offsets, rows, rows))
    return states_before(full((batch, *states.dims[1:]), 0, states.dtype), states, None, not backward)


def states_at_start(states: Tensor, first: Tensor, offsets: Tensor | None, backward: bool) -> Tensor:
    """For each sequence the value at its first step; 0 for empty sequences."""
    rows, batch = states.dims[0], first.dims[0]
    if offsets is not None:
        return _with_zero(states, step_table("ends", backward, offsets, rows, batch))
    zeros = full((batch, *states.dims[1:]), 0, states.dtype)
    if backward:  # with no step only the zeros in front remain
        return slice_axis(concat([zeros, states], 0), 0, rows, batch)
    return slice_axis(concat([states, zeros], 0), 0, 0, batch)


def _with_zero(x: Tensor, table: Tensor) -> Tensor:
    return take(concat([x, full((1, *x.dims[1:]), 0, x.dtype)], 0), table, 0, "clamp")


def operands_of(x: Tensor) -> tuple[Tensors, Tensors, Tensors, Tensor | None]:
    """The states, inputs, parameters and offsets of a ``steps`` tensor."""
    states, inputs, parameters = x.params[1]
    second = states + inputs
    third = second + parameters
    return x.args[:states], x.args[states:second], x.args[second:third], x.args[third] if len(x.args) > third else None
