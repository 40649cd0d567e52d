"""A function of states applied step by step: ``states[t], emitted[t] = step(states[t - 1], inputs[t], parameters)``.

Rows lie by step: first those of step 0, of all sequences, then those of step 1, of the sequences that have one, and so
on; the sequences are sorted by length, longest first, so that those which have a step are the first of those that had
the one before (Fluid's ``LoDTensor2BatchFunctor``). ``arrange`` puts rows of a LoD in that order and back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fluidlite.base.dtypes import FLOATS
from fluidlite.expr.indexing import take
from fluidlite.expr.number import Number, Numeric, number
from fluidlite.expr.tensor import Dims, Tensor, ordered, refuse, same_dims, symbol, tensor
from fluidlite.expr.views import concat, full, slice_axis, transpose

Tensors = Sequence[Tensor]
StepFunction = Callable[..., tuple[Tensors, Tensors]]
"""``function(states, inputs, parameters, **static)`` returns the new states and what is kept beside them, of as many
rows; it computes each row of the row of the states and inputs alone.
"""


@dataclass(frozen=True, eq=False)
class Unread:
    """An operand of a step that it does not read: only its dims count (of an input, those of a row)."""

    dims: Dims
    dtype: str


@dataclass(frozen=True, eq=False)
class Step:
    """A step's function with what it is told beside tensors.

    ``static``: its keyword arguments, each with a ``repr`` that says all of it.
    ``inputs``, ``parameters``: for each that the function takes; None: an operand.
    ``turned``: of the parameters that are operands, which are there transposed: so they lie as products read them.
    """

    function: StepFunction
    static: tuple[tuple[str, Any], ...]
    inputs: tuple[Unread | None, ...]
    parameters: tuple[Unread | None, ...]
    turned: tuple[bool, ...] = ()

    def __call__(self, states: Tensors, inputs: Tensors, parameters: Tensors) -> tuple[Tensor, ...]:
        """The new states, and what is kept beside them, of the operands that are read."""
        turned = self.turned or (False,) * len(parameters)
        given, rows = iter(inputs), states[0].dims[0]
        others = iter([transpose(x) if turn else x for x, turn in zip(parameters, turned, strict=True)])
        every = [next(given) if x is None else full((rows, *x.dims), 0, x.dtype) for x in self.inputs]
        fixed = [next(others) if x is None else full(x.dims, 0, x.dtype) for x in self.parameters]
        made, kept = self.function(states, every, fixed, **dict(self.static))
        return (*made, *kept)

    def at(self, values: Mapping[str, Any]) -> Step:
        """The same step where sizes are known."""
        inputs, parameters = (
            tuple(x and replace(x, dims=tuple(number(d.evaluate(values)) for d in x.dims)) for x in group)
            for group in (self.inputs, self.parameters)
        )
        static = tuple((name, x.at(values) if isinstance(x, Step) else x) for name, x in self.static)
        return Step(self.function, static, inputs, parameters, self.turned)


def steps(
    function: StepFunction,
    states: Tensors,
    inputs: Tensors,
    parameters: Tensors = (),
    offsets: Tensor | None = None,
    backward: bool = False,
    **static: Any,
) -> list[Tensor]:
    """The states after each step, and what the step keeps beside them, for all rows.

    Parameters
    ----------
    function : callable
        A step. It is traced for any number of rows; its products are of rows and a parameter.
    states : sequence of Tensor
        Before the first step, a row for each sequence, in the order of ``arrange(..., "sequences")``.
    inputs : sequence of Tensor
        Of the same rows each, by step; one at least.
    parameters : sequence of Tensor
        What all steps read.
    offsets : Tensor, optional
        Those of a LoD, of as many sequences as a state has rows. None: all sequences are as long.
    backward : bool
        From the last step to the first: a sequence then begins with its own last step.
    **static
        Keyword arguments of the function, with a ``repr`` that says all of them.

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
    whole = Step(function, tuple(sorted(static.items())), (None,) * len(inputs), (None,) * len(parameters))
    return steps_of(whole, states, inputs, parameters, offsets, backward)


def steps_of(
    step: Step, states: Tensors, inputs: Tensors, parameters: Tensors, offsets: Tensor | None, backward: bool
) -> list[Tensor]:
    rows = inputs[0].dims[0]
    if any(not same_dims(x.dims[:1], [rows]) for x in inputs):
        refuse(f"steps over inputs of different rows: {list(inputs)}")
    if offsets is not None and offsets.op != "offsets":
        refuse(f"steps over sequences of {offsets}; expected the offsets of an operand's LoD")
    given = [
        stand_in(f"@{kind}", k, x, rows) for kind, group in (("S", states), ("X", inputs)) for k, x in enumerate(group)
    ]
    fixed = [symbol("@P", k, x.dims, x.dtype) for k, x in enumerate(parameters)]
    before, mine = given[: len(states)], given[len(states) :]
    made = step(before, mine, fixed)
    for x, state in zip(made, states, strict=False):
        if x.dtype != state.dtype or x.dtype not in FLOATS or not same_dims(x.dims[1:], state.dims[1:]):
            refuse(f"a step makes the state {x} of {state}")
    read = set(ordered(made))
    _need_rows(made, given)
    step = replace(
        step, inputs=_missing(step.inputs, mine, read, 1), parameters=_missing(step.parameters, fixed, read, 0)
    )
    kept = [x for x, symbol_ in zip(inputs, mine, strict=True) if symbol_ in read]
    others = [x for x, symbol_ in zip(parameters, fixed, strict=True) if symbol_ in read]
    turned = tuple(_is_turned(x, made) for x in fixed if x in read)
    step = replace(
        step, turned=tuple(a != b for a, b in zip(step.turned or (False,) * len(turned), turned, strict=True))
    )
    others = [transpose(x) if turn else x for x, turn in zip(others, turned, strict=True)]
    ends = () if offsets is None else (offsets,)
    facts = (step, (len(states), len(kept), len(others)), rows, backward, tuple((x.dims[1:], x.dtype) for x in made))
    return results_of(tensor("steps", (*states, *kept, *others, *ends), facts, (), states[0].dtype))


def results_of(x: Tensor) -> list[Tensor]:
    """All that ``steps`` made."""
    rows, made = x.params[2], x.params[4]
    return [tensor("step_result", (x,), (k,), (rows, *dims), dtype) for k, (dims, dtype) in enumerate(made)]


def _need_rows(results: Tensors, operands: Tensors) -> None:
    """Raise where a step joins rows: those of a step are other ones than those of all."""
    rows, apart = operands[0].dims[:1], set(operands)
    for x in ordered(results):
        if any(arg in apart for arg in x.args):
            if not same_dims(x.dims[:1], rows):
                refuse(f"{x} joins rows; a step computes each of that row of states and inputs")
            apart.add(x)


def _is_turned(x: Tensor, results: Tensors) -> bool:
    """Whether a parameter is read by products alone, which sum along its last axis."""
    readers = [(user, k) for user in ordered(results) for k, arg in enumerate(user.args) if arg is x]
    return x.rank == 2 and all(
        user.op == "contract" and len(user.params[2]) == 2 and user.params[k][1] not in user.params[2]
        for user, k in readers
    )


def stand_in(slot: str, k: int, x: Tensor, rows: Numeric) -> Tensor:
    return symbol(slot, k, (number(rows), *x.dims[1:]), x.dtype)


def _missing(
    known: tuple[Unread | None, ...], symbols: Tensors, read: set[Tensor], lead: int
) -> tuple[Unread | None, ...]:
    """Which operands a step does not read, as it takes them."""
    given = iter(symbols)
    return tuple(
        old if old is not None else None if (x := next(given)) in read else Unread(x.dims[lead:], x.dtype)
        for old in known
    )


# The order by step

KINDS = ("rows", "sequences", "before", "after", "ends")


def arrange(x: Tensor, offsets: Tensor, kind: str = "rows", inverse: bool = False, reverse: bool = False) -> Tensor:
    """The rows of sequences by step, or (``"sequences"``) a row for each sequence as steps take them; or back.

    ``reverse``: step 0 is the last row of each sequence.
    """
    return tensor("arrange", (x, offsets), (kind, inverse, reverse), x.dims, x.dtype)


def step_table(kind: str, backward: bool, offsets: Tensor, rows: Numeric, count: Numeric) -> Tensor:
    """Numbers of rows of a list, by step.

    ``kind``: ``"before"``: for each row where its state before lies, in the first states and then the rows;
    ``"after"``: which row follows it; ``"ends"``: for each sequence which row is its first one. The number of rows
    stands for none.
    ``count``: how many numbers there are.
    """
    return tensor("step_table", (offsets,), (kind, backward, number(rows)), (number(count),), "int64")


def states_before(first: Tensor, states: Tensor, offsets: Tensor | None, backward: bool) -> Tensor:
    """For each row the state that its step begins with."""
    rows, batch = states.dims[0], first.dims[0]
    if offsets is not None:
        table = step_table("before", backward, offsets, rows, rows)
        return take(concat([first, states], 0), table, 0, "clamp")
    if backward:
        return slice_axis(concat([states, first], 0), 0, batch, rows)
    return slice_axis(concat([first, states], 0), 0, 0, rows)


def states_after(states: Tensor, first: Tensor, offsets: Tensor | None, backward: bool) -> Tensor:
    """For each row what belongs to the step that follows it; 0 where none does: the adjoint of ``states_before``."""
    rows, batch = states.dims[0], first.dims[0]
    if offsets is not None:
        return _with_zero(states, step_table("after", backward, offsets, rows, rows))
    nothing = full((batch, *states.dims[1:]), 0, states.dtype)
    if backward:
        return slice_axis(concat([nothing, states], 0), 0, 0, rows)
    return slice_axis(concat([states, nothing], 0), 0, batch, rows)


def states_begun(states: Tensor, first: Tensor, offsets: Tensor | None, backward: bool) -> Tensor:
    """For each sequence what belongs to its first step; 0 for empty ones."""
    rows, batch = states.dims[0], first.dims[0]
    if offsets is not None:
        return _with_zero(states, step_table("ends", backward, offsets, rows, batch))
    nothing = full((batch, *states.dims[1:]), 0, states.dtype)
    if backward:  # no step: nothing is left but the zeros in front
        return slice_axis(concat([nothing, states], 0), 0, rows, batch)
    return slice_axis(concat([states, nothing], 0), 0, 0, batch)


def _with_zero(x: Tensor, table: Tensor) -> Tensor:
    return take(concat([x, full((1, *x.dims[1:]), 0, x.dtype)], 0), table, 0, "clamp")


def operands_of(x: Tensor) -> tuple[Tensors, Tensors, Tensors, Tensor | None]:
    """States, inputs, parameters and offsets of what ``steps`` made."""
    states, inputs, parameters = x.params[1]
    second = states + inputs
    third = second + parameters
    return x.args[:states], x.args[states:second], x.args[second:third], x.args[third] if len(x.args) > third else None
