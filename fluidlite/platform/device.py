"""The device protocol that plugins implement, and base classes with every default.

A memory-only device is six functions: ``probe``, ``allocate``, ``release``, ``copy_in``,
``copy_out`` and ``wait``. The array and the kernel language capability make it fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Protocol

from fluidlite.platform.place import Place


@dataclass(frozen=True)
class DeviceInfo:
    """Facts of one device. Fields are only ever added, with defaults.

    ``memory`` is in bytes (None: unknown), ``alignment`` a power of two, in bytes: every allocation starts at a
    multiple of it.
    ``dtypes`` are those the device can compute with; ``tolerance`` loosens the conformance kit's
    relative tolerance, per dtype. ``host`` says that its raw handles are host memory
    with the buffer protocol (that device is the fallback place, and the place of feeds and fetches).
    ``dlpack`` is the device type number of the DLPack standard, if the device exchanges arrays by DLPack.
    ``fork_safe`` says that the device's objects work in a forked child, closing included. Otherwise a child of a
    process that has used the device gets an error at its first use, and does not release objects of the parent.
    ``computes`` is False for a device that computes no values: it is used only where it is named, and is not among
    ``places()``. ``identity`` identifies the device on its machine, equally in every process; "": unknown.
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
    identity: str = ""

    def __hash__(self) -> int:
        return hash((self.name, self.memory))


class Device(Protocol):
    """The device object that a plugin registers for one kind of place."""

    kind: str

    def probe(self) -> int:
        """How many devices; raise DeviceUnavailable(reason). Called once, on first need; import drivers here."""
        ...

    def info(self, index: int) -> DeviceInfo:
        """Facts and limits of one device."""
        ...

    def allocator(self, index: int) -> Any:
        """Create an allocator of raw memory."""
        ...

    def context(self, index: int, queue: int) -> Any:
        """Create a context on queue ``queue``, 0 <= queue < info.queues."""
        ...

    def array(self, index: int) -> Any:
        """Return the array capability, or None."""
        ...

    def language(self, index: int) -> Any:
        """Return the kernel language capability, or None."""
        ...

    def supports(self, call: Any) -> str | None:
        """Return why kernels for its array namespace or its language, generated ones too, cannot run a call, or None.

        A pure function of metadata: ``call.op.type``, dims (-1 where unknown), dtypes, attributes, and ``call.place``.
        It is not called for kernels registered for the device's kind, nor for kernels that only copy. A refused call
        is decomposed into other operators or runs on the fallback place; ``explain`` shows the reason.
        """
        ...


class DeviceBase:
    """Defaults of a device: no array namespace, no kernel language, minimal facts.

    Attributes
    ----------
    place_name : str
        The name of its places in ``fluidlite``: with ``"AcmePlace"``, ``fluid.AcmePlace(1)`` is ``Place(kind, 1)`` as
        soon as the plugin is loaded. "": no such name. A subclass does not inherit it, since its kind differs.
    extras : mapping of str to str
        By name of a kernel language that needs optional packages: the arguments of `pip install` for them.
    """

    kind = ""
    place_name = ""
    extras: Mapping[str, str] = {}

    def probe(self) -> int:
        """Return the number of devices; to be defined. Raise DeviceUnavailable(reason) if none can be used."""
        raise NotImplementedError(f"{type(self).__name__} must define probe")

    def info(self, index: int) -> DeviceInfo:
        """Return the facts of a device. Here: a name, and defaults for the rest."""
        return DeviceInfo(name=f"{self.kind} {index}")

    def allocator(self, index: int) -> Any:
        """Create an allocator of a device's raw memory; to be defined."""
        raise NotImplementedError(f"{type(self).__name__} must define allocator")

    def context(self, index: int, queue: int) -> Any:
        """Create a context on queue ``queue``, 0 <= queue < info.queues; to be defined."""
        raise NotImplementedError(f"{type(self).__name__} must define context")

    def array(self, index: int) -> Any:
        """Return the array capability, or None. Here: None."""
        return None

    def language(self, index: int) -> Any:
        """Return the kernel language capability, or None. Here: None."""
        return None

    def supports(self, call: Any) -> str | None:
        """Return why the namespace or kernel language cannot run a call, or None. Here: None, it runs every call."""
        return None

    def place(self, index: int) -> Place:
        """The place of device ``index``."""
        return Place(self.kind, index)
