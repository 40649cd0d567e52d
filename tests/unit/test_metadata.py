"""What operators say of their outputs: dims of empty batches and of rank 0, joined sequences, numbers of a dtype."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers as L
from fluidlite.base.errors import AttributeValueError, ShapeError

MODES = ("compiled", "interpreted")


@pytest.fixture(autouse=True)
def program() -> Iterator[None]:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        yield


@pytest.fixture(params=["cpu", "opencl:0", "fpga:0"])
def place(request: pytest.FixtureRequest, require: Any) -> str:
    name: str = request.param
    require(name.split(":")[0])
    return name


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("dims", "shape", "expected"),
    [
        ([7, 8], [0, -1], (0, 56)),
        ([7, 8], [0, 0, 2, -1], (0, 7, 2, 4)),
        ([7, 8], [-1, 8], (0, 8)),
        ([4], [0, 2, 2], (0, 2, 2)),
    ],
)
def test_an_empty_batch_is_reshaped_as_the_program_says(
    place: str, mode: str, dims: list[int], shape: list[int], expected: tuple[int, ...]
) -> None:
    x = L.data("x", dims)
    out = L.reshape(x, shape)
    assert all(d in (-1, e) for d, e in zip(out.shape, expected, strict=True))
    (found,) = fluid.Executor(place, mode=mode).run(feed={"x": np.zeros((0, *dims), "float32")}, fetch_list=[out])
    assert found.shape == expected
    (found,) = fluid.Executor(place, mode=mode).run(feed={"x": np.zeros((3, *dims), "float32")}, fetch_list=[out])
    assert found.size == 3 * np.prod(dims)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("layer", "dims"),
    [
        ("elementwise_add", [1]),
        ("elementwise_sub", [1, 1]),
        ("elementwise_pow", [1, 1, 1]),
        ("elementwise_max", [2, 3]),
    ],
)
def test_rank_0_broadcasts_from_both_sides(place: str, mode: str, layer: str, dims: list[int]) -> None:
    scalar = L.fill_constant([], "float32", 3.0)
    other = L.fill_constant(dims, "float32", 2.0)
    outs = [getattr(L, layer)(scalar, other), getattr(L, layer)(other, scalar)]
    assert [tuple(out.shape) for out in outs] == [tuple(dims)] * 2
    found = fluid.Executor(place, mode=mode).run(fetch_list=outs)
    assert [each.shape for each in found] == [tuple(dims)] * 2


@pytest.mark.parametrize("mode", MODES)
def test_rank_0_and_python_numbers_stay_rank_0(mode: str) -> None:
    x = L.fill_constant([], "float32", 3.0)
    outs = [x + 1.0, 1.0 - x, x * 2, x**2.0, 2.0**x, 6.0 / x]
    found = fluid.Executor("cpu", mode=mode).run(fetch_list=outs)
    assert [each.shape for each in found] == [()] * len(outs)
    np.testing.assert_allclose(np.ravel(found), [4, -2, 6, 9, 8, 2], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64"])
def test_numbers_beyond_a_dtype_are_refused_and_its_ends_are_not(dtype: str) -> None:
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    block = fluid.default_main_program().global_block()
    like = L.data("x", [2], dtype=dtype)
    ops: list[tuple[str, Any, Any]] = [
        ("fill_constant", {}, {"shape": [2], "dtype": dtype}),
        ("fill_constant_batch_size_like", {"Input": like}, {"shape": [-1, 2], "dtype": dtype}),
        ("fill_any_like", {"X": like}, {}),
        ("fill_any_like", {"X": like}, {"dtype": dtype}),
    ]
    for type, inputs, attrs in ops:
        for value in (2.0 * high + 2, float(low) * 2 - 2, float("nan"), float("inf"), -1e30):
            with pytest.raises(AttributeValueError, match=r"value.*expected a number from"):
                block.append_op(type, inputs, {"Out": block.create_var()}, {**attrs, "value": value})
        for value in (float(low), 0.0, 7.9):
            block.append_op(type, inputs, {"Out": block.create_var()}, {**attrs, "value": value})
    for text in (str(high + 1), str(low - 1), "nan", "1e400"):
        with pytest.raises(AttributeValueError, match=r"str_value.*expected a number from"):
            block.append_op(
                "fill_constant", {}, {"Out": block.create_var()}, {"shape": [1], "dtype": dtype, "str_value": text}
            )
    out = block.create_var()
    block.append_op("fill_constant", {}, {"Out": out}, {"shape": [1], "dtype": dtype, "str_value": str(high)})
    assert fluid.Executor("cpu").run(feed={"x": np.zeros((1, 2), dtype)}, fetch_list=[out])[0][0] == high
    with pytest.raises(AttributeValueError, match="expected numbers from"):
        block.append_op(
            "fill", {}, {"Out": block.create_var()}, {"shape": [1], "dtype": dtype, "value": [2.0 * high + 2]}
        )


@pytest.mark.parametrize("mode", MODES)
def test_concat_joins_sequences(place: str, mode: str) -> None:
    x, y = (L.data(name, [2], lod_level=1) for name in "xy")
    rows, columns = L.concat([x, y], axis=0), L.concat([x, x], axis=1)
    assert (rows.lod_level, columns.lod_level) == (1, 1)
    feed = {
        "x": fluid.create_lod_tensor(np.arange(6, dtype="float32").reshape(3, 2), [[1, 2]], "cpu"),
        "y": fluid.create_lod_tensor(np.arange(8, dtype="float32").reshape(4, 2), [[0, 4]], "cpu"),
    }
    first, second = fluid.Executor(place, mode=mode).run(feed=feed, fetch_list=[rows, columns], return_numpy=False)
    assert first.recursive_sequence_lengths() == [[1, 2, 0, 4]]
    assert second.recursive_sequence_lengths() == [[1, 2]]


def test_concat_of_sequences_and_plain_rows_is_refused() -> None:
    x, y = L.data("x", [2], lod_level=1), L.data("y", [2])
    with pytest.raises(ShapeError, match=r"as many LoD levels in each.*\n  Do: "):
        L.concat([x, y], axis=0)


# Python's numbers beside integers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
@pytest.mark.parametrize("number", [0.5, -1.5, float("nan"), float("inf"), 1e30, 2**70, 10**400])
def test_no_integer_is_such_a_number(dtype: str, number: float) -> None:
    """A fraction would be cut off: x < 5.5 would be false of 5."""
    x = fluid.layers.data("x", [2], dtype=dtype, append_batch_size=False)
    refused = (fluid.errors.ProgramError, fluid.errors.AttributeValueError)
    for operation in (x.__add__, x.__rsub__, x.__mul__, x.__truediv__, x.__lt__, x.__ge__):
        with pytest.raises(refused, match=r"Do:|beyond all dtypes"):
            operation(number)


@pytest.mark.parametrize(
    ("dtype", "number"), [("int64", 2**53 + 1), ("int64", -(2**60) - 1), ("uint8", 3), ("int8", -3)]
)
def test_numbers_beside_integers_are_exact(dtype: str, number: int) -> None:
    """Those too that no float64 holds, and differences of numbers without a sign."""
    value = np.asarray([5, 7], dtype)
    x = fluid.layers.data("x", [2], dtype=dtype, append_batch_size=False)
    found = [x + number, x - number, number - x, x * number, x < number, x >= number]
    got = fluid.Executor("cpu").run(fluid.default_main_program(), {"x": value}, found)
    with np.errstate(over="ignore"):
        y = np.asarray([number], dtype)
        for mine, exact in zip(got, [value + y, value - y, y - value, value * y, value < y, value >= y], strict=True):
            np.testing.assert_array_equal(mine, exact)
