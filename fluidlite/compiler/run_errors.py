"""Errors of runs: adds the operator and the user's line, and raises deferred errors that a device has recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from fluidlite.base.errors import DeviceError, DeviceLost, FluidError, OutOfMemoryError, OutOfRangeError, ProgramError
from fluidlite.compiler.frame import Frame
from fluidlite.compiler.planning.plan import Control, Launch, Move
from fluidlite.platform.context import Context
from fluidlite.platform.place import Place
from fluidlite.program.op_call import with_location
from fluidlite.program.operator import INDEX_CHECKER


class DeferredIndexError(OutOfRangeError):
    """A deferred error: an index out of range that a device recorded, with its operator."""


class StepError(Exception):
    """An action of several steps failed for this one; the error is its cause."""

    def __init__(self, step: Launch) -> None:
        super().__init__(step)
        self.step = step


def fail(exc: BaseException, step: Any, frame: Frame) -> NoReturn:
    """Raise an error of a step again, with the operator, the user's line and the place."""
    if isinstance(exc, StepError) and exc.__cause__ is not None:
        step, exc = exc.step, exc.__cause__
    if isinstance(exc, DeferredIndexError):
        raise exc
    if isinstance(exc, OutOfRangeError):
        raise OutOfRangeError(f"{step.op}: {exc}" if isinstance(step, Launch) else str(exc)) from None
    if isinstance(exc, OutOfMemoryError):
        raise OutOfMemoryError(f"{step_text(step)}: {exc}") from exc
    if isinstance(exc, ProgramError):
        raise with_location(exc, step_text(step)) from exc
    if isinstance(exc, DeviceError):
        if isinstance(exc, DeviceLost) and isinstance(step, Launch):  # raised inside a kernel: mark the place as lost
            unit = frame.contexts[step.choice.place].unit
            unit.lost = unit.lost or str(exc)
        raise _with_step(exc, step) from exc
    if isinstance(exc, FluidError):
        raise exc
    if isinstance(exc, MemoryError):
        raise OutOfMemoryError(f"{step_text(step)}: out of memory: {exc}") from exc
    where = step.choice.place if isinstance(step, Launch) else frame.place
    raise DeviceError(
        f"{step_text(step)} failed on {where}: {type(exc).__name__}: {exc}{_kernel_text(step, exc)}"
    ) from exc


def _kernel_text(step: Any, error: BaseException | None) -> str:
    """Return, for the author of a kernel, its location and the names that a KeyError may mean."""
    if not isinstance(step, Launch) or step.choice.kernel is None:
        return ""
    text = f"\n  In {step.choice.kernel.description}"
    if isinstance(error, KeyError):
        call = step.call
        text += f"; slots here: {', '.join(call.index)}; attributes: {', '.join(call.attrs) or 'none'}"
    return text


def raise_before_state_write(frame: Frame, exempt: Context | None) -> None:
    """Raise deferred errors before a write of state, except those on which the kernel is predicated (of ``exempt``)."""
    fallible = [context for context in frame.contexts.values() if context.may_have_error and context is not exempt]
    if fallible:
        raise_deferred_errors(frame, fallible)


def step_text(step: Any) -> str:
    """Return the text of a step in errors: the operator with the user's line, or the move."""
    if isinstance(step, (Launch, Control)):
        return str(step.op)
    return f"moving {step.name} from {step.source} to {step.target}" if isinstance(step, Move) else "the run"


def _with_step(error: DeviceError, step: Any) -> DeviceError:
    kernel = _kernel_text(step, None)
    located_error = type(error)(f"{step_text(step)}: {error}{'' if kernel in str(error) else kernel}")
    located_error.__dict__.update(error.__dict__)
    return located_error


def raise_deferred_errors(
    frame: Frame, suspects: list[Context], wait_for: Mapping[Place, Context] | None = None
) -> None:
    """Wait, and raise the first deferred error of the status words of some contexts."""
    suspects = [context for context in suspects if not context.has_no_deferred_error()]
    words = [(context, context.begin_status()) for context in suspects]
    waiting = dict(wait_for or {})
    waiting.update({context.place: context for context in suspects})
    for context in waiting.values():
        context.wait()
    for context, word in words:
        deferred = context.end_status(word)
        if deferred is not None:
            index, value, bound = deferred
            op = frame.plan.lines[index].op if index < len(frame.plan.lines) else None
            name = op.hints.get(INDEX_CHECKER, op) if op is not None else "an operator"
            raise DeferredIndexError(
                f"{name}: index {value} is out of range; expected 0 to {bound - 1}"
                f"\n  Found on {context.place}; operators after it wrote no state"
            )
