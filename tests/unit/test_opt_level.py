"""``FLUIDLITE_OPT_LEVEL``: how much the compilers of kernels optimise."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluidlite.base.opt_level import VARIABLE
from fluidlite.errors import DeviceError
from fluidlite.platform.context_pool import get_context

NEXT = """
define i32 @next(i32 %x) {
  %room = alloca i32
  store i32 %x, ptr %room
  %found = load i32, ptr %room
  %y = add i32 %found, 1
  ret i32 %y
}
"""
ADD = "__kernel void add(__global float* x) { x[get_global_id(0)] += 1.0f; }"


def test_llvm_keeps_code_of_each_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llvmlite")
    from fluidlite.base.disk_cache import DiskCache
    from fluidlite.devices.cpu.llvm import Compiler

    compiler, sizes = Compiler(DiskCache(tmp_path)), dict[Path, int]()
    for level in ("0", "3", "0", ""):
        monkeypatch.setenv(VARIABLE, level)
        code = compiler.load(NEXT, ["next"], "next")
        assert code.function("next", "int32", ["int32"])(6) == 7
        sizes |= {file: file.stat().st_size for file in tmp_path.glob("*.bin") if file not in sizes}
    assert compiler.compiled == 2  # nothing said is the third level
    unoptimised, optimised = sizes.values()
    assert unoptimised > optimised  # unoptimised, the room of x is on the stack


@pytest.mark.opencl
def test_opencl_optimises_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyopencl as cl

    context = get_context("opencl")
    found = []
    for level in ("0", "3", "0"):
        monkeypatch.setenv(VARIABLE, level)
        kernel = context.compile(ADD, "add", ("buffer",))
        program = kernel.call.get_info(cl.kernel_info.PROGRAM)
        (device,) = program.get_info(cl.program_info.DEVICES)
        options = program.get_build_info(device, cl.program_build_info.OPTIONS)
        assert ("-cl-opt-disable" in options) == (level == "0")
        found.append(kernel)
    assert found[0] is found[2] is not found[1]


def test_another_level_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "fast")
    with pytest.raises(DeviceError, match=r"FLUIDLITE_OPT_LEVEL is 'fast'; expected 0, 1, 2 or 3"):
        get_context("cpu").compile("", "add", ())
