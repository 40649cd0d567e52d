"""Tensor arrays on every place, compiled and interpreted, against plain float64 NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import errors, layers
from fluidlite.tensor.tensor_array import TensorArray

MODES = ("interpreted", "compiled")
PLACES = [(kind, mode) for kind in ("cpu", "opencl", "fpga") for mode in MODES]
pytestmark = pytest.mark.filterwarnings("ignore::fluidlite.errors.FallbackWarning")
X = np.random.default_rng(4).uniform(0.5, 1.2, (2, 3)).astype(np.float32)
D = X.astype(np.float64)


@pytest.fixture(params=PLACES, ids="-".join)
def exe(request: pytest.FixtureRequest, require: Callable[..., None]) -> fluid.Executor:
    kind, mode = request.param
    require(kind)
    return fluid.Executor(kind, mode=mode)


@pytest.fixture(params=MODES)
def cpu(request: pytest.FixtureRequest) -> fluid.Executor:
    return fluid.Executor("cpu", mode=request.param)


def fed(name: str, dims: list[int], dtype: str = "float32", **options: Any) -> Any:
    made = layers.data(name, dims, dtype=dtype, append_batch_size=False, **options)
    made.stop_gradient = dtype != "float32"
    return made


def number(value: int) -> Any:
    return layers.fill_constant([1], "int64", value)


def count(n: int) -> Any:
    return np.array([n], np.int64)


def powers(x: Any, n: Any) -> tuple[Any, Any]:
    """The powers of x, 1 to n + 1, in an array that a loop writes and reads; and the last index."""
    i = number(0)
    array = layers.array_write(x, i)
    more = layers.less_than(i, n)
    with layers.While(more).block():
        before = layers.array_read(array, i)
        layers.increment(i)
        layers.array_write(before * x, i, array)
        layers.less_than(i, n, cond=more)
    return array, i


# In loops


def test_an_array_grows_in_a_loop_and_gradients_flow_back_through_it(exe: fluid.Executor) -> None:
    x, n = fed("x", [2, 3]), fed("n", [1], "int64")
    array, i = powers(x, n)
    last, length = layers.array_read(array, i), layers.array_length(array)
    whole, sizes = layers.tensor_array_to_tensor(array, axis=0)
    wide, _ = layers.tensor_array_to_tensor(array, axis=1)
    stacked, ones = layers.tensor_array_to_tensor(array, axis=1, use_stack=True)
    loss = layers.reduce_sum(last) + layers.reduce_sum(whole * wide[0, 0]) + layers.reduce_sum(stacked * stacked)
    (dx,) = fluid.gradients(loss, x)
    for steps in (0, 1, 3, 0):
        found = exe.run(
            feed={"x": X, "n": count(steps)}, fetch_list=[last, length, whole, wide, stacked, sizes, ones, dx, array]
        )
        each = [D ** (k + 1) for k in range(steps + 1)]
        np.testing.assert_allclose(found[0], each[-1], rtol=1e-5)
        assert found[1].tolist() == [steps + 1]
        np.testing.assert_allclose(found[2], np.concatenate(each), rtol=1e-5)
        np.testing.assert_allclose(found[3], np.concatenate(each, 1), rtol=1e-5)
        np.testing.assert_allclose(found[4], np.stack(each, 1), rtol=1e-5)
        assert found[5].tolist() == [2] * (steps + 1) and found[6].tolist() == [3] * (steps + 1)
        slope = (steps + 1) * D**steps
        for k in range(1, steps + 2):
            slope = slope + D[0, 0] * k * D ** (k - 1) + 2 * k * D ** (2 * k - 1)
        slope[0, 0] += sum(value.sum() for value in each)
        np.testing.assert_allclose(found[7], slope, rtol=1e-4)
        assert len(found[8]) == steps + 1
        np.testing.assert_allclose(found[8], each, rtol=1e-5)


def test_a_gradient_through_a_hundred_steps(cpu: fluid.Executor) -> None:
    x, n = fed("x", [2, 3]), fed("n", [1], "int64")
    array, i = powers(x, n)
    (dx,) = fluid.gradients(layers.reduce_sum(layers.array_read(array, i)), x)
    (found,) = cpu.run(feed={"x": X, "n": count(99)}, fetch_list=[dx])
    np.testing.assert_allclose(found, 100 * D**99, rtol=1e-3)


def test_while_loop_takes_arrays_among_its_variables(exe: fluid.Executor) -> None:
    x, n = fed("x", [2, 3]), fed("n", [1], "int64")
    start = layers.array_write(x * 2.0, number(0))

    def body(i: Any, array: Any, held: Any) -> list[Any]:
        value = held * x
        return [i + 1, layers.array_write(value, i + 1, array), value]

    _, array, _ = layers.while_loop(lambda i, *_: layers.less_than(i, n), body, [number(0), start, x])
    whole, _ = layers.tensor_array_to_tensor(array, axis=0, use_stack=True)
    (dx,) = fluid.gradients(layers.reduce_sum(whole), x)
    for steps in (0, 2):
        found = exe.run(feed={"x": X, "n": count(steps)}, fetch_list=[whole, dx, start])
        expected = [2 * D, *(D ** (k + 2) for k in range(steps))]
        np.testing.assert_allclose(found[0], expected, rtol=1e-5)
        np.testing.assert_allclose(found[1], 2 + sum((k + 2) * D ** (k + 1) for k in range(steps)), rtol=1e-5)
        assert len(found[2]) == 1, "the array that was given is as it was"


def test_a_branch_makes_an_array(exe: fluid.Executor) -> None:
    x, go = fed("x", [2, 3]), fed("go", [1], "bool")
    given = layers.array_write(x, number(0))

    def longer() -> Any:
        return layers.array_write(x * x, number(1), layers.assign(given))

    array = layers.cond(go, longer, lambda: given)
    whole, _ = layers.tensor_array_to_tensor(array, axis=0)
    (dx,) = fluid.gradients(layers.reduce_sum(whole), x)
    for on in (True, False):
        found = exe.run(feed={"x": X, "go": np.array([on])}, fetch_list=[whole, dx, layers.array_length(given)])
        np.testing.assert_allclose(found[0], np.concatenate([D, D * D]) if on else D, rtol=1e-6)
        np.testing.assert_allclose(found[1], 1 + 2 * D if on else np.ones((2, 3)), rtol=1e-6)
        assert found[2].tolist() == [1]


def test_elements_of_other_dims_and_with_lod(exe: fluid.Executor) -> None:
    """An element is [rows, 3] with as many rows as the step says; readers see its dims, and its LoD."""
    x = fed("x", [-1, 3], lod_level=1)
    n = fed("n", [1], "int64")
    i, array = number(0), layers.create_array("float32")
    totals = layers.create_array("float32")
    more = layers.less_than(i, n)
    with layers.While(more).block():
        rows = layers.sequence_pool(x, "sum")
        layers.array_write(layers.cond(layers.less_than(i, number(1)), lambda: x * 2.0, lambda: rows), i, totals)
        layers.array_write(x, i, array)
        layers.increment(i)
        layers.less_than(i, n, cond=more)
    element = layers.array_read(array, number(1))
    pooled = layers.sequence_pool(element, "sum")
    joined, sizes = layers.tensor_array_to_tensor(totals, axis=0)
    data = fluid.create_lod_tensor(np.arange(12, dtype=np.float32).reshape(4, 3), [[1, 3]], "cpu")
    found = exe.run(feed={"x": data, "n": count(2)}, fetch_list=[element, pooled, joined, sizes, array],
                    return_numpy=False)  # fmt: skip
    rows = np.arange(12, dtype=np.float64).reshape(4, 3)
    sums = np.stack([rows[0], rows[1:].sum(0)])
    assert found[0].recursive_sequence_lengths() == [[1, 3]]
    np.testing.assert_array_equal(np.asarray(found[0]), rows)
    np.testing.assert_allclose(np.asarray(found[1]), sums)
    np.testing.assert_allclose(np.asarray(found[2]), np.concatenate([rows * 2, sums]))
    assert np.asarray(found[3]).tolist() == [4, 2]
    assert isinstance(found[4], fluid.LoDTensorArray) and [e.lod() for e in found[4]] == [[[0, 1, 4]]] * 2
    with pytest.raises(fluid.FluidError, match="return_numpy=False"):
        exe.run(feed={"x": data, "n": count(2)}, fetch_list=[array])


# Without loops


def test_writes_one_after_another_and_their_gradients(exe: fluid.Executor) -> None:
    """The index is changed in place between the writes; one element is written twice, one never."""
    x, y = fed("x", [2, 3]), fed("y", [2, 3])
    i = number(0)
    array = layers.array_write(x * 2.0, i)
    layers.increment(i)
    layers.array_write(x * y, i, array)
    first = layers.array_read(array, number(0))
    layers.array_write(y * 3.0, number(0), array)
    layers.array_write(y, number(3), array)
    second = layers.array_read(array, number(0))
    third = layers.array_read(array, i)
    loss = layers.reduce_sum(first * y) + layers.reduce_sum(second) + layers.reduce_sum(third)
    dx, dy = fluid.gradients(loss, [x, y])
    length = layers.array_length(array)
    found = exe.run(feed={"x": X, "y": X + 1}, fetch_list=[first, second, third, length, dx, dy])
    other = D + 1
    for value, expected in zip(found, (2 * D, 3 * other, D * other, [4], 3 * other, 3 * D + 3), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5)


def test_an_element_does_not_change_with_what_was_written_or_read(exe: fluid.Executor) -> None:
    x = fed("x", [1])
    held = layers.create_global_var([1], 0.0, "float32", persistable=True)
    layers.assign(x, output=held)
    array = layers.array_write(held, number(0))
    layers.array_write(x, number(1), array)
    layers.increment(held)
    read = layers.array_read(array, number(0))
    layers.increment(read)
    layers.array_write(read, number(2), array)
    layers.increment(read)
    exe.run(fluid.default_startup_program())
    for value in (5.0, 6.0, 5.0):
        found = exe.run(feed={"x": np.float32([value])}, fetch_list=[array, read, held])
        assert [float(each[0]) for each in found[0]] == [value, value, value + 1]
        assert [float(each[0]) for each in found[1:]] == [value + 2, value + 1]


def test_arrays_of_integers_and_ones_that_a_block_declares(cpu: fluid.Executor) -> None:
    n = fed("n", [1], "int64")
    block = fluid.default_main_program().global_block()
    array = block.create_var(name="ids", type=fluid.core.VarDesc.VarType.LOD_TENSOR_ARRAY, dtype="int64")
    i = number(0)
    more = layers.less_than(i, n)
    with layers.While(more).block():
        layers.array_write(i * i, i, array=array)
        layers.increment(i)
        layers.less_than(i, n, cond=more)
    for steps in (3, 0):
        (found,) = cpu.run(feed={"n": count(steps)}, fetch_list=[array])
        assert [int(each[0]) for each in found] == [0, 1, 4][:steps]


def test_an_array_in_the_scope_stays_from_run_to_run(cpu: fluid.Executor) -> None:
    x = fed("x", [1])
    block = fluid.default_main_program().global_block()
    array = block.create_var(name="log", type="tensor_array", dtype="float32", persistable=True)
    scope = fluid.global_scope()
    scope.var("log").get_lod_tensor_array()
    with fluid.program_guard(start := fluid.Program(), fluid.Program()):
        start.global_block().create_var(name="log", type="tensor_array", dtype="float32", persistable=True)
        start.global_block().append_op("create_tensor_array", {}, {"Out": "log"}, {"dtype": "float32"})
    cpu.run(start)
    layers.array_write(x, layers.array_length(array), array)
    for value in (1.0, 2.0, 3.0):
        cpu.run(feed={"x": np.float32([value])}, fetch_list=[])
    held = scope.find_var("log").get_lod_tensor_array()
    assert [float(np.asarray(each)[0]) for each in held] == [1.0, 2.0, 3.0]


def test_programs_with_arrays_are_copied_saved_and_pruned(cpu: fluid.Executor) -> None:
    x, n = fed("x", [2, 3]), fed("n", [1], "int64")
    array, i = powers(x, n)
    last = layers.array_read(array, i)
    layers.array_write(last, number(7))
    main = fluid.default_main_program()
    for program in (main.clone(), fluid.Program.from_json(main.to_json())):
        (found,) = cpu.run(program, feed={"x": X, "n": count(2)}, fetch_list=[last.name])
        np.testing.assert_allclose(found, D**3, rtol=1e-5)
        assert program.global_block().var(array.name).is_array
    cpu.run(feed={"x": X, "n": count(2)}, fetch_list=[last])
    assert cpu._runner.last is not None
    types = [line.op.type for line in cpu._runner.last.lines]
    assert (types.count("write_to_array"), types.count("while")) == (1, 1), "what nobody reads is not written"


def test_the_array_object_of_fluid() -> None:
    array = fluid.LoDTensorArray()
    one = fluid.Tensor().set(np.ones((2, 3), np.float32), "cpu")
    array.append(one)
    other = array.with_element(1, one)
    assert (len(array), len(other), array.element(0) is one) == (1, 2, True)
    again = array.with_element(1, None).with_element(0, None)
    assert (again.elements(), array.elements()) == ([None, None], [one])
    with pytest.raises(fluid.FluidError, match="dtype float32"):
        array.append(fluid.Tensor().set(np.ones((2, 3)), "cpu"))
    with pytest.raises(fluid.FluidError, match="a Tensor"):
        array.append(np.ones(3))
    with pytest.raises(fluid.FluidError, match="no tensor"):
        np.asarray(array)


# Errors


def refused(make: Callable[[], Any], *words: str) -> None:
    with pytest.raises(fluid.FluidError) as caught:
        make()
    for word in (*words, "test_tensor_arrays.py"):
        assert word in str(caught.value), (word, str(caught.value))


def test_indices_that_are_not_there(exe: fluid.Executor) -> None:
    x, i = fed("x", [2, 3]), fed("i", [1], "int64")
    array = layers.array_write(x, number(0))
    layers.array_write(x, number(2), array)
    read = layers.array_read(array, i)
    for index, word in ((3, "3 element(s)"), (-1, "index -1"), (1, "never written")):
        with pytest.raises(errors.OutOfRangeError) as caught:
            exe.run(feed={"x": X, "i": count(index)}, fetch_list=[read])
        for each in (word, "read_from_array", "test_tensor_arrays.py", array.name):
            assert each in str(caught.value)
    assert exe.run(feed={"x": X, "i": count(2)}, fetch_list=[read])[0].tolist() == X.tolist()
    whole, _ = layers.tensor_array_to_tensor(array, axis=0)
    with pytest.raises(errors.OutOfRangeError, match="never written"):
        exe.run(feed={"x": X, "i": count(2)}, fetch_list=[whole])
    written = layers.array_write(x, i)
    for index in (-2, 1 << 40):
        with pytest.raises(errors.OutOfRangeError, match=f"index {index}"):
            exe.run(feed={"x": X, "i": count(index)}, fetch_list=[written])


def test_what_does_not_fit_an_array_is_refused() -> None:
    x, i = fed("x", [2, 3]), number(0)
    array = layers.array_write(x, i)
    refused(lambda: layers.array_write(layers.cast(x, "float64"), i, array), "X", "float32", "write_to_array")
    refused(lambda: layers.array_write(layers.reshape(x, [6]), i, array), "X", "rank 2")
    refused(lambda: layers.array_write(layers.reshape(x, [6]), x, array), "'i'", "int64")
    refused(lambda: layers.array_write(x, i, x), "'array'", "create_array")
    refused(lambda: layers.array_write(array, i), "X", "a tensor")
    refused(lambda: layers.array_read(x, i), "'array'", "create_array")
    refused(lambda: layers.array_read(layers.create_array("float32"), i), "nothing is written")
    refused(lambda: layers.array_length(x), "'array'")
    refused(lambda: layers.tensor_array_to_tensor(x), "'input'")
    refused(lambda: layers.tensor_array_to_tensor(array, axis=3), "axis")
    refused(lambda: layers.relu(array), "relu", "X", "tensor_array", "array_read")
    refused(lambda: array + 1.0, "array_read")
    refused(lambda: layers.concat([x, array]), "concat", "array_read")
    block = fluid.default_main_program().global_block()
    refused(lambda: block.append_op("write_to_array", {"X": x, "I": i}, {"Out": array}), "'Array'", "create_array")
    refused(lambda: layers.fill_constant([1], "int64", 0) and block.append_op(
        "lod_array_length", {"X": x}, {"Out": block.create_var()}), "lod_array_length", "a tensor array")  # fmt: skip
    with pytest.raises(fluid.FluidError, match="tensor array"):
        fluid.gradients(array, x)


def test_elements_that_do_not_fit_one_tensor(cpu: fluid.Executor) -> None:
    x, y = fed("x", [-1, 3]), fed("y", [-1, 3])
    array = layers.array_write(x, number(0))
    layers.array_write(y, number(1), array)
    wide, _ = layers.tensor_array_to_tensor(array, axis=1)
    (found,) = cpu.run(feed={"x": X, "y": X}, fetch_list=[wide])
    assert found.shape == (2, 6)
    with pytest.raises(errors.ShapeError, match=r"\[2, 3\], \[1, 3\]"):
        cpu.run(feed={"x": X, "y": X[:1]}, fetch_list=[wide])


def test_unequal_parts_along_a_later_axis_and_their_gradient(cpu: fluid.Executor) -> None:
    x, n = fed("x", [2, -1]), fed("n", [1], "int64")
    array = layers.array_write(x, number(0))
    i = number(0)
    more = layers.less_than(i, n)
    with layers.While(more).block():
        before = layers.array_read(array, i)
        layers.increment(i)
        layers.array_write(layers.concat([before, x * 2.0], axis=1), i, array)
        layers.less_than(i, n, cond=more)
    whole, sizes = layers.tensor_array_to_tensor(array, axis=-1)
    loss = layers.reduce_sum(whole * whole)
    (dx,) = fluid.gradients(loss, x)
    steps = 9
    found = cpu.run(feed={"x": X, "n": count(steps)}, fetch_list=[whole, sizes, dx])
    parts, slope = [D], 2 * D
    for k in range(steps):
        parts.append(np.concatenate([parts[-1], 2 * D], 1))
        slope = slope + 2 * D + 8 * D * (k + 1)
    np.testing.assert_allclose(found[0], np.concatenate(parts, 1), rtol=1e-6)
    assert found[1].tolist() == [3 * (k + 1) for k in range(steps + 1)]
    np.testing.assert_allclose(found[2], slope, rtol=1e-5)


def test_an_array_is_a_value() -> None:
    one = TensorArray()
    assert len(one) == 0 and one.spec is not None and one.spec.is_static


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_gradients_of_arrays_that_a_branch_in_a_loop_may_write(exe: fluid.Executor, writes: int) -> None:
    """Where the branch does not run, the array passes through it as it is; s adds A[0] 4 times, and the branch writes
    A[1] = 10 x in the first iterations.
    """
    x = fed("x", [3])
    array = layers.array_write(x, number(0))
    array = layers.array_write(layers.scale(x, 5.0), number(1), array=array)
    total = layers.fill_constant([3], "float32", 0.0)
    total.stop_gradient = False
    i, n = number(0), number(4)
    condition = layers.less_than(i, n)
    with layers.While(condition).block():
        layers.assign(layers.elementwise_add(total, layers.array_read(array, number(0))), output=total)
        with layers.ConditionalBlock([layers.less_than(i, number(writes))], is_scalar_condition=True).block():
            layers.array_write(layers.scale(x, 10.0), number(1), array=array)
        layers.increment(i)
        layers.less_than(i, n, cond=condition)
    loss = layers.reduce_sum(layers.elementwise_add(total, layers.array_read(array, number(1))))
    (gradient,) = fluid.gradients(loss, x)
    found, by_x = exe.run(feed={"x": np.ones(3, "float32")}, fetch_list=[loss, gradient])
    slope = 4 + (10 if writes else 5)
    np.testing.assert_allclose(found, [3 * slope])
    np.testing.assert_allclose(by_x, [slope] * 3)
