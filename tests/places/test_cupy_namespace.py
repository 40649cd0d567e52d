"""What kernels and generated code ask of CuPy, without a GPU.

A device runs every operator's samples in CuPy's style, which no other device has (functions take a place for their
result, and reading a value would cost a synchronisation): NumPy computes, and writes down how each function of the
namespace is called. Then each of these calls must fit the function of that name in CuPy's namespace.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.platform.cpu import CPUDevice, NumPyArrays
from fluidlite.platform.cuda.array import WITH_PLACE, namespace
from fluidlite.platform.devices import devices
from fluidlite.plugin import DeviceInfo
from fluidlite.testing import Check, checks

PLACE = fluid.Place("recording")
EXTRAS = ("erf", "scatter_add", "take_along_axis", "put_along_axis", "from_dlpack")
UFUNC = {"out", "where", "axes", "axis", "keepdims", "casting", "dtype", "order"}
REDUCE = ("array", "axis", "dtype", "out", "keepdims")

Use = tuple[str, int, tuple[str, ...]]
"""A function, how many arguments came by position, and which came by name."""


class Recorder:
    """NumPy's functions, which note their calls."""

    def __init__(self) -> None:
        self.uses: set[Use] = set()

    def __getattr__(self, name: str) -> Any:
        value = getattr(np, name)
        if isinstance(value, type) or not callable(value):
            return value

        @functools.wraps(value)
        def function(*args: Any, **options: Any) -> Any:
            self.uses.add((name, len(args), tuple(sorted(options))))
            return value(*args, **options)

        if isinstance(value, np.ufunc):
            function.reduce = self._reduce(name, value)  # type: ignore[attr-defined]
        return function

    def _reduce(self, name: str, ufunc: np.ufunc) -> Any:
        def reduce(*args: Any, **options: Any) -> Any:
            self.uses.add((f"{name}.reduce", len(args), tuple(sorted(options))))
            return ufunc.reduce(*args, **options)

        return reduce


class Arrays(NumPyArrays):
    eager = False

    def __init__(self, recorder: Recorder) -> None:
        self.xp = recorder  # type: ignore[assignment]

    def extra(self, name: str) -> Any:
        return super().extra(name) if name in EXTRAS else None


class Device(CPUDevice):
    kind = "recording"

    def __init__(self) -> None:
        self.recorder = Recorder()

    def info(self, index: int) -> DeviceInfo:
        return DeviceInfo(name="NumPy, taking notes", alignment=64)

    def array(self, index: int) -> Arrays:
        return Arrays(self.recorder)


@pytest.fixture(scope="module")
def recorder() -> Iterator[Recorder]:
    fluid.places()
    device = Device()
    devices.add(device, __file__)
    before = fluid.get_fallback()
    fluid.set_fallback("error")
    yield device.recorder
    fluid.set_fallback(before)
    devices.remove(device)


@pytest.mark.parametrize("check", [pytest.param(c, id=c.id) for c in checks() if not c.id.startswith("device[")])
def test_conforms(check: Check, recorder: Recorder) -> None:
    check(PLACE)


def fits(function: Any, name: str, count: int, options: tuple[str, ...]) -> str:
    """Why a call does not fit a function, or ""."""
    if name.endswith(".reduce"):
        return "" if count <= len(REDUCE) and set(options) <= set(REDUCE[count:]) else "reduce takes others"
    if hasattr(function, "nin"):
        if not function.nin <= count <= function.nin + function.nout:
            return f"it takes {function.nin} arrays and a place"
        return "" if set(options) <= UFUNC else f"it takes {sorted(UFUNC)}"
    try:
        inspect.signature(function).bind(*(None,) * count, **dict.fromkeys(options))
    except TypeError as exc:
        return str(exc)
    return ""


def test_cupy_takes_every_call(recorder: Recorder) -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy's functions are compared, and CuPy is not installed")
    if len(recorder.uses) < 30:
        pytest.skip("the samples were not run before, which tell what is called")
    xp: Any = namespace(cupy)
    wrong = []
    for name, count, options in sorted(recorder.uses):
        function = functools.reduce(getattr, name.split("."), xp)
        why = fits(function, name, count, options)
        if why:
            wrong.append(f"{name} of {count} and {', '.join(options) or 'no names'}: {why}")
    assert wrong == []


def test_the_namespace_follows_the_standard_and_takes_places() -> None:
    cupy = pytest.importorskip("cupy")
    xp: Any = namespace(cupy)
    standard = pytest.importorskip("array_api_strict")
    names = [name for name in standard.__all__ if name[0].islower() and "strict" not in name]
    missing = [name for name in names if not hasattr(xp, name)]
    assert missing == []
    for name in WITH_PLACE:
        assert getattr(xp, name) is getattr(cupy, name)
    assert fits(xp.sign, "sign", 2, ()) == ""
