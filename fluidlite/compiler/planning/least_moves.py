"""Choices that count the moves which they make their neighbours need: of layouts, and of places.

A plan is made operator by operator. Where it rearranges values although an operator has kernels of equal rank for
several layouts, or copies values back and forth between operators that run on the host, this finds the choices that
move fewest bytes over the whole plan; it is then made again with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

from fluidlite.base.dtypes import ITEMSIZE
from fluidlite.base.errors import FluidError
from fluidlite.base.reached import reached
from fluidlite.compiler.ir.graph_nodes import GraphValue
from fluidlite.compiler.planning.min_cut import End, Passed, fewest_moves
from fluidlite.compiler.planning.plan import Line, Plan
from fluidlite.compiler.policy import Policy
from fluidlite.compiler.selection.choice import Choice
from fluidlite.compiler.selection.kernel_selection import choose
from fluidlite.platform.place import Place
from fluidlite.program.layout_rewrite import LAYOUT, relaid_call
from fluidlite.tensor.layout import PLAIN, Layout, layout_named
from fluidlite.tensor.tensor_spec import Spec

Options = Mapping[int, tuple[Choice, ...]]
"""By operator (``id``): its kernels of equal rank, the preferred one first."""
Picked = dict[int, Choice]

_FIXED = End(None, False)


def moved_bytes(plan: Plan, home: Place, host: Place) -> int:
    """The bytes that a plan copies and rearranges; a dim that is not known counts as 1."""
    fetched = [spec for _, _, place, spec in plan.fetches if home != host and place != host]
    return sum(map(nbytes, [*(move.spec for line in plan.lines for move in line.moves), *fetched]))


def nbytes(spec: Spec) -> int:
    """The bytes of a value; a dim that is not known counts as 1."""
    return prod(max(dim, 1) for dim in spec.dims) * ITEMSIZE[spec.dtype]


def better_layouts(lines: Sequence[Line], fetches: Sequence[GraphValue], options: Options) -> Picked:
    """Of kernels of equal rank, those with which fewest bytes are rearranged."""
    if not any(move.why == "layout" for line in lines for move in line.moves):
        return {}
    picked: Picked = {}
    named = {name for several in options.values() for each in several for name in each.layouts.values()}
    for name in sorted(named - {"any", PLAIN.name}):
        picked.update(_in_layout(lines, fetches, options, layout_named(name)))
    return picked


def _in_layout(lines: Sequence[Line], fetches: Sequence[GraphValue], options: Options, layout: Layout) -> Picked:
    nodes: dict[int, tuple[frozenset[str], tuple[Choice, ...]]] = {}
    slots: list[tuple[int | None, frozenset[str]]] = []
    for line in lines:
        several = _between(options.get(id(line.op), ()), layout)
        if several:
            nodes[len(nodes)] = slots_in(several[1], layout), several
            slots.append((len(nodes) - 1, slots_in(several[1], layout)))
        elif line.call is None or line.choice is None or line.choice.parts:
            slots.append((None, frozenset()))
        elif line.op.definition.scalar is not None and not line.choice.layouts and LAYOUT not in line.op.hints:
            found = relaid_call(line.call, layout)  # it goes on as its inputs lie
            slots.append((None, frozenset()))
            if found is not None:
                nodes[len(nodes)] = found[1], ()
                slots[-1] = len(nodes) - 1, found[1]
        else:
            slots.append((None, slots_in(line.choice, layout)))

    def end(at: int, slot: str) -> End:
        node, there = slots[at]
        return End(node, slot in there)

    rank = len(layout.permutation or ())
    values = _values(lines, fetches, end, lambda spec: spec.rank == rank)
    nothing = [0.0] * len(nodes)
    there = fewest_moves(nothing, nothing, values)
    at_op = {id(line.op): node for line, (node, _) in zip(lines, slots, strict=True) if node is not None}
    return {op: nodes[node][1][node in there] for op, node in at_op.items() if nodes[node][1]}


def _between(several: tuple[Choice, ...], layout: Layout) -> tuple[Choice, ...]:
    """The first that takes plain memory, and the first that takes the layout; nothing if there are not both."""
    inside = next((each for each in several if layout.name in each.layouts.values()), None)
    plain = next((each for each in several if layout.name not in each.layouts.values()), None)
    return (plain, inside) if inside is not None and plain is not None else ()


def slots_in(choice: Choice, layout: Layout) -> frozenset[str]:
    return frozenset(slot for slot, name in choice.layouts.items() if name == layout.name)


def _values(
    lines: Sequence[Line], fetches: Sequence[GraphValue], end: Callable[[int, str], End], counts: Callable[[Spec], bool]
) -> list[Passed]:
    """The values of a plan, each with its maker and its readers; feeds, state and results are plain, and at home."""
    makers: dict[GraphValue | None, tuple[Spec, End, list[End]]] = {}
    found: list[tuple[Spec, End, list[End]]] = []
    for at, line in enumerate(lines):
        if line.call is None:
            continue
        for slot, values in line.op.inputs.items():
            declared = line.op.definition.input(slot)
            for value, spec in zip(values, line.call.ins.get(slot, ()), strict=False):
                if declared is not None and declared.unread:
                    continue
                if value not in makers:
                    makers[value] = spec, _FIXED, []
                    found.append(makers[value])
                makers[value][2].append(end(at, slot))
        for slot, made in line.op.outputs.items():
            for out, spec in zip(made, line.call.outs.get(slot, ()), strict=False):
                makers[out] = spec, end(at, slot), []
                found.append(makers[out])
    for value in fetches:
        if value in makers:
            makers[value][2].append(_FIXED)
    return [Passed(float(nbytes(spec)), maker, readers) for spec, maker, readers in found if counts(spec)]


def better_places(
    lines: Sequence[Line],
    fetches: Sequence[GraphValue],
    home: Place,
    host: Place,
    policy: Policy,
) -> Picked:
    """Operators between others that run on the host, which go there too where that saves more copies than it costs.

    Only those may go that compute element by element, or not at all, with no kernel that was registered for the
    place. What an operator reads and writes on the host counts half of what a copy does. Feeds, state and results
    count as if they were at home, so that nothing goes to the host but for the sake of an operator that runs there.
    """
    if home == host or policy.fallback == "error":
        return {}
    ours = [line.how in ("fallback", "pinned") for line in lines]
    if not any(ours):
        return {}
    there = {at: choice for at, line in enumerate(lines) if (choice := _on_host(line, home, host, policy))}
    free = _touching(lines, ours, there)
    if not free:
        return {}
    nodes = {at: node for node, at in enumerate(free)}

    def end(at: int, slot: str) -> End:
        return End(nodes[at], True) if at in nodes else End(None, ours[at])

    values = _values(lines, fetches, end, lambda spec: True)
    costs = [_touched(lines[at]) / 2 for at in free]
    gone = fewest_moves([0.0] * len(free), costs, values)
    saved = f"on {host} with what it reads and what reads it: fewer bytes are copied"
    picked: Picked = {}
    for node, at in enumerate(free):
        own = lines[at].choice
        if node in gone and own is not None:
            refused = ((" ".join((own.how, own.text)), f"it runs {saved}"), *own.refused)
            picked[id(lines[at].op)] = replace(there[at], how="fallback", refused=refused, moved=True)
    return picked


def _on_host(line: Line, home: Place, host: Place, policy: Policy) -> Choice | None:
    """The kernel of an operator on the host, if it may go there."""
    op, call, choice = line.op, line.call, line.choice
    if call is None or choice is None or choice.place != home or choice.how in ("native", "pinned", "fallback"):
        return None
    cheap = op.definition.scalar is not None or op.definition.view is not None
    if not cheap or op.definition.random or op.definition.must_alias or op.definition.effect or choice.parts:
        return None
    if "op_device" in op.hints or "op_library" in op.hints or any(value.state is not None for value in op.results):
        return None
    try:
        found = choose(call.at(host), host, policy)
    except FluidError:
        return None
    return None if found.parts or found.layouts else found


def _touching(lines: Sequence[Line], ours: Sequence[bool], there: Mapping[int, Choice]) -> list[int]:
    """The operators of ``there`` that are joined with one on the host by values, directly or by others of them."""
    makers: dict[GraphValue, int] = {}
    joined: dict[int, set[int]] = {at: set() for at in range(len(lines))}
    for at, line in enumerate(lines):
        for value in line.op.args:
            if value in makers:
                joined[at].add(makers[value])
                joined[makers[value]].add(at)
        makers.update(dict.fromkeys(line.op.results, at))
    hosted = [at for at, host in enumerate(ours) if host]
    found = reached(hosted, lambda at: joined[at] & there.keys())
    return sorted(found & there.keys())


def _touched(line: Line) -> int:
    assert line.call is not None
    if line.op.definition.view is not None:
        return 0
    return sum(nbytes(spec) for slots in (line.call.ins, line.call.outs) for specs in slots.values() for spec in specs)
