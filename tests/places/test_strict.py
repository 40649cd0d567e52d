"""Every array kernel, generated or generic, with nothing but the functions of the Array-API standard."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.errors import KernelNotFoundError, OutOfRangeError
from fluidlite.testing import Check, checks

pytest.importorskip("array_api_strict")
PLACE = fluid.Place("strict")
CHECKS = [check for check in checks() if "float16]" not in check.id]  # the standard has no half types


@pytest.fixture(scope="module", autouse=True)
def strict(load_plugin: Callable[[str, str], None]) -> None:
    load_plugin("strict", "strict_device")


@pytest.mark.parametrize("check", [pytest.param(check, id=check.id) for check in CHECKS])
def test_conforms(check: Check, no_fallback: None) -> None:
    try:
        check(PLACE)
    except KernelNotFoundError as error:
        assert re.search("strict does not compute b?float16", str(error))
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
