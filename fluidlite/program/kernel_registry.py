"""The registry of kernels, by operator, place kind or capability, library, dtypes, layouts and kinds of tensor.

A kernel is ``prepare(call, context) -> run``, and ``run(context, io)`` computes.
"""

from __future__ import annotations

import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from fluidlite.base.dtypes import ITEMSIZE
from fluidlite.base.errors import PlaceError, PluginWarning, RegistryError
from fluidlite.base.fork import new_rlock
from fluidlite.base.invalidation import cache_version
from fluidlite.base.plugin_callback import ensure_loaded
from fluidlite.base.plugin_modules import plugin_modules
from fluidlite.platform.place import Place
from fluidlite.program.kernel_options import KernelOptions
from fluidlite.program.op_call import Call
from fluidlite.program.prepared import Prepared, as_prepared
from fluidlite.tensor.layout import layout_named

CAPABILITIES = ("array", "language", "memory")
"""Capabilities: a kernel registered for one is available on all devices that have it (``memory``: every device)."""

Supports = Callable[[Call], "str | None"]


@dataclass(frozen=True)
class Library:
    """A computing library: its name, the place kinds that it supports, and its rank (the highest is preferred)."""

    name: str
    places: tuple[str, ...]
    rank: int = 0
    doc: str = ""
    origin: str = ""


@dataclass(eq=False)
class Kernel:
    """The implementation of one operator on some places with one library.

    Attributes
    ----------
    op : str
        Operator type.
    places : tuple of str
        Place kinds (``"cpu"``), patterns (``"torch:*"``) or capabilities (``"array"``, ``"language"``, ``"memory"``).
    library : str
    dtypes : tuple of str, mapping of slot to tuple of str, or None
        Allowed dtypes of the operator's kernel dtype slot, or by slot; None: all that the device supports.
        supports : callable or None
        ``supports(call) -> str | None``: the reason of a refusal, or None; pure; dims may be -1.
    inplace : bool
        Outputs may share memory with inputs where the definition allows.
    kinds, layouts, prefers, indexes, predicated, library_backed, epilogue, written_for
        See :class:`~fluidlite.program.kernel_options.KernelOptions`.
    origin, plugin : str
        File and line; the plugin that provides it, "" for a script's.
    """

    op: str
    places: tuple[str, ...]
    function: Callable[..., Any]
    library: str = "plain"
    dtypes: tuple[str, ...] | Mapping[str, tuple[str, ...]] | None = None
    supports: Supports | None = None
    inplace: bool = False
    override: bool = False
    origin: str = ""
    identity: str = ""
    plugin: str = ""
    kinds: tuple[str, ...] = ("dense",)
    layouts: Mapping[str, str] = field(default_factory=dict)
    prefers: Mapping[str, str] = field(default_factory=dict)
    indexes: bool = False
    predicated: bool = False
    library_backed: bool = False
    epilogue: bool = False
    written_for: str = ""

    def __post_init__(self) -> None:
        parameters = len(inspect.signature(self.function).parameters)
        if parameters not in (1, 2):
            raise RegistryError(
                f"kernel for {self.op!r} ({self.origin}) takes {parameters} arguments; "
                "give it two, prepare(call, context) -> run, or one, the compute form f(ctx)"
            )
        self.plain = parameters == 1
        self._prefixes = tuple([place[:-1] for place in self.places if place.endswith(":*")])
        self._check()

    def runs_on(self, kind: str) -> bool:
        """Whether it is registered for a place kind, by name or by a pattern."""
        return kind in self.places or kind.startswith(self._prefixes)

    @property
    def description(self) -> str:
        """The text that names the kernel in errors: operator, file and line, library, and plugin."""
        plugin = f", plugin {self.plugin!r}" if self.plugin else ""
        return f"the kernel for {self.op!r} at {self.origin} (library {self.library!r}{plugin})"

    def _check(self) -> None:
        """Raise RegistryError for a registration that could never match."""
        what = f"kernel for {self.op!r} ({self.origin})"
        for place in self.places:
            kind = place.removesuffix(":*")
            try:
                Place(kind)
            except PlaceError:
                raise RegistryError(
                    f"{what} names the place {place!r}; give a kind such as 'cpu', a pattern such as 'torch:*', "
                    f"or one of {', '.join(CAPABILITIES)}"
                ) from None
        groups = {"": self.dtypes} if self.dtypes is None or isinstance(self.dtypes, tuple) else self.dtypes
        if not isinstance(groups, Mapping) or any(isinstance(group, str) for group in groups.values()):
            raise RegistryError(f"{what} has dtypes={self.dtypes!r}; expected a tuple of names, or one by slot")
        for name in (*self.layouts.values(), *self.prefers.values()):
            if name != "any":
                layout_named(name)
        for dtype in [dtype for group in groups.values() for dtype in group or ()]:
            if dtype not in ITEMSIZE:
                raise RegistryError(f"{what} names the dtype {dtype!r}; there are {', '.join(ITEMSIZE)}")

    def prepare(self, call: Call, context: Any) -> Prepared:
        """Return the prepared kernel of a call.

        Raises
        ------
        DeviceError
            If its function returns neither ``run(context, io)`` nor :class:`Prepared`.
        """
        if not self.plain:
            return as_prepared(self.function(call, context), call, self.description)
        from fluidlite.program.compute_form import plain_run

        return Prepared(plain_run(self.function, call))

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def __repr__(self) -> str:
        return f"Kernel({self.op!r}, {', '.join(self.places)}, {self.library!r})"


class KernelRegistry:
    """All kernels and libraries; ``generation`` is the version counter that invalidates caches."""

    def __init__(self) -> None:
        self.generation = 0
        self._kernels: dict[str, list[Kernel]] = {}
        self._libraries: dict[str, Library] = {"plain": Library("plain", ("*",), 0, "the framework's own kernels")}
        self._lock = new_rlock()

    def invalidate_choices(self) -> None:
        """Invalidate all kernel choices: kernels have changed, or state that some ``supports`` reads has."""
        with self._lock:
            self.generation += 1
            cache_version.invalidate()

    def add(self, kernel: Kernel) -> None:
        """Register a kernel; a second kernel of a key is an error unless it has ``override=True``."""
        with self._lock:
            registered = self._kernels.setdefault(kernel.op, [])
            replaced: list[Kernel] = []
            for other in registered:
                if other is kernel:
                    return
                if not clash(kernel, other):
                    continue
                if kernel.identity and kernel.identity == other.identity:
                    replaced.append(other)  # a notebook cell that is rerun
                elif not kernel.override:
                    raise RegistryError(
                        f"a kernel for operator {kernel.op!r} on {', '.join(kernel.places)} with library "
                        f"{kernel.library!r} is registered twice: at {other.origin} and at {kernel.origin}.\n"
                        "  Do: name another library=, or say override=True"
                    )
            for other in replaced:
                registered.remove(other)
            # the hidden kernel stays behind the override: for other places and dtypes, and for the override's removal
            registered.insert(0 if kernel.override else len(registered), kernel)
            self.invalidate_choices()

    def remove(self, kernel: Kernel) -> None:
        with self._lock:
            if kernel in self._kernels.get(kernel.op, ()):
                self._kernels[kernel.op].remove(kernel)
                self.invalidate_choices()

    def add_library(self, library: Library) -> None:
        with self._lock:
            other = self._libraries.get(library.name)
            if other is not None and other != library:
                by = " and by ".join(each.origin or "a script" for each in (other, library))
                raise RegistryError(
                    f"library {library.name!r} is registered twice: by {by}\n  Do: give one of them another name"
                )
            self._libraries[library.name] = library
            self.invalidate_choices()

    def remove_library(self, library: Library) -> None:
        with self._lock:
            self._libraries.pop(library.name, None)
            self.invalidate_choices()

    def library(self, name: str) -> Library:
        """Return the library of that name; an undeclared one has rank 0."""
        return self._libraries.get(name) or Library(name, ("*",), 0)

    def libraries(self) -> list[Library]:
        ensure_loaded()
        return list(self._libraries.values())

    def has_identity(self, identity: str) -> bool:
        """Whether the function of that module and name is already registered."""
        return any(kernel.identity == identity for kernels in self._kernels.values() for kernel in kernels)

    def has_layouts(self, op: str) -> bool:
        """Whether a kernel of an operator declares layouts."""
        return any([kernel.layouts for kernel in self._kernels.get(op, ())])

    def of(self, op: str) -> tuple[Kernel, ...]:
        """Return all kernels of an operator, in the order of registration."""
        return tuple(self._kernels.get(op, ()))

    def __iter__(self) -> Iterator[Kernel]:
        ensure_loaded()
        return iter([kernel for kernels in self._kernels.values() for kernel in kernels])


def clash(a: Kernel, b: Kernel) -> bool:
    """Whether two kernels have the same key: a common place, library, layouts, kind of tensor and dtype."""
    if a.library != b.library or not set(a.places) & set(b.places) or not set(a.kinds) & set(b.kinds):
        return False
    if dict(a.layouts) != dict(b.layouts):
        return False
    if isinstance(a.dtypes, tuple) and isinstance(b.dtypes, tuple):
        return bool(set(a.dtypes) & set(b.dtypes))
    return True


kernels = KernelRegistry()
collecting = threading.local()
"""``collecting.active`` is true while the loader imports a plugin: decorators then only create Kernel objects."""


def register_kernel(
    op: str,
    *places: str,
    library: str = "plain",
    dtypes: tuple[str, ...] | Mapping[str, tuple[str, ...]] | None = None,
    supports: Supports | None = None,
    inplace: bool = False,
    override: bool = False,
    options: KernelOptions | None = None,
) -> Callable[[Callable[..., Any]], Kernel]:
    """Register a function as the kernel of operator ``op`` on ``places``.

    The function takes two arguments, ``prepare(call, context)``, and returns ``run(context, io)``;
    or one, ``f(ctx)``, the compute form (see docs/write_a_kernel.md). In a script or notebook the kernel is registered
    at once; a plugin registers the decorated functions of its package in ``register_kernels(register)``.

    Parameters
    ----------
    op : str
        Operator type.
    *places : str
        Kinds (``"cpu"``), patterns (``"torch:*"``) or capabilities (``"array"``, ``"language"``, ``"memory"``).
    library : str
        The computing library; among kernels of one place, the library with the highest rank is chosen.
    dtypes : tuple of str, or mapping of slot to tuple of str
        Allowed dtypes of the operator's kernel dtype slot, or by slot; None: all that the device supports.
        supports : callable
        ``supports(call) -> str | None``: the reason of a refusal, or None; pure; dims may be -1.
    inplace : bool
        Outputs may share memory with inputs where the definition allows.
    override : bool
        It hides a registered kernel of the same key.
    options : KernelOptions
        Less common properties: layouts, kinds of tensor, checked indices, ...

    Raises
    ------
    RegistryError
        If the key is registered already (the message names both origins), or the function has another number of
        parameters.
    """
    if options is not None and not isinstance(options, KernelOptions):
        raise RegistryError(f"register_kernel({op!r}, options={options!r}): expected KernelOptions(...)")
    if not places:
        raise RegistryError(f"register_kernel({op!r}): name at least one place kind, or 'array', 'language', 'memory'")

    def decorate(function: Callable[..., Any]) -> Kernel:
        code = getattr(function, "__code__", None)
        frame = sys._getframe(1)
        origin = f"{code.co_filename}:{code.co_firstlineno}" if code else f"{frame.f_code.co_filename}:{frame.f_lineno}"
        kernel = Kernel(
            op,
            tuple(places),
            function,
            library,
            dtypes,
            supports,
            inplace,
            override,
            origin,
            f"{function.__module__}.{function.__qualname__}",
            **vars(options or KernelOptions()),
        )
        plugin = plugin_modules.declare(kernel, frame)
        if getattr(collecting, "active", False):
            return kernel
        if plugin is None or kernels.has_identity(kernel.identity):
            kernel.plugin = plugin or ""
            ensure_loaded()  # else a built-in plugin that loads later would clash with this kernel and be dropped
            kernels.add(kernel)
        elif plugin in plugin_modules.loaded:
            warnings.warn(
                f"{kernel.description} is left out: it is in a module of plugin {plugin!r}, "
                "whose hooks did not register it"
                "\n  Do: hand it over in register_kernels(register), or register it in a function or script",
                PluginWarning,
                stacklevel=2,
            )
        return kernel

    return decorate


def kernels_of(module: ModuleType) -> list[Kernel]:
    """Return the Kernel objects in a module, including the submodules of a package."""
    kernels: list[Kernel] = []
    for value in vars(module).values():
        if isinstance(value, Kernel) and value not in kernels:
            kernels.append(value)
        elif isinstance(value, ModuleType) and value.__name__.startswith(module.__name__ + "."):
            kernels.extend(kernel for kernel in kernels_of(value) if kernel not in kernels)
    return kernels


def matches(kernel_place: str, kind: str) -> bool:
    """Whether a kernel's place matches a kind: equal, or by a pattern that ends in ``:*``."""
    return kernel_place == kind or (kernel_place.endswith(":*") and kind.startswith(kernel_place[:-1]))
