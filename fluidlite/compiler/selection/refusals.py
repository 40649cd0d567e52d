"""Reasons for which a kernel, a device or a kernel language refuses a call: functions of metadata alone."""

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

MIN_COMPILED_OPERATORS = 16
"""Operators of a fused operator from which one compiled kernel is faster than array calls for tensors of any size."""
_CAPABILITY_NAMES = {"array": "the array namespace", "language": "the kernel language"}


def disuse_reason(capability: str, call: Call, unit: Unit, policy: Policy) -> str | None:
    """Why a capability of a device is not used for a call, or None."""
    if capability in policy.exclude:
        return "excluded by the policy"
    if capability != "language":
        return None
    if unit.lacks["array"] and capability_refusal("array", call, unit) is not None:
        return None
    preferred = policy.capability(unit.place.kind) if policy.codegen else None
    if preferred == "array":
        return "codegen is the array namespace"
    if preferred == "language" or unit.array is None or "array" in policy.exclude:
        return None
    min_elements = getattr(unit.language, "least", 0)
    if call.op.expression is not None and call.op.expression.operators >= MIN_COMPILED_OPERATORS:
        return None
    if min_elements and not policy.repeated and 0 <= call.largest < min_elements:
        return f"under {min_elements} elements array calls are faster"
    return None


def unsuited_reason(kernel: Kernel, call: Call, unit: Unit, policy: Policy) -> str | None:
    """Why a kernel is not used: it is written for other devices, or in a kernel language that is not used; or None."""
    if not kernel.written_for:
        return None
    reason = other_device_refusal(kernel, unit)
    if reason is None and kernel.written_for == "registers":
        return disuse_reason("language", call, unit, policy)
    return reason


def other_device_refusal(kernel: Kernel, unit: Unit) -> str | None:
    """Why a kernel does not suit the device, or None."""
    if kernel.written_for == "registers" and getattr(unit.language, "registers", None) is None:
        return f"{unit.place.kind} has no kernel language that names vector registers"
    if kernel.written_for == "cores" and runs_side_by_side(unit.language):
        return f"its work-items are few and long, and {unit.place.kind} runs many side by side"
    return None


def device_refusal(call: Call, unit: Unit) -> str | None:
    """Why the device cannot compute a call (it lacks a dtype), or None."""
    for slot, specs in (*call.ins.items(), *call.outs.items()):
        for spec in specs if slot not in call.op.non_kernel_slots else ():
            if spec.dtype not in unit.info.dtypes:
                return f"{unit.place.kind} does not compute {spec.dtype} ({slot})"
    return None


def device_veto(call: Call, unit: Unit) -> str | None:
    """Why the device's ``supports`` refuses generic and generated kernels for a call, or None."""
    if unit.supports is None:
        return None
    return call_supports(unit.supports, call.at(unit.place), lambda: f"device kind {unit.place.kind!r}")


def call_supports(supports: Callable[[Call], Any], call: Call, whose: Callable[[], str]) -> str | None:
    """Call a plugin's ``supports``; SupportsError, with the plugin's name, if it fails."""
    try:
        answer = supports(call)
    except Exception as exc:
        raise _supports_error(call, whose(), f"raised {type(exc).__name__}", f": {exc}") from exc
    if answer is not None and not (isinstance(answer, str) and answer):
        raise _supports_error(call, whose(), f"returned {answer!r}")
    return answer


def _supports_error(call: Call, whose: str, how: str, why: str = "") -> SupportsError:
    type = call.op.type
    return SupportsError(
        f"supports(call) of {whose} {how} for operator {type}{why}"
        "\n  Do: let it return None, or the reason of a refusal as a text; dims may be -1",
        type,
    )


def capability_refusal(capability: str, call: Call, unit: Unit) -> str | None:
    """Why a capability of a device cannot compute a call (it lacks a dtype), or None."""
    lacking = unit.lacks.get(capability)
    for slot, spec, _ in _specs(call) if lacking else ():
        if lacking and spec.dtype in lacking and slot not in call.op.non_kernel_slots:
            return f"{_CAPABILITY_NAMES[capability]} of {unit.place.kind} has no {spec.dtype} ({slot})"
    return None


def kernel_refusal(kernel: Kernel, call: Call, unit: Unit) -> str | None:
    """Why a kernel does not take a call on a device, or None."""
    for slot in call.op.decomposed:
        if call.has(slot):
            return f"kernels do not know {slot}; the decomposition does"
    plain = not kernel.layouts and "dense" in kernel.kinds and call.dense
    for slot, spec, declared in () if plain else _specs(call):
        if spec.kind not in kernel.kinds and not (declared is not None and declared.unread):
            return f"it takes {', '.join(kernel.kinds)}, {slot} is {spec.kind}"
        layout = kernel.layouts.get(slot, "plain")
        order = layout_named(layout).permutation if layout not in ("plain", "any") else None
        if order is not None and len(order) != spec.rank:
            return f"it takes layout {layout} for {slot}, this has rank {spec.rank}"
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
    return call_supports(kernel.supports, call, lambda: kernel.description)


def generic_refusal(kernel: Kernel, capability: str, call: Call, unit: Unit) -> str | None:
    """Why a kernel of a capability does not take a call on a device, or None."""
    reason = kernel_refusal(kernel, call, unit) or capability_refusal(capability, call, unit)
    if reason is None and capability != "memory":  # a device lacks nothing that copies need
        reason = device_veto(call, unit)
    return reason


def _specs(call: Call) -> Iterator[tuple[str, Any, Slot | None]]:
    for slots, find in ((call.ins, call.op.input), (call.outs, call.op.output)):
        declared: Callable[[str], Slot | None] = find
        for slot, specs in slots.items():
            for spec in specs:
                yield slot, spec, declared(slot)
