"""What the definitions of losses and metrics forbid is one clear error: while building where dims are known, else on
every place when it runs; and a step that failed changes no state.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.errors import AttributeValueError, DtypeError, FluidError, OutOfRangeError, ShapeError

layers = fluid.layers
PLACES = [str(place) for place in fluid.places()]
F, L, J = "float32", "int64", "int32"


def append(type: str, inputs: dict[str, Any], attrs: dict[str, Any]) -> None:
    """Append an operator to variables of the given (dims, dtype), or lists of them, with all of its outputs."""
    block = fluid.default_main_program().global_block()

    def variable(spec: tuple[list[int], str]) -> Any:
        return block.create_var(shape=spec[0], dtype=spec[1], is_data=True)

    made = {slot: [variable(s) for s in specs] if isinstance(specs, list) else variable(specs)
            for slot, specs in inputs.items()}  # fmt: skip
    outputs = {slot.name: block.create_var() for slot in fluid.op_proto(type).outputs}
    block.append_op(type, made, outputs, attrs)


COLUMN = ([-1, 1], F)
STATS = {"StatPos": ([1, 11], L), "StatNeg": ([1, 11], L)}
TEN = {"num_thresholds": 10, "slide_steps": 0}
ROWS = ([-1, 1], F), ([-1, 1], J)
CENTER = {"X": ([-1, 3], F), "Label": ([-1, 1], L), "Centers": ([4, 3], F), "CenterUpdateRate": ([1], F)}

BUILDING: dict[str, tuple[str, dict[str, Any], dict[str, Any], type[FluidError], str]] = {
    "hinge dims": ("hinge_loss", {"Logits": ([4, 1], F), "Labels": ([5, 1], F)}, {}, ShapeError, "Labels is"),
    "hinge dtype": ("hinge_loss", {"Logits": COLUMN, "Labels": ([-1, 1], L)}, {}, DtypeError, "Labels is"),
    "log epsilon": ("log_loss", {"Predicted": COLUMN, "Labels": COLUMN}, {}, AttributeValueError, "epsilon"),
    "huber delta": ("huber_loss", {"X": COLUMN, "Y": COLUMN}, {}, AttributeValueError, "'delta'"),
    "huber negative": ("huber_loss", {"X": COLUMN, "Y": COLUMN}, {"delta": -1.0}, AttributeValueError, "'delta'"),
    "huber dims": ("huber_loss", {"X": ([-1, 1], F), "Y": ([-1, 2], F)}, {"delta": 1.0}, ShapeError, "Y is"),
    "modified huber": ("modified_huber_loss", {"X": ([3, 1], F), "Y": ([3], F)}, {}, ShapeError, "Y is"),
    "rank dims": ("rank_loss", {"Label": ([3, 1], F), "Left": ([3, 1], F), "Right": ([4, 1], F)}, {}, ShapeError, "Ri"),
    "margin dims": (
        "margin_rank_loss", {"X1": ([3, 1], F), "X2": ([3, 1], F), "Label": ([2, 1], F)}, {}, ShapeError, "Label is",
    ),
    "sigmoid dims": (
        "sigmoid_cross_entropy_with_logits", {"X": ([-1, 3], F), "Label": ([-1, 1], F)}, {}, ShapeError, "Label is",
    ),
    "sigmoid dtype": (
        "sigmoid_cross_entropy_with_logits", {"X": ([-1, 3], F), "Label": ([-1, 3], L)}, {}, DtypeError, "Label is",
    ),
    "smooth rank": ("smooth_l1_loss", {"X": ([-1], F), "Y": ([-1], F)}, {}, ShapeError, "rank 2 or more"),
    "smooth dims": ("smooth_l1_loss", {"X": ([-1, 3], F), "Y": ([-1, 2], F)}, {}, ShapeError, "Y is"),
    "smooth one weight": (
        "smooth_l1_loss", {"X": ([-1, 3], F), "Y": ([-1, 3], F), "InsideWeight": ([-1, 3], F)}, {}, ShapeError,
        "OutsideWeight is absent; expected a tensor as InsideWeight",
    ),
    "kldiv reduction": (
        "kldiv_loss", {"X": COLUMN, "Target": COLUMN}, {"reduction": "all"}, AttributeValueError, "one of 'none'",
    ),
    "kldiv dims": ("kldiv_loss", {"X": ([-1, 3], F), "Target": ([-1, 4], F)}, {}, ShapeError, "Target is"),
    "prior dims": ("label_smooth", {"X": ([-1, 3], F), "PriorDist": ([1, 4], F)}, {}, ShapeError, "one a class"),
    "label rank": ("cross_entropy", {"X": ([-1, 3], F), "Label": ([-1, 2, 1], L)}, {}, ShapeError, "a class for each"),
    "label dtype": ("cross_entropy", {"X": ([-1, 3], F), "Label": ([-1, 1], F)}, {}, DtypeError, "soft_label=True"),
    "soft dims": (
        "cross_entropy", {"X": ([-1, 3], F), "Label": ([-1, 1], F)}, {"soft_label": True}, ShapeError, "soft_label is",
    ),
    "scores rank": ("cross_entropy2", {"X": ([-1], F), "Label": ([-1], L)}, {}, ShapeError, "rank 2 or more"),
    "axis": (
        "softmax_with_cross_entropy", {"Logits": ([-1, 3], F), "Label": ([-1, 1], L)}, {"axis": 2}, AttributeValueError,
        "axis",
    ),
    "label beside axis": (
        "softmax_with_cross_entropy", {"Logits": ([-1, 3, 5], F), "Label": ([-1, 3, 1], L)}, {"axis": 1}, ShapeError,
        r"\[-1, 1, 5\]",
    ),
    "no class": (
        "softmax_with_cross_entropy", {"Logits": ([4, 0], F), "Label": ([4, 1], L)}, {}, ShapeError,
        "one class or more",
    ),
    "one class": ("bpr_loss", {"X": ([-1, 1], F), "Label": ([-1, 1], L)}, {}, ShapeError, "2 classes or more"),
    "center dims": (
        "center_loss", {**CENTER, "Centers": ([4, 2], F)}, {"cluster_num": 4, "need_update": True}, ShapeError,
        "Centers is",
    ),
    "center rate": (
        "center_loss", {**CENTER, "CenterUpdateRate": ([2], F)}, {"cluster_num": 4, "need_update": True}, ShapeError,
        "CenterUpdateRate",
    ),
    "center number": ("center_loss", CENTER, {"cluster_num": 5, "need_update": True}, ShapeError, "cluster_num rows"),
    "iou dtype": (
        "mean_iou", {"Predictions": ([-1], L), "Labels": ([-1], J)}, {"num_classes": 3}, DtypeError, "Labels is",
    ),
    "iou classes": (
        "mean_iou", {"Predictions": ([-1], L), "Labels": ([-1], L)}, {"num_classes": 0}, AttributeValueError,
        "1 or more",
    ),
    "iou lists": (
        "mean_iou", {"Predictions": ([-1], L), "Labels": ([-1], L), "InWrongs": [([3], J), ([4], J)]},
        {"num_classes": 3}, ShapeError, "InWrongs is",
    ),
    "precision classes": (
        "precision_recall", {"MaxProbs": ROWS[0], "Indices": ROWS[1], "Labels": ROWS[1]}, {}, AttributeValueError,
        "class_number",
    ),
    "precision rows": (
        "precision_recall", {"MaxProbs": ([4, 1], F), "Indices": ([4, 1], J), "Labels": ([5, 1], J)},
        {"class_number": 3}, ShapeError, "Labels is",
    ),
    "precision states": (
        "precision_recall",
        {"MaxProbs": ROWS[0], "Indices": ROWS[1], "Labels": ROWS[1], "StatesInfo": ([3, 3], F)},
        {"class_number": 3}, ShapeError, "StatesInfo is",
    ),
    "auc width": ("auc", {"Predict": ([-1, 3], F), "Label": ([-1, 1], L), **STATS}, TEN, ShapeError, "two classes"),
    "auc labels": ("auc", {"Predict": ([4, 2], F), "Label": ([5, 1], L), **STATS}, TEN, ShapeError, "Label is"),
    "auc states": (
        "auc", {"Predict": ([-1, 2], F), "Label": ([-1, 1], L), **STATS}, {"num_thresholds": 20}, ShapeError,
        "21 or 43 counts",
    ),
    "auc curve": (
        "auc", {"Predict": ([-1, 2], F), "Label": ([-1, 1], L), **STATS}, {**TEN, "curve": "roc"}, AttributeValueError,
        "one of 'ROC', 'PR'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BUILDING)
def test_refused_while_building(case: str) -> None:
    type, inputs, attrs, error, message = BUILDING[case]
    with pytest.raises(error, match=message) as caught:
        append(type, inputs, attrs)
    assert type in str(caught.value) and "test_bad_loss.py" in str(caught.value)


RUNNING: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "cross_entropy": ("cross_entropy", {"X": np.float32([[0.5, 0.5]]), "Label": np.array([[2]])}, {}, "index 2"),
    "cross_entropy2": ("cross_entropy2", {"X": np.float32([[0.5, 0.5]]), "Label": np.array([-1])}, {}, "index -1"),
    "softmax_with_cross_entropy": (
        "softmax_with_cross_entropy", {"Logits": np.zeros((2, 3, 4), F), "Label": np.full((2, 1, 4), 3)}, {"axis": 1},
        "index 3 is out of range; expected 0 to 2",
    ),
    "bpr_loss": ("bpr_loss", {"X": np.float32([[1, 2]]), "Label": np.array([[-3]])}, {}, "index -3"),
    "center_loss": (
        "center_loss",
        {"X": np.zeros((2, 3), F), "Label": np.array([[0], [4]]), "Centers": np.zeros((4, 3), F),
         "CenterUpdateRate": np.ones(1, F)},
        {"cluster_num": 4, "need_update": True}, "index 4",
    ),
    "mean_iou prediction": (
        "mean_iou", {"Predictions": np.array([0, 3]), "Labels": np.array([0, 1])}, {"num_classes": 3}, "index 3",
    ),
    "mean_iou label": (
        "mean_iou", {"Predictions": np.array([0, 1]), "Labels": np.array([0, -1])}, {"num_classes": 3}, "index -1",
    ),
    "precision_recall": (
        "precision_recall",
        {"MaxProbs": np.ones((2, 1), F), "Indices": np.array([[0], [1]], J), "Labels": np.array([[0], [5]], J)},
        {"class_number": 3}, "index 5 is out of range; expected 0 to 2",
    ),
    "auc above": (
        "auc",
        {"Predict": np.float32([[0.2], [1.2]]), "Label": np.array([[0], [1]]), "StatPos": np.zeros((1, 11), L),
         "StatNeg": np.zeros((1, 11), L)},
        TEN, "expected 0 to 10",
    ),
    "auc NaN": (
        "auc",
        {"Predict": np.float32([[0.2], [np.nan]]), "Label": np.array([[0], [1]]), "StatPos": np.zeros((1, 11), L),
         "StatNeg": np.zeros((1, 11), L)},
        TEN, "expected 0 to 10",
    ),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("case", RUNNING)
def test_refused_when_it_runs(case: str, place: str) -> None:
    type, arrays, attrs, message = RUNNING[case]
    block = fluid.default_main_program().global_block()
    inputs = {slot: block.create_var(shape=a.shape, dtype=str(a.dtype), is_data=True) for slot, a in arrays.items()}
    outputs = {slot.name: block.create_var() for slot in fluid.op_proto(type).outputs}
    block.append_op(type, inputs, outputs, attrs)
    fetched = [v for slot, v in outputs.items() if slot != "XShape"]
    feed = {inputs[slot].name: array for slot, array in arrays.items()}
    with pytest.raises(OutOfRangeError, match=message) as caught:
        fluid.Executor(place).run(feed=feed, fetch_list=fetched)
    assert type in str(caught.value)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_bad_score_spoils_no_state(place: str, steps: int) -> None:
    score, label = layers.data("score", [1]), layers.data("label", [1], dtype="int64")
    whole, last, states = layers.auc(score, label, num_thresholds=10, slide_steps=steps)
    exe = fluid.Executor(place)
    exe.run(fluid.default_startup_program())
    good = {"score": np.float32([[0.2], [0.4], [0.9]]), "label": np.array([[0], [1], [1]])}
    assert exe.run(feed=good, fetch_list=[whole, last]) == [1.0, 1.0]
    before = [read(state) for state in states]
    with pytest.raises(OutOfRangeError):
        exe.run(feed={**good, "score": np.float32([[0.2], [-0.4], [0.9]])}, fetch_list=[whole, last])
    assert [read(state).tolist() for state in states] == [state.tolist() for state in before]
    assert before[2].sum() == 2 and before[3].sum() == 1


def read(state: Any) -> Any:
    return fluid.global_scope().find_var(state.name).get_tensor().numpy().copy()


@pytest.mark.parametrize("place", PLACES)
def test_ignored_rows_may_have_any_class(place: str) -> None:
    scores = layers.data("scores", [3], stop_gradient=False)
    label = layers.data("label", [1], dtype="int64")
    losses = [
        layers.cross_entropy(layers.softmax(scores), label, ignore_index=-7),
        layers.softmax_with_cross_entropy(scores, label, ignore_index=-7),
    ]
    grads = [fluid.gradients([loss], [scores])[0] for loss in losses]
    feed = {"scores": np.float32([[1, 2, 3], [3, 2, 1]]), "label": np.array([[-7], [0]])}
    for found in fluid.Executor(place).run(feed=feed, fetch_list=[*losses, *grads]):
        assert (found[0] == 0).all() and (found[1] != 0).all()
