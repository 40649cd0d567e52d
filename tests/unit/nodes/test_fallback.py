"""Operators of nodes that a place has no kernel for: a warning once, an error, or neither, as the policy says."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.errors import KernelNotFoundError
from fluidlite.nodes import Graph, LayerNorm, Weight, fallback
from fluidlite.nodes.operator_call import run_operator
from fluidlite.nodes.tensor import Tensor


@pytest.fixture(autouse=True)
def _nothing_was_warned_of(require: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    require("fpga", "as a place that lacks kernels")
    monkeypatch.setattr(fallback, "_warned", set())


def run(size: int) -> None:
    x = Tensor("fpga", values=np.ones(size))
    run_operator("erf", {"X": [x]}, None, x.dev)


def test_a_warning_once() -> None:
    fluid.set_fallback("warn")
    with pytest.warns(
        fluid.FallbackWarning, match=r"operators of nodes have no kernel for fpga:0 and run on cpu:0: erf"
    ):
        run(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(4)


def test_no_warning_where_it_is_allowed() -> None:
    fluid.set_fallback("allow")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(5)


def test_an_error_where_it_is_forbidden() -> None:
    fluid.set_fallback("error")
    with pytest.raises(KernelNotFoundError, match="erf"):
        run(6)
    w = Weight("fpga", np.ones(7, "float32"))
    with pytest.raises(KernelNotFoundError, match=r"LayerNorm|layer_norm"):
        Graph(LayerNorm(w)).forward()
