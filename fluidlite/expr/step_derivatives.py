"""The derivative of ``steps``: a scan from the other end, and products over all rows at once.

With s[t] = step(s[t-1], x[t], p), the derivative l[t] of the states after a step obeys l[t] = given[t] + m[t+1], where
m[t] is what the step's own derivative makes of l[t] for the states before it: a scan over m. When it is known for all
rows, derivatives of inputs and parameters are those of one step over all of them: a weight's is one product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fluidlite.expr.derivative_rules import RULES, SEVERAL, zeros_like
from fluidlite.expr.derivatives import derivatives
from fluidlite.expr.steps import (
    Step,
    Tensors,
    operands_of,
    results_of,
    stand_in,
    states_after,
    states_before,
    states_begun,
    steps_of,
)
from fluidlite.expr.tensor import Tensor, ordered, refuse, replaced, symbol, tensor
from fluidlite.expr.views import slices


def parts_of(x: Tensor, whole: Tensor) -> dict[Tensor, Tensor]:
    """What is there as ``whole``, and what that is put together of."""
    if x.op in ("input", "number"):
        return {}
    found, pending = {x: whole}, [(x, whole)]
    while pending:
        x, whole = pending.pop()
        if x.op != "concat":
            continue
        (axis,), at = x.params, 0
        for part in x.args:
            starts = [at if k == axis else 0 for k in range(x.rank)]
            if part.op not in ("input", "number"):
                found.setdefault(part, slices(whole, starts, part.dims))
                pending.append((part, found[part]))
            at = at + part.dims[axis]  # type: ignore[assignment]
    return found


def arranged_back(x: Tensor, d: Tensor) -> Tensor:
    """What ``x`` is an arrangement of, where ``d`` stands for it."""
    kind, inverse, reverse = x.params
    return tensor("arrange", (d, x.args[1]), (kind, not inverse, reverse), d.dims, d.dtype)


@dataclass(frozen=True)
class _Derived:
    """The derivatives of one step, of tensors of any number of rows.

    ``states``, ``others`` (inputs, then parameters): None where no derivative flows. ``factors``: what each product in
    the derivatives of the states multiplies with a parameter: it is in memory in any case. ``saved``: what is there, by
    what would compute it.
    """

    states: list[Tensor | None]
    others: list[Tensor | None]
    factors: list[Tensor]
    saved: dict[Tensor, Tensor]

    def read_again(self) -> tuple[int, ...]:
        """Which factors other derivatives read as well, and are computed."""
        read = set(ordered([x for x in self.others if x is not None]))
        return tuple(k for k, x in enumerate(self.factors) if x in read and x.op != "input" and x not in self.saved)


def _derived(
    of: Step, before: Tensors, inputs: Tensors, parameters: Tensors, results: Tensors, weights: Sequence[Tensor | None]
) -> _Derived:
    """Derive one step; ``results``: what it made; ``weights``: the derivatives of that."""
    made = of(before, inputs, parameters)
    saved: dict[Tensor, Tensor] = {}
    for x, result in zip(made, results, strict=True):
        saved |= parts_of(x, result)
    found = derivatives(made, weights, [*before, *inputs, *parameters], saved)
    states, others = found[: len(before)], found[len(before) :]
    # sizes decide what is a view or nothing at all, but not which products there are: those are numbered
    products = [x for x in ordered([x for x in states if x is not None]) if x.op == "contract"]
    factors = [x.args[0] if x.params[2][0] in x.params[0] else x.args[1] for x in products]
    return _Derived(states, others, factors, saved)


def step_back(
    states: Tensors,
    inputs: Tensors,
    parameters: Tensors,
    *,
    of: Step,
    counts: tuple[int, int, int, int],
    seeded: tuple[bool, ...],
    keeps: tuple[int, ...],
) -> tuple[Tensors, Tensors]:
    """A step of the scan from the other end.

    ``inputs``: the states before each step, its inputs, all that it made, and the derivatives given for those that
    ``seeded`` says. Beside the derivatives of the states it keeps factors of their products, by number.
    """
    first, second, third = counts[0], counts[0] + counts[1], counts[0] + counts[1] + counts[2]
    actual = (*states, *inputs, *parameters)
    every = [symbol("@A", k, x.dims, x.dtype) for k, x in enumerate(actual)]  # two operands may be one tensor
    states, inputs, parameters = every[:first], every[first : first + len(inputs)], every[first + len(inputs) :]
    weights = _weights(states, inputs[third:], seeded)
    found = _derived(of, inputs[:first], inputs[first:second], parameters, inputs[second:third], weights)
    if len(found.factors) != counts[3]:
        refuse(f"the derivative of a step has {len(found.factors)} products; expected {counts[3]}, for any rows")
    there = dict(zip(every, actual, strict=True))

    def put(x: Tensor) -> Tensor:
        return replaced(replaced(x, found.saved), there)

    made = [zeros_like(x) if d is None else put(d) for x, d in zip(inputs[:first], found.states, strict=True)]
    return made, [put(found.factors[k]) for k in keeps]


def _weights(later: Tensors, seeds: Tensors, seeded: Sequence[bool]) -> list[Tensor | None]:
    """The derivatives of what a step made: those given, and for states those of the step that follows."""
    given = iter(seeds)
    weights: list[Tensor | None] = [next(given) if there else None for there in seeded]
    for k, state in enumerate(later):
        mine = weights[k]
        weights[k] = state if mine is None else mine + state
    return weights


def adjoints(x: Tensor, gradients: Mapping[int, Tensor]) -> tuple[Tensor | None, ...]:
    """The derivatives of the operands of ``steps``; ``gradients``: those of its results, by number."""
    step, _, rows, backward, _ = x.params
    states, inputs, parameters, offsets = operands_of(x)
    results = results_of(x)
    before = [states_before(state, after, offsets, backward) for state, after in zip(states, results, strict=False)]
    seeded = tuple(k in gradients for k in range(len(results)))
    seeds = [gradients[k] for k in range(len(results)) if k in gradients]
    # one step over all rows, of tensors that stand for its operands
    reads = (*before, *inputs, *results, *seeds)
    rows_of = [stand_in("@B", k, s, rows) for k, s in enumerate((*reads, *before))]
    of_parameters = [symbol("@R", k, s.dims, s.dtype) for k, s in enumerate(parameters)]
    each = iter(rows_of)
    mine_before, mine_inputs, mine_results, mine_seeds, mine_later = (
        [next(each) for _ in group] for group in (before, inputs, results, seeds, before)
    )
    weights = _weights(mine_later, mine_seeds, seeded)
    found = _derived(step, mine_before, mine_inputs, of_parameters, mine_results, weights)
    keeps = found.read_again()
    static = (
        ("counts", (len(states), len(inputs), len(results), len(found.factors))),
        ("keeps", keeps),
        ("of", step),
        ("seeded", seeded),
    )
    back = Step(step_back, static, (None,) * len(reads), (None,) * len(parameters))
    passed = steps_of(back, [zeros_like(state) for state in states], reads, parameters, offsets, not backward)
    passed, kept = passed[: len(states)], passed[len(states) :]
    later = [states_after(one, state, offsets, backward) for one, state in zip(passed, states, strict=True)]
    there = found.saved | {found.factors[k]: x for k, x in zip(keeps, kept, strict=True)}
    actual = dict(zip([*rows_of, *of_parameters], [*reads, *later, *parameters], strict=True))
    others = [None if d is None else replaced(replaced(d, there), actual) for d in found.others]
    begun = [states_begun(one, state, offsets, backward) for one, state in zip(passed, states, strict=True)]
    return (*begun, *others, *(() if offsets is None else (None,)))


RULES["arrange"] = lambda x, d: (arranged_back(x, d), None)
SEVERAL["steps"] = adjoints
