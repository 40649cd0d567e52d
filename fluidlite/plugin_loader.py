"""The plugin loader, also for built-in plugins: each plugin's registrations are staged, then committed atomically."""

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
from fluidlite.base import plugin_callback
from fluidlite.base.errors import PluginWarning, RegistryError
from fluidlite.base.fork import new_rlock
from fluidlite.base.plugin_modules import plugin_modules
from fluidlite.memory.strategies import NamedStrategy
from fluidlite.platform.device_registry import devices
from fluidlite.plugin_stage import Stage, commit, take_device, take_kernels, take_library, take_operators
from fluidlite.program import kernel_registry, registry as operator_registry
from fluidlite.program.kernel_registry import CAPABILITIES, Kernel, kernels, matches
from fluidlite.program.registry import ops
from fluidlite.program.rules import GradRule

API = hookspecs.API_VERSION
GROUP = f"fluidlite.v{API}"
HOOKS = ("register_devices", "register_libraries", "register_operators", "register_kernels", "register_passes")
BUILT_IN = (
    "fluidlite.devices.cpu",
    "fluidlite.devices.cuda",
    "fluidlite.devices.opencl",
    "fluidlite.devices.null",
    "fluidlite.kernels.memory",
    "fluidlite.kernels.language",
    "fluidlite.kernels.opaque",
    "fluidlite.kernels.blas",
    "fluidlite.kernels.mpi",
    "fluidlite.kernels.nccl",
    "fluidlite.kernels.cublas",
)


@dataclass
class PluginRecord:
    """The state of one plugin.

    Attributes
    ----------
    name, version : str
    api : int
        The version of the plugin API that it was written for.
    state : str
        ``"loaded"``, ``"failed"`` or ``"mismatch"``.
    brought : dict
        Names by hook: devices, libraries, operators, kernels, passes; the modules of samples.
    error : str
        The root cause in one line; ``traceback`` has the details.
    odd : list of str
        Problems while it was loaded, such as a hook without ``@hookimpl``.
    """

    name: str
    version: str
    api: int
    state: str = "loaded"
    origin: str = ""
    brought: dict[str, list[str]] = field(default_factory=dict)
    error: str = ""
    traceback: str = ""
    problems: list[str] = field(default_factory=list)
    built_in: bool = False

    @property
    def notes(self) -> list[str]:
        """Problems while it was loaded, and current ones, such as a kernel for an undeclared operator."""
        return [*self.problems, *(_current_problems(self) if self.state == "loaded" else ())]


_lock = new_rlock()
_state = threading.local()
_records: dict[str, PluginRecord] = {}
_undo: dict[str, list[Callable[[], None]]] = {}
_loaded = False


def load_all() -> None:
    """Load the built-in and the installed plugins, once.

    A plugin whose package is being imported at the moment, by the caller or by another thread, is loaded by the first
    call after that.
    """
    global _loaded
    if _loaded or getattr(_state, "busy", False):
        return
    with _lock:
        if _loaded:
            return
        _state.busy = True
        try:
            from fluidlite import __version__

            complete = True
            for module in BUILT_IN:
                name = _built_in_name(module)
                if name in _records:  # loaded before an interrupt
                    continue
                if plugin_modules.being_imported(module):
                    complete = False
                else:
                    load(name, module, __version__, built_in=True)
            _loaded = complete and _load_entry_points()
        finally:
            _state.busy = False


def _built_in_name(module: str) -> str:
    return module.removeprefix("fluidlite.")


def _load_entry_points() -> bool:
    """Load the installed plugins; return whether none was skipped."""
    complete = True
    for point in sorted(_entry_points(), key=lambda p: (p.group, p.name)):
        version = point.dist.version if point.dist is not None else ""
        existing = _records.get(point.name)
        if existing is not None:
            if existing.origin != point.value:
                record = PluginRecord(f"{point.name} ({point.value})", version, API, "failed", point.value)
                record.error = f"its name is taken by the plugin from {existing.origin}; it was not imported"
                if record.name not in _records:
                    _keep(record)
            continue
        if point.group != GROUP:
            api = int(point.group.removeprefix(GROUP.rstrip("0123456789")))
            record = PluginRecord(point.name, version, api, "mismatch", point.value)
            record.error = f"written for plugin API {api}, this is API {API}; it was not imported"
            _keep(record)
            continue
        if plugin_modules.being_imported(_module_of(point.value)):
            complete = False
        else:
            load(point.name, point.value, version)
    return complete


def _module_of(target: str) -> str:
    return target.partition(":")[0]


def _entry_points() -> Iterable[Any]:
    from importlib import metadata  # imported here: it takes as long as all of this package

    points = metadata.entry_points()
    prefix = GROUP.rstrip("0123456789")
    groups = [group for group in points.groups if group.startswith(prefix) and group.removeprefix(prefix).isdecimal()]
    return [point for group in groups for point in points.select(group=group)]


def load(name: str, target: str | ModuleType | Any, version: str = "", built_in: bool = False) -> PluginRecord:
    """Load one plugin: import it, call its hooks, and commit all of their registrations, or none.

    Parameters
    ----------
    name : str
        Its name in ``fluid.plugins()``.
    target : str or module
        A module, or its location: ``"package.module"``, ``"package.module:object"``.
    version : str
        Its version in ``fluid.plugins()``.
    built_in : bool
        Whether it belongs to fluidlite: its kernels may then name kinds of devices that are not registered.

    Returns
    -------
    PluginRecord
        Its state; if it raised, with the reason, which is also a warning.

    Raises
    ------
    RegistryError
        If a plugin of that name is loaded already.
    """
    record = PluginRecord(
        name, version, API, origin=target if isinstance(target, str) else repr(target), built_in=built_in
    )
    with _lock:
        if name in _records:
            raise RegistryError(f"a plugin called {name!r} is loaded already, from {_records[name].origin}")
        was_busy = getattr(_state, "busy", False)
        _state.busy = True
        if isinstance(target, str):
            plugin_modules.add(_module_of(target), name)
        try:
            stage = _call_hooks(name, target, record)
            for kernel in stage.kernels:
                kernel.plugin = name
            _undo[name] = commit(stage, name, record.origin)
            record.brought = stage.names()
        except KeyboardInterrupt:
            raise
        except BaseException as exc:  # also SystemExit of a module
            record.state = "failed"
            record.error = _root_cause(exc)
            import traceback

            record.traceback = "".join(traceback.format_exception(exc))
        finally:
            _state.busy = was_busy
        plugin_modules.mark_loaded(name)
        _keep(record)
    return record


def _root_cause(exc: BaseException) -> str:
    """The first exception in the chain of causes, in one line."""
    causes = [exc]
    while (cause := causes[-1].__cause__) is not None and not any(cause is each for each in causes):
        causes.append(cause)
    try:
        text = str(causes[-1])
    except Exception as wrong:
        text = f"(its text raises {type(wrong).__name__})"
    return f"{type(causes[-1]).__name__}: {text}"


def unload(name: str) -> None:
    """Undo all registrations of a plugin."""
    with _lock:
        for undo in reversed(_undo.pop(name, [])):
            undo()
        _records.pop(name, None)
        plugin_modules.remove(name)


def _keep(record: PluginRecord) -> None:
    _records[record.name] = record
    if record.state != "loaded":
        warnings.warn(
            f"plugin {record.name!r} was left out: {record.error} (fluidlite plugins shows more)",
            PluginWarning,
            stacklevel=4,
        )


def _call_hooks(name: str, target: Any, record: PluginRecord) -> Stage:
    stage = Stage()
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    kernel_registry.collecting.active = True
    operator_registry.collecting.operators = stage.operators
    try:
        plugin = _resolve(target) if isinstance(target, str) else target
        manager.register(plugin, name)
        manager.check_pending()  # a misspelt hook is an error
        record.problems += _unmarked_hooks(plugin, manager)
        takers: dict[str, Callable[[Any], None]] = {
            "register_devices": lambda item: take_device(stage, item),
            "register_libraries": lambda item: take_library(stage, item, name),
            "register_operators": lambda item: take_operators(stage, item, name),
            "register_kernels": lambda item: take_kernels(stage, item),
            "register_passes": stage.passes.append,
        }
        for hook, take in takers.items():
            for implementation in getattr(manager.hook, hook).get_hookimpls():
                implementation.function(take)
    finally:
        kernel_registry.collecting.active = False
        operator_registry.collecting.operators = None
    _take_declared(stage, name, record)
    return stage


def _take_declared(stage: Stage, name: str, record: PluginRecord) -> None:
    """Stage operators and strategies that the plugin's modules declare; report kernels that no hook registered."""
    staged = {id(op) for op, _ in stage.operators} | {id(kernel) for kernel in stage.kernels}
    for thing in plugin_modules.declared(name):
        if isinstance(thing, NamedStrategy):
            stage.strategies.append(thing)
        elif isinstance(thing, Kernel):
            if id(thing) not in staged:
                record.problems.append(f"{thing.description} was registered by none of its hooks")
        elif isinstance(thing, tuple) and id(thing[0]) not in staged:
            stage.operators.append(thing)


def _unmarked_hooks(plugin: Any, manager: pluggy.PluginManager) -> list[str]:
    """Hooks that are defined without ``@hookimpl``, and therefore not called."""
    called = {caller.name for caller in manager.get_hookcallers(plugin) or ()}
    return [
        f"{hook} is defined without @hookimpl, so it was not called"
        for hook in HOOKS
        if callable(getattr(plugin, hook, None)) and hook not in called
    ]


def _resolve(target: str) -> Any:
    module_name, _, attribute = target.partition(":")
    module: Any = importlib.import_module(module_name)
    for part in filter(None, attribute.split(".")):
        module = getattr(module, part)
    return module


def _current_problems(record: PluginRecord) -> list[str]:
    """Current problems: kernels whose operator or kind of device is missing, and libraries without gradient kernels."""
    problems = []
    kinds = devices.kinds()
    plugin_kernels = [kernel for kernel in kernels if kernel.plugin == record.name]
    for kernel in plugin_kernels:
        if ops.find(kernel.op) is None:
            problems.append(f"{kernel.description}: no such operator is declared")
        unknown = [
            place
            for place in kernel.places
            if place not in CAPABILITIES and not any(matches(place, kind) for kind in kinds)
        ]
        if unknown and not record.built_in:
            problems.append(
                f"{kernel.description}: no device is of kind {', '.join(unknown)}; there are {', '.join(kinds)}"
            )
    for library in sorted({kernel.library for kernel in plugin_kernels} - {"plain"}) if not record.built_in else ():
        types = {kernel.op for kernel in kernels if kernel.library == library}
        grads = {op.grad.type for type in types if (op := ops.find(type)) and isinstance(op.grad, GradRule)}
        if lacks := sorted(grads - types):
            problems.append(f"library {library!r} has no kernels for {', '.join(lacks)}: gradients use other libraries")
    return problems


def plugins() -> list[PluginRecord]:
    """The state of every plugin, built-in ones first."""
    load_all()
    return sorted(_records.values(), key=lambda record: not record.built_in)


def _installed() -> dict[str, str]:
    """The modules of installed plugins, each with the plugin's name."""
    points = sorted(_entry_points(), key=lambda point: point.name, reverse=True)
    return {_module_of(point.value): point.name for point in points if point.group == GROUP}


plugin_callback.set_loader(load_all)
plugin_modules.set_finder(_installed, {module: _built_in_name(module) for module in BUILT_IN})
