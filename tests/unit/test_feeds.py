"""What can be fed: all that NumPy converts without loss; the rest is refused at once by the name of the feed."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers as L
from fluidlite.base.errors import FeedError, ProgramError, ShapeError


def run(dtype: str, value: Any, mode: str = "compiled", dims: Any = (3,)) -> Any:
    with fluid.program_guard(fluid.Program()):
        x = L.data("x", list(dims), dtype=dtype)
        out = L.scale(x, 1.0)
        return fluid.Executor("cpu", mode=mode).run(
            fluid.default_main_program(), feed={"x": value}, fetch_list=[out], scope=fluid.Scope()
        )[0]


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
@pytest.mark.parametrize("dtype", ["int16", "int32", "int64", "float16", "float32", "float64"])
def test_byte_orders_are_converted(dtype: str, mode: str) -> None:
    value = np.asarray([[1, -2, 300], [4, 5, 6]], dtype)
    for order in "<>=":
        found = run(dtype, value.astype(value.dtype.newbyteorder(order)), mode)
        assert found.dtype == value.dtype
        np.testing.assert_array_equal(found, value)


@pytest.mark.parametrize(
    ("dtype", "given"),
    [
        ("int64", "uint32"),
        ("int64", ">u2"),
        ("int32", "uint16"),
        ("float64", "uint32"),
        ("float64", ">f4"),
        ("float32", "f2"),
    ],
)
def test_what_numpy_converts_without_loss_is_converted(dtype: str, given: str) -> None:
    found = run(dtype, np.asarray([[1, 2, 60_000]], given))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.asarray([[1, 2, 60_000]], given).astype(dtype))


class Raises:
    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no array today")


class Endless:
    """A sequence that says that it has more numbers than memory holds."""

    def __len__(self) -> int:
        return 2**60

    def __getitem__(self, at: int) -> float:
        return 1.0


FAR = np.lib.stride_tricks.as_strided(np.zeros(1, "float32"), (2**40, 3), (0, 0))
BEYOND = np.lib.stride_tricks.as_strided(np.zeros(1, "float32"), (2**50, 3), (0, 0))


@pytest.mark.parametrize(
    ("dtype", "value", "word"),
    [
        ("float32", np.ones((2, 3), "complex64"), r"complex64.*\n  Do: array\.real\.astype"),
        ("int32", np.ones((2, 3), "uint32"), r"uint32.*\n  Do: array\.astype\('int32'\)"),
        ("float32", np.ones((2, 3), "uint64"), r"uint64.*\n  Do: "),
        ("float32", np.ones((2, 3), "longdouble"), r"longdouble|float128.*\n  Do: "),
        ("int64", np.zeros((2, 3), "datetime64[s]"), r"datetime64.*\n  Do: "),
        ("float32", np.zeros((2, 3), [("a", "f4"), ("b", "i4")]), r"\('a', '<f4'\).*\n  Do: feed one of its fields"),
        ("float32", np.asarray([["a", "b", "c"]]), "expected numbers"),
        ("float32", Raises(), "cannot become an array: no array today"),
        ("float32", Endless(), "cannot become an array: MemoryError"),
        ("int64", [[2**70, 0, 0]], "integers beyond 64 bits.*expected numbers"),
        ("int64", [[None, 0, 0]], "None.*expected numbers"),
        ("int64", [["1", "2", "3"]], "texts.*expected numbers"),
        ("float32", FAR, r"no memory for a contiguous copy\n  Do: "),
        ("float64", FAR, r"no memory for a contiguous copy\n  Do: "),
        (
            "float32",
            np.lib.stride_tricks.as_strided(np.zeros(1, "float32"), (2**50, 3), (0, 0)),
            "more than 2\\*\\*47 bytes",
        ),
    ],
)
def test_refusals_name_the_feed(dtype: str, value: Any, word: str) -> None:
    began = time.process_time()
    with pytest.raises(FeedError, match=r"(?s)the feed of 'x' .*" + word) as info:
        run(dtype, value)
    assert isinstance(info.value, ValueError)
    assert time.process_time() - began < 2


def test_a_variable_is_no_feed() -> None:
    x = L.data("x", [3])
    with pytest.raises(FeedError, match=r"the feed of 'x' is the variable 'y'.*\n  Do: fetch"):
        fluid.Executor("cpu").run(feed={"x": L.data("y", [3])}, fetch_list=[x])


@pytest.mark.parametrize("scope", [{}, 0, "scope"])
def test_a_scope_is_a_scope(scope: Any) -> None:
    out = L.fill_constant([2], "float32", 1.0)
    with pytest.raises(ProgramError, match=r"scope is .*; expected a Scope\n  Do: "):
        fluid.Executor("cpu").run(fetch_list=[out], scope=scope)


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_a_parameter_of_other_dims_is_named(mode: str) -> None:
    out = L.fc(L.data("x", [3]), 4, param_attr="weight")
    executor, scope = fluid.Executor("cpu", mode=mode), fluid.Scope()
    executor.run(fluid.default_startup_program(), scope=scope)
    feed = {"x": np.ones((2, 3), "float32")}
    executor.run(feed=feed, fetch_list=[out], scope=scope)
    scope.var("weight").get_tensor().set(np.ones((5, 4), "float32"), "cpu")
    expected = r"Y is 'weight': the scope holds float32\[5, 4\], the program declares float32\[3, 4\]"
    with pytest.raises(ShapeError, match=expected):
        executor.run(feed=feed, fetch_list=[out], scope=scope)


@pytest.mark.parametrize("shape", [[2**70], [2**30, 2**30], [1] * 64, [0, 2**60]])
def test_dims_that_no_memory_holds_are_refused(shape: list[int]) -> None:
    with pytest.raises(ShapeError, match="'q' has "):
        L.data("q", shape)


def test_a_plain_array_imports_nothing_of_numpy() -> None:
    """``numpy.ma`` and the like are imported when they are first named, which takes longer than the first run."""
    program = """
import sys
import numpy as np
import fluidlite as fluid

out = fluid.layers.relu(fluid.layers.data("x", [3]))
executor, feed = fluid.Executor("cpu"), {"x": np.ones((2, 3), "float32")}
before = set(sys.modules)
executor.run(feed=feed, fetch_list=[out])
print(*[name for name in set(sys.modules) - before if name.startswith("numpy")])
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
