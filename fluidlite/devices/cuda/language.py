"""CUDA C as a kernel language: keywords, types, compiling with NVRTC and launching."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fluidlite.devices.cuda.graph import GraphChain
from fluidlite.kernel_support import SHARED_MATH, LRUCache
from fluidlite.plugin import CompileError, KernelLanguageBase

BLOCK = 256  # threads of a block, unless the caller names a group
WARP = 32  # threads of a warp: a smaller block leaves some of them idle

# Guarantees to generated code: no contraction (random numbers and fused chains have the same bits on every
# place), denormals kept, division and square root correctly rounded. cupy.RawModule always adds
# -ftz=true, which is why NVRTC is called here directly.
OPTIONS = ("--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")

# NVRTC has no math.h; generated code uses two of its constants
PROLOGUE = """\
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
"""


_compiled: LRUCache[bytes] = LRUCache(1024, "machine code of CUDA", 64 << 20)
"""Machine code by source and architecture: each context compiles its kernels, mostly from the same sources."""


def nvrtc_compile(source: str, architecture: str) -> bytes:
    """Compile CUDA C, or return the cached code; no GPU is needed.

    ``architecture``: ``"compute_80"`` gives PTX, ``"sm_80"`` machine code.
    Raises CompileError with NVRTC's log.
    """
    return _compiled.get((source, architecture), lambda: _nvrtc(source, architecture))


def _nvrtc(source: str, architecture: str) -> bytes:
    nvrtc: Any = importlib.import_module("cupy_backends.cuda.libs.nvrtc")
    program = nvrtc.createProgram(source, "generated.cu", (), ())
    try:
        nvrtc.compileProgram(program, (*OPTIONS, f"--gpu-architecture={architecture}"))
        if architecture.startswith("sm_"):
            return bytes(nvrtc.getCUBIN(program))
        ptx = nvrtc.getPTX(program)
        return ptx.encode() if isinstance(ptx, str) else bytes(ptx)
    except nvrtc.NVRTCError as exc:
        log = nvrtc.getProgramLog(program)
        raise CompileError(f"NVRTC refuses the source for {architecture} ({exc}):\n{log}", source) from exc
    finally:
        nvrtc.destroyProgram(program)


def best_architecture(capability: int) -> str:
    """Return the target for a GPU: its own machine code, or PTX if NVRTC does not support it yet.

    ``capability``: the compute capability without its dot: 90 for 9.0.
    """
    nvrtc: Any = importlib.import_module("cupy_backends.cuda.libs.nvrtc")
    supported = nvrtc.getSupportedArchs()
    if capability in supported:
        return f"sm_{capability}"
    older = [each for each in supported if each < capability]
    if not older:
        raise CompileError(f"this NVRTC compiles for capability {min(supported)} and later; the GPU has {capability}")
    return f"compute_{max(older)}"


class CompiledKernel(NamedTuple):
    """A loaded function, and the type that packs each argument (None: a buffer)."""

    function: Any
    types: tuple[Any, ...]


class CUDALanguage(KernelLanguageBase):
    """CUDA C; one object serves every GPU, since only ``compile`` depends on the model."""

    name = "cuda"
    suffix = ".cu"
    keywords: Mapping[str, str] = {
        "kernel": 'extern "C" __global__ void',
        "function": "__device__ static inline",
        "buffer": "",
        "constant": "__device__ static const",
        "each": "const long long gid = (long long)blockIdx.x * blockDim.x + threadIdx.x; if (gid < items)",
        "restrict": "__restrict__",
        "local": "__shared__",
        "barrier": "__syncthreads();",
        "member": "(int)threadIdx.x",
        "prologue": PROLOGUE,
    }
    types: Mapping[str, str] = {**KernelLanguageBase.types, "int64": "long long", "uint64": "unsigned long long"}
    group = (WARP, BLOCK)
    # CUDA C is C++: each name has an overload for float
    math: Mapping[str, str | None] = {
        **SHARED_MATH,
        **{name: name for name in ("expm1", "log1p", "asin", "acos", "atan", "sinh", "cosh", "erf")},
    }

    def compile(self, context: Any, source: str, entry: str, parameters: tuple[str, ...]) -> CompiledKernel:
        """Compile ``source`` for the context's GPU and load ``entry``.

        Raises CompileError with NVRTC's log, or the driver's reason not to load the code.
        """
        cuda = context.cupy.cuda
        with cuda.Device(context.place.index) as device:
            code = nvrtc_compile(source, best_architecture(int(device.compute_capability)))
            try:
                module = cuda.function.Module()
                module.load(code)
                function = module.get_function(entry)
            except cuda.driver.CUDADriverError as exc:
                raise CompileError(f"CUDA cannot load kernel {entry!r}: {exc}", source) from exc
        return CompiledKernel(function, tuple(_scalar(name) for name in parameters))

    def launch(
        self, context: Any, kernel: CompiledKernel, items: int, args: Sequence[Any], group: int | None = None
    ) -> None:
        """Enqueue at least ``items`` threads, in whole blocks."""
        if items <= 0:
            return
        block = max(group, WARP) if group else BLOCK
        # CuPy passes handles unchanged, but packs Python numbers as 64-bit values
        packed = [value if kind is None else kind(value) for kind, value in zip(kernel.types, args, strict=True)]
        with context.cupy.cuda.Device(context.place.index):
            kernel.function((-(-items // block),), (block,), packed, stream=context.stream)

    def chain(
        self, context: Any, launches: Sequence[tuple[CompiledKernel, int, Sequence[Any], int | None]]
    ) -> GraphChain:
        """Return an object that runs launches in order, on the memory that they name: by a CUDA graph if possible."""
        return GraphChain(context, launches, self.launch)


def _scalar(name: str) -> Any:
    """Return the NumPy type that packs a parameter; None stands for a buffer."""
    if name == "buffer":
        return None
    return np.dtype("uint8" if name == "bool" else name).type
