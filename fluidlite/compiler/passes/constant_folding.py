"""Constant folding: operators with constant inputs are computed at compile time."""

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
_MAX_PLACEHOLDER_BYTES = 1 << 30
"""Bytes of a placeholder for an input whose dims alone are read: allocated, and never touched."""


class FoldConstants(GraphPass):
    """Operators that depend on constants alone are computed once, before the first run, by kernels of the host.

    Not folded: random operators, operators with effects, operators whose dims depend on values, and operators that
    fail: these fail when they run.

    Parameters
    ----------
    most_bytes : int
        Bytes of the largest value that is computed or stored.
    """

    def __init__(self, most_bytes: int = 16384) -> None:
        self.most_bytes = most_bytes

    def do_pass(self, graph: Graph) -> None:
        constants: dict[int, GraphOp] = {}
        arrays: dict[int, Array] = {}
        for op in list(graph.ops):
            if op.type == READ:
                self._record_fixed_state(op, constants, arrays)
                continue
            if not self._is_foldable(op, constants):
                continue
            constants.update((id(value), op) for value in op.results)
            if not op.args:
                continue
            used = [value for value in op.results if graph.is_result(value) or graph.readers(value)]
            if not used or not _evaluate(op, constants, arrays, graph.policy):
                continue
            for value in used:
                constant = _inserted_constant(graph, op, value, arrays[id(value)])
                if constant is not None and constant.op is not None:
                    constants[id(constant)], arrays[id(constant)] = constant.op, arrays[id(value)]
                    graph.replace(value, constant)

    def _record_fixed_state(self, op: GraphOp, constants: dict[int, GraphOp], arrays: dict[int, Array]) -> None:
        """Record the array of a fixed state variable, which is a constant."""
        (value,) = op.results
        array = value.variable.initial if isinstance(value.variable, Node) and value.variable.fixed else None
        if isinstance(array, np.ndarray) and array.nbytes <= self.most_bytes and value.spec is not None:
            constants[id(value)], arrays[id(value)] = op, array.astype(NUMPY[value.spec.dtype], copy=False)

    def _is_foldable(self, op: GraphOp, constants: Mapping[int, GraphOp]) -> bool:
        """Whether an operator writes the same small values in every run."""
        if not constants.keys() >= {*map(id, _values_read(op))} or op.has_effect:
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


def _values_read(op: GraphOp) -> list[GraphValue]:
    """The values whose elements an operator reads: without those of which it reads known dims alone."""
    definition = op.definition
    read = []
    for slot, values in op.inputs.items():
        declared = definition.input(slot) if slot in definition.unread else None
        dims = declared is not None and declared.metadata_only
        read += [value for value in values if not _can_be_zeros(value)] if dims else values
    return read


def _can_be_zeros(value: GraphValue) -> bool:
    """Whether zeros can replace a value whose dims alone are read."""
    spec = value.spec
    return spec is not None and 0 <= spec.nbytes <= _MAX_PLACEHOLDER_BYTES and not spec.lod_level


def _evaluate(op: GraphOp, constants: Mapping[int, GraphOp], arrays: dict[int, Array], preferences: Policy) -> bool:
    """Compute the outputs of a constant operator, after its inputs; return whether this is possible."""
    if all(id(value) in arrays for value in op.results):
        return True
    for arg in _values_read(op):
        if id(arg) not in arrays and not _evaluate(constants[id(arg)], constants, arrays, preferences):
            return False
    computed = _evaluated(op, arrays, preferences)
    if computed is not None:
        arrays.update((id(value), array) for value, array in zip(op.results, computed, strict=True))
    return computed is not None


def _evaluated(op: GraphOp, arrays: Mapping[int, Array], preferences: Policy) -> list[Array] | None:
    """The outputs of an operator for constant inputs, by a run on the host; None if it fails."""
    source = op.operator
    assert source is not None
    program = Program()
    block = program.global_block()
    feeds: dict[str, Any] = {}
    host = devices.host()
    context = get_context(host)
    inputs: dict[str, list[str]] = {}
    for slot, values in op.inputs.items():
        inputs[slot] = []
        for number, value in enumerate(values):
            name = f"{slot}.{number}"
            assert value.spec is not None
            array = arrays.get(id(value))
            if array is None:  # its metadata alone is read
                array = np.zeros(value.spec.dims, NUMPY[value.spec.dtype])
            block.create_var(name, list(value.spec.dims), value.spec.dtype, is_data=True)
            feeds[name] = borrow(np.ascontiguousarray(array).reshape(array.shape), value.spec, context)
            inputs[slot].append(name)
    outputs: dict[str, list[str]] = {}
    fetches: list[str] = []
    for slot, results in op.outputs.items():
        outputs[slot] = []
        for number, out in enumerate(results):
            if out is None:
                outputs[slot].append(EMPTY)
                continue
            name = f"{slot}.{number}"
            block.create_var(name).declare(out.spec)  # type: ignore[arg-type]
            outputs[slot].append(name)
            fetches.append(name)
    block.ops.append(source._near(block, source.definition, inputs, outputs, op.attrs, {}))
    try:
        feed_specs = {name: (tensor._required_spec(), host) for name, tensor in feeds.items()}
        plan = plan_graph(Graph(program, fetches).finished(), host, feed_specs, {}, preferences, inplace=False)
        computed = [array for array, _ in run_plan(plan, feeds, Scope())[0]]
    except FluidError:
        return None
    for array, value in zip(computed, op.results, strict=True):
        if value.spec is not None and array.shape != value.spec.dims:
            return None
    return computed


def _inserted_constant(graph: Graph, op: GraphOp, value: GraphValue, array: Array) -> GraphValue | None:
    """A constant with these elements, inserted before an operator; None if no constant represents them."""
    spec = value.spec
    assert spec is not None
    shape = list(spec.dims)
    number: Any = array.reshape(-1)[0].item() if array.size else 0
    if np.array_equal(np.full_like(array, number).view("uint8"), array.view("uint8")) if array.ndim else True:
        attrs: dict[str, Any] = {"shape": shape, "dtype": spec.dtype, "value": float(number)}
        if isinstance(number, int) and int(float(number)) != number:
            attrs["str_value"] = str(number)
        constant = graph.insert(op, "fill_constant", {}, attrs)
    else:
        kind = "fp32_values" if NUMPY[spec.dtype].kind not in "iub" else "int32_values"
        numbers = array.reshape(-1)
        listed = numbers.astype("float64") if kind == "fp32_values" else numbers.astype("int64")
        constant = graph.insert(op, "assign_value", {}, {"shape": shape, "dtype": spec.dtype, kind: listed.tolist()})
    return constant if constant.spec == spec else None
