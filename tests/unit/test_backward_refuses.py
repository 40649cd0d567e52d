"""Backward never leaves a path out: an operator on it that has no derivative there is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import graph as ng, layers
from fluidlite.errors import GradientError
from fluidlite.plugin import Differentiation, Inference
from fluidlite.program.registry import ops, register_op
from fluidlite.program.rules import GradRule
from fluidlite.transformers import Transformer, make_transformer

X = np.asarray([0.5, 1.0, 2.0])


@pytest.fixture
def program() -> Any:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        yield fluid.default_main_program()


@pytest.fixture
def cpu() -> Transformer:
    return make_transformer("cpu")


def data(name: str = "x", dims: tuple[int, ...] = (3,)) -> Any:
    return layers.data(name, list(dims), append_batch_size=False, dtype="float64", stop_gradient=False)


def clipped(x: Any) -> Any:
    """``x`` through an operator without gradient, beside a path that has one."""
    return layers.reduce_sum(x * 2.0) + layers.reduce_sum(layers.clip_by_norm(x, 1.0))


# --- each entry ------------------------------------------------------------------------------------------------------


def test_gradients_names_operator_line_and_input(program: Any) -> None:
    x = data()
    loss = clipped(x)
    before = program.to_string()
    message = (
        r"operator clip_by_norm \(test_backward_refuses.py:\d+, layers.clip_by_norm\) has no derivative with respect "
    )
    with pytest.raises(GradientError, match=message + "to its input X 'x'\n  Do: x min"):
        fluid.gradients([loss], [x])
    assert program.to_string() == before  # nothing of the refused backward stays


def test_append_backward_and_minimize_refuse(program: Any) -> None:
    x = layers.data("x", [4])
    loss = clipped(layers.fc(x, 3))
    for backward in (fluid.append_backward, fluid.optimizer.SGD(0.1).minimize):
        with pytest.raises(GradientError, match=r"clip_by_norm .* input X 'fc_0.tmp_\d', which depends on 'fc_0.w_0'"):
            backward(loss)
        assert not any(op.role == "backward" for op in program.global_block().ops)


def test_deriv_refuses_whatever_unused_says(program: Any, cpu: Transformer) -> None:
    x = ng.placeholder((3,), dtype="float64")
    norm = x.block.create_temporary()
    x.block.append_op("clip_by_norm", {"X": x}, {"Out": norm}, {"max_norm": 1.0})
    y = ng.sum(x * x) + ng.sum(norm)
    for unused in ("raise", "zero"):
        with pytest.raises(GradientError, match=r"clip_by_norm .* has no derivative"):
            ng.deriv(y, x, unused=unused)
    other = ng.variable((2,), 1.0)
    np.testing.assert_array_equal(cpu.computation(ng.deriv(y, other, unused="zero"))(), [0, 0])


def test_a_refusal_for_one_variable_is_none_for_another(program: Any, cpu: Transformer) -> None:
    v, w = ng.variable((3,), 2.0), ng.variable((3,), 3.0)
    block = v.block
    norm = block.create_temporary()
    block.append_op("clip_by_norm", {"X": w}, {"Out": norm}, {"max_norm": 1.0})
    y = ng.sum(v * w) + ng.sum(norm)
    np.testing.assert_array_equal(cpu.computation(ng.deriv(y, v))(), [3, 3, 3])
    with pytest.raises(GradientError, match="clip_by_norm"):
        ng.deriv(y, w)


@pytest.mark.parametrize(
    ("second", "wanted"),
    [
        (lambda x: ng.deriv(x * ng.deriv(x * x * x, x), x), lambda x: 9 * x**2),
        (
            lambda x: ng.deriv(ng.square(ng.deriv(ng.tanh(x), x)), x),
            lambda x: -4 * np.tanh(x) * (1 - np.tanh(x) ** 2) ** 2,
        ),
        (lambda x: ng.deriv(ng.deriv(ng.deriv(ng.exp(x), x), x), x), np.exp),
    ],
)
def test_derivatives_of_derivatives(
    program: Any, cpu: Transformer, second: Callable[[Any], Any], wanted: Callable[[Any], Any]
) -> None:
    x = ng.placeholder((), dtype="float64")
    np.testing.assert_allclose(cpu.computation(second(x), x)(0.7), wanted(0.7), rtol=1e-12)


def test_one_step_of_a_meta_learner(program: Any) -> None:
    """The loss after a step of training, differentiated through the step: exact for a quadratic."""
    x, w = data(), layers.create_parameter([3], "float64", name="w")
    (inner,) = fluid.gradients([layers.reduce_sum(layers.square(x * w))], [w])
    fast = w - layers.scale(inner, 0.1)
    loss = layers.reduce_sum(layers.square(x * fast))
    ((_, grad),) = fluid.append_backward(loss)
    exe, scope, given = fluid.Executor("cpu"), fluid.Scope(), np.array([0.5, -1.0, 2.0])
    start = np.array([1.0, 2.0, -1.0])
    scope.var("w").get_tensor().set(start)
    (found,) = exe.run(program, {"x": given}, [grad], scope=scope)
    np.testing.assert_allclose(found, 2 * given**2 * start * (1 - 0.2 * given**2) ** 2, rtol=1e-12)


def test_an_input_that_nobody_asked_for_has_no_gradient_rather_than_a_part(program: Any) -> None:
    x, w = data(), layers.create_parameter([3], "float64", name="w")
    loss = clipped(x) + layers.reduce_sum(x * w)
    assert [parameter.name for parameter, _ in fluid.append_backward(loss)] == ["w"]
    assert "x@GRAD" not in program.global_block().vars
    with pytest.raises(GradientError, match="clip_by_norm"):
        fluid.append_backward(loss, [x])


# --- what is declared stays silent -----------------------------------------------------------------------------------


def test_declared_stops_are_no_refusals(program: Any) -> None:
    x = data()
    piecewise = layers.sign(x) + layers.floor(x) + layers.round(x) + layers.ceil(x)
    whole = layers.cast(layers.cast(x, "int64"), "float64") + layers.cast(layers.less_than(x, x * 2.0), "float64")
    like = layers.zeros_like(x) + layers.ones_like(x)
    y = layers.reduce_sum(x * 2.0 + piecewise + whole + like)
    (gradient,) = fluid.gradients([y], [x])
    (found,) = fluid.Executor("cpu").run(feed={"x": X}, fetch_list=[gradient])
    np.testing.assert_array_equal(found, [2, 2, 2])


def test_stop_gradient_ends_a_path(program: Any) -> None:
    x = data()
    norm = layers.clip_by_norm(x, 1.0)
    norm.stop_gradient = True
    (gradient,) = fluid.gradients([layers.reduce_sum(x * norm)], [x])
    wanted = X / np.linalg.norm(X)
    (found,) = fluid.Executor("cpu").run(feed={"x": X}, fetch_list=[gradient])
    np.testing.assert_allclose(found, wanted)
    other = layers.clip_by_norm(x, 1.0)
    assert fluid.gradients([layers.reduce_sum(other)], [x], no_grad_set={other}) == [None]


def test_an_update_on_the_way_is_no_path(program: Any) -> None:
    x = layers.data("x", [4])
    first, second = layers.fc(x, 1), layers.fc(x, 2)
    fluid.optimizer.Adam(0.1).minimize(layers.mean(first))
    parameter = program.global_block().var("fc_0.w_0")
    loss = layers.mean(second) + layers.mean(parameter)  # as it is after the update
    pairs = fluid.append_backward(loss)
    assert {p.name for p, _ in pairs} == {"fc_0.w_0", "fc_1.w_0", "fc_1.b_0"}


def test_a_value_that_is_overwritten_is_no_path(program: Any) -> None:
    x = data()
    y = layers.clip_by_norm(x, 1.0)
    layers.fill_constant([3], "float64", 2.0, out=y)
    (gradient,) = fluid.gradients([layers.reduce_sum(x * y)], [x])
    (found,) = fluid.Executor("cpu").run(feed={"x": X}, fetch_list=[gradient])
    np.testing.assert_array_equal(found, [2, 2, 2])


# --- outputs ---------------------------------------------------------------------------------------------------------


def test_an_output_that_the_gradient_does_not_take(program: Any) -> None:
    x = data("x", (2, 3))
    block = program.global_block()
    y, mean, variance = (block.create_temporary() for _ in range(3))
    block.append_op("layer_norm", {"X": x}, {"Y": y, "Mean": mean, "Variance": variance})
    (gradient,) = fluid.gradients([layers.reduce_sum(y) + layers.reduce_sum(variance)], [x])
    numbers = np.asarray([[1.0, 2, 4], [0, -1, 3]])
    (found,) = fluid.Executor("cpu").run(program, {"x": numbers}, [gradient])
    np.testing.assert_allclose(found, 2 / 3 * (numbers - numbers.mean(1, keepdims=True)), rtol=1e-9, atol=1e-12)


def test_an_output_that_no_gradient_takes(program: Any) -> None:
    """An operator of kernels alone, whose gradient takes Out's derivative and not Side's."""
    rule = GradRule("opaque_pair_grad", ("Out@GRAD",), ("X",))
    pair = register_op(
        "opaque_pair",
        Differentiation(rule=rule),
        Inference(lambda call: {"Out": call.spec("X"), "Side": call.spec("X")}),
        inputs=("X",),
        outputs=("Out", "Side"),
    )
    back = register_op(
        "opaque_pair_grad",
        Inference(lambda call: {"X@GRAD": call.spec("Out@GRAD")}),
        inputs=("Out@GRAD",),
        outputs=("X@GRAD",),
    )
    try:
        _refuses_side(program)
    finally:
        ops.remove(pair)
        ops.remove(back)


def _refuses_side(program: Any) -> None:
    x, block = data("x", (2, 1, 4, 4)), program.global_block()
    out, mask = block.create_temporary(), block.create_temporary()
    block.append_op("opaque_pair", {"X": x}, {"Out": out, "Side": mask})
    with pytest.raises(GradientError, match=r"opaque_pair \(.*\): the target depends on its output Side 'tmp_\d+'"):
        fluid.gradients([layers.reduce_sum(out) + layers.reduce_sum(mask)], [x])


@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
def test_the_probabilities_of_a_loss_have_their_derivative(program: Any, place: str) -> None:
    x, t = data("x", (2, 3)), data("t", (2, 3))
    loss, softmax = layers.softmax_with_cross_entropy(x, t, soft_label=True, return_softmax=True)
    y = layers.reduce_sum(loss) + layers.reduce_sum(layers.square(softmax))
    (gradient,) = fluid.gradients([y], [x])
    values, targets = np.asarray([[0.1, 0.7, -1], [2, 1, 0]]), np.asarray([[0.5, 0.25, 0.25], [1, 1, 0]])
    p = np.exp(values) / np.exp(values).sum(1, keepdims=True)
    wanted = p * targets.sum(1, keepdims=True) - targets + p * (2 * p - (2 * p * p).sum(1, keepdims=True))
    (found,) = fluid.Executor(place).run(feed={"x": values, "t": targets}, fetch_list=[gradient])
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


# --- labels ----------------------------------------------------------------------------------------------------------


def test_a_label_that_is_data_costs_nothing(program: Any) -> None:
    x = layers.fc(layers.data("x", [4]), 3)
    label = layers.data("label", [3])  # stop_gradient is True
    loss = layers.mean(layers.softmax_with_cross_entropy(x, label, soft_label=True))
    fluid.append_backward(loss)
    (op,) = [op for op in program.global_block().ops if op.type == "softmax_with_cross_entropy_grad"]
    assert set(op.inputs) == {"Softmax", "Label", "Loss@GRAD"}
    assert set(op.outputs) == {"Logits@GRAD"}


def test_stop_gradient_restores_what_fluid_gives(program: Any) -> None:
    x, t = data("x", (2, 3)), data("t", (2, 3))
    t.stop_gradient = True
    loss = layers.reduce_sum(layers.kldiv_loss(x, t * 2.0, "sum"))
    assert fluid.gradients([loss], [x])[0] is not None
    assert "kldiv_loss_grad" in [op.type for op in program.global_block().ops]
    assert not any("Target@GRAD" in op.outputs for op in program.global_block().ops)
