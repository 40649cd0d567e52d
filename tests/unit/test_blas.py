"""The cblas kernels against NumPy's float64 products, run and bound, and what they refuse."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import fluidlite.operators
import fluidlite.plugin_loader
from fluidlite.base.dtypes import dtype_name
from fluidlite.geometry import Gemm, gemms_of
from fluidlite.kernels.blas import batches, cblas, linear_algebra as blas
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.place import Place
from fluidlite.program.kernel_io import IO
from fluidlite.program.op_call import Call
from fluidlite.program.registry import ops
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Spec, specs_of

assert fluidlite.plugin_loader and fluidlite.operators
Array = np.ndarray[Any, Any]
pytestmark = pytest.mark.skipif(cblas.cblas_routine("float32") is None, reason="this build of NumPy shows no cblas")

MATMULS = [
    ((5, 7), (7, 3), False, False, 1.0),
    ((7, 5), (7, 3), True, False, 2.0),
    ((5, 7), (3, 7), False, True, 1.0),
    ((7, 5), (3, 7), True, True, -0.5),
    ((4,), (4,), False, False, 1.0),
    ((4,), (4, 3), False, False, 1.0),
    ((3, 4), (4,), False, False, 1.0),
    ((2, 3, 4), (2, 4, 5), False, False, 1.0),
    ((2, 4, 3), (2, 5, 4), True, True, 1.0),
    ((2, 3, 4), (4, 5), False, False, 1.0),
    ((2, 4, 3), (4, 5), True, False, 3.0),
    ((2, 4, 3), (5, 4), True, True, 1.0),
    ((3, 4), (2, 4, 5), False, False, 1.0),
    ((4, 3), (2, 5, 4), True, True, 1.0),
    ((2, 3, 2, 4), (2, 3, 4, 5), False, False, 1.0),
    ((3, 0), (0, 2), False, False, 1.0),
    ((80, 90), (90, 70), False, False, 1.0),
]


def execute(type: str, inputs: dict[str, Array], attrs: dict[str, Any], bound: bool) -> dict[str, Array]:
    op, place = ops.get(type), Place("cpu")
    specs = {slot: (Spec.of(a.shape, dtype_name(a.dtype)),) for slot, a in inputs.items()}
    clean = {attr.name: attr.check(attrs.get(attr.name, attr.default)) for attr in op.attrs}
    call = Call(op, specs, {}, clean, place)
    assert op.infer is not None
    call = call.with_outs({slot: specs_of(found) for slot, found in op.infer(call).items()})
    kernel = {"mul": blas.mul, "mul_grad": blas.mul_grad, "matmul": blas.matmul, "matmul_grad": blas.matmul_grad}[type]
    assert kernel.supports is not None
    assert kernel.supports(call) is None
    context = get_context(place)
    tensors = [Tensor().set(a, place) for a in inputs.values()]
    outputs = {slot: Tensor.of(specs[0], place) for slot, specs in call.outs.items()}
    for tensor in outputs.values():
        tensor.allocate(context)
        tensor.array()[...] = np.nan
    run: Any = kernel.prepare(call, context)
    io = IO(call, [*tensors, *outputs.values()], context)
    if bound:
        run.bind(context, io)()
    else:
        run(context, io)
    return {slot: tensor.numpy() for slot, tensor in outputs.items()}


def product(x: Array, y: Array, tx: bool, ty: bool, alpha: float) -> Array:
    a, b = (x[None, :] if x.ndim == 1 else x), (y[:, None] if y.ndim == 1 else y)
    a, b = (a.swapaxes(-1, -2) if tx else a), (b.swapaxes(-1, -2) if ty else b)
    return alpha * (a.astype(np.float64) @ b.astype(np.float64))


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("x_dims", "y_dims", "tx", "ty", "alpha"), MATMULS)
def test_matmul(x_dims: Any, y_dims: Any, tx: bool, ty: bool, alpha: float, dtype: str, bound: bool) -> None:
    random = np.random.default_rng(3)
    x, y = (random.uniform(-1, 1, dims).astype(dtype) for dims in (x_dims, y_dims))
    attrs = {"transpose_X": tx, "transpose_Y": ty, "alpha": alpha}
    tolerance = 1e-5 if dtype == "float32" else 1e-12
    out = execute("matmul", {"X": x, "Y": y}, attrs, bound)["Out"]
    want = product(x, y, tx, ty, alpha)
    np.testing.assert_allclose(out, want.reshape(out.shape), rtol=tolerance, atol=10 * tolerance)
    dout = np.asarray(random.uniform(-1, 1, out.shape), dtype)
    grads = execute("matmul_grad", {"X": x, "Y": y, "Out@GRAD": dout}, attrs, bound)
    for slot, value in (("X", x), ("Y", y)):  # the product is linear in each operand: a unit step is the derivative
        got = grads[slot + "@GRAD"]
        assert got.shape == value.shape
        for _ in range(3):
            way = random.uniform(-1, 1, value.shape)
            moved = product(way, y, tx, ty, alpha) if slot == "X" else product(x, way, tx, ty, alpha)
            want_slope = float((moved.reshape(dout.shape) * dout).sum())
            assert abs(float((got * way).sum()) - want_slope) <= 400 * tolerance


@pytest.mark.parametrize("bound", [False, True])
def test_mul_flattens(bound: bool) -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (2, 3, 4)).astype("float32")
    y = np.random.default_rng(1).uniform(-1, 1, (2, 2, 5)).astype("float32")
    attrs = {"x_num_col_dims": 2, "y_num_col_dims": 2}
    out = execute("mul", {"X": x, "Y": y}, attrs, bound)["Out"]
    np.testing.assert_allclose(out, (x.reshape(6, 4) @ y.reshape(4, 5)).reshape(2, 3, 5), rtol=1e-5, atol=1e-6)
    grads = execute("mul_grad", {"X": x, "Y": y, "Out@GRAD": out}, attrs, bound)
    flat_x, flat_y, dout = x.reshape(6, 4), y.reshape(4, 5), out.reshape(6, 5)
    np.testing.assert_allclose(grads["X@GRAD"].reshape(6, 4), dout @ flat_y.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(grads["Y@GRAD"].reshape(4, 5), flat_x.T @ dout, rtol=1e-5, atol=1e-5)


def matmul_call(x: tuple[int, ...], y: tuple[int, ...], dtype: str = "float32") -> Call:
    op = ops.get("matmul")
    attrs = {attr.name: attr.check(attr.default) for attr in op.attrs}
    ins = {"X": (Spec.of(x, dtype),), "Y": (Spec.of(y, dtype),)}
    call = Call(op, ins, {}, attrs, Place("cpu"))
    assert op.infer is not None
    return call.with_outs({slot: (spec,) for slot, spec in op.infer(call).items()})  # type: ignore[misc]


def test_refuses_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    supports = blas.matmul.supports
    assert supports is not None
    assert "65 matrices" in str(supports(matmul_call((65, 2, 2), (65, 2, 2))))
    assert supports(matmul_call((-1, 4), (4, 4))) is None
    assert "float16" in str(supports(matmul_call((2, 4), (4, 4), "float16")))
    monkeypatch.setattr(cblas, "cblas_routine", lambda dtype: None)
    assert "no cblas" in str(supports(matmul_call((2, 4), (4, 4))))


def test_a_batch_of_rows_is_one_product() -> None:
    (gemm,) = gemms_of(matmul_call((8, 3, 4), (4, 5)))
    assert (gemm.batch, gemm.m, gemm.n, gemm.k) == ((), 24, 5, 4)
    assert list(gemm.matrices()) == [(0, 0, 0, False)]


BATCHES = [
    ((3, 104, 98), (3, 98, 102), False, False, 1.0),
    ((3, 98, 104), (3, 102, 98), True, True, -0.5),
    ((2, 2, 128, 64), (2, 2, 128, 64), False, True, 0.125),
    ((3, 98, 104), (98, 102), True, False, 1.0),  # the second operand stays where it is
    ((70, 128, 64), (70, 64, 128), False, False, 1.0),  # more than are worth a call each
]


def calls_of(call: Call) -> int:
    """How often a bound product calls the library."""
    context = get_context(Place("cpu"))
    tensors = [Tensor.of(specs[0], context.place) for specs in (*call.ins.values(), *call.outs.values())]
    for tensor in tensors:
        tensor.allocate(context)
    io = IO(call, tensors, context)
    return sum(len(blas._GemmStep(gemm, "float32").bind(context, io)) for gemm in gemms_of(call))


@pytest.mark.skipif(batches.batched("float32") is None, reason="this BLAS has no products of batches")
@pytest.mark.parametrize(("x_dims", "y_dims", "tx", "ty", "alpha"), BATCHES)
def test_a_batch_is_one_call(x_dims: Any, y_dims: Any, tx: bool, ty: bool, alpha: float) -> None:
    random = np.random.default_rng(3)
    for dtype, tolerance in (("float32", 2e-5), ("float64", 1e-12)):
        x, y = (random.uniform(-1, 1, dims).astype(dtype) for dims in (x_dims, y_dims))
        attrs = {"transpose_X": tx, "transpose_Y": ty, "alpha": alpha}
        want = product(x, y, tx, ty, alpha)
        for bound in (False, True):
            out = execute("matmul", {"X": x, "Y": y}, attrs, bound)["Out"]
            np.testing.assert_allclose(out, want, rtol=tolerance, atol=100 * tolerance)
        dout = np.asarray(random.uniform(-1, 1, want.shape), dtype)
        grads = execute("matmul_grad", {"X": x, "Y": y, "Out@GRAD": dout}, attrs, True)
        for slot, value in (("X", x), ("Y", y)):
            way = random.uniform(-1, 1, value.shape)
            moved = product(way, y, tx, ty, alpha) if slot == "X" else product(x, way, tx, ty, alpha)
            slope = float((moved * dout).sum())
            assert abs(float((grads[slot + "@GRAD"] * way).sum()) - slope) <= 1e4 * tolerance
    if not tx and not ty:
        assert calls_of(matmul_call(x_dims, y_dims)) == 1


@pytest.mark.parametrize("a", [(3, 4), (3, 1), (1, 4), (1, 1), (4,), ()])
@pytest.mark.parametrize("b", [(3, 4), (1, 4), ()])
@pytest.mark.parametrize("batch, summed", [((3, 4), ()), ((3, 4), (0,)), ((3, 4), (1,)), ((3, 1), ()), ((1, 1), (0,))])
def test_steps_are_those_of_the_list(a: Any, b: Any, batch: Any, summed: Any) -> None:
    a, b = (tuple(min(pair) for pair in zip(dims, batch[len(batch) - len(dims) :], strict=True)) for dims in (a, b))
    gemm = Gemm("X", (*a, 101, 102), False, "Y", (*b, 102, 103), False, "Out", 101, 103, 102, batch, summed, 1.0)
    listed = list(gemm.matrices())
    found = {tuple(new - old for old, new in zip(p[:3], n[:3], strict=True)) for p, n in pairwise(listed)}
    even = len(found) == 1 and not any(add for *_, add in listed)
    assert batches.batch_strides(gemm) == (found.pop() if even else None)


def test_batches_of_open_size_are_not_listed() -> None:
    """While a program is compiled, a dim that is not known stands for a very large one."""
    (gemm,) = gemms_of(matmul_call((10**12, 101, 102), (10**12, 102, 103)))
    assert batches.batch_strides(gemm) == (1, 1, 1)


def test_small_matrices_are_multiplied_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some builds of OpenBLAS crash when a batch has them."""
    small, large = (matmul_call((2, side, 100), (2, 100, 100)) for side in (100, 101))
    assert [batches.batch_strides(gemm) for gemm in gemms_of(small)] == [None]
    assert [batches.batch_strides(gemm) for gemm in gemms_of(large)] == [(1, 1, 1)]
    assert calls_of(small) == 2
    monkeypatch.setattr(blas, "batched", lambda dtype: None)
    assert calls_of(large) == 2


def test_products_of_batches_are_taken_on_processors_that_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert batches.batched.__wrapped__("float32") is None


def test_products_that_are_short_leave_other_threads_asleep() -> None:
    threads = cblas._threads()
    if threads is None:
        pytest.skip("NumPy has another library")
    get, put = threads
    before, seen = get(), []
    put(2)
    try:
        cblas._single_threaded(lambda: seen.append(get()))()
        assert (seen, get()) == ([1], 2)

        def fail() -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            cblas._single_threaded(fail)()
        assert get() == 2
        routine = cblas.cblas_routine("float32")
        assert routine is not None
        a, b = (np.random.default_rng(0).random((128, 128), "float32") for _ in range(2))
        for m in (128, 1):
            out = np.empty((m, 128), "float32")
            cblas.Product(routine, m, 128, 128, 128, False, 128, False, 1.0)(
                a.ctypes.data, b.ctypes.data, out.ctypes.data, False
            )
            np.testing.assert_allclose(out, a[:m].astype("float64") @ b, rtol=1e-5)
            assert get() == 2
    finally:
        put(before)
