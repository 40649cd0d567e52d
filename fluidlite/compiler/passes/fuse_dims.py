"""Dims of a graph's values where some are unknown: which of the unknown ones are the same.

Every unknown dim of an argument is a large number of its own, and inference runs with these: what comes out equal is
equal for all sizes, so far as inference does not choose by them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations, count, cycle
from typing import Union

from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.ir.graph_nodes import READ, GraphOp, GraphValue
from fluidlite.program.op_call import PLACEHOLDER, Call
from fluidlite.program.opdef import OpDef
from fluidlite.tensor.tensor_spec import Dims, Spec, specs_of

Specs = dict[str, tuple[Spec, ...]]
Inferred = Union[Mapping[str, Union[Spec, Sequence[Spec]]], None]
_FIRST, _STEP = 2_000_000_011, 1_009
_MOST_TIMES = 1 << 20
"""A dim that is so many times an unknown one is a product; what is left of larger ones may be part of another."""
_MOST_ASKED = 128
"""So often an operator is asked which dims have to be equal."""


class GenericDims:
    """Dims of every value of a graph; unknown ones are numbers that no tensor has, or the next ones of ``unknown``."""

    def __init__(self, graph: Graph, unknown: Iterator[int] | None = None) -> None:
        self._specs: dict[GraphValue, Spec] = {}
        self._same: dict[int, int] = {}
        self._doubtful: set[int] = set()
        self._fresh = count(_FIRST, _STEP) if unknown is None else unknown
        self._unknown: set[int] = set()
        self._learned: set[GraphOp] = set()
        self.learn(graph)

    def learn(self, graph: Graph) -> None:
        """Infer the dims of values that are new: those of new operators."""
        new = [op for op in graph.ops if op not in self._learned]
        self._learned.update(new)
        for op in new:
            made = op.results
            for value in chain.from_iterable((*op.inputs.values(), made if op.type == READ else ())):
                if value not in self._specs:
                    self._known(value)
            if op.type != READ and not self._specs.keys() >= {*made}:
                self._infer(op, made)

    def dims(self, value: GraphValue) -> Dims | None:
        """The dims of a value, None if they are not declared; equal ones are equal in every run that works."""
        spec = self.spec(value)
        return None if spec is None else spec.dims

    def certain(self, dims: Dims) -> bool:
        """Whether no dim may be 1 where another it is taken for is not: two arguments that broadcast at will."""
        return not any(dim in self._doubtful for dim in dims)

    def spec(self, value: GraphValue) -> Spec | None:
        spec = self._specs.get(value)
        if spec is None or self._same.keys().isdisjoint(spec.dims):
            return spec
        return spec.with_(dims=tuple(map(self._find, spec.dims)))

    def specs(self, values: Mapping[str, GraphValue]) -> Specs | None:
        """The specs of values by slot; None if one is not declared."""
        return self.grouped({slot: (value,) for slot, value in values.items()})

    def grouped(self, slots: Mapping[str, Sequence[GraphValue | None]]) -> Specs | None:
        """The specs of values by slot, where slots take several, or are not wanted; None if one is not declared."""
        found: Specs = {}
        of = self.spec if self._same else self._specs.get
        for slot, values in slots.items():
            specs: list[Spec] = []
            for value in values:
                if value is None:
                    continue
                spec = of(value)
                if spec is None:
                    return None
                specs.append(spec)
            if specs:
                found[slot] = tuple(specs)
        return found

    def _find(self, dim: int) -> int:
        while dim in self._same:
            dim = self._same[dim]
        return dim

    def at(self, numbers: Sequence[int]) -> GenericDims | None:
        """The same with other numbers for unknown dims; None if an operator computed a dim of them."""
        typical = dict(zip(sorted(self._unknown), cycle(numbers), strict=False))
        typical |= {dim: typical[self._find(dim)] for dim in self._same}
        found = copy.copy(self)
        found._specs, found._same = {}, {}
        for value, spec in self._specs.items():
            declared = value.spec.dims if value.spec is not None else ()
            if -1 in declared:
                dims: list[int] = []
                for known, dim in zip(declared, spec.dims, strict=True):
                    number = known if known >= 0 else typical.get(dim) or _said(dim, typical)
                    if number is None:
                        return None
                    dims.append(number)
                spec = spec.with_(dims=tuple(dims))
            found._specs[value] = spec
        return found

    def _new(self) -> int:
        dim = next(self._fresh)
        self._unknown.add(dim)
        return dim

    def _known(self, value: GraphValue, inference: Spec | None = None) -> None:
        """Note the dims of a value: declared ones, else those that inference found, else unknown ones."""
        if value in self._specs or value.spec is None:
            return
        declared = value.spec.dims
        if -1 not in declared:
            self._specs[value] = value.spec
            return
        inferred: Dims = (
            inference.dims if inference is not None and len(inference.dims) == len(declared) else (-1,) * len(declared)
        )
        dims = [
            known if known >= 0 else (other if other >= 0 else self._new())
            for known, other in zip(declared, inferred, strict=True)
        ]
        self._specs[value] = value.spec.with_(dims=tuple(dims))

    def _infer(self, op: GraphOp, made: Sequence[GraphValue]) -> None:
        definition, ins = op.definition, self.grouped(op.inputs)
        outs = {slot: (PLACEHOLDER,) * len(values) for slot, values in op.outputs.items() if any(values)}
        found = None
        if ins is not None and definition.infer is not None and not _makes_lod(op, made):
            found = self._try(definition, ins, outs, op) or self._unified(definition, ins, outs, op)
        for slot, values in op.outputs.items():
            result = (found or {}).get(slot)
            specs = specs_of(result or ())
            for k, value in enumerate(values):
                if value is not None:
                    self._known(value, specs[k] if k < len(specs) else None)

    def _try(self, definition: OpDef, ins: Specs, outs: Specs, op: GraphOp) -> Inferred:
        assert definition.infer is not None
        try:
            return definition.infer(Call(definition, ins, outs, op.attrs))
        except Exception:  # these dims are made up: what goes wrong with them says nothing of the user's program
            return None

    def _unified(self, definition: OpDef, ins: Specs, outs: Specs, op: GraphOp) -> Inferred:
        """Infer with unknown dims of the inputs that are equal, as few as work: without that, they would not."""
        unknown = sorted({dim for specs in ins.values() for spec in specs for dim in spec.dims} & self._unknown)
        if len(unknown) < 2:
            return None
        one, other = unknown[0], unknown[-1] + 2

        def works(apart: Iterable[int] = ()) -> bool:
            dims = {**dict.fromkeys(unknown, one), **dict.fromkeys(apart, other)}
            return self._try(definition, _with_dims(ins, dims), outs, op) is not None

        classes = _equal_in_all(unknown, works) if works() else None
        if classes is None:
            return None
        same = {dim: first for first, *others in classes for dim in others}
        found = self._try(definition, _with_dims(ins, same), outs, op)
        if found is not None:
            for first, *others in classes:
                mine = (first, *others) if others else ()
                ones = (self._try(definition, _with_dims(ins, {**same, dim: 1}), outs, op) for dim in mine)
                if mine and (not self._doubtful.isdisjoint(mine) or any(each is not None for each in ones)):
                    self._doubtful.add(first)
            self._same.update(same)
        return found


def _equal_in_all(dims: Sequence[int], works: Callable[[Iterable[int]], bool]) -> list[list[int]] | None:
    """Dims in classes: those of one have to be equal. None if that takes too many questions.

    ``works``: whether an operator takes dims of which some are one number, and all the others another.
    """
    found: list[list[int]] = []
    left, asked = list(dims), 0
    while left:
        first, *rest = left
        for others in (others for size in range(len(rest) + 1) for others in combinations(rest, size)):
            asked += 1
            if asked > _MOST_ASKED:
                return None
            if len(others) == len(rest) or works((first, *others)):  # the least such class is all that it has to equal
                found.append([first, *others])
                left = [dim for dim in rest if dim not in others]
                break
    return found


def generic_dims(graph: Graph) -> GenericDims:
    """The dims of a graph's values; those of which a pass before has asked are not inferred again.

    What is equal because an operator says so stays equal where that became part of another one.
    """
    found: GenericDims | None = graph.generic_dims
    if found is None:
        found = graph.generic_dims = GenericDims(graph)
    else:
        found.learn(graph)
    return found


def _said(dim: int, typical: Mapping[int, int]) -> int | None:
    """A dim that is an unknown one, or a product of such ones and a number, with others for these; None for others."""
    number = 1
    while dim not in typical:
        factor = next((unknown for unknown in typical if dim and dim % unknown == 0), None)
        if factor is None:
            return None
        dim, number = dim // factor, number * typical[factor]
        if dim <= _MOST_TIMES:
            return number * dim
    return number * typical[dim]


def typical_dims(graph: Graph, numbers: Sequence[int]) -> GenericDims:
    """The dims of a graph's values, where unknown ones of arguments are some numbers, again and again.

    They are those of :func:`generic_dims` with other numbers, unless an operator computed with these.
    """
    found = generic_dims(graph).at(numbers)
    return found if found is not None else GenericDims(graph, cycle(numbers))


def _makes_lod(op: GraphOp, made: Sequence[GraphValue]) -> bool:
    """Whether an operator makes sequences: offsets of as many as a made-up dim says would take for ever."""
    for value in made:
        if value.spec is not None and value.spec.lod_level:
            return not [v for v in op.args if v.spec is not None and v.spec.lod_level]
    return False


def _with_dims(specs: Specs, new: Mapping[int, int]) -> Specs:
    return {
        slot: tuple(spec.with_(dims=tuple(new.get(dim, dim) for dim in spec.dims)) for spec in group)
        for slot, group in specs.items()
    }
