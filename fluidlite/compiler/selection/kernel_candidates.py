"""All candidate kernels for a call on a place: which can run it, which is selected, and the reasons of refusals."""

from __future__ import annotations

from dataclasses import dataclass

from fluidlite.compiler.policy import KERNEL_KINDS, Policy
from fluidlite.compiler.selection.choice import Choice
from fluidlite.compiler.selection.kernel_selection import decomposed_choice, select_kernel, try_widened
from fluidlite.compiler.selection.refusals import (
    device_refusal,
    device_veto,
    generic_refusal,
    kernel_refusal,
    other_device_refusal,
)
from fluidlite.compiler.selection.single_kernel import GENERATED_CAPABILITIES
from fluidlite.platform.device_registry import Unit, devices
from fluidlite.platform.place import Place
from fluidlite.program.codegen_registry import generators
from fluidlite.program.kernel_registry import Kernel, kernels
from fluidlite.program.op_call import Call


@dataclass(frozen=True)
class Candidate:
    """One candidate to compute a call on a place.

    Attributes
    ----------
    how : str
        native, generated, generic, decomposed or widened.
    name : str
        The library; for generated and generic kernels also the capability that they use.
    choice : Choice or None
        The choice of this candidate; None if it cannot run the call.
    taken : bool
        Whether kernel selection chooses it.
    reason : str
        Why it cannot run the call, or why another candidate is selected; "" for the selected one.
    """

    how: str
    name: str
    choice: Choice | None
    is_selected: bool
    reason: str


def candidates(call: Call, place: Place, policy: Policy | None = None) -> list[Candidate]:
    """Return all candidates for a call, in the order in which kernel selection tries them.

    Raises
    ------
    KernelNotFoundError
        Nothing can run the call, here or on the fallback place.
    """
    policy = Policy("allow") if policy is None else policy
    unit = devices.unit(place)
    call = call.at(unit.place)
    chosen = select_kernel(call, unit.place, policy)
    rows = [*_native(call, unit), *_generated(call, unit), *_generic(call, unit), *_decomposed(call, unit, policy)]
    if chosen.how == "widened":  # listed as the last resort only, not beside every kernel
        rows += _widened(call, unit, policy)
    return [_candidate(how, name, choice, reason, chosen) for how, name, choice, reason in rows]


CandidateRow = tuple[str, str, Choice | None, str]
"""How, name, choice, and the reason of a refusal."""


def _native(call: Call, unit: Unit) -> list[CandidateRow]:
    registered = [kernel for kernel in kernels.of(call.op.type) if kernel.runs_on(unit.place.kind)]
    rows: list[CandidateRow] = []
    for kernel in sorted(registered, key=_rank):
        reason = other_device_refusal(kernel, unit) or kernel_refusal(kernel, call, unit) or ""
        choice = None if reason else Choice("native", unit.place, kernel.library, kernel)
        rows.append(("native", kernel.library, choice, reason))
    return rows


def _generated(call: Call, unit: Unit) -> list[CandidateRow]:
    if call.op.scalar is None and call.op.expression is None:
        return []
    rows: list[CandidateRow] = []
    for capability in GENERATED_CAPABILITIES:
        if getattr(unit, capability) is None or capability not in generators:
            continue
        reason = device_refusal(call, unit) or device_veto(call, unit) or generators[capability].refuse(call, unit)
        choice = None if reason else Choice("generated", unit.place, capability, None, capability)
        rows.append(("generated", f"expression ({capability})", choice, reason or ""))
    return rows


def _generic(call: Call, unit: Unit) -> list[CandidateRow]:
    rows: list[CandidateRow] = []
    for capability in unit.capabilities():
        for kernel in sorted((k for k in kernels.of(call.op.type) if capability in k.places), key=_rank):
            reason = other_device_refusal(kernel, unit) or generic_refusal(kernel, capability, call, unit) or ""
            choice = None if reason else Choice("generic", unit.place, kernel.library, kernel, capability)
            rows.append(("generic", f"{kernel.library} ({capability})", choice, reason))
    return rows


def _decomposed(call: Call, unit: Unit, policy: Policy) -> list[CandidateRow]:
    if call.op.decompose is None:
        return []
    choice, reason = decomposed_choice(call, unit, policy)
    return [("decomposed", choice.text if choice is not None else "", choice, reason)]


def _widened(call: Call, unit: Unit, policy: Policy) -> list[CandidateRow]:
    choice = try_widened(call, unit, policy, (), [])
    return [("widened", choice.text, choice, "")] if choice is not None else []


def _rank(kernel: Kernel) -> int:
    return -kernels.library(kernel.library).rank


def _candidate(how: str, name: str, choice: Choice | None, reason: str, chosen: Choice) -> Candidate:
    if choice is None:
        return Candidate(how, name, None, False, reason)
    if (choice.how, choice.kernel, choice.capability) == (chosen.how, chosen.kernel, chosen.capability):
        return Candidate(how, name, choice, True, "")
    return Candidate(how, name, choice, False, _why_not(choice, chosen))


def _why_not(choice: Choice, chosen: Choice) -> str:
    """Why a candidate that can run the call is not selected."""
    if choice.how != chosen.how:
        first, second = sorted(
            (choice.how, chosen.how),
            key=lambda how: KERNEL_KINDS.index(how) if how in KERNEL_KINDS else len(KERNEL_KINDS),
        )
        return f"{first} comes before {second}" if chosen.how == first else f"{chosen.how} is preferred here"
    rank, chosen_rank = (kernels.library(each.library).rank for each in (choice, chosen))
    if choice.library != chosen.library and rank != chosen_rank:
        return f"{chosen.library} has rank {chosen_rank}, {choice.library} {rank}"
    if choice.capability != chosen.capability:
        return f"the {chosen.capability} is preferred for a call of this size"
    return f"{chosen.library} was registered first"
