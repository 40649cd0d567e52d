"""Generates kernels of expressions: loop nests in the kernel language of a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary

from fluidlite.base.dtypes import HALVES
from fluidlite.base.errors import KernelNotFoundError, ProgramError
from fluidlite.codegen.domain import domain_of
from fluidlite.codegen.lower import operand_refusal
from fluidlite.expr.calls import leaves, traced_of
from fluidlite.expr.number import Number, Values, number
from fluidlite.expr.tensor import Tensor
from fluidlite.expr.traced import Traced
from fluidlite.platform.kernel_language import runs_side_by_side
from fluidlite.program import codegen_registry as generated
from fluidlite.program.codegen_registry import CodeGenerator, generators
from fluidlite.program.op_call import Call, cached_in_call
from fluidlite.program.opdef import GRAD
from fluidlite.program.prepared import Prepared
from fluidlite.render.loops.collapse import collapsed
from fluidlite.render.loops.elements import MAX_CONSTANT_DIM, BufferKey
from fluidlite.render.loops.guarded_cache import Answer, GuardedCache
from fluidlite.render.loops.launch_order import alias_safe_order
from fluidlite.render.loops.launches import NestCode, decode_texts, encode_texts, group_size, prepare_launches
from fluidlite.render.loops.merging import elements_of, merged
from fluidlite.render.loops.nest import Nest
from fluidlite.render.loops.nests import contracted_axes, free_workspace, nests_of
from fluidlite.render.loops.nontemporal import exceeds_caches, with_nontemporal
from fluidlite.render.loops.rules import ELEMENTS
from fluidlite.render.loops.scans import with_fused_scans
from fluidlite.render.loops.schedule import has_heavy_items, schedule_of, tiled
from fluidlite.render.loops.sequential import SCATTERING
from fluidlite.render.loops.sizes import GuardedSizes, Guards, Sizes, size_of
from fluidlite.render.loops.split_reductions import split_reductions
from fluidlite.render.loops.text import NestWriter

_ORDERED = frozenset({"reduce", "arg", "running"})
"""Elements that read values several times, or in an order: outputs must not alias their operands."""
_ELEMENTWISE = frozenset({"input", "number", "map", "cast", "stop", "broadcast", "reshape", "iota"})


MAX_DEPTH = 512
"""Depth of an expression in primitives; lowering is recursive."""


class LoopKernels:
    """The generator of kernels by loop nests.

    Another generator handles elementwise expressions without sums, which its kernels compute somewhat faster. This one
    handles them if no cache holds their outputs and the language has nontemporal stores.
    """

    def __init__(self, scalars: CodeGenerator) -> None:
        self.scalars = scalars

    def refuse(self, call: Call, unit: Any) -> str | None:
        """Why no kernel can be generated, or None."""
        if not uses_loops(call):
            return self.scalars.refuse(call, unit)
        if unit.language is None:
            return "the device has no kernel language"
        reason = operand_refusal(call, unit.info.dtypes)
        if reason is not None:
            return reason
        try:
            reason = refusal(call)
        except ProgramError as exc:  # operands that it reads as values are not known yet
            return str(exc)
        if reason is not None:
            return reason
        for dtype in {x.dtype for x in traced_of(call).every}:
            if ("int16" if dtype in HALVES else dtype) not in unit.language.types and dtype != "bool":
                return f"the kernel language has no {dtype}"
        return None

    def prepare(self, call: Call, context: Any) -> Any:
        """Return ``run(context, io)``."""
        if uses_loops(call) or ("stream" in context.language.keywords and _exceeds_caches(call)):
            return prepare(call, context)
        return self.scalars.prepare(call, context)

    def aliasable_slots(self, call: Call) -> Mapping[str, str]:
        """By output slot, the input slot that it may alias."""
        return (
            aliasable_operands(call)
            if uses_loops(call) or _exceeds_caches(call)
            else self.scalars.aliasable_slots(call)
        )


def uses_loops(call: Call) -> bool:
    """Whether nests compute a call: a tensor expression, or a scalar one that sums elements."""
    scalar = call.op.scalar
    if scalar is None or (scalar.supports is not None and scalar.supports(call) is not None):
        return call.op.expression is not None
    try:
        return call.is_static and bool(domain_of(call).sums)
    except ProgramError:
        return False


def _exceeds_caches(call: Call) -> bool:
    return exceeds_caches(call) and _depth(traced_of(call).every) <= MAX_DEPTH


def refusal(call: Call) -> str | None:
    """Why nests cannot compute a call, or None."""
    if not uses_loops(call):
        return "it is no expression of tensors"
    if call.op.expression is None:
        unmatched = [slot for slot in domain_of(call).sums if slot.removesuffix(GRAD) not in call.ins]
        if unmatched:
            return f"{unmatched[0]} adds elements up, and is the gradient of no operand"
    if any(x.op not in ELEMENTS and x.op not in SCATTERING and x.op != "scan" for x in traced_of(call).every):
        return "no loops are written for a recurrence yet"
    depth = _depth(traced_of(call).every)
    if depth > MAX_DEPTH:
        return f"its expression is {depth} primitives deep, of which loops go through {MAX_DEPTH}"
    if not call.is_static:  # it is decided when the dims are known
        return None
    if call.op.expression is not None and call.op.expression.operators and not all(has_inferred_dims(call).values()):
        return "its expression makes other dims than the operator infers"
    if _aliases(call) and traced_of(call).checks_indices:
        return "it checks indices, and must write over no operand before it knows that they are right"
    if _aliases(call) and not _reads_before_overwriting(call):
        return "it writes over an operand before all of it is read"
    return None


def _depth(primitives: Sequence[Tensor]) -> int:
    """The length of the longest path through primitives, which are in topological order."""
    if len(primitives) <= MAX_DEPTH:
        return len(primitives)
    depths: dict[Tensor, int] = {}
    for x in primitives:
        depths[x] = 1 + max((depths[arg] for arg in x.args), default=0)
    return max(depths.values())


def has_inferred_dims(call: Call) -> dict[str, bool]:
    """By output slot, whether an expression has the dims that shape inference gave."""
    traced, values = traced_of(call), leaves(call)
    return {
        slot: all(traced.dims(slot, values, i) == spec.dims for i, spec in enumerate(specs))
        for slot, specs in call.outs.items()
        if slot in traced.outputs
    }


def _reads_before_overwriting(call: Call) -> bool:
    """Whether nests read each operand before an output that aliases it overwrites it."""
    facts = repr((_requested(call), _aliases(call)))
    return _READABLE.get(call, facts, lambda: _guarded_answer(call, lambda nests: nests.launch_order(call) is not None))


def _nests(call: Call, values: Sizes, lockstep: bool = False) -> list[Nest]:
    """Lower a call to nests that are not tiled yet."""
    split_nests: list[Nest] = []
    nests = with_fused_scans(nests_of(traced_of(call), _requested(call), values, lockstep))
    workspaces = free_workspace(nests)
    for nest in map(merged, nests):
        parts = split_reductions(nest, workspaces)
        workspaces += len(parts[0].stores) if len(parts) > 1 else 0
        split_nests += parts
    return split_nests


def guarded_sizes(call: Call, guards: Guards) -> GuardedSizes:
    """The sizes of a call with guards; short last dims are constants."""
    traced = collapsed(traced_of(call))
    sizes = GuardedSizes(leaves(call), guards, generic=traced.generic_sizes)
    for x in (x for side in (traced.inputs, traced.outputs) for each in side.values() for x in each):
        if len(x.dims) > 1 and x.dims[-1].op != "const" and size_of(x.dims[-1], sizes) <= MAX_CONSTANT_DIM:
            sizes.constant_dims.append(x.dims[-1])
    return sizes


class CallNests:
    """The nests of a trace, valid for all calls whose sizes satisfy the guards.

    Cost model, kernel selection and code generation share them.
    """

    def __init__(self, call: Call) -> None:
        self.guards = Guards()
        self.requested = _requested(call)
        self.values = guarded_sizes(call, self.guards)
        self.nests = [tiled(each, self.values) for each in _nests(call, self.values)]

    def is_valid_for(self, requested: Mapping[tuple[str, int], str], values: Values) -> bool:
        """Whether the nests are valid for these outputs and sizes."""
        return self.requested == requested and self.guards.hold(values)

    def launch_order(self, call: Call, lockstep: bool = False) -> tuple[Nest, ...] | None:
        """The nests in launch order; None if they would overwrite an operand before all of it is read.

        They are not tiled for devices that run work-items in ``lockstep``.
        """
        return alias_safe_order(_nests(call, self.values, True) if lockstep else self.nests, _aliases(call))


_cache: WeakKeyDictionary[Traced, list[CallNests]] = WeakKeyDictionary()
_MAX_VARIANTS = 16
"""Cached nests of a trace, each valid for other sizes."""


def _call_nests(call: Call) -> CallNests:
    requested, values = _requested(call), leaves(call)
    variants = _cache.setdefault(traced_of(call), [])
    valid = next((each for each in variants if each.is_valid_for(requested, values)), None)
    return valid if valid is not None else _lower_anew(call)


def _lower_anew(call: Call) -> CallNests:
    nests, variants = CallNests(call), _cache[traced_of(call)]
    variants.append(nests)
    del variants[:-_MAX_VARIANTS]
    return nests


def _guarded_answer(call: Call, compute: Callable[[CallNests], Answer]) -> tuple[Guards, Answer]:
    """Compute an answer from the nests of a call, and return it with the guards that it depends on.

    If the answer adds a guard to cached nests that fails for this call, the call is lowered anew.
    """
    nests = _call_nests(call)
    answer = compute(nests)
    if not nests.guards.hold(leaves(call)):
        nests = _lower_anew(call)
        answer = compute(nests)
    return nests.guards, answer


_READABLE = GuardedCache[bool]("readable", lambda readable, _: readable, lambda value, _: value is True)
_ALIASES = GuardedCache[Mapping[str, str]]("aliases", lambda aliases, _: {**aliases}, lambda value, _: dict(value))
_TEXTS = GuardedCache("texts", encode_texts, decode_texts)


def at_sizes(cache: GuardedCache[Answer], call: Call, facts: str, compute: Callable[[], Answer]) -> Answer:
    """Cache an answer that is valid for exactly the sizes of a call.

    ``facts``: all other facts that the answer depends on, besides the trace.
    """
    guards = Guards()
    for name, value in leaves(call).items():
        if not isinstance(value, (int, float)):  # offsets of sequences
            return compute()
        guards.record("equal", Number("size", (), name), number(value), True)
    return cache.get(call, facts, lambda: (guards, compute()))


def tiled_nests(call: Call) -> Sequence[Nest]:
    """The tiled nests of a call."""
    return _call_nests(call).nests


def nest_codes(call: Call, context: Any) -> tuple[NestCode, ...]:
    """The texts of a call's nests, cached for all calls whose sizes satisfy the same guards.

    Raises KernelNotFoundError if the nests overwrite an operand before all of it is read.
    """
    language = context.language
    inputs = [[slot, [spec.dtype for spec in specs]] for slot, specs in call.ins.items()]
    facts = repr((_language_digest(language), inputs, _requested(call), _aliases(call), call.op.must_alias))
    codes = _TEXTS.get(call, facts, lambda: _guarded_answer(call, lambda nests: write(call, language, nests)))
    if codes is None:
        raise KernelNotFoundError(f"{call.op.type} writes over an operand before all of it is read")
    return codes


def write(call: Call, language: Any, nests: CallNests) -> tuple[NestCode, ...] | None:
    """Write the texts of a call's nests, uncached; None if the nests overwrite operands before these are read."""
    return _text(call, nests.launch_order(call, runs_side_by_side(language)), language, nests.values)


def _text(call: Call, nests: Sequence[Nest] | None, language: Any, values: Sizes) -> tuple[NestCode, ...] | None:
    if nests is None:
        return None
    dtypes: dict[BufferKey, str] = {
        **{("in", slot, i): spec.dtype for slot, specs in call.ins.items() for i, spec in enumerate(specs)},
        **{("out", *key): dtype for key, dtype in _requested(call).items()},
        **{store.target: store.dtype for nest in nests for store in nest.stores if store.target[0] == "made"},
    }
    codes, aliases, updated = [], _aliases(call), _alias_pairs(call, call.op.must_alias)
    for nest in nests:
        schedule = schedule_of(nest, dtypes, values, group_size(language))
        if "stream" in language.keywords:
            schedule = with_nontemporal(nest, schedule, dtypes, values)
        text = NestWriter(nest, schedule, language, dtypes, aliases, updated).text()
        targets = tuple((store.target, store.dims, dtypes[store.target]) for store in nest.stores)
        items = tuple(axis.size for axis in nest.items)
        codes.append(NestCode(text, items, targets, has_heavy_items(nest, schedule, values)))
    return tuple(codes)


def _language_digest(language: Any) -> str:
    """A digest of everything in a kernel language that texts depend on."""
    keywords = [language.keywords.get(name) for name in ("independent", "apart", "stream", "unroll")]
    tables = [sorted(language.types.items()), sorted(language.math.items())]
    parts = [*tables, keywords, group_size(language), runs_side_by_side(language)]
    return sha256(repr(parts).encode()).hexdigest()


def _requested(call: Call) -> dict[tuple[str, int], str]:
    """The computed outputs by (slot, number), with their dtypes in memory."""
    outputs = traced_of(call).outputs
    return {
        (slot, i): spec.dtype for slot, specs in call.outs.items() if slot in outputs for i, spec in enumerate(specs)
    }


def _aliases(call: Call) -> dict[BufferKey, BufferKey]:
    """The operand that each output aliases, or may alias."""
    return _alias_pairs(call, {**aliasable_operands(call), **call.op.must_alias})


def _alias_pairs(call: Call, alias: Mapping[str, str]) -> dict[BufferKey, BufferKey]:
    return {
        ("out", slot, i): ("in", alias[slot], i)
        for slot, i in _requested(call)
        if slot in alias and alias[slot] in call.ins
    }


def prepare(call: Call, context: Any) -> Prepared:
    """Prepare a call: compile its nests, and return what launches them."""
    return prepare_launches(call, context, nest_codes(call, context), bool(_aliases(call)))


@cached_in_call
def aliasable_operands(call: Call) -> Mapping[str, str]:
    """By output slot, the input slot that it may alias: loops read each element of that before they overwrite it."""
    if not call.op.may_alias or not call.is_static or traced_of(call).checks_indices:
        return {}
    matching = {slot: operand for slot, operand in call.op.may_alias.items() if call.specs(slot) == call.specs(operand)}

    def compute(entry: CallNests) -> dict[str, str]:
        aliases: dict[str, str] = {}
        for nest in entry.nests:
            if any(x.op in _ORDERED for x in elements_of(nest)) or any(s.ordered or s.combine for s in nest.stores):
                return aliases
        for slot, operand in matching.items():
            if (
                alias_safe_order(entry.nests, _alias_pairs(call, {**aliases, slot: operand, **call.op.must_alias}))
                is not None
            ):
                aliases[slot] = operand
        return aliases

    facts = repr((_requested(call), matching, call.op.must_alias))
    aliases = _ALIASES.get(call, facts, lambda: _guarded_answer(call, compute)) if matching else {}
    return {slot: operand for slot, operand in aliases.items() if matching.get(slot) == operand}


def prefers_decomposition(call: Call) -> bool:
    """Whether an expression is better decomposed into operators: matrix products have kernels of their own."""
    return _computed_by_parts(call) and _parts_first(call)


def is_elementwise(call: Call) -> bool:
    """Whether an expression is elementwise: its primitives can be fused with neighbouring operators."""
    return _computed_by_parts(call) and _elementwise(call)


def _computed_by_parts(call: Call) -> bool:
    return not call.op.must_alias and call.op.expression is not None and not call.op.expression.operators


@cached_in_call
def _parts_first(call: Call) -> bool:
    try:
        every = traced_of(call).every
    except ProgramError:
        return True
    kinds = set(map(attrgetter("op"), every))
    if "contract" not in kinds or "steps" in kinds:
        return "steps" in kinds
    values = leaves(call)
    return any(x.op == "contract" and _is_matmul(x, values) for x in every)


@cached_in_call
def _elementwise(call: Call) -> bool:
    try:
        return {x.op for x in traced_of(call).every} <= _ELEMENTWISE
    except ProgramError:
        return False


def _is_matmul(x: Tensor, values: Values) -> bool:
    """Whether a contraction is a matrix product: both operands have free axes, and there are contracted axes.

    Axes of length 1 do not count in a batch: a depthwise convolution is no matrix product.
    """
    a_axes, b_axes, out = (set(axes) for axes in x.params)
    if a_axes & b_axes & out:
        unit_axes = {axis for axis, d in contracted_axes(x).items() if d.evaluate(values) == 1}
        a_axes, b_axes, out = a_axes - unit_axes, b_axes - unit_axes, out - unit_axes
    return not a_axes <= b_axes and not b_axes <= a_axes and not a_axes | b_axes <= out


generators["language"] = LoopKernels(generators["language"])
generated.prefers_decomposition, generated.elementwise = prefers_decomposition, is_elementwise
