"""Lowering of an expression to loop nests: which tensors are materialized, and which nests compute them.

A reduction with several readers is computed once. If all of its readers are in one work-item, that work-item computes
it. Otherwise an earlier nest materializes it in a workspace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from math import prod

from fluidlite.base.dtypes import INTS, ITEMSIZE
from fluidlite.expr.number import Number, number
from fluidlite.expr.tensor import Tensor, topological_order
from fluidlite.expr.traced import Traced
from fluidlite.render.loops.affine import axis_to_split, quotients_in
from fluidlite.render.loops.collapse import collapsed
from fluidlite.render.loops.elements import Axis, BufferKey
from fluidlite.render.loops.functions import POLYNOMIALS, SLOW_OPS
from fluidlite.render.loops.grouping import (
    MAX_ROOTS,
    MAX_SERIAL_ELEMENTS,
    ConcatPart,
    Root,
    RootGroup,
    groups_of,
    nest_of,
    root_key,
)
from fluidlite.render.loops.indices import Index
from fluidlite.render.loops.nest import MIN_ITEMS, TILE, Nest
from fluidlite.render.loops.rules import elements
from fluidlite.render.loops.sequential import (
    SCATTERING,
    is_sequential,
    scan_nest,
    scatter_base,
    scatter_chain,
    scatter_nests,
)
from fluidlite.render.loops.sizes import Sizes, size_of

REDUCING = frozenset({"reduce", "arg", "contract", "unwindow", "scan", "segment", "segment_of"})
"""Primitives whose element needs a loop."""
REPEATING = frozenset({"broadcast", "window", "take", "pick", "put", "unwindow", "contract", "scan", "segment"})
"""Primitives that read an element of an operand for several elements of the result."""
TABULAR = frozenset({"map", "cast", "reshape", "broadcast", "concat", "transpose", "slice"})
"""Primitives that a lookup table is computed with."""
MIN_STEPS, MIN_LOADED_STEPS = 4, 12
"""Elementwise steps of an element: a table of fewer is recomputed; the second bound is for tables of operands."""
MIN_READS, MIN_POLYNOMIAL_READS = 32, 4
"""Reads of each element from which a table is materialized, without and with polynomials among its steps."""
MIN_NEST_ELEMENTS = 1 << 14
"""Elements computed from which a further nest, with its launch, pays off."""
MAX_SHORT_ROW, NARROW_BORDER_SHARE = 256, 8
"""Elements of a row in few cache lines; a border is narrow if it is no more than one part in so many of the row."""


def nests_of(
    traced: Traced, dtypes: Mapping[tuple[str, int], str], values: Sizes, lockstep: bool = False
) -> tuple[Nest, ...]:
    """Lower an expression to nests in topological order.

    ``dtypes``: the requested outputs by (slot, number), with the dtypes in which they are stored.
    ``values``: the sizes of the call.
    ``lockstep``: whether the device runs neighbouring work-items in lockstep, as a GPU does.
    """
    outputs = collapsed(traced).outputs
    results = [(slot, i, _without_reshape(outputs[slot][i], values)) for slot, i in dtypes]
    rounded = {id(x) for slot, i, x in results if x.dtype != dtypes[slot, i]}
    tensors = [x for _, _, x in results]
    forced = _lookup_tables(tensors, values) | _shared_indices(tensors, values)
    materialized = forced.union(_materialized(tensors, rounded, values, lockstep))
    candidates = [x for x in topological_order(tensors) if x in materialized]
    stored = {x: ("made", k) for k, x in enumerate(candidates) if is_sequential(x, values) or x in forced}
    splits: dict[tuple[BufferKey, int], tuple[Number, ...]] = {}
    while True:
        roots = [_new_root(x, source, values, splits) for x, source in stored.items()]
        for slot, i, x in results:
            parts = _stored_parts(x, values) if x not in stored else [(x, None)]
            roots += [_new_root(part_of, ("out", slot, i), values, splits, part) for part_of, part in parts]
        count_before = sum(map(len, splits.values()))
        unplaced = _assign_items(roots, candidates, stored, values, splits)
        if sum(map(len, splits.values())) > count_before:
            continue
        groups = groups_of(roots, stored, values) if not unplaced else []
        owners = Counter(x for group in groups for x in set().union(*(root.inlined for root in group.members)))
        unplaced |= {x for x, count in owners.items() if count > 1}
        if not unplaced:
            nests: list[Nest] = []
            for group in groups:
                nests += _nests(group, values, lockstep, free_workspace(nests, len(candidates)))
            return tuple(nests)
        stored = {x: ("made", k) for k, x in enumerate(candidates) if x in stored or x in unplaced}


def _without_reshape(x: Tensor, values: Sizes) -> Tensor:
    """The operand of an output's reshapes, if sequential loops compute it: the order of its elements is the same."""
    base = x
    while base.op == "reshape":
        (base,) = base.args
    return base if is_sequential(base, values) else x


def _stored_parts(x: Tensor, values: Sizes) -> list[tuple[Tensor, ConcatPart | None]]:
    """The tensor, or the parts of a concatenation, each stored by a nest of its own without conditions.

    Parts are stored separately if a condition would have to choose each element of a row, or if they are computed and
    have equal dims. Many parts must be large, since each needs a kernel of its own.
    """
    if x.op != "concat" or any(is_sequential(arg, values) for arg in x.args):
        return [(x, None)]
    if len(x.args) > MAX_ROOTS and prod(size_of(d, values) for d in x.dims) < MIN_NEST_ELEMENTS * len(x.args):
        return [(x, None)]
    (axis,), begin = x.params, number(0)
    if not (_is_faster_by_parts(x, axis, values) or _have_equal_lengths(x.args, axis, values)):
        return [(x, None)]
    parts: list[tuple[Tensor, ConcatPart | None]] = []
    for k, arg in enumerate(x.args):
        parts.append((arg, ConcatPart(x, axis, begin, k)))
        begin = begin + arg.dims[axis]
    return parts


def _is_faster_by_parts(x: Tensor, axis: int, values: Sizes) -> bool:
    """Whether contiguous rows hold several parts, and storing each part separately is faster.

    A loop over the narrow border of a short row would touch most cache lines again. That only pays off if the parts
    compute functions or read further operands.
    """
    inner = all(size_of(d, values) == 1 for d in x.dims[axis + 1 :])
    if not inner or prod(size_of(d, values) for d in x.dims) < MIN_NEST_ELEMENTS:
        return False
    row, lengths = size_of(x.dims[axis], values), [size_of(arg.dims[axis], values) for arg in x.args]
    widest = x.args[lengths.index(max(lengths))]
    if row > MAX_SHORT_ROW or row - max(lengths) > row // NARROW_BORDER_SHARE:
        return True
    below, inputs = topological_order(x.args), {y for y in topological_order([widest]) if y.op == "input"}
    return any((y.op == "map" and y.params[0] in SLOW_OPS) or (y.op == "input" and y not in inputs) for y in below)


def _have_equal_lengths(parts: Sequence[Tensor], axis: int, values: Sizes) -> bool:
    """Whether all parts are elementwise results of one length along an axis."""
    sizes = [size_of(part.dims[axis], values) for part in parts]
    return all(part.op == "map" for part in parts) and all(size == sizes[0] for size in sizes)


def _new_root(
    x: Tensor,
    target: BufferKey,
    values: Sizes,
    splits: Mapping[tuple[BufferKey, int], Sequence[Number]],
    concat_part: ConcatPart | None = None,
) -> Root:
    name = root_key(target, concat_part)
    axes: list[Axis] = []
    index: list[Number] = []
    dim_parts: dict[str, tuple[int, int]] = {}
    for k, d in enumerate(x.dims):
        dim_index = number(0)
        for level, size in enumerate(splits.get((name, k), (d,))):
            dim_index = dim_index * size
            if size_of(size, values) != 1:
                axes.append(Axis(f"i{len(axes)}", size))
                dim_index = dim_index + axes[-1].leaf
                dim_parts[axes[-1].name] = k, level
        index.append(dim_index)
    sizes = {axis.name: size_of(axis.size, values) for axis in axes}
    return Root(x, target, tuple(axes), tuple(index), sizes, dim_parts, part=concat_part)


class _Requests:
    """Records which tensors a root's elements are computed of, and at which indices.

    ``axes``: by candidate for materialization, the free axes of each index at which it is read.
    ``quotients_of``: by candidate, the quotients in its indices.
    ``quotients``: by key, the quotients in the indices of all other tensors.
    """

    def __init__(
        self, root: Root, stored: Mapping[Tensor, BufferKey], candidates: Container[Tensor], values: Sizes
    ) -> None:
        visible = {x: source for x, source in stored.items() if x is not root.x or root.target[0] == "out"}
        self.elements, self.candidates, self.reads = elements(visible, values), candidates, root.reads
        self.axes: dict[Tensor, set[frozenset[str]]] = {}
        self.quotients_of: dict[Tensor, list[Number]] = {}
        self.quotients: dict[str, Number] = {}
        self._visited_keys: set[str] = set()
        for axis in root.axes:
            self.elements.add_axis(axis)
        self.elements.on_request = self._record

    def _record(self, x: Tensor, index: Index) -> None:
        if x in self.candidates:
            self.axes.setdefault(x, set()).add(self.elements.number_axes(index))
            self.quotients_of.setdefault(x, []).extend(q for i in index for q in quotients_in(i))
        else:
            for i in index:
                if i.key not in self._visited_keys:
                    self._visited_keys.add(i.key)
                    self.quotients.update((q.key, q) for q in quotients_in(i))
        if x in self.elements.stored or x.op in ("input", "random"):
            self.reads.add(x)

    def request_chain(self, x: Tensor) -> None:
        """Request all operands of a chain of scatters."""
        e = self.elements
        chain = scatter_chain(x, e.stored, e.values)
        for operand in [arg for scatter in chain for arg in scatter.args if arg not in set(chain)]:
            e.at(operand, tuple(e.add_axis(Axis(f"i{k}", d)).leaf for k, d in enumerate(operand.dims)))


def _assign_items(
    roots: list[Root],
    order: list[Tensor],
    stored: Mapping[Tensor, BufferKey],
    values: Sizes,
    splits: dict[tuple[BufferKey, int], tuple[Number, ...]],
) -> set[Tensor]:
    """Choose the work-item axes of each root; return the candidates that no work-item can compute for itself."""
    missing: set[Tensor] = set()
    candidates = {x for x in order if x not in stored}
    for root in roots:
        requests = _Requests(root, stored, candidates, values)
        root.items = root.axes
        if is_sequential(root.x, values) and root.x not in requests.elements.stored:
            requests.request_chain(root.x)
            missing |= set(requests.axes)
            continue
        requests.elements.at(root.x, root.index)
        requests.axes.pop(root.x, None)
        if any(_split_axis(root, n, values, splits) for n in requests.quotients.values()):
            continue
        all_axes = frozenset(root.sizes)
        axes_of: dict[Tensor, frozenset[str]] = {}
        for x, axes in requests.axes.items():
            first_axes = next(iter(axes))
            size = prod(root.sizes.get(name, 0) for name in first_axes)
            if len(axes) > 1 or not first_axes <= all_axes or size != prod(size_of(d, values) for d in x.dims):
                if not any(_split_axis(root, n, values, splits) for n in requests.quotients_of[x]):
                    missing.add(x)
            else:
                axes_of[x] = first_axes
        partial = {x: x_axes for x, x_axes in axes_of.items() if x_axes != all_axes}
        items = all_axes.intersection(*partial.values()) if partial else all_axes
        axis_order = sorted(root.sizes, key=lambda name: name not in items)
        recomputed = {x for x, x_axes in partial.items() if x_axes != set(axis_order[: len(x_axes)])}
        if recomputed:  # in each iteration of an enclosing loop
            missing |= recomputed
            continue
        item_count = prod(root.sizes[name] for name in items)
        last_axis = root.axes[-1].name if root.axes else ""
        if last_axis in items:
            item_count //= min(TILE, max(root.sizes[last_axis], 1))
        if partial and item_count < MIN_ITEMS and _reads_many_elements(root.x, values):
            missing |= set(partial)
        root.inlined = set(axes_of)
        root.items = tuple(axis for axis in root.axes if axis.name in items)
    return missing


def _reads_many_elements(x: Tensor, values: Sizes) -> bool:
    """Whether a tensor, or one that it is computed of, is too large for a single thread."""
    return any(prod(size_of(d, values) for d in each.dims) > MAX_SERIAL_ELEMENTS for each in topological_order([x]))


def _split_axis(
    root: Root, quotient: Number, values: Sizes, splits: dict[tuple[BufferKey, int], tuple[Number, ...]]
) -> bool:
    """Split the axis whose quotient is an index into two, if possible."""
    split = axis_to_split(quotient.args[0], quotient.args[1], values, root.sizes)
    if split is None or split[0] not in root.dim_parts:
        return False
    name, inner = split
    dim, level = root.dim_parts[name]
    sizes = splits.get((root.name, dim), (root.x.dims[dim],))
    splits[root.name, dim] = (*sizes[:level], sizes[level] // inner, inner, *sizes[level + 1 :])
    return True


def free_workspace(nests: Iterable[Nest], minimum: int = 0) -> int:
    """The first workspace number that no nest writes."""
    numbers: list[int] = [s.target[1] for nest in nests for s in nest.stores if s.target[0] == "made"]
    return max([minimum, *(1 + number for number in numbers)])


def _nests(group: RootGroup, values: Sizes, lockstep: bool, free: int) -> list[Nest]:
    """The nests that compute a group; workspace numbers from ``free`` on are unused."""
    main = group.members[0]
    if is_sequential(main.x, values) and main.x not in group.stored:
        if main.x.op == "scan":
            return [scan_nest(main.x, main.target, group.stored, values)]
        return scatter_nests(main.x, main.target, group.stored, values, free if lockstep else None)
    return [nest_of(group, values)]


def _materialized(results: list[Tensor], rounded: Container[int], values: Sizes, lockstep: bool) -> list[Tensor]:
    """The tensors to materialize, in topological order: recomputing them for each reader would cost more.

    ``rounded``: the ids of results that are stored in another dtype than they are computed in.
    """
    order = topological_order(results)
    readers: dict[Tensor, list[Tensor]] = {x: [] for x in order}
    for x in order:
        for arg in dict.fromkeys(x.args):
            readers[arg].append(x)
    written = Counter(map(id, results))
    own = {x for x in order if is_sequential(x, values)}
    if not lockstep:
        own -= {
            scatter_base(x)
            for x in own
            if _extends_scatter(x, scatter_base(x), own, readers) and not written[id(scatter_base(x))]
        }
    costly = {
        x
        for x in order
        if x in own or (x.op in REDUCING and x.op != "scan" and readers[x] and _is_reduction(x, values))
    }
    chosen: set[Tensor] = set()
    is_repeated: dict[Tensor, bool] = {}
    is_summed: dict[Tensor, bool] = {}
    for x in reversed(order):
        reads = readers[x]
        is_summed[x] = any(r.op == "reduce" or (is_summed[r] and r not in chosen) for r in reads)
        often = any(r.op in REPEATING or is_repeated[r] for r in reads)  # each element has several readers
        read_count = len(reads) + written[id(x)]
        is_root = x in own and (reads or id(x) in rounded or written[id(x)] > 1)
        if (read_count > 1 or often or is_root or (is_summed[x] and _is_column_reduction(x, values))) and x in costly:
            chosen.add(_narrowed(x, readers, written))
        is_repeated[x] = often and x not in chosen
    return [x for x in order if x in chosen]


def _is_reduction(x: Tensor, values: Sizes) -> bool:
    """Whether an element is more than one product: a contraction without contracted axes is elementwise."""
    if x.op != "contract":
        return True
    return any(size_of(d, values) != 1 for axis, d in contracted_axes(x).items() if axis not in x.params[-1])


def contracted_axes(x: Tensor) -> dict[str, Number]:
    """The axes of a contraction's operands with their lengths."""
    *every, _ = x.params
    return {axis: d for axes, arg in zip(every, x.args, strict=True) for axis, d in zip(axes, arg.dims, strict=True)}


def _is_column_reduction(x: Tensor, values: Sizes) -> bool:
    """Whether a large reduction keeps the contiguous axis: a nest of its own vectorizes along that."""
    if x.op != "reduce":
        return False
    (source,), (_, reduced_axes) = x.args, x.params
    lengths = [size_of(d, values) for d in source.dims]
    last_axis = max((k for k, length in enumerate(lengths) if length != 1), default=-1)
    return last_axis not in reduced_axes and prod(lengths) > MAX_SERIAL_ELEMENTS


def _narrowed(x: Tensor, readers: Mapping[Tensor, list[Tensor]], written: Mapping[int, int]) -> Tensor:
    """The tensor, or its narrower cast if that is an integer and the only reader: fewer bytes are materialized."""
    if len(readers[x]) != 1 or written[id(x)] or x.dtype not in INTS:
        return x
    (cast,) = readers[x]
    return cast if cast.op == "cast" and cast.dtype in INTS and ITEMSIZE[cast.dtype] < ITEMSIZE[x.dtype] else x


def _lookup_tables(results: list[Tensor], values: Sizes) -> set[Tensor]:
    """Elementwise tensors to materialize as lookup tables: each element is read often and costs many steps.

    One slow function suffices if it varies along the last axis (others are hoisted out of the innermost loop), and so
    does one transpose of that axis. A table of indices alone needs fewer steps than one that loads operands.
    """
    steps: dict[Tensor, tuple[int, set[str], bool]] = {}  # steps, slow functions, whether operands are loaded
    tables: set[Tensor] = set()
    for x in topological_order(results):
        if x.op in ("iota", "number", "input") or (x.args and x.op in TABULAR and all(arg in steps for arg in x.args)):
            inputs = [steps[arg] for arg in dict.fromkeys(x.args)]
            steps[x] = (
                MIN_LOADED_STEPS * _is_transposed(x) + (x.op in ("map", "cast")) + sum(count for count, _, _ in inputs),
                ({x.params[0]} & SLOW_OPS if x.op == "map" else set()).union(*(slow for _, slow, _ in inputs)),
                x.op == "input" or any(reads for _, _, reads in inputs),
            )
        if x.op not in REPEATING and x.op not in SCATTERING:
            continue
        for arg in x.args:
            count, slow, reads = steps.get(arg, (0, set[str](), False))
            min_steps, min_reads = (MIN_LOADED_STEPS, MIN_READS // 2) if reads else (MIN_STEPS, MIN_READS)
            min_reads = min_reads if slow.isdisjoint(POLYNOMIALS) else MIN_POLYNOMIAL_READS
            is_costly = count >= min_steps or (bool(slow) and bool(arg.dims) and size_of(arg.dims[-1], values) != 1)
            if not is_costly:
                continue
            least = max(min_reads * prod(size_of(d, values) for d in arg.dims), MIN_NEST_ELEMENTS)
            if any(prod(size_of(d, values) for d in each.dims) >= least for each in (x, *x.args)):
                tables.add(arg)
    return tables


def _is_transposed(x: Tensor) -> bool:
    """Whether a tensor is a transpose whose contiguous axis is strided in the operand."""
    return x.op == "transpose" and x.params[0][-1] != x.rank - 1


def _shared_indices(results: list[Tensor], values: Sizes) -> set[Tensor]:
    """Computed or checked indices of scatters to materialize: several work-items read all of them."""
    indices: set[Tensor] = set()
    for x in topological_order(results):
        if x.op not in SCATTERING or x.op == "put":  # each work-item of a put reads indices of its own
            continue
        index = x.args[2] if x.op == "set_at" else x.args[1]
        is_large = prod(size_of(d, values) for d in index.dims) >= MIN_NEST_ELEMENTS
        tensors = topological_order([index])
        is_computed = any(each.op in ("map", "checked") for each in tensors)
        if is_computed and is_large and not any(each.op in REDUCING or is_sequential(each, values) for each in tensors):
            indices.add(index)
    return indices


def _extends_scatter(
    x: Tensor, base: Tensor | None, own: Container[Tensor], readers: Mapping[Tensor, list[Tensor]]
) -> bool:
    """Whether a scatter continues another scatter along the same axis, and is its only reader."""
    if base is None or base not in own or x.op not in SCATTERING or base.op not in SCATTERING:
        return False
    if len(readers[base]) != 1 or sum(arg is base for arg in x.args) != 1 or base.dtype != x.dtype:
        return False
    return (base.params[:1] or (0,)) == (x.params[:1] or (0,))
