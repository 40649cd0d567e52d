"""Set up and tear down a network: the layers in parallel, each on its own queue."""

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
"""Maximum number of layers that are set up concurrently, if the host has as many cores."""


@contextmanager
def building(program: Program, startup: Program, names: unique_name.Generator) -> Iterator[None]:
    """Context in which layers append to a network's programs, with the network's names."""
    with program_guard(program, startup), unique_name.guard(names):
        yield


def set_up(network: Network, programs: Programs) -> None:
    """Initialise parameters and optimizer state.

    Each layer's memory is allocated and filled on its own queue; the first reader on another queue waits for that on
    the device.
    """
    check_memory(network, network.layers, programs.state_bytes)
    for layer in network.layers:
        layer.queue()
    scopes = _in_parallel(network.layers, lambda layer: _initialise(network, layer))
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


def _initialise(network: Network, layer: Layer) -> Scope:
    """Run a layer's startup program on its queue; return the scope of its values.

    If several layers are set up concurrently, each uses its share of the processors: kernels that use all of them would
    wait for each other.
    """
    scope = Scope()
    if layer.startup.global_block().ops:
        queue = layer.queue()
        executor = Executor(network.place, fallback=network.fallback, mode="interpreted", context=queue)
        concurrent, threads_before = _thread_count(network.layers), queue.threads
        try:
            if concurrent > 1:
                queue.threads = max(available_processors() // concurrent, 1)
            executor.run(layer.startup, scope=scope)
        except FluidError as exc:
            exc.add_note(f"While layer {layer.number}, {layer}, was initialised on {network.place}")
            raise
        finally:
            queue.threads = threads_before
            executor.close()
    return scope


def tear_down(network: Network) -> None:
    """Free the layers' memory, each on its queue, then the rest; close the queues."""
    _in_parallel(network.layers, lambda layer: _release_layer(network, layer))
    network.scope.erase(network.scope.local_var_names())


def _release_layer(network: Network, layer: Layer) -> None:
    network.scope.erase([v.name for v in (*layer.parameters, *layer.state)])
    if layer.context is not None:
        layer.context.close()
        layer.context = None


def _thread_count(layers: Sequence[Layer]) -> int:
    return min(len(layers), MAX_THREADS, available_processors())


def _in_parallel(layers: Sequence[Layer], work: Callable[[Layer], Result]) -> list[Result]:
    """Do some work for all layers in parallel; errors are raised after all have ended, the first one of them."""
    threads = _thread_count(layers)
    if threads < 2:
        return [work(layer) for layer in layers]
    with ThreadPoolExecutor(threads, thread_name_prefix="fluidlite-layers") as pool:
        futures = [pool.submit(work, layer) for layer in layers]
    return [future.result() for future in futures]
