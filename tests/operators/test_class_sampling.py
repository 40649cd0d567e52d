"""Programs whose classes are many: hierarchical sigmoids, noise-contrastive estimation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_structured_losses import run

import fluidlite as fluid

L = fluid.layers


@pytest.mark.parametrize("classes", [2, 5, 8])
def test_the_chances_of_all_classes_sum_to_1(classes: int) -> None:
    x = np.repeat(np.random.default_rng(classes).normal(size=(1, 3)), classes, 0)
    weights = fluid.ParamAttr(initializer=fluid.initializer.Normal(seed=3))
    biases = fluid.ParamAttr(initializer=fluid.initializer.Normal(seed=4))
    label = np.arange(classes).reshape(-1, 1)
    (costs,) = run(lambda x, y: L.hsigmoid(x, y, classes, weights, biases), x=x, y=label)
    lacking = (classes - 1).bit_length() - np.array([int(np.log2(classes + c)) for c in range(classes)])
    chances = np.exp(lacking * np.log(2) - costs.ravel())
    assert chances.sum() == pytest.approx(1, abs=1e-12)
    assert len(set(chances.round(9))) > 1


def test_a_tree_of_ones_own_that_is_the_default_one_costs_the_same() -> None:
    x, label = np.random.default_rng(1).normal(size=(4, 3)), np.array([[0], [1], [2], [3]])
    table, code = np.array([[1, 0], [1, 0], [2, 0], [2, 0]]), np.array([[0, 0], [1, 0], [0, 1], [1, 1]])
    weights = fluid.ParamAttr(initializer=fluid.initializer.NumpyArrayInitializer(np.arange(9.0).reshape(3, 3) / 9))

    def build(x: Any, y: Any, table: Any, code: Any) -> Any:
        own = L.hsigmoid(x, y, 3, weights, path_table=table, path_code=code, is_custom=True)
        cost = L.hsigmoid(x, y, 4, weights)
        return own, cost, *fluid.gradients([own], [x]), *fluid.gradients([cost], [x])

    own, cost, own_grad, grad = run(build, x=x, y=label, table=table, code=code)
    np.testing.assert_allclose(own, cost, rtol=1e-12)
    np.testing.assert_allclose(own_grad, grad, rtol=1e-12)


def draw(sampler: str, total: int, rows: int, **inputs: Any) -> Any:
    """Classes that sample_classes draws, [rows, 50]."""

    def build(*given: Any) -> Any:
        block = fluid.default_main_program().global_block()
        out = block.create_var("drawn")
        attrs = {"num": 50, "num_total_classes": total, "sampler": sampler, "seed": 5}
        block.append_op("sample_classes", dict(zip(("Like", "Probs"), given, strict=False)), {"Out": out}, attrs)
        return out

    return run(build, like=np.zeros((rows, 1), "float32"), **inputs)[0]


PROBS = {
    "uniform": np.full(5, 0.2),
    "log_uniform": np.log1p(1 / np.arange(1.0, 6)) / np.log(6),
    "custom_dist": np.array([0, 0.5, 0.3, 0.2, 0]),
}


@pytest.mark.parametrize("sampler", PROBS)
def test_classes_are_drawn_by_their_probabilities(sampler: str) -> None:
    given = {"probs": PROBS[sampler].astype("float32")} if sampler == "custom_dist" else {}
    drawn = draw(sampler, 5, 400, **given)
    found = np.bincount(drawn.ravel(), minlength=5) / drawn.size
    assert drawn.shape == (400, 50)
    assert np.abs(found - PROBS[sampler]).max() < 4 * np.sqrt(0.25 / drawn.size)
    assert (found[PROBS[sampler] == 0] == 0).all()


@pytest.mark.parametrize("sampler", PROBS)
def test_scores_learn_the_logarithms_of_frequencies(sampler: str) -> None:
    """Its minimum is where o = exp(score), normalised: the bias learns how often each class comes."""
    wanted = np.array([0.1, 0.4, 0.3, 0.15, 0.05])
    label = np.repeat(np.arange(5), (wanted * 100).astype(int)).reshape(-1, 1)
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        y = L.data("y", [100, 1], dtype="int64", append_batch_size=False)
        x = L.fill_constant([100, 1], "float32", 0.0)
        own = [0.2, 0.1, 0.3, 0.2, 0.2] if sampler == "custom_dist" else None
        cost = L.mean(L.nce(x, y, 5, bias_attr=fluid.ParamAttr(name="b"), num_neg_samples=20, sampler=sampler,
                            custom_dist=own, seed=7))  # fmt: skip
        fluid.optimizer.Adam(0.05).minimize(cost)
        exe, bias, found = fluid.Executor(fluid.CPUPlace()), "b", []
        exe.run(fluid.default_startup_program())
        for step in range(200):
            (value,) = exe.run(feed={"y": label}, fetch_list=[bias])
            found += [value.ravel()] if step >= 100 else []
    odds = 1 / (1 + np.exp(-np.mean(found, 0)))
    np.testing.assert_allclose(odds, wanted, atol=0.05)


X = np.ones((2, 3), "float32")
WAY = np.array([[0, 1], [0, -1]])


def own(x: Any, y: Any, table: Any, code: Any) -> Any:
    return L.hsigmoid(x, y, 2, path_table=table, path_code=code, is_custom=True)


@pytest.mark.parametrize(
    ("build", "feeds", "said"),
    [
        (lambda x, y: L.hsigmoid(x, y, 4), {"y": np.array([[0], [4]])}, "hierarchical_sigmoid.*4 is out of range"),
        (lambda x, y: L.hsigmoid(x, y, 4), {"y": np.array([[0], [-1]])}, "hierarchical_sigmoid.*-1 is out of range"),
        (lambda x, y: L.hsigmoid(x, y, 4), {"y": np.array([[0], [1], [1]])}, "hsigmoid.*Label is"),
        (own, {"y": WAY[:, :1], "table": WAY + 1, "code": abs(WAY)}, "hierarchical_sigmoid.*2 is out of range"),
        (own, {"y": WAY[:, :1], "table": WAY, "code": WAY + 2}, "hierarchical_sigmoid.*2 is out of range"),
        (own, {"y": WAY[:, :1], "table": WAY, "code": WAY[:, :1]}, "hierarchical_sigmoid.*PathCode"),
        (lambda x, y: L.nce(x, y, 4), {"y": np.array([[0], [4]])}, "nce.*4 is out of range"),
        (lambda x, y: L.nce(x, y, 4), {"y": np.array([[0], [-2]])}, "nce.*-2 is out of range"),
        (lambda x, y: L.nce(x, y, 4, sampler="custom_dist", custom_dist=[0.5, 0.5]), {"y": WAY}, "nce.*custom_dist"),
        (lambda x, y: L.nce(x, y, 2, sampler="custom_dist", custom_dist=[1.5, -0.5]), {"y": WAY}, "nce.*custom_dist"),
        (lambda x, y, w: L.nce(x, y, 4, w), {"y": WAY, "w": np.ones((3, 1), "float32")}, "nce.*SampleWeight"),
        (lambda x, y, t: L.hsigmoid(x, y, 2, path_table=t), {"y": WAY[:, :1], "t": WAY}, "path_table.*is_custom"),
    ],
)  # fmt: skip
def test_refused(build: Callable[..., Any], feeds: dict[str, Any], said: str) -> None:
    with pytest.raises(fluid.FluidError, match=f"(?s){said}"):
        run(build, x=X, **feeds)
