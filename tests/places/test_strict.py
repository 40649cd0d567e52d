"""Every array kernel, generated or generic, with nothing but the functions of the Array-API standard."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import loader
from fluidlite.base.errors import OutOfRangeError
from fluidlite.testing import Check, checks
from fluidlite.tools.matrix import kernel_matrix

pytest.importorskip("array_api_strict")
PLUGINS = str(Path(__file__).parent.parent / "plugins")
PLACE = fluid.Place("strict")


@pytest.fixture(scope="module", autouse=True)
def strict() -> Iterator[None]:
    fluid.places()
    sys.path.insert(0, PLUGINS)
    try:
        record = loader.load("strict", "strict_device")
    finally:
        sys.path.remove(PLUGINS)
    assert record.state == "loaded", record.traceback
    yield
    loader.unload("strict")


@pytest.mark.parametrize("check", [pytest.param(check, id=check.id) for check in checks()])
def test_conforms(check: Check) -> None:
    check(PLACE)


def test_nothing_falls_back() -> None:
    cells = {row.op: row.cells[PLACE] for row in kernel_matrix(["strict"])}
    left = {op: cell.text for op, cell in cells.items() if cell.hows["fallback"] or cell.hows["none"]}
    assert {op: text for op, text in left.items() if "float16" not in text} == {}


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
    np.testing.assert_array_equal(exe.run(program, {"x": values, "index": np.asarray([2, 0], "int32")}, [rows])[0], values[[2, 0]])
