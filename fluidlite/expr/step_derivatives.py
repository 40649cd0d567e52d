"""The derivative of ``steps`` (backpropagation through time): a reverse scan, then one step over all rows at once.

With s[t] = step(s[t-1], x[t], p), the derivative l[t] of the states after a step is l[t] = seed[t] + m[t+1], where
m[t], the derivative of the states before the step, is computed from l[t] by the derivative of one step: a reverse scan
over m. Then the derivatives of inputs and parameters are those of one step over all rows: a weight's is one matmul.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fluidlite.expr.derivative_rules import MULTI_RESULT_RULES, RULES, zeros_like
from fluidlite.expr.derivatives import derivatives
from fluidlite.expr.steps import (
    Step,
    Tensors,
    make_steps,
    operands_of,
    results_of,
    states_after,
    states_at_start,
    states_before,
    symbol_of,
)
from fluidlite.expr.tensor import Tensor, refuse, substituted, symbol, tensor, topological_order
from fluidlite.expr.views import slices


def concat_parts(x: Tensor, whole: Tensor) -> dict[Tensor, Tensor]:
    """A tensor and the parts that it concatenates, each mapped to ``whole`` or to its slice of it."""
    if x.op in ("input", "number"):
        return {}
    slices_of, pending = {x: whole}, [(x, whole)]
    while pending:
        x, whole = pending.pop()
        if x.op != "concat":
            continue
        (axis,), at = x.params, 0
        for part in x.args:
            starts = [at if k == axis else 0 for k in range(x.rank)]
            if part.op not in ("input", "number"):
                slices_of.setdefault(part, slices(whole, starts, part.dims))
                pending.append((part, slices_of[part]))
            at = at + part.dims[axis]  # type: ignore[assignment]
    return slices_of


def inverse_arrangement(x: Tensor, d: Tensor) -> Tensor:
    """Apply the inverse of the arrangement ``x`` to ``d``."""
    kind, inverse, reverse = x.params
    return tensor("arrange", (d, x.args[1]), (kind, not inverse, reverse), d.dims, d.dtype)


@dataclass(frozen=True)
class _StepGradients:
    """The derivatives of one step, for any number of rows.

    ``states``, ``operands`` (inputs, then parameters): None where no derivative flows. ``factors``: for each matmul in
    the derivatives of the states the operand that it multiplies with a parameter; it is materialized in any case.
    ``saved``: maps each tensor that is a saved result to that result.
    """

    states: list[Tensor | None]
    operands: list[Tensor | None]
    factors: list[Tensor]
    saved: dict[Tensor, Tensor]

    def shared_factors(self) -> tuple[int, ...]:
        """The numbers of the factors that are computed and that other derivatives read as well."""
        read = set(topological_order([x for x in self.operands if x is not None]))
        return tuple(k for k, x in enumerate(self.factors) if x in read and x.op != "input" and x not in self.saved)


def _derive(
    of: Step, before: Tensors, inputs: Tensors, parameters: Tensors, results: Tensors, weights: Sequence[Tensor | None]
) -> _StepGradients:
    """Derive one step; ``results``: its saved results; ``weights``: the derivatives of its results."""
    recomputed = of(before, inputs, parameters)
    saved: dict[Tensor, Tensor] = {}
    for x, result in zip(recomputed, results, strict=True):
        saved |= concat_parts(x, result)
    gradients = derivatives(recomputed, weights, [*before, *inputs, *parameters], saved)
    states, operands = gradients[: len(before)], gradients[len(before) :]
    # the number of rows decides which tensors are views or vanish, but not the matmuls: so these are numbered
    products = [x for x in topological_order([x for x in states if x is not None]) if x.op == "contract"]
    factors = [x.args[0] if x.params[2][0] in x.params[0] else x.args[1] for x in products]
    return _StepGradients(states, operands, factors, saved)


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
    """One step of the reverse scan.

    ``inputs``: the states before each step, its inputs, all its results, and the derivatives of the results for which
    ``seeded`` is true. The saved results are the factors (see ``_StepGradients``) with the numbers ``keeps``.
    """
    first, second, third = counts[0], counts[0] + counts[1], counts[0] + counts[1] + counts[2]
    actual = (*states, *inputs, *parameters)
    symbols = [symbol("@A", k, x.dims, x.dtype) for k, x in enumerate(actual)]  # operands may repeat a tensor
    states, inputs, parameters = symbols[:first], symbols[first : first + len(inputs)], symbols[first + len(inputs) :]
    weights = _weights(states, inputs[third:], seeded)
    derived = _derive(of, inputs[:first], inputs[first:second], parameters, inputs[second:third], weights)
    if len(derived.factors) != counts[3]:
        refuse(f"the derivative of a step has {len(derived.factors)} products; expected {counts[3]}, for any rows")
    actual_of = dict(zip(symbols, actual, strict=True))

    def put(x: Tensor) -> Tensor:
        return substituted(substituted(x, derived.saved), actual_of)

    grads = [zeros_like(x) if d is None else put(d) for x, d in zip(inputs[:first], derived.states, strict=True)]
    return grads, [put(derived.factors[k]) for k in keeps]


def _weights(later: Tensors, seeds: Tensors, seeded: Sequence[bool]) -> list[Tensor | None]:
    """The derivatives of the results of a step: the seeds, plus for states the derivatives from the next step."""
    remaining = iter(seeds)
    weights: list[Tensor | None] = [next(remaining) if has_seed else None for has_seed in seeded]
    for k, state in enumerate(later):
        seed = weights[k]
        weights[k] = state if seed is None else seed + state
    return weights


def adjoints(x: Tensor, gradients: Mapping[int, Tensor]) -> tuple[Tensor | None, ...]:
    """The derivatives of the operands of ``steps``; ``gradients``: the derivatives of its results, by number."""
    step, _, rows, backward, _ = x.params
    states, inputs, parameters, offsets = operands_of(x)
    results = results_of(x)
    before = [states_before(state, after, offsets, backward) for state, after in zip(states, results, strict=False)]
    seeded = tuple(k in gradients for k in range(len(results)))
    seeds = [gradients[k] for k in range(len(results)) if k in gradients]
    # one step over all rows, with symbols as operands
    reads = (*before, *inputs, *results, *seeds)
    row_symbols = [symbol_of("@B", k, s, rows) for k, s in enumerate((*reads, *before))]
    parameter_symbols = [symbol("@R", k, s.dims, s.dtype) for k, s in enumerate(parameters)]
    remaining = iter(row_symbols)
    before_symbols, input_symbols, result_symbols, seed_symbols, later_symbols = (
        [next(remaining) for _ in group] for group in (before, inputs, results, seeds, before)
    )
    weights = _weights(later_symbols, seed_symbols, seeded)
    derived = _derive(step, before_symbols, input_symbols, parameter_symbols, result_symbols, weights)
    shared = derived.shared_factors()
    static = (
        ("counts", (len(states), len(inputs), len(results), len(derived.factors))),
        ("keeps", shared),
        ("of", step),
        ("seeded", seeded),
    )
    back = Step(step_back, static, (None,) * len(reads), (None,) * len(parameters))
    scanned = make_steps(back, [zeros_like(state) for state in states], reads, parameters, offsets, not backward)
    scanned, factors = scanned[: len(states)], scanned[len(states) :]
    later = [states_after(grad, state, offsets, backward) for grad, state in zip(scanned, states, strict=True)]
    replacements = derived.saved | {derived.factors[k]: x for k, x in zip(shared, factors, strict=True)}
    actual = dict(zip([*row_symbols, *parameter_symbols], [*reads, *later, *parameters], strict=True))
    operand_grads = [None if d is None else substituted(substituted(d, replacements), actual) for d in derived.operands]
    state_grads = [states_at_start(grad, state, offsets, backward) for grad, state in zip(scanned, states, strict=True)]
    return (*state_grads, *operand_grads, *(() if offsets is None else (None,)))


RULES["arrange"] = lambda x, d: (inverse_arrangement(x, d), None)
MULTI_RESULT_RULES["steps"] = adjoints
