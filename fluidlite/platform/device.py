"""What a device is: the protocols a plugin fulfils, and base classes with every default.

A memory-only device is six functions: ``probe``, ``allocate``, ``release``, ``copy_in``,
``copy_out`` and ``wait``. The array and the kernel language capability make it fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

from fluidlite.base.lru_cache import CacheInfo
from fluidlite.platform.place import Place

REGION_BIT = 56
"""Registers of images say from this bit on from which base they count; no address has as many bits."""


class Span(NamedTuple):
    """A byte range of one raw handle: what copies and kernels of a device see of memory."""

    handle: Any
    offset: int
    nbytes: int


@dataclass(frozen=True)
class DeviceInfo:
    """Facts of one device. Fields are only ever added, with defaults.

    ``memory`` is in bytes (None: unknown), ``alignment`` in bytes: every allocation starts at a multiple of it.
    ``dtypes`` are those the device can compute with; ``tolerance`` loosens the conformance kit's
    relative tolerance, per dtype. ``host`` says that its raw handles are host memory
    with the buffer protocol (the fallback place and the home of feeds and fetches is the device that says so).
    ``dlpack`` is the device type number of the DLPack standard, where arrays are exchanged by it.
    ``fork_safe`` says that what was made of the device before a ``fork()`` works in the child, closing it included.
    Otherwise a child of a process that has used it gets an error at once, and nothing of the parent's is let go there.
    ``computes`` is False for a device whose results are no numbers: it is used where it is named, and is not among
    ``places()``.
    """

    name: str
    _: KW_ONLY
    memory: int | None = None
    alignment: int = 64
    queues: int = 1
    dtypes: tuple[str, ...] = (
        "bool",
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
    )
    layouts: tuple[str, ...] = ("NCHW", "NHWC")
    tolerance: Mapping[str, float] = field(default_factory=dict)
    host: bool = False
    dlpack: int | None = None
    fork_safe: bool = False
    computes: bool = True

    def __hash__(self) -> int:
        return hash((self.name, self.memory))


@runtime_checkable
class Event(Protocol):
    """A point in a queue."""

    def done(self) -> bool:
        """Whether the work before it has finished. Callable from any thread."""
        ...

    def wait(self) -> None:
        """Block until it has; raise what failed."""
        ...


class Stamp(Protocol):
    """A point in a queue that has the time at which the device got there, by the device's own clock."""

    def wait(self) -> None:
        """Block until the queue got there; raise what failed. Callable from any thread."""
        ...

    def seconds_since(self, earlier: Stamp) -> float:
        """Seconds from another stamp of the same queue to this one; both have been waited for."""
        ...


class DoneEvent:
    """The event of work that has already finished."""

    def done(self) -> bool:
        """Return True."""
        return True

    def wait(self) -> None:
        """Return at once."""
        return None


class Allocator(Protocol):
    """Raw memory of one device. The framework pools, counts, retries and orders."""

    def allocate(self, nbytes: int) -> Any:
        """Return a raw handle of ``nbytes`` (> 0, a multiple of ``info.alignment``) or raise MemoryError."""
        ...

    def release(self, handle: Any) -> None:
        """Give a handle back; called once, after the device's last use of it."""
        ...


class AllocatorBase:
    """Defaults of an allocator.

    Attributes
    ----------
    pooled : bool
        True if the library pools by itself; then the framework makes one allocator
        a context (so that reuse follows the queue's order) and keeps no pool of its own.
    """

    pooled = False

    def address(self, handle: Any) -> int | None:
        """Return the handle's address as a number for C calls, or None if it has none."""
        return None

    def trim(self) -> None:
        """Give cached memory back to the device (called when it is out of memory)."""


class DeviceContext(Protocol):
    """One in-order queue and the library handles of its place; one thread at a time."""

    place: Place

    def copy_in(self, dst: Span, src: memoryview) -> None:
        """Enqueue host to device. ``src`` (contiguous bytes) may be reused on return."""
        ...

    def copy_out(self, dst: memoryview, src: Span) -> None:
        """Enqueue device to host. ``dst`` (writable bytes) is valid after ``wait`` or a later event."""
        ...

    def copy_within(self, dst: Span, src: Span) -> None:
        """Enqueue a copy inside the place; the ranges do not overlap."""
        ...

    def copy_peer(self, dst: Span, dst_context: DeviceContext, src: Span) -> bool:
        """Copy straight to another place, or return False: the framework goes through the host."""
        ...

    def record(self) -> Event:
        """Mark this point of the queue."""
        ...

    def wait_for(self, event: Event) -> None:
        """Make later work wait for an event; a foreign event blocks the host."""
        ...

    def wait(self) -> None:
        """Block until the queue is idle; raise what failed, DeviceLost if the device is gone."""
        ...

    def close(self) -> None:
        """Let go of the queue and its handles; may be called twice."""
        ...


class ContextBase:
    """Defaults of a context: no events (recording waits), copies inside a place through the host."""

    threads: int | None = None

    def __init__(self, place: Place) -> None:
        self.place = place

    def copy_in(self, dst: Span, src: memoryview) -> None:
        """Enqueue host to device; to be defined. ``src`` (contiguous bytes) may be reused on return."""
        raise NotImplementedError(f"{type(self).__name__} must define copy_in")

    def copy_in_async(self, dst: Span, src: memoryview) -> None:
        """Enqueue host to device; ``src`` stays as it is until a later event: here ``copy_in``, which may wait."""
        self.copy_in(dst, src)

    def pinned(self, nbytes: int) -> memoryview | None:
        """Return page-locked host memory that ``copy_in_async`` reads at full speed; None: the device has none.

        It is given back when the last reference to it is gone.
        """
        return None

    def copy_out(self, dst: memoryview, src: Span) -> None:
        """Enqueue device to host; to be defined. ``dst`` is valid after ``wait`` or a later event."""
        raise NotImplementedError(f"{type(self).__name__} must define copy_out")

    def copy_within(self, dst: Span, src: Span) -> None:
        """Copy inside the place: here through the host, which a device does better itself."""
        host = memoryview(bytearray(src.nbytes))
        self.copy_out(host, src)
        self.wait()
        self.copy_in(dst, host)

    def copy_peer(self, dst: Span, dst_context: DeviceContext, src: Span) -> bool:
        """Copy straight to another place; False: the framework goes through the host."""
        return False

    def record(self) -> Event:
        """Mark this point of the queue: here by waiting for it."""
        self.wait()
        return DoneEvent()

    def stamp(self) -> Stamp | None:
        """Mark this point of the queue, and note the time there; here None: the device has no timed events.

        Profilers ask for it between launches; without it they wait for the queue there.
        """
        return None

    def wait_for(self, event: Event) -> None:
        """Make later work wait for an event: here the host waits."""
        event.wait()

    def wait(self) -> None:
        """Block until the queue is idle; to be defined. Raise what failed, DeviceLost if the device is gone."""
        raise NotImplementedError(f"{type(self).__name__} must define wait")

    def close(self) -> None:
        """Nothing to let go of."""

    def activate(self) -> AbstractContextManager[Any]:
        """Make this queue the current one of its library's globals; entered once around a run, not per kernel."""
        return nullcontext()


class ArrayNamespace(Protocol):
    """The array capability: device bytes as arrays of an Array-API namespace."""

    xp: Any

    def wrap(self, span: Span, dims: tuple[int, ...], dtype: str, strides: tuple[int, ...] | None) -> Any:
        """View bytes as a writable array, no copy; ``strides`` in elements, None for C order."""
        ...

    def extra(self, name: str) -> Any:
        """Return a function beyond the standard (``"erf"``, ``"scatter_add"``, ...) or None."""
        ...


class ArrayBase:
    """Defaults of the array capability.

    Attributes
    ----------
    xp : module
        Array-API functions. Arrays must be writable in place (immutable libraries are not supported).
    out : bool
        Whether elementwise functions take the place of their result as an ``out=`` argument, as NumPy's do.
    eager : bool
        Whether reading one value costs no synchronisation (host memory): index checks then raise at once.
    """

    xp: Any = None
    out = False
    eager = False

    def extra(self, name: str) -> Any:
        """Return a function beyond the standard by its name, or None: here none."""
        return None

    def adopt(self, array: Any) -> Any:
        """Return the raw handle of an array that the library has just made, or None: the framework copies it."""
        return None


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
        promises what ``vector`` does for vectors of float and double of that size, named ``float16`` or ``double8``.
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
            setattr(self, name, value)

    def listings(self, source: str, entry: str, parameters: tuple[str, ...]) -> Mapping[str, str]:
        """Other forms of a kernel on its way to the device, for people to read, by the suffix of their files."""
        return {}

    def cache_info(self) -> Mapping[str, CacheInfo]:
        """What its own caches tell of themselves, by name."""
        return {}


class Device(Protocol):
    """What a plugin hands over for one kind of place."""

    kind: str

    def probe(self) -> int:
        """How many devices; raise DeviceUnavailable(reason). Called once, on first need; import drivers here."""
        ...

    def info(self, index: int) -> DeviceInfo:
        """Facts and limits of one device."""
        ...

    def allocator(self, index: int) -> Any:
        """Make an allocator of raw memory."""
        ...

    def context(self, index: int, queue: int) -> Any:
        """Make a context on queue ``queue``, 0 <= queue < info.queues."""
        ...

    def array(self, index: int) -> Any:
        """Return the array capability, or None."""
        ...

    def language(self, index: int) -> Any:
        """Return the kernel language capability, or None."""
        ...

    def supports(self, call: Any) -> str | None:
        """Return why kernels for its array namespace or its language, generated ones too, cannot run a call, or None.

        A pure function of metadata: ``call.op.type``, dims (-1 where they are not known yet), dtypes, attributes, and
        ``call.place``. Kernels that are registered for its kind, and those that only copy, are not asked about. A call
        that is refused is said with other operators or runs on the fallback place; ``explain`` shows the reason.
        """
        ...


class DeviceBase:
    """Defaults of a device: no array namespace, no kernel language, minimal facts.

    Attributes
    ----------
    place_name : str
        What ``fluidlite`` calls its places: with ``"AcmePlace"``, ``fluid.AcmePlace(1)`` is ``Place(kind, 1)`` as soon
        as the plugin is loaded. "": it has no such name. A subclass, whose kind is another, does not inherit it.
    extras : mapping of str to str
        Names of kernel languages that need an optional package, each with what follows `pip install` for it.
    """

    kind = ""
    place_name = ""
    extras: Mapping[str, str] = {}

    def probe(self) -> int:
        """Return how many devices there are; to be defined. Raise DeviceUnavailable(reason) if none can be used."""
        raise NotImplementedError(f"{type(self).__name__} must define probe")

    def info(self, index: int) -> DeviceInfo:
        """Return the facts of a device: here a name, and defaults for the rest."""
        return DeviceInfo(name=f"{self.kind} {index}")

    def allocator(self, index: int) -> Any:
        """Make an allocator of a device's raw memory; to be defined."""
        raise NotImplementedError(f"{type(self).__name__} must define allocator")

    def context(self, index: int, queue: int) -> Any:
        """Make a context on queue ``queue``, 0 <= queue < info.queues; to be defined."""
        raise NotImplementedError(f"{type(self).__name__} must define context")

    def array(self, index: int) -> Any:
        """Return the array capability, or None: here none."""
        return None

    def language(self, index: int) -> Any:
        """Return the kernel language capability, or None: here none."""
        return None

    def supports(self, call: Any) -> str | None:
        """Return why its namespace or kernel language cannot run a call, or None: here it runs every one."""
        return None

    def place(self, index: int) -> Place:
        """The place of device ``index``."""
        return Place(self.kind, index)
