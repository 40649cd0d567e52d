"""Every array kernel, generated or generic, with nothing but the functions of the Array-API standard."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from operator_checks import CHECKS, QUARTERS, by_operator, pairwise, run_checks, shared

import fluidlite as fluid
from fluidlite.base.errors import KernelNotFoundError, OutOfRangeError
from fluidlite.platform.context_pool import get_context
from fluidlite.program.kernel_registry import kernels
from fluidlite.program.registry import ops
from fluidlite.program.rules import GradRule
from fluidlite.testing import Check, check_gradient, check_sample

pytest.importorskip("array_api_strict")
PLACE = fluid.Place("strict")
KINDS = ("array", "memory")
MINE = [check for check in shared(pairwise(CHECKS, KINDS), QUARTERS["strict"], KINDS) if "float16]" not in check.id]
"""The standard has no half types."""


@pytest.fixture(scope="module", autouse=True)
def strict(load_plugin: Callable[[str, str], None]) -> None:
    load_plugin("strict", "strict_device")


def without_half_types(error: Exception) -> bool:
    return isinstance(error, KernelNotFoundError) and bool(re.search("strict does not compute b?float16", str(error)))


@pytest.mark.parametrize("group", by_operator(MINE))
def test_conforms(group: list[Check], no_fallback: None) -> None:
    if not run_checks(group, PLACE, without_half_types):
        pytest.skip("the standard has no half types")


def test_an_index_out_of_range_is_found_after_the_run() -> None:
    program = fluid.Program()
    with fluid.program_guard(program):
        x = fluid.layers.data("x", [3, 2], append_batch_size=False)
        index = fluid.layers.data("index", [2], dtype="int32", append_batch_size=False)
        rows = fluid.layers.gather(x, index)
    exe = fluid.Executor(PLACE)
    values = np.arange(6, dtype="float32").reshape(3, 2)
    with pytest.raises(OutOfRangeError, match=r"operator gather \(test_strict.py:\d+.*index 7 .*0 to 2") as error:
        exe.run(program, {"x": values, "index": np.asarray([1, 7], "int32")}, [rows])
    assert "strict:0" in str(error.value)
    np.testing.assert_array_equal(
        exe.run(program, {"x": values, "index": np.asarray([2, 0], "int32")}, [rows])[0], values[[2, 0]]
    )


FORWARD = {op.grad.type: op.type for op in ops if isinstance(op.grad, GradRule)}
INDEXED = sorted({kernel.op for kernel in kernels if kernel.indexes and "array" in kernel.places})


@pytest.mark.parametrize("op", INDEXED)
def test_the_size_of_an_array_may_be_a_method(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from array_api_strict._array_object import Array

    monkeypatch.setattr(Array, "size", lambda array, dim=None: array.shape if dim is None else array.shape[dim])
    forward = FORWARD.get(op, op.removesuffix("_grad"))
    check_sample(forward, PLACE)
    if forward != op:
        check_gradient(forward, PLACE)


def test_no_indices_are_right_where_the_size_of_an_array_is_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    import array_api_strict as xp
    from array_api_strict._array_object import Array

    monkeypatch.setattr(Array, "size", lambda array: array.shape)
    none = xp.zeros((0,), dtype=xp.int32)
    assert get_context(PLACE).check_index(none, 3, None) is none
