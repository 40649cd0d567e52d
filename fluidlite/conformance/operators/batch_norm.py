from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.base.dtypes import HALVES, NUMPY
from fluidlite.conformance.operators.layer_norm import LARGE_MEAN
from fluidlite.conformance.sample_helpers import MIXED, WIDE, Attrs, Inputs, Outputs, rand
from fluidlite.conformance.samples import Sample, register_samples


def _uses_averages(attrs: Attrs) -> bool:
    """Whether X is normalised by Mean and Variance, which are not updated then."""
    return bool(attrs["use_global_stats"] or (attrs["is_test"] and not attrs["trainable_statistics"]))


def _inputs(
    *dims: int, last: bool = False, dtype: str = "float32", momentum: float | None = None, **options: Any
) -> Any:
    """X of a dtype and float32 parameters; ``momentum`` gives a MomentumTensor."""
    channels = dims[-1] if last else dims[1]
    inputs = {
        "X": rand(*dims, seed=len(dims), **options).astype(NUMPY[dtype]),
        "Scale": rand(channels, low=0.5, high=1.5, seed=21),
        "Bias": rand(channels, seed=22),
        "Mean": rand(channels, seed=23),
        "Variance": rand(channels, low=0.5, high=2.0, seed=24),
    }
    if momentum is not None:
        inputs["MomentumTensor"] = np.asarray([momentum], "float32")
    return inputs


_GRADS = ("X", "Scale", "Bias")
_LAST: dict[str, Any] = {"data_layout": "NHWC"}
_GLOBAL: dict[str, Any] = {"use_global_stats": True}
_TEST: dict[str, Any] = {"is_test": True}


@register_samples(
    "batch_norm",
    samples=lambda: [
        Sample(_inputs(3, 4, 2, 3), {}, _GRADS, name="images", dtypes=WIDE),
        Sample(_inputs(3, 2, 3, 4, last=True), _LAST, _GRADS, name="images_last", dtypes=WIDE),
        Sample(_inputs(6, 5), {}, _GRADS, name="matrix", dtypes=WIDE),
        Sample(_inputs(6, 5, last=True), _LAST, _GRADS, name="matrix_last"),
        Sample(_inputs(2, 3, 18), {}, _GRADS, name="rank3", dtypes=WIDE),
        Sample(_inputs(2, 3, 2, 1, 3), {"momentum": 0.5}, _GRADS, name="rank5", dtypes=WIDE),
        Sample(_inputs(5, 2, low=-0.02, high=0.02), {"epsilon": 1e-3}, _GRADS, name="epsilon", dtypes=WIDE),
        Sample(_inputs(4, 3, 2, momentum=0.25), {}, _GRADS, name="momentum_tensor"),
        Sample(_inputs(3, 4, 2, 3), _GLOBAL, _GRADS, name="global", dtypes=WIDE),
        Sample(_inputs(3, 2, 20, last=True), {**_GLOBAL, **_LAST}, _GRADS, name="global_last", dtypes=WIDE),
        Sample(_inputs(3, 4, 2, 3), _TEST, _GRADS, name="test", dtypes=WIDE),
        Sample(_inputs(5, 4), _TEST, _GRADS, name="test_matrix"),
        Sample(_inputs(3, 4, 5), {**_TEST, "trainable_statistics": True}, _GRADS, name="trainable"),
        Sample(_inputs(3, 4, 5), {}, name="y_only", outputs=("Y",)),
        Sample(_inputs(1, 3), {}, _GRADS, name="one_element"),
        Sample(_inputs(1, 3, 1, 1), {}, _GRADS, name="one_pixel"),
        Sample(_inputs(3, 2, 5, 4, **LARGE_MEAN), {}, name="far", dtypes=WIDE),
        Sample(_inputs(60, 19, **LARGE_MEAN), {}, name="far_matrix", dtypes=WIDE),
        Sample(_inputs(2, 3, 21, last=True, low=-3.0), _LAST, _GRADS, name="wide_last", dtypes=WIDE),
        Sample(_inputs(0, 3, 2), _TEST, name="no_samples"),
        Sample(_inputs(0, 3), _GLOBAL, name="no_rows"),
        *(Sample(_inputs(3, 4, 5, dtype=half), {}, _GRADS, name=half, dtypes=MIXED) for half in HALVES),
        Sample(_inputs(6, 4, dtype="float16"), {}, _GRADS, name="half_matrix", dtypes=MIXED),
        Sample(_inputs(3, 4, 5, dtype="bfloat16"), _GLOBAL, _GRADS, name="half_global", dtypes=MIXED),
    ],
)
def _reference(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, old_mean, old_variance = np.asarray(inputs["X"], "float64"), inputs["Mean"], inputs["Variance"]
    last = x if attrs["data_layout"] == "NHWC" else np.moveaxis(x, 1, -1)
    rows = last.reshape(-1, last.shape[-1])
    decay = inputs["MomentumTensor"][0] if "MomentumTensor" in inputs else attrs["momentum"]
    if _uses_averages(attrs):
        mean, variance = old_mean, old_variance
        new_mean, new_variance = old_mean, old_variance
    elif len(rows) == 1:  # as in Fluid: the variance is 0
        nothing = np.zeros_like(old_mean)
        return {
            "Y": x,
            "MeanOut": old_mean,
            "VarianceOut": old_variance,
            "SavedMean": nothing,
            "SavedVariance": nothing,
            "ReserveSpace": np.zeros(0),
        }
    else:
        mean, variance = rows.mean(axis=0), rows.var(axis=0)
        new_mean, new_variance = decay * old_mean + (1 - decay) * mean, decay * old_variance + (1 - decay) * variance
    inverse = 1 / np.sqrt(variance + attrs["epsilon"])
    y = ((rows - mean) * inverse * inputs["Scale"] + inputs["Bias"]).reshape(last.shape)
    return {
        "Y": y if attrs["data_layout"] == "NHWC" else np.moveaxis(y, -1, 1),
        "MeanOut": new_mean,
        "VarianceOut": new_variance,
        "SavedMean": mean,
        "SavedVariance": inverse,
        "ReserveSpace": np.zeros(0),
    }
