"""Contexts on which generated kernels run without the framework: NumPy, array-api-strict, and C through gcc."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from fluidlite.base.dtypes import NUMPY, dtype_name
from fluidlite.platform.array_namespace import ArrayBase
from fluidlite.platform.device import DeviceInfo
from fluidlite.platform.device_memory import Span
from fluidlite.platform.kernel_language import KernelLanguageBase
from fluidlite.platform.place import Place
from fluidlite.program.codegen_registry import generators
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import OpDef
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Spec

RANDOM = (0x12345678, 0x9ABCDEF0, 7, 42)


class Arrays(ArrayBase):
    """An array capability over any namespace."""

    def __init__(self, xp: Any, out: bool, eager: bool = True) -> None:
        self.xp, self.out, self.eager = xp, out, eager


class Memory:
    """What a generated kernel needs of a tensor."""

    allocation = 1

    def __init__(self, array: Any) -> None:
        self.held = array

    def native(self) -> Any:
        return self.held

    def _location(self) -> tuple[Any, int]:
        return self.held.ctypes.data, 0

    def span(self) -> Span:
        return Span(*self._location(), self.held.nbytes)


class ArrayContext:
    """A context with the array capability alone."""

    capability = "array"
    language = None

    def __init__(self, xp: Any = np, out: bool = True, eager: bool = True) -> None:
        self.array = Arrays(xp, out, eager)
        self.xp = xp

    def put(self, array: np.ndarray[Any, Any]) -> Any:
        return array if self.xp is np else self.xp.asarray(array)

    def get(self, array: Any) -> np.ndarray[Any, Any]:
        return np.asarray(array)


class CLanguage(KernelLanguageBase):
    """Plain C. ``libm``: its functions are used, else the framework's own."""

    def __init__(self, libm: bool, doubles: bool = True) -> None:
        names = ("exp", "expm1", "log", "log1p", "sqrt", "tanh", "sin", "cos", "asin", "acos", "atan", "sinh", "cosh",
                 "erf", "floor", "ceil", "trunc", "round", "pow", "fmod")  # fmt: skip
        self.math = {}
        if libm:
            self.math = {f"{n}.float32": n + "f" for n in names} | {f"{n}.float64": n for n in names}
            self.math |= {"abs.float32": "fabsf", "abs.float64": "fabs"}
            self.keywords = {**KernelLanguageBase.keywords, "prologue": "#include <math.h>\n"}
        if not doubles:
            self.types = {k: v for k, v in KernelLanguageBase.types.items() if k != "float64"}


class CContext:
    """A context whose kernel language is compiled by gcc."""

    capability = "language"
    array = None
    may_have_error = False
    available = shutil.which("gcc") is not None
    _folder = Path(tempfile.mkdtemp(prefix="fluidlite-codegen-"))

    def __init__(self, libm: bool = False, doubles: bool = True) -> None:
        self.language = CLanguage(libm, doubles)
        self.compiled: dict[Any, Any] = {}
        self.launches = 0
        self.status = np.zeros(4, np.int64)

    def compile(self, source: str, entry: str, parameters: tuple[str, ...], form: Any = None) -> Any:
        key = (source, entry, parameters)
        if key not in self.compiled:
            stem = self._folder / hashlib.sha256(source.encode()).hexdigest()[:20]
            stem.with_suffix(".c").write_text(source)
            subprocess.run(
                ["gcc", "-O1", "-Wall", "-Werror", "-Wno-unused-function", "-Wno-unused-variable", "-shared", "-fPIC",
                 "-ffp-contract=off", "-nostdlib", "-o", f"{stem}.so", f"{stem}.c"],  # what it calls, Python has loaded
                check=True, capture_output=True, text=True,
            )  # fmt: skip
            function = getattr(ctypes.CDLL(f"{stem}.so"), entry)
            types = {"buffer": ctypes.c_void_p, "bool": ctypes.c_ubyte, "int64": ctypes.c_int64,
                     "uint32": ctypes.c_uint32,
                     "float32": ctypes.c_float, "float64": ctypes.c_double, "int32": ctypes.c_int32,
                     "int16": ctypes.c_int16, "int8": ctypes.c_int8, "uint8": ctypes.c_uint8}  # fmt: skip
            function.argtypes = [types[name] for name in parameters]
            function.restype = None
            self.compiled[key] = function
        return self.compiled[key]

    def launch(self, kernel: Any, items: int, args: list[Any], group: int | None = None) -> None:
        self.launches += 1
        kernel(*args)

    def status_args(self) -> tuple[Any, int]:
        return self.status.ctypes.data, 0

    def put(self, array: np.ndarray[Any, Any]) -> Any:
        return array

    def get(self, array: Any) -> np.ndarray[Any, Any]:
        return array


class DeviceContext:
    """A real place's kernel language."""

    capability = "language"
    array = None
    may_have_error = False

    def __init__(self, place: str) -> None:
        from fluidlite.platform.context_pool import get_context

        self.place = Place.parse(place)
        self.real = get_context(self.place)
        self.language = self.real.language
        self.compile, self.launch = self.real.compile, self.real.launch

    def put(self, array: np.ndarray[Any, Any]) -> Any:
        tensor = Tensor()
        tensor.set(array, self.place)
        return tensor

    def get(self, tensor: Any) -> np.ndarray[Any, Any]:
        return np.asarray(tensor.numpy())


def unit_of(context: Any, dtypes: tuple[str, ...] | None = None) -> Any:
    """What ``refuse`` sees of a context's device."""
    info = DeviceInfo("test") if dtypes is None else DeviceInfo("test", dtypes=dtypes)
    array = context.array
    return SimpleNamespace(info=info, array_dtypes=info.dtypes, array=array, language=context.language)


def call_of(op: OpDef, inputs: dict[str, np.ndarray[Any, Any]], attrs: dict[str, Any], wanted: Any = None) -> Call:
    """A call with exact dims."""
    canonical = {a.name: a.check(attrs[a.name]) if a.name in attrs else a.default for a in op.attrs}
    ins = {slot: (Spec.of(value.shape, dtype_name(value.dtype)),) for slot, value in inputs.items()}
    call = Call(op, ins, {}, canonical)
    assert op.infer is not None
    outs = {slot: (spec,) for slot, spec in op.infer(call).items() if wanted is None or slot in wanted}
    return call.with_outs(outs)  # type: ignore[arg-type]


def held(value: Any) -> Any:
    """Native arrays as tensors."""
    return value if isinstance(value, Tensor) else Memory(value)


def execute(
    context: Any,
    op: OpDef,
    inputs: dict[str, np.ndarray[Any, Any]],
    attrs: dict[str, Any] | None = None,
    wanted: Any = None,
    share: dict[str, str] | None = None,
    random: tuple[int, int, int, int] = RANDOM,
    bound: bool = False,
) -> dict[str, np.ndarray[Any, Any]]:
    """Run an operator's generated kernel; ``share`` gives outputs the memory of inputs."""
    call = call_of(op, inputs, attrs or {}, wanted)
    run = generators[context.capability].prepare(call, context)
    tensors = {slot: context.put(value.copy()) for slot, value in inputs.items()}
    for slot, (spec,) in call.outs.items():
        given = (share or {}).get(slot) or op.must_alias.get(slot)
        if given:
            tensors[slot] = tensors[given]
        else:
            rubbish = np.full(spec.dims, 77, NUMPY[spec.dtype])
            tensors[slot] = context.put(rubbish)
    workspace = run.workspace
    io = SimpleNamespace(
        tensors=[held(tensor) for tensor in tensors.values()], random=random, op_id=0, context=context,
        workspace=held(context.put(np.empty(workspace, np.uint8))) if workspace else None,
        span=lambda slot, i=0: held(tensors[slot]).span(),
    )  # fmt: skip
    with np.errstate(all="ignore"):
        action = run.bind(context, io) if bound and run.bind is not None else None
        if action is not None:
            action()
        else:
            run(context, io)
    return {slot: context.get(tensors[slot]) for slot in call.outs}
