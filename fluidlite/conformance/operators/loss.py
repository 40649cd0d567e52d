from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, WIDE, Attrs, Inputs, Outputs, ints, rand
from fluidlite.conformance.samples import Sample, register_samples


def picked(table: Any, label: Any, ignore: int) -> Any:
    """Return table[..., label] with 0 for ignored labels."""
    flat = table.reshape(-1, table.shape[-1])
    out = [0.0 if c == ignore else flat[i, c] for i, c in enumerate(label.reshape(-1))]
    return np.asarray(out, "float64").reshape(label.shape)


def _probabilities(*dims: int, seed: int = 0) -> Any:
    p = rand(*dims, low=0.2, high=1.0, seed=seed, dtype="float64")
    return np.asarray(p / p.sum(-1, keepdims=True), "float32")


def hard_labels() -> list[Sample]:
    p = _probabilities(5, 4)
    certain = np.asarray([[0.0, 1.0], [1.0, 0.0]], "float32")
    label = ints(5, 1, high=4)
    ignored = label.copy()
    ignored[1] = ignored[3] = -100
    return [
        Sample({"X": p, "Label": label}, {}, ("X",), name="hard", dtypes=WIDE),
        Sample({"X": p, "Label": label.astype("int32")}, {}, ("X",), name="int32"),
        Sample({"X": p, "Label": ignored}, {}, ("X",), name="ignored"),
        Sample({"X": p, "Label": label}, {"ignore_index": int(label[0, 0])}, ("X",), name="ignore_index"),
        Sample({"X": _probabilities(2, 3, 4), "Label": ints(2, 3, 1, high=4)}, {}, ("X",), name="rank3"),
        Sample({"X": _probabilities(5, 4), "Label": ints(5, high=4)}, {}, ("X",), name="short"),
        Sample({"X": _probabilities(2, 3, 4), "Label": ints(2, 3, high=4)}, {}, ("X",), name="short_rank3"),
        Sample({"X": certain, "Label": ints(2, 1, high=1)}, {}, name="zero_probability"),
        Sample({"X": rand(0, 4), "Label": ints(0, 1)}, {}, name="empty"),
    ]


def _samples_cross_entropy() -> list[Sample]:
    soft = {"X": _probabilities(5, 4), "Label": _probabilities(5, 4, seed=1)}
    return [*hard_labels(), Sample(soft, {"soft_label": True}, ("X", "Label"), name="soft", dtypes=EVERY)]


@register_samples("cross_entropy", samples=_samples_cross_entropy)
def reference_cross_entropy(inputs: Inputs, attrs: Attrs) -> Outputs:
    with np.errstate(divide="ignore"):
        cost = np.minimum(-np.log(inputs["X"]), 1e20)
    if attrs["soft_label"]:
        return {"Y": np.sum(inputs["Label"] * cost, axis=-1, keepdims=True)}
    return {"Y": picked(cost, inputs["Label"], attrs["ignore_index"])}


_LOGITS = ("Logits",)
_HALF = ("float32", "float16")


def _case(
    name: str,
    logits: Any,
    label: Any,
    grads: tuple[str, ...] = (),
    dtypes: tuple[str, ...] = ("float32",),
    **attrs: Any,
) -> Sample:
    return Sample({"Logits": logits, "Label": label}, attrs, grads, name=name, dtypes=dtypes)


_soft = partial(_case, soft_label=True)


def _samples_axis() -> list[Sample]:
    x, label = rand(3, 4, 5, low=-3, high=3, seed=2), ints(3, 1, 5, high=4)
    ignored = label.copy()
    ignored[1] = -100
    soft = np.moveaxis(_probabilities(3, 5, 4, seed=1), 2, 1)
    weighted = soft * np.asarray([0, 1, 3], "float32")[:, None, None]
    planes = rand(2, 3, 5, 7), ints(2, 1, 5, 7, high=3)
    return [
        _case("axis1", x, label, _LOGITS, EVERY, axis=1),
        _case("axis_ignored", x, ignored, _LOGITS, axis=-2),
        _soft("axis_soft", x, soft, ("Logits", "Label"), EVERY, axis=1),
        _soft("axis_weighted", x, weighted, ("Logits", "Label"), WIDE, axis=1),
        _case("axis0", x, ints(1, 4, 5, high=3), _LOGITS, axis=0),
        _case("axis_then_1", rand(3, 4, 1), ints(3, 1, 1, high=4), _LOGITS, axis=1),
        _case("planes", *planes, _LOGITS, axis=1, ignore_index=2),
        _case("axis_blocks", rand(3, 9, 8000), ints(3, 1, 8000, high=9), (), _HALF, axis=1),
        _case("blocks", rand(300, 300), ints(300, 1, high=300), (), ("float32", "bfloat16"), ignore_index=7),
        _soft("blocks_soft", rand(300, 300), _probabilities(300, 300)),
        _case("axis_empty", rand(2, 3, 0), ints(2, 1, 0), axis=1),
    ]


def _samples_softmax() -> list[Sample]:
    x = rand(5, 4, low=-3.0, high=3.0)
    label = ints(5, 1, high=4)
    ignored = label.copy()
    ignored[0] = ignored[4] = -100
    wide = rand(3, 35, low=-80, high=80)
    one_hot = np.asarray(np.eye(4)[label[..., 0]], "float32")
    both = ("Logits", "Label")
    return [
        _case("hard", x, label, _LOGITS, EVERY),
        _case("int32", x, label.astype("int32"), _LOGITS),
        _case("ignored", x, ignored, _LOGITS),
        _case("ignore_index", x, label, _LOGITS, ignore_index=int(label[0, 0])),
        _soft("soft", x, _probabilities(5, 4, seed=1), both, EVERY),
        _soft("weighted", rand(4, 40), rand(4, 40, low=0, seed=1), both, EVERY),
        _soft("blocks_weighted", rand(300, 300), rand(300, 300, low=0)),
        _soft("one_hot", x, one_hot, _LOGITS, ignore_index=1),
        _case("rank3", rand(2, 3, 4), ints(2, 3, 1, high=4), _LOGITS, axis=2, numeric_stable_mode=False),
        *_samples_axis(),
        _case("large", rand(33, 65, low=90, high=99), ints(33, 1, high=65)),
        _case("small", rand(5, 4, low=-999, high=-900), label),
        _case("wide", wide, ints(3, 1, high=35), (), _HALF),
        _soft("wide_soft", wide, _probabilities(3, 35, seed=1), (), _HALF),
        _case("empty", rand(0, 4), ints(0, 1)),
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
        loss = -picked(log_p, label, attrs["ignore_index"])
    return {"Softmax": np.moveaxis(np.exp(log_p), -1, axis), "Loss": np.moveaxis(loss, -1, axis)}
