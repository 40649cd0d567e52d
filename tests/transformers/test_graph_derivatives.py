"""Derivatives of the functional front."""

from __future__ import annotations

import numpy as np
import pytest

import fluidlite as fluid
import fluidlite.graph as ng
from fluidlite.transformers import Transformer


def test_a_scalar(transformer: Transformer) -> None:
    x, y = ng.placeholder(()), ng.placeholder(())
    f = x * x * y + ng.sin(y)
    found = transformer.computation([ng.deriv(f, x), ng.deriv(f, y)], x, y)(3, 0)
    assert found == (0, 10)


def test_an_error_tensor(transformer: Transformer) -> None:
    x = ng.placeholder((2, 3))
    error = ng.placeholder((2, 3))
    given, weights = np.arange(6.0).reshape(2, 3), np.float32([[1, 2, 3], [4, 5, 6]])
    found = transformer.computation(ng.deriv(ng.square(x), x, error), x, error)(given, weights)
    np.testing.assert_allclose(found, 2 * given * weights)


def test_a_broadcast_operand(transformer: Transformer) -> None:
    x, b = ng.placeholder((4, 3)), ng.variable((3,), 1.0)
    found = transformer.computation(ng.deriv(ng.sum(x * b), b), x)(np.ones((4, 3)))
    np.testing.assert_array_equal(found, [4, 4, 4])


def test_one_rule_for_the_unused(cpu: Transformer) -> None:
    x, other = ng.placeholder((2,)), ng.variable((3,), 1.0)
    loss = ng.sum(x)
    with pytest.raises(fluid.errors.GradientError, match="does not depend"):
        ng.deriv(loss, other)
    np.testing.assert_array_equal(cpu.computation(ng.deriv(loss, other, unused="zero"))(), [0, 0, 0])
    zero, one = ng.deriv(loss, [other, x], unused="zero")
    found = cpu.computation([zero, one], x)([1, 2])
    np.testing.assert_array_equal(found[1], [1, 1])


def test_of_itself_and_of_an_intermediate(cpu: Transformer) -> None:
    x = ng.placeholder(())
    y = x * 3
    z = y * y
    assert cpu.computation(ng.deriv(x, x), x)(5) == 1
    assert cpu.computation([ng.deriv(z, y), ng.deriv(z, x)], x)(2) == (12, 36)


def test_second_derivatives_of_products(cpu: Transformer) -> None:
    x, y = ng.placeholder(()), ng.placeholder(())
    first = ng.deriv(x * y, x)
    assert cpu.computation(first * 2, x, y)(3, 4) == 8


def test_no_derivative_through_a_stop_or_an_assignment(cpu: Transformer) -> None:
    x, v = ng.placeholder(()), ng.variable((), 0.0)
    assert cpu.computation(ng.deriv(x * ng.stop_gradient(x), x), x)(3) == 3
    stored = ng.sequential([ng.assign(v, x * 2), v * x])
    assert cpu.computation([stored, ng.deriv(stored, x), ng.deriv(stored, v)], x)(3) == (18, 6, 3)


def test_derivatives_read_state_as_what_they_derive(transformer: Transformer) -> None:
    w1, w2 = ng.variable((), 2.0), ng.variable((), 3.0)
    loss = w1 * w2
    first = ng.assign(w1, w1 - ng.deriv(loss, w1))
    second = ng.assign(w2, w2 - ng.deriv(loss, w2))  # of the old w1
    loss_found, *_ = transformer.computation([loss, first, second])()
    assert loss_found == 6
    assert transformer.computation([w1, w2])() == (-1, 1)


def test_state_that_is_overwritten_before_its_derivative(transformer: Transformer) -> None:
    w1, w2 = ng.variable((), 2.0), ng.variable((), 3.0)
    product = w1 * w2
    put = ng.assign(w1, 100.0)
    late = ng.deriv(ng.square(product), [w1, w2])
    computation = transformer.computation([*late, put])
    assert computation() == (36, 24, None)
    assert transformer.computation([*late])() == (2 * 300 * 3, 2 * 300 * 100)
    both = ng.sequential([ng.assign(w1, 5.0), ng.deriv(ng.sequential([product, ng.assign(w1, 6.0), product]), w2)])
    assert transformer.computation(both)() == 5


def test_state_made_after_a_derivative(cpu: Transformer) -> None:
    v = ng.variable((), 2.0)
    loss = v * v
    assert cpu.computation(ng.deriv(loss, v))() == 4
    w = ng.variable((), 3.0)
    both = loss * w
    assert cpu.computation([ng.deriv(both, w), ng.deriv(both, v)])() == (4, 12)


def test_one_backward_serves_all_variables() -> None:
    weights = [ng.variable((2, 2), 1.0) for _ in range(4)]
    x = ng.placeholder((2, 2))
    for w in weights:
        x = ng.tanh(x @ w)
    loss = ng.sum(x)
    ng.deriv(loss, weights[0])
    count = len(loss.block.ops)
    for w in weights[1:]:
        ng.deriv(loss, w)
    assert len(loss.block.ops) == count


def test_only_what_is_asked_for_runs(cpu: Transformer) -> None:
    a, b = ng.variable((2, 2), 1.0), ng.variable((2, 2), 1.0)
    loss = ng.sum(ng.tanh(a) @ ng.exp(b))
    types = [op.type for op in cpu.computation(ng.deriv(loss, a)).program.global_block().ops]
    assert "tanh_grad" in types
    assert "exp_grad" not in types


def test_against_central_differences(transformer: Transformer) -> None:
    rng = np.random.default_rng(1)
    x0 = rng.normal(size=(3, 4)).astype("float32")
    t0 = np.eye(4, dtype="float32")[[0, 2, 3]]
    x, t = ng.placeholder((3, 4)), ng.placeholder((3, 4))
    loss = ng.mean(ng.cross_entropy_multi(ng.softmax(ng.tanh(x) * 2), t))
    value, slope = transformer.computation([loss, ng.deriv(loss, x)], x, t), 1e-2
    found = value(x0, t0)[1]
    for i, j in ((0, 0), (1, 3), (2, 1)):
        step = np.zeros_like(x0)
        step[i, j] = slope
        central = (value(x0 + step, t0)[0] - value(x0 - step, t0)[0]) / (2 * slope)
        np.testing.assert_allclose(found[i, j], central, rtol=2e-2, atol=1e-4)
