"""Staging of a plugin's registrations, which are committed all together or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import ModuleType
from typing import Any

from fluidlite.base.errors import RegistryError
from fluidlite.base.plugin_modules import plugin_modules
from fluidlite.memory.strategies import NamedStrategy, strategies
from fluidlite.platform.device_registry import devices
from fluidlite.program.kernel_registry import Kernel, Library, kernels, kernels_of
from fluidlite.program.opdef import OpDef
from fluidlite.program.pass_registry import passes
from fluidlite.program.registry import ops


@dataclass
class Stage:
    """The registrations of one plugin's hooks, before they are committed."""

    devices: list[Any] = field(default_factory=list)
    libraries: list[Library] = field(default_factory=list)
    operators: list[tuple[OpDef, bool]] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    passes: list[Any] = field(default_factory=list)
    samples: list[str] = field(default_factory=list)
    strategies: list[NamedStrategy] = field(default_factory=list)

    def names(self) -> dict[str, list[str]]:
        return {
            "devices": [device.kind for device in self.devices],
            "libraries": [library.name for library in self.libraries],
            "operators": [op.type for op, _ in self.operators],
            "samples": self.samples,
            "kernels": sorted(kernel.op for kernel in self.kernels),
            "passes": [getattr(item, "name", repr(item)) for item in self.passes],
            "strategies": [strategy.name for strategy in self.strategies],
        }


def take_device(stage: Stage, item: Any) -> None:
    if isinstance(item, type) or not isinstance(getattr(item, "kind", None), str):
        raise RegistryError(f"register_devices got {item!r}; expected a device: an object that has a kind, probe, ...")
    stage.devices.append(item)


def take_library(stage: Stage, item: Any, plugin: str) -> None:
    if not isinstance(item, Library):
        raise RegistryError(f"register_libraries got {item!r}; expected a Library(name, places, rank)")
    stage.libraries.append(item if item.origin else replace(item, origin=f"plugin {plugin!r}"))


def take_operators(stage: Stage, item: Any, plugin: str) -> None:
    if isinstance(item, str):
        if plugin_modules.owner(item) != plugin:
            raise RegistryError(
                f"register_operators got {item!r} as a module of samples; expected one of the plugin's own package, "
                "outside of its tests"
            )
        stage.samples.append(item)
        return
    if isinstance(item, OpDef):
        definitions = [item]
    elif isinstance(item, ModuleType):
        defined = (value for value in vars(item).values() if isinstance(value, OpDef))
        definitions = [op for op in defined if ops.find(op.type) is not op or _declared_in(item, op)]
    else:
        raise RegistryError(
            f"register_operators got {item!r}; expected what register_op returns, a module, or a module's name"
        )
    staged_ids = {id(op) for op, _ in stage.operators}
    stage.operators.extend((op, False) for op in definitions if id(op) not in staged_ids)


def _declared_in(module: ModuleType, declaration: OpDef | Kernel) -> bool:
    """Whether a module, or its package, declares an object itself, instead of importing it."""
    folders = [f"{path}{os.sep}" for path in getattr(module, "__path__", ())]
    return declaration.origin.startswith((f"{module.__file__}:", *folders))


def take_kernels(stage: Stage, item: Any) -> None:
    if isinstance(item, Kernel):
        staged = [item]
    elif isinstance(item, ModuleType):
        staged = [x for x in kernels_of(item) if x not in kernels.of(x.op) or _declared_in(item, x)]
    else:
        raise RegistryError(f"register_kernels got {item!r}; expected what @register_kernel returns, or a module")
    stage.kernels.extend(kernel for kernel in staged if kernel not in stage.kernels)


def commit(stage: Stage, name: str, origin: str) -> list[Callable[[], None]]:
    done: list[Callable[[], None]] = []
    registries: tuple[tuple[Sequence[Any], Callable[[Any], None], Callable[[Any], None]], ...] = (
        (stage.devices, lambda device: devices.add(device, f"plugin {name!r} ({origin})"), devices.remove),
        (stage.libraries, kernels.add_library, kernels.remove_library),
        (stage.operators, lambda declared: ops.add(*declared), lambda declared: ops.remove(declared[0])),
        (stage.kernels, kernels.add, kernels.remove),
        (stage.strategies, strategies.add, strategies.remove),
        (stage.passes, lambda graph_pass: passes.add(graph_pass, name), passes.remove),
    )
    try:
        for items, add, remove in registries:
            for item in items:
                add(item)
                done.append(partial(remove, item))
    except Exception:
        for undo in reversed(done):
            undo()
        raise
    return done
