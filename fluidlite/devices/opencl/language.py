"""OpenCL C as a kernel language: keywords, types, compiling and launching."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fluidlite.devices.opencl import pocl
from fluidlite.kernel_support import SHARED_MATH, CacheInfo, LRUCache, new_lock, opt_level
from fluidlite.plugin import CompileError, KernelLanguageBase

# Without a group, the number of work items is rounded up to a multiple of this. The driver picks a divisor of
# it as its work group, so a prime would mean groups of one: 4.6 ms instead of 0.1 for a million items on PoCL.
ITEMS_MULTIPLE = 256


MAX_PROGRAMS, MAX_PROGRAM_BYTES = 1024, 64 << 20


class CompiledKernel:
    """A compiled kernel. Its lock makes setting its arguments, which belong to it, and enqueueing atomic."""

    __slots__ = ("call", "lock")

    def __init__(self, call: Any) -> None:
        self.call = call
        self.lock = new_lock()


SLOW_ON_CPU = ("exp", "log", "log1p", "pow", "sin", "cos", "tanh", "fmod")
"""Functions that CPU drivers compute an item at a time, or on both sides of branches. Of the framework's polynomials,
exp is as fast as PoCL's, tanh three times and the others more than ten times faster.
"""


class OpenCLLanguage(KernelLanguageBase):
    """OpenCL C 1.2 of one device.

    Rules of arithmetic: no fast-math option, contraction off, and division and square root correctly rounded
    where the device can. ``float64`` is there if the device has ``cl_khr_fp64``; ``float16`` and
    ``bfloat16`` are left to the framework, which stores them as 16-bit words and computes in float32.
    """

    name = "opencl"
    suffix = ".cl"
    vector = "{type}{width}"
    # erf, expm1, log1p, the inverse and the hyperbolic functions but tanh are missing on purpose: PoCL's, which
    # call a library for each element, are 5 to 30 times slower than a vectorized polynomial
    math: Mapping[str, str | None] = SHARED_MATH

    def __init__(self, cl: Any, device: Any) -> None:
        super().__init__()
        self._cl = cl
        # Shared by all queues of the device: a network has one for each layer, and PoCL takes 7 ms to build a program
        # even if the result is in its disk cache.
        self._programs: LRUCache[Any] = LRUCache(MAX_PROGRAMS, "OpenCL programs", MAX_PROGRAM_BYTES)
        extensions = device.extensions.split()
        prologue = ["#pragma OPENCL FP_CONTRACT OFF"]
        types = {
            "bool": "uchar",
            "uint8": "uchar",
            "int8": "char",
            "int16": "short",
            "int32": "int",
            "int64": "long",
            "uint32": "uint",
            "uint64": "ulong",
            "float32": "float",
        }
        if "cl_khr_fp64" in extensions:
            types["float64"] = "double"
            prologue.insert(0, "#pragma OPENCL EXTENSION cl_khr_fp64 : enable")
        self.types = types
        self.keywords = {
            "kernel": "__kernel void",
            "function": "static inline",
            "buffer": "__global",
            "constant": "__constant",
            "each": "const long gid = get_global_id(0); if (gid < items)",
            "restrict": "restrict",
            "local": "__local",
            "barrier": "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);",
            "member": "(int)get_local_id(0)",
            "prologue": "\n".join(prologue) + "\n",
        }
        if not device.single_fp_config & cl.device_fp_config.FMA:  # without it, fma is emulated by many instructions
            self.math = {**self.math, "fma": None}
        if device.type & cl.device_type.CPU:
            self.math = {name: None if name in SLOW_ON_CPU else text for name, text in self.math.items()}
            self.lanes = 16
            vector_bytes = 4 * int(device.native_vector_width_float)
            self.registers = (32 if vector_bytes == 64 else 16, vector_bytes) if vector_bytes in (16, 32, 64) else None
            self.keywords["independent"] = '_Pragma("clang loop vectorize(assume_safety)")'
            self.keywords["apart"] = '_Pragma("clang loop vectorize(disable)")'
            self.keywords["unroll"] = '_Pragma("clang loop unroll(full)")'
            self.keywords["prologue"] += '#pragma clang diagnostic ignored "-Wpass-failed"\n'  # vectorization may fail
        else:
            max_group = min(256, int(device.max_work_group_size))
            self.group = (32, 1 << (max_group.bit_length() - 1)) if max_group >= 32 else None
        # a CPU runs a group on one thread, so one item is a fine group; a GPU runs at least 32 items together
        self._smallest = 1 if device.type & cl.device_type.CPU else 32
        self._options = ["-cl-std=CL1.2", "-w"]  # generated code may contain comparisons such as x < x
        if device.single_fp_config & cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT:
            self._options.append("-cl-fp32-correctly-rounded-divide-sqrt")
        self._reads_header = pocl.reads_header(device)

    def compile(self, context: Any, source: str, entry: str, parameters: tuple[str, ...]) -> CompiledKernel:
        """Build ``source`` for the context's device and return its kernel ``entry``.

        Raises CompileError with the compiler's log, or naming an entry or parameters that the source does not have.
        """
        options = self._options if opt_level() else [*self._options, "-cl-opt-disable"]
        try:
            key = (source, *options)
            program = self._programs.get(key, lambda: self._build(context.board.context, source, options))
            call = self._cl.Kernel(program, entry)
            # with fixed types a launch with Python numbers is as fast as one with prepared arguments
            call.set_scalar_arg_dtypes([_scalar(name) for name in parameters])
        except (self._cl.Error, TypeError) as exc:  # TypeError: another number of parameters
            raise CompileError(f"OpenCL refuses kernel {entry!r}: {exc}", source) from exc
        return CompiledKernel(call)

    def _build(self, context: Any, source: str, options: list[str]) -> Any:
        """Build a program; without the driver's header if it has the framework's prologue and needs no more."""
        if self._reads_header and source.startswith(self.keywords["prologue"]):
            declared = pocl.declarations(source, self.types, self.math)
            try:
                return self._cl.Program(context, declared + source).build([*options, pocl.WITHOUT_HEADER])
            except self._cl.Error:
                pass  # it needs the header, or is invalid: then the log shall be that of its own text
        return self._cl.Program(context, source).build(options)

    def cache_info(self) -> Mapping[str, CacheInfo]:
        return {"OpenCL programs": self._programs.info()}

    def launch(
        self, context: Any, kernel: CompiledKernel, items: int, args: Sequence[Any], group: int | None = None
    ) -> None:
        """Enqueue at least ``items`` work items, in whole groups."""
        if items <= 0:
            return
        if group:
            step = max(group, self._smallest)
            local: tuple[int] | None = (step,)
        else:
            step, local = ITEMS_MULTIPLE, None
        with kernel.lock:
            kernel.call(context.queue, (-(-items // step) * step,), local, *args)


def _scalar(name: str) -> Any:
    """Return the type that pyopencl packs a parameter with; None stands for a buffer."""
    if name == "buffer":
        return None
    return np.dtype("uint8" if name == "bool" else name)
