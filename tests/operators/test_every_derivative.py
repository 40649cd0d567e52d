"""Every operator inside a composition: each float input has the derivative that its reference has, or is refused.

An input is computed from ``u``, which is also read elsewhere, and what comes out is read twice. Central differences
are of the whole composition, in float64, with the operator's own reference. Elements where the reference is not smooth
are left out: differences of two widths disagree there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Union

import numpy as np
import pytest
from derivative_cases import OPERATORS, chosen

import fluidlite as fluid
from fluidlite.base.dtypes import dtype_name, is_float
from fluidlite.conformance.op_harness import OperatorProgram
from fluidlite.conformance.reference import Oracle
from fluidlite.errors import GradientError
from fluidlite.program.opdef import GRAD, OpDef
from fluidlite.program.registry import ops
from fluidlite.program.rules import GradRule
from fluidlite.testing import Case

MAX_ELEMENTS = 40
STEP = 2.0**-11

ON_PURPOSE = {
    "straight_through_max": "its gradient passes where Out does not follow X",
    "spectral_norm": "the vectors of the power iteration count as constants, as in Fluid",
    "cvm": "the gradient of X holds CVM's statistics, as in Fluid",
    "data_norm": "the gradients of the sums hold statistics, as in Fluid",
}


Block = Any
POST: list[tuple[Any, Any]] = [
    (lambda block, y: y, lambda y: y),
    (lambda block, y: _op(block, "square", y), lambda y: y * y),
    (lambda block, y: _op(block, "tanh", y), np.tanh),
]


def _op(block: Block, type: str, x: Any, **attrs: Any) -> Any:
    out = block.create_temporary()
    block.append_op(type, {"X": x}, {"Out": out}, attrs)
    return out


def _add(block: Block, x: Any, y: Any) -> Any:
    out = block.create_temporary()
    block.append_op("elementwise_add", {"X": x, "Y": y}, {"Out": out})
    return out


class Composition:
    """u -> x = u / 2 + u / 2 -> operator -> post(y) + y; the target is the weighted sum of that, and of u u."""

    def __init__(self, case: Case, seed: int) -> None:
        self.case, self.oracle = case, Oracle(case)
        self.post, self.post_reference = POST[seed % len(POST)]
        rng = np.random.default_rng(seed)
        op = case.op
        taken = None
        if isinstance(op.grad, GradRule):
            taken = {slot.removesuffix(GRAD) for slot in op.grad.reads if slot.endswith(GRAD)}
        self.weights = {
            slot: [rng.choice([-1.0, 1.0], a.shape) * rng.uniform(0.3, 1.0, a.shape) for a in arrays]
            for slot, arrays in self.oracle.outputs.items()
            if all(a.dtype.kind == "f" for a in arrays)
            and op.stops(slot) is None
            and slot not in op.must_alias
            and (taken is None or slot in taken)
            and (not case.sample.outputs or slot in case.sample.outputs)
        }
        self.side = {
            (slot, i): rng.uniform(-1, 1, a.shape)
            for slot, arrays in self.oracle.inputs.items()
            for i, a in enumerate(arrays)
            if a.dtype.kind == "f"
        }

    def value(self) -> float:
        """The target by the reference, of ``oracle.inputs``, which hold u."""
        outputs = self.oracle.evaluate(self.oracle.inputs)
        total = sum(
            float(np.sum(w * (self.post_reference(y) + y)))
            for slot, weights in self.weights.items()
            for w, y in zip(weights, outputs[slot], strict=True)
        )
        return total + sum(float(np.sum(v * self.oracle.inputs[s][i] ** 2)) for (s, i), v in self.side.items())

    def program(self) -> tuple[OperatorProgram, dict[tuple[str, int], Any], list[Any], list[Any]]:
        """The program, its u by slot, the targets, and the gradients that they start with."""
        one = OperatorProgram(fluid.Program())
        block = one.program.global_block()
        op, inputs, us, targets, starts = self.case.op, {}, {}, [], []
        updated = set(op.must_alias.values())

        def aim(target: Any, weight: Any, name: str) -> None:
            targets.append(target)
            starts.append(one.data(block, f"{name}.start", weight, dims=target.shape))

        for slot, arrays in self.case.inputs().items():
            lod = self.case.sample.lod.get(slot, ())
            inputs[slot] = []
            for i, array in enumerate(arrays):
                name, declared = f"{slot}.{i}", op.input(slot)
                if slot in updated:
                    variable = block.create_var(name, array.shape, dtype_name(array.dtype), persistable=True)
                    one.state[name] = array
                else:
                    variable = one.data(block, name, array, lod, stop_gradient=not is_float(dtype_name(array.dtype)))
                if (slot, i) in self.side:
                    us[slot, i] = variable
                    aim(_op(block, "square", variable), self.side[slot, i], f"{name}.side")
                    if slot not in updated and not declared.value:
                        half = _op(block, "scale", variable, scale=0.5)
                        variable = _add(block, half, _op(block, "scale", variable, scale=0.5))
                inputs[slot].append(variable)
        outputs: dict[str, list[Any]] = {}
        for slot in self.case.sample.outputs or tuple(s.name for s in op.outputs):
            if slot in op.must_alias:
                outputs[slot] = inputs[op.must_alias[slot]]
            else:
                outputs[slot] = [
                    block.create_var(f"{slot}.{i}") for i in range(len(self.oracle.outputs.get(slot, (0,))))
                ]
        attrs = dict(self.case.sample.attrs)
        if "in_dtype" in attrs:
            attrs["in_dtype"] = "float64"
        block.append_op(op.type, inputs, outputs, attrs)
        for slot, weights in self.weights.items():
            for i, (y, weight) in enumerate(zip(outputs[slot], weights, strict=True)):
                aim(_add(block, self.post(block, y), y), weight, f"{slot}.{i}")
        return one, us, targets, starts

    def differences(self, slot: str, i: int) -> tuple[list[tuple[int, ...]], Any]:
        """Elements around which the target is smooth, and the derivatives there."""
        array = self.oracle.inputs[slot][i]
        places = list(np.ndindex(array.shape))
        if len(places) > MAX_ELEMENTS:
            places = [places[j] for j in np.random.default_rng(1).choice(len(places), MAX_ELEMENTS // 2, replace=False)]
        found = [(place, *self._difference(array, place)) for place in places]
        scale = np.mean([abs(d) for _, d, _ in found]) + 1e-3
        smooth = [(place, d) for place, d, other in found if abs(d - other) <= 1e-5 * (abs(d) + scale)]
        return [place for place, _ in smooth], np.asarray([d for _, d in smooth])

    def _difference(self, array: Any, place: tuple[int, ...]) -> tuple[float, float]:
        middle, found = array[place], []
        try:
            for step in (STEP, 0.37 * STEP):
                values = []
                for count in (-2, -1, 1, 2):
                    array[place] = middle + count * step
                    values.append(self.value())
                found.append((values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * step))
        finally:
            array[place] = middle
        return found[0], found[1]


Found = Union[str, tuple[int, int]]


def checked(case: Case, seed: int) -> Iterator[tuple[str, Found]]:
    """Of each float input: "refused", "stops", or how many elements were compared and how many are wrong."""
    composition = Composition(case, seed)
    if not composition.weights:
        return
    for slot, i in composition.side:
        one, us, targets, starts = composition.program()
        op = case.op
        try:
            (made,) = fluid.gradients(targets, [us[slot, i]], starts)
        except GradientError:
            yield slot, "refused"
            continue
        if op.stops(slot) is not None:
            yield slot, "stops"
            continue
        assert made is not None  # u is also read beside the operator
        scope = fluid.Scope()
        for name, array in one.state.items():
            scope.var(name).get_tensor().set(array, "cpu")
        exe = fluid.Executor("cpu", mode="interpreted")
        (tensor,) = exe.run(one.program, feed=one.feed, fetch_list=[made], scope=scope, return_numpy=False)
        gradient = np.asarray(tensor.numpy())
        places, wanted = composition.differences(slot, i)
        got = np.asarray([gradient[place] for place in places])
        scale = np.abs(wanted) + (np.mean(np.abs(wanted)) if len(wanted) else 0.0)
        wrong = ~(np.abs(got - wanted) <= 2e-5 * scale + 1e-7)
        yield slot, (len(places), int(wrong.sum()))


@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.type)
def test_derivatives_of_each_operator_in_a_composition(op: OpDef) -> None:
    compared: dict[str, int] = {}
    for seed, case in enumerate(chosen(op)):
        with fluid.unique_name.guard():
            for slot, found in checked(case, seed):
                if isinstance(found, str):
                    continue
                count, wrong = found
                assert not wrong or op.type in ON_PURPOSE, f"{case.id} {slot}: {wrong} of {count} wrong"
                compared[slot] = compared.get(slot, 0) + count
    if isinstance(op.grad, GradRule) and chosen(op):
        graded = {slot for case in chosen(op) for slot in case.sample.grads}
        assert all(compared.get(slot) for slot in graded), f"nothing of {graded} was compared: {compared}"


def test_every_purpose_still_differs() -> None:
    """Nothing stands in the list of exceptions that does not need to."""
    for type in ON_PURPOSE:
        found = [f for seed, case in enumerate(chosen(ops.get(type), 20)) for _, f in checked(case, seed)]
        assert any(not isinstance(each, str) and each[1] for each in found), type


def test_a_dropped_path_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    op = ops.get("elementwise_mod")
    rule = op.grad
    assert isinstance(rule, GradRule)
    monkeypatch.setattr(op, "grad", None)  # as it was; and backward as it was, which went on without it
    monkeypatch.setattr("fluidlite.program.backward.refuse_missing", lambda *given: None)
    case = chosen(op)[0]
    composition: Mapping[str, Found] = dict(checked(case, 0))
    assert any(not isinstance(found, str) and found[1] for found in composition.values())
