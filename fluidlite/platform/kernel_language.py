"""The kernel language capability of a device: a C-like language that it compiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fluidlite.base.arguments import did_you_mean
from fluidlite.base.errors import RegistryError
from fluidlite.base.lru_cache import CacheInfo

REGION_BIT = 56
"""First bit of the base's number in a register of an image; addresses have fewer bits."""


class KernelLanguage(Protocol):
    """The kernel language capability: a C-like language that the device compiles.

    ``keywords`` : ``kernel`` (prefix of an entry point), ``function`` (prefix of a helper), ``buffer``
    (qualifier of a pointer to device memory), ``constant`` (qualifier of a constant table), ``each``
    (a statement head that runs the braces after it once for each ``gid`` from 0 to ``items``, in
    this work item: OpenCL has ``const long gid = get_global_id(0); if (gid < items)``, plain C
    a ``for``), ``restrict``, and ``prologue`` (text put before every source).
    ``types`` : C names by dtype; kernels of a missing dtype are refused for that reason.
    ``math`` : function name by primitive (``"exp"``: ``"exp"``); None or missing: the framework's own polynomial.
    ``vector`` : see :class:`KernelLanguageBase`.
    """

    keywords: Mapping[str, str]
    types: Mapping[str, str]
    math: Mapping[str, str | None]

    def compile(self, context: Any, source: str, entry: str, parameters: tuple[str, ...]) -> Any:
        """Compile; ``parameters`` names each argument's type ("buffer" or a dtype). Raise CompileError(log)."""
        ...

    def launch(self, context: Any, kernel: Any, items: int, args: Sequence[Any], group: int | None = None) -> None:
        """Enqueue ``items`` work items. ``args`` follow ``parameters``: raw handles for buffers, else Python numbers.

        ``group`` is a hint for the number of items of one work group.
        """
        ...


class KernelLanguageBase:
    """Defaults of the kernel language capability: plain C.

    Attributes
    ----------
    name : str
        Part of the key under which compiled kernels are cached.
    keywords : mapping of str to str
        The language's spellings. Optional ones: ``independent``, put before a loop whose iterations do not depend on
        each other, even if an output aliases an input; ``apart``, put there instead if the iterations read strided
        elements, and are faster without vectorization; ``unroll``, put before a short loop to be unrolled;
        ``stream(to, from)``, which copies 64 bytes from an item's own array to the start of a cache line of a buffer,
        bypassing the caches.
    vector : str or None
        A format for a vector type, such as ``"{type}{width}"``; it promises OpenCL's ``vloadN``, ``vstoreN``,
        ``(float16)(x)``, ``.s0`` to ``.sf``, and ``fma`` and ``exp`` of vectors. None: loops over arrays are emitted.
    registers : (int, int) or None
        The number of vector registers and the bytes of each, for kernels that accumulate in registers. It promises what
        ``vector`` does for vectors of float and double of that size (at most 64 bytes) and of half of it, named
        ``float16`` or ``double8``, built from one number or from all elements. None: no vector registers, or unknown.
    lanes : int
        Consecutive elements that one item computes in kernels that call functions and broadcast nothing: a vector
        register of elements for a compiler that vectorizes loops rather than items; 1 where items run in parallel.
    group : (int, int) or None
        The minimum and maximum work-items of a group, powers of two, that share memory (``keywords["local"]`` declares
        it at the top of a kernel), wait for each other (``keywords["barrier"]``) and have a number in the group
        (``keywords["member"]``): items run in parallel, and a group processes one row. A launch that requests a group
        of such a size has exactly that size. None: not possible, or a thread for each item is faster.
    run : int
        Maximum number of consecutive elements that one item computes where operands are broadcast: larger where the
        division of an item's index, done once an item, is expensive.
    preferred : bool
        Whether generic kernels are taken from the kernel language before the array namespace, if the place has both.
    least : int
        Elements below which the array namespace, if the place has one, is faster than a compiled kernel.
    suffix : str
        Suffix of source files.
    chain : callable or None
        ``chain(context, launches)``, with ``launches`` a list of (kernel, items, args, group), returns an object whose
        ``run()`` runs them in order, on the memory that they name. ``run`` is looked up at each call, and may be
        replaced. None: launches run one by one.
    native : callable or None
        ``native(kinds)`` returns a kernel that calls a C function of the process: launched once, its arguments are the
        function's address and arguments, of the types in ``kinds`` ("pointer", "int32", "int64", "float32",
        "float64"). It is for functions that take addresses of the device's memory. None: not supported.
    image : callable or None
        ``image(recordings, memory, registers)`` returns relocatable launches, or None if that is not possible.
        ``recordings`` are two lists of the same launches at different addresses; ``memory`` lists (register, offset,
        start, start, nbytes): a range at an offset from a register's value, with its start in either recording. The
        ``address`` of the result goes into an array of int64 words, followed by the registers, which are numbered
        from 1; ``run_images(words, bases)`` runs all images of the array in order. A register is an offset from a base,
        whose number its bits from ``REGION_BIT`` on are; base 0 is 0. None: not supported.
    """

    name = "c"
    keywords: Mapping[str, str] = {
        "kernel": "void",
        "function": "static inline",
        "buffer": "",
        "constant": "static const",
        "each": "for (long gid = 0; gid < items; ++gid)",
        "restrict": "restrict",
        "prologue": "",
    }
    types: Mapping[str, str] = {
        "bool": "unsigned char",
        "uint8": "unsigned char",
        "int8": "signed char",
        "int16": "short",
        "int32": "int",
        "int64": "long",
        "float32": "float",
        "float64": "double",
        "uint32": "unsigned int",
        "uint64": "unsigned long",
    }
    math: Mapping[str, str | None] = {}
    vector: str | None = None
    registers: tuple[int, int] | None = None
    lanes = 1
    group: tuple[int, int] | None = None
    run = 16
    preferred = False
    least = 0
    suffix = ".c"
    chain: Any = None
    native: Any = None
    image: Any = None

    def __init__(self, **changes: Any) -> None:
        for name, value in changes.items():
            if not hasattr(self, name):
                hint = did_you_mean(name, vars(KernelLanguageBase), 1, 0.5)
                raise RegistryError(f"a kernel language has no {name!r}{hint}")
            setattr(self, name, value)

    def listings(self, source: str, entry: str, parameters: tuple[str, ...]) -> Mapping[str, str]:
        """Intermediate forms of a compiled kernel, for people to read, by file suffix."""
        return {}

    def cache_info(self) -> Mapping[str, CacheInfo]:
        """Statistics of the language's own caches, by name."""
        return {}


def runs_side_by_side(language: Any) -> bool:
    """Whether a device runs the work-items of its kernel language in parallel: it defines a ``group``."""
    return getattr(language, "group", None) is not None
