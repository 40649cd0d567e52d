"""Products large enough for vector registers: values, gradients and epilogues, against float64 NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.kernels.language import linear_algebra
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.device_registry import devices
from fluidlite.program.op_call import Call
from fluidlite.program.registry import ops
from fluidlite.tensor.tensor_spec import Spec

PLACES = ["cpu", pytest.param("opencl:0", marks=pytest.mark.opencl)]
Array = np.ndarray[Any, Any]
SIZES = {
    "even": (160, 256, 128),
    "odd": (163, 201, 145),
    "few rows": (33, 1001, 131),
    "few columns": (1030, 131, 33),
    "long": (65, 2600, 40),
}
"""m, k, n of at least 2 ** 22 multiplications."""


def random(*dims: int, dtype: str = "float32", seed: int = 0) -> Array:
    made: Array = np.random.default_rng(seed + sum(dims)).uniform(-1, 1, dims).astype(dtype)
    return made


def close(found: Array, wanted: Array, k: int, dtype: str = "float32") -> None:
    """Within what sums of ``k`` products of numbers below 1 lose."""
    unit = {"float32": 6e-8, "float64": 1.2e-16, "float16": 5e-4}[dtype]
    np.testing.assert_allclose(np.asarray(found, "float64"), wanted, unit * 4, unit * 2 * k)


def libraries(exe: fluid.Executor, place: str, *types: str) -> set[str]:
    """Those of the operators of some types; no kernel language: none."""
    if devices.unit(place).language is None:
        return set()
    return {row["library"] for row in exe.explain_last().data() if row["op"] in types}


def expected_library(place: str) -> set[str]:
    return {"registers"} if place == "cpu" else {"plain"}


@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)], ids=str)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("place", PLACES)
def test_matmul_and_its_gradients(place: str, size: str, turned: tuple[bool, bool], require: Any) -> None:
    require(place.split(":")[0])
    m, k, n = SIZES[size]
    a, b, upstream = random(m, k), random(k, n), random(m, n, seed=1)
    given = {"x": a.T.copy() if turned[0] else a, "y": b.T.copy() if turned[1] else b, "d": upstream}
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x, y, d = (layers.data(name, list(each.shape), append_batch_size=False) for name, each in given.items())
        x.stop_gradient = y.stop_gradient = False
        out = layers.matmul(x, y, *turned, alpha=0.5)
        exe = fluid.Executor(place)
        found = exe.run(feed=given, fetch_list=[out, *fluid.gradients([out], [x, y], [d])])
        used = libraries(exe, place, "matmul", "matmul_grad")
    assert used in (set(), expected_library(place))
    a64, b64, d64 = (each.astype("float64") for each in (a, b, upstream))
    close(found[0], 0.5 * a64 @ b64, k)
    dx, dy = 0.5 * d64 @ b64.T, 0.5 * a64.T @ d64
    close(found[1], dx.T if turned[0] else dx, n)
    close(found[2], dy.T if turned[1] else dy, m)


BATCHES = {
    "both": ((3, 70, 130), (3, 130, 170)),
    "right is one": ((2, 3, 70, 130), (130, 170)),
    "left is one": ((70, 130), (3, 130, 170)),
    "chunks": ((4, 25, 64, 70), (4, 25, 70, 66)),
    "chunks, right is one": ((100, 64, 70), (70, 66)),
}
"""Those of chunks are packed some matrices at a time."""


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("turned", [(False, False), (True, True)], ids=str)
@pytest.mark.parametrize("place", PLACES)
def test_batches(place: str, batch: str, turned: tuple[bool, bool], require: Any) -> None:
    """Matrices that are read by several products are packed once; gradients sum over them."""
    require(place.split(":")[0])
    a, b = (random(*dims) for dims in BATCHES[batch])
    given = {"x": np.ascontiguousarray(a.swapaxes(-1, -2)) if turned[0] else a,
             "y": np.ascontiguousarray(b.swapaxes(-1, -2)) if turned[1] else b}  # fmt: skip
    wanted = a.astype("float64") @ b.astype("float64")
    upstream = random(*wanted.shape, seed=1)
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x, y = (layers.data(name, list(each.shape), append_batch_size=False) for name, each in given.items())
        d = layers.data("d", list(upstream.shape), append_batch_size=False)
        x.stop_gradient = y.stop_gradient = False
        out = layers.matmul(x, y, *turned)
        exe = fluid.Executor(place)
        found = exe.run(feed=given | {"d": upstream}, fetch_list=[out, *fluid.gradients([out], [x, y], [d])])
        assert libraries(exe, place, "matmul", "matmul_grad") in (set(), expected_library(place))
    close(found[0], wanted, a.shape[-1])
    d64 = upstream.astype("float64")
    for mine, full, each, flag in (
        (found[1], d64 @ b.astype("float64").swapaxes(-1, -2), a, turned[0]),
        (found[2], a.astype("float64").swapaxes(-1, -2) @ d64, b, turned[1]),
    ):
        lead = tuple(range(full.ndim - each.ndim))
        total = full.sum(lead)
        total = total.sum(tuple(i for i, s in enumerate(each.shape) if s == 1), keepdims=True)
        close(mine.swapaxes(-1, -2) if flag else mine, total, 800)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize("turned", [(False, False), (True, True)], ids=str)
@pytest.mark.parametrize("place", PLACES)
def test_other_dtypes(place: str, turned: tuple[bool, bool], dtype: str, require: Any) -> None:
    require(place.split(":")[0])
    a, b = random(163, 201, dtype=dtype), random(201, 145, dtype=dtype)
    given = {"x": a.T.copy() if turned[0] else a, "y": b.T.copy() if turned[1] else b}
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x, y = (layers.data(name, list(v.shape), dtype=dtype, append_batch_size=False) for name, v in given.items())
        (found,) = fluid.Executor(place).run(feed=given, fetch_list=[layers.matmul(x, y, *turned)])
    close(found, a.astype("float64") @ b.astype("float64"), 201, dtype)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize("place", PLACES)
def test_chunks_of_other_dtypes(place: str, dtype: str, require: Any) -> None:
    require(place.split(":")[0])
    a, b = random(90, 40, 33, dtype=dtype), random(90, 40, 35, dtype=dtype)
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x, y = (layers.data(n, list(v.shape), dtype=dtype, append_batch_size=False) for n, v in (("x", a), ("y", b)))
        product = layers.matmul(x, y, transpose_x=True)
        (found,) = fluid.Executor(place).run(feed={"x": a, "y": b}, fetch_list=[product])
    close(found, a.astype("float64").swapaxes(1, 2) @ b.astype("float64"), 40, dtype)


@pytest.mark.parametrize("mode", ["interpreted", "compiled"])
@pytest.mark.parametrize("place", PLACES)
def test_weights_that_stay_packed_are_packed_anew_when_they_change(place: str, mode: str, require: Any) -> None:
    require(place.split(":")[0])
    x = random(130, 260)
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        data = layers.data("x", [260])
        out = layers.fc(data, 150, act="relu", bias_attr=fluid.ParamAttr(initializer=fluid.initializer.Constant(0.25)))
        exe, scope = fluid.Executor(place, mode=mode), fluid.Scope()
        exe.run(fluid.default_startup_program(), scope=scope)
        weight = scope.find_var("fc_0.w_0").get_tensor()
        for seed in range(3):
            w = random(260, 150, seed=seed)
            weight.set(w, fluid.Place.parse(place))
            for _ in range(2):
                (found,) = exe.run(feed={"x": x}, fetch_list=[out], scope=scope)
                close(found, np.maximum(x.astype("float64") @ w + 0.25, 0), 260)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("place", PLACES)
def test_one_weight_in_several_packed_forms(place: str, dtype: str, require: Any) -> None:
    """Each product reads its own form of it: turned or not, on the left and on the right."""
    require(place.split(":")[0])
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        x = layers.data("x", [192, 192], append_batch_size=False, dtype=dtype)
        w = layers.create_parameter([192, 192], dtype, name="w")
        outs = [layers.matmul(x, w), layers.matmul(x, w, False, True), layers.matmul(w, x, True), layers.matmul(w, x),
                layers.matmul(w, w), layers.matmul(w, w, True, True), layers.matmul(w, w, False, True)]  # fmt: skip
        exe, scope = fluid.Executor(place), fluid.Scope()
        exe.run(fluid.default_startup_program(), scope=scope)
        for seed in range(2):
            b, a = random(192, 192, dtype=dtype, seed=seed), random(192, 192, dtype=dtype, seed=seed + 7)
            scope.find_var("w").get_tensor().set(b, fluid.Place.parse(place))
            for _ in range(2):
                found = exe.run(feed={"x": a}, fetch_list=outs, scope=scope)
                p, q = a.astype("float64"), b.astype("float64")
                for mine, wanted in zip(
                    found, [p @ q, p @ q.T, q.T @ p, q @ p, q @ q, q.T @ q.T, q @ q.T], strict=True
                ):
                    close(mine, wanted, 192, dtype)


def test_a_product_of_several_unknown_sizes_is_left_to_blas_until_they_are_known() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x, y = (layers.data(name, [-1, -1], append_batch_size=False) for name in "xy")
        out = layers.relu(layers.matmul(x, y))
        exe = fluid.Executor("cpu")
        for m, k, n in ((200, 210, 220), (3, 4, 5), (200, 210, 220)):
            a, b = random(m, k), random(k, n)
            (found,) = exe.run(feed={"x": a, "y": b}, fetch_list=[out])
            close(found, np.maximum(a.astype("float64") @ b, 0), k)
            assert libraries(exe, "cpu", "matmul") == {"registers" if m > 3 else "blas"}


def step(place: str, mode: str) -> list[Array]:
    """Losses and weights of a network with momentum, whose products are large; the last step's rate is 0.05."""
    rng = np.random.default_rng(5)
    feed = {"x": rng.standard_normal((128, 200), np.float32), "label": rng.integers(0, 40, (128, 1))}
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        x, label = layers.data("x", [200]), layers.data("label", [1], dtype="int64")
        init = [fluid.ParamAttr(initializer=fluid.initializer.NumpyArrayInitializer(0.1 * random(*d, seed=9)))
                for d in ((200, 192), (192, 192))]  # fmt: skip
        y = layers.fc(x, 192, act="relu", param_attr=init[0])
        y = layers.fc(y, 192, act="tanh", param_attr=init[1]) + y
        loss = layers.mean(layers.softmax_with_cross_entropy(y[:, :40], label))
        fluid.optimizer.Momentum(0.05, 0.9).minimize(loss)
        exe, scope = fluid.Executor(place, mode=mode), fluid.Scope()
        exe.run(fluid.default_startup_program(), scope=scope)
        losses = [exe.run(feed=feed, fetch_list=[loss], scope=scope)[0] for _ in range(4)]
        return [*losses, *(scope.find_var(f"fc_{i}.w_0").get_tensor().numpy() for i in range(2))]


@pytest.mark.parametrize("place", PLACES)
def test_compiled_and_interpreted_steps_agree(place: str, require: Any) -> None:
    require(place.split(":")[0])
    for mine, theirs in zip(step(place, "compiled"), step(place, "interpreted"), strict=True):
        np.testing.assert_allclose(mine, theirs, 1e-5, 1e-6)
    for mine, theirs in zip(step(place, "compiled"), step("cpu", "interpreted"), strict=True):
        np.testing.assert_allclose(mine, theirs, 1e-4, 1e-5)


@pytest.mark.parametrize("registers", [(16, 32), (16, 16), (4, 16), (32, 128)], ids=str)
def test_other_registers(registers: tuple[int, int], with_registers: Any) -> None:
    """Of processors without AVX-512, and without AVX."""
    with_registers(registers)
    side = 170 + registers[0] + registers[1]
    a, b = random(side, 211), random(side, 181)
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x, y = (layers.data(name, list(v.shape), append_batch_size=False) for name, v in (("x", a), ("y", b)))
        out = layers.matmul(x, y, True)
        (found,) = fluid.Executor("cpu").run(feed={"x": a, "y": b}, fetch_list=[out])
    close(found, a.astype("float64").T @ b, side)


def test_products_of_other_sizes_are_written_once(with_registers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from fluidlite.kernels.language import gemm
    from fluidlite.platform.context_pool import get_context

    with_registers(get_context(devices.host()).language.registers)
    written, build = [], gemm.build
    monkeypatch.setattr(gemm, "build", lambda *args, **named: (written.append(args[1]), build(*args, **named))[1])
    for rows in (170, 230, 301):
        a, b = random(rows, 211), random(211, 181)
        with fluid.program_guard(fluid.Program(), fluid.Program()):
            x, y = (layers.data(name, list(v.shape), append_batch_size=False) for name, v in (("x", a), ("y", b)))
            (found,) = fluid.Executor("cpu").run(feed={"x": a, "y": b}, fetch_list=[layers.matmul(x, y)])
        close(found, a.astype("float64") @ b, 211)
    assert len(written) == len({*written}) == 2  # packing, and the product


def test_threads_and_rows_beside_it_change_no_bit() -> None:
    from fluidlite.platform.context_pool import get_context

    context = get_context(devices.host())
    before, results = context.threads, []
    x, w = random(301, 320), random(320, 160)

    def multiplied(rows: Array) -> Array:
        with fluid.program_guard(fluid.Program(), fluid.Program()):
            a, b = (layers.data(name, list(v.shape), append_batch_size=False) for name, v in (("a", rows), ("b", w)))
            found: Array = fluid.Executor("cpu").run(feed={"a": rows, "b": w}, fetch_list=[layers.mul(a, b)])[0]
            return found

    try:
        for threads in (1, 2):
            context.threads = threads
            results.append(multiplied(x))
    finally:
        context.threads = before
    np.testing.assert_array_equal(*results)
    np.testing.assert_array_equal(results[0][100:230], multiplied(x[100:230]))


@pytest.mark.parametrize("place", [*PLACES, "fpga:0"])
def test_no_sum_is_long(place: str, require: Any) -> None:
    """Numbers of one sign are lost when they are added one by one to what is much larger: 80 units at 20,000."""
    require(place.split(":")[0])
    count, wide = 20_000, 300
    a, b = (np.random.default_rng(k).uniform(0.9, 1.1, (2, 40, count)).astype("float32") for k in range(2))
    images, upstream = (x[:, :, : count // wide * wide].reshape(2, 40, -1, wide) for x in (a, b))
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        given = {"a": a, "b": b, "c": np.ascontiguousarray(images), "d": np.ascontiguousarray(upstream)}
        x, y, image, d = (layers.data(name, list(v.shape), append_batch_size=False) for name, v in given.items())
        w = layers.create_parameter([40, 40, 1, 1], "float32", name="w")
        product = layers.matmul(x, y, transpose_y=True)
        convolved = layers.conv2d(image, 40, 1, param_attr="w", bias_attr=False)
        (of_filter,) = fluid.gradients([layers.reduce_sum(convolved * d)], [w])
        summed = layers.matmul(layers.reshape(x, [80, count]), layers.reshape(y, [80, count]), transpose_y=True)
        exe = fluid.Executor(place)
        exe.run(fluid.default_startup_program())
        found = exe.run(feed=given, fetch_list=[product, of_filter, summed])
    wide_a, wide_b, c, e = (x.astype("float64") for x in given.values())
    wanted = (
        wide_a @ wide_b.transpose(0, 2, 1),
        np.einsum("nfhw,nchw->fc", e, c).reshape(40, 40, 1, 1),
        wide_a.reshape(80, count) @ wide_b.reshape(80, count).T,
    )
    for mine, exact in zip(found, wanted, strict=True):
        assert (np.abs(mine - exact) / np.spacing(exact.astype("float32"))).max() < 20


def test_only_packed_operands_have_a_packed_form() -> None:
    """Others would become state of their own for nothing."""
    pytest.importorskip("llvmlite")
    context, attrs = get_context(devices.host()), {"transpose_X": False, "transpose_Y": False, "alpha": 1.0}
    for rows, packed in ((8, set()), (80, {"Y"})):
        ins = {"X": (Spec.of((rows, 40), "float32"),), "Y": (Spec.of((40, 48), "float32"),)}
        call = Call(ops.get("matmul"), ins, {"Out": (Spec.of((rows, 48), "float32"),)}, attrs)
        assert set(linear_algebra.matmul.prepare(call, context).packed) == packed
