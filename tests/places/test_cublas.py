"""cuBLAS' kernels without a GPU: over a CuPy of host memory, whose cuBLAS is NumPy.

What is held is what they ask cuBLAS for; cuBLAS itself is not here. On a GPU ``test_samples.py`` holds its numbers.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cuda_on_host import HostLanguage, host_cupy, loaded

import fluidlite as fluid
from fluidlite.compiler.policy import Policy
from fluidlite.compiler.selection.kernel_candidates import candidates
from fluidlite.devices.cuda import CUDADevice
from fluidlite.kernels.cublas import conv, products
from fluidlite.plugin import Library, hookimpl, register_kernel
from fluidlite.program.op_call import Call
from fluidlite.program.registry import ops
from fluidlite.tensor.tensor_spec import Spec

KIND = "tensorcores"
DTYPES = {0: "float32", 1: "float64", 2: "float16", 14: "bfloat16"}


def _numpy(name: str) -> Any:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


class CuBLAS:
    """``gemmStridedBatchedEx`` over addresses of host memory, columns first."""

    def __init__(self, cupy: Any) -> None:
        self.cupy, self.calls = cupy, 0

    def _matrices(self, address: int, dims: tuple[int, int], kind: int, ld: int, step: int, count: int) -> list[Any]:
        dtype, (rows, columns) = _numpy(DTYPES[kind]), dims
        assert ld >= rows
        whole = (ctypes.c_char * (dtype.itemsize * (step * (count - 1) + ld * (columns - 1) + rows))).from_address(
            address
        )
        flat = np.frombuffer(whole, dtype)
        strides = (dtype.itemsize, dtype.itemsize * ld)
        return [np.lib.stride_tricks.as_strided(flat[i * step :], dims, strides) for i in range(count)]

    def gemmStridedBatchedEx(
        self, handle: int, transa: int, transb: int, m: int, n: int, k: int, alpha: int,
        a: int, a_kind: int, lda: int, a_step: int, b: int, b_kind: int, ldb: int, b_step: int, beta: int,
        c: int, c_kind: int, ldc: int, c_step: int, count: int, compute: int, algo: int,
    ) -> None:  # fmt: skip
        assert (handle, algo) == (7, -1)
        assert any(stream.entered for stream in self.cupy.Stream.is_static)  # cuBLAS takes CuPy's current stream
        wide = _numpy({68: "float32", 70: "float64"}[compute])
        scale, kept = (np.frombuffer((ctypes.c_char * wide.itemsize).from_address(x), wide)[0] for x in (alpha, beta))
        assert kept in (0, 1)
        left = self._matrices(a, (k, m) if transa else (m, k), a_kind, lda, a_step, count)
        right = self._matrices(b, (n, k) if transb else (k, n), b_kind, ldb, b_step, count)
        for x, y, out in zip(left, right, self._matrices(c, (m, n), c_kind, ldc, c_step, count), strict=True):
            found = (x.T if transa else x).astype(wide) @ (y.T if transb else y).astype(wide)
            out[...] = (scale * found + (out.astype(wide) if kept else 0)).astype(out.dtype)
        self.calls += 1


class Device(CUDADevice):
    """CUDA's device under another name, without its arrays."""

    kind = KIND

    def array(self, index: int) -> None:
        return None

    def language(self, index: int) -> HostLanguage:
        return HostLanguage()


class Plugin:
    """Brings the device, and cuBLAS' kernels for it."""

    @hookimpl
    def register_devices(self, register: Any) -> None:
        register(Device())

    @hookimpl
    def register_libraries(self, register: Any) -> None:
        register(Library("cublas-of-host", (KIND,), 50, "for tests"))

    @hookimpl
    def register_kernels(self, register: Any) -> None:
        for kernel in (*vars(products).values(), *vars(conv).values()):
            if getattr(kernel, "library", "") == "cublas":
                facts = {"dtypes": kernel.dtypes, "supports": kernel.supports}
                register(register_kernel(kernel.op, KIND, library="cublas-of-host", **facts)(kernel.function))


@pytest.fixture
def cublas(monkeypatch: pytest.MonkeyPatch) -> Iterator[CuBLAS]:
    fake = host_cupy()
    found = CuBLAS(fake)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs.cublas", found)
    with loaded("tensorcores", Plugin()):
        yield found


def run(
    type: str, given: dict[str, np.ndarray], outs: list[str], attrs: dict[str, Any], place: str = KIND
) -> tuple[list[Any], str]:
    program = fluid.Program()
    block = program.global_block()
    names = {slot: slot.replace("@", "_") for slot in given}
    for slot, array in given.items():
        dtype = "bfloat16" if array.dtype == ml_dtypes.bfloat16 else str(array.dtype)
        block.create_var(names[slot], array.shape, dtype, is_data=True)
    made = {slot: block.create_var(f"out_{i}") for i, slot in enumerate(outs)}
    block.append_op(type, {slot: [name] for slot, name in names.items()}, made, attrs)
    executor = fluid.Executor(place, fallback="allow")
    found = executor.run(program, {names[slot]: array for slot, array in given.items()}, list(made.values()))
    return found, executor.explain_last().plan.lines[-1].choice.library


def numbers(dims: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 4, dims).astype(_numpy(dtype))


PRODUCTS = [
    ((3, 4), False, (4, 5), False), ((4, 3), True, (4, 5), False), ((3, 4), False, (5, 4), True),
    ((4, 3), True, (5, 4), True), ((2, 3, 4), False, (2, 4, 5), False), ((6, 2, 4, 3), True, (6, 2, 5, 4), True),
    ((2, 3, 4), False, (4, 5), False), ((6, 2, 4, 3), True, (4, 5), False), ((3, 4), False, (2, 4, 5), False),
    ((4,), False, (4, 5), False), ((3, 4), False, (4,), False),
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES.values())
@pytest.mark.parametrize("given", PRODUCTS, ids=str)
def test_products(cublas: CuBLAS, given: tuple[Any, ...], dtype: str) -> None:
    x_dims, x_turned, y_dims, y_turned = given
    x, y = numbers(x_dims, dtype), numbers(y_dims, dtype, 1)
    attrs = {"transpose_X": x_turned, "transpose_Y": y_turned, "alpha": 0.5}
    (found,), library = run("matmul", {"X": x, "Y": y}, ["Out"], attrs)
    assert library == "cublas-of-host"
    assert cublas.calls == 1
    left, right = (each.astype("float64") for each in (x, y))
    wanted = 0.5 * ((left.swapaxes(-1, -2) if x_turned else left) @ (right.swapaxes(-1, -2) if y_turned else right))
    np.testing.assert_array_equal(found.astype("float64").reshape(wanted.shape), wanted)


@pytest.mark.parametrize("dtype", DTYPES.values())
@pytest.mark.parametrize("turned", [False, True])
def test_gradients(cublas: CuBLAS, turned: bool, dtype: str) -> None:
    x, y, out = (
        numbers(dims, dtype, i) for i, dims in enumerate([(2, 3, 4), (2, 5, 4) if turned else (2, 4, 5), (2, 3, 5)])
    )
    given = {"X": x, "Y": y, "Out@GRAD": out}
    attrs = {"transpose_X": False, "transpose_Y": turned, "alpha": 1.0}
    (dx, dy), library = run("matmul_grad", given, ["X@GRAD", "Y@GRAD"], attrs)
    assert library == "cublas-of-host"
    wide_x, wide_y, wide_out = (each.astype("float64") for each in (x, y, out))
    wanted = wide_x.swapaxes(1, 2) @ wide_out
    np.testing.assert_array_equal(dx.astype("float64"), wide_out @ (wide_y if turned else wide_y.swapaxes(1, 2)))
    np.testing.assert_array_equal(dy.astype("float64"), wanted.swapaxes(1, 2) if turned else wanted)


def test_rows_of_a_layer(cublas: CuBLAS) -> None:
    x, w, out = numbers((2, 3, 4)), numbers((4, 5), seed=1), numbers((2, 3, 5), seed=2)
    attrs = {"x_num_col_dims": 2, "y_num_col_dims": 1}
    (found,), _ = run("mul", {"X": x, "Y": w}, ["Out"], attrs)
    np.testing.assert_array_equal(found, x @ w)
    (dx, dw), library = run("mul_grad", {"X": x, "Y": w, "Out@GRAD": out}, ["X@GRAD", "Y@GRAD"], attrs)
    assert library == "cublas-of-host"
    np.testing.assert_array_equal(dx, out @ w.T)
    np.testing.assert_array_equal(dw, x.reshape(6, 4).T @ out.reshape(6, 5))


@pytest.mark.parametrize(
    ("dims", "turned", "reason"),
    [(((3, 0), (0, 5)), False, "a product of nothing"), (((2, 4, 3), (4, 5)), True, "or a sum over them")],
)
def test_what_it_leaves_to_others(cublas: CuBLAS, dims: tuple[Any, ...], turned: bool, reason: str) -> None:
    given = {"X": numbers(dims[0]), "Y": numbers(dims[1], seed=1)}
    attrs, out = {"transpose_X": turned, "transpose_Y": False, "alpha": 1.0}, "Out"
    if turned:
        given["Out@GRAD"], out = numbers((2, 3, 5), seed=2), "Y@GRAD"
    op = ops.get("matmul_grad" if turned else "matmul")
    attrs = {attr.name: attr.default for attr in op.attrs} | attrs
    ins = {slot: (Spec.of(each.shape, "float32"),) for slot, each in given.items()}
    call = Call(op, ins, {out: (Spec.of((4, 5) if turned else (3, 5), "float32"),)}, attrs)
    (mine,) = [each for each in candidates(call, fluid.Place(KIND), Policy("allow")) if each.name == "cublas-of-host"]
    assert reason in mine.reason
    (found,), library = run(op.type, given, [out], attrs)
    assert library != "cublas-of-host"
    assert not cublas.calls
    wanted = np.einsum("bkm,bmn->kn", given["X"], given["Out@GRAD"]) if turned else np.zeros((3, 5))
    np.testing.assert_array_equal(found, wanted)


def test_where_cupy_has_no_cublas_the_reason_is_shown(cublas: CuBLAS, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs.cublas", None)
    _, library = run("mul", {"X": numbers((2, 3)), "Y": numbers((3, 4))}, ["Out"], {})
    assert library != "cublas-of-host"


WINDOWS = [
    ("conv2d", (2, 3, 9, 8), (4, 3, 3, 3), {"paddings": [1, 1]}),
    ("conv2d", (3, 4, 9, 8), (6, 2, 3, 2), {"strides": [2, 3], "paddings": [1, 0, 2, 1], "groups": 2}),
    ("conv2d", (1, 2, 12, 11), (3, 2, 3, 3), {"dilations": [2, 3], "paddings": [2, 2]}),
    ("conv2d", (2, 3, 5, 5), (4, 3, 1, 1), {"strides": [2, 2]}),
    ("conv2d", (2, 3, 5, 6), (4, 3, 5, 6), {}),
    ("conv3d", (2, 2, 5, 6, 4), (3, 2, 2, 3, 2), {"strides": [2, 1, 2], "paddings": [1, 1, 0]}),
    ("conv2d_transpose", (2, 4, 5, 4), (4, 3, 3, 3), {"strides": [2, 2], "paddings": [1, 0]}),
    ("conv2d_transpose", (2, 4, 5, 4), (4, 2, 2, 3), {"strides": [3, 2], "groups": 2, "dilations": [2, 1]}),
    ("conv3d_transpose", (1, 2, 3, 4, 3), (2, 3, 2, 3, 2), {"strides": [2, 2, 1]}),
]


@pytest.mark.parametrize("part", [1 << 20, 1])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("given", WINDOWS, ids=lambda given: f"{given[0]}-{given[1]}")
def test_convolutions(
    cublas: CuBLAS, given: tuple[Any, ...], dtype: str, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All images at a time and one, against the host's kernels in float64."""
    monkeypatch.setattr(conv, "MIN_MULTIPLIES", 0)
    monkeypatch.setattr(conv, "MIN_GRADIENT_MULTIPLIES", 0)
    monkeypatch.setattr(conv, "MAX_COLUMNS_BYTES", part)
    type, x_dims, w_dims, attrs = given
    x, w = numbers(x_dims, dtype), numbers(w_dims, dtype, 1)
    wide = {"Input": x.astype("float64"), "Filter": w.astype("float64")}
    (found,), library = run(type, {"Input": x, "Filter": w}, ["Output"], attrs)
    assert library == "cublas-of-host"
    (wanted,), _ = run(type, wide, ["Output"], attrs, "cpu")
    np.testing.assert_array_equal(found, wanted.astype(found.dtype))
    slope = numbers(wanted.shape, dtype, 2)
    slots = ["Input@GRAD", "Filter@GRAD"]
    made, library = run(f"{type}_grad", {"Input": x, "Filter": w, "Output@GRAD": slope}, slots, attrs)
    assert library == "cublas-of-host"
    exact, _ = run(f"{type}_grad", {**wide, "Output@GRAD": slope.astype("float64")}, slots, attrs, "cpu")
    for mine, theirs in zip(made, exact, strict=True):
        np.testing.assert_array_equal(mine, theirs.astype(mine.dtype))
    assert cublas.calls


@pytest.mark.parametrize(
    ("x_dims", "w_dims", "attrs", "reason"),
    [
        ((2, 3, 9, 8), (4, 3, 3, 3), {}, "short convolutions"),
        ((2, 32, 64, 64), (32, 1, 3, 3), {"groups": 32}, "32 groups"),
        ((2, 64, 64, 16), (64, 16, 3, 3), {"data_format": "NHWC"}, "channels come last"),
    ],
)
def test_convolutions_that_are_left_to_loops(
    cublas: CuBLAS, x_dims: tuple[int, ...], w_dims: tuple[int, ...], attrs: dict[str, Any], reason: str
) -> None:
    op = ops.get("conv2d")
    known = {attr.name: attr.default for attr in op.attrs} | attrs
    ins = {"Input": (Spec.of(x_dims, "float32"),), "Filter": (Spec.of(w_dims, "float32"),)}
    rows = x_dims[1:3] if attrs.get("data_format") == "NHWC" else x_dims[2:]
    sizes = [n - 2 for n in rows]
    made = (x_dims[0], *sizes, w_dims[0]) if attrs.get("data_format") == "NHWC" else (x_dims[0], w_dims[0], *sizes)
    call = Call(op, ins, {"Output": (Spec.of(made, "float32"),)}, known)
    (mine,) = [each for each in candidates(call, fluid.Place(KIND), Policy("allow")) if each.name == "cublas-of-host"]
    assert reason in mine.reason
