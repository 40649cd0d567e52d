"""What kernels and generated code ask of CuPy, without a GPU.

A device runs every operator's samples in CuPy's style, which no other device has (functions take a place for their
result, and reading a value would cost a synchronisation): NumPy computes, and writes down how each function of the
namespace is called. Then each of these calls must fit the function of that name in CuPy's namespace.

Its arrays refuse NumPy's functions where they are not asked for through the namespace, and to be read.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
from operator_checks import CHECKS, QUARTERS, by_operator, pairwise, run_checks, shared

import fluidlite as fluid
from fluidlite.devices.cpu import CPUDevice, NumPyArrays
from fluidlite.devices.cuda.array import WITH_OUT, namespace
from fluidlite.platform.device_registry import devices
from fluidlite.plugin import DeviceInfo, Span
from fluidlite.testing import Check

PLACE = fluid.Place("recording")
EXTRAS = ("erf", "scatter_add", "take_along_axis", "put_along_axis", "from_dlpack")
UFUNC = {"out", "where", "axes", "axis", "keepdims", "casting", "dtype", "order"}
REDUCE = ("array", "axis", "dtype", "out", "keepdims")

Use = tuple[str, int, tuple[str, ...]]
"""A function, how many arguments came by position, and which came by name."""


class Far(np.ndarray[Any, Any]):
    """An array that is not in the host's memory, as far as kernels can tell."""

    inside = 0
    """How deep one is in functions of the namespace, which are NumPy's and may do anything."""
    methods: ClassVar[set[str]] = set()
    """The methods that were called from outside."""

    @property
    def __array_interface__(self) -> dict[str, Any]:  # type: ignore[override]
        raise AttributeError("memory of the host has __array_interface__")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        if not Far.inside:
            raise TypeError(f"numpy.{ufunc.__name__} is called with an array of the device")
        options = {name: near(value) for name, value in options.items()}
        if out is not None:
            options["out"] = tuple(near(place) for place in out)
        result = getattr(ufunc, method)(*map(near, inputs), **options)
        return far(result) if out is None else out[0] if len(out) == 1 else out

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        if not Far.inside:
            raise TypeError(f"numpy.{function.__name__} is called with an array of the device")
        return super().__array_function__(function, types, args, options)


def near(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, Far) else value


def far(value: Any) -> Any:
    """The same as arrays of the device; numbers too, as CuPy's are."""
    if type(value) in (tuple, list):
        return type(value)(map(far, value))
    return np.asarray(value).view(Far) if isinstance(value, (np.ndarray, np.generic)) else value


def trusted(function: Any) -> Any:
    """The function, inside of which anything goes."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        Far.inside += 1
        try:
            return far(function(*args, **options))
        finally:
            Far.inside -= 1

    return call


def method(name: str) -> Any:
    """A method of NumPy's arrays for Far; one that reads values is refused."""
    own = getattr(np.ndarray, name)
    use = trusted(own)

    def call(self: Far, *args: Any, **options: Any) -> Any:
        if Far.inside:
            return own(self, *args, **options)
        if name in READS:
            raise TypeError(f"{name} reads an array of the device, which waits for all its work")
        Far.methods.add(name)
        return use(self, *args, **options)

    return call


READS = {"__bool__", "__int__", "__float__", "__index__", "__contains__", "item", "tolist", "tobytes"}
OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
OTHERS = ("lt", "le", "gt", "ge", "eq", "ne", "neg", "abs", "invert", "getitem", "setitem")
NAMED = {f"__{name}__" for name in (*OTHERS, *(f"{way}{name}" for name in OPERATORS for way in ("", "r", "i")))}
PUBLIC = {name for name in dir(np.ndarray) if name[0] != "_" and callable(getattr(np.ndarray, name))} - {"view"}
for _name in READS | NAMED | PUBLIC:
    if hasattr(np.ndarray, _name):
        setattr(Far, _name, method(_name))


class Recorder:
    """NumPy's functions, which note their calls."""

    def __init__(self) -> None:
        self.uses: set[Use] = set()

    def __getattr__(self, name: str) -> Any:
        value = getattr(np, name)
        if isinstance(value, type) or not callable(value):
            return value
        function = self._noted(name, value)
        if isinstance(value, np.ufunc):
            function.reduce = self._noted(f"{name}.reduce", value.reduce)
        return function

    def _noted(self, name: str, function: Any) -> Any:
        use = trusted(function)

        @functools.wraps(function)
        def noted(*args: Any, **options: Any) -> Any:
            self.uses.add((name, len(args), tuple(sorted(options))))
            return use(*args, **options)

        return noted


class Arrays(NumPyArrays):
    eager = False

    def __init__(self, recorder: Recorder) -> None:
        self.xp = recorder  # type: ignore[assignment]

    def wrap(self, span: Span, dims: tuple[int, ...], dtype: str, strides: tuple[int, ...] | None) -> Any:
        return far(super().wrap(span, dims, dtype, strides))

    def extra(self, name: str) -> Any:
        found = super().extra(name) if name in EXTRAS else None
        return None if found is None else trusted(found)


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


KINDS = ("array", "memory")
OF_OPERATORS = pairwise((check for check in CHECKS if check.operator != "device"), KINDS)


@pytest.mark.parametrize("group", by_operator(shared(OF_OPERATORS, QUARTERS["recording"], KINDS)))
def test_conforms(group: list[Check], recorder: Recorder) -> None:
    assert run_checks(group, PLACE)


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


def test_cupy_has_every_method(recorder: Recorder) -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy's arrays are compared, and CuPy is not installed")
    assert [name for name in sorted(Far.methods) if not hasattr(cupy.ndarray, name)] == []


def test_arrays_of_the_device_are_not_numpys() -> None:
    array = far(np.ones(3, "float32"))
    with pytest.raises(TypeError, match=r"numpy\.add is called"):
        np.add(array, 1)
    with pytest.raises(TypeError, match=r"numpy\.concatenate is called"):
        np.concatenate([array, array])
    with pytest.raises(TypeError, match="__float__ reads"):
        float(array.sum())
    with pytest.raises(TypeError, match="__bool__ reads"):
        bool((array == 1).all())
    assert (near(array + array) == 2).all()


def test_the_namespace_follows_the_standard_and_takes_places() -> None:
    cupy = pytest.importorskip("cupy")
    xp: Any = namespace(cupy)
    standard = pytest.importorskip("array_api_strict")
    names = [name for name in standard.__all__ if name[0].islower() and "strict" not in name]
    missing = [name for name in names if not hasattr(xp, name)]
    assert missing == []
    for name in WITH_OUT:
        assert getattr(xp, name) is getattr(cupy, name)
    assert fits(xp.sign, "sign", 2, ()) == ""
