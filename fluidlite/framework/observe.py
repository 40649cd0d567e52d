"""The one observation point of runs: ``fluid.debug`` and profilers put observers here. Unused, it costs nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fluidlite.base.dtypes import is_float
from fluidlite.base.epoch import epoch
from fluidlite.base.errors import NonFiniteError
from fluidlite.framework.operator import EMPTY, Operator
from fluidlite.framework.tensor import Tensor

if TYPE_CHECKING:
    from fluidlite.framework.plan import Launch

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
    epoch.begin()


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Call ``observer`` after each operator that this thread runs inside the block."""
    stack: list[Observer] = _local.__dict__.setdefault("observers", [])
    stack.append(observer)
    epoch.begin()
    try:
        yield
    finally:
        stack.remove(observer)


def observation(step: Launch, tensors: list[Tensor]) -> Observation:
    """Name the tensors of a finished launch."""
    op, call = step.op, step.call
    inputs: dict[str, Tensor] = {}
    outputs: dict[str, Tensor] = {}
    if call.op is op.definition:
        for slots, target in ((op.inputs, inputs), (op.outputs, outputs)):
            for slot, names in slots.items():
                start = call.index.get(slot)
                if start is None:
                    continue
                for i, name in enumerate(names):
                    if name != EMPTY and tensors[start + i].allocation is not None:
                        target[name] = tensors[start + i]
    else:  # a part of a decomposition: named by its own slots
        for slot, start in call.index.items():
            for i in range(call.count(slot)):
                if tensors[start + i].allocation is not None:
                    (inputs if slot in call.ins else outputs)[f"{call.op.type}.{slot}"] = tensors[start + i]
    return Observation(op, inputs, outputs)


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
