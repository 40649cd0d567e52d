"""Call an operator's reference; references of random operators draw the numbers of their seed."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.codegen import philox
from fluidlite.conformance.reference import call_reference as of_reference, with_lod
from fluidlite.conformance.sample_helpers import Attrs, Inputs, Outputs
from fluidlite.conformance.samples import reference_of
from fluidlite.program.opdef import OpDef
from fluidlite.testing.fuzz.tolerance import Array


def _numbers(dims: Any, seed: int) -> Array:
    """Uniform random numbers of 24 bits for a seed, by the definition of Philox."""
    words = philox.words(np, 0, int(np.prod(dims)), (seed & philox.MASK, seed >> 32, 0, 0), 0)
    numbers: Array = (np.asarray(words, np.int64) >> 8).astype(np.float32) * np.float32(2.0**-24)
    return numbers.reshape(tuple(dims))


def _uniform(inputs: Inputs, attrs: Attrs) -> Outputs:
    dims = list(attrs["shape"])
    if "Input" in inputs:
        dims[attrs["output_dim_idx"]] = inputs["Input"].shape[attrs["input_dim_idx"]]
    low, high = np.float32(attrs["min"]), np.float32(attrs["max"])
    return {"Out": low + np.float32(attrs["max"] - attrs["min"]) * _numbers(dims, attrs["seed"]) if low < high else low}


def _dropout(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, p = inputs["X"], attrs["dropout_prob"]
    mask = _numbers(x.shape, attrs["seed"]) >= np.float32(p)
    scaled = x / (1 - p) if attrs["dropout_implementation"] == "upscale_in_train" else x
    return {"Out": np.where(mask, scaled, 0.0), "Mask": mask.astype(np.uint8)}


RANDOM = {"uniform_random": _uniform, "uniform_random_batch_size_like": _uniform, "dropout": _dropout}
"""References of random operators, for a fixed seed."""


def call_reference(op: OpDef, inputs: Mapping[str, list[Array]], attrs: Mapping[str, Any], lod: Any) -> dict[str, Any]:
    """Call a definition's reference; arrays are passed by slot, as lists for duplicable slots."""
    reference = RANDOM[op.type] if op.type in RANDOM and attrs.get("seed") else reference_of(op.type)
    assert reference is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the mean of nothing
        return of_reference(with_lod(reference), op, inputs, dict(attrs), lod)
