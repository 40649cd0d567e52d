"""Selection of a single kernel for a call, native, generated or generic, with the reason of every refusal."""

from __future__ import annotations

from collections.abc import Callable

from fluidlite.compiler.policy import Policy
from fluidlite.compiler.selection.choice import Choice
from fluidlite.compiler.selection.refusals import (
    device_refusal,
    device_veto,
    disuse_reason,
    generic_refusal,
    kernel_refusal,
    unsuited_reason,
)
from fluidlite.platform.device_registry import Unit
from fluidlite.program.codegen_registry import generators
from fluidlite.program.kernel_registry import Kernel, kernels
from fluidlite.program.op_call import Call

GENERATED_CAPABILITIES = ("language", "array")
"""Capabilities for which kernels are generated, in order of preference."""


def rank_of(policy: Policy, kind: str) -> Callable[[Kernel], tuple[int, int]]:
    """The sort key of candidates for a kind of places: the user's preference, then the rank of the library."""
    preferred = policy.preferred(kind)

    def rank(kernel: Kernel) -> tuple[int, int]:
        position = preferred.index(kernel.library) if kernel.library in preferred else len(preferred)
        return position, -kernels.library(kernel.library).rank

    return rank


def try_native(
    call: Call, unit: Unit, policy: Policy, candidates: tuple[Kernel, ...], refused: list[tuple[str, str]]
) -> Choice | None:
    """A kernel registered for the kind of place, that of the user's preferred library first."""
    kind = unit.place.kind
    if "native" in policy.exclude:
        return None
    natives = native_kernels(kind, policy, candidates)
    for kernel in natives:
        if policy.libraries and is_after_plain(kernel, kind, policy):
            reason: str | None = f"the framework's own kernels are preferred to {kernel.library!r}"
        else:
            reason = unsuited_reason(kernel, call, unit, policy) or kernel_refusal(kernel, call, unit)
        if reason is None:
            return Choice("native", unit.place, kernel.library, kernel, refused=tuple(refused))
        refused.append((f"native {kernel.library}", reason))
    if not natives:
        refused.append(("native", f"no kernel is registered for {kind}"))
    return None


def native_kernels(kind: str, policy: Policy, candidates: tuple[Kernel, ...]) -> list[Kernel]:
    """The candidates that run on a kind of places, preferred ones first."""
    natives = [kernel for kernel in candidates if kernel.runs_on(kind)]
    return natives if len(natives) < 2 else sorted(natives, key=rank_of(policy, kind))


def is_after_plain(kernel: Kernel, kind: str, policy: Policy) -> bool:
    """Whether the user prefers the framework's own kernels ("plain": generated or generic) to this kernel's library."""
    preferred = policy.preferred(kind)
    if "plain" not in preferred or kernel.library == "plain":
        return False
    return kernel.library not in preferred or preferred.index(kernel.library) > preferred.index("plain")


def try_native_after_plain(
    call: Call, unit: Unit, policy: Policy, candidates: tuple[Kernel, ...], refused: list[tuple[str, str]]
) -> Choice | None:
    """A kernel of a library to which the user prefers the framework's own kernels."""
    kind = unit.place.kind
    for kernel in native_kernels(kind, policy, candidates):
        if not is_after_plain(kernel, kind, policy):
            continue
        reason = unsuited_reason(kernel, call, unit, policy) or kernel_refusal(kernel, call, unit)
        if "native" not in policy.exclude and reason is None:
            return Choice("native", unit.place, kernel.library, kernel, refused=tuple(refused))
    return None


def try_generated(
    call: Call, unit: Unit, policy: Policy, candidates: tuple[Kernel, ...], refused: list[tuple[str, str]]
) -> Choice | None:
    """A kernel generated from the operator's expression."""
    if call.op.scalar is None and call.op.expression is None:
        refused.append(("generated", "no expression"))
        return None
    if "generated" in policy.exclude:
        return None
    reason = device_refusal(call, unit) or device_veto(call, unit)
    if reason is not None:
        refused.append(("generated", reason))
        return None
    for capability in GENERATED_CAPABILITIES:
        if getattr(unit, capability) is None or capability not in generators:
            continue
        reason = disuse_reason(capability, call, unit, policy) or generators[capability].refuse(call, unit)
        if reason is None:
            return Choice("generated", unit.place, capability, None, capability, refused=tuple(refused))
        refused.append((f"generated ({capability})", reason))
    if unit.array is None and unit.language is None:
        refused.append(("generated", f"{unit.place.kind} has neither array namespace nor kernel language"))
    return None


def try_generic(
    call: Call, unit: Unit, policy: Policy, candidates: tuple[Kernel, ...], refused: list[tuple[str, str]]
) -> Choice | None:
    """A kernel registered for a capability of the place."""
    if "generic" in policy.exclude:
        return None
    chosen, rank = policy.capability(unit.place.kind), rank_of(policy, unit.place.kind)
    pairs = [
        (capability, kernel)
        for capability in sorted(unit.capabilities(), key=lambda each: each != chosen)
        for kernel in sorted([k for k in candidates if capability in k.places], key=rank)
    ]
    for capability, kernel in sorted(pairs, key=lambda pair: not pair[1].library_backed):
        reason = disuse_reason(capability, call, unit, policy) or unsuited_reason(kernel, call, unit, policy)
        reason = reason or generic_refusal(kernel, capability, call, unit)
        if reason is None:
            return Choice("generic", unit.place, kernel.library, kernel, capability, refused=tuple(refused))
        refused.append((f"generic ({capability})", reason))
    for capability, provided in (("array", unit.array), ("language", unit.language)):
        if provided is None:
            refused.append(
                (
                    capability,
                    f"{unit.place.kind} has no {'array namespace' if capability == 'array' else 'kernel language'}",
                )
            )
    return None
