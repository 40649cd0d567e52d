"""Kernels of expressions as nests in the kernel language of a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any
from weakref import WeakKeyDictionary

from fluidlite.base.dtypes import HALVES
from fluidlite.base.errors import KernelNotFoundError, ProgramError
from fluidlite.codegen.domain import domain_of
from fluidlite.codegen.lower import unsuitable
from fluidlite.expr.calls import leaves, traced_of
from fluidlite.expr.number import Number, Values, number
from fluidlite.expr.tensor import Tensor
from fluidlite.expr.traced import Traced
from fluidlite.platform.kernel_language import runs_side_by_side
from fluidlite.program import codegen_registry as generated
from fluidlite.program.codegen_registry import Generator, generators
from fluidlite.program.op_call import Call, once
from fluidlite.program.opdef import GRAD
from fluidlite.program.prepared import Prepared
from fluidlite.render.loops.collapse import collapsed
from fluidlite.render.loops.elements import KNOWN, Source
from fluidlite.render.loops.in_order import SCATTERING
from fluidlite.render.loops.kept_answers import Answer, Question
from fluidlite.render.loops.launches import Piece, decoded, encoded, group_of, launched
from fluidlite.render.loops.merging import elements_of, merged
from fluidlite.render.loops.nest import Nest
from fluidlite.render.loops.nests import contracted_axes, free_workspace, nests_of
from fluidlite.render.loops.parts import in_parts
from fluidlite.render.loops.past_caches import beyond_caches, past_caches
from fluidlite.render.loops.rules import ELEMENTS
from fluidlite.render.loops.scans import with_scans
from fluidlite.render.loops.schedule import heavy, schedule_of, tiled
from fluidlite.render.loops.sharing import in_turn
from fluidlite.render.loops.sizes import Guards, Noted, Sizes, size_of
from fluidlite.render.loops.text import NestWriter

_IN_ORDER = frozenset({"reduce", "arg", "running"})
"""What goes through elements again that a loop before may have written over."""
_ELEMENTWISE = frozenset({"input", "number", "map", "cast", "stop", "broadcast", "reshape", "iota"})


DEEPEST = 512
"""So many primitives may be computed of each other: nests are made by a function that calls itself for each."""


class LoopKernels:
    """Makes kernels of expressions as nests of loops; of scalar expressions that add nothing up another generator does,
    unless no cache holds what they make, and the language stores past the caches.

    Operators put together that all compute the same elements are said element by element, of which the other one's
    kernels are faster in some programs, and slower in none by as much.
    """

    def __init__(self, scalars: Generator) -> None:
        self.scalars = scalars

    def refuse(self, call: Call, unit: Any) -> str | None:
        """Why no kernel can be generated, or None."""
        if not of_loops(call):
            return self.scalars.refuse(call, unit)
        if unit.language is None:
            return "the device has no kernel language"
        reason = unsuitable(call, unit.info.dtypes)
        if reason is not None:
            return reason
        try:
            reason = refusal(call)
        except ProgramError as exc:  # numbers that it reads as values are not known yet
            return str(exc)
        if reason is not None:
            return reason
        for dtype in {x.dtype for x in traced_of(call).every}:
            if ("int16" if dtype in HALVES else dtype) not in unit.language.types and dtype != "bool":
                return f"the kernel language has no {dtype}"
        return None

    def prepare(self, call: Call, context: Any) -> Any:
        """Return ``run(context, io)``."""
        if of_loops(call) or ("stream" in context.language.keywords and _large(call)):
            return prepare(call, context)
        return self.scalars.prepare(call, context)

    def may_lie_on(self, call: Call) -> Mapping[str, str]:
        """For output slots the input slots on which they may lie."""
        return may_lie_on(call) if of_loops(call) or _large(call) else self.scalars.may_lie_on(call)


def of_loops(call: Call) -> bool:
    """Whether nests are to compute a call: an expression of tensors, or one of scalars that adds elements up."""
    scalar = call.op.scalar
    if scalar is None or (scalar.supports is not None and scalar.supports(call) is not None):
        return call.op.expression is not None
    try:
        return call.known and bool(domain_of(call).sums)
    except ProgramError:
        return False


def _large(call: Call) -> bool:
    return beyond_caches(call) and _depth(traced_of(call).every) <= DEEPEST


def refusal(call: Call) -> str | None:
    """Why nests cannot compute a call, or None."""
    if not of_loops(call):
        return "it is no expression of tensors"
    if call.op.expression is None:
        unsaid = [slot for slot in domain_of(call).sums if slot.removesuffix(GRAD) not in call.ins]
        if unsaid:
            return f"{unsaid[0]} adds elements up, and is the gradient of no operand"
    if any(x.op not in ELEMENTS and x.op not in SCATTERING and x.op != "scan" for x in traced_of(call).every):
        return "no loops are written for a recurrence yet"
    depth = _depth(traced_of(call).every)
    if depth > DEEPEST:
        return f"its expression is {depth} primitives deep, of which loops go through {DEEPEST}"
    if not call.known:  # it is asked again when they are
        return None
    if call.op.expression is not None and call.op.expression.operators and not all(dims_fit(call).values()):
        return "its expression makes other dims than the operator infers"
    if _shared(call) and traced_of(call).checks_indices:
        return "it checks indices, and must write over no operand before it knows that they are right"
    if _shared(call) and not _readable(call):
        return "it writes over an operand before all of it is read"
    return None


def _depth(every: Sequence[Tensor]) -> int:
    """How many primitives are computed of each other; what others are made of comes first."""
    if len(every) <= DEEPEST:
        return len(every)
    depths: dict[Tensor, int] = {}
    for x in every:
        depths[x] = 1 + max((depths[arg] for arg in x.args), default=0)
    return max(depths.values())


def dims_fit(call: Call) -> dict[str, bool]:
    """By output slot, whether an expression makes the dims that were inferred by other means."""
    traced, values = traced_of(call), leaves(call)
    return {
        slot: all(traced.dims(slot, values, i) == spec.dims for i, spec in enumerate(specs))
        for slot, specs in call.outs.items()
        if slot in traced.outputs
    }


def _readable(call: Call) -> bool:
    """Whether nests that write over operands read them before."""
    about = repr((_wanted(call), _shared(call)))
    return _READABLE.ask(call, about, lambda: _answer(call, lambda laid: laid.in_turn(call) is not None))


def _nests(call: Call, values: Sizes, side_by_side: bool = False) -> list[Nest]:
    """The nests of a call, before their items are cut into tiles."""
    found: list[Nest] = []
    nests = with_scans(nests_of(traced_of(call), _wanted(call), values, side_by_side))
    made = free_workspace(nests)
    for nest in map(merged, nests):
        parts = in_parts(nest, made)
        made += len(parts[0].stores) if len(parts) > 1 else 0
        found += parts
    return found


def noted(call: Call, guards: Guards) -> Noted:
    """The sizes of a call, of which it is noted what is asked."""
    traced = collapsed(traced_of(call))
    found = Noted(leaves(call), guards, generic=traced.generic_sizes)
    for x in (x for side in (traced.inputs, traced.outputs) for each in side.values() for x in each):
        if len(x.dims) > 1 and x.dims[-1].op != "const" and size_of(x.dims[-1], found) <= KNOWN:
            found.short.append(x.dims[-1])
    return found


class _Laid:
    """The nests of all calls of a trace whose sizes answer alike what was asked.

    What a cost model asks for, what a choice asks whether it can be, and what is written are the same nests.
    """

    def __init__(self, call: Call) -> None:
        self.guards = Guards()
        self.wanted = _wanted(call)
        self.values = noted(call, self.guards)
        self.nests = [tiled(each, self.values) for each in _nests(call, self.values)]
        self.turns: dict[tuple[Any, ...], tuple[Nest, ...] | None] = {}

    def serves(self, wanted: Mapping[tuple[str, int], str], values: Values) -> bool:
        """Whether these are the nests of such outputs at such sizes."""
        return self.wanted == wanted and self.guards.hold(values)

    def in_turn(self, call: Call, side_by_side: bool = False) -> tuple[Nest, ...] | None:
        """The nests in the order in which they run; None if they write over an operand before all of it is read.

        Not cut into tiles where work-items run ``side_by_side``.
        """
        shared = _shared(call)
        key = side_by_side, *shared.items()
        if key not in self.turns:
            self.turns[key] = in_turn(_nests(call, self.values, True) if side_by_side else self.nests, shared)
        return self.turns[key]


_known: WeakKeyDictionary[Traced, list[_Laid]] = WeakKeyDictionary()
_MOST = 16
"""So many are kept of a trace, for sizes of which different things hold."""


def _laid(call: Call) -> _Laid:
    wanted, values = _wanted(call), leaves(call)
    known = _known.setdefault(traced_of(call), [])
    found = next((each for each in known if each.serves(wanted, values)), None)
    return found if found is not None else _add(call)


def _add(call: Call) -> _Laid:
    made, known = _Laid(call), _known[traced_of(call)]
    known.append(made)
    del known[:-_MOST]
    return made


def _answer(call: Call, ask: Callable[[_Laid], Answer]) -> tuple[Guards, Answer]:
    """What is asked of the nests of a call, and of sizes for that.

    It is asked of nests of its own, where the answer depends on sizes that others have.
    """
    laid = _laid(call)
    found = ask(laid)
    if not laid.guards.hold(leaves(call)):
        laid = _add(call)
        found = ask(laid)
    return laid.guards, found


_READABLE = Question[bool]("readable", lambda readable, _: readable, lambda value, _: value is True)
_ALIASES = Question[Mapping[str, str]]("aliases", lambda aliases, _: {**aliases}, lambda value, _: dict(value))
_TEXTS = Question("texts", encoded, decoded)


def at_sizes(question: Question[Answer], call: Call, about: str, find: Callable[[], Answer]) -> Answer:
    """What is asked of a call at its sizes; the answer serves calls of these only.

    ``about``: all on which it depends beside the trace and the sizes.
    """
    guards = Guards()
    for name, value in leaves(call).items():
        if not isinstance(value, (int, float)):  # offsets of sequences
            return find()
        guards.note("equal", Number("size", (), name), number(value), True)
    return question.ask(call, about, lambda: (guards, find()))


def tiled_nests(call: Call) -> Sequence[Nest]:
    """The nests of a call, cut into tiles."""
    return _laid(call).nests


def written(call: Call, context: Any) -> tuple[Piece, ...]:
    """The text of a call: one for all calls whose sizes answer alike what was asked.

    Raises KernelNotFoundError if its nests write over an operand before all of it is read.
    """
    language = context.language
    side_by_side = runs_side_by_side(language)
    inputs = [[slot, [spec.dtype for spec in specs]] for slot, specs in call.ins.items()]
    about = repr((_words(language), inputs, _wanted(call), _shared(call), call.op.must_alias))

    def write(laid: _Laid) -> tuple[Piece, ...] | None:
        return _text(call, laid.in_turn(call, side_by_side), language, laid.values)

    found = _TEXTS.ask(call, about, lambda: _answer(call, write))
    if found is None:
        raise KernelNotFoundError(f"{call.op.type} writes over an operand before all of it is read")
    return found


def write(call: Call, context: Any, values: Sizes) -> tuple[Piece, ...] | None:
    """Write the text of a call's nests for sizes; None if they write over operands before these are read."""
    side_by_side = runs_side_by_side(context.language)
    nests = _nests(call, values, side_by_side)
    if not side_by_side:
        nests = [tiled(each, values) for each in nests]
    return _text(call, in_turn(nests, _shared(call)), context.language, values)


def _text(call: Call, nests: Sequence[Nest] | None, language: Any, values: Sizes) -> tuple[Piece, ...] | None:
    if nests is None:
        return None
    dtypes: dict[Source, str] = {
        **{("in", slot, i): spec.dtype for slot, specs in call.ins.items() for i, spec in enumerate(specs)},
        **{("out", *key): dtype for key, dtype in _wanted(call).items()},
        **{store.target: store.dtype for nest in nests for store in nest.stores if store.target[0] == "made"},
    }
    pieces, shared, updated = [], _shared(call), _pairs(call, call.op.must_alias)
    for nest in nests:
        schedule = schedule_of(nest, dtypes, values, group_of(language))
        if "stream" in language.keywords:
            schedule = past_caches(nest, schedule, dtypes, values)
        text = NestWriter(nest, schedule, language, dtypes, shared, updated).text()
        targets = tuple((store.target, store.dims, dtypes[store.target]) for store in nest.stores)
        items = tuple(axis.size for axis in nest.items)
        pieces.append(Piece(text, items, targets, heavy(nest, schedule, values)))
    return tuple(pieces)


def _words(language: Any) -> str:
    """What stands for all of a language on which texts depend."""
    keywords = [language.keywords.get(name) for name in ("independent", "apart", "stream", "unroll")]
    tables = [sorted(language.types.items()), sorted(language.math.items())]
    words = [*tables, keywords, group_of(language), runs_side_by_side(language)]
    return sha256(repr(words).encode()).hexdigest()


def _wanted(call: Call) -> dict[tuple[str, int], str]:
    """The outputs that are computed, and as what they are stored."""
    outputs = traced_of(call).outputs
    return {
        (slot, i): spec.dtype for slot, specs in call.outs.items() if slot in outputs for i, spec in enumerate(specs)
    }


def _shared(call: Call) -> dict[Source, Source]:
    """Outputs that lie on operands, or may."""
    return _pairs(call, {**may_lie_on(call), **call.op.must_alias})


def _pairs(call: Call, alias: Mapping[str, str]) -> dict[Source, Source]:
    return {
        ("out", slot, i): ("in", alias[slot], i)
        for slot, i in _wanted(call)
        if slot in alias and alias[slot] in call.ins
    }


def prepare(call: Call, context: Any) -> Prepared:
    """Return what launches the nests of a call one after the other."""
    return launched(call, context, written(call, context), bool(_shared(call)))


@once
def may_lie_on(call: Call) -> Mapping[str, str]:
    """For output slots the input slots on which they may lie: loops read each element there before they write it."""
    if not call.op.may_alias or not call.known or traced_of(call).checks_indices:
        return {}
    alike = {slot: given for slot, given in call.op.may_alias.items() if call.specs(slot) == call.specs(given)}

    def find(laid: _Laid) -> dict[str, str]:
        found: dict[str, str] = {}
        for nest in laid.nests:
            if any(x.op in _IN_ORDER for x in elements_of(nest)) or any(s.ordered or s.combine for s in nest.stores):
                return found
        for slot, given in alike.items():
            if in_turn(laid.nests, _pairs(call, {**found, slot: given, **call.op.must_alias})) is not None:
                found[slot] = given
        return found

    about = repr((_wanted(call), alike, call.op.must_alias))
    found = _ALIASES.ask(call, about, lambda: _answer(call, find)) if alike else {}
    return {slot: given for slot, given in found.items() if alike.get(slot) == given}


def _results(call: Call) -> list[Tensor]:
    return [x for found in traced_of(call).outputs.values() for x in found]


def parts_first(call: Call) -> bool:
    """Whether other operators are to compute the parts of an expression, if they can: products of matrices have kernels
    of their own.
    """
    return _computed_by_parts(call) and _parts_first(call)


def elementwise(call: Call) -> bool:
    """Whether an expression only computes element by element: its parts can be fused with what is around them."""
    return _computed_by_parts(call) and _elementwise(call)


def _computed_by_parts(call: Call) -> bool:
    return not call.op.must_alias and call.op.expression is not None and not call.op.expression.operators


@once
def _parts_first(call: Call) -> bool:
    try:
        every = traced_of(call).every
    except ProgramError:
        return True
    values = leaves(call)
    return any(x.op == "steps" or (x.op == "contract" and _is_product(x, values)) for x in every)


@once
def _elementwise(call: Call) -> bool:
    try:
        return {x.op for x in traced_of(call).every} <= _ELEMENTWISE
    except ProgramError:
        return False


def _is_product(x: Tensor, values: Values) -> bool:
    """Whether each element of either operand meets several of the other, and sums are taken.

    Of a batch of products those of matrices with one row or column are none: a convolution's whose channels are groups.
    """
    mine, theirs, out = (set(axes) for axes in x.params)
    if mine & theirs & out:
        single = {axis for axis, d in contracted_axes(x).items() if d.evaluate(values) == 1}
        mine, theirs, out = mine - single, theirs - single, out - single
    return not mine <= theirs and not theirs <= mine and not mine | theirs <= out


generators["language"] = LoopKernels(generators["language"])
generated.parts_first, generated.elementwise = parts_first, elementwise
