"""All cases."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from benchmarks.operators.case import Case

FAMILIES = (
    "elementwise", "activations", "reduce", "linear_algebra", "shape", "index", "creation", "conv", "pool", "norm",
    "softmax", "loss", "optimizers", "vision", "sequences",
)  # fmt: skip


def cases(families: Sequence[str] = FAMILIES) -> list[Case]:
    """Every case of the families, in order."""
    modules = [importlib.import_module(f"benchmarks.operators.{family}") for family in families]
    return [case for module in modules for case in module.CASES]
