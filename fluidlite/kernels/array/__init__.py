"""Kernels for the array capability: any device whose memory an Array-API namespace can view."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fluidlite.plugin import hookimpl

FAMILIES = (
    "auc", "batch_norm", "concat_split", "conv", "creation", "crop", "cross", "cumsum", "expanding", "finite",
    "flipping", "gather_tree", "grid_sampler", "hash", "index", "index_select", "interpolate", "layer_norm",
    "linear_algebra", "loss", "losses_classes", "losses_regression", "maxout", "metrics", "multiplex", "norm",
    "padding", "pool", "products", "reduce", "sampling", "scatter", "shape", "shuffling", "similarity_focus",
    "slicing", "softmax", "sorting", "squared", "stacking", "top_k", "unfold", "unpool", "vision", "where",
)  # fmt: skip


@hookimpl
def register_kernels(register: Any) -> None:
    """Hand every family over."""
    for family in FAMILIES:
        register(import_module(f"{__name__}.{family}"))
