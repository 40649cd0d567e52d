"""Choosing the kernel of one call on one place: pure, from metadata, with the reason of every refusal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from fluidlite.base.errors import KernelNotFoundError, ProgramError
from fluidlite.compiler.policy import Policy
from fluidlite.compiler.selection.choice import Choice
from fluidlite.compiler.selection.choice_cache import current_choices
from fluidlite.compiler.selection.refusals import capability_refusal, refuse, unsuited, unused
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
from fluidlite.program.decompose import Part, decompose, spliced, taken_apart
from fluidlite.program.epilogue import product_call
from fluidlite.program.kernel_registry import Kernel, clash, kernels
from fluidlite.program.op_call import Call
from fluidlite.program.widen import WIDER, widen, widenable

MOST_SPREAD = 2
"""Times the elements of a call's largest tensor that a part may write in front of a product."""
MANY_BESIDE = 1 << 16
"""From here on parts that are too small for the kernel language, beside compiled ones, cost less than array calls."""

_Attempt = Callable[[Call, Unit, Policy, "tuple[Kernel, ...]", "list[tuple[str, str]]"], "Choice | None"]


def choose(call: Call, place: Place, policy: Policy) -> Choice:
    """Choose the kernel of a call.

    Order: native (preferred library first), generated, generic, decomposed, widened, fallback; a pinned operator
    runs on the host.

    Raises KernelNotFoundError if nothing can run it, or only the fallback place could and the policy forbids that.
    """
    return current_choices().choices.get((call, place, policy), lambda: _choose(call, place, policy))


def _choose(call: Call, place: Place, policy: Policy) -> Choice:
    refused: list[tuple[str, str]] = []
    if call.op.host_only is not None:
        host = devices.host()
        found = _on_place(call.at(host), host, policy, refused)
        if found is None:
            raise KernelNotFoundError(_not_found(call, host, refused, "it is pinned to the host"))
        return replace(found, how="pinned", refused=tuple(refused))
    found = _on_place(call.at(place), place, policy, refused)
    if found is not None:
        return found
    host = devices.host()
    if place == host:
        raise KernelNotFoundError(_not_found(call, place, refused, "it is the fallback place itself"))
    if policy.fallback == "error":
        raise KernelNotFoundError(
            _not_found(call, place, refused, "fallback is 'error'")
            + '\n  Do: fluid.set_fallback("warn"), or device_guard to put it elsewhere'
        )
    elsewhere: list[tuple[str, str]] = []
    found = _on_place(call.at(host), host, policy, elsewhere)
    if found is None:
        raise KernelNotFoundError(_not_found(call, place, refused + elsewhere, f"nor on the fallback place {host}"))
    return replace(found, how="fallback", refused=tuple(refused))


def tied(call: Call, choice: Choice, policy: Policy) -> tuple[Choice, ...]:
    """The kernels of the same rank as a chosen one that lie in other layouts, the chosen one first; or nothing.

    What a registration with ``override=True`` hides is not among them.
    """
    if choice.kernel is None or choice.how not in ("native", "generic") or not _in_layouts(call):
        return ()
    unit, kind = devices.unit(choice.place), choice.place.kind
    candidates = _candidates(call, choice.place, policy)
    if choice.how == "native":
        several = native_kernels(call, kind, policy, candidates)
    else:
        several = [each for each in candidates if choice.capability in each.places]
    if len(several) < 2 or all(each.layouts == several[0].layouts for each in several):
        return ()
    rank, call = rank_of(policy, kind), call.at(choice.place)
    found = [choice.kernel]
    for kernel in several:
        if kernel is choice.kernel or rank(kernel) != rank(choice.kernel) or any(clash(kernel, each) for each in found):
            continue
        if any(dict(kernel.layouts) == dict(each.layouts) for each in found):
            continue
        if unsuited(kernel, call, unit, policy) or refuse(kernel, call, unit):
            continue
        if capability_refusal(choice.capability, call, unit):
            continue
        found.append(kernel)
    if len(found) < 2:
        return ()

    def others(mine: Kernel) -> tuple[tuple[str, str], ...]:
        reason = "it ranks equally, and with its layouts ({}) no fewer bytes are rearranged"
        return tuple(
            (f"{choice.how} {kernel.library}", reason.format(_layouts_text(kernel)))
            for kernel in found
            if kernel is not mine
        )

    return tuple(
        replace(choice, library=kernel.library, kernel=kernel, refused=(*choice.refused, *others(kernel)))
        for kernel in found
    )


def _in_layouts(call: Call) -> bool:
    """Whether a kernel of an operator, or of what it is an epilogue of, names layouts."""
    rule = call.op.epilogue
    return kernels.in_layouts(call.op.type if rule is None else rule.product.type)


def _layouts_text(kernel: Kernel) -> str:
    return ", ".join(f"{slot} {name}" for slot, name in kernel.layouts.items()) or "plain"


def _not_found(call: Call, place: Place, refused: list[tuple[str, str]], why: str) -> str:
    lines = [f"{call.op.type} cannot run on {place}; {why}."]
    lines += [f"  {candidate}: {reason}" for candidate, reason in refused]
    return "\n".join(lines)


def _on_place(call: Call, place: Place, policy: Policy, refused: list[tuple[str, str]]) -> Choice | None:
    unit = devices.unit(place)
    candidates = _candidates(call, place, policy)
    rule = call.op.expression
    if call.op.steps is not None:
        return _stepwise(call, unit, policy, refused)
    if rule is not None and rule.operators:
        order: tuple[_Attempt, ...] = (try_generated,)
    elif rule is None or not call.of_tensors:
        order = (try_native, try_generated, try_generic)
    elif rule.library:
        order = (try_native, _library_arrays, try_generic, _in_parts, try_generated)
    else:
        order = (try_native, try_generic, _loops, _in_parts, try_generated)
    for attempt in (*order, try_native_after_plain, _decomposed, _widened):
        found = attempt(call, unit, policy, candidates, refused)
        if found is not None:
            return found
    return None


def _stepwise(call: Call, unit: Unit, policy: Policy, refused: list[tuple[str, str]]) -> Choice | None:
    """An operator that runs another one step by step: the kernels of one step, for each number of rows."""

    def of_step(one: Call) -> Choice | str:
        inner: list[tuple[str, str]] = []

        def make() -> Choice:
            found = _on_place(one, unit.place, policy, inner)
            if found is None:
                raise KernelNotFoundError("; ".join(f"{candidate}: {reason}" for candidate, reason in inner))
            return found

        try:
            return current_choices().choices.get((one, unit.place, policy), make)
        except KernelNotFoundError as exc:
            return str(exc)

    found = step_choices(call, of_step)
    if isinstance(found, str):
        refused.append(("steps", f"its step cannot run on {unit.place} either ({found})"))
        return None
    return Choice("generated", unit.place, "", None, "", (), found, tuple(refused))


def _candidates(call: Call, place: Place, policy: Policy) -> tuple[Kernel, ...]:
    """The kernels that may run a call; with an epilogue, the one that computes the product alone, if it takes such."""
    rule = call.op.epilogue
    if rule is None:
        return kernels.of(call.op.type)
    alone = _on_place(product_call(call).at(place), place, policy, [])
    return (alone.kernel,) if alone is not None and alone.kernel is not None and alone.kernel.epilogue else ()


def _decomposed(
    call: Call, unit: Unit, policy: Policy, candidates: tuple[Kernel, ...], refused: list[tuple[str, str]]
) -> Choice | None:
    if call.op.decompose is None:
        refused.append(("decomposition", "none"))
        return None
    if "decomposed" in policy.exclude:
        return None
    open_sizes = not call.known or any(s.lod_level and not s.lod for specs in call.ins.values() for s in specs)
    computes = unit.array is not None or unit.language is not None
    try:
        if open_sizes and computes and codegen_registry.has_steps(call):  # its parts depend on its sequences
            return Choice("decomposed", unit.place, "", refused=tuple(refused))
        parts = decompose(call)
    except ProgramError as exc:
        refused.append(("decomposition", str(exc)))
        return None
    except Exception as exc:
        read = [spec for slot in (*call.op.stated, *call.op.tables) for spec in call.ins.get(slot, ())]
        known = not open_sizes and all([spec.value is not None for spec in read])
        if known and all(spec.known for specs in call.outs.values() for spec in specs):
            raise
        refused.append(("decomposition", f"its dims, LoD or numbers are not known yet ({type(exc).__name__}: {exc})"))
        return None
    if isinstance(parts, str):
        refused.append(("decomposition", parts))
        return None
    flat: list[Part] = []
    chosen: list[Choice] = []
    for number, part in enumerate(parts):
        inner: list[tuple[str, str]] = []
        with taken_apart(call):
            found = _on_place(part.call.at(unit.place), unit.place, policy, inner)
        if found is None:
            why = "; ".join(f"{candidate}: {reason}" for candidate, reason in inner)
            refused.append(("decomposition", f"its {part.call.op.type} cannot run on {unit.place} either ({why})"))
            return None
        if found.parts:  # itself decomposed: its parts take the outer values
            flat.extend(spliced(part, found.parts, number))
            chosen.extend(found.part_choices)
        else:
            flat.append(part)
            chosen.append(found)
    return Choice("decomposed", unit.place, "", None, "", tuple(flat), tuple(chosen), tuple(refused))


def _library_arrays(
    call: Call, unit: Unit, policy: Policy, candidates: tuple[Kernel, ...], refused: list[tuple[str, str]]
) -> Choice | None:
    """Array calls of an expression that a library behind the namespace computes."""
    if unit.array is None or policy.capability(unit.place.kind) == "language":
        return None
    found = try_generated(call, unit, replace(policy, exclude=(*policy.exclude, "language")), candidates, [])
    return None if found is None else replace(found, refused=tuple(refused))


def _loops(
    call: Call, unit: Unit, policy: Policy, candidates: tuple[Kernel, ...], refused: list[tuple[str, str]]
) -> Choice | None:
    """An expression as loops of a kernel language."""
    if unit.language is None or codegen_registry.parts_first(call):
        return None
    if unused("language", call, unit, policy) is not None:
        return None
    found = try_generated(call, unit, replace(policy, exclude=(*policy.exclude, "array")), candidates, [])
    return None if found is None else replace(found, refused=tuple(refused))


def _in_parts(
    call: Call, unit: Unit, policy: Policy, candidates: tuple[Kernel, ...], refused: list[tuple[str, str]]
) -> Choice | None:
    """An expression said with operators, rather than by array calls: if the kernel language computes all of them (where
    the whole is large, all that are large enough for it).

    Elementwise parts are then one kernel each. Products are left to the library of the array namespace, unless their
    operands are spread for them, as windows of images are.
    """
    if unit.language is None or unused("language", call, unit, policy) is not None:
        return None
    elements = max(call.largest, 0)
    found = _decomposed(call, unit, policy, candidates, [])
    if found is None:
        return None
    products = all(_most_written(part) <= MOST_SPREAD * elements for part in found.parts)
    if any(
        choice.capability == "array"
        and not (products and codegen_registry.parts_first(part.call))
        and (elements < MANY_BESIDE or unused("language", part.call, unit, policy) is None)
        for part, choice in zip(found.parts, found.part_choices, strict=True)
    ):
        return None
    return replace(found, refused=tuple(refused))


def _most_written(part: Part) -> int:
    """The elements of the largest tensor that a part writes."""
    return max(prod(spec.dims) for specs in part.call.outs.values() for spec in specs)


def _widened(
    call: Call, unit: Unit, policy: Policy, candidates: tuple[Kernel, ...], refused: list[tuple[str, str]]
) -> Choice | None:
    """The call in a wider data type, with casts that the place computes itself."""
    narrow = call.key_dtype
    if narrow not in WIDER or "widened" in policy.exclude or not widenable(call):
        return None
    alone = replace(policy, exclude=(*policy.exclude, "widened"))
    for wide in WIDER[narrow]:
        parts = widen(call, wide)
        if parts is None:
            continue
        chosen = [_on_place(part.call.at(unit.place), unit.place, alone, []) for part in parts]
        found = tuple(each for each in chosen if each is not None and not each.parts)
        if len(found) == len(parts):
            return Choice("widened", unit.place, "", None, "", tuple(parts), found, tuple(refused))
    return None


def widened_choice(call: Call, unit: Unit, policy: Policy) -> Choice | None:
    """The call in a wider data type on the place, or None, whatever else could run it."""
    return _widened(call, unit, policy, (), [])


def fusible_choice(call: Call, unit: Unit, policy: Policy) -> Choice | None:
    """The call said with elementwise operators, which can be fused with what is around them, or None."""
    return _in_parts(call, unit, policy, (), []) if codegen_registry.elementwise(call) else None


def decomposed_choice(call: Call, unit: Unit, policy: Policy) -> tuple[Choice | None, str]:
    """The call said with other operators on the place, or None and the reason, whatever else could run it."""
    refused: list[tuple[str, str]] = []
    found = _decomposed(call, unit, policy, (), refused)
    return found, "" if found is not None else refused[-1][1] if refused else "excluded by the policy"
