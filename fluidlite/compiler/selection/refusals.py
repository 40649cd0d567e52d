"""Why a kernel, a device or a kernel language does not take a call; each asks metadata alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fluidlite.base.errors import SupportsError
from fluidlite.compiler.policy import Policy
from fluidlite.platform.device_registry import Unit
from fluidlite.platform.kernel_language import runs_side_by_side
from fluidlite.program.kernel_registry import Kernel
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Slot
from fluidlite.tensor.layout import layout_named

MANY_OPERATORS = 16
"""Operators in a fused one from which on calls of the array namespace take longer than one compiled kernel, whatever
their size.
"""
_NAMES = {"array": "the array namespace", "language": "the kernel language"}


def unused(capability: str, call: Call, unit: Unit, policy: Policy) -> str | None:
    """Why a capability of a device is left aside for a call, or None."""
    if capability in policy.exclude:
        return "excluded by the policy"
    if capability != "language":
        return None
    if unit.lacks["array"] and capability_refusal("array", call, unit) is not None:
        return None
    chosen = policy.capability(unit.place.kind) if policy.codegen else None
    if chosen == "array":
        return "codegen is another"
    if chosen == "language" or unit.array is None or "array" in policy.exclude:
        return None
    least = getattr(unit.language, "least", 0)
    if call.op.expression is not None and call.op.expression.operators >= MANY_OPERATORS:
        return None
    if least and not policy.repeated and 0 <= call.largest < least:
        return f"under {least} elements the array namespace starts sooner"
    return None


def unsuited(kernel: Kernel, call: Call, unit: Unit, policy: Policy) -> str | None:
    """Why a kernel that is written for other devices, or in a kernel language that is not used, is left aside."""
    if not kernel.written_for:
        return None
    reason = of_other_devices(kernel, unit)
    if reason is None and kernel.written_for == "registers":
        return unused("language", call, unit, policy)
    return reason


def of_other_devices(kernel: Kernel, unit: Unit) -> str | None:
    """Why a kernel is written for other devices, or None."""
    if kernel.written_for == "registers" and getattr(unit.language, "registers", None) is None:
        return f"{unit.place.kind} has no kernel language that names vector registers"
    if kernel.written_for == "cores" and runs_side_by_side(unit.language):
        return f"its work-items are few and long, and {unit.place.kind} runs many side by side"
    return None


def device_refusal(call: Call, unit: Unit) -> str | None:
    """Why the device itself cannot compute a call (a dtype it lacks), or None."""
    for slot, specs in (*call.ins.items(), *call.outs.items()):
        for spec in specs if slot not in call.op.not_computed else ():
            if spec.dtype not in unit.info.dtypes:
                return f"{unit.place.kind} does not compute {spec.dtype} ({slot})"
    return None


def device_veto(call: Call, unit: Unit) -> str | None:
    """Why the device refuses kernels that are written or generated for its namespace or kernel language, or None."""
    if unit.supports is None:
        return None
    return asked_of(unit.supports, call.at(unit.place), lambda: f"device kind {unit.place.kind!r}")


def asked_of(supports: Callable[[Call], Any], call: Call, whose: Callable[[], str]) -> str | None:
    """The answer of a plugin's ``supports``; an error of it is not blamed on anybody else."""
    try:
        answer = supports(call)
    except Exception as exc:
        raise _no_answer(call, whose(), f"raised {type(exc).__name__}", f": {exc}") from exc
    if answer is not None and not isinstance(answer, str):
        raise _no_answer(call, whose(), f"returned {answer!r}")
    return answer


def _no_answer(call: Call, whose: str, how: str, why: str = "") -> SupportsError:
    type = call.op.type
    return SupportsError(
        f"supports(call) of {whose} {how} for operator {type}{why}"
        "\n  Do: let it return None, or the reason of a refusal as a text; dims may be -1",
        type,
    )


def capability_refusal(capability: str, call: Call, unit: Unit) -> str | None:
    """Why a capability of a device cannot compute a call (a type it lacks), or None."""
    lacking = unit.lacks.get(capability)
    for slot, spec, _ in _specs(call) if lacking else ():
        if lacking and spec.dtype in lacking and slot not in call.op.not_computed:
            return f"{_NAMES[capability]} of {unit.place.kind} has no {spec.dtype} ({slot})"
    return None


def refuse(kernel: Kernel, call: Call, unit: Unit) -> str | None:
    """Why a kernel does not take a call on a device, or None."""
    for slot in call.op.decomposed:
        if call.has(slot):
            return f"kernels do not know {slot}; the decomposition does"
    plain = not kernel.layouts and "dense" in kernel.kinds and call.dense
    for slot, spec, declared in () if plain else _specs(call):
        if spec.kind not in kernel.kinds and not (declared is not None and declared.unread):
            return f"it takes {', '.join(kernel.kinds)}, {slot} is {spec.kind}"
        wanted = kernel.layouts.get(slot, "plain")
        order = layout_named(wanted).permutation if wanted not in ("plain", "any") else None
        if order is not None and len(order) != spec.rank:
            return f"it takes layout {wanted} for {slot}, this has rank {spec.rank}"
    if kernel.dtypes is not None:
        if isinstance(kernel.dtypes, tuple):
            if call.key_dtype not in kernel.dtypes:
                return f"it takes {', '.join(kernel.dtypes)}, this is {call.key_dtype}"
        else:
            for slot, allowed in kernel.dtypes.items():
                for spec in call.specs(slot):
                    if spec.dtype not in allowed:
                        return f"it takes {', '.join(allowed)} for {slot}, this is {spec.dtype}"
    reason = device_refusal(call, unit)
    if reason is not None or kernel.supports is None:
        return reason
    return asked_of(kernel.supports, call, lambda: kernel.whose)


def _specs(call: Call) -> Iterator[tuple[str, Any, Slot | None]]:
    for slots, find in ((call.ins, call.op.input), (call.outs, call.op.output)):
        declared: Callable[[str], Slot | None] = find
        for slot, specs in slots.items():
            for spec in specs:
                yield slot, spec, declared(slot)
