"""Errors of runs: with the operator and the user's line, and those that a device records and a run reads later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from fluidlite.base.errors import DeviceError, DeviceLost, FluidError, OutOfMemoryError, OutOfRangeError, ProgramError
from fluidlite.compiler.frame import Frame
from fluidlite.compiler.planning.plan import Control, Launch, Move
from fluidlite.platform.context import Context
from fluidlite.platform.place import Place
from fluidlite.program.op_call import located
from fluidlite.program.operator import CHECKS


class LateError(OutOfRangeError):
    """An index out of range that a device recorded, found when the host looked; it names its operator."""


class StepError(Exception):
    """An action that serves several steps failed for this one; its cause says how."""

    def __init__(self, step: Launch) -> None:
        super().__init__(step)
        self.step = step


def fail(exc: BaseException, step: Any, frame: Frame) -> NoReturn:
    """Raise what a step of a run raised again, with the operator, the user's line and the place."""
    if isinstance(exc, StepError) and exc.__cause__ is not None:
        step, exc = exc.step, exc.__cause__
    if isinstance(exc, LateError):
        raise exc
    if isinstance(exc, OutOfRangeError):
        raise OutOfRangeError(f"{step.op}: {exc}" if isinstance(step, Launch) else str(exc)) from None
    if isinstance(exc, OutOfMemoryError):
        raise OutOfMemoryError(f"{what(step)}: {exc}") from exc
    if isinstance(exc, ProgramError):
        raise located(exc, what(step)) from exc
    if isinstance(exc, DeviceError):
        if isinstance(exc, DeviceLost) and isinstance(step, Launch):  # raised inside a kernel: poison the place here
            unit = frame.contexts[step.choice.place].unit
            unit.lost = unit.lost or str(exc)
        raise _located(exc, step) from exc
    if isinstance(exc, FluidError):
        raise exc
    if isinstance(exc, MemoryError):
        raise OutOfMemoryError(f"{what(step)}: out of memory: {exc}") from exc
    where = step.choice.place if isinstance(step, Launch) else frame.place
    raise DeviceError(f"{what(step)} failed on {where}: {type(exc).__name__}: {exc}{_kernel_text(step, exc)}") from exc


def _kernel_text(step: Any, error: BaseException | None) -> str:
    """For the author of a kernel: where it is, and what a KeyError could have named."""
    if not isinstance(step, Launch) or step.choice.kernel is None:
        return ""
    text = f"\n  In {step.choice.kernel.whose}"
    if isinstance(error, KeyError):
        call = step.call
        text += f"; slots here: {', '.join(call.index)}; attributes: {', '.join(call.attrs) or 'none'}"
    return text


def before_state(frame: Frame, guarded: Context | None) -> None:
    """Raise a deferred error before state is written; a kernel predicated on its context's error flag may go on."""
    suspects = [context for context in frame.contexts.values() if context.suspect and context is not guarded]
    if suspects:
        raise_late(frame, suspects)


def what(step: Any) -> str:
    """A step as errors name it: the operator, with the user's line, or what moves."""
    if isinstance(step, (Launch, Control)):
        return str(step.op)
    return f"moving {step.name} from {step.source} to {step.target}" if isinstance(step, Move) else "the run"


def _located(error: DeviceError, step: Any) -> DeviceError:
    kernel = _kernel_text(step, None)
    again = type(error)(f"{what(step)}: {error}{'' if kernel in str(error) else kernel}")
    again.__dict__.update(error.__dict__)
    return again


def raise_late(frame: Frame, suspects: list[Context], wait_for: Mapping[Place, Context] | None = None) -> None:
    """Wait, and raise the first deferred error that a status word holds."""
    suspects = [context for context in suspects if not context.nothing_late()]
    words = [(context, context.begin_status()) for context in suspects]
    waiting = dict(wait_for or {})
    waiting.update({context.place: context for context in suspects})
    for context in waiting.values():
        context.wait()
    for context, word in words:
        late = context.end_status(word)
        if late is not None:
            index, value, bound = late
            op = frame.plan.lines[index].op if index < len(frame.plan.lines) else None
            name = op.hints.get(CHECKS, op) if op is not None else "an operator"
            raise LateError(
                f"{name}: index {value} is out of range; expected 0 to {bound - 1}"
                f"\n  Found on {context.place}; operators after it wrote no state"
            )
