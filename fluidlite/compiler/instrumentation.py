"""Instrumentation of runs, for the observers of ``fluid.debug`` and the timer of the profiler. Unused, it is free.

An observer receives values: operators run one by one, without passes. A timer receives launches: executables are
linked without command buffers over several operators, and are otherwise the same as without a timer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from fluidlite.base.dtypes import is_float
from fluidlite.base.errors import NonFiniteError
from fluidlite.base.fork import first_in_child
from fluidlite.base.invalidation import cache_version
from fluidlite.program.operator import Operator
from fluidlite.tensor.tensor import Tensor

if TYPE_CHECKING:
    from fluidlite.compiler.frame import Frame
    from fluidlite.compiler.ir.graph_nodes import GraphValue
    from fluidlite.compiler.planning.plan import Launch, Step
    from fluidlite.platform.context import Context

_local = threading.local()


@dataclass(frozen=True)
class Observation:
    """The tensors of an operator that has run, by variable name."""

    op: Operator
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]


Observer = Callable[[Observation], None]


_process_observers: list[Observer] = []


def observers() -> list[Observer]:
    """Return the observers of this thread and those of all threads."""
    thread_observers: list[Observer] = getattr(_local, "observers", [])
    return [*_process_observers, *thread_observers] if _process_observers else thread_observers


def set_process_observer(observer: Observer, on: bool) -> None:
    """Add or remove an observer of all threads."""
    if on and observer not in _process_observers:
        _process_observers.append(observer)
    elif not on and observer in _process_observers:
        _process_observers.remove(observer)
    cache_version.invalidate()


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Call ``observer`` after each operator that this thread runs inside the block."""
    stack: list[Observer] = _local.__dict__.setdefault("observers", [])
    stack.append(observer)
    cache_version.invalidate()
    try:
        yield
    finally:
        stack.remove(observer)


Item = TypeVar("Item")


class Timer(Protocol):
    """Reads clocks between the launches of all threads."""

    def run(self, frame: Frame, contexts: Sequence[Context]) -> AbstractContextManager[Any]:
        """Return the context manager of a run, from its feeds to its fetches; ``contexts`` are the locked queues."""
        ...

    def timed(self, frame: Frame, owners: Sequence[Step], items: Iterable[Item]) -> Generator[Item]:
        """Yield ``items``, the actions of the steps ``owners``, and read a clock between them.

        The caller closes the generator, also after an error.
        """
        ...


_timer: Timer | None = None
_UNTIMED = nullcontext()


def timer() -> Timer | None:
    """Return the timer of all threads, or None."""
    return _timer


def timed_run(frame: Frame, contexts: Sequence[Context]) -> AbstractContextManager[Any]:
    """Return the timer's context manager of a run."""
    return _timer.run(frame, contexts) if _timer is not None else _UNTIMED


def set_timer(new_timer: Timer | None) -> None:
    """Set the timer that reads clocks between the launches of all threads, or None."""
    global _timer
    _timer = new_timer
    cache_version.invalidate()


@first_in_child
def _forget_timer() -> None:
    """Remove the timer in a forked child: only the parent is timed."""
    global _timer
    _timer = None


def is_observed() -> bool:
    """Whether this thread's runs are observed or timed, so that no fast path may be taken."""
    return _timer is not None or bool(observers())


def observation(step: Launch, tensors: list[Tensor]) -> Observation:
    op, call = step.op, step.call
    inputs: dict[str, Tensor] = {}
    outputs: dict[str, Tensor] = {}
    if call.op is op.definition:
        groups: tuple[tuple[Mapping[str, Sequence[GraphValue | None]], dict[str, Tensor]], ...]
        groups = (op.inputs, inputs), (op.outputs, outputs)
        for slots, tensors_by_name in groups:
            for slot, values in slots.items():
                start = call.index.get(slot)
                if start is None:
                    continue
                for i, value in enumerate(values):
                    if value is not None and tensors[start + i].allocation is not None:
                        tensors_by_name[value.name] = tensors[start + i]
    else:  # a part of a decomposition, named by its own slots
        for slot, start in call.index.items():
            for i in range(call.count(slot)):
                if tensors[start + i].allocation is not None:
                    (inputs if slot in call.ins else outputs)[f"{call.op.type}.{slot}"] = tensors[start + i]
    return Observation(op.operator, inputs, outputs)


def _non_finite_text(array: np.ndarray[Any, Any]) -> str:
    values = array.astype(np.float64, copy=False)
    nans, infs = int(np.isnan(values).sum()), int(np.isinf(values).sum())
    return " and ".join(f"{count} {name}" for count, name in ((nans, "NaN"), (infs, "Inf")) if count)


def check_finite(observation: Observation) -> None:
    """Raise NonFiniteError if an operator wrote NaN or Inf."""
    for name, tensor in observation.outputs.items():
        if not is_float(tensor.dtype):
            continue
        bad_values = _non_finite_text(tensor.numpy())
        if not bad_values:
            continue
        bad_inputs = [n for n, t in observation.inputs.items() if is_float(t.dtype) and _non_finite_text(t.numpy())]
        finite = [
            f"{n} within ±{float(np.abs(t.numpy().astype(np.float64)).max()):.4g}"
            for n, t in observation.inputs.items()
            if is_float(t.dtype) and t.spec is not None and t.spec.size and n not in bad_inputs
        ]
        input_text = (
            f"its inputs {', '.join(bad_inputs)} had some already"
            if bad_inputs
            else f"its inputs were finite ({'; '.join(finite)})"
        )
        raise NonFiniteError(f"{observation.op} wrote {bad_values} into {name} {list(tensor.dims)}; {input_text}")
