"""The kernel language capability of a device: a C-like language that it compiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fluidlite.base.arguments import did_you_mean
from fluidlite.base.errors import RegistryError
from fluidlite.base.lru_cache import CacheInfo

REGION_BIT = 56
"""Registers of images say from this bit on from which base they count; no address has as many bits."""


class KernelLanguage(Protocol):
    """The kernel language capability: a C-like language that the device compiles.

    ``keywords`` : ``kernel`` (prefix of an entry point), ``function`` (prefix of a helper), ``buffer``
    (qualifier of a pointer to device memory), ``constant`` (qualifier of a constant table), ``each``
    (a statement head that runs the braces after it once for each ``gid`` from 0 to ``items``, in
    this work item: OpenCL has ``const long gid = get_global_id(0); if (gid < items)``, plain C
    a ``for``), ``restrict``, and ``prologue`` (text put before every source).
    ``types`` : C names by dtype; a missing dtype is refused with that reason.
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
    """Defaults of the kernel language capability: plain C words.

    Attributes
    ----------
    name : str
        Part of the key under which compiled kernels are cached.
    keywords : mapping of str to str
        The language's spellings; ``independent``, if there, says before a loop that its steps do not depend on each
        other, even where an output lies on an input; ``apart``, if there, says so in its place where they read what
        lies apart, and do so faster one by one; ``unroll``, if there, says before a short loop that its steps are to be
        written out; ``stream(to, from)``, if there, copies 64 bytes from an item's own array to a buffer, where a line
        begins, past the caches.
    vector : str or None
        A format for a vector type, such as ``"{type}{width}"``; it promises OpenCL's ``vloadN``, ``vstoreN``,
        ``(float16)(x)``, ``.s0`` to ``.sf``, and ``fma`` and ``exp`` of vectors. None: loops over arrays are emitted.
    registers : (int, int) or None
        How many vector registers there are, and the bytes of each, for kernels that keep their sums in them; it
        promises what ``vector`` does for vectors of float and double of that size, or of 64 bytes if it is larger, and
        of half of it, named ``float16`` or ``double8``, made of one number or of all side by side.
        None: the device has none, or nobody knows.
    lanes : int
        Consecutive elements that one item computes where functions are called and nothing is broadcast: a vector
        register of them for a compiler that makes vectors of loops rather than of items; 1 where items run side by
        side.
    group : (int, int) or None
        The fewest and the most work-items of a group, powers of two, that share memory (``keywords["local"]`` declares
        it at the top of a kernel), wait for each other (``keywords["barrier"]``) and know their number in it
        (``keywords["member"]``): items run side by side, and a group goes through a row together. A launch
        that asks for such a group has it exactly. None: they cannot, or a thread of its own for each item is faster.
    run : int
        Most consecutive elements that one item computes where operands are broadcast: more where the division of an
        item's index, which is paid once, counts for much.
    preferred : bool
        Whether generic kernels are taken from the kernel language before the array namespace, if the place has both.
    least : int
        Elements below which the array namespace, if the place has one, starts sooner than a compiled kernel.
    suffix : str
        Of files that hold its text.
    chain : callable or None
        ``chain(context, launches)``, with ``launches`` a list of (kernel, items, args, group), returns an object whose
        ``run()`` does them in order, on the memory that they name; ``run`` is looked up at each call, and may be
        another one later. None: they are done one by one.
    native : callable or None
        ``native(kinds)`` returns a kernel that calls a C function of the process: launched once, its arguments are the
        function's address and what it takes, of the types that ``kinds`` names ("pointer", "int32", "int64", "float32",
        "float64"). It is for functions that work on the addresses of the device's memory. None: there is none.
    image : callable or None
        ``image(recordings, memory, registers)`` returns launches that can be done at other addresses, or None where
        they cannot. ``recordings`` are lists of launches that were noted twice; ``memory`` lists (register, offset,
        start, start, nbytes): what lies at an offset from a register's value, and where it was in either recording.
        Of what it returns, ``address`` goes into an array of int64 words, followed by the registers, which are numbered
        from 1; ``run_images(words, bases)`` does all that are there, one after the other. A register is an offset from
        a base, of which its bits from ``REGION_BIT`` on are the number; base 0 is 0. None: there are no images.
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
                near = did_you_mean(name, vars(KernelLanguageBase), 1, 0.5)
                raise RegistryError(f"a kernel language has no {name!r}{near}")
            setattr(self, name, value)

    def listings(self, source: str, entry: str, parameters: tuple[str, ...]) -> Mapping[str, str]:
        """Other forms of a kernel on its way to the device, for people to read, by the suffix of their files."""
        return {}

    def cache_info(self) -> Mapping[str, CacheInfo]:
        """What its own caches tell of themselves, by name."""
        return {}


def runs_side_by_side(language: Any) -> bool:
    """Whether a device runs the work-items of its kernel language side by side: it names a ``group`` of them."""
    return getattr(language, "group", None) is not None
