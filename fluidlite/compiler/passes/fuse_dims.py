"""Generic dims: symbolic shape inference, which tells which unknown dims of a graph's values are equal.

Each unknown dim of an argument is represented by a large number of its own, and inference runs on these numbers. Dims
with equal numbers are equal for all sizes, as far as inference does not depend on the sizes.
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
"""The number of the first unknown dim, and the distance between them: no tensor has such dims."""
_MAX_FACTOR = 1 << 20
"""The largest quotient of a dim and an unknown one that counts as a factor; a larger one has another unknown factor."""
_MAX_TRIALS = 128
"""Inferences of one operator, at most, to learn which dims must be equal."""


class GenericDims:
    """Dims of all values of a graph; unknown dims are numbers that no tensor has, or the next ones of ``unknown``."""

    def __init__(self, graph: Graph, unknown: Iterator[int] | None = None) -> None:
        self._specs: dict[GraphValue, Spec] = {}
        self._representatives: dict[int, int] = {}
        self._broadcast_dims: set[int] = set()
        self._next_dims = count(_FIRST, _STEP) if unknown is None else unknown
        self._unknown: set[int] = set()
        self._inferred_ops: set[GraphOp] = set()
        self.update(graph)

    def update(self, graph: Graph) -> None:
        """Infer the dims of the values of new operators."""
        new_ops = [op for op in graph.ops if op not in self._inferred_ops]
        self._inferred_ops.update(new_ops)
        for op in new_ops:
            results = op.results
            for value in chain.from_iterable((*op.inputs.values(), results if op.type == READ else ())):
                if value not in self._specs:
                    self._record_spec(value)
            if op.type != READ and not self._specs.keys() >= {*results}:
                self._infer_results(op, results)

    def dims(self, value: GraphValue) -> Dims | None:
        """The dims of a value, None if they are not declared; equal numbers are equal dims in every valid run."""
        spec = self.spec(value)
        return None if spec is None else spec.dims

    def is_certain(self, dims: Dims) -> bool:
        """Whether no dim may be 1 where an equal one is not: dims of arguments that may also broadcast."""
        return not any(dim in self._broadcast_dims for dim in dims)

    def spec(self, value: GraphValue) -> Spec | None:
        spec = self._specs.get(value)
        if spec is None or self._representatives.keys().isdisjoint(spec.dims):
            return spec
        return spec.with_(dims=tuple(map(self._representative, spec.dims)))

    def specs(self, values: Mapping[str, GraphValue]) -> Specs | None:
        """The specs of values by slot; None if one is not declared."""
        return self.slot_specs({slot: (value,) for slot, value in values.items()})

    def slot_specs(self, slots: Mapping[str, Sequence[GraphValue | None]]) -> Specs | None:
        """The specs of values by slot, several for each, without unused outputs; None if one is not declared."""
        grouped_specs: Specs = {}
        spec_of = self.spec if self._representatives else self._specs.get
        for slot, values in slots.items():
            specs: list[Spec] = []
            for value in values:
                if value is None:
                    continue
                spec = spec_of(value)
                if spec is None:
                    return None
                specs.append(spec)
            if specs:
                grouped_specs[slot] = tuple(specs)
        return grouped_specs

    def _representative(self, dim: int) -> int:
        while dim in self._representatives:
            dim = self._representatives[dim]
        return dim

    def at(self, numbers: Sequence[int]) -> GenericDims | None:
        """A copy with other numbers for unknown dims; None if a dim depends on them by more than products."""
        typical = dict(zip(sorted(self._unknown), cycle(numbers), strict=False))
        typical |= {dim: typical[self._representative(dim)] for dim in self._representatives}
        substituted = copy.copy(self)
        substituted._specs, substituted._representatives = {}, {}
        for value, spec in self._specs.items():
            declared = value.spec.dims if value.spec is not None else ()
            if -1 in declared:
                dims: list[int] = []
                for declared_dim, dim in zip(declared, spec.dims, strict=True):
                    number = declared_dim if declared_dim >= 0 else typical.get(dim) or _substituted(dim, typical)
                    if number is None:
                        return None
                    dims.append(number)
                spec = spec.with_(dims=tuple(dims))
            substituted._specs[value] = spec
        return substituted

    def _new_dim(self) -> int:
        dim = next(self._next_dims)
        self._unknown.add(dim)
        return dim

    def _record_spec(self, value: GraphValue, inference: Spec | None = None) -> None:
        """Record the dims of a value: the declared ones, else those of inference, else new unknown ones."""
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
            dim if dim >= 0 else (other if other >= 0 else self._new_dim())
            for dim, other in zip(declared, inferred, strict=True)
        ]
        self._specs[value] = value.spec.with_(dims=tuple(dims))

    def _infer_results(self, op: GraphOp, results: Sequence[GraphValue]) -> None:
        definition, ins = op.definition, self.slot_specs(op.inputs)
        outs = {slot: (PLACEHOLDER,) * len(values) for slot, values in op.outputs.items() if any(values)}
        inferred = None
        if ins is not None and definition.infer is not None and not _creates_lod(op, results):
            inferred = self._try_infer(definition, ins, outs, op) or self._infer_equal(definition, ins, outs, op)
        for slot, values in op.outputs.items():
            result = (inferred or {}).get(slot)
            specs = specs_of(result or ())
            for k, value in enumerate(values):
                if value is not None:
                    self._record_spec(value, specs[k] if k < len(specs) else None)

    def _try_infer(self, definition: OpDef, ins: Specs, outs: Specs, op: GraphOp) -> Inferred:
        assert definition.infer is not None
        try:
            return definition.infer(Call(definition, ins, outs, op.attrs))
        except Exception:  # an error with invented dims is no error of the program
            return None

    def _infer_equal(self, definition: OpDef, ins: Specs, outs: Specs, op: GraphOp) -> Inferred:
        """Infer with as few equalities between unknown dims of the inputs as make inference succeed."""
        unknown = sorted({dim for specs in ins.values() for spec in specs for dim in spec.dims} & self._unknown)
        if len(unknown) < 2:
            return None
        one, other = unknown[0], unknown[-1] + 2

        def is_valid(subset: Iterable[int] = ()) -> bool:
            dims = {**dict.fromkeys(unknown, one), **dict.fromkeys(subset, other)}
            return self._try_infer(definition, _with_dims(ins, dims), outs, op) is not None

        classes = equivalence_classes(unknown, is_valid) if is_valid() else None
        if classes is None:
            return None
        same = {dim: first for first, *rest in classes for dim in rest}
        inferred = self._try_infer(definition, _with_dims(ins, same), outs, op)
        if inferred is not None:
            for first, *rest in classes:
                equal = (first, *rest) if rest else ()
                ones = (self._try_infer(definition, _with_dims(ins, {**same, dim: 1}), outs, op) for dim in equal)
                if equal and (not self._broadcast_dims.isdisjoint(equal) or any(each is not None for each in ones)):
                    self._broadcast_dims.add(first)
            self._representatives.update(same)
        return inferred


def equivalence_classes(dims: Sequence[int], is_valid: Callable[[Iterable[int]], bool]) -> list[list[int]] | None:
    """Equivalence classes of dims that must be equal; None if this takes too many trials.

    ``is_valid``: whether inference succeeds if some dims are one number, and all the others another.
    """
    classes: list[list[int]] = []
    remaining, trials = list(dims), 0
    while remaining:
        first, *rest = remaining
        for equal in (subset for size in range(len(rest) + 1) for subset in combinations(rest, size)):
            trials += 1
            if trials > _MAX_TRIALS:
                return None
            if len(equal) == len(rest) or is_valid((first, *equal)):  # the smallest subset is the class
                classes.append([first, *equal])
                remaining = [dim for dim in rest if dim not in equal]
                break
    return classes


def generic_dims(graph: Graph) -> GenericDims:
    """The generic dims of a graph, shared by passes: only new operators are inferred.

    Equalities that follow from an operator remain after it has been fused.
    """
    dims: GenericDims | None = graph.generic_dims
    if dims is None:
        dims = graph.generic_dims = GenericDims(graph)
    else:
        dims.update(graph)
    return dims


def _substituted(dim: int, typical: Mapping[int, int]) -> int | None:
    """A product of unknown dims and a number, with other numbers for these dims; None if a dim is no such product."""
    number = 1
    while dim not in typical:
        factor = next((unknown for unknown in typical if dim and dim % unknown == 0), None)
        if factor is None:
            return None
        dim, number = dim // factor, number * typical[factor]
        if dim <= _MAX_FACTOR:
            return number * dim
    return number * typical[dim]


def typical_dims(graph: Graph, numbers: Sequence[int]) -> GenericDims:
    """The dims of a graph's values, with ``numbers``, repeated, for unknown dims of arguments.

    Those of :func:`generic_dims` with substituted numbers, if dims are products of unknown ones; else inferred anew.
    """
    substituted = generic_dims(graph).at(numbers)
    return substituted if substituted is not None else GenericDims(graph, cycle(numbers))


def _creates_lod(op: GraphOp, results: Sequence[GraphValue]) -> bool:
    """Whether an operator creates LoD: offsets for an invented dim would be too many."""
    for value in results:
        if value.spec is not None and value.spec.lod_level:
            return not [v for v in op.args if v.spec is not None and v.spec.lod_level]
    return False


def _with_dims(specs: Specs, new: Mapping[int, int]) -> Specs:
    return {
        slot: tuple(spec.with_(dims=tuple(new.get(dim, dim) for dim in spec.dims)) for spec in group)
        for slot, group in specs.items()
    }
