"""The gradients of variables while backward appends operators: partial sums, added up when the gradient is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fluidlite.program.block import Block
from fluidlite.program.opdef import GRAD
from fluidlite.program.operator import EMPTY, Operator, grad_name
from fluidlite.program.rows_gradients import sum_with_rows
from fluidlite.program.variable_metadata import sum_operator, zeros_operator
from fluidlite.tensor.var_type import VarType

Callback = Callable[..., None]


class GradientParts:
    """The partial gradients of a block's variables, and the operators that write them.

    ``keep``: variables whose gradients are requested.
    ``callbacks``: called with the block and the names of gradients, after each operator.
    """

    def __init__(self, block: Block, keep: set[str], callbacks: Sequence[Callback] = ()) -> None:
        self.block = block
        self.keep = keep
        self.callbacks = callbacks
        self.parts: dict[str, list[str]] = {}
        self.renamed: dict[str, int] = {}
        self._pending_renames: dict[str, str] = {}
        self._bases: dict[str, str] = {}
        self._writers: dict[str, Operator] = {}
        self.results: dict[str, str] = {}

    def seed(self, name: str, gradient: str, writer: Operator | None = None) -> None:
        """Set ``gradient``, written by ``writer``, as the gradient of a target."""
        self.parts.setdefault(name, []).append(gradient)
        if writer is not None:
            self._writers[gradient] = writer

    def base(self, name: str) -> str:
        """Return the name of a variable's gradient: ``x@GRAD``, or a new name if an earlier backward uses that."""
        gradient = self._bases.get(name)
        if gradient is None:
            gradient = grad_name(name)
            if gradient in self.block.vars:
                gradient = self.block.new_name(gradient)
            self._bases[name] = gradient
        return gradient

    def begin(self, op: Operator) -> None:
        """Finish the gradients of an operator's outputs; an earlier value of the same name gets its own."""
        for name in op.output_arg_names:
            if name in op.input_arg_names:  # in place: a requested gradient is that of the earlier value
                self._forget(name)
            else:
                self._finish(name)

    def _forget(self, name: str) -> None:
        for part in self.parts.pop(name, ()):
            self._writers.pop(part, None)

    def _finish(self, name: str) -> None:
        """Store the gradient of a value that no earlier operator reads, if it is requested, and free its name."""
        gradient = self.incoming(name)
        if name in self.keep and name not in self.results and gradient != EMPTY:
            self.results[name] = gradient
            self._bases[name] = self.block.new_name(grad_name(name))
            self.renamed.pop(name, None)
        self._forget(name)

    def incoming(self, name: str, needed: bool = False) -> str:
        """Return the name of an output's summed gradient; if it has none, EMPTY, or the name of zeros if ``needed``."""
        parts = self.parts.get(name)
        if not parts:
            if not needed or name == EMPTY:
                return EMPTY
            target = self.declare(name)
            zeros = zeros_operator(self.block.vars[target])
            self.append(zeros, {"X": [name]}, {"Out": [target]})
            self.parts[name] = [target]
            return target
        if len(parts) > 1:
            if any(self.block.vars[part].selected for part in parts):
                self.parts[name] = [sum_with_rows(self, name, parts)]
                return self.parts[name][0]
            target = self.declare(name)
            self.append(sum_operator(self.block.vars[target]), {"X": list(parts)}, {"Out": [target]})
            self.parts[name] = [target]
        return self.parts[name][0]

    def declare(self, name: str, gradient: str | None = None) -> str:
        """Declare a variable for a gradient of ``name``, with its dims and dtype; return the gradient's name."""
        gradient = gradient or self.base(name)
        forward = self.block.find_var(name)
        self.block.create_var(gradient)
        variable = self.block.vars[gradient]
        if forward is not None and forward.spec is not None:
            variable.declare(forward.spec)
        return gradient

    def new_part(self, name: str) -> str:
        """Return the name of a new partial gradient of an input."""
        parts = self.parts.setdefault(name, [])
        base = self.base(name)
        if not parts:
            parts.append(base)
        else:
            if parts == [base]:  # rename the first part: the sum gets its name
                first = f"{base}@RENAME@0"
                self._rename_last(base, first, name)
                parts[0] = first
                self.renamed[name] = 0
            self.renamed[name] = self.renamed.get(name, 0) + 1
            parts.append(f"{base}@RENAME@{self.renamed[name]}")
        return self.declare(name, parts[-1])

    def _rename_last(self, old: str, new: str, name: str) -> None:
        self.declare(name, new)
        old_variable = self.block.vars[old]
        if old_variable.selected is not None:
            self.block.vars[new].spec = old_variable.spec
            self.block.vars[new].select(old_variable.selected)
            old_variable.selected, old_variable.type = None, VarType.LOD_TENSOR
        writer = self._writers.pop(old, None)
        if writer is not None:
            writer.rename_output(old, new)
            self._writers[new] = writer
        else:  # the operator that is being built names the variable twice
            self._pending_renames[old] = new

    def append(
        self,
        type: str,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
        attrs: Mapping[str, Any] | None = None,
        forward: Operator | None = None,
    ) -> None:
        """Append the gradient operator of a forward operator, or one that adds gradients, if an output is needed."""
        names_by_slot = {slot: listed_names(names) for slot, names in outputs.items()}
        if all(name == EMPTY for names in names_by_slot.values() for name in names):
            return
        renames, self._pending_renames = self._pending_renames, {}
        needed = {
            slot: [renames.get(name, name) for name in names]
            for slot, names in names_by_slot.items()
            if any(name != EMPTY for name in names)
        }
        if forward is not None and "op_device" in forward.hints:  # a gradient runs where its operator does
            attrs = {**(attrs or {}), "op_device": forward.hints["op_device"]}
        line = forward.line if forward is not None else None
        op = self.block._insert(len(self.block.ops), type, inputs, needed, attrs, role="backward", line=line)
        self._writers.update(dict.fromkeys(op.output_arg_names, op))
        for callback in self.callbacks:
            callback(block=self.block, context={n: n.split(GRAD)[0] for names in needed.values() for n in names})

    def result(self, name: str) -> str | None:
        """Return the name of the gradient of a variable's last value, or None."""
        if name in self.results:
            return self.results[name]
        return self.incoming(name) if self.parts.get(name) else None


def listed_names(names: Any) -> list[str]:
    """Return one name or several as a list."""
    return list(names) if isinstance(names, (list, tuple)) else [names]
