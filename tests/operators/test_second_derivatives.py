"""Derivatives of the second order of every operator, in a composition, against central differences of the first.

The target is a weighted sum of the operator's outputs and of their squares; what is differentiated again is a weighted
sum of its gradients, so that all blocks of the matrix of second derivatives take part. It runs in float64 on the host,
and that of the first sample with float64 gradients on another place, which must agree: of one operator of each module
in turn, of the next module on the next place, interpreted and compiled in turn. Nobody wrote these kernels; a generator
prints all of them for a place, whatever operator they are derived from.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from derivative_cases import OPERATORS, chosen, refused_twice
from grouped import family
from unoptimised import EVERY, unoptimised

import fluidlite as fluid
from fluidlite import layers
from fluidlite.base.dtypes import dtype_name, is_float
from fluidlite.conformance.op_harness import OperatorProgram
from fluidlite.conformance.reference import Oracle
from fluidlite.errors import GradientError
from fluidlite.program.derived import gradient_rule
from fluidlite.program.opdef import OpDef
from fluidlite.program.registry import ops
from fluidlite.program.rules import GradRule
from fluidlite.testing import Case

STEP = 1e-6
MODES = ("interpreted", "compiled")
CONVOLUTIONS = [depthwise + name for name in ("conv2d", "conv2d_transpose") for depthwise in ("", "depthwise_")] + [
    "conv3d",
    "conv3d_transpose",
]
OTHERS = [str(place) for place in fluid.places() if str(place) not in ("cpu", "cpu:0")]


class Second:
    """A program whose last value is the product of the second derivatives with a direction.

    Attributes
    ----------
    outputs : list of Variable
        Of which the target is made.
    first, second : list of Variable
        Gradients of the target, and of their weighted sum, for each input in ``at``.
    """

    def __init__(self, case: Case, seed: int) -> None:
        self.one, self.at = OperatorProgram(fluid.Program()), []
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
        self.outputs = targets[::2]
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


def compared(second: Second, turn: int | None) -> bool:
    """Hold the second derivatives against differences along the first direction that is smooth; return if one was.

    ``turn`` says on which of the other places it runs, and in which mode; None is none of them.
    """
    arrays = {v.name: np.asarray(_array(second.one.feed[v.name]), "float64") for v in second.at}
    weights = [np.asarray(_array(second.one.feed[w.name])) for w in second.weights]
    fetched = [g for g in second.second if g is not None]
    (*found,) = second.run(fetched, {}) if fetched else ()
    parts = iter(found)
    exact = [next(parts) if g is not None else np.zeros(v.shape) for g, v in zip(second.second, second.at, strict=True)]
    smooth = False
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
        smooth = True
        assert abs(got - slopes[0]) <= 2e-4 * (abs(slopes[0]) + size) + 2e-6, (got, slopes)
        break
    if turn is not None and OTHERS:
        turn, place = divmod(turn, len(OTHERS))
        fluid.set_fallback("allow")
        with unoptimised() if turn % EVERY else nullcontext():
            others = second.run(fetched, {}, OTHERS[place], MODES[turn % 2])
        for mine, other in zip(found, others, strict=True):
            np.testing.assert_allclose(other, mine, rtol=1e-9, atol=1e-9 * (1 + np.abs(mine).max(initial=0)))
    return smooth


def _array(fed: Any) -> Any:
    return fed.numpy() if hasattr(fed, "numpy") else fed


Build = Callable[[Any], Any]


def looped(x: Any) -> Any:
    i, n, power = number(0), number(3), layers.assign(x)
    more = layers.less_than(i, n)
    with layers.While(more).block():
        layers.assign(power * x, output=power)
        layers.increment(i)
        layers.less_than(i, n, cond=more)
    return power


def stepped(x: Any) -> Any:
    rnn, start = layers.StaticRNN(), layers.fill_constant([2], "float32", 1.0)
    with rnn.step():
        part = rnn.step_input(x)
        before = rnn.memory(init=start)
        rnn.update_memory(before, before * part)
        rnn.step_output(before * part)
    return rnn()


def called(x: Any) -> Any:
    out = fluid.default_main_program().current_block().create_var("called", [3, 2], "float32")
    return layers.py_func(lambda a: a * a, x, out, backward_func=lambda a, b, db: 2 * a * db)


def number(value: int) -> Any:
    return layers.fill_constant([1], "int64", value)


def written(x: Any) -> Any:
    return layers.array_write(x * x, number(0))


def summed(arrays: list[Any]) -> Any:
    block = fluid.default_main_program().global_block()
    out = block.create_temporary()
    block.append_op("sum_arrays", {"X": arrays}, {"Out": out})
    return out


def tensor_of(array: Any) -> Any:
    return layers.array_read(array, number(0))


PROGRAMS: dict[str, Build] = {
    "while": looped,
    "conditional_block": lambda x: layers.cond(layers.less_than(number(0), number(1)), lambda: x * x, lambda: x),
    "recurrent": stepped,
    "py_func": called,
    "print": lambda x: layers.Print(x * x),
    "read_from_array": lambda x: tensor_of(written(x)),
    "assign_array": lambda x: tensor_of(layers.assign(written(x))),
    "sum_arrays": lambda x: tensor_of(summed([written(x), written(x)])),
    "tensor_array_to_tensor": lambda x: layers.tensor_array_to_tensor(written(x), axis=0)[0],
}
"""Programs of the operators that have no samples, and whose gradient rules are functions."""


def has_second(build: Build) -> bool:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        x = layers.data("x", [3, 2], append_batch_size=False)
        x.stop_gradient = False
        y = build(x)
        (first,) = fluid.gradients(layers.reduce_sum(y * y), x)
        try:
            (second,) = fluid.gradients(layers.reduce_sum(first * first), x)
        except GradientError as error:
            assert "test_second_derivatives.py" in str(error), error
            return False
        return second is not None


PLACED = [
    case
    for case in chosen(ops.get("prelu"), 100)
    if case.sample.name in ("channel_more_dims", "element", "element_row")
]
FUSED = [case for type in CONVOLUTIONS for case in chosen(ops.get(type), 100) if case.sample.grads and (
         "Bias" in case.sample.inputs or case.sample.attrs.get("fuse_relu_before_depthwise_conv"))]  # fmt: skip


SPECIAL = [*FUSED, *PLACED]


def turns() -> dict[str, int]:
    """The turn of one operator of each module: the second of the second module, and so on."""
    modules: dict[str, list[str]] = {}
    for op in OPERATORS:
        modules.setdefault(family(op), []).append(op.type)
    return {types[turn % len(types)]: turn for turn, types in enumerate(modules.values())}


TURNS = turns()


@pytest.mark.parametrize("case", SPECIAL, ids=lambda case: case.id)
def test_second_derivatives_of_what_is_fused_and_of_what_has_a_place_of_its_own(case: Case) -> None:
    with fluid.unique_name.guard():
        assert compared(Second(case, 3), SPECIAL.index(case))


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
            assert compared(second, None if seed else TURNS.get(op.type)) or not second.at, (
                f"{case.id}: no direction is smooth"
            )
    assert refused == (op.type in refused_twice())


@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.type)
def test_large_numbers_have_derivatives(op: OpDef) -> None:
    """Where outputs are finite, no derivative is NaN, such as 0 times an exponential that is infinite."""
    for case in (case for case in chosen(op) if case.sample.grads and op.type not in refused_twice()):
        with fluid.unique_name.guard():
            second = Second(case, 0)
            kinds = [second.outputs, second.first, [g for g in second.second if g is not None]]
            moved = {v.name: 1e4 * _array(second.one.feed[v.name]) for v in second.at}
            found = iter(second.run([x for kind in kinds for x in kind], moved))
            for kind in kinds:
                got = [next(found) for _ in kind]
                assert kind is second.outputs or not any(np.isnan(x).any() for x in got), case.id
                if not all(np.isfinite(x).all() for x in got):
                    break


def test_the_documented_refusals_are_all() -> None:
    """Of operators without samples, too: a rule that nobody derives, or one that a program of layers is refused by."""
    underivable = {
        op.type for op in ops if isinstance(op.grad, GradRule) and gradient_rule(ops.get(op.grad.type)) is None
    }
    tried = {op.type for op in OPERATORS} | underivable
    functions = {op.type for op in ops if op.grad is not None and not isinstance(op.grad, GradRule)}
    functions = {type for type in functions - tried if not type.endswith("_grad")}
    assert functions == PROGRAMS.keys()
    refused = {type for type, build in PROGRAMS.items() if not has_second(build)}
    assert underivable | refused == refused_twice()
