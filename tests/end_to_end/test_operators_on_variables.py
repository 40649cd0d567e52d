"""Python operators between variables and numbers, from both sides, on every place."""

from __future__ import annotations

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.base.errors import DtypeError, ProgramError

X = np.array([[1, 2, 3], [4, 5, 6]], "float32")
I = np.array([[1, -2, 3], [4, 5, 7]], "int64")  # noqa: E741  the mathematics' name


@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
def test_numbers_on_either_side(place: str) -> None:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        x = layers.data("x", [3])
        i = layers.data("i", [3], dtype="int64")
        rows = layers.reduce_sum(x, dim=1)
        cases = [
            (0.5 * x, 0.5 * X), (x * 0.5, 0.5 * X), (1.5 - x, 1.5 - X), (x - 1.5, X - 1.5),
            (2 / x, 2 / X), (x / 2, X / 2),
            (0.5 + x, 0.5 + X), (2.5**x, 2.5**X), (x**2, X**2), (np.float32(0.5) * x, 0.5 * X), (-x, -X),
            (i % 3, np.fmod(I, 3)), (i // 3, np.trunc(I / 3)),  # toward 0, as in Fluid 1.8
            (i + 2, I + 2), (2 - i, 2 - I), (x > 2.5, X > 2.5),
            (x / rows, X / X.sum(1, keepdims=True)),
        ]  # fmt: skip
    fetched = fluid.Executor(place, fallback="allow").run(program, {"x": X, "i": I}, [made for made, _ in cases])
    for number, (got, (_, expected)) in enumerate(zip(fetched, cases, strict=True)):
        np.testing.assert_allclose(got, expected, rtol=1e-5, err_msg=f"case {number}")


def test_what_has_no_values_yet_says_so() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = layers.data("x", [3])
        with pytest.raises(TypeError, match="cannot be iterated"):
            list(x)
        with pytest.raises(TypeError, match="no truth value"):
            bool(x > 0)
        with pytest.raises(TypeError, match="no values"):
            np.asarray(x)
        assert len(list(x[0])) == 3
        i = layers.data("i", [3], dtype="int64")
        with pytest.raises(ProgramError, match="no integer is nan"):
            i * float("nan")


def test_numbers_that_truth_values_are_not() -> None:
    """Half was taken for True, and so no truth value was greater."""
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        truth = layers.data("truth", [3], dtype="bool")
        for compared in (lambda: truth > 0.5, lambda: truth < 2, lambda: truth >= float("nan")):
            with pytest.raises(ProgramError, match="no bool is"):
                compared()
        assert (truth > 0).dtype == (truth <= True).dtype == "bool"


@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
def test_equality_is_of_elements(place: str) -> None:
    """It was Python's, so that ``x * (label != 0)`` was x."""
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        x, i = layers.data("x", [3]), layers.data("i", [3], dtype="int64")
        rows = layers.reduce_max(x, dim=1)
        cases = [
            (i == 4, I == 4), (i != 4, I != 4), (np.int64(4) != i, I != 4), (x == i.astype("float32"), X == I),
            (x != rows, X.max(1, keepdims=True) != X), (x * (i != -2), X * (I != -2)),
        ]  # fmt: skip
        assert all(made.dtype == "bool" for made, _ in cases[:5])
        assert {x: 1, i: 2}[x] == 1 and len({x, i, x}) == 2 and [x, i].index(x) == 0
        assert (x == None, x != None, x == "x", x in (None, x)) == (False, True, False, True)  # noqa: E711  as scripts ask
        told = "whether a list has a variable is told by `is`, or by names"
        with pytest.raises(TypeError, match=told):
            x in [x * 2.0]  # noqa: B015
        for other in (rows, i):
            with pytest.raises(fluid.FluidError) as refused:
                x in [other]  # noqa: B015
            assert told in refused.value.__notes__[0]
    fetched = fluid.Executor(place, fallback="allow").run(program, {"x": X, "i": I}, [made for made, _ in cases])
    for number, (got, (_, expected)) in enumerate(zip(fetched, cases, strict=True)):
        np.testing.assert_array_equal(got, expected, err_msg=f"case {number}")


@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
def test_the_right_side_takes_the_dtype_of_the_left(place: str) -> None:
    """As in Fluid, but for what cannot hold it: a float is no integer, and a number no truth value."""
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x, i = layers.data("x", [3]), layers.data("i", [3], dtype="int64")
        short, wide, truth = i.astype("int32"), x.astype("float64"), x > 2.5
        x.stop_gradient = wide.stop_gradient = False
        cases = [
            (x * i, X * I), (x + truth, X + (X > 2.5)), (i * truth, I * (X > 2.5)), (x - wide, X - X),
            (i + short, I + I), (short - i, I - I), (x > i, X > I), (x == short, X == I),
        ]  # fmt: skip
        assert [made.dtype for made, _ in cases] == [
            "float32", "float32", "int64", "float32", "int64", "int32", "bool", "bool",
        ]  # fmt: skip
        gradients = fluid.gradients([layers.reduce_sum(x * i * wide)], [x])
        for refused in (lambda: i * x, lambda: truth == i, lambda: truth == x, lambda: i > x):
            with pytest.raises(DtypeError, match="cast one of them"):
                refused()
        fetched = fluid.Executor(place, fallback="allow").run(
            feed={"x": X, "i": I}, fetch_list=[made for made, _ in cases] + gradients
        )
    for number, (got, (_, expected)) in enumerate(zip(fetched, cases, strict=False)):
        np.testing.assert_allclose(got, expected, rtol=1e-5, err_msg=f"case {number}")
    np.testing.assert_allclose(fetched[-1], 2 * X * I, rtol=1e-5)


def test_a_variable_in_place_of_a_number_is_refused() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x, image = layers.data("x", [3]), layers.data("image", [3, 8, 8])
        for argument, build in (
            ("num_flatten_dims", lambda: layers.fc(x, 3, num_flatten_dims=x)),
            ("pool_size", lambda: layers.pool2d(image, x)),
            ("axis", lambda: layers.softmax(x, axis=x)),
        ):
            with pytest.raises(fluid.FluidError, match=f"'{argument}'"):
                build()
