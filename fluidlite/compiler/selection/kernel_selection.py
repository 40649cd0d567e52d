"""Kernel selection for one call on one place: a function of metadata alone, with the reason of every refusal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from fluidlite.base.errors import KernelNotFoundError, ProgramError
from fluidlite.compiler.policy import Policy
from fluidlite.compiler.selection.choice import Choice
from fluidlite.compiler.selection.choice_cache import current_choices
from fluidlite.compiler.selection.refusals import capability_refusal, disuse_reason, kernel_refusal, unsuited_reason
from fluidlite.compiler.selection.single_kernel import (
    native_kernels,
    rank_of,
    try_generated,
    try_generic,
    try_native,
    try_native_after_plain,
)
from fluidlite.compiler.selection.step_choices import step_choices
from fluidlite.platform.device_registry import Unit, devices
from fluidlite.platform.place import Place
from fluidlite.program import codegen_registry
from fluidlite.program.decompose import DecompositionPart, decompose, decomposing, inlined_parts
from fluidlite.program.epilogue import product_call
from fluidlite.program.kernel_registry import Kernel, clash, kernels
from fluidlite.program.op_call import Call
from fluidlite.program.widen import WIDER, widen, widenable

MAX_OPERAND_GROWTH = 2
"""Elements that a part writes, as a multiple of the call's largest tensor; beyond it no matmul is left to a library."""
MIN_MIXED_ELEMENTS = 1 << 16
"""Elements from which compiled parts beside parts too small for the kernel language are faster than array calls."""

_Attempt = Callable[[Call, Unit, Policy, "tuple[Kernel, ...]", "list[tuple[str, str]]"], "Choice | None"]


def select_kernel(call: Call, place: Place, policy: Policy) -> Choice:
    """Choose the kernel of a call.

    Order: native (preferred library first), generated, generic, decomposed, widened, fallback; a host-only operator
    runs on the host ("pinned").

    Raises KernelNotFoundError if nothing can run it, or only the fallback place could and the policy forbids that.
    """
    return current_choices().get((call, place, policy), lambda: _choose(call, place, policy))


def _choose(call: Call, place: Place, policy: Policy) -> Choice:
    """Select a kernel on the place, otherwise on the fallback place; not cached."""
    refused: list[tuple[str, str]] = []
    if call.op.host_only is not None:
        host = devices.host()
        choice = _select_on_place(call.at(host), host, policy, refused)
        if choice is None:
            raise KernelNotFoundError(_refusals(call, host, refused, "it is pinned to the host"))
        return replace(choice, how="pinned", refused=tuple(refused))
    choice = _select_on_place(call.at(place), place, policy, refused)
    if choice is not None:
        return choice
    host = devices.host()
    if place == host:
        raise KernelNotFoundError(_refusals(call, place, refused, "it is the fallback place itself"))
    if policy.fallback == "error":
        raise KernelNotFoundError(
            _refusals(call, place, refused, "fallback is 'error'")
            + '\n  Do: fluid.set_fallback("warn"), or device_guard to put it elsewhere'
        )
    host_refused: list[tuple[str, str]] = []
    choice = _select_on_place(call.at(host), host, policy, host_refused)
    if choice is None:
        raise KernelNotFoundError(_refusals(call, place, refused + host_refused, f"nor on the fallback place {host}"))
    return replace(choice, how="fallback", refused=tuple(refused))


def tied_choices(call: Call, choice: Choice, policy: Policy) -> tuple[Choice, ...]:
    """The kernels of equal rank for several layouts, the chosen one first; empty if there is only one.

    Kernels that a registration with ``override=True`` replaces are left out.
    """
    if choice.kernel is None or choice.how not in ("native", "generic") or not has_layout_kernels(call):
        return ()
    unit, kind = devices.unit(choice.place), choice.place.kind
    candidates = _candidates(call, choice.place, policy)
    if choice.how == "native":
        registered = native_kernels(kind, policy, candidates)
    else:
        registered = [each for each in candidates if choice.capability in each.places]
    if len(registered) < 2 or all(each.layouts == registered[0].layouts for each in registered):
        return ()
    rank, call = rank_of(policy, kind), call.at(choice.place)
    ties = [choice.kernel]
    for kernel in registered:
        if kernel is choice.kernel or rank(kernel) != rank(choice.kernel) or any(clash(kernel, each) for each in ties):
            continue
        if any(dict(kernel.layouts) == dict(each.layouts) for each in ties):
            continue
        if unsuited_reason(kernel, call, unit, policy) or kernel_refusal(kernel, call, unit):
            continue
        if capability_refusal(choice.capability, call, unit):
            continue
        ties.append(kernel)
    if len(ties) < 2:
        return ()

    def refused_others(selected: Kernel) -> tuple[tuple[str, str], ...]:
        reason = "it ranks equally, and with its layouts ({}) no fewer bytes are rearranged"
        return tuple(
            (f"{choice.how} {kernel.library}", reason.format(_layouts_text(kernel)))
            for kernel in ties
            if kernel is not selected
        )

    return tuple(
        replace(choice, library=kernel.library, kernel=kernel, refused=(*choice.refused, *refused_others(kernel)))
        for kernel in ties
    )


def has_layout_kernels(call: Call) -> bool:
    """Whether a kernel of the operator, or of the operator before its epilogue, declares layouts."""
    rule = call.op.epilogue
    return kernels.has_layouts(call.op.type if rule is None else rule.product.type)


def _layouts_text(kernel: Kernel) -> str:
    return ", ".join(f"{slot} {name}" for slot, name in kernel.layouts.items()) or "plain"


def _refusals(call: Call, place: Place, refused: list[tuple[str, str]], why: str) -> str:
    lines = [f"{call.op.type} cannot run on {place}; {why}."]
    lines += [f"  {candidate}: {reason}" for candidate, reason in refused]
    return "\n".join(lines)


def _select_on_place(call: Call, place: Place, policy: Policy, refused: list[tuple[str, str]]) -> Choice | None:
    """The first candidate on the place that can run the call, in the order of :func:`choose`."""
    unit = devices.unit(place)
    candidates = _candidates(call, place, policy)
    expression = call.op.expression
    if call.op.steps is not None:
        return _select_steps(call, unit, policy, refused)
    if expression is not None and expression.operators:
        order: tuple[_Attempt, ...] = (try_generated,)
    elif expression is None or not call.of_tensors:
        order = (try_native, try_generated, try_generic)
    elif expression.library:
        order = (try_native, _try_library_arrays, try_generic, _try_in_parts, try_generated)
    else:
        order = (try_native, try_generic, _try_loops, _try_in_parts, try_generated)
    for attempt in (*order, try_native_after_plain, _try_decomposed, try_widened):
        choice = attempt(call, unit, policy, candidates, refused)
        if choice is not None:
            return choice
    return None


def _select_steps(call: Call, unit: Unit, policy: Policy, refused: list[tuple[str, str]]) -> Choice | None:
    """The choice of an operator that runs another one step by step: the kernels of one step, by number of rows."""

    def of_step(step_call: Call) -> Choice | str:
        inner: list[tuple[str, str]] = []

        def make() -> Choice:
            choice = _select_on_place(step_call, unit.place, policy, inner)
            if choice is None:
                raise KernelNotFoundError("; ".join(f"{candidate}: {reason}" for candidate, reason in inner))
            return choice

        try:
            return current_choices().get((step_call, unit.place, policy), make)
        except KernelNotFoundError as exc:
            return str(exc)

    choices = step_choices(call, of_step)
    if isinstance(choices, str):
        refused.append(("steps", f"its step cannot run on {unit.place} either ({choices})"))
        return None
    return Choice("generated", unit.place, "", None, "", (), choices, tuple(refused))


def _candidates(call: Call, place: Place, policy: Policy) -> tuple[Kernel, ...]:
    """The kernels that may run a call; of a call with an epilogue, that of the plain operator if it takes epilogues."""
    rule = call.op.epilogue
    if rule is None:
        return kernels.of(call.op.type)
    plain = _select_on_place(product_call(call).at(place), place, policy, [])
    return (plain.kernel,) if plain is not None and plain.kernel is not None and plain.kernel.epilogue else ()


def _try_decomposed(
    call: Call, unit: Unit, policy: Policy, candidates: tuple[Kernel, ...], refused: list[tuple[str, str]]
) -> Choice | None:
    """The decomposition of the call, with a choice for each part."""
    if call.op.decompose is None:
        refused.append(("decomposition", "none"))
        return None
    if "decomposed" in policy.exclude:
        return None
    open_sizes = not call.is_static or any(s.lod_level and not s.lod for specs in call.ins.values() for s in specs)
    can_compute = unit.array is not None or unit.language is not None
    try:
        if open_sizes and can_compute and codegen_registry.has_steps(call):  # the parts depend on the LoD
            return Choice("decomposed", unit.place, "", refused=tuple(refused))
        parts = decompose(call)
    except ProgramError as exc:
        refused.append(("decomposition", str(exc)))
        return None
    except Exception as exc:
        metadata_specs = [spec for slot in (*call.op.stated, *call.op.tables) for spec in call.ins.get(slot, ())]
        sizes_known = not open_sizes and all([spec.value is not None for spec in metadata_specs])
        if sizes_known and all(spec.is_static for specs in call.outs.values() for spec in specs):
            raise
        refused.append(("decomposition", f"its dims, LoD or numbers are not known yet ({type(exc).__name__}: {exc})"))
        return None
    if isinstance(parts, str):
        refused.append(("decomposition", parts))
        return None
    flat: list[DecompositionPart] = []
    chosen: list[Choice] = []
    for number, part in enumerate(parts):
        inner: list[tuple[str, str]] = []
        with decomposing(call):
            choice = _select_on_place(part.call.at(unit.place), unit.place, policy, inner)
        if choice is None:
            why = "; ".join(f"{candidate}: {reason}" for candidate, reason in inner)
            refused.append(("decomposition", f"its {part.call.op.type} cannot run on {unit.place} either ({why})"))
            return None
        if choice.parts:  # it is decomposed itself: its parts are spliced in
            flat.extend(inlined_parts(part, choice.parts, number))
            chosen.extend(choice.part_choices)
        else:
            flat.append(part)
            chosen.append(choice)
    return Choice("decomposed", unit.place, "", None, "", tuple(flat), tuple(chosen), tuple(refused))


def _try_library_arrays(
    call: Call, unit: Unit, policy: Policy, candidates: tuple[Kernel, ...], refused: list[tuple[str, str]]
) -> Choice | None:
    """Array calls for an expression that the library of the array namespace computes."""
    if unit.array is None or policy.capability(unit.place.kind) == "language":
        return None
    choice = try_generated(call, unit, replace(policy, exclude=(*policy.exclude, "language")), candidates, [])
    return None if choice is None else replace(choice, refused=tuple(refused))


def _try_loops(
    call: Call, unit: Unit, policy: Policy, candidates: tuple[Kernel, ...], refused: list[tuple[str, str]]
) -> Choice | None:
    """Loops in the kernel language for an expression."""
    if unit.language is None or codegen_registry.prefers_decomposition(call):
        return None
    if disuse_reason("language", call, unit, policy) is not None:
        return None
    choice = try_generated(call, unit, replace(policy, exclude=(*policy.exclude, "array")), candidates, [])
    return None if choice is None else replace(choice, refused=tuple(refused))


def _try_in_parts(
    call: Call, unit: Unit, policy: Policy, candidates: tuple[Kernel, ...], refused: list[tuple[str, str]]
) -> Choice | None:
    """A decomposition of an expression, instead of array calls, if the kernel language computes all of its parts (of a
    large call, all parts that are large enough for it).

    Each elementwise part is one kernel. Matmuls are left to the library of the array namespace, unless their operands
    must be materialized larger than the inputs, as with windows of images.
    """
    if unit.language is None or disuse_reason("language", call, unit, policy) is not None:
        return None
    elements = max(call.largest, 0)
    choice = _try_decomposed(call, unit, policy, candidates, [])
    if choice is None:
        return None
    library_matmuls = all(_max_written(part) <= MAX_OPERAND_GROWTH * elements for part in choice.parts)
    if any(
        part_choice.capability == "array"
        and not (library_matmuls and codegen_registry.prefers_decomposition(part.call))
        and (elements < MIN_MIXED_ELEMENTS or disuse_reason("language", part.call, unit, policy) is None)
        for part, part_choice in zip(choice.parts, choice.part_choices, strict=True)
    ):
        return None
    return replace(choice, refused=tuple(refused))


def _max_written(part: DecompositionPart) -> int:
    """The elements of the largest tensor that a part writes."""
    return max(prod(spec.dims) for specs in part.call.outs.values() for spec in specs)


def try_widened(
    call: Call, unit: Unit, policy: Policy, candidates: tuple[Kernel, ...], refused: list[tuple[str, str]]
) -> Choice | None:
    """The call in a wider dtype, with casts on the same place."""
    narrow = call.key_dtype
    if narrow not in WIDER or "widened" in policy.exclude or not widenable(call):
        return None
    without_widening = replace(policy, exclude=(*policy.exclude, "widened"))
    for wide in WIDER[narrow]:
        parts = widen(call, wide)
        if parts is None:
            continue
        attempts = [_select_on_place(part.call.at(unit.place), unit.place, without_widening, []) for part in parts]
        choices = tuple(each for each in attempts if each is not None and not each.parts)
        if len(choices) == len(parts):
            return Choice("widened", unit.place, "", None, "", tuple(parts), choices, tuple(refused))
    return None


def fusible_choice(call: Call, unit: Unit, policy: Policy) -> Choice | None:
    """The decomposition of a call into elementwise operators, which passes can fuse with their neighbours; or None."""
    return _try_in_parts(call, unit, policy, (), []) if codegen_registry.elementwise(call) else None


def decomposed_choice(call: Call, unit: Unit, policy: Policy) -> tuple[Choice | None, str]:
    """The decomposition of a call, even if another candidate can run it; or None and the reason."""
    refused: list[tuple[str, str]] = []
    choice = _try_decomposed(call, unit, policy, (), refused)
    return choice, "" if choice is not None else refused[-1][1] if refused else "excluded by the policy"
