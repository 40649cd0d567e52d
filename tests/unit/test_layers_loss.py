"""Layers of losses and metrics: Fluid's signatures, and values against NumPy on the CPU."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.base.errors import AttributeValueError, ProgramError

RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Give every test new programs, names and scope."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 5
    with fluid.unique_name.guard(), fluid.program_guard(main, startup), fluid.scope_guard(fluid.Scope()):
        yield


def run(fetch: Any, feed: dict[str, Any]) -> Any:
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    return exe.run(fluid.default_main_program(), feed=feed, fetch_list=list(fetch))


def floats(*dims: int, low: float = -1, high: float = 1) -> Any:
    return RNG.uniform(low, high, dims).astype("float32")


def classes(*dims: int, count: int = 4) -> Any:
    return RNG.integers(0, count, dims)


def made(arrays: dict[str, Any]) -> dict[str, Any]:
    """Data layers of arrays, whose first dim is open."""
    return {name: layers.data(name, list(a.shape[1:]), dtype=str(a.dtype)) for name, a in arrays.items()}


SIGNATURES = {
    "bpr_loss": "(input, label, name=None)",
    "center_loss": "(input, label, num_classes, alpha, param_attr, update_center=True)",
    "cross_entropy": "(input, label, soft_label=False, ignore_index=-100)",
    "dice_loss": "(input, label, epsilon=1e-05)",
    "huber_loss": "(input, label, delta)",
    "kldiv_loss": "(x, target, reduction='mean', name=None)",
    "label_smooth": "(label, prior_dist=None, epsilon=0.1, dtype='float32', name=None)",
    "log_loss": "(input, label, epsilon=0.0001, name=None)",
    "margin_rank_loss": "(label, left, right, margin=0.1, name=None)",
    "mse_loss": "(input, label)",
    "npair_loss": "(anchor, positive, labels, l2_reg=0.002)",
    "rank_loss": "(label, left, right, name=None)",
    "sigmoid_cross_entropy_with_logits": "(x, label, ignore_index=-100, name=None, normalize=False)",
    "smooth_l1": "(x, y, inside_weight=None, outside_weight=None, sigma=None)",
    "softmax_with_cross_entropy": "(logits, label, soft_label=False, ignore_index=-100, numeric_stable_mode=True, "
    "return_softmax=False, axis=-1)",
    "square_error_cost": "(input, label)",
    "teacher_student_sigmoid_loss": "(input, label, soft_max_up_bound=15.0, soft_max_lower_bound=-15.0)",
    "accuracy": "(input, label, k=1, correct=None, total=None)",
    "auc": "(input, label, curve='ROC', num_thresholds=4095, topk=1, slide_steps=1)",
    "mean_iou": "(input, label, num_classes)",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_fluids(name: str) -> None:
    found = inspect.signature(getattr(layers, name))
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in found.parameters.values()]
    assert str(inspect.Signature(bare)) == SIGNATURES[name]


def softplus(x: Any) -> Any:
    return np.logaddexp(0, x)


def huber(r: Any, delta: float) -> Any:
    return np.where(r <= delta, r * r / 2, delta * (r - delta / 2))


P, Q, S, T = floats(6, 1), floats(6, 1), floats(6, 1, low=0.1, high=0.9), classes(6, 1, count=2).astype("float32")
W, V, A, B = floats(6, 3), floats(6, 3), floats(6, 3, low=0.2), floats(6, 3, low=0.2)
LABEL = classes(6, 1, count=3)

LOSSES: dict[str, tuple[Callable[..., Any], dict[str, Any], Callable[..., Any]]] = {
    "square_error_cost": (layers.square_error_cost, {"x": W, "y": V}, lambda x, y: (x - y) ** 2),
    "mse_loss": (layers.mse_loss, {"x": W, "y": V}, lambda x, y: np.mean((x - y) ** 2)),
    "huber_loss": (lambda x, y: layers.huber_loss(x, y, 0.3), {"x": P, "y": Q}, lambda x, y: huber(abs(x - y), 0.3)),
    "smooth_l1": (layers.smooth_l1, {"x": W, "y": V}, lambda x, y: huber(abs(x - y), 1.0).sum(1, keepdims=True)),
    "smooth_l1 weighted": (
        lambda x, y, a, b: layers.smooth_l1(x, y, a, b, sigma=2.0), {"x": W, "y": V, "a": A, "b": B},
        lambda x, y, a, b: (b * 4 * huber(abs(a * (x - y)), 0.25)).sum(1, keepdims=True),
    ),
    "log_loss": (
        layers.log_loss, {"p": S, "t": T},
        lambda p, t: -t * np.log(p + 1e-4) - (1 - t) * np.log(1 - p + 1e-4),
    ),
    "kldiv_loss": (layers.kldiv_loss, {"x": W, "y": A}, lambda x, y: np.mean(np.maximum(y, 0) * (np.log(y) - x))),
    "kldiv_loss none": (
        lambda x, y: layers.kldiv_loss(x, y, "none"), {"x": W, "y": A}, lambda x, y: y * (np.log(y) - x),
    ),
    "rank_loss": (layers.rank_loss, {"t": T, "x": P, "y": Q}, lambda t, x, y: softplus(x - y) - t * (x - y)),
    "margin_rank_loss": (
        layers.margin_rank_loss, {"t": 2 * T - 1, "x": P, "y": Q}, lambda t, x, y: np.maximum(0.1 - t * (x - y), 0),
    ),
    "sigmoid_cross_entropy": (
        layers.sigmoid_cross_entropy_with_logits, {"x": P, "t": T}, lambda x, t: softplus(x) - x * t,
    ),
    "sigmoid_cross_entropy normalised": (
        lambda x, t: layers.sigmoid_cross_entropy_with_logits(x, t, ignore_index=0, normalize=True),
        {"x": P, "t": T}, lambda x, t: t * (softplus(x) - x * t) / t.sum(),
    ),
    "teacher_student": (
        layers.teacher_student_sigmoid_loss, {"x": P, "t": T + 0.5},
        lambda x, t: 2 * softplus(x) - x * (np.floor(t) + 0.5),
    ),
    "bpr_loss": (
        layers.bpr_loss, {"x": W, "c": LABEL},
        lambda x, c: (softplus(x - np.take_along_axis(x, c, 1)).sum(1, keepdims=True) - np.log(2)) / 2,
    ),
    "label_smooth": (layers.label_smooth, {"x": A}, lambda x: 0.9 * x + 0.1 / 3),
    "cross_entropy": (layers.cross_entropy, {"x": S @ np.float32([[1, 0.5, 0.2]]), "c": LABEL},
                      lambda x, c: -np.log(np.take_along_axis(x, c, 1))),
    "cross_entropy short": (layers.cross_entropy, {"x": S @ np.float32([[1, 0.5, 0.2]]), "c": LABEL[:, 0]},
                            lambda x, c: -np.log(x[np.arange(6), c])),
    "softmax along axis 1": (
        lambda x, c: layers.softmax_with_cross_entropy(x, c, axis=1),
        {"x": floats(2, 3, 5), "c": classes(2, 1, 5, count=3)},
        lambda x, c: np.log(np.exp(x).sum(1, keepdims=True)) - np.take_along_axis(x, c, 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LOSSES)
def test_values(case: str) -> None:
    layer, arrays, expected = LOSSES[case]
    found = run([layer(*made(arrays).values())], arrays)[0]
    np.testing.assert_allclose(found, np.broadcast_to(expected(*arrays.values()), found.shape), rtol=2e-5, atol=1e-6)


def test_label_smooth_takes_a_prior_and_stops_the_gradient() -> None:
    arrays = {"x": A, "prior": floats(1, 3, low=0)}
    variables = {name: layers.data(name, [3], stop_gradient=False) for name in arrays}
    out = layers.label_smooth(variables["x"], variables["prior"], epsilon=0.5)
    assert variables["x"].stop_gradient
    np.testing.assert_allclose(run([out], arrays)[0], 0.5 * A + 0.5 * arrays["prior"], rtol=1e-6)
    with pytest.raises(AttributeValueError, match="from 0 to 1"):
        layers.label_smooth(variables["x"], epsilon=1.5)


def test_dice_loss() -> None:
    p = floats(4, 5, 3, low=0.1)
    c = classes(4, 5, 1, count=3)
    found = run([layers.dice_loss(*made({"p": p, "c": c}).values())], {"p": p, "c": c})[0]
    chosen = np.eye(3)[c[..., 0]]
    both = p.sum((1, 2)) + chosen.sum((1, 2)) + 1e-5
    assert found == pytest.approx(np.mean(1 - 2 * (p * chosen).sum((1, 2)) / both), rel=1e-5)


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_npair_loss(dtype: str) -> None:
    arrays = {"a": floats(6, 4), "p": floats(6, 4), "c": classes(6, count=3).astype(dtype)}
    a, p, c = arrays.values()
    variables = made(arrays)
    found = run([layers.npair_loss(*variables.values(), l2_reg=0.1)], arrays)[0]
    alike = (c[:, None] == c[None, :]).astype("float64")
    alike /= alike.sum(1, keepdims=True)
    scores = a.astype("float64") @ p.T
    cost = (alike * (np.log(np.exp(scores).sum(1, keepdims=True)) - scores)).sum(1, keepdims=True)
    norms = (a**2).sum(1).mean() + (p**2).sum(1).mean()
    assert found == pytest.approx(norms * 0.025 + (alike * cost).sum(0).mean(), rel=1e-5)


@pytest.mark.parametrize("update", [True, False])
def test_center_loss_moves_its_centers(update: bool) -> None:
    arrays = {"x": floats(6, 3), "c": classes(6, 1)}
    start = floats(4, 3)
    attr = fluid.ParamAttr(name="centers", initializer=fluid.initializer.NumpyArrayInitializer(start))
    x = layers.data("x", [3], stop_gradient=False)
    loss = layers.center_loss(x, layers.data("c", [1], dtype="int64"), 4, 0.2, attr, update)
    grad = fluid.gradients([loss], [x])[0]
    found, dx, moved = run([loss, grad, "centers"], arrays)
    difference = arrays["x"] - start[arrays["c"][:, 0]]
    np.testing.assert_allclose(found, (difference**2).sum(1, keepdims=True) / 2, rtol=1e-5)
    np.testing.assert_allclose(dx, difference, rtol=1e-5)
    for c in range(4):
        mine = difference[arrays["c"][:, 0] == c]
        step = 0.2 * mine.sum(0) / (1 + len(mine)) if update else 0
        np.testing.assert_allclose(moved[c], start[c] + step, rtol=1e-5)


def test_sigmoid_cross_entropy_names_its_result() -> None:
    x = layers.data("x", [1])
    assert layers.sigmoid_cross_entropy_with_logits(x, x, name="cost").name == "cost"


# Metrics -----------------------------------------------------------------------------------------------------------


def exact_auc(scores: Any, labels: Any) -> float:
    positive, negative = scores[labels == 1], scores[labels == 0]
    wins = (positive[:, None] > negative).sum() + 0.5 * (positive[:, None] == negative).sum()
    return float(wins / (len(positive) * len(negative)))


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_auc_of_all_batches_and_of_the_last(steps: int) -> None:
    score, label = layers.data("score", [2]), layers.data("label", [1], dtype="int64")
    whole, last, states = layers.auc(score, label, slide_steps=steps)
    assert whole.dtype == "float64" and [s.shape for s in states] == [(max(steps, 1), 4096)] * 2 + [(1, 4096)] * 2
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    batches = []
    for _ in range(4):
        labels = RNG.integers(0, 2, 200)
        scores = np.clip(labels * 0.2 + RNG.uniform(0, 0.8, 200), 0, 1).astype("float32")
        batches.append((scores, labels))
        feed = {"score": np.stack([1 - scores, scores], 1), "label": labels[:, None]}
        areas = exe.run(feed=feed, fetch_list=[whole, last])
        for area, many in zip(areas, (len(batches), steps or len(batches)), strict=True):
            expected = exact_auc(*(np.concatenate(part) for part in zip(*batches[-many:], strict=True)))
            assert area == pytest.approx(expected, abs=1e-3)


def test_auc_agrees_with_the_metric() -> None:
    scores, labels = floats(128, 2, low=0), classes(128, 1, count=2)
    found = run([layers.auc(*made({"s": scores, "t": labels}).values(), num_thresholds=200)[0]],
                {"s": scores, "t": labels})[0]  # fmt: skip
    metric = fluid.metrics.Auc(num_thresholds=200)
    metric.update(scores, labels)
    assert found == pytest.approx(metric.eval(), abs=1e-4)
    assert sum(metric._stat_pos) + sum(metric._stat_neg) == 128


def test_mean_iou() -> None:
    arrays = {"p": classes(5, 6, count=3), "c": classes(5, 6, count=3)}
    mean, wrong, right = run(layers.mean_iou(*made(arrays).values(), num_classes=4), arrays)
    p, c = arrays.values()
    hits = np.asarray([np.sum((p == k) & (c == k)) for k in range(4)])
    either = np.asarray([np.sum((p == k) | (c == k)) for k in range(4)])
    misses = np.asarray([np.sum((p != c) & (p == k)) + np.sum((p != c) & (c == k)) for k in range(4)])
    assert (right == hits).all() and (wrong == misses).all() and right.dtype == np.int32
    assert mean == pytest.approx(np.mean(hits[:3] / either[:3]), rel=1e-5)


def test_what_is_no_variable_is_refused() -> None:
    x = layers.data("x", [1])
    with pytest.raises(ProgramError, match="argument 'label' is list"):
        layers.huber_loss(x, [1.0], 1.0)  # type: ignore[arg-type]
    with pytest.raises(AttributeValueError, match="num_thresholds"):
        layers.auc(x, x, num_thresholds=0)
