"""Minimizes the bytes that a plan moves: choices of layouts and of places over the whole plan, by minimum cuts.

The planner chooses operator by operator. Where it then rearranges values although an operator has kernels of equal
rank for several layouts, or copies values between operators that run on the host, this module computes the choices
that move the fewest bytes over the whole plan; the planner plans again with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod

from fluidlite.base.dtypes import ITEMSIZE
from fluidlite.base.errors import FluidError
from fluidlite.base.reached import reached
from fluidlite.compiler.ir.graph_nodes import GraphOp, GraphValue
from fluidlite.compiler.planning.min_cut import End, TransferredValue, minimum_transfers
from fluidlite.compiler.planning.plan import Plan, PlanEntry
from fluidlite.compiler.policy import Policy
from fluidlite.compiler.selection.choice import Choice
from fluidlite.compiler.selection.kernel_selection import select_kernel
from fluidlite.platform.place import Place
from fluidlite.program.layout_rewrite import LAYOUT, call_in_layout
from fluidlite.tensor.layout import PLAIN, Layout, layout_named
from fluidlite.tensor.tensor_spec import Spec

TiedChoices = Mapping[int, tuple[Choice, ...]]
"""By operator (``id``): its kernels of equal rank, the preferred one first."""
Overrides = dict[int, Choice]
"""By operator (``id``): the choice that replaces its own."""

_FIXED = End(None, False)


def moved_bytes(plan: Plan, default_place: Place, host: Place) -> int:
    """The bytes that a plan copies or rearranges; an unknown dim counts as 1."""
    fetched = [spec for _, _, place, spec in plan.fetches if default_place != host and place != host]
    return sum(map(nbytes, [*(move.spec for entry in plan.lines for move in entry.moves), *fetched]))


def nbytes(spec: Spec) -> int:
    """The bytes of a value; an unknown dim counts as 1."""
    return prod(max(dim, 1) for dim in spec.dims) * ITEMSIZE[spec.dtype]


def layout_overrides(entries: Sequence[PlanEntry], results: Sequence[GraphValue], tied: TiedChoices) -> Overrides:
    """The kernels, of those of equal rank, with which the fewest bytes are rearranged."""
    if not any(move.why == "layout" for entry in entries for move in entry.moves):
        return {}
    overrides: Overrides = {}
    layout_names = {name for choices in tied.values() for choice in choices for name in choice.layouts.values()}
    for name in sorted(layout_names - {"any", PLAIN.name}):
        overrides.update(_in_layout(entries, results, tied, layout_named(name)))
    return overrides


def _in_layout(
    entries: Sequence[PlanEntry], results: Sequence[GraphValue], tied: TiedChoices, layout: Layout
) -> Overrides:
    """The overrides for one layout, by a minimum cut with a node for each operator that can use it."""
    nodes: dict[int, tuple[frozenset[str], tuple[Choice, ...]]] = {}
    slots: list[tuple[int | None, frozenset[str]]] = []
    for entry in entries:
        choices = _plain_and_layout(tied.get(id(entry.op), ()), layout)
        if choices:
            nodes[len(nodes)] = slots_in_layout(choices[1], layout), choices
            slots.append((len(nodes) - 1, slots_in_layout(choices[1], layout)))
        elif entry.call is None or entry.choice is None or entry.choice.parts:
            slots.append((None, frozenset()))
        elif entry.op.definition.scalar is not None and not entry.choice.layouts and LAYOUT not in entry.op.hints:
            rewrite = call_in_layout(entry.call, layout)  # it computes in the layout of its inputs
            slots.append((None, frozenset()))
            if rewrite is not None:
                nodes[len(nodes)] = rewrite[1], ()
                slots[-1] = len(nodes) - 1, rewrite[1]
        else:
            slots.append((None, slots_in_layout(entry.choice, layout)))

    def end(at: int, slot: str) -> End:
        node, in_layout = slots[at]
        return End(node, slot in in_layout)

    rank = len(layout.permutation or ())
    values = transferred_values(map(_operands, entries), results, end, lambda spec: spec.rank == rank)
    no_costs = [0.0] * len(nodes)
    in_layout_nodes = minimum_transfers(no_costs, no_costs, values)
    at_op = {id(entry.op): node for entry, (node, _) in zip(entries, slots, strict=True) if node is not None}
    return {op: nodes[node][1][node in in_layout_nodes] for op, node in at_op.items() if nodes[node][1]}


def _plain_and_layout(choices: tuple[Choice, ...], layout: Layout) -> tuple[Choice, ...]:
    """The first choice for plain tensors and the first for the layout; empty unless both exist."""
    in_layout = next((choice for choice in choices if layout.name in choice.layouts.values()), None)
    plain = next((choice for choice in choices if layout.name not in choice.layouts.values()), None)
    return (plain, in_layout) if in_layout is not None and plain is not None else ()


def slots_in_layout(choice: Choice, layout: Layout) -> frozenset[str]:
    return frozenset(slot for slot, name in choice.layouts.items() if name == layout.name)


Operands = tuple[GraphOp, Mapping[str, Sequence[Spec | None]], Mapping[str, Sequence[Spec | None]]]
"""An operator, and the specs of its inputs and outputs by slot."""


def transferred_values(
    operators: Iterable[Operands],
    results: Sequence[GraphValue],
    end: Callable[[int, str], End],
    counts: Callable[[Spec], bool],
) -> list[TransferredValue]:
    """The values between operators with their makers and readers; feeds, state and results are plain, on the default
    place.

    ``end``: the side of an operator, by its number, at a slot; ``counts``: whether values of a spec are counted.
    """
    makers: dict[GraphValue, tuple[Spec, End, list[End]]] = {}
    for at, (op, ins, outs) in enumerate(operators):
        for slot, values in op.inputs.items():
            declared = op.definition.input(slot)
            if declared is not None and declared.unread:
                continue
            for value, spec in zip(values, ins.get(slot, ()), strict=False):
                if spec is not None:
                    makers.setdefault(value, (spec, _FIXED, []))[2].append(end(at, slot))
        for slot, outputs in op.outputs.items():
            for out, spec in zip(outputs, outs.get(slot, ()), strict=False):
                if out is not None and spec is not None:
                    makers[out] = spec, end(at, slot), []
    for value in results:
        if value in makers:
            makers[value][2].append(_FIXED)
    ends = makers.values()
    return [TransferredValue(float(nbytes(spec)), maker, readers) for spec, maker, readers in ends if counts(spec)]


def _operands(entry: PlanEntry) -> Operands:
    return (entry.op, entry.call.ins, entry.call.outs) if entry.call is not None else (entry.op, {}, {})


def place_overrides(
    entries: Sequence[PlanEntry],
    results: Sequence[GraphValue],
    default_place: Place,
    host: Place,
    policy: Policy,
) -> Overrides:
    """Choices that move operators to the host, where this saves more bytes of copies than it costs.

    Only elementwise operators and views without a native kernel of the place may move, and only if values connect
    them with an operator that runs on the host. A byte that such an operator reads or writes on the host costs half
    of a copied byte. Feeds, state and results count as located on the default place.
    """
    if default_place == host or policy.fallback == "error":
        return {}
    hosted = [entry.how in ("fallback", "pinned") for entry in entries]
    if not any(hosted):
        return {}
    on_host = (_host_choice(entry, default_place, host, policy) for entry in entries)
    host_choices = {at: choice for at, choice in enumerate(on_host) if choice is not None}
    movable = _linked_to_host(entries, hosted, host_choices)
    if not movable:
        return {}
    nodes = {at: node for node, at in enumerate(movable)}

    def end(at: int, slot: str) -> End:
        return End(nodes[at], True) if at in nodes else End(None, hosted[at])

    values = transferred_values(map(_operands, entries), results, end, lambda spec: True)
    costs = [_touched_bytes(entries[at]) / 2 for at in movable]
    moved_nodes = minimum_transfers([0.0] * len(movable), costs, values)
    reason = f"on {host} with what it reads and what reads it: fewer bytes are copied"
    overrides: Overrides = {}
    for node, at in enumerate(movable):
        choice = entries[at].choice
        if node in moved_nodes and choice is not None:
            refused = ((" ".join((choice.how, choice.text)), f"it runs {reason}"), *choice.refused)
            overrides[id(entries[at].op)] = replace(host_choices[at], how="fallback", refused=refused, moved=True)
    return overrides


def _host_choice(entry: PlanEntry, place: Place, host: Place, policy: Policy) -> Choice | None:
    """The choice of an operator on the host; None if it may not move there."""
    op, call, choice = entry.op, entry.call, entry.choice
    if call is None or choice is None or choice.place != place or choice.how in ("native", "pinned", "fallback"):
        return None
    cheap = op.definition.scalar is not None or op.definition.view is not None
    if not cheap or op.definition.random or op.definition.must_alias or op.definition.effect or choice.parts:
        return None
    if "op_device" in op.hints or "op_library" in op.hints or any(value.state is not None for value in op.results):
        return None
    try:
        host_choice = select_kernel(call.at(host), host, policy)
    except FluidError:
        return None
    return None if host_choice.parts or host_choice.layouts else host_choice


def _linked_to_host(entries: Sequence[PlanEntry], hosted: Sequence[bool], movable: Mapping[int, Choice]) -> list[int]:
    """The operators of ``movable`` that values connect with one on the host, directly or through each other."""
    makers: dict[GraphValue, int] = {}
    neighbours: dict[int, set[int]] = {at: set() for at in range(len(entries))}
    for at, entry in enumerate(entries):
        for value in entry.op.args:
            if value in makers:
                neighbours[at].add(makers[value])
                neighbours[makers[value]].add(at)
        makers.update(dict.fromkeys(entry.op.results, at))
    host_entries = [at for at, on_host in enumerate(hosted) if on_host]
    connected = reached(host_entries, lambda at: neighbours[at] & movable.keys())
    return sorted(connected & movable.keys())


def _touched_bytes(entry: PlanEntry) -> int:
    call = entry.call
    assert call is not None
    if entry.op.definition.view is not None:
        return 0
    return sum(nbytes(spec) for slots in (call.ins, call.outs) for specs in slots.values() for spec in specs)
