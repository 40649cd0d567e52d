"""A case on a place: a program of the operator, or of its gradient operators, on tensors that lie there."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from typing import Any

import fluidlite as fluid
from benchmarks.operators.case import Array, Case
from fluidlite import memory
from fluidlite.base.dtypes import dtype_name
from fluidlite.platform.context_pool import get_context
from fluidlite.program.backward import gradients
from fluidlite.program.registry import ops


class OnPlace:
    """Runs a case on a place.

    Parameters
    ----------
    case : Case
    size : str
    place : Place or str
    gradient : bool
        Run the gradient operators alone, on what a run of the forward operator has left.
    repeat : int
        How often the operators stand in the program: the run's own cost counts little then.
    """

    def __init__(self, case: Case, size: str, place: Any, gradient: bool = False, repeat: int = 1) -> None:
        self.case, self.size, self.repeat = case, size, repeat
        self.place = fluid.Place.parse(str(place))
        self.executor, self.scope = fluid.Executor(self.place, fallback="error", mode="interpreted"), fluid.Scope()
        self.context = get_context(self.place)
        self.definition = ops.get(case.type)
        self.types: tuple[str, ...] = (case.type,)
        self.program = fluid.Program()
        self.block = self.program.global_block()
        self.given = case.inputs(size)
        self.inputs = {slot: self._put(slot, value) for slot, value in self.given.items()}
        for number in range(1 if gradient else repeat):
            self.outputs = self._declare(number)
            self.block.append_op(case.type, self.inputs, self.outputs, case.attributes(size))
        self.read_from = [variable.name for slot in case.outputs for variable in self.outputs[slot]]
        if gradient:
            self._only_gradients()

    def _put(self, slot: str, value: Any) -> list[Any]:
        found = []
        lod = self.case.offsets(self.size).get(slot, [])
        for i, array in enumerate(value if isinstance(value, list) else [value]):
            name, dtype = f"{slot}.{i}", dtype_name(array.dtype)
            fixed = slot not in self.case.grads
            variable = self.block.create_var(
                name, array.shape, dtype, persistable=True, stop_gradient=fixed, lod_level=len(lod)
            )
            self.scope.var(name).get_tensor().set(array, self.place, *([lod] if lod else []))
            found.append(variable)
        return found

    def _declare(self, number: int) -> dict[str, list[Any]]:
        """Make variables for what a layer asks for: all outputs but the dispensable ones that the case leaves out."""
        found: dict[str, list[Any]] = {}
        for slot in self.definition.outputs:
            source = self.definition.must_alias.get(slot.name)
            if slot.name in self.case.without or (source and source not in self.inputs):
                continue
            if slot.dispensable and not slot.intermediate and slot.name not in self.case.outputs:
                continue
            if source:
                found[slot.name] = self.inputs[source]
            else:
                count = self.case.counts.get(slot.name, 1)
                names = [f"{slot.name}.{number}.out{i}" for i in range(count)]
                found[slot.name] = [self.block.create_var(name, persistable=True) for name in names]
        return found

    def _only_gradients(self) -> None:
        """Run the forward operator once, and take a program of what backward appends."""
        self.run()
        flow = self.case.flow(self.size, self.read())
        targets = [variable for slot in self.case.starting() for variable in self.outputs[slot]]
        starts = []
        for i, (target, array) in enumerate(zip(targets, flow, strict=True)):
            starts.append(self.block.create_var(f"start{i}", target.shape, target.dtype, persistable=True))
            self.scope.var(f"start{i}").get_tensor().set(array, self.place)
        wanted = [variable for slot in self.case.grads for variable in self.inputs[slot]]
        made: list[Any] = gradients(targets, wanted, starts)
        self.read_from = [variable.name for variable in made]
        checks = [op for op in self.block.ops[1:] if op.type == "assign_like"]  # of a gradient of unknown dims
        unchecked = {op.output("Out")[0]: op.input("X")[0] for op in checks}
        backward = [op for op in self.block.ops[1:] if op not in checks]
        self.types = tuple(dict.fromkeys(op.type for op in backward))
        program = fluid.Program()
        block = program.global_block()
        written = {name for op in backward for name in op.output_arg_names}
        for number in range(self.repeat):
            for op in backward:
                self._copy(op, block, written, f".{number}", unchecked)
        self.read_from = [f"{name}.{self.repeat - 1}" for name in self.read_from]
        self.program, self.block = program, block

    def _copy(self, op: Any, block: Any, written: set[str], suffix: str, renamed: Mapping[str, str]) -> None:
        """Append an operator to another block; what is written there has names of its own."""

        def names(given: list[str]) -> list[str]:
            given = [renamed.get(name, name) for name in given]
            found = [name + suffix if name in written else name for name in given]
            for name, new in zip(given, found, strict=True):
                if name in self.block.vars and new not in block.vars:
                    old = self.block.var(name)
                    kept = old.persistable or name in self.read_from
                    block.create_var(new, old.shape, old.dtype, persistable=kept, lod_level=old.lod_level)
            return found

        inputs = {slot: names(op.input(slot)) for slot in op.input_names if op.input(slot)}
        block.append_op(op.type, inputs, {slot: names(op.output(slot)) for slot in op.output_names}, dict(op.attrs))

    def run(self) -> None:
        """Run the program, and wait for the place."""
        self.executor.run(self.program, scope=self.scope)
        self.context.wait()

    def read(self) -> list[Array]:
        """The results as arrays."""
        return [self.scope.var(name).get_tensor().numpy() for name in self.read_from]

    def allocates(self) -> tuple[int, int]:
        """Run for the first time; return the most bytes allocated meanwhile, and those of the results.

        On the CPU NumPy's temporaries count too.
        """
        self.context.drop_idle()
        memory.trim(self.place)
        memory.reset_peak(self.place)
        before = memory.used(self.place)
        on_host = self.place.kind == "cpu"
        if on_host:
            tracemalloc.start()
        try:
            self.run()
            peak = tracemalloc.get_traced_memory()[1] if on_host else memory.peak(self.place) - before
        finally:
            tracemalloc.stop()
        names = dict.fromkeys(name for op in self.block.ops for name in op.output_arg_names)
        kept = [name for name in names if name in self.block.vars and self.block.var(name).persistable]
        return peak, sum(_nbytes(self.scope.var(name).get_tensor()) for name in kept)


def _nbytes(tensor: Any) -> int:
    try:
        return int(tensor.numpy().nbytes)
    except fluid.FluidError:
        return 0
