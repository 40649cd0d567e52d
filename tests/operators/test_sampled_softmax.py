"""sampled_softmax_with_cross_entropy: what is drawn, and the cost of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.errors import AttributeValueError, OutOfRangeError, ProgramError

L = fluid.layers


def drawn(count: int, classes: int, runs: int = 1, label: Any = ((0, 1), (2, 0))) -> Any:
    """Samples and probabilities of several runs."""
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        fluid.default_main_program().random_seed = 7
        block = fluid.default_main_program().global_block()
        labels = L.data("label", [len(label[0])], dtype="int64")
        outs = [block.create_var(n) for n in ("samples", "probabilities")]
        attrs = {"num_samples": count, "num_classes": classes}
        block.append_op("sample_negatives", {"Labels": labels}, {"Samples": outs[0], "Probabilities": outs[1]}, attrs)
        exe = fluid.Executor("cpu")
        return [exe.run(feed={"label": np.array(label)}, fetch_list=outs) for _ in range(runs)]


def test_drawn_classes_are_different_and_the_same_in_each_row() -> None:
    for samples, _ in drawn(6, 8, runs=3):
        assert samples[:, :2].tolist() == [[0, 1], [2, 0]]
        assert samples[0, 2:].tolist() == samples[1, 2:].tolist()
        assert len(set(samples[0, 2:].tolist())) == 6
    ((samples, chances),) = drawn(8, 8)
    assert sorted(samples[0, 2:].tolist()) == list(range(8))
    assert (chances <= 1 + 1e-6).all()


def test_probabilities_are_how_often_a_class_is_drawn() -> None:
    """Of 400 runs that draw 3 of 20, the mean of each class's stated probability and how often it came agree."""
    classes = 20
    label = (tuple(range(classes)),)
    runs = drawn(3, classes, 400, label=label)
    stated = np.mean([chances[0, :classes] for _, chances in runs], axis=0)
    came = np.mean([np.isin(np.arange(classes), samples[0, classes:]) for samples, _ in runs], axis=0)
    assert abs(stated.sum() - 3) < 0.3
    assert np.abs(stated - came).max() < 0.1


def cost(given: dict[str, Any], **arguments: Any) -> Any:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        feeds = {n: L.data(n, list(v.shape), dtype=str(v.dtype), append_batch_size=False) for n, v in given.items()}
        feeds["logits"].stop_gradient = False
        out = L.sampled_softmax_with_cross_entropy(**feeds, **arguments)
        grads = fluid.gradients([L.reduce_sum(out)], [feeds["logits"]])
        found = []
        for place in fluid.places():
            if place.kind in ("cpu", "opencl", "fpga"):
                exe = fluid.Executor(place, fallback="allow")
                found.append(exe.run(feed=given, fetch_list=[out, *grads]))
        return found


def test_with_samples_of_ones_own_it_is_a_softmax_over_them() -> None:
    rng = np.random.default_rng(3)
    logits, label = rng.normal(size=(3, 7)), np.array([[1, 4], [0, 2], [6, 5]])
    samples = np.concatenate((label, np.array([[3, 1, 0]] * 3)), 1)
    chances = rng.uniform(0.2, 0.9, samples.shape)
    scores = np.take_along_axis(logits, samples, 1) - np.log(chances)
    for i, row in enumerate(samples):
        scores[i, 2:][np.isin(row[2:], row[:2])] = -np.inf
    wanted = np.log(np.exp(scores).sum(1, keepdims=True)) - scores[:, :2].mean(1, keepdims=True)
    given = {"logits": logits, "label": label, "customized_samples": samples, "customized_probabilities": chances}
    for out, grad in cost(given, num_samples=3, num_true=2, use_customized_samples=True):
        np.testing.assert_allclose(out, wanted, rtol=1e-6)
        np.testing.assert_allclose(grad.sum(1), 0, atol=1e-9)
        assert (grad[1, [3, 5, 4, 6]] != 0).tolist() == [True, False, False, False]


def test_all_classes_as_samples_cost_as_the_whole_softmax_does() -> None:
    """If all classes are drawn, each with certainty, nothing is left out."""
    logits = np.random.default_rng(4).normal(size=(2, 5)).astype("float32")
    given = {"logits": logits, "label": np.array([[3], [0]])}
    wanted = np.log(np.exp(logits).sum(1)) - logits[[0, 1], [3, 0]]
    for out, _ in cost(given, num_samples=5, seed=5):
        assert np.abs(out.ravel() - wanted).max() < 0.7  # probabilities after finite tries are near 1, and not 1


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"num_samples": 8}, AttributeValueError, "num_samples.*7 or less"),
        ({"num_samples": 0}, AttributeValueError, "num_samples"),
        ({"num_true": 2}, ProgramError, "label"),
        ({"use_customized_samples": True}, ProgramError, "use_customized_samples"),
    ],
)
def test_what_cannot_be_sampled_is_refused(change: dict[str, Any], error: Any, text: str) -> None:
    given = {"logits": np.zeros((2, 7), "float32"), "label": np.array([[1], [2]])}
    with pytest.raises(error, match=text) as caught:
        cost(given, **{"num_samples": 3, **change})
    assert "test_sampled_softmax.py" in str(caught.value)


def test_a_label_that_is_no_class_is_refused() -> None:
    with pytest.raises(OutOfRangeError, match=r"Labels holds 7; expected a class from 0 to 6"):
        cost({"logits": np.zeros((2, 7), "float32"), "label": np.array([[1], [7]])}, num_samples=3)
