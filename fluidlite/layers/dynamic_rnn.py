"""DynamicRNN: a block for each step of sequences of different lengths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from fluidlite.base.errors import ProgramError
from fluidlite.layer_helper import LayerHelper, check_float, check_ints, check_variable, refuse
from fluidlite.layers.loops import While
from fluidlite.layers.rank_table import (
    array_to_lod_tensor,
    lod_rank_table,
    lod_tensor_to_array,
    max_sequence_len,
    reorder_lod_tensor_by_rank,
    shrink_memory,
)
from fluidlite.layers.shape import transpose
from fluidlite.layers.sub_blocks import in_outer_block
from fluidlite.layers.tensor import fill_constant, fill_constant_batch_size_like, increment
from fluidlite.layers.tensor_array import array_read, array_write, create_array
from fluidlite.program.block import Block
from fluidlite.program.variable import Variable


class DynamicRNN:
    """A recurrent network over the sequences of LoD tensors; a block defines one step.

    At step t the block gets the rows of the sequences that have a step t, the longest sequence first.

    Parameters
    ----------
    name : str, optional

    Raises
    ------
    ProgramError
        If its methods are called outside of the block (or the result inside), a memory is not updated, or there is no
        step input or output.
    ShapeError
        At a run, if step inputs have sequences of different lengths.

    Notes
    -----
    A sequence of no rows has no step, and an empty sequence as its result. A memory after the last step is
    ``layers.sequence_last_step`` of an output.

    Examples
    --------
    >>> rnn = layers.DynamicRNN()
    >>> with rnn.block():
    ...     word = rnn.step_input(sentence)                        # [sequences, features]
    ...     before = rnn.memory(shape=[8])
    ...     hidden = layers.fc([word, before], 8, act="tanh")
    ...     rnn.update_memory(before, hidden)
    ...     rnn.output(hidden)
    >>> out = rnn()                                                # [rows, 8], with the LoD of sentence
    """

    BEFORE_RNN, IN_RNN, AFTER_RNN = 0, 1, 2

    def __init__(self, name: str | None = None) -> None:
        self.helper = LayerHelper("dynamic_rnn", name=name)
        self.status = self.BEFORE_RNN
        self.lod_rank_table: Variable | None = None
        self.max_seq_len: Variable | None = None
        self.step_idx: Variable | None = None
        self.zero_idx: Variable | None = None
        self.outputs: list[Variable] = []
        self.output_array: list[Variable] = []
        self._parent: Block | None = None
        self._memories: dict[str, tuple[Variable, Variable | None]] = {}  # the array, and the updated state
        self.cond = self.helper.create_variable_for_type_inference()
        self.cond.stop_gradient = True
        self.while_op = While(self.cond)

    def block(self) -> AbstractContextManager[Block]:
        """Layers inside define one step."""
        if self.status != self.BEFORE_RNN:
            raise ProgramError("DynamicRNN has one block; it was opened already")
        return self._step()

    @contextmanager
    def _step(self) -> Iterator[Block]:
        self._parent = self.helper.main_program.current_block()
        with self.while_op.block() as block:
            with in_outer_block(self._parent):
                self.step_idx = fill_constant([1], "int64", 0)
                self.zero_idx = fill_constant([1], "int64", 0)
            self.status = self.IN_RNN
            try:
                yield block
            finally:
                self.status = self.AFTER_RNN
            self._finish_step()
        self.outputs = [array_to_lod_tensor(array, self._table("output")) for array in self.output_array]

    def _finish_step(self) -> None:
        """Append the operators at the end of the block."""
        if self.lod_rank_table is None or not self.output_array:
            raise ProgramError("the block of DynamicRNN has no step_input or no output; it needs one of each")
        assert self.step_idx is not None and self.max_seq_len is not None
        increment(self.step_idx)
        for name, (array, after) in self._memories.items():
            if after is None:
                raise ProgramError(f"memory {name!r} of DynamicRNN is not updated\n  Do: rnn.update_memory(...)")
            array_write(after, self.step_idx, array)
        self._compare()

    def _compare(self) -> None:
        inputs = {"X": self.step_idx, "Y": self.max_seq_len}
        self.helper.append_op("less_than", inputs, {"Out": self.cond}, {"axis": -1})

    def _inside(self, method: str) -> Variable:
        """The number of the step; raises outside of the block."""
        if self.status != self.IN_RNN or self.step_idx is None:
            raise ProgramError(f"DynamicRNN.{method} is called inside of its block\n  Do: with rnn.block(): ...")
        return self.step_idx

    def _table(self, method: str) -> Variable:
        if self.lod_rank_table is None:
            raise ProgramError(f"DynamicRNN.{method} comes after step_input\n  Do: rnn.step_input(...) first")
        return self.lod_rank_table

    def _check_outside(self, argument: str, value: Variable) -> None:
        block = self.helper.main_program.current_block()
        if block.vars.get(check_variable(argument, value).name) is value:
            refuse(argument, value, "a Variable made before the block", "make it outside of rnn.block()")

    def step_input(self, x: Variable, level: int = 0) -> Variable:
        """Return one step of sequences: a row of each sequence that has this step.

        Parameters
        ----------
        x : Variable
            Sequences: at least one LoD level. Those of all step inputs have the same lengths.
        level : int
            The LoD level of the sequences; that of the first step input is used for all.
        """
        step = self._inside("step_input")
        self._check_outside("x", x)
        with in_outer_block(self._parent):
            if self.lod_rank_table is None:
                self.lod_rank_table = lod_rank_table(x, level)
                self.max_seq_len = max_sequence_len(self.lod_rank_table)
                self._compare()
            steps = lod_tensor_to_array(x, self.lod_rank_table)
        return array_read(steps, step)

    def static_input(self, x: Variable) -> Variable:
        """Return the rows (with LoD, the sequences) of ``x`` for the sequences of a step.

        Parameters
        ----------
        x : Variable
            One row, or sequence, for each sequence of the step inputs.
        """
        step, table = self._inside("static_input"), self._table("static_input")
        self._check_outside("x", x)
        with in_outer_block(self._parent):
            ordered = reorder_lod_tensor_by_rank(x, table)
        return shrink_memory(ordered, step, table)

    def memory(
        self,
        init: Variable | None = None,
        shape: Sequence[int] | None = None,
        value: float = 0.0,
        need_reorder: bool = False,
        dtype: Any = "float32",
    ) -> Variable:
        """Return a state before the step.

        Parameters
        ----------
        init : Variable, optional
            Its value before the first step: a row for each sequence.
        shape : list of int, optional
            Without ``init``: the dims of a row.
        value : float
            Without ``init``: the fill value.
        need_reorder : bool
            The rows of ``init`` are in the order of the sequences. Else they are in the order of their lengths, the
            longest first, as Fluid has it.
        dtype : str
            Without ``init``.
        """
        step, table = self._inside("memory"), self._table("memory")
        if init is None and shape is None:
            refuse("init", init, "a Variable, or shape")
        if init is not None:
            self._check_outside("init", init)
        with in_outer_block(self._parent):
            if init is None:
                dims = [-1, *check_ints("shape", list(shape or ()))]
                rows = transpose(table, [1, 0])  # one column for each sequence; the table's LoD has the levels above
                first = fill_constant_batch_size_like(rows, dims, dtype, check_float("value", value), input_dim_idx=1)
            else:
                first = reorder_lod_tensor_by_rank(init, table) if need_reorder else init
            assert self.zero_idx is not None
            states = array_write(first, self.zero_idx, create_array(first.dtype))
        before = shrink_memory(array_read(states, step), step, table)
        self._memories[before.name] = states, None
        return before

    def update_memory(self, ex_mem: Variable, new_mem: Variable) -> None:
        """Set the value of a state after the step."""
        self._inside("update_memory")
        memory = self._memories.get(check_variable("ex_mem", ex_mem).name)
        if memory is None:
            refuse("ex_mem", ex_mem, "what DynamicRNN.memory returned")
        self._memories[ex_mem.name] = memory[0], check_variable("new_mem", new_mem)

    def output(self, *outputs: Variable) -> None:
        """Make all steps of variables results: a row for each sequence of the step."""
        step = self._inside("output")
        for each in outputs:
            check_variable("outputs", each)
            with in_outer_block(self._parent):
                array = create_array(each.dtype)
            self.output_array.append(array_write(each, step, array))

    def __call__(self) -> Variable | list[Variable]:
        """The results, with the LoD of the step inputs: one, or a list."""
        if self.status != self.AFTER_RNN or not self.outputs:
            raise ProgramError("the result of DynamicRNN is there after its block")
        return self.outputs[0] if len(self.outputs) == 1 else list(self.outputs)
