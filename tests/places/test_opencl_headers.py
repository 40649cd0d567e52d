"""Programs that are built without PoCL's header: functions are the same, and what takes more has the header."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.devices.opencl import pocl
from fluidlite.devices.opencl.language import OpenCLLanguage
from fluidlite.platform.context_pool import get_context

pytestmark = pytest.mark.opencl
KINDS = {"float": np.float32, "double": np.float64}


@pytest.fixture
def context() -> Any:
    found = get_context("opencl")
    if not pocl.reads_header(found.raw.board.device):
        pytest.skip("this driver is not PoCL of a processor")
    return found


def options(kernel: Any) -> str:
    """The options with which the program of a compiled kernel was built."""
    cl: Any = pytest.importorskip("pyopencl")
    program = kernel.call.get_info(cl.kernel_info.PROGRAM)
    found: str = program.get_build_info(program.devices[0], cl.program_build_info.OPTIONS)
    return found


def compiled(context: Any, body: str, prologue: bool = True) -> Any:
    name = f"headers_{uuid.uuid4().hex}"  # no compiled program of an earlier run is found
    language = context.unit.language
    source = f"__kernel void {name}(__global float* out) {{ const size_t i = get_global_id(0);\n{body} }}"
    return context.compile(language.keywords["prologue"] * prologue + source, name, ("buffer",))


def result(context: Any, kernel: Any) -> float:
    cl: Any = pytest.importorskip("pyopencl")
    out = np.zeros(1, np.float32)
    buffer = cl.Buffer(context.raw.board.context, cl.mem_flags.READ_WRITE, out.nbytes)
    context.launch(kernel, 1, (buffer,), 1)
    cl.enqueue_copy(context.raw.queue, out, buffer)
    return float(out[0])


@pytest.mark.parametrize("kind", ["float", "double"])
def test_declared_functions_are_those_of_the_header(kind: str, context: Any) -> None:
    """Of scalars and of vectors, bit by bit, infinite and NaN too; loads and stores in all spaces."""
    cl: Any = pytest.importorskip("pyopencl")
    dtype = KINDS[kind]
    math = OpenCLLanguage.math
    lines = []
    for name in sorted({text for text in math.values() if text}):
        count = 3 if name == "fma" else 2 if name in ("copysign", "fmax", "fmin", "fmod", "pow") else 1
        lines.append(f"*to++ = {name}({', '.join(['x', 'y', 'z'][:count])});")
        if not name.startswith("is"):
            lines.append(f"vstore4({name}({', '.join(['x4', 'y4', 'z4'][:count])}), 0, to); to += 4;")
    for width in (2, 3, 4, 8, 16):
        lines += [
            f"vstore{width}(vload{width}(0, x_) + vload{width}(0, fixed), 0, mine);",
            f"vstore{width}(vload{width}(0, mine), 0, ours); vstore{width}(vload{width}(0, ours), 0, to); to += 16;",
        ]
    source = (
        f"""__constant {kind} fixed[16] = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}};
        __kernel void every(__global const {kind}* x_, __global {kind}* out, const int room) {{
        __local {kind} ours[16]; {kind} mine[16];
        __global {kind}* to = out + get_global_id(0) * room; x_ += get_global_id(0);
        const {kind} x = x_[0], y = x_[1], z = x_[2];
        const {kind}4 x4 = vload4(0, x_), y4 = vload4(0, x_ + 1), z4 = vload4(0, x_ + 2);\n"""
        + "\n".join(lines)
        + "}"
    )
    language, board = context.unit.language, context.raw.board
    source = language.keywords["prologue"] + source
    declared = pocl.declarations(source, language.types, math)
    given = np.random.default_rng(3).standard_normal(64).astype(dtype) * 3
    given[5:13] = [np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-40, 1e30, 2.5]
    items, room = 40, 400
    results = []
    for text, more in ((declared + source, [pocl.WITHOUT_HEADER]), (source, [])):
        kernel = cl.Kernel(cl.Program(board.context, text).build([*language._options, *more]), "every")
        out = np.zeros(items * room, dtype)
        copy = cl.mem_flags.COPY_HOST_PTR
        x, y = (cl.Buffer(board.context, cl.mem_flags.READ_WRITE | copy, hostbuf=each) for each in (given, out))
        kernel(context.raw.queue, (items,), (1,), x, y, np.int32(room))
        cl.enqueue_copy(context.raw.queue, out, y)
        results.append(out)
    assert np.count_nonzero(results[0]) > items * len(lines)
    np.testing.assert_array_equal(results[0].view(np.uint8), results[1].view(np.uint8))


def test_programs_that_begin_as_the_frameworks_have_no_header(context: Any) -> None:
    kernel = compiled(context, "out[i] = fma(2.0f, 3.0f, sqrt(16.0f));")
    assert pocl.WITHOUT_HEADER in options(kernel)
    assert result(context, kernel) == 10
    assert pocl.WITHOUT_HEADER not in options(compiled(context, "out[i] = 1;", prologue=False))


def test_groups_are_held_at_barriers(context: Any) -> None:
    """Each member takes what the next but two has stored."""
    cl: Any = pytest.importorskip("pyopencl")
    words = context.unit.language.keywords
    body = f"__local float ours[16]; const int m = {words['member']}; ours[m] = m; {words['barrier']}\n"
    kernel = compiled(context, f"{body} out[i] = ours[(m + 3) % 16];")
    assert pocl.WITHOUT_HEADER in options(kernel)
    out = np.zeros(64, np.float32)
    buffer = cl.Buffer(context.raw.board.context, cl.mem_flags.READ_WRITE, out.nbytes)
    context.launch(kernel, 64, (buffer,), 16)
    cl.enqueue_copy(context.raw.queue, out, buffer)
    np.testing.assert_array_equal(out, (np.arange(64) + 3) % 16)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("out[i] = mad24(3, 4, 5);", 17.0),
        ("out[i] = sin(0.5f);", float(np.sin(np.float32(0.5)))),  # C's would be of double
        ("out[i] = convert_float_rtz(16777217);", 16777216.0),
        ("out[i] = isinf((float2)(INFINITY, 1.0f)).x;", -1.0),
        ("half* h = 0; out[i] = h == 0;", 1.0),
    ],
)
def test_programs_that_take_more_have_the_header(body: str, expected: float, context: Any) -> None:
    kernel = compiled(context, body)
    assert pocl.WITHOUT_HEADER not in options(kernel)
    assert result(context, kernel) == pytest.approx(expected, rel=1e-6)


def test_an_error_is_that_of_the_program_itself(context: Any) -> None:
    """With the name of the kernel, and the line in its own text."""
    line = context.unit.language.keywords["prologue"].count("\n") + 2
    with pytest.raises(
        fluid.errors.CompileError, match=rf"kernel 'headers_(.|\n)*:{line}:\d+: .*'missing_name'"
    ) as info:
        compiled(context, "out[i] = missing_name;")
    assert pocl.WITHOUT_HEADER not in str(info.value)
