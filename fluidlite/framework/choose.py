"""Choosing the kernel of one call on one place: pure, from metadata, with the reason of every refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

from fluidlite.base.dtypes import HALVES
from fluidlite.base.errors import KernelNotFoundError, ProgramError, RegistryError
from fluidlite.framework.call import Call
from fluidlite.framework.decompose import Part, decompose, spliced
from fluidlite.framework.generators import generators
from fluidlite.framework.kernels import Kernel, Run, kernels, matches
from fluidlite.framework.layout import layout_named
from fluidlite.framework.opdef import Slot
from fluidlite.framework.policy import Policy
from fluidlite.framework.registry import ops
from fluidlite.platform.devices import Unit, devices
from fluidlite.platform.place import Place

GENERATED_FOR = ("dialect", "array")
"""Capabilities for which kernels are generated, in order of preference."""

MANY_STEPS = 16
"""Operators in a fused one from which on calls of the array namespace take longer than one compiled kernel, whatever
their size.
"""


@dataclass(frozen=True)
class Choice:
    """Which kernel runs a call, where and how.

    Attributes
    ----------
    how : str
        native, generated, generic, decomposed, fallback or pinned.
    place : Place
        Where it runs.
    library : str
        Of the kernel; for a generated one the capability.
    kernel : Kernel or None
        None for a generated or decomposed one.
    parts : tuple of Part
        Of a decomposition.
    refused : tuple of (candidate, reason)
    """

    how: str
    place: Place
    library: str
    kernel: Kernel | None = None
    capability: str = ""
    parts: tuple[Part, ...] = ()
    part_choices: tuple[Choice, ...] = ()
    refused: tuple[tuple[str, str], ...] = field(default=(), compare=False)

    def prepare(self, call: Call, context: Any) -> Run:
        """Return ``run(context, io)``."""
        if self.kernel is not None:
            return self.kernel.prepare(call, context)
        return generators[self.capability].prepare(call, context)

    @property
    def text(self) -> str:
        """The kernel in a word or two."""
        if self.parts:
            return " + ".join(part.call.op.type for part in self.parts)
        if self.kernel is None:
            return f"expression ({self.capability})"
        where = (
            next((p for p in self.kernel.places if p in ("array", "dialect", "memory")), "") if self.capability else ""
        )
        return f"{self.library} ({where})" if where else self.library

    @property
    def guarded(self) -> bool:
        """Whether its kernel itself writes nothing once the status word is set."""
        if self.kernel is not None:
            return self.kernel.guarded
        array = devices.unit(self.place).array if self.capability == "array" else None
        return array is None or not array.eager  # who calls NumPy looks before that

    @property
    def inplace(self) -> bool:
        """Whether an output may share memory with an input where the definition allows."""
        return self.kernel.inplace if self.kernel is not None else True


class _Cache:
    def __init__(self) -> None:
        self.generation: tuple[int, ...] = ()
        self.choices: dict[tuple[Call, Place, Policy], Choice] = {}
        self.native: dict[tuple[Any, ...], list[Kernel]] = {}


_cache = _Cache()
_MOST = 4096


def generation() -> tuple[int, int, int]:
    """Changes whenever a kernel, operator or device is registered; caches of choices watch it."""
    return kernels.generation, ops.generation, devices.generation


def choose(call: Call, place: Place, policy: Policy) -> Choice:
    """Choose the kernel of a call.

    Order: native (preferred library first), generated, generic, decomposed, fallback; a pinned operator
    runs on the host.

    Raises
    ------
    KernelNotFoundError
        If nothing can run it, or only the fallback place could and the policy forbids that.
    """
    now = generation()
    if _cache.generation != now or len(_cache.choices) > _MOST:
        _cache.choices, _cache.native = {}, {}
        _cache.generation = now
    key = (call, place, policy)
    found = _cache.choices.get(key)
    if found is None:
        found = _cache.choices[key] = _choose(call, place, policy)
    return found


def _choose(call: Call, place: Place, policy: Policy) -> Choice:
    refused: list[tuple[str, str]] = []
    if call.op.host_only is not None:
        host = devices.host()
        found = _on_place(call.at(host), host, policy, refused)
        if found is None:
            raise KernelNotFoundError(_not_found(call, host, refused, "it is pinned to the host"))
        return Choice(
            "pinned", host, found.library, found.kernel, found.capability, found.parts, found.part_choices,
            tuple(refused),
        )  # fmt: skip
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
    return Choice(
        "fallback", host, found.library, found.kernel, found.capability, found.parts, found.part_choices, tuple(refused)
    )


def _not_found(call: Call, place: Place, refused: list[tuple[str, str]], why: str) -> str:
    lines = [f"{call.op.type} cannot run on {place}; {why}."]
    lines += [f"  {candidate}: {reason}" for candidate, reason in refused]
    return "\n".join(lines)


def _on_place(call: Call, place: Place, policy: Policy, refused: list[tuple[str, str]]) -> Choice | None:
    unit = devices.unit(place)
    candidates = _candidates(call, place, policy)
    for attempt in (_native, _generated, _generic, _native_after_plain, _decomposed):
        found = attempt(call, unit, policy, candidates, refused)
        if found is not None:
            return found
    return None


def _candidates(call: Call, place: Place, policy: Policy) -> tuple[Kernel, ...]:
    """The kernels that may run a call; with an epilogue, the one that computes the product alone, if it takes such."""
    rule = call.op.epilogue
    if rule is None:
        return kernels.of(call.op.type)
    alone = _on_place(rule.product_call(call).at(place), place, policy, [])
    return (alone.kernel,) if alone is not None and alone.kernel is not None and alone.kernel.epilogue else ()


def _ordered(found: list[Kernel], kind: str, policy: Policy, call: Call) -> list[Kernel]:
    preferred = policy.preferred(kind)

    def rank(kernel: Kernel) -> tuple[int, int]:
        place = preferred.index(kernel.library) if kernel.library in preferred else len(preferred)
        return place, -kernels.library(kernel.library).rank

    return sorted(found, key=rank)


def _native(
    call: Call, unit: Unit, policy: Policy, candidates: tuple[Kernel, ...], refused: list[tuple[str, str]]
) -> Choice | None:
    kind = unit.place.kind
    if "native" in policy.exclude:
        return None
    mine = _native_kernels(call, kind, policy, candidates)
    for kernel in mine:
        if _after_plain(kernel, kind, policy):
            reason: str | None = f"the framework's own kernels are preferred to {kernel.library!r}"
        else:
            reason = _no_vectors(kernel, call, unit, policy) or refuse(kernel, call, unit)
        if reason is None:
            return Choice("native", unit.place, kernel.library, kernel, refused=tuple(refused))
        refused.append((f"native {kernel.library}", reason))
    if not mine:
        refused.append(("native", f"no kernel is registered for {kind}"))
    return None


def _native_kernels(call: Call, kind: str, policy: Policy, candidates: tuple[Kernel, ...]) -> list[Kernel]:
    """The candidates for a kind of places, preferred ones first: the same for all calls of an operator, but for those
    with an epilogue.
    """
    key = (call.op.type if call.op.epilogue is None else candidates, kind, policy.libraries)
    found = _cache.native.get(key)
    if found is None:
        mine = [kernel for kernel in candidates if any(matches(p, kind) for p in kernel.places)]
        found = _cache.native[key] = _ordered(mine, kind, policy, call)
    return found


def _after_plain(kernel: Kernel, kind: str, policy: Policy) -> bool:
    """Whether the user puts the framework's own kernels ("plain", generated or generic) before this library."""
    preferred = policy.preferred(kind)
    if "plain" not in preferred or kernel.library == "plain":
        return False
    return kernel.library not in preferred or preferred.index(kernel.library) > preferred.index("plain")


def _native_after_plain(
    call: Call, unit: Unit, policy: Policy, candidates: tuple[Kernel, ...], refused: list[tuple[str, str]]
) -> Choice | None:
    kind = unit.place.kind
    for kernel in _native_kernels(call, kind, policy, candidates):
        if not _after_plain(kernel, kind, policy):
            continue
        reason = _no_vectors(kernel, call, unit, policy) or refuse(kernel, call, unit)
        if "native" not in policy.exclude and reason is None:
            return Choice("native", unit.place, kernel.library, kernel, refused=tuple(refused))
    return None


def _generated(
    call: Call, unit: Unit, policy: Policy, candidates: tuple[Kernel, ...], refused: list[tuple[str, str]]
) -> Choice | None:
    if call.op.scalar is None:
        refused.append(("generated", "no expression"))
        return None
    if "generated" in policy.exclude:
        return None
    reason = device_refusal(call, unit)
    if reason is not None:
        refused.append(("generated", reason))
        return None
    for capability in GENERATED_FOR:
        if getattr(unit, capability) is None or capability not in generators:
            continue
        reason = unused(capability, call, unit, policy) or generators[capability].refuse(call, unit)
        if reason is None:
            return Choice("generated", unit.place, capability, None, capability, refused=tuple(refused))
        refused.append((f"generated ({capability})", reason))
    if unit.array is None and unit.dialect is None:
        refused.append(("generated", f"{unit.place.kind} has neither array namespace nor dialect"))
    return None


def _generic(
    call: Call, unit: Unit, policy: Policy, candidates: tuple[Kernel, ...], refused: list[tuple[str, str]]
) -> Choice | None:
    if "generic" in policy.exclude:
        return None
    chosen = policy.capability(unit.place.kind)
    tried = [
        (capability, kernel)
        for capability in sorted(unit.capabilities(), key=lambda each: each != chosen)
        for kernel in _ordered([k for k in candidates if capability in k.places], unit.place.kind, policy, call)
    ]
    for capability, kernel in sorted(tried, key=lambda pair: not pair[1].vendor):
        reason = unused(capability, call, unit, policy) or _no_vectors(kernel, call, unit, policy)
        reason = reason or refuse(kernel, call, unit)
        if reason is None and capability == "dialect":
            reason = dialect_refusal(call, unit)
        if reason is None:
            return Choice("generic", unit.place, kernel.library, kernel, capability, refused=tuple(refused))
        refused.append((f"generic ({capability})", reason))
    for capability, thing in (("array", unit.array), ("dialect", unit.dialect)):
        if thing is None:
            refused.append(
                (capability, f"{unit.place.kind} has no {'array namespace' if capability == 'array' else 'dialect'}")
            )
    return None


def _decomposed(
    call: Call, unit: Unit, policy: Policy, candidates: tuple[Kernel, ...], refused: list[tuple[str, str]]
) -> Choice | None:
    if call.op.decompose is None:
        refused.append(("decomposition", "none"))
        return None
    if "decomposed" in policy.exclude:
        return None
    try:
        parts = decompose(call)
    except ProgramError as exc:
        refused.append(("decomposition", str(exc)))
        return None
    except Exception as exc:
        if call.known and all(spec.known for specs in call.outs.values() for spec in specs):
            raise
        refused.append(("decomposition", f"its dims are not known yet ({type(exc).__name__}: {exc})"))
        return None
    if isinstance(parts, str):
        refused.append(("decomposition", parts))
        return None
    flat: list[Part] = []
    chosen: list[Choice] = []
    for number, part in enumerate(parts):
        inner: list[tuple[str, str]] = []
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


def unused(capability: str, call: Call, unit: Unit, policy: Policy) -> str | None:
    """Why a capability of a device is left aside for a call, or None."""
    if capability in policy.exclude:
        return "excluded by the policy"
    chosen = policy.capability(unit.place.kind)
    if chosen == "array" and capability == "dialect":
        return "codegen is another"
    if capability != "dialect" or chosen == "dialect" or unit.array is None or "array" in policy.exclude:
        return None
    least = getattr(unit.dialect, "least", 0)
    if call.op.scalar is not None and call.op.scalar.steps >= MANY_STEPS:
        return None
    if least and not policy.repeated and call.known and largest(call) < least:
        return f"under {least} elements the array namespace starts sooner"
    return None


def _no_vectors(kernel: Kernel, call: Call, unit: Unit, policy: Policy) -> str | None:
    """Why a kernel that is written in vectors of the dialect is left aside, or None."""
    if not kernel.vectors:
        return None
    if getattr(unit.dialect, "registers", None) is None:
        return f"{unit.place.kind} has no dialect that names vector registers"
    return unused("dialect", call, unit, policy)


def largest(call: Call) -> int:
    """The elements of the largest tensor of a call."""
    found = (spec for slots in (call.ins, call.outs) for specs in slots.values() for spec in specs)
    return max((prod(spec.dims) for spec in found), default=0)


def device_refusal(call: Call, unit: Unit) -> str | None:
    """Why the device itself cannot compute a call (a dtype it lacks), or None."""
    for specs, find in ((call.ins, call.op.input), (call.outs, call.op.output)):
        for slot, slot_specs in specs.items():
            declared = find(slot)
            if declared is not None and (declared.unread or declared.on_host):
                continue
            for spec in slot_specs:
                if spec.dtype not in unit.info.dtypes:
                    return f"{unit.place.kind} does not compute {spec.dtype} ({slot})"
    return None


def dialect_refusal(call: Call, unit: Unit) -> str | None:
    """Why a dialect cannot say a call (a type it lacks), or None. Half types are stored as 16-bit integers."""
    for slot, spec, declared in _specs(call):
        if declared is not None and (declared.unread or declared.on_host):
            continue
        stored = "int16" if spec.dtype in HALVES else spec.dtype
        if stored not in unit.dialect.types:
            return f"the dialect of {unit.place.kind} has no type for {stored} ({slot})"
    return None


def refuse(kernel: Kernel, call: Call, unit: Unit) -> str | None:
    """Why a kernel does not take a call on a device, or None."""
    plain = not kernel.layouts and "dense" in kernel.kinds and call.once("dense", _is_dense)
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
    try:
        answer = kernel.supports(call)
    except Exception as exc:
        raise RegistryError(f"supports of the kernel at {kernel.origin} raised {type(exc).__name__}: {exc}") from exc
    if answer is not None and not isinstance(answer, str):
        raise RegistryError(
            f"supports of the kernel at {kernel.origin} returned {answer!r}; expected None, or the reason of a refusal"
        )
    return answer


def _is_dense(call: Call) -> bool:
    return all(spec.kind == "dense" for slots in (call.ins, call.outs) for specs in slots.values() for spec in specs)


def _specs(call: Call) -> Iterator[tuple[str, Any, Slot | None]]:
    for slots, find in ((call.ins, call.op.input), (call.outs, call.op.output)):
        declared: Callable[[str], Slot | None] = find
        for slot, specs in slots.items():
            for spec in specs:
                yield slot, spec, declared(slot)
