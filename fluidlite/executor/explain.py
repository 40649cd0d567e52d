"""explain: reports the plan of a run, without running it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fluidlite.base.arguments import exact_ints
from fluidlite.base.errors import FeedError, ProgramError
from fluidlite.compiler.explain import Report
from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.planning.planner import plan_graph
from fluidlite.compiler.policy import Policy, policy
from fluidlite.executor.executor import DEFAULT_MODE, MODES
from fluidlite.executor.feeds import check_read
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import PlaceLike
from fluidlite.program.block import Block
from fluidlite.program.program import Program, default_main_program
from fluidlite.program.variable import Variable
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Spec

if TYPE_CHECKING:
    from fluidlite.compiler.computation import Computation
    from fluidlite.compiler.memory.memory_plan import MemoryPlan


def explain(
    program: Program | Computation | None = None,
    place: PlaceLike | None = None,
    feed: Mapping[str, Any] | None = None,
    fetch_list: Sequence[Variable | str] | None = None,
    policy_: Policy | None = None,
    mode: str | None = None,
) -> Report:
    """Return a report of the kernel and place of each operator and of all moves, with reasons, without running.

    Parameters
    ----------
    program : Program or Computation, optional
        Default: the main program. A computation is explained on its transformer's place.
    place : Place or str, optional
        Default: the CPU, or the computation's.
    feed : mapping of name to dims or array
        Variables that are left out keep their declared dims, including -1.
    fetch_list : variables or names, optional
        The fetches of the run; without it, every operator is included.
    policy_ : Policy, optional
        Preferences of kernels. Default: those of the process, with those of the transformer for a computation.
    mode : {"compiled", "interpreted"}, optional
        The mode of the Executor: with passes, which may fuse operators, or without. Default: that of executors;
        "interpreted" without ``fetch_list``, since passes need the fetches.

    Raises
    ------
    PlaceError, DeviceUnavailable, KernelNotFoundError, ProgramError
    """
    graph: Graph | None = None
    preferences = policy_ or policy()
    if program is not None and not isinstance(program, Program):
        computation = _checked_computation(program, place, fetch_list)
        place, fetch_list, mode = computation.transformer.place, computation.fetches, mode or DEFAULT_MODE
        with computation.transformer.lock:
            computation.transform()
        program, graph = computation.program, computation.transformed
        preferences = computation.transformer.preferences(preferences)
    program = program if program is not None else default_main_program()
    run_place = devices.unit(place if place is not None else "cpu").place
    host = devices.host()
    mode = mode or (DEFAULT_MODE if fetch_list is not None else "interpreted")
    if mode not in MODES:
        raise ProgramError(f"mode is {mode!r}; expected one of {', '.join(MODES)}")
    block = program.global_block()
    feeds = {name: (feed_spec(block.var(name), value), host) for name, value in (feed or {}).items()}
    fetches: Sequence[str] = (
        _results(block) if fetch_list is None else [f if isinstance(f, str) else f.name for f in fetch_list]
    )
    if graph is None:
        from fluidlite.compiler.graph_cache import GraphCache

        graphs = GraphCache(run_place)
        if fetch_list is not None:
            check_read(graphs.get(program, tuple(fetches), preferences, passes=False), feeds)
        graph = graphs.get(program, tuple(fetches), preferences, passes=mode == "compiled")
    if mode == "compiled" and graph.updates:
        preferences = replace(preferences, repeated=True)
    plan = plan_graph(graph, run_place, feeds, {}, preferences, assume_state=True)
    if fetch_list is None:
        plan.fetches = []
    if mode != "compiled" or not plan.is_static:
        return Report(plan)

    def memory() -> MemoryPlan:
        from fluidlite.compiler.memory.live_ranges import LiveRanges
        from fluidlite.compiler.memory.memory_plan import MemoryPlan

        return MemoryPlan(plan, LiveRanges(plan, {}, {name: place for name, (_, place) in feeds.items()}, {}))

    return Report(plan, memory)


def _checked_computation(computation: Any, place: PlaceLike | None, fetch_list: Any) -> Computation:
    from fluidlite.compiler.computation import Computation

    if not isinstance(computation, Computation):
        raise ProgramError(f"explain takes a Program or a Computation, got {type(computation).__name__}")
    own = computation.transformer.place
    if place is not None and devices.unit(place).place != own:
        raise ProgramError(f"place is {str(place)!r}, but the computation runs on {own}, its transformer's place")
    if fetch_list is not None:
        raise ProgramError("a computation has results of its own\n  Do: leave fetch_list out")
    return computation


def _results(block: Block) -> list[str]:
    """Return the outputs of a block that no later operator reads; these need all others."""
    names: list[str] = []
    read: set[str] = set()
    for op in reversed(block.ops):  # an in-place update reads its variable before it writes it
        written_last = [name for name in op.output_arg_names if name not in read]
        names += [name for name in written_last if block.find_var(name) is not None]
        read.update(op.input_arg_names)
    return list(dict.fromkeys(reversed(names)))


def feed_spec(variable: Variable, value: Any) -> Spec:
    """Return the Spec of a feed that is passed to explain as a shape, an array, a Tensor, or a Spec."""
    declared = variable._spec()
    if isinstance(value, Spec):
        return value
    if isinstance(value, Tensor):
        return value.spec or declared
    if isinstance(value, np.ndarray):
        return Spec.of(value.shape, declared.dtype, lod_level=declared.lod_level)
    try:
        dims = tuple(exact_ints(value))
    except (TypeError, ValueError, OverflowError):
        raise FeedError(
            f"explain's feed of {variable.name!r} is {value!r}; expected dims, such as (32, 784), or an array"
        ) from None
    return Spec.of(dims, declared.dtype, lod_level=declared.lod_level)
