"""Setting a network up and tearing it down: the layers side by side, each on a queue of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from fluidlite import unique_name
from fluidlite.base.errors import FluidError
from fluidlite.executor import Executor
from fluidlite.nn.memory_check import check_memory
from fluidlite.platform.device_registry import devices
from fluidlite.platform.threads import available_processors
from fluidlite.program.program import Program, program_guard
from fluidlite.program.scope import Scope

if TYPE_CHECKING:
    from fluidlite.nn.layer import Layer
    from fluidlite.nn.network import Network
    from fluidlite.nn.programs import Programs

Result = TypeVar("Result")

MAX_THREADS = 8
"""Layers that are set up at a time, on hosts with so many cores."""


@contextmanager
def building(program: Program, startup: Program, names: unique_name.Generator) -> Iterator[None]:
    """Layers inside append to a network's programs, with its own names."""
    with program_guard(program, startup), unique_name.guard(names):
        yield


def set_up(network: Network, programs: Programs) -> None:
    """Give parameters and optimizer state their first values.

    Each layer's memory is allocated on its own queue, which fills it; whoever reads it first, on another queue, waits
    for that on the device.
    """
    check_memory(network, network.layers, programs.state_bytes)
    for layer in network.layers:
        layer.queue()
    scopes = _side_by_side(network.layers, lambda layer: _initialised(network, layer))
    for scope in scopes:
        for name in scope.local_var_names():
            network.scope.var(name).get_tensor().share_data_with(scope.var(name).get_tensor())
    if programs.startup.global_block().ops:
        network.executor.run(programs.startup, scope=network.scope)
    if network.distributed:
        from fluidlite.distributed.groups import share_devices
        from fluidlite.distributed.parameters import broadcast_state, check_same_program

        broadcast_state(network.program, network.scope, network.group)
        check_same_program(network.program, network.group)
        share_devices(network.group, devices.unit(network.place))


def _initialised(network: Network, layer: Layer) -> Scope:
    """Run a layer's startup program on its queue; return a scope that has its values.

    Where several layers are set up at a time, each has its share of the processors: kernels that ask for all of them
    wait for each other.
    """
    scope = Scope()
    if layer.startup.global_block().ops:
        queue = layer.queue()
        executor = Executor(network.place, fallback=network.fallback, mode="interpreted", context=queue)
        at_a_time, before = _at_a_time(network.layers), queue.threads
        try:
            if at_a_time > 1:
                queue.threads = max(available_processors() // at_a_time, 1)
            executor.run(layer.startup, scope=scope)
        except FluidError as exc:
            exc.add_note(f"While layer {layer.number}, {layer}, was initialised on {network.place}")
            raise
        finally:
            queue.threads = before
            executor.close()
    return scope


def tear_down(network: Network) -> None:
    """Free what the layers hold, each on its queue, then the rest; close the queues."""
    _side_by_side(network.layers, lambda layer: _released(network, layer))
    network.scope.erase(network.scope.local_var_names())


def _released(network: Network, layer: Layer) -> None:
    network.scope.erase([v.name for v in (*layer.parameters, *layer.state)])
    if layer.context is not None:
        layer.context.close()
        layer.context = None


def _at_a_time(layers: Sequence[Layer]) -> int:
    return min(len(layers), MAX_THREADS, available_processors())


def _side_by_side(layers: Sequence[Layer], work: Callable[[Layer], Result]) -> list[Result]:
    """Do the work of all layers; if some fail, the first error is raised when all have ended."""
    threads = _at_a_time(layers)
    if threads < 2:
        return [work(layer) for layer in layers]
    with ThreadPoolExecutor(threads, thread_name_prefix="fluidlite-layers") as pool:
        futures = [pool.submit(work, layer) for layer in layers]
    return [future.result() for future in futures]
