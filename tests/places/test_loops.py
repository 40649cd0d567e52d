"""Every expression, and every gradient that is one, by the nests of its loops, compiled for this processor."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.framework.registry import ops
from fluidlite.testing import Check, checks

pytest.importorskip("llvmlite")
PLACE = fluid.Place("loops")
EXPRESSIONS = [each for each in checks() if each.operator in ops and ops.get(each.operator).expression is not None]
CHECKS = [check for check in EXPRESSIONS if not check.id.endswith((":float64]", ":bfloat16]"))]
"""The text of these differs from that of float32 and float16 in the names of types and functions."""
FEWEST = 2000


@pytest.fixture(scope="module", autouse=True)
def loops(load_plugin: Callable[[str, str], None]) -> None:
    load_plugin("loops", "loop_kernels")


@pytest.mark.parametrize("check", [pytest.param(check, id=check.id) for check in CHECKS])
def test_conforms(check: Check, no_fallback: None) -> None:
    check(PLACE)


EACH_PRIMITIVE = (
    "arg_max", "bilinear_interp", "concat", "conv2d_transpose", "cross_entropy2", "cumsum", "gather", "layer_norm",
    "matmul", "max_pool2d_with_index", "pad2d", "pool2d", "range", "row_conv", "scatter", "softmax", "strided_slice",
)  # fmt: skip


@pytest.mark.opencl
@pytest.mark.parametrize("operator", EACH_PRIMITIVE)
def test_opencl_conforms(operator: str) -> None:
    mine = [check for check in CHECKS if check.operator == operator]
    values, *gradients = (
        next((check for check in mine if (".grad[" in check.id) is wanted), None) for wanted in (False, True)
    )
    assert values is not None
    for check in filter(None, (values, *gradients)):
        check("opencl")


def test_there_are_enough() -> None:
    assert len(CHECKS) > FEWEST


def test_nests_are_what_runs() -> None:
    x = layers.data("x", [4, 6], append_batch_size=False)
    y = layers.layer_norm(layers.softmax(x))
    exe = fluid.Executor(PLACE, mode="interpreted")
    exe.run(fluid.default_startup_program())
    exe.run(feed={"x": np.ones((4, 6), "float32")}, fetch_list=[y])
    hows = {line.op.type: line.choice.how for line in exe.explain_last().plan.lines}
    assert hows["softmax"] == hows["layer_norm"] == "native", str(exe.explain_last())


def test_what_no_nest_computes_is_refused() -> None:
    """A later nest would read what an earlier one wrote over it."""
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        x = layers.data("x", [4, 6], append_batch_size=False)
        weight = layers.create_parameter([6, 2], "float32", name="weight")
        fluid.optimizer.Lamb(0.1).minimize(layers.mean(layers.matmul(x, weight)))
    report = fluid.explain(program, PLACE).text(refused=True)
    assert "not native loops: it writes over an operand" in report
