from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.base.dtypes import HALVES, NUMPY
from fluidlite.conformance.sample_helpers import MIXED, WIDE, Attrs, Inputs, Outputs, rand
from fluidlite.conformance.samples import Sample, register_samples

Array = np.ndarray[Any, Any]


def _normalised(x: Array, inputs: Inputs, epsilon: float, param: tuple[int, ...]) -> tuple[Array, ...]:
    """Normalise the rows of a matrix, then scale and shift in the shape ``param``; also return mean and variance."""
    mean = x.mean(axis=1)
    variance = ((x - mean[:, None]) ** 2).mean(axis=1)
    y = ((x.T - mean) / np.sqrt(variance + epsilon)).T.reshape(-1, *param)
    scale, bias = inputs.get("Scale"), inputs.get("Bias")
    y = y if scale is None else y * scale.reshape(param)
    return (y if bias is None else y + bias.reshape(param)), mean, variance


def _inputs(dims: tuple[int, ...], length: int, parts: str = "sb", dtype: str = "float32", **options: Any) -> Any:
    """X of a dtype, and the parameters that ``parts`` names (s: Scale, b: Bias), which are float32."""
    inputs = {"X": rand(*dims, seed=len(dims), **options).astype(NUMPY[dtype])}
    if "s" in parts:
        inputs["Scale"] = rand(length, low=0.5, high=1.5, seed=11)
    if "b" in parts:
        inputs["Bias"] = rand(length, seed=12)
    return inputs


_GRADS = ("X", "Scale", "Bias")


LARGE_MEAN: dict[str, Any] = {"low": 998.3, "high": 1001.7}
"""Numbers of mean 1000 and deviation 1: their squares do not differ enough to be subtracted in float32."""


@register_samples(
    "layer_norm",
    samples=lambda: [
        Sample(_inputs((5, 7), 7), {}, _GRADS, name="matrix", dtypes=WIDE),
        Sample(_inputs((2, 3, 4), 12), {}, _GRADS, name="two_dims"),
        Sample(_inputs((2, 3, 4), 4), {"begin_norm_axis": 2}, _GRADS, name="last", dtypes=WIDE),
        Sample(_inputs((4, 6), 6, low=-0.02, high=0.02), {"epsilon": 1e-3}, _GRADS, name="epsilon", dtypes=WIDE),
        Sample(_inputs((3, 5), 5, "s"), {}, ("X", "Scale"), name="no_bias"),
        Sample(_inputs((3, 5), 5, "b"), {}, ("X", "Bias"), name="no_scale"),
        Sample(_inputs((3, 5), 5, ""), {}, ("X",), name="neither"),
        Sample(_inputs((3, 5), 5), {}, name="y_only", outputs=("Y",)),
        Sample(_inputs((3, 40), 40, **LARGE_MEAN), {}, name="far", dtypes=WIDE),
        Sample(_inputs((4, 35), 35), {}, _GRADS, name="wide", dtypes=WIDE),
        Sample(_inputs((70, 33), 33), {}, name="many"),
        Sample(_inputs((3, 1), 1), {}, name="one_element"),
        Sample(_inputs((0, 3), 3), {}, name="no_rows"),
        *(Sample(_inputs((5, 7), 7, dtype=half), {}, _GRADS, name=half, dtypes=MIXED) for half in HALVES),
    ],
)
def _reference_layer_norm(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, begin = np.asarray(inputs["X"], "float64"), attrs["begin_norm_axis"]
    length = int(np.prod(x.shape[begin:]))
    y, mean, variance = _normalised(x.reshape(-1, length), inputs, attrs["epsilon"], (length,))
    return {"Y": y.reshape(x.shape), "Mean": mean, "Variance": variance}


def _reference_group_norm(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, groups = np.asarray(inputs["X"], "float64"), attrs["groups"]
    first = np.moveaxis(x, -1, 1) if attrs["data_layout"] == "NHWC" else x
    batch, channels = first.shape[:2]
    rows = first.reshape(batch * groups, int(np.prod(first.shape[1:])) // groups)
    plain, mean, variance = _normalised(rows, {}, attrs["epsilon"], rows.shape[1:])
    param = (channels, *[1] * (x.ndim - 2))
    y = plain.reshape(first.shape)
    y = y * inputs["Scale"].reshape(param) if "Scale" in inputs else y
    y = y + inputs["Bias"].reshape(param) if "Bias" in inputs else y
    y = np.moveaxis(y, 1, -1) if attrs["data_layout"] == "NHWC" else y
    return {"Y": y, "Mean": mean.reshape(batch, groups), "Variance": variance.reshape(batch, groups)}


_LAST: dict[str, Any] = {"groups": 2, "data_layout": "NHWC"}


register_samples(
    "group_norm",
    reference=_reference_group_norm,
    samples=lambda: [
        Sample(_inputs((2, 4, 3, 2), 4), {"groups": 2}, _GRADS, name="first", dtypes=WIDE),
        Sample(_inputs((2, 3, 2, 4), 4), _LAST, _GRADS, name="last", dtypes=WIDE),
        Sample(_inputs((2, 4, 3), 4), {"groups": 1}, _GRADS, name="one_group"),
        Sample(_inputs((2, 3, 5), 3), {"groups": 3}, _GRADS, name="a_group_each"),
        Sample(_inputs((3, 6), 6), {"groups": 2}, _GRADS, name="matrix"),
        Sample(_inputs((2, 3, 2, 2, 2), 3), {"groups": 1, "epsilon": 0.5}, _GRADS, name="epsilon", dtypes=WIDE),
        Sample(_inputs((2, 4, 3), 4, "s"), {"groups": 2}, ("X", "Scale"), name="no_bias"),
        Sample(_inputs((2, 4, 3), 4, "b"), {"groups": 2}, ("X", "Bias"), name="no_scale"),
        Sample(_inputs((2, 3, 4), 4, ""), _LAST, ("X",), name="neither_last"),
        Sample(_inputs((2, 4, 5, 4), 4, **LARGE_MEAN), {"groups": 2}, name="far", dtypes=WIDE),
        Sample(_inputs((2, 5, 4, 40), 40, **LARGE_MEAN), _LAST, name="far_last", dtypes=WIDE),
        Sample(_inputs((2, 2, 18), 18), _LAST, _GRADS, name="many_last", dtypes=WIDE),
        Sample(_inputs((1, 4, 17), 4), {"groups": 2}, _GRADS, name="long", dtypes=WIDE),
        Sample(_inputs((2, 4, 5, 7), 4), {"groups": 2}, name="y_only", outputs=("Y",)),
        Sample(_inputs((0, 4, 3), 4), {"groups": 2}, name="no_samples"),
        *(Sample(_inputs((2, 4, 5), 4, dtype=half), {"groups": 2}, _GRADS, name=half, dtypes=MIXED) for half in HALVES),
        Sample(_inputs((2, 5, 4), 4, dtype="float16"), _LAST, _GRADS, name="half_last", dtypes=MIXED),
    ],
)


@register_samples(
    "instance_norm",
    samples=lambda: [
        Sample(_inputs((2, 3, 4, 2), 3), {}, _GRADS, name="images", dtypes=WIDE),
        Sample(_inputs((2, 3, 18), 3), {}, _GRADS, name="rank3"),
        Sample(_inputs((2, 3, 2, 2, 2), 3), {"epsilon": 1e-3}, _GRADS, name="rank5"),
        Sample(_inputs((3, 2), 2), {}, ("Scale", "Bias"), name="matrix"),
        Sample(_inputs((2, 2, 4), 2, low=-0.02, high=0.02), {"epsilon": 1e-3}, _GRADS, name="epsilon", dtypes=WIDE),
        Sample(_inputs((2, 3, 4), 3, ""), {}, ("X",), name="neither"),
        Sample(_inputs((2, 3, 40), 3, **LARGE_MEAN), {}, name="far", dtypes=WIDE),
        Sample(_inputs((0, 3, 4), 3), {}, name="no_samples"),
        *(Sample(_inputs((2, 3, 5), 3, dtype=half), {}, _GRADS, name=half, dtypes=MIXED) for half in HALVES),
    ],
)
def _reference_instance_norm(inputs: Inputs, attrs: Attrs) -> Outputs:
    results = _reference_group_norm(inputs, {**attrs, "groups": inputs["X"].shape[1], "data_layout": "NCHW"})
    deviation = np.sqrt(results["Variance"].reshape(-1) + attrs["epsilon"])
    return {"Y": results["Y"], "SavedMean": results["Mean"].reshape(-1), "SavedVariance": 1 / deviation}
