"""Layers against NumPy in float64, their gradients against central differences, and how they are combined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fluidlite import nodes
from fluidlite.base.errors import NodeError
from fluidlite.nodes import (
    Data,
    FixedData,
    Graph,
    Node,
    Prealloc,
    Sum,
    Tanh,
    Weight,
    cpu,
    device,
    initialisers as init,
    layers,
)

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)


def of(weight: Weight | None) -> Array:
    assert weight is not None
    return weight.value().numpy().astype("float64")


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def lstm(layer: layers.Lstm, xs: list[Array]) -> list[Array]:
    n = layer.hidden
    h = c = np.zeros((n, *xs[0].shape[1:]))
    found = []
    for x in xs:
        b = of(layer.b).reshape(-1, *[1] * (x.ndim - 1))
        gates = np.tensordot(of(layer.w), x, 1) + np.tensordot(of(layer.u), h, 1) + b
        i, f, o, u = (gates[k * n : (k + 1) * n] for k in range(4))
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(u)
        h = sigmoid(o) * np.tanh(c)
        found.append(h)
    return found


def value(node: Node) -> Array:
    Graph(node).forward()
    return node.value().numpy()


def check_gradients(layer: layers.Layer, loss: Callable[[], Node], expected: Callable[[], float]) -> None:
    """Gradients of some elements of each weight against central differences of a float64 reference."""
    graph = Graph(loss())
    graph.forward()
    np.testing.assert_allclose(graph.sink.value().numpy(), expected(), rtol=1e-4)
    graph.reset_grad()
    graph.backward()
    for weight in layer.weights():
        found = weight.grad().numpy().reshape(-1)
        held = weight.value().numpy().copy()
        for at in RNG.choice(held.size, min(4, held.size), replace=False):
            ends = []
            for step in (1e-3, -1e-3):
                moved = held.copy().reshape(-1)
                moved[at] += step
                weight.value()[...] = moved.reshape(held.shape)
                ends.append(expected())
            weight.value()[...] = held
            np.testing.assert_allclose(found[at], (ends[0] - ends[1]) / 2e-3, rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
@pytest.mark.parametrize("bias", [True, False])
def test_affine(place: str, batch: tuple[int, ...], bias: bool) -> None:
    layer = layers.Affine(place, 4, 5, Tanh, bias=bias)
    if bias:
        init.Normal(seed=2)(layer.b.value())  # type: ignore[union-attr]
    x = RNG.standard_normal((4, *batch)).astype("float32")

    def right() -> Array:
        shift = of(layer.b).reshape(-1, *[1] * len(batch)) if bias else 0
        return np.asarray(np.tanh(np.tensordot(of(layer.w), x.astype("float64"), 1) + shift))

    np.testing.assert_allclose(value(layer(FixedData(place, x))), right(), rtol=1e-5, atol=1e-6)
    check_gradients(layer, lambda: Sum(layer(FixedData(place, x))), lambda: float(right().sum()))
    assert len(layer.weights()) == 1 + bias


@pytest.mark.parametrize("batch", [(), (3,)])
def test_lstm(place: str, batch: tuple[int, ...]) -> None:
    nodes.seed(1)
    layer = layers.Lstm(place, 3, 4)
    assert of(layer.b).tolist() == [0] * 4 + [1] * 4 + [0] * 8
    xs = [RNG.standard_normal((3, *batch)).astype("float32") for _ in range(5)]
    found = layer([FixedData(place, x) for x in xs])
    for node, right in zip(found, lstm(layer, xs), strict=True):
        np.testing.assert_allclose(value(node), right, rtol=1e-4, atol=1e-5)
    check_gradients(
        layer,
        lambda: Sum(*layer([FixedData(place, x) for x in xs])),
        lambda: float(sum(h.sum() for h in lstm(layer, xs))),
    )
    state = None
    for x in xs[:2]:
        state = layer.step(FixedData(place, x), state)
    rest = layer([FixedData(place, x) for x in xs[2:]], state)
    np.testing.assert_allclose(value(rest[-1]), lstm(layer, xs)[-1], rtol=1e-4, atol=1e-5)


def test_lstm_lies_where_its_input_does(place: str) -> None:
    tmp = Prealloc(place, 1 << 16)
    layer = layers.Lstm(place, 3, 4)
    (h,) = layer([FixedData(tmp, np.ones(3, "float32"))])
    assert h.dev() is tmp
    assert {weight.dev() for weight in layer.weights()} == {device(place)}
    graph = Graph(Sum(h))
    graph.forward()
    graph.backward()
    assert {weight.grad().dev for weight in layer.weights()} == {device(place)}


def test_bilstm(place: str) -> None:
    layer = layers.BiLstm(place, 3, 2)
    xs = [RNG.standard_normal((3, 2)).astype("float32") for _ in range(4)]
    back = lstm(layer.backward, xs[::-1])[::-1]
    for node, f, b in zip(layer([FixedData(place, x) for x in xs]), lstm(layer.forward, xs), back, strict=True):
        np.testing.assert_allclose(value(node), np.concatenate([f, b]), rtol=1e-4, atol=1e-5)
    assert len(layer.weights()) == 6


def test_lookup(place: str) -> None:
    tmp = Prealloc(place, 1 << 12)
    layer = layers.Lookup(place, "abca", 4, unknown=True)
    assert len(layer) == 3 and "a" in layer and "z" not in layer and len(layer.weights()) == 4
    assert layer("a") is layer.table["a"] and layer("z") is layer.unknown
    view = layer("b", tmp)
    assert view.dev() is tmp and view.value() is layer.table["b"].value()
    graph = Graph(Sum(nodes.CwiseProd(view, layer("b", tmp))))
    graph.forward()
    graph.backward()
    np.testing.assert_allclose(layer.table["b"].grad().numpy(), 2 * of(layer.table["b"]), rtol=1e-5)
    assert [weight is layer.table["b"] for weight in graph.weights()] == [True]
    with pytest.raises(NodeError, match=r"Lookup has no key 'z' among 3\n  Do: Lookup\(..., unknown=True\)"):
        layers.Lookup(place, "abc", 4)("z")


def test_embedding(place: str) -> None:
    layer = layers.Embedding(place, 6, 3)
    ids = np.array([[1, 5, 1], [0, 2, 1]])
    out = layer(ids)
    np.testing.assert_allclose(value(out), np.moveaxis(of(layer.w)[ids], -1, 0), rtol=1e-6)
    graph = Graph(Sum(out))
    graph.forward()
    graph.backward()
    assert layer.w.grad().numpy()[:, 0].tolist() == [1, 3, 1, 0, 0, 1]
    tmp = Prealloc(place, 1 << 12)
    assert layer(ids, tmp).dev() is tmp


def test_layer_norm(place: str) -> None:
    layer = layers.LayerNorm(place, 6)
    init.Normal(seed=3)(layer.scale.value())
    init.Normal(seed=4)(layer.shift.value())
    for batch in ((), (3,), (2, 3)):
        x = RNG.standard_normal((6, *batch)).astype("float32")

        def right(x: Array = x) -> Array:
            wide = x.astype("float64")
            at = (-1, *[1] * (x.ndim - 1))
            normed = (wide - wide.mean(0)) / np.sqrt(wide.var(0) + 1e-5)
            return np.asarray(normed * of(layer.scale).reshape(at) + of(layer.shift).reshape(at))

        np.testing.assert_allclose(value(layer(FixedData(place, x))), right(), rtol=1e-4, atol=1e-5)
        check_gradients(
            layer, lambda x=x: Sum(Tanh(layer(FixedData(place, x)))), lambda right=right: float(np.tanh(right()).sum())
        )  # type: ignore[misc]


def test_dropout_in_training_only(place: str) -> None:
    layer = layers.Affine(place, 2, 3) | layers.Dropout(0.25)
    x = Data(place, np.ones((2, 400), "float32"))
    full = value(layer.parts[0](x))
    dropped = value(layer(x))
    zero = dropped == 0
    assert 0.15 < zero.mean() < 0.35
    np.testing.assert_allclose(dropped[~zero], (full / 0.75)[~zero], rtol=1e-5)
    layer.eval()
    assert layer.parts[1].training is False
    assert (value(layer(x)) == full).all()
    assert layer.train().parts[1].training
    assert layers.Dropout(0.0)(x) is x


def test_stacked_and_joined(place: str) -> None:
    a, b = layers.Affine(place, 3, 4, Tanh), layers.Affine(place, 4, 2)
    stack = a | b | layers.LayerNorm(place, 2)
    assert [type(part).__name__ for part in stack.parts] == ["Affine", "Affine", "LayerNorm"]
    x = Data(place, RNG.standard_normal((3, 5)).astype("float32"))
    np.testing.assert_allclose(value(stack(x)), value(stack.parts[2](b(a(x)))), rtol=1e-6)
    join = a & layers.Affine(place, 3, 1)
    np.testing.assert_allclose(value(join(x)), np.concatenate([value(part(x)) for part in join.parts]), rtol=1e-6)
    both = layers.Lstm(place, 3, 2) & layers.BiLstm(place, 3, 1)
    assert [value(node).shape for node in both([x, x])] == [(4, 5), (4, 5)]
    assert len((stack & a).weights()) == len(stack.weights()) == 6
    with pytest.raises(NodeError, match="Joined: its layers gave OperatorNode, list"):
        layers.Joined(a, layers.Lstm(place, 3, 2))([x]) if False else layers.Joined(_One(), _Many())(x)


class _One(layers.Layer):
    def run(self, x: Node) -> Node:
        return Tanh(x)


class _Many(layers.Layer):
    def run(self, x: Node) -> list[Node]:
        return [x]


class Model(layers.Layer):
    """A user's own: layers in lists and dicts, a weight beside them, one layer twice."""

    def __init__(self, place: str) -> None:
        self.first = layers.Affine(place, 3, 3)
        self.rest = {"a": [layers.Affine(place, 3, 2), self.first], "b": 3}
        self.own = Weight(place, [2])
        self.tie = self.own.tied()


def test_weights_of_a_model(place: str) -> None:
    model = Model(place)
    assert len(model.weights()) == 5
    init.Constant(2.0).init(model)
    assert all((of(weight) == 2).all() for weight in model.weights())
    model.init(init.Constant(3.0))
    assert (of(model.own) == 3).all()
    tied, copied = model.tied(), model.copy()
    assert [w.identity for w in tied.weights()] == [w.identity for w in model.weights()]
    assert not {w.identity for w in copied.weights()} & {w.identity for w in model.weights()}
    assert len(copied.weights()) == 5 and copied.rest["a"][1] is copied.first  # type: ignore[index]
    model.own.value().fill(7.0)
    assert (of(tied.own) == 7).all() and (of(tied.tie) == 7).all() and (of(copied.own) == 3).all()
    copied.own.value().fill(8.0)
    assert (of(copied.tie) == 8).all()
    model.move_to(tmp := Prealloc(place, 1 << 12))
    assert {weight.dev() for weight in tied.weights()} == {tmp}
    assert {weight.dev() for weight in copied.weights()} == {device(place)}


def test_what_layers_refuse(place: str) -> None:
    x = Data(place, np.ones((3, 5), "float32"))
    for layer in (layers.Affine(place, 4, 2), layers.LayerNorm(place, 4)):
        with pytest.raises(NodeError, match=r"its input Data .* has dims \[3, 5\]; expected \[4\] or \[4, ...\]"):
            layer(x)
    with pytest.raises(NodeError, match=r"Lstm: its input Data .* has dims \[3, 5\]; expected \[4\]"):
        layers.Lstm(place, 4, 2)([x])
    for wrong in ([], x, [x, 3]):
        with pytest.raises(NodeError, match="Lstm takes a sequence of nodes"):
            layers.Lstm(place, 3, 2)(wrong)
    for make in (
        lambda: layers.Affine(place, 0, 2), lambda: layers.Lstm(place, 2, -1), lambda: layers.Lookup(place, "a", True),
        lambda: layers.Embedding(place, 2, 1.5), lambda: layers.LayerNorm(place, "3"),  # type: ignore[arg-type]
    ):  # fmt: skip
        with pytest.raises(NodeError, match="expected an int above 0"):
            make()
    for probability in (-0.1, 1.0, True, "0.5"):
        with pytest.raises(NodeError, match="Dropout: the probability is"):
            layers.Dropout(probability)  # type: ignore[arg-type]
    with pytest.raises(NodeError, match="Stacked takes layers; one is 3"):
        layers.Stacked(3)  # type: ignore[arg-type]
    with pytest.raises(NodeError, match="Joined has no layers"):
        layers.Joined()
    with pytest.raises(NodeError, match="Affine takes a node, got 3"):
        layers.Affine(cpu(), 3, 2)(3)
    with pytest.raises(NotImplementedError, match="Layer must define run"):
        layers.Layer()()
