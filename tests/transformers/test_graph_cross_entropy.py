"""Cross entropies from logits and from probabilities: one value, and the derivatives of both operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fluidlite import graph as ng
from fluidlite.transformers import Transformer

SHAPES = [((5,), -1), ((3, 4), -1), ((3, 4), 0), ((2, 3, 4), 1), ((2, 3, 4), -2), ((3, 1), 1), ((0, 3), 1)]


def arrays(dims: tuple[int, ...], seed: int = 0) -> tuple[Any, Any]:
    """Logits, and targets that do not sum to 1: rows of weight 0, and weights of classes."""
    rng = np.random.default_rng(seed)
    targets = rng.uniform(0, 2, dims) * (rng.uniform(0, 1, dims) < 0.7)
    return rng.uniform(-3, 3, dims), targets


def log_softmax(x: Any, axis: int) -> Any:
    return x - np.log(np.sum(np.exp(x), axis=axis, keepdims=True))


@pytest.mark.parametrize(("dims", "axis"), SHAPES)
def test_derivatives_of_logits_and_targets(transformer: Transformer, dims: tuple[int, ...], axis: int) -> None:
    x, t = ng.placeholder(dims, "float64"), ng.placeholder(dims, "float64")
    loss = ng.cross_entropy_multi(ng.softmax(x, axis), t, axis)
    start = ng.placeholder(loss.shape, "float64")
    results = [loss, *ng.deriv(loss, [x, t], start)]
    values, targets = arrays(dims)
    given = np.random.default_rng(1).uniform(-1, 1, loss.shape)
    found = transformer.computation(results, x, t, start)(values, targets, given)
    logs = log_softmax(values, axis)
    np.testing.assert_allclose(found[0], -(targets * logs).sum(axis), rtol=1e-12, atol=1e-12)
    wide = np.expand_dims(given, axis)
    of_logits = (np.exp(logs) * targets.sum(axis, keepdims=True) - targets) * wide
    np.testing.assert_allclose(found[1], of_logits, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(found[2], -logs * wide, rtol=1e-11, atol=1e-12)


def test_binary_derivatives_of_logits_and_targets(transformer: Transformer) -> None:
    x, t = ng.placeholder((3, 4), "float64"), ng.placeholder((3, 4), "float64")
    loss = ng.cross_entropy_binary(ng.sigmoid(x), t)
    values, targets = arrays((3, 4))
    found = transformer.computation([loss, *ng.deriv(ng.sum(loss), [x, t])], x, t)(values, targets)
    np.testing.assert_allclose(found[0], np.logaddexp(0, values) - values * targets, rtol=1e-12)
    np.testing.assert_allclose(found[1], 1 / (1 + np.exp(-values)) - targets, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(found[2], -values, rtol=1e-12)


def test_both_forms_have_one_value_and_one_limit(transformer: Transformer) -> None:
    x, t = ng.placeholder((4, 3)), ng.placeholder((4, 3))
    p, q = ng.softmax(x), ng.sigmoid(x)
    forms = [
        ng.cross_entropy_multi(p, t), ng.cross_entropy_multi(ng.value_of(p), t),
        ng.cross_entropy_binary(q, t), ng.cross_entropy_binary(ng.value_of(q), t),
    ]  # fmt: skip
    values = np.float32([[0, 1, 2], [-400, 0, 0], [-60, -3, 4], [-20, -30, 3]])
    targets = np.float32([[0.2, 0.8, 0], [1, 0, 0], [2, 0.5, 0], [0.5, 0.5, 1]])
    multi, multi_plain, binary, binary_plain = transformer.computation(forms, x, t)(values, targets)
    np.testing.assert_allclose(multi, multi_plain, rtol=1e-5)
    np.testing.assert_allclose(binary, binary_plain, rtol=1e-5)
    assert multi[1] == 50


def test_the_derivative_goes_on_beyond_the_limit(transformer: Transformer) -> None:
    x, y = ng.placeholder((2, 2)), ng.placeholder((2,))
    multi = ng.sum(ng.cross_entropy_multi(ng.softmax(x), np.float32([[1, 0], [0, 1]])))
    binary = ng.sum(ng.cross_entropy_binary(ng.sigmoid(y), np.float32([1, 0])))
    found = transformer.computation([ng.deriv(multi, x), ng.deriv(binary, y)], x, y)(
        np.float32([[-300, 0], [0, -70]]), np.float32([-300, 300])
    )
    np.testing.assert_allclose(found[0], [[-1, 1], [1, -1]], rtol=1e-6, atol=1e-20)
    np.testing.assert_allclose(found[1], [-1, 1], rtol=1e-6)


def test_the_entropy_of_probabilities(transformer: Transformer) -> None:
    """Target and prediction are one value: both paths count."""
    p = ng.placeholder((4,), "float64")
    values = np.asarray([0.1, 0.2, 0.3, 0.4])
    plain = transformer.computation(ng.deriv(ng.cross_entropy_multi(p, p), p), p)(values)
    np.testing.assert_allclose(plain, -np.log(values) - 1, rtol=1e-12)
    x = ng.placeholder((4,), "float64")
    q = ng.softmax(x)
    found = transformer.computation(ng.deriv(ng.cross_entropy_multi(q, q), x), x)(np.log(values))
    inner = -np.log(values) - 1
    np.testing.assert_allclose(found, values * (inner - (values * inner).sum()), rtol=1e-11)


@pytest.mark.parametrize("kind", ["multi", "binary"])
def test_logits_that_are_assigned_meanwhile(transformer: Transformer, kind: str) -> None:
    """The cross entropy is of the probabilities as they were computed, with the gradient of those."""
    logits, onehot = np.float32([[1, 2, 3]]), np.float32([[1, 0, 0]])
    w, t = ng.variable((1, 3), initial_value=logits), ng.constant(onehot)
    y = ng.softmax(w) if kind == "multi" else ng.sigmoid(w)
    new = ng.assign(w, w * 0.0)
    if kind == "multi":
        loss, plain = ng.cross_entropy_multi(y, t), ng.sum(-t * ng.log(y), axis=-1)
    else:
        loss, plain = ng.cross_entropy_binary(y, t), -(t * ng.log(y) + (1 - t) * ng.log(1 - y))
    _, _, found, expected = transformer.computation([y, new, loss, plain])()
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    p = np.exp(logits) / np.exp(logits).sum() if kind == "multi" else 1 / (1 + np.exp(-logits))
    np.testing.assert_allclose(
        expected.sum(), -np.log(p[0, 0]) - (0 if kind == "multi" else np.log1p(-p[0, 1:]).sum()), rtol=1e-5
    )


@pytest.mark.parametrize("kind", ["multi", "binary"])
def test_probabilities_that_are_an_argument(transformer: Transformer, kind: str) -> None:
    w, t = ng.variable((1, 3), initial_value=np.float32([[1, 2, 3]])), ng.constant(np.float32([[1, 0, 0]]))
    y = ng.softmax(w) if kind == "multi" else ng.sigmoid(w)
    y.is_input = True
    loss = ng.cross_entropy_multi(y, t) if kind == "multi" else ng.cross_entropy_binary(y, t)
    found = transformer.computation(loss, y)(np.float32([[0.5, 0.25, 0.25]]))
    expected = np.log([2.0]) if kind == "multi" else -np.log([[0.5, 0.75, 0.75]])
    np.testing.assert_allclose(found, expected, rtol=1e-5)
