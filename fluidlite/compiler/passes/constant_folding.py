"""Constant folding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import NUMPY
from fluidlite.base.errors import FluidError
from fluidlite.compiler.interpreter import run_plan
from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.ir.graph_nodes import READ, GraphOp, GraphValue
from fluidlite.compiler.ir.node import Node
from fluidlite.compiler.passes.base import GraphPass
from fluidlite.compiler.planning.planner import plan_graph
from fluidlite.compiler.policy import Policy
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.device_registry import devices
from fluidlite.program.operator import EMPTY
from fluidlite.program.program import Program
from fluidlite.program.scope import Scope
from fluidlite.tensor.transfer import borrow

Array = np.ndarray[Any, Any]
_MOST_ZEROS = 1 << 30
"""Bytes of an input of which only dims are read: memory that is asked for, and not touched."""


class FoldConstants(GraphPass):
    """What depends on constants alone is computed once, before the first run, by the host's own kernels.

    Random operators, operators with effects and those whose dims depend on values are left alone, and so is one that
    fails: it fails when it runs, as it did.

    Parameters
    ----------
    most_bytes : int
        The largest value that is computed, or kept.
    """

    def __init__(self, most_bytes: int = 16384) -> None:
        self.most_bytes = most_bytes

    def do_pass(self, graph: Graph) -> None:
        constants: dict[int, GraphOp] = {}
        arrays: dict[int, Array] = {}
        for op in list(graph.ops):
            if op.type == READ:
                self._stored(op, constants, arrays)
                continue
            if not self._constant(op, constants):
                continue
            constants.update((id(value), op) for value in op.results)
            if not op.args:
                continue
            wanted = [value for value in op.results if graph.is_result(value) or graph.readers(value)]
            if not wanted or not _compute(op, constants, arrays, graph.policy):
                continue
            for value in wanted:
                written = _written(graph, op, value, arrays[id(value)])
                if written is not None and written.op is not None:
                    constants[id(written)], arrays[id(written)] = written.op, arrays[id(value)]
                    graph.replace(value, written)

    def _stored(self, op: GraphOp, constants: dict[int, GraphOp], arrays: dict[int, Array]) -> None:
        """Know an array that is kept beside the state, and which nothing changes."""
        (value,) = op.results
        held = value.variable.initial if isinstance(value.variable, Node) and value.variable.fixed else None
        if isinstance(held, np.ndarray) and held.nbytes <= self.most_bytes and value.spec is not None:
            constants[id(value)], arrays[id(value)] = op, held.astype(NUMPY[value.spec.dtype], copy=False)

    def _constant(self, op: GraphOp, constants: Mapping[int, GraphOp]) -> bool:
        """Whether an operator makes the same small values at every run."""
        if not constants.keys() >= {*map(id, _read(op))} or op.has_effect:
            return False
        definition = op.definition
        if definition.random or definition.dynamic or definition.marker or definition.run is not None:
            return False
        return all(
            value.spec is not None
            and 0 <= value.spec.nbytes <= self.most_bytes
            and not value.spec.lod_level
            and value.spec.kind == "dense"
            and value.state is None
            for value in op.results
        )


def _read(op: GraphOp) -> list[GraphValue]:
    """The values whose numbers an operator reads: not those of which it reads known dims."""
    definition = op.definition
    found = []
    for slot, values in op.inputs.items():
        declared = definition.input(slot) if slot in definition.unread else None
        dims = declared is not None and declared.metadata_only
        found += [value for value in values if not _small(value)] if dims else values
    return found


def _small(value: GraphValue) -> bool:
    """Whether zeros can stand for a value of which only the dims are read."""
    spec = value.spec
    return spec is not None and 0 <= spec.nbytes <= _MOST_ZEROS and not spec.lod_level


def _compute(op: GraphOp, constants: Mapping[int, GraphOp], arrays: dict[int, Array], preferences: Policy) -> bool:
    """Find what a constant operator makes, and first what it reads; say whether that is possible."""
    if all(id(value) in arrays for value in op.results):
        return True
    for arg in _read(op):
        if id(arg) not in arrays and not _compute(constants[id(arg)], constants, arrays, preferences):
            return False
    found = _run(op, arrays, preferences)
    if found is not None:
        arrays.update((id(value), array) for value, array in zip(op.results, found, strict=True))
    return found is not None


def _run(op: GraphOp, arrays: Mapping[int, Array], preferences: Policy) -> list[Array] | None:
    """What an operator makes of constants, by a run on the host; None if it fails."""
    source = op.operator
    assert source is not None
    program = Program()
    block = program.global_block()
    given: dict[str, Any] = {}
    host = devices.host()
    context = get_context(host)
    inputs: dict[str, list[str]] = {}
    for slot, values in op.inputs.items():
        inputs[slot] = []
        for number, value in enumerate(values):
            name = f"{slot}.{number}"
            assert value.spec is not None
            array = arrays.get(id(value))
            if array is None:  # of metadata only
                array = np.zeros(value.spec.dims, NUMPY[value.spec.dtype])
            block.create_var(name, list(value.spec.dims), value.spec.dtype, is_data=True)
            given[name] = borrow(np.ascontiguousarray(array).reshape(array.shape), value.spec, context)
            inputs[slot].append(name)
    outputs: dict[str, list[str]] = {}
    fetches: list[str] = []
    for slot, made in op.outputs.items():
        outputs[slot] = []
        for number, out in enumerate(made):
            if out is None:
                outputs[slot].append(EMPTY)
                continue
            name = f"{slot}.{number}"
            block.create_var(name).declare(out.spec)  # type: ignore[arg-type]
            outputs[slot].append(name)
            fetches.append(name)
    block.ops.append(source._near(block, source.definition, inputs, outputs, op.attrs, {}))
    try:
        known = {name: (tensor._known(), host) for name, tensor in given.items()}
        plan = plan_graph(Graph(program, fetches).finished(), host, known, {}, preferences, inplace=False)
        found = [array for array, _ in run_plan(plan, given, Scope())[0]]
    except FluidError:
        return None
    right = all(
        array.shape == value.spec.dims for array, value in zip(found, op.results, strict=True) if value.spec is not None
    )
    return found if right else None


def _written(graph: Graph, op: GraphOp, value: GraphValue, array: Array) -> GraphValue | None:
    """A constant of these numbers, in front of an operator; None where none can hold them."""
    spec = value.spec
    assert spec is not None
    shape = list(spec.dims)
    number: Any = array.reshape(-1)[0].item() if array.size else 0
    if np.array_equal(np.full_like(array, number).view("uint8"), array.view("uint8")) if array.ndim else True:
        attrs: dict[str, Any] = {"shape": shape, "dtype": spec.dtype, "value": float(number)}
        if isinstance(number, int) and int(float(number)) != number:
            attrs["str_value"] = str(number)
        made = graph.insert(op, "fill_constant", {}, attrs)
    else:
        kind = "fp32_values" if NUMPY[spec.dtype].kind not in "iub" else "int32_values"
        numbers = array.reshape(-1)
        listed = numbers.astype("float64") if kind == "fp32_values" else numbers.astype("int64")
        made = graph.insert(op, "assign_value", {}, {"shape": shape, "dtype": spec.dtype, kind: listed.tolist()})
    return made if made.spec == spec else None
