"""StaticRNN: a block for each step of sequences of equal length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from fluidlite.base.errors import ProgramError
from fluidlite.control_flow.sub_program import outer_reads, outer_writes
from fluidlite.layer_helper import LayerHelper, check_int, check_variable, refuse
from fluidlite.layers.sub_blocks import in_outer_block, sub_block
from fluidlite.layers.tensor import fill_constant_batch_size_like
from fluidlite.program.block import Block
from fluidlite.program.variable import Variable


class StaticRNN:
    """A recurrent network; a block defines one step.

    Parameters
    ----------
    name : str, optional
    is_test : bool
        No gradient is taken, so nothing is saved of the steps.

    Raises
    ------
    ProgramError
        If its methods are called outside of the step (or the result inside), a memory is not updated, there is no step
        input or output, or sequences have different lengths.

    Examples
    --------
    >>> rnn = layers.StaticRNN()
    >>> with rnn.step():
    ...     word = rnn.step_input(x)                               # x: [steps, batch, features]
    ...     before = rnn.memory(shape=[-1, 8], batch_ref=word)
    ...     hidden = layers.fc([word, before], 8, act="tanh")
    ...     rnn.update_memory(before, hidden)
    ...     rnn.step_output(hidden)
    >>> out = rnn()                                                # [steps, batch, 8]
    """

    def __init__(self, name: str | None = None, is_test: bool = False) -> None:
        self.helper = LayerHelper("static_rnn", name=name)
        self.is_test = bool(is_test)
        self.seq_len: int | None = None
        self._block: Block | None = None
        self._outer: Block | None = None
        self._inputs: list[tuple[Variable, Variable]] = []  # the sequence, and its step
        self._memories: dict[str, tuple[Variable, Variable, Variable | None]] = {}  # first value, before, after
        self._outputs: list[tuple[Variable, Variable]] = []  # one step, and the sequence of all steps
        self._done = False

    def step(self) -> AbstractContextManager[Block]:
        """Layers inside define one step."""
        if self._outer is not None:
            raise ProgramError("StaticRNN has one step block; it was opened already")
        self._outer = self.helper.main_program.current_block()
        return self._step()

    @contextmanager
    def _step(self) -> Iterator[Block]:
        with sub_block(self.helper.main_program, self._append_recurrent) as self._block:
            yield self._block

    def _inside(self, method: str) -> tuple[Block, Block]:
        if self._block is None or self._outer is None or self._done:
            raise ProgramError(f"StaticRNN.{method} is called inside of the step\n  Do: with rnn.step(): ...")
        return self._outer, self._block

    def _check_outside(self, argument: str, value: Variable) -> None:
        if self._block is not None and self._block.vars.get(check_variable(argument, value).name) is value:
            refuse(argument, value, "a Variable made before the step", "make it outside of rnn.step()")

    def step_input(self, x: Variable) -> Variable:
        """Return one step of a sequence [steps, ...]."""
        outer, _ = self._inside("step_input")
        self._check_outside("x", x)
        if not x.shape:
            refuse("x", x, "a sequence [steps, ...]")
        length = x.shape[0]
        if self.seq_len not in (None, -1, length) and length != -1:
            refuse("x", x, f"a sequence of {self.seq_len} steps, as the others are")
        self.seq_len = length if self.seq_len in (None, -1) else self.seq_len
        step = outer.create_var(self.helper.name + f".step_input_{len(self._inputs)}", stop_gradient=x.stop_gradient)
        step.declare(x._spec().with_(dims=x.shape[1:], lod_level=0))
        self._inputs.append((x, step))
        return step

    def memory(
        self,
        init: Variable | None = None,
        shape: Sequence[int] | None = None,
        batch_ref: Variable | None = None,
        init_value: float = 0.0,
        init_batch_dim_idx: int = 0,
        ref_batch_dim_idx: int = 1,
    ) -> Variable:
        """Return a state before the step.

        Parameters
        ----------
        init : Variable, optional
            Its value before the first step.
        shape : list of int, optional
            Without ``init``: its dims, where ``init_batch_dim_idx`` is replaced by the dim of ``batch_ref``.
        batch_ref : Variable, optional
            A step input, whose sequence has the batch at ``ref_batch_dim_idx``; or another variable.
        init_value : float
        init_batch_dim_idx, ref_batch_dim_idx : int
        """
        outer, _ = self._inside("memory")
        if init is None:
            if shape is None or batch_ref is None:
                refuse("init", init, "a Variable, or shape and batch_ref")
            source = check_variable("batch_ref", batch_ref)
            source = next((sequence for sequence, step in self._inputs if step is source), source)
            axes = (
                check_int("ref_batch_dim_idx", ref_batch_dim_idx),
                check_int("init_batch_dim_idx", init_batch_dim_idx),
            )
            with in_outer_block(outer):
                init = fill_constant_batch_size_like(source, shape, source.dtype, init_value, *axes)
        self._check_outside("init", init)
        before = outer.create_var(f"{self.helper.name}.before_{len(self._memories)}")
        before.declare(init._spec().with_(lod_level=0))
        self._memories[before.name] = (init, before, None)
        return before

    def update_memory(self, mem: Variable, var: Variable) -> None:
        """Set the value of a state after the step."""
        self._inside("update_memory")
        memory = self._memories.get(check_variable("mem", mem).name)
        if memory is None:
            refuse("mem", mem, "what StaticRNN.memory returned")
        self._memories[mem.name] = (memory[0], memory[1], check_variable("var", var))

    def step_output(self, o: Variable) -> None:
        """Make all steps of a variable a result."""
        outer, block = self._inside("step_output")
        check_variable("o", o)
        number = len(self._outputs)
        step = outer.create_var(f"{self.helper.name}.step_output_{number}")
        step.declare(o._spec())
        block.append_op("assign", {"X": o}, {"Out": step})
        sequence = outer.create_var(f"{self.helper.name}.output_{number}")
        length = -1 if self.seq_len is None else self.seq_len
        sequence.declare(step._spec().with_(dims=(length, *step.shape)))
        self._outputs.append((step, sequence))

    def output(self, *outputs: Variable) -> None:
        """Make all steps of several variables results."""
        for each in outputs:
            self.step_output(each)

    def __call__(self) -> Variable | list[Variable]:
        """The results [steps, ...]: one, or a list."""
        if not self._done:
            raise ProgramError("the result of StaticRNN is there after its step block")
        results = [sequence for _, sequence in self._outputs]
        return results[0] if len(results) == 1 else results

    def _append_recurrent(self, outer: Block, block: Block) -> None:
        """Append the operator that runs the step, at the end of the block."""
        if not self._inputs or not self._outputs:
            raise ProgramError("the step of StaticRNN has no step_input or no step_output; it needs one of each")
        new_states: list[tuple[Variable, Variable]] = []
        for _, before, value in self._memories.values():
            if value is None:
                raise ProgramError(f"memory {before.name!r} of StaticRNN is not updated\n  Do: rnn.update_memory(...)")
            new_state = block.create_temporary()  # as a state may get the old value of another
            block.append_op("assign", {"X": value}, {"Out": new_state})
            new_states.append((new_state, before))
        for new_state, before in new_states:
            spec = before._spec()
            block.append_op("assign", {"X": new_state}, {"Out": before})
            if new_state._spec().rank != spec.rank or new_state.dtype != spec.dtype:
                raise ProgramError(f"memory {before.name!r} is {spec!r}, and {new_state._spec()!r} after a step")
        inner = {v.name for _, v in self._inputs} | self._memories.keys() | {step.name for step, _ in self._outputs}
        refused = [name for name in outer_writes(block) if name not in inner]
        if refused:
            raise ProgramError(
                f"the step of StaticRNN writes {refused[0]!r}, a variable outside; it may write its memories only"
                "\n  Do: rnn.memory(init=...), and rnn.update_memory"
            )
        parameter_names = [name for name in outer_reads(block) if name not in inner]
        outer.append_op(
            "recurrent",
            {
                "inputs": [x for x, _ in self._inputs],
                "initial_states": [m[0] for m in self._memories.values()],
                "parameters": parameter_names,
            },
            {"outputs": [whole for _, whole in self._outputs]},
            {
                "sub_block": block.idx,
                "inside": parameter_names,
                "step_inputs": [step.name for _, step in self._inputs],
                "ex_states": list(self._memories),
                "step_outputs": [step.name for step, _ in self._outputs],
                "is_test": self.is_test,
            },
        )
        self._done = True
