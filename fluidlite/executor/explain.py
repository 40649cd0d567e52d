"""explain: the plan of a run, before it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fluidlite.base.errors import FeedError, ProgramError
from fluidlite.executor.executor import DEFAULT_MODE, MODES
from fluidlite.executor.unread_feeds import check_read
from fluidlite.framework.explain import Report
from fluidlite.framework.planner import plan_block, updates
from fluidlite.framework.policy import Policy, policy
from fluidlite.framework.program import Block, Program, default_main_program
from fluidlite.framework.spec import Spec
from fluidlite.framework.tensor import Tensor
from fluidlite.framework.variable import Variable
from fluidlite.platform.devices import devices
from fluidlite.platform.place import PlaceLike

if TYPE_CHECKING:
    from fluidlite.transformers.computation import Computation
    from fluidlite.transformers.memory_plan import MemoryPlan


def explain(
    program: Program | Computation | None = None,
    place: PlaceLike | None = None,
    feed: Mapping[str, Any] | None = None,
    fetch_list: Sequence[Variable | str] | None = None,
    policy_: Policy | None = None,
    mode: str | None = None,
) -> Report:
    """Show, before running, which kernel will run each operator where, what moves, and why.

    Parameters
    ----------
    program : Program or Computation, optional
        Default: the main program. Of a computation, what it runs on its transformer's place.
    place : Place or str, optional
        Default: the CPU, or the computation's.
    feed : mapping of name to dims or array
        What is left out keeps its declared dims, -1 included.
    fetch_list : variables or names, optional
        What the run would fetch; if left out, every operator is shown.
    mode : {"compiled", "interpreted"}, optional
        As of the Executor that would run it: with passes, which may have fused operators, or as the program is
        written. Default: that of executors; without ``fetch_list``, when passes can't know what is wanted, as written.

    Raises
    ------
    PlaceError, DeviceUnavailable, KernelNotFoundError, ProgramError
    """
    compiled: tuple[Program, Sequence[str]] | None = None
    wanted = policy_ or policy()
    if program is not None and not isinstance(program, Program):
        computation = _checked(program, place, fetch_list)
        place, fetch_list, mode = computation.transformer.place, computation.fetches, mode or DEFAULT_MODE
        with computation.transformer.lock:
            computation.transform()
        program, compiled = computation.program, (computation.transformed, computation.transformed_fetches)
        wanted = computation.transformer.preferences(wanted)
    program = program if program is not None else default_main_program()
    where = devices.unit(place if place is not None else "cpu").place
    host = devices.host()
    mode = mode or (DEFAULT_MODE if fetch_list is not None else "interpreted")
    if mode not in MODES:
        raise ProgramError(f"mode is {mode!r}; expected one of {', '.join(MODES)}")
    block = program.global_block()
    feeds = {name: (feed_spec(block.var(name), value), host) for name, value in (feed or {}).items()}
    fetches: Sequence[str] = (
        _made(block) if fetch_list is None else [f if isinstance(f, str) else f.name for f in fetch_list]
    )
    if fetch_list is not None:
        check_read(program, feeds, fetches)
    if mode == "compiled":
        for name in fetches:
            block.var(name)
        if compiled is None:
            from fluidlite.transformers.compiled import CompiledPrograms

            compiled = CompiledPrograms(place=where).get(program, tuple(fetches), wanted)
        program, fetches = compiled
        if updates(program):
            wanted = replace(wanted, repeated=True)
    plan = plan_block(program, where, feeds, {}, fetches, wanted, assume_state=True)
    if fetch_list is None:
        plan.fetches = []
    if mode != "compiled" or not plan.known:
        return Report(plan)

    def memory() -> MemoryPlan:
        from fluidlite.transformers.lifespans import Lifespans
        from fluidlite.transformers.memory_plan import MemoryPlan

        return MemoryPlan(plan, Lifespans(plan, {}, {name: place for name, (_, place) in feeds.items()}, {}))

    return Report(plan, memory)


def _checked(computation: Any, place: PlaceLike | None, fetch_list: Any) -> Computation:
    from fluidlite.transformers.computation import Computation

    if not isinstance(computation, Computation):
        raise ProgramError(f"explain takes a Program or a Computation, got {type(computation).__name__}")
    own = computation.transformer.place
    if place is not None and devices.unit(place).place != own:
        raise ProgramError(f"place is {str(place)!r}, but the computation runs on {own}, its transformer's place")
    if fetch_list is not None:
        raise ProgramError("a computation has results of its own\n  Do: leave fetch_list out")
    return computation


def _made(block: Block) -> list[str]:
    """What the operators of a block make and none of them reads afterwards: what is read is needed anyway."""
    found: list[str] = []
    read: set[str] = set()
    for op in reversed(block.ops):  # read after it is written: an update in place is not
        written_last = [name for name in op.output_arg_names if name not in read]
        found += [name for name in written_last if block.find_var(name) is not None]
        read.update(op.input_arg_names)
    return list(dict.fromkeys(reversed(found)))


def feed_spec(variable: Variable, value: Any) -> Spec:
    """The Spec that explain assumes for a feed: a shape, an array, a Tensor, or a Spec."""
    declared = variable._spec()
    if isinstance(value, Spec):
        return value
    if isinstance(value, Tensor):
        return value.spec or declared
    if isinstance(value, np.ndarray):
        return Spec.of(value.shape, declared.dtype, lod_level=declared.lod_level)
    try:
        dims = tuple(int(d) for d in value)
    except (TypeError, ValueError):
        raise FeedError(
            f"explain's feed of {variable.name!r} is {value!r}; expected dims, such as (32, 784), or an array"
        ) from None
    return Spec.of(dims, declared.dtype, lod_level=declared.lod_level)
