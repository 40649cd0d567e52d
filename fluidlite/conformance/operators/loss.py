from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, WIDE, Attrs, Inputs, Outputs, ints, rand
from fluidlite.conformance.samples import Sample, register_samples


def _picked(table: Any, label: Any, ignore: int) -> Any:
    """Return table[..., label] with 0 for ignored labels."""
    flat = table.reshape(-1, table.shape[-1])
    out = [0.0 if c == ignore else flat[i, c] for i, c in enumerate(label.reshape(-1))]
    return np.asarray(out, "float64").reshape(label.shape)


def _one_hot(label: Any, classes: int) -> Any:
    return np.asarray(np.eye(classes)[label[..., 0]], "float32")


def _probabilities(*dims: int, seed: int = 0) -> Any:
    p = rand(*dims, low=0.2, high=1.0, seed=seed, dtype="float64")
    return np.asarray(p / p.sum(-1, keepdims=True), "float32")


def _samples_cross_entropy() -> list[Sample]:
    p = _probabilities(5, 4)
    certain = np.asarray([[0.0, 1.0], [1.0, 0.0]], "float32")
    label = ints(5, 1, high=4)
    ignored = label.copy()
    ignored[1] = ignored[3] = -100
    soft = {"X": p, "Label": _probabilities(5, 4, seed=1)}
    return [
        Sample({"X": p, "Label": label}, {}, ("X",), name="hard", dtypes=WIDE),
        Sample({"X": p, "Label": label.astype("int32")}, {}, ("X",), name="int32"),
        Sample({"X": p, "Label": ignored}, {}, ("X",), name="ignored"),
        Sample({"X": p, "Label": label}, {"ignore_index": int(label[0, 0])}, ("X",), name="ignore_index"),
        Sample(soft, {"soft_label": True}, ("X", "Label"), name="soft", dtypes=EVERY),
        Sample({"X": _probabilities(2, 3, 4), "Label": ints(2, 3, 1, high=4)}, {}, ("X",), name="rank3"),
        Sample({"X": _probabilities(5, 4), "Label": ints(5, high=4)}, {}, ("X",), name="short"),
        Sample({"X": _probabilities(2, 3, 4), "Label": ints(2, 3, high=4)}, {}, ("X",), name="short_rank3"),
        Sample({"X": certain, "Label": ints(2, 1, high=1)}, {}, name="zero_probability"),
        Sample({"X": rand(0, 4), "Label": ints(0, 1)}, {}, name="empty"),
    ]


@register_samples("cross_entropy", samples=_samples_cross_entropy)
def _reference_cross_entropy(inputs: Inputs, attrs: Attrs) -> Outputs:
    with np.errstate(divide="ignore"):
        cost = np.minimum(-np.log(inputs["X"]), 1e20)
    if attrs["soft_label"]:
        return {"Y": np.sum(inputs["Label"] * cost, axis=-1, keepdims=True)}
    return {"Y": _picked(cost, inputs["Label"], attrs["ignore_index"])}


def _samples_axis() -> list[Sample]:
    x, label = rand(3, 4, 5, low=-3, high=3, seed=2), ints(3, 1, 5, high=4)
    ignored = label.copy()
    ignored[1] = -100
    soft = np.moveaxis(_probabilities(3, 5, 4, seed=1), 2, 1)
    planes = {"Logits": rand(2, 3, 5, 7), "Label": ints(2, 1, 5, 7, high=3)}
    return [
        Sample({"Logits": x, "Label": label}, {"axis": 1}, ("Logits",), name="axis1", dtypes=EVERY),
        Sample({"Logits": x, "Label": ignored}, {"axis": -2}, ("Logits",), name="axis_ignored"),
        Sample(
            {"Logits": x, "Label": soft},
            {"axis": 1, "soft_label": True},
            ("Logits", "Label"),
            name="axis_soft",
            dtypes=EVERY,
        ),
        Sample(
            {"Logits": x, "Label": soft * np.asarray([0, 1, 3], "float32")[:, None, None]},
            {"axis": 1, "soft_label": True},
            ("Logits", "Label"),
            name="axis_weighted",
            dtypes=WIDE,
        ),
        Sample({"Logits": x, "Label": ints(1, 4, 5, high=3)}, {"axis": 0}, ("Logits",), name="axis0"),
        Sample({"Logits": rand(3, 4, 1), "Label": ints(3, 1, 1, high=4)}, {"axis": 1}, ("Logits",), name="axis_then_1"),
        Sample(planes, {"axis": 1, "ignore_index": 2}, ("Logits",), name="planes"),
        Sample(
            {"Logits": rand(3, 9, 8000), "Label": ints(3, 1, 8000, high=9)},
            {"axis": 1},
            name="axis_blocks",
            dtypes=("float32", "float16"),
        ),
        Sample(
            {"Logits": rand(300, 300), "Label": ints(300, 1, high=300)},
            {"ignore_index": 7},
            name="blocks",
            dtypes=("float32", "bfloat16"),
        ),
        Sample({"Logits": rand(300, 300), "Label": _probabilities(300, 300)}, {"soft_label": True}, name="blocks_soft"),
        Sample({"Logits": rand(2, 3, 0), "Label": ints(2, 1, 0)}, {"axis": 1}, name="axis_empty"),
    ]


def _samples_softmax() -> list[Sample]:
    x = rand(5, 4, low=-3.0, high=3.0)
    label = ints(5, 1, high=4)
    ignored = label.copy()
    ignored[0] = ignored[4] = -100
    soft = {"Logits": x, "Label": _probabilities(5, 4, seed=1)}
    wide = rand(3, 35, low=-80, high=80)
    one_hot = {"Logits": x, "Label": _one_hot(label, 4)}
    return [
        Sample({"Logits": x, "Label": label}, {}, ("Logits",), name="hard", dtypes=EVERY),
        Sample({"Logits": x, "Label": label.astype("int32")}, {}, ("Logits",), name="int32"),
        Sample({"Logits": x, "Label": ignored}, {}, ("Logits",), name="ignored"),
        Sample({"Logits": x, "Label": label}, {"ignore_index": int(label[0, 0])}, ("Logits",), name="ignore_index"),
        Sample(soft, {"soft_label": True}, ("Logits", "Label"), name="soft", dtypes=EVERY),
        Sample(
            {"Logits": rand(4, 40), "Label": rand(4, 40, low=0, seed=1)},
            {"soft_label": True},
            ("Logits", "Label"),
            name="weighted",
            dtypes=EVERY,
        ),
        Sample(
            {"Logits": rand(300, 300), "Label": rand(300, 300, low=0)}, {"soft_label": True}, name="blocks_weighted"
        ),
        Sample(one_hot, {"soft_label": True, "ignore_index": 1}, ("Logits",), name="one_hot"),
        Sample(
            {"Logits": rand(2, 3, 4), "Label": ints(2, 3, 1, high=4)},
            {"axis": 2, "numeric_stable_mode": False},
            ("Logits",),
            name="rank3",
        ),
        *_samples_axis(),
        Sample({"Logits": rand(33, 65, low=90, high=99), "Label": ints(33, 1, high=65)}, {}, name="large"),
        Sample({"Logits": rand(5, 4, low=-999, high=-900), "Label": label}, {}, name="small"),
        Sample({"Logits": wide, "Label": ints(3, 1, high=35)}, {}, name="wide", dtypes=("float32", "float16")),
        Sample(
            {"Logits": wide, "Label": _probabilities(3, 35, seed=1)},
            {"soft_label": True},
            name="wide_soft",
            dtypes=("float32", "float16"),
        ),
        Sample({"Logits": rand(0, 4), "Label": ints(0, 1)}, {}, name="empty"),
    ]


@register_samples("softmax_with_cross_entropy", samples=_samples_softmax)
def _reference_softmax(inputs: Inputs, attrs: Attrs) -> Outputs:
    axis = attrs["axis"]
    logits, label = (np.moveaxis(inputs[slot], axis, -1) for slot in ("Logits", "Label"))
    shifted = logits - np.max(logits, axis=-1, keepdims=True, initial=-np.inf)
    log_p = shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))
    if attrs["soft_label"]:
        loss = -np.sum(label * log_p, axis=-1, keepdims=True)
    else:
        loss = -_picked(log_p, label, attrs["ignore_index"])
    return {"Softmax": np.moveaxis(np.exp(log_p), -1, axis), "Loss": np.moveaxis(loss, -1, axis)}
