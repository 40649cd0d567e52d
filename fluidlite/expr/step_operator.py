"""Operators of ``steps``: one for all steps, which runs the operator of one step for each, and the parts of a step.

One step is a function of tensors like any operator. Where it is not one kernel, it is decomposed into matmuls; the
expressions between two of them are one operator: a kernel of loops, or array calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fluidlite.base.lru_cache import LRUCache
from fluidlite.expr.calls import infer, traced_of
from fluidlite.expr.steps import Step
from fluidlite.expr.tensor import Tensor, substituted, topological_order
from fluidlite.program.decompose import Build, PartValue
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, OpDef, Slot
from fluidlite.program.rules import ExpressionRule, StepsRule
from fluidlite.tensor.tensor_spec import Spec

Facts = tuple[tuple[tuple[int, ...], str], ...]
"""For each result the dims of a row and the dtype."""
_operators: LRUCache[OpDef] = LRUCache(256, "operators of steps", 16 << 20)
_OPERANDS = tuple(Slot(name, duplicable=True, dispensable=name != "S") for name in ("S", "X", "P"))


def steps_operator(step: Step, facts: Facts, states: int, backward: bool) -> OpDef:
    """The operator that runs all steps; the sizes of the step are constants.

    Slots: states S, inputs X, parameters P; the results for all rows O. Attribute ``counts``: the rows of each step.
    """
    key = (repr(step), facts, states, backward)
    return _operators.get(key, lambda: _steps_operator(step, facts, states, backward))


def _steps_operator(step: Step, facts: Facts, states: int, backward: bool) -> OpDef:
    return OpDef(
        type="steps",
        inputs=_OPERANDS,
        outputs=(Slot("O", duplicable=True),),
        attrs=(Attr("counts", "ints"),),
        infer=lambda call: _results(facts, sum(call.attr("counts"))),
        steps=StepsRule(_one_step(step, facts), states, backward),
        doc="a step for each run of rows",
    )


def _results(facts: Facts, rows: int) -> Mapping[str, Sequence[Spec]]:
    return {"O": [Spec.of((rows, *dims), dtype) for dims, dtype in facts]}


def _one_step(step: Step, facts: Facts) -> OpDef:
    def function(inputs: Mapping[str, Sequence[Tensor]], attrs: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"O": step(inputs["S"], inputs.get("X", ()), inputs.get("P", ()))}

    parts = _Parts(step)
    return OpDef(
        type="step",
        inputs=_OPERANDS,
        outputs=(Slot("O", duplicable=True),),
        infer=lambda call: _results(facts, call.dims("S")[0]),
        expression=ExpressionRule(function),
        decompose=parts.decompose,
        doc="one step",
    )


class _Parts:
    """Decomposes one step into matmuls and the expressions between them."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.groups: dict[tuple[int, ...], OpDef] = {}

    def decompose(self, call: Call, build: Build) -> str | None:
        """Write the operators of a call of one step; or return the reason why it cannot be decomposed."""
        traced = traced_of(call)
        results = traced.outputs["O"]
        products = dict.fromkeys(_products(results))
        if not products:
            return "it has no product of matrices"
        if any(not _is_matmul(x) for x in products):
            return "a product of it is not one of two matrices"
        levels = _levels(results)
        written: dict[Tensor, PartValue] = {}
        for slot, symbols in traced.inputs.items():
            written |= {x: build.input(slot, i) for i, x in enumerate(symbols)}
        pending = [x for x in _materialized_tensors(results, products) if x not in written]
        targets: dict[Tensor, PartValue] = {}
        for i, x in enumerate(results):
            targets.setdefault(x, build.output("O", i))
        for level in range(1 + max(levels.values())):
            group = [x for x in pending if levels[x] == level and x not in products]
            if group:
                self._group(call, build, group, results, written, targets)
            for x in [x for x in products if levels[x] == level + 1]:
                (a, b), (a_axes, b_axes, out) = map(_without_transpose, x.args), x.params
                flags = {
                    "transpose_X": (a_axes[0] != out[0]) != (a is not x.args[0]),
                    "transpose_Y": (b_axes[1] != out[1]) != (b is not x.args[1]),
                }
                written[x] = build("matmul", {"X": written[a], "Y": written[b]}, {"Out": targets.get(x)}, flags)
        for i, x in enumerate(results):
            if written[x].role != "out" or written[x].index != i:
                build("assign", {"X": written[x]}, {"Out": build.output("O", i)})
        return None

    def _group(
        self,
        call: Call,
        build: Build,
        group: Sequence[Tensor],
        results: Sequence[Tensor],
        written: dict[Tensor, PartValue],
        targets: Mapping[Tensor, PartValue],
    ) -> None:
        """Write the operator that computes tensors from the operands and the products that are written already."""
        products = _products(results)
        written_products = [x for x in products if x in written]
        numbering = {x: k for k, x in enumerate(_materialized_tensors(results, products))}
        numbers = tuple(numbering[x] for x in group)
        key = (len(written_products), *numbers)
        if key not in self.groups:
            self.groups[key] = self._operator(numbers)
        inputs: dict[str, Any] = {
            slot: [build.input(slot, i) for i in range(len(specs))] for slot, specs in call.ins.items()
        }
        if written_products:
            inputs["G"] = [written[x] for x in written_products]
        values = build(self.groups[key], inputs, {"O": [targets.get(x) for x in group]})
        for x, value in zip(group, values if isinstance(values, list) else [values], strict=True):
            written[x] = value

    def _operator(self, numbers: Sequence[int]) -> OpDef:
        def function(inputs: Mapping[str, Sequence[Tensor]], attrs: Mapping[str, Any]) -> Mapping[str, Any]:
            results = self.step(inputs["S"], inputs.get("X", ()), inputs.get("P", ()))
            products = _products(results)
            materialized = list(_materialized_tensors(results, products))
            replacements = dict(zip(products, inputs.get("G", ()), strict=False))
            return {"O": tuple(substituted(materialized[k], replacements) for k in numbers)}

        return OpDef(
            type="step_part",
            inputs=(*_OPERANDS, Slot("G", duplicable=True, dispensable=True)),
            outputs=(Slot("O", duplicable=True),),
            infer=infer,
            expression=ExpressionRule(function),
            doc="what lies between products of a step",
        )


def _products(results: Sequence[Tensor]) -> list[Tensor]:
    """The matmuls of a step, in order."""
    return [x for x in topological_order(results) if x.op == "contract"]


def _materialized_tensors(results: Iterable[Tensor], products: Iterable[Tensor]) -> dict[Tensor, None]:
    """The tensors that have to be in memory: results, and operands of matmuls."""
    return dict.fromkeys([*results, *(_without_transpose(arg) for x in products for arg in x.args)])


def _without_transpose(x: Tensor) -> Tensor:
    """The matrix below a transpose, or the tensor itself."""
    return x.args[0] if x.op == "transpose" and x.rank == 2 and x.params[0] == (1, 0) else x


def _is_matmul(x: Tensor) -> bool:
    """Whether a contraction is a matmul of two matrices, either of which may be transposed."""
    a_axes, b_axes, out = x.params
    inner = set(a_axes) & set(b_axes)
    return len(a_axes) == len(b_axes) == len(out) == 2 and len(inner) == 1 and not inner & set(out) and out[0] in a_axes


def _levels(results: Sequence[Tensor]) -> dict[Tensor, int]:
    """For each tensor the number of matmuls on the longest path to it."""
    levels: dict[Tensor, int] = {}
    for x in topological_order(results):
        levels[x] = max((levels[arg] for arg in x.args), default=0) + (x.op == "contract")
    return levels
