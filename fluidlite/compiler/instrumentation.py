"""The one observation point of runs, for ``fluid.debug``'s observers and a profiler's timer. Unused, it costs nothing.

An observer sees values: operators run one by one for it, as the program is written. A timer sees launches: executables
are linked for it without command buffers over several operators, and are otherwise those that run without it.
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
    """What an observer sees after an operator ran: its tensors by variable name."""

    op: Operator
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]


Observer = Callable[[Observation], None]


_everywhere: list[Observer] = []


def observers() -> list[Observer]:
    """The observers of this thread, and those of all threads."""
    mine: list[Observer] = getattr(_local, "observers", [])
    return [*_everywhere, *mine] if _everywhere else mine


def everywhere(observer: Observer, on: bool) -> None:
    """Add an observer of all threads, or take it away."""
    if on and observer not in _everywhere:
        _everywhere.append(observer)
    elif not on and observer in _everywhere:
        _everywhere.remove(observer)
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
        """What a run is inside of, from its feeds to its fetches; ``contexts`` are the queues that it holds."""
        ...

    def timed(self, frame: Frame, owners: Sequence[Step], items: Iterable[Item]) -> Generator[Item]:
        """Yield ``items``, which do what the steps ``owners`` are, one for one, and read a clock between them.

        Who iterates closes the generator, also after an error.
        """
        ...


_timer: Timer | None = None


def timer() -> Timer | None:
    """The timer of the runs of all threads, or None."""
    return _timer


def timed_run(frame: Frame, contexts: Sequence[Context]) -> AbstractContextManager[Any]:
    """What a run is inside of, where a timer records it."""
    return _timer.run(frame, contexts) if _timer is not None else nullcontext()


def set_timer(new_timer: Timer | None) -> None:
    """Let a timer read clocks between the launches of all threads; None: nobody does."""
    global _timer
    _timer = new_timer
    cache_version.invalidate()


@first_in_child
def _forget_timer() -> None:
    """A forked child is not the one whose runs were to be timed."""
    global _timer
    _timer = None


def observed() -> bool:
    """Whether somebody observes or times this thread's runs, so that no fast path may be taken."""
    return _timer is not None or bool(observers())


def observation(step: Launch, tensors: list[Tensor]) -> Observation:
    op, call = step.op, step.call
    inputs: dict[str, Tensor] = {}
    outputs: dict[str, Tensor] = {}
    if call.op is op.definition:
        sides: tuple[tuple[Mapping[str, Sequence[GraphValue | None]], dict[str, Tensor]], ...]
        sides = (op.inputs, inputs), (op.outputs, outputs)
        for slots, target in sides:
            for slot, values in slots.items():
                start = call.index.get(slot)
                if start is None:
                    continue
                for i, value in enumerate(values):
                    if value is not None and tensors[start + i].allocation is not None:
                        target[value.name] = tensors[start + i]
    else:  # a part of a decomposition: named by its own slots
        for slot, start in call.index.items():
            for i in range(call.count(slot)):
                if tensors[start + i].allocation is not None:
                    (inputs if slot in call.ins else outputs)[f"{call.op.type}.{slot}"] = tensors[start + i]
    return Observation(op.operator, inputs, outputs)


def _bad(array: np.ndarray[Any, Any]) -> str:
    values = array.astype(np.float64, copy=False)
    nans, infs = int(np.isnan(values).sum()), int(np.isinf(values).sum())
    return " and ".join(f"{count} {name}" for count, name in ((nans, "NaN"), (infs, "Inf")) if count)


def check_finite(seen: Observation) -> None:
    """Raise NonFiniteError if an operator wrote NaN or Inf."""
    for name, tensor in seen.outputs.items():
        if not is_float(tensor.dtype):
            continue
        found = _bad(tensor.numpy())
        if not found:
            continue
        bad_inputs = [n for n, t in seen.inputs.items() if is_float(t.dtype) and _bad(t.numpy())]
        finite = [
            f"{n} within ±{float(np.abs(t.numpy().astype(np.float64)).max()):.4g}"
            for n, t in seen.inputs.items()
            if is_float(t.dtype) and t.spec is not None and t.spec.size and n not in bad_inputs
        ]
        why = (
            f"its inputs {', '.join(bad_inputs)} had some already"
            if bad_inputs
            else f"its inputs were finite ({'; '.join(finite)})"
        )
        raise NonFiniteError(f"{seen.op} wrote {found} into {name} {list(tensor.dims)}; {why}")
