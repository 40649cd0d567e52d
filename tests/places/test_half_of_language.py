"""A device whose arrays have no bfloat16, and whose kernel language computes in it, as CUDA's do."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from operator_checks import CHECKS, by_operator, parsed, run_checks

import fluidlite as fluid
from fluidlite.compiler.policy import Policy
from fluidlite.compiler.selection.kernel_candidates import candidates
from fluidlite.devices.cpu import CPUDevice
from fluidlite.errors import TensorError
from fluidlite.program.op_call import Call
from fluidlite.program.registry import ops
from fluidlite.tensor.tensor_spec import Spec
from fluidlite.testing import Check

sys.path.append(str(Path(__file__).parents[1] / "plugins"))
from fake_device import installed

pytest.importorskip("llvmlite")
HALF = "bfloat16"
OPERATORS = (
    "relu",
    "softmax",
    "matmul",
    "conv2d",
    "lookup_table",
    "reduce_sum",
    "concat",
    "cast",
)
MINE = [check for check in CHECKS if check.operator in OPERATORS and parsed(check)[2] == HALF]


class Wide(CPUDevice):
    """Host memory with arrays and a kernel language."""

    kind = "wide"

    def info(self, index: int) -> Any:
        return dataclasses.replace(super().info(index), host=False, dlpack=1)

    def array(self, index: int) -> Any:
        known = super().array(index)
        facts = {name: getattr(known, name) for name in ("xp", "out", "wrap", "extra", "adopt")}
        return SimpleNamespace(**facts, eager=False, lacks=(HALF,))


@pytest.fixture(scope="module", autouse=True)
def wide() -> Iterator[Any]:
    with installed(Wide()) as device:
        yield device


@pytest.mark.parametrize("group", by_operator(MINE))
def test_it_computes_where_arrays_do_not(group: list[Check], no_fallback: None) -> None:
    assert run_checks(group, "wide")


def test_there_is_something_to_check() -> None:
    assert {check.operator for check in MINE} == set(OPERATORS)


@pytest.mark.parametrize("policy", [Policy("error"), Policy("error").with_codegen("wide", "array")], ids=["", "array"])
def test_its_arrays_are_refused_with_the_reason(policy: Policy) -> None:
    spec = Spec.of((4, 4), HALF)
    call = Call(ops.get("relu"), {"X": (spec,)}, {"Out": (spec,)}, {})
    found = {each.name: each for each in candidates(call, fluid.Place("wide"), policy)}
    assert [name for name, each in found.items() if each.is_selected] == ["expression (language)"]
    assert "bfloat16" in found["expression (array)"].reason


def test_a_tensor_says_that_it_is_no_array() -> None:
    values = np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3)
    tensor = fluid.Tensor().set(values, "wide")
    np.testing.assert_array_equal(tensor.numpy(), values)
    assert tensor.data() == tensor.span()
    with pytest.raises(TensorError, match="the arrays of wide:0 have no bfloat16"):
        tensor.array()
    with pytest.raises(TensorError, match="have no bfloat16"):
        tensor.__dlpack__()
