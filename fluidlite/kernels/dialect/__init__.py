"""Kernels in the words of a dialect: written once, compiled by OpenCL and by any plugin's C.

No barriers, no local memory, no atomics: a work item computes one element, row or tile of the output by
itself, in a fixed order, so results repeat bit for bit. Sizes are arguments: another batch size compiles nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from fluidlite.plugin import Library, hookimpl

FAMILIES = (
    "auc", "batch_norm", "bilinear", "concat_split", "conv", "conv_registers", "creation", "crop", "cross", "cumsum",
    "expanding", "finite", "flipping", "gather_tree", "grid_sampler", "hash", "index", "index_select", "interpolate",
    "kron", "layer_norm", "linear_algebra", "logsumexp", "loss", "losses_classes", "losses_regression", "maxout",
    "metrics", "multiplex", "norm", "padding", "pool", "products", "reduce", "sampling", "scatter", "shape",
    "shuffling", "similarity_focus", "slicing", "softmax", "sorting", "squared", "stacking", "unfold", "unpool",
    "vision", "where",
)  # fmt: skip


@hookimpl
def register_libraries(register: Callable[[Any], None]) -> None:
    """Name the library of kernels that need vector registers; all others belong to "plain"."""
    register(Library("registers", ("*",), 20, "convolutions whose sums stay in vector registers"))


@hookimpl
def register_kernels(register: Callable[[Any], None]) -> None:
    """Hand the families over."""
    for family in FAMILIES:
        register(import_module(f"{__name__}.{family}"))
