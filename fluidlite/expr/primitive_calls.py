"""Emits one operator for each tensor primitive of a decomposed expression."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from fluidlite.expr.lowering import dims_of, size
from fluidlite.expr.number import Number
from fluidlite.expr.step_operator import steps_operator
from fluidlite.expr.step_order import step_counts, table_values
from fluidlite.expr.steps import operands_of, results_of
from fluidlite.expr.tensor import Tensor
from fluidlite.program.decompose import Build, PartValue
from fluidlite.program.opdef import OpDef

MAX_COUNTED_ELEMENTS = 1 << 12
"""An iota of at most this many elements is a constant: two operators on so few elements take longer."""


class PrimitiveWriter:
    """Emits the operator of a primitive; ``written`` maps tensors, among them its operands, to their values."""

    def __init__(self, build: Build, values: dict[str, Any]) -> None:
        self.build, self.values = build, values
        self.written: dict[Tensor, PartValue] = {}
        self.calls: set[int] = set()
        self.step_values: dict[Tensor, list[PartValue]] = {}
        self.step_targets: dict[Tensor, PartValue] = {}

    def number(self, n: Number) -> Any:
        """The value of a number in the call."""
        return n.evaluate(self.values)

    def apply(
        self, type: str | OpDef, inputs: dict[str, Any], target: PartValue | None, attrs: dict[str, Any]
    ) -> PartValue:
        """Emit an operator with one output."""
        value: PartValue = self.build(type, inputs, {"Out": target}, attrs)
        return value

    def _reshape(self, x: Tensor, target: PartValue | None) -> PartValue:
        dims = dims_of(x)
        source = self.written[x.args[0]]
        if not dims:
            return self.apply("squeeze", {"X": source}, target, {"axes": list(range(x.args[0].rank))})
        if not x.args[0].rank:
            return self.apply("unsqueeze", {"X": source}, target, {"axes": list(range(len(dims)))})
        return self.apply("reshape", {"X": source}, target, {"shape": list(dims)})

    def _transpose(self, x: Tensor, target: PartValue | None) -> PartValue:
        return self.apply("transpose", {"X": self.written[x.args[0]]}, target, {"axis": list(x.params[0])})

    def _slice(self, x: Tensor, target: PartValue | None) -> PartValue:
        firsts, strides = x.params
        axes, starts, ends, steps = (list[int]() for _ in range(4))
        source_dims = dims_of(x.args[0])
        for axis, (first, step, count) in enumerate(zip(firsts, strides, dims_of(x), strict=True)):
            start = size(first)
            end = start + count * step
            if (start, count, step) == (0, source_dims[axis], 1) and (axes or axis < x.rank - 1):
                continue  # a size that differs between batches must be no constant of a kernel
            axes.append(axis)
            starts.append(start)
            ends.append(end if end >= 0 else -(10**9))
            steps.append(step)
        attrs = {"axes": axes, "starts": starts, "ends": ends, "strides": steps}
        return self.apply("strided_slice", {"Input": self.written[x.args[0]]}, target, attrs)

    def _pad(self, x: Tensor, target: PartValue | None) -> PartValue:
        (source, filler), (low, high, _) = x.args, x.params
        paddings = [size(n) for pair in zip(low, high, strict=True) for n in pair]
        attrs = {"paddings": paddings, "pad_value": float(self.number(filler.params[0]))}
        return self.apply("pad", {"X": self.written[source]}, target, attrs)

    def _concat(self, x: Tensor, target: PartValue | None) -> PartValue:
        return self.apply("concat", {"X": [self.written[arg] for arg in x.args]}, target, {"axis": x.params[0]})

    def _iota(self, x: Tensor, target: PartValue | None) -> PartValue:
        (count,) = dims_of(x)
        if count <= MAX_COUNTED_ELEMENTS:
            return self._table(range(count), target)
        ones = self.apply("fill_constant", {}, None, {"shape": list(dims_of(x)), "str_value": "1", "dtype": "int64"})
        return self.apply("cumsum", {"X": ones}, target, {"axis": 0, "exclusive": True})

    def _offsets(self, x: Tensor, target: PartValue | None) -> PartValue:
        return self._table(self.number(x.params[2]), target)

    def _segment_of(self, x: Tensor, target: PartValue | None) -> PartValue:
        offsets = self.number(x.args[0].params[2])
        return self._table([k for k, (a, b) in enumerate(pairwise(offsets)) for _ in range(a, b)], target)

    def _random(self, x: Tensor, target: PartValue | None) -> PartValue:
        attrs = self.build.call.attrs
        seed = int(attrs.get("seed") or 0) if attrs.get("fix_seed", True) else 0
        settings = {"shape": list(dims_of(x)), "min": 0.0, "max": 1.0, "seed": seed, "dtype": x.dtype}
        return self.apply("uniform_random", {}, target, settings)

    def _step_table(self, x: Tensor, target: PartValue | None) -> PartValue:
        kind, flag, _ = x.params
        return self._table(table_values(kind, flag, self.number(x.args[0].params[2])), target)  # type: ignore[arg-type]

    def _steps(self, x: Tensor, target: PartValue | None) -> PartValue:
        step, _, rows, backward, specs = x.params
        states, inputs, parameters, offsets = operands_of(x)
        if offsets is None:
            batch = size(states[0].dims[0])
            counts = [batch] * (size(rows) // batch if batch else 0)
        else:
            counts = step_counts(self.number(offsets.params[2]))
        facts = tuple((tuple(map(size, dims)), dtype) for dims, dtype in specs)
        op = steps_operator(step.at(self.values), facts, len(states), backward)
        operands = {"S": states, "X": inputs, "P": parameters}
        inputs_by_slot = {slot: [self.written[each] for each in group] for slot, group in operands.items() if group}
        outs = [self.step_targets.get(each) for each in results_of(x)]
        values = self.build(op, inputs_by_slot, {"O": outs}, {"counts": counts})
        self.step_values[x] = values if isinstance(values, list) else [values]
        return self.step_values[x][0]

    def _step_result(self, x: Tensor, target: PartValue | None) -> PartValue:
        return self.step_values[x.args[0]][x.params[0]]

    def _table(self, values: Sequence[int], target: PartValue | None) -> PartValue:
        attrs = {"shape": [len(values)], "dtype": "int64", "int64_values": np.asarray(values, np.int64)}
        return self.apply("assign_value", {}, target, attrs)

    def _reduce(self, x: Tensor, target: PartValue | None) -> PartValue:
        kind, axes = x.params
        return self.apply(
            f"reduce_{kind}", {"X": self.written[x.args[0]]}, target, {"dim": list(axes), "keep_dim": True}
        )

    def _arg(self, x: Tensor, target: PartValue | None) -> PartValue:
        kind, axis = x.params
        attrs = {"axis": axis, "keepdims": True, "dtype": "int64"}
        return self.apply(f"arg_{kind}", {"X": self.written[x.args[0]]}, target, attrs)

    def _scan(self, x: Tensor, target: PartValue | None) -> PartValue:
        _, axis, reverse, exclusive = x.params
        attrs = {"axis": axis, "reverse": reverse, "exclusive": exclusive}
        return self.apply("cumsum", {"X": self.written[x.args[0]]}, target, attrs)

    def _take(self, x: Tensor, target: PartValue | None) -> PartValue:
        source, index = (self.written[arg] for arg in x.args)
        return self.apply("gather", {"X": source, "Index": index}, target, {})

    def _add_rows(self, x: Tensor, target: PartValue | None) -> PartValue:
        updates, index, base = (self.written[arg] for arg in x.args)
        rows = self.apply("unsqueeze", {"X": index}, None, {"axes": [1]})
        return self.apply("scatter_nd_add", {"X": base, "Index": rows, "Updates": updates}, target, {})

    def _set_at(self, x: Tensor, target: PartValue | None) -> PartValue:
        source, updates, index = (self.written[arg] for arg in x.args)
        return self.apply("scatter", {"X": source, "Ids": index, "Updates": updates}, target, {})

    def _emit_call(self, targets: Sequence[tuple[Tensor, PartValue | None]]) -> PartValue:
        """Emit one call; ``targets``: tensors of its output slots, all of the same operands and attributes."""
        x = targets[0][0]
        _, type, slots, attrs = x.params
        inputs = {name: self.written[arg] for name, arg in zip(slots, x.args, strict=True)}
        values = self.build(type, inputs, {output.params[0]: target for output, target in targets}, dict(attrs))
        self.calls.add(id(self.build.parts[-1]))
        first: PartValue = values if len(targets) == 1 else values[0]
        return first

    def _contract(self, x: Tensor, target: PartValue | None) -> PartValue:
        (a, b), (a_axes, b_axes, out) = (self.written[arg] for arg in x.args), x.params
        flags = {"transpose_X": a_axes[-2] != out[-2], "transpose_Y": b_axes[-1] != out[-1]}
        return self.apply("matmul", {"X": a, "Y": b}, target, flags)
