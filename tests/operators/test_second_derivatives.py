"""Derivatives of the second order of every operator, in a composition, against central differences of the first.

The target is a weighted sum of the operator's outputs and of their squares; what is differentiated again is a weighted
sum of its gradients, so that all blocks of the matrix of second derivatives take part. It runs in float64 on the host,
and with float64 gradients on every other place, which must agree.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from derivative_cases import OPERATORS, chosen

import fluidlite as fluid
from fluidlite.base.dtypes import dtype_name, is_float
from fluidlite.conformance.op_harness import OneOperator
from fluidlite.conformance.reference import Oracle
from fluidlite.errors import GradientError
from fluidlite.expr.gradients import function_of
from fluidlite.framework.opdef import GradRule, OpDef
from fluidlite.framework.registry import ops
from fluidlite.testing import Case

STEP = 1e-6
CONVOLUTIONS = [depthwise + name for name in ("conv2d", "conv2d_transpose") for depthwise in ("", "depthwise_")] + [
    "conv3d",
    "conv3d_transpose",
]
OTHERS = [str(place) for place in fluid.places() if str(place) not in ("cpu", "cpu:0")]


class Second:
    """A program whose last value is the product of the second derivatives with a direction.

    Attributes
    ----------
    first, second : list of Variable
        Gradients of the target, and of their weighted sum, for each input in ``at``.
    """

    def __init__(self, case: Case, seed: int) -> None:
        self.one, self.at = OneOperator(fluid.Program()), []
        self.rng = np.random.default_rng(seed)
        block, op = self.one.program.global_block(), case.op
        inputs: dict[str, list[Any]] = {}
        for slot, arrays in case.inputs().items():
            lod = case.sample.lod.get(slot, ())
            floats = all(is_float(dtype_name(a.dtype)) for a in arrays) and slot not in op.must_alias.values()
            inputs[slot] = []
            for i, array in enumerate(arrays):
                name = f"{slot}.{i}"
                if slot in op.must_alias.values():
                    variable = block.create_var(name, array.shape, dtype_name(array.dtype), persistable=True)
                    self.one.state[name] = array
                else:
                    variable = self.one.data(block, name, array, lod, stop_gradient=not floats)
                inputs[slot].append(variable)
                if floats and op.stops(slot) is None and slot in case.sample.grads:
                    self.at.append(variable)
        wanted = case.sample.outputs or tuple(slot.name for slot in op.outputs)
        outputs = {
            slot: inputs[op.must_alias[slot]]
            if slot in op.must_alias
            else [block.create_var(f"{slot}.{i}") for i in range(_count(case, slot))]
            for slot in wanted
        }
        wide = {name: "float64" for name in ("in_dtype", "out_dtype") if name in case.sample.attrs}
        attrs = {**case.sample.attrs, **wide}
        block.append_op(op.type, inputs, outputs, attrs)
        graded = {slot.name for slot in op.outputs if not slot.intermediate} & set(case.graded_outputs())
        graded = {slot for slot in graded if slot not in op.must_alias and op.stops(slot) is None}
        exact, targets, starts = Oracle(case).outputs, [], []
        for slot in sorted(graded & outputs.keys()):
            for y, array in zip(outputs[slot], exact[slot], strict=True):
                if is_float(y.dtype):
                    targets += [y, self._append("square", {"X": y})]
                    starts += [self._weights("start", array.shape), self._weights("start", array.shape)]
        made = [
            (g, x) for g, x in zip(fluid.gradients(targets, self.at, starts), self.at, strict=True) if g is not None
        ]
        self.first = [g for g, _ in made]
        self.weights = [self._weights("weight", np.shape(_array(self.one.feed[x.name]))) for _, x in made]
        self.second = fluid.gradients(self.first, self.at, self.weights)

    def _append(self, type: str, inputs: dict[str, Any]) -> Any:
        block = self.one.program.global_block()
        out = block.create_temporary()
        block.append_op(type, inputs, {"Out": out})
        return out

    def _weights(self, name: str, dims: Any) -> Any:
        """Numbers, fed, of any sign."""
        block = self.one.program.global_block()
        array = self.rng.choice([-1.0, 1.0], dims) * self.rng.uniform(0.3, 1.0, dims)
        return self.one.data(block, fluid.unique_name.generate(name), np.asarray(array), dims=dims)

    def run(
        self, fetches: list[Any], moved: dict[str, Any], place: str = "cpu", mode: str = "interpreted"
    ) -> list[Any]:
        """What fetches are with some inputs moved."""
        scope = fluid.Scope()
        for name, array in self.one.state.items():
            scope.var(name).get_tensor().set(array, "cpu")
        feed = {**self.one.feed}
        for name, array in moved.items():
            tensor = fluid.Tensor()
            tensor.set(array, "cpu", _lod(feed[name]))
            feed[name] = tensor
        found = fluid.Executor(place, mode=mode).run(self.one.program, feed, fetches, scope=scope, return_numpy=False)
        return [np.asarray(t.numpy()) for t in found]


def _lod(fed: Any) -> Any:
    return fed.lod() if hasattr(fed, "lod") and callable(fed.lod) else []


def _count(case: Case, slot: str) -> int:
    return len(Oracle(case).outputs.get(slot, (0,)))


def has_expression(op: OpDef) -> bool:
    """Whether the gradient operator is an expression: others have no second derivative yet."""
    return not isinstance(op.grad, GradRule) or function_of(ops.get(op.grad.type)) is not None


def compared(second: Second) -> int:
    """Hold the second derivatives against differences; return how many directions were smooth."""
    arrays = {v.name: np.asarray(_array(second.one.feed[v.name]), "float64") for v in second.at}
    weights = [np.asarray(_array(second.one.feed[w.name])) for w in second.weights]
    fetched = [g for g in second.second if g is not None]
    (*found,) = second.run(fetched, {}) if fetched else ()
    parts = iter(found)
    exact = [next(parts) if g is not None else np.zeros(v.shape) for g, v in zip(second.second, second.at, strict=True)]
    count = 0
    for seed in range(3):
        rng = np.random.default_rng(seed)
        along = {name: rng.standard_normal(array.shape) for name, array in arrays.items()}
        slopes = []
        for step in (STEP, 3.1 * STEP):
            ends = []
            for sign in (1, -1):
                moved = {name: arrays[name] + sign * step * along[name] for name in arrays}
                first = second.run(second.first, moved)
                ends.append(sum(float((g * w).sum()) for g, w in zip(first, weights, strict=True)))
            slopes.append((ends[0] - ends[1]) / (2 * step))
        got = sum(float((h * along[v.name]).sum()) for h, v in zip(exact, second.at, strict=True))
        size = sum(float(np.abs(h * along[v.name]).sum()) for h, v in zip(exact, second.at, strict=True))
        if abs(slopes[0] - slopes[1]) > 1e-4 * (abs(slopes[0]) + size) + 1e-6:
            continue  # a kink lies between
        count += 1
        assert abs(got - slopes[0]) <= 2e-4 * (abs(slopes[0]) + size) + 2e-6, (got, slopes)
    for place in OTHERS:
        fluid.set_fallback("allow")
        for mode in ("interpreted", "compiled"):
            for mine, other in zip(found, second.run(fetched, {}, place, mode), strict=True):
                np.testing.assert_allclose(other, mine, rtol=1e-9, atol=1e-9 * (1 + np.abs(mine).max(initial=0)))
    return count


def _array(fed: Any) -> Any:
    return fed.numpy() if hasattr(fed, "numpy") else fed


FUSED = [case for type in CONVOLUTIONS for case in chosen(ops.get(type), 100) if case.sample.grads and (
         "Bias" in case.sample.inputs or case.sample.attrs.get("fuse_relu_before_depthwise_conv"))]  # fmt: skip


@pytest.mark.parametrize("case", FUSED, ids=lambda case: case.id)
def test_second_derivatives_of_convolutions_with_what_is_fused(case: Case) -> None:
    with fluid.unique_name.guard():
        assert compared(Second(case, 3))


@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.type)
def test_second_derivatives(op: OpDef) -> None:
    refused = False
    for seed, case in enumerate(case for case in chosen(op) if case.sample.grads):
        with fluid.unique_name.guard():
            try:
                second = Second(case, seed)
            except GradientError as error:
                assert "computes a derivative itself" in str(error)
                refused = True
                break
            assert compared(second) or not second.at, f"{case.id}: no direction is smooth"
    assert not refused or not has_expression(op)
