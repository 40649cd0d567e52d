"""Loading of plugins, built-in ones too: one at a time, guarded, staged, kept whole or dropped whole."""

from __future__ import annotations

import importlib
import threading
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pluggy

from fluidlite import hookspecs
from fluidlite.base import bell
from fluidlite.base.errors import PluginWarning, RegistryError
from fluidlite.framework import kernels as kernel_room
from fluidlite.framework import registry as operator_room
from fluidlite.framework.kernels import Kernel, Library, kernels, kernels_of
from fluidlite.framework.opdef import OpDef
from fluidlite.framework.passes import passes
from fluidlite.framework.registry import ops
from fluidlite.platform.devices import devices

API = 1
GROUP = f"fluidlite.v{API}"
BUILT_IN = (
    "fluidlite.platform.cpu",
    "fluidlite.platform.cuda",
    "fluidlite.platform.opencl",
    "fluidlite.kernels.memory",
    "fluidlite.kernels.array",
    "fluidlite.kernels.dialect",
    "fluidlite.kernels.plain",
    "fluidlite.kernels.blas",
)


@dataclass
class PluginRecord:
    """What became of one plugin.

    Attributes
    ----------
    name, version : str
    api : int
        The plugin API that it was written for.
    state : str
        ``"loaded"``, ``"failed"`` or ``"mismatch"``.
    brought : dict
        Names by hook: devices, libraries, operators, kernels, passes.
    error : str
        The root cause in a line; ``traceback`` has the rest.
    notes : list of str
        What was odd, such as a kernel for an operator that nobody declares.
    """

    name: str
    version: str
    api: int
    state: str = "loaded"
    origin: str = ""
    brought: dict[str, list[str]] = field(default_factory=dict)
    error: str = ""
    traceback: str = ""
    notes: list[str] = field(default_factory=list)
    built_in: bool = False


@dataclass
class _Stage:
    """What one plugin's hooks registered, before anything is kept."""

    devices: list[Any] = field(default_factory=list)
    libraries: list[Library] = field(default_factory=list)
    operators: list[tuple[OpDef, bool]] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    passes: list[Any] = field(default_factory=list)

    def names(self) -> dict[str, list[str]]:
        return {
            "devices": [device.kind for device in self.devices],
            "libraries": [library.name for library in self.libraries],
            "operators": [op.type for op, _ in self.operators],
            "kernels": sorted({kernel.op for kernel in self.kernels}),
            "passes": [getattr(item, "name", repr(item)) for item in self.passes],
        }


_lock = threading.RLock()
_state = threading.local()
_records: dict[str, PluginRecord] = {}
_undo: dict[str, list[Callable[[], None]]] = {}
_loaded = False


def load_all() -> None:
    """Load the built-in plugins and those that are installed, once."""
    global _loaded
    if _loaded or getattr(_state, "busy", False):
        return
    with _lock:
        if _loaded:
            return
        _state.busy = True
        try:
            from fluidlite import __version__

            for module in BUILT_IN:
                name = module.removeprefix("fluidlite.")
                if name not in _records:  # else an interrupted load goes on
                    load(name, module, __version__, built_in=True)
            _load_entry_points()
            _loaded = True
        finally:
            _state.busy = False


def _load_entry_points() -> None:
    for point in sorted(_entry_points(), key=lambda p: (p.group, p.name)):
        version = point.dist.version if point.dist is not None else ""
        known = _records.get(point.name)
        if known is not None:
            if known.origin != point.value:
                record = PluginRecord(f"{point.name} ({point.value})", version, API, "failed", point.value)
                record.error = f"its name is taken by the plugin from {known.origin}; it was not imported"
                if record.name not in _records:
                    _keep(record)
            continue
        if point.group != GROUP:
            api = int(point.group.removeprefix(GROUP.rstrip("0123456789")))
            record = PluginRecord(point.name, version, api, "mismatch", point.value)
            record.error = f"written for plugin API {api}, this is API {API}; it was not imported"
            _keep(record)
            continue
        load(point.name, point.value, version)


def _entry_points() -> Iterable[Any]:
    from importlib import metadata  # late: it costs as much as all of this package

    found = metadata.entry_points()
    prefix = GROUP.rstrip("0123456789")
    groups = [group for group in found.groups if group.startswith(prefix) and group.removeprefix(prefix).isdecimal()]
    return [point for group in groups for point in found.select(group=group)]


def load(name: str, target: str | ModuleType | Any, version: str = "", built_in: bool = False) -> PluginRecord:
    """Load one plugin: import it, call its hooks, and keep all that they registered, or nothing.

    Parameters
    ----------
    name : str
        Its name in ``fluid.plugins()``.
    target : str or module
        A module, or where to find one: ``"package.module"``, ``"package.module:object"``.
    """
    record = PluginRecord(
        name, version, API, origin=target if isinstance(target, str) else repr(target), built_in=built_in
    )
    with _lock:
        if name in _records:
            raise RegistryError(f"a plugin called {name!r} is loaded already, from {_records[name].origin}")
        before = getattr(_state, "busy", False)
        _state.busy = True
        try:
            stage = _call_hooks(name, target)
            _undo[name] = _commit(stage, record)
            record.brought = stage.names()
        except (Exception, SystemExit) as exc:  # a module that exits takes nobody with it
            root: BaseException = exc
            while root.__cause__ is not None:
                root = root.__cause__
            record.state = "failed"
            record.error = f"{type(root).__name__}: {root}"
            import traceback

            record.traceback = "".join(traceback.format_exception(exc))
        finally:
            _state.busy = before
        _keep(record)
    return record


def unload(name: str) -> None:
    """Take back all that a plugin registered."""
    with _lock:
        for undo in reversed(_undo.pop(name, [])):
            undo()
        _records.pop(name, None)


def _keep(record: PluginRecord) -> None:
    _records[record.name] = record
    if record.state != "loaded":
        warnings.warn(
            f"plugin {record.name!r} was left out: {record.error} (fluidlite plugins shows more)",
            PluginWarning,
            stacklevel=4,
        )


def _call_hooks(name: str, target: Any) -> _Stage:
    stage = _Stage()
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    kernel_room.collecting.active = True
    operator_room.collecting.found = stage.operators
    try:
        plugin = _resolve(target) if isinstance(target, str) else target
        manager.register(plugin, name)
        manager.check_pending()  # a misspelt hook is an error, not silence
        takers: dict[str, Callable[[Any], None]] = {
            "register_devices": stage.devices.append,
            "register_libraries": stage.libraries.append,
            "register_operators": lambda item: _take_operators(stage, item),
            "register_kernels": lambda item: _take_kernels(stage, item),
            "register_passes": stage.passes.append,
        }
        for hook, take in takers.items():
            for implementation in getattr(manager.hook, hook).get_hookimpls():
                implementation.function(take)
    finally:
        kernel_room.collecting.active = False
        operator_room.collecting.found = None
    return stage


def _resolve(target: str) -> Any:
    module_name, _, attribute = target.partition(":")
    module: Any = importlib.import_module(module_name)
    for part in filter(None, attribute.split(".")):
        module = getattr(module, part)
    return module


def _take_operators(stage: _Stage, item: Any) -> None:
    if isinstance(item, OpDef):
        found = [item]
    elif isinstance(item, ModuleType):
        found = [value for value in vars(item).values() if isinstance(value, OpDef)]
    else:
        raise RegistryError(f"register_operators got {item!r}; expected what register_op returns, or a module")
    known = {id(op) for op, _ in stage.operators}
    stage.operators.extend((op, False) for op in found if id(op) not in known)


def _take_kernels(stage: _Stage, item: Any) -> None:
    if isinstance(item, Kernel):
        found = [item]
    elif isinstance(item, ModuleType):
        found = kernels_of(item)
    else:
        raise RegistryError(f"register_kernels got {item!r}; expected what @register_kernel returns, or a module")
    stage.kernels.extend(kernel for kernel in found if kernel not in stage.kernels)


def _commit(stage: _Stage, record: PluginRecord) -> list[Callable[[], None]]:
    done: list[Callable[[], None]] = []

    def keep(add: Callable[[], None], remove: Callable[[], None]) -> None:
        add()
        done.append(remove)

    try:
        for device in stage.devices:
            keep(lambda d=device: devices.add(d, record.origin), lambda d=device: devices.remove(d))  # type: ignore[misc]
        for library in stage.libraries:
            keep(lambda x=library: kernels.add_library(x), lambda x=library: kernels.remove_library(x))  # type: ignore[misc]
        for op, override in stage.operators:
            keep(lambda o=op, v=override: ops.add(o, v), lambda o=op: ops.remove(o))  # type: ignore[misc]
        for kernel in stage.kernels:
            keep(lambda k=kernel: kernels.add(k), lambda k=kernel: kernels.remove(k))  # type: ignore[misc]
        for item in stage.passes:
            keep(lambda p=item: passes.add(p, record.name), lambda p=item: passes.remove(p))  # type: ignore[misc]
    except Exception:
        for undo in reversed(done):
            undo()
        raise
    for kernel in stage.kernels:
        if ops.find(kernel.op) is None:
            record.notes.append(f"kernel for operator {kernel.op!r} ({kernel.origin}): no such operator is declared")
    return done


def plugins() -> list[PluginRecord]:
    """What became of every plugin, built-in ones first."""
    load_all()
    return sorted(_records.values(), key=lambda record: not record.built_in)


bell.set_loader(load_all)
