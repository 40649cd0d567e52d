"""Numbers that are infinite or none: every place gives what float64 NumPy gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fluidlite as fluid

PLACES = [place for place in map(str, fluid.places()) if not place.startswith("fpga")]
INF, NAN = np.inf, np.nan


def run(
    place: str, type: str, feed: dict[str, Any], out: str, of: tuple[str, ...], mode: str = "compiled", **attrs: Any
) -> list[Any]:
    """The output, and the gradients of its sum, of an operator on these inputs."""
    program = fluid.Program()
    block = program.global_block()
    inputs = {
        slot: block.create_var(slot, array.shape, str(array.dtype), is_data=True, stop_gradient=False)
        for slot, array in feed.items()
    }
    result = block.create_var("result")
    block.append_op(type, inputs, {out: result}, attrs)
    gradients = fluid.gradients([result], [inputs[slot] for slot in of])
    return fluid.Executor(place, mode=mode).run(program, feed, [result, *gradients])


def ranked(row: list[float], label: int) -> tuple[float, list[float]]:
    """Fluid's formula of bpr_loss, and its gradient, in float64."""
    x = np.asarray(row, "float64")
    others = np.arange(len(x)) != label
    with np.errstate(invalid="ignore", over="ignore"):
        loss = np.mean(np.logaddexp(0, x[others] - x[label]))
        grad = np.where(others, 1 / (1 + np.exp(x[label] - x)), 0) / (len(x) - 1)
    grad[label] = -grad[others].sum()
    return loss, grad.tolist()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("classes", [3, 40])
@pytest.mark.parametrize(
    ("row", "label"),
    [([INF, 0, 1], 0), ([INF, 0, 1], 1), ([-INF, 0, 1], 1), ([-INF, 0, 1], 0), ([INF, -INF, 0], 0),
     ([INF, -INF, 0], 1), ([INF, INF, 1], 0), ([-INF, 2, -INF], 1), ([0, NAN, 1], 0), ([0, NAN, 1], 1)],
)  # fmt: skip
def test_scores_of_bpr_loss(place: str, classes: int, row: list[float], label: int) -> None:
    whole = row + [0.5] * (classes - len(row))
    feed = {"X": np.asarray([whole, [0.0] * classes], "float32"), "Label": np.asarray([[label], [1]])}
    y, dx = run(place, "bpr_loss", feed, "Y", ("X",))
    loss, grad = ranked(whole, label)
    np.testing.assert_allclose(y[:, 0], [loss, np.log(2)], rtol=1e-5)
    np.testing.assert_allclose(dx[0], grad, atol=1e-6)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("slope", [NAN, INF, -INF, 0.25])
def test_a_slope_counts_where_x_is_not_positive(place: str, slope: float) -> None:
    x = np.asarray([1, 0, -1, NAN, INF, -INF], "float32")
    out, dx, _ = run(place, "prelu", {"X": x, "Alpha": np.float32([slope])}, "Out", ("X", "Alpha"))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(out, np.where(x > 0, x, np.float32(slope) * x))
    np.testing.assert_array_equal(dx, np.where(x > 0, 1, np.float32(slope)))


@pytest.mark.parametrize("place", PLACES)
def test_a_slope_gets_nothing_of_positive_elements(place: str) -> None:
    """Not even of an infinite gradient: 0 times that would be no number."""
    program = fluid.Program()
    block = program.global_block()
    feed = {"X": np.float32([2, -3]), "Alpha": np.float32([0.5]), "Out@GRAD": np.float32([INF, 4])}
    inputs = {slot: block.create_var(slot, array.shape, "float32", is_data=True) for slot, array in feed.items()}
    block.append_op("prelu_grad", inputs, {"Alpha@GRAD": block.create_var("found")})
    (found,) = fluid.Executor(place).run(program, feed, ["found"])
    assert found.tolist() == [-12]


@pytest.mark.parametrize("place", PLACES)
def test_padding_of_spp_is_no_maximum_of_a_window(place: str) -> None:
    """Rows and columns of 3 are padded to 4 for windows of 2: the first maximum is an element of X."""
    program = fluid.Program()
    block = program.global_block()
    x = block.create_var("x", (1, 1, 3, 3), "float32", is_data=True, stop_gradient=False)
    out = block.create_var("out")
    block.append_op("spp", {"X": x}, {"Out": out}, {"pyramid_height": 2, "pooling_type": "max"})
    (gradient,) = fluid.gradients([out], [x])
    lowest = np.full((1, 1, 3, 3), -INF, "float32")
    (dx,) = fluid.Executor(place).run(program, {"x": lowest}, [gradient])
    assert dx.sum() == 5
    assert dx[0, 0, 0, 0] == 2


@pytest.mark.parametrize("place", list(map(str, fluid.places())))
def test_scores_far_apart_have_a_softmax_of_0_in_cross_entropy(place: str) -> None:
    """It is the gradient, whose scale nobody knows: 0 of what underflows, not softmax's limit of exp(-64)."""
    scores, label = np.array([[200, 0, 199]], "float32"), np.array([[0]])
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        logits, target = fluid.layers.data("logits", [3]), fluid.layers.data("label", [1], dtype="int64")
        logits.stop_gradient = False
        loss, softmax = fluid.layers.softmax_with_cross_entropy(logits, target, return_softmax=True)
        (of_logits,) = fluid.gradients([loss * 1e30], [logits])
        feed = {"logits": scores, "label": label}
        found = fluid.Executor(place).run(feed=feed, fetch_list=[softmax, of_logits])
    second = 1 / (1 + np.exp(1.0))
    np.testing.assert_allclose(found[0], [[1 - second, 0, second]], 1e-6)
    np.testing.assert_allclose(found[1], [[-second * 1e30, 0, second * 1e30]], 1e-6)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("columns", [3, 40])
def test_logarithms_of_sums_of_infinite_exponentials(place: str, columns: int) -> None:
    rows = [[INF, 0, 1], [INF, INF, -INF], [-INF, -INF, -INF], [-INF, 2, -INF], [NAN, INF, 0]]
    x = np.asarray([row + row[-1:] * (columns - 3) for row in rows], "float32")
    for dim, fed in ((1, x), (0, np.ascontiguousarray(x.T))):
        (out,) = run(place, "logsumexp", {"X": fed}, "Out", (), dim=[dim])
        np.testing.assert_array_equal(out, [INF, INF, -INF, 2, NAN])


@pytest.mark.parametrize("place", list(map(str, fluid.places())))
@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_scores_of_nce_of_any_size(place: str, mode: str) -> None:
    """A class whose bias is -infinity costs infinity where it is true, and nothing where it is drawn."""
    scores = np.array([-INF, -1e30, -200, -60.5, -59.5, -3, 0, 3, 200, INF], "float32")
    count, chance = len(scores), 2 / len(scores)
    feed = {
        "Input": np.zeros((count, 1), "float32"),
        "Label": np.arange(count).reshape(-1, 1),
        "Weight": np.ones((count, 1), "float32"),
        "Bias": scores.reshape(-1, 1),
        "Samples": np.roll(np.arange(count), 1)[:, None] + np.zeros((1, 2), "int64"),
    }
    program = fluid.Program()
    block = program.global_block()
    inputs = {k: block.create_var(k, a.shape, str(a.dtype), is_data=True) for k, a in feed.items()}
    cost = block.create_var("cost")
    for slot in ("Input", "Bias"):
        inputs[slot].stop_gradient = False
    block.append_op("nce", inputs, {"Cost": cost}, {"num_total_classes": count})
    found = fluid.Executor(place, mode=mode).run(
        program, feed, [cost, *fluid.gradients([cost], [inputs["Input"], inputs["Bias"]])]
    )
    s = scores.astype("float64")
    true = np.where(s < 0, np.log(chance + (1 + chance) * np.exp(np.minimum(s, 0))) - s, 0)
    true = np.where(s < 0, true, np.log1p(chance * (1 + np.exp(-np.maximum(s, 0)))))
    o = np.exp(-np.logaddexp(0, -s))
    drawn, of_true, of_drawn = (
        2 * np.log1p(o / chance),
        -chance * (1 - o) / (o + chance),
        2 * o * (1 - o) / (o + chance),
    )
    np.testing.assert_allclose(found[0][:, 0], true + np.roll(drawn, 1), 1e-5)
    np.testing.assert_allclose(found[1][:, 0], of_true + np.roll(of_drawn, 1), 1e-5, 1e-30)
    np.testing.assert_allclose(found[2][:, 0], of_true + of_drawn, 1e-5, 1e-30)


@pytest.mark.parametrize("place", list(map(str, fluid.places())))
@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_scores_of_hierarchical_sigmoid_of_any_size(place: str, mode: str) -> None:
    """A turn whose score is infinite costs nothing on the one side, and infinity on the other."""
    scores = np.array([-INF, -1e30, -200, -3, 0, 3, 200, 1e30, INF], "float32")
    for turn in (0, 1):
        feed = {
            "X": scores.reshape(-1, 1),
            "W": np.ones((1, 1), "float32"),
            "Label": np.zeros((len(scores), 1), "int64"),
            "PathTable": np.zeros((len(scores), 1), "int64"),
            "PathCode": np.full((len(scores), 1), turn),
        }
        out, dx = run(place, "hierarchical_sigmoid", feed, "Out", ("X",), mode=mode)
        s = scores.astype("float64")
        np.testing.assert_allclose(out[:, 0], np.logaddexp(0, -s if turn else s), 1e-6, 1e-30)
        np.testing.assert_allclose(dx[:, 0], np.exp(-np.logaddexp(0, -s)) - turn, 1e-6, 1e-7)


@pytest.mark.parametrize("place", list(map(str, fluid.places())))
@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_a_probability_of_0_costs_nothing_where_the_label_is_0(place: str, mode: str) -> None:
    x = np.array([[0, 1, 0], [0.5, 0.5, 0], [0, 0.25, 0.75]], "float32")
    label = np.array([[0, 1, 0], [0.25, 0.75, 0], [0.5, 0.5, 0]], "float32")
    y, dx = run(place, "cross_entropy", {"X": x, "Label": label}, "Y", ("X",), mode=mode, soft_label=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        costs = np.where(label == 0, 0, -label * np.maximum(np.log(x.astype("float64")), -1e20))
        slopes = np.where(label == 0, 0, -label / x.astype("float64"))
    np.testing.assert_allclose(y[:, 0], costs.sum(1), 1e-6)
    np.testing.assert_allclose(dx, slopes, 1e-6)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("mode", ["interpreted", "compiled"])
@pytest.mark.parametrize("alpha", [0.0, 1e-50])  # 0 in float32
def test_a_product_times_zero_keeps_nan(place: str, mode: str, alpha: float) -> None:
    """``Out * alpha`` is NaN where a factor is NaN or infinite: BLAS would not read operands."""
    feed = {"X": np.float32([[NAN, 1], [INF, 2], [1, 2]]), "Y": np.ones((2, 2), "float32")}
    for libraries in ([], ["plain"]):
        program = fluid.Program()
        block = program.global_block()
        x, y = (block.create_var(slot, array.shape, "float32", is_data=True) for slot, array in feed.items())
        out = block.create_var("result")
        block.append_op("matmul", {"X": x, "Y": y}, {"Out": out}, {"alpha": alpha})
        exe = fluid.Executor(place, mode=mode, libraries={place.partition(":")[0]: libraries})
        (found,) = exe.run(program, feed, [out])
        np.testing.assert_array_equal(found, [[NAN, NAN], [NAN, NAN], [0, 0]])
