"""Decoders of Fluid 1.3 to 1.7: a cell with named states, for training in a DynamicRNN and beam search in a While."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from fluidlite import layers
from fluidlite.base.errors import ProgramError
from fluidlite.layer_helper import check_function, check_int, check_variable, refuse
from fluidlite.layers.sub_blocks import in_outer_block
from fluidlite.program.program import default_main_program
from fluidlite.program.variable import Variable

__all__ = ["BeamSearchDecoder", "InitState", "StateCell", "TrainingDecoder"]

Updater = TypeVar("Updater", bound=Callable[..., Any])


class InitState:
    """An initial state.

    Parameters
    ----------
    init : Variable, optional
        The initial value, with a row for each sequence.
    shape : list of int, optional
        Without ``init``: the dims, the batch's (-1) first.
    value : float
        Without ``init``: the fill value.
    init_boot : Variable, optional
        Without ``init``: a variable with the same number of rows.
    need_reorder : bool
        For training: the rows are in the order of the sequences, and must be reordered by length.
    dtype : str
        Without ``init``.
    """

    def __init__(
        self,
        init: Variable | None = None,
        shape: Sequence[int] | None = None,
        value: float = 0.0,
        init_boot: Variable | None = None,
        need_reorder: bool = False,
        dtype: Any = "float32",
    ) -> None:
        if init is None:
            boot = check_variable("init_boot", init_boot)
            if shape is None:
                refuse("shape", shape, "the dims of the state, such as [-1, 32]")
            init = layers.fill_constant_batch_size_like(boot, shape, dtype, value)
        self.value = check_variable("init", init)
        self.need_reorder = need_reorder


def _check_name(argument: str, name: str, valid_names: Mapping[str, Any]) -> None:
    if name not in valid_names:
        refuse(argument, name, f"one of {', '.join(map(repr, valid_names))}")


class StateCell:
    """A step of a recurrent network: inputs and states by name, and a function that computes the new states.

    Parameters
    ----------
    inputs : mapping of str to Variable or None
        The inputs of a step; those that are None are passed to ``compute_state``.
    states : mapping of str to InitState
    out_state : str
        The state from which a beam search scores words.
    name : str, optional
        Not used.

    Examples
    --------
    >>> cell = StateCell(inputs={"x": None}, states={"h": InitState(init=context, need_reorder=True)}, out_state="h")
    >>> @cell.state_updater
    ... def updater(cell):
    ...     before, word = cell.get_state("h"), cell.get_input("x")
    ...     cell.set_state("h", layers.fc([before, word], 32, act="tanh"))
    """

    def __init__(
        self,
        inputs: Mapping[str, Variable | None],
        states: Mapping[str, InitState],
        out_state: str,
        name: str | None = None,
    ) -> None:
        for argument, mapping in (("inputs", inputs), ("states", states)):
            if not isinstance(mapping, Mapping):
                refuse(argument, mapping, "a mapping by name")
        for state in states.values():
            if not isinstance(state, InitState):
                refuse("states", state, "InitState objects by name")
        _check_name("out_state", out_state, states)
        self._inputs = dict(inputs)
        self._initial_states = dict(states)
        self._out_state = out_state
        self._updater: Callable[[StateCell], Any] | None = None
        self._decoder: _Decoder | None = None
        self._reset()

    def _enter(self, decoder: _Decoder) -> None:
        if self._decoder is not None:
            raise ProgramError("the StateCell is in the block of another decoder\n  Do: make a cell for each")
        self._decoder = decoder

    def _reset(self) -> None:
        self._decoder = None
        self._step_states: dict[str, Variable] = {}
        self._states: dict[str, Any] = dict(self._initial_states)

    def _read(self) -> None:
        """In the block of a decoder: read the states of its step, once."""
        if self._decoder is not None and not self._step_states:
            self._step_states = {name: self._decoder._memory(state) for name, state in self._initial_states.items()}
            self._states.update(self._step_states)

    def get_state(self, state_name: str) -> Any:
        """Return a state; the InitState outside of a decoder's block."""
        self._read()
        _check_name("state_name", state_name, self._states)
        return self._states[state_name]

    def get_input(self, input_name: str) -> Variable:
        """Return an input of the step."""
        _check_name("input_name", input_name, self._inputs)
        value = self._inputs[input_name]
        if value is None:
            refuse("input_name", input_name, "an input that has a value", "give it to compute_state(inputs={...})")
        return value

    def set_state(self, state_name: str, state_value: Variable) -> None:
        """Set the new value of a state."""
        self._read()
        _check_name("state_name", state_name, self._states)
        self._states[state_name] = check_variable("state_value", state_value)

    def state_updater(self, updater: Updater) -> Updater:
        """Decorator: set the function that computes the new states."""
        check_function("updater", updater, "a function")
        self._updater = updater
        return updater

    def compute_state(self, inputs: Mapping[str, Variable]) -> None:
        """Compute the new states with the updater, from named inputs and the current states."""
        if self._updater is None:
            raise ProgramError("the StateCell has no updater\n  Do: @cell.state_updater on a function of the cell")
        self._read()
        for name, value in inputs.items():
            _check_name("inputs", name, self._inputs)
            self._inputs[name] = check_variable("inputs", value)
        self._updater(self)

    def update_states(self) -> None:
        """Pass the current states to the next step."""
        if self._decoder is None:
            raise ProgramError("StateCell.update_states is called inside of the block of a decoder")
        self._read()
        for name, step_state in self._step_states.items():
            self._decoder._update(step_state, self._states[name])

    def out_state(self) -> Any:
        """Return the state from which words are scored."""
        return self.get_state(self._out_state)


class _Decoder:
    """Base of decoders: one block, in which the cell's states are those of the current step."""

    def __init__(self, state_cell: StateCell) -> None:
        if not isinstance(state_cell, StateCell):
            refuse("state_cell", state_cell, "a StateCell")
        self._state_cell = state_cell
        self._inside: bool | None = None  # False after the block

    @property
    def state_cell(self) -> StateCell:
        """The cell, inside of the block."""
        self._check_inside("state_cell")
        return self._state_cell

    @contextmanager
    def block(self) -> Iterator[None]:
        """Layers inside the block compute one step."""
        if self._inside is not None:
            raise ProgramError(f"{type(self).__name__} has one block; it was opened already")
        self._state_cell._enter(self)
        try:
            with self._steps():
                self._inside = True
                yield
                self._finish_step()
        finally:
            self._inside = False
            self._state_cell._reset()

    def _check_inside(self, method: str) -> None:
        if not self._inside:
            raise ProgramError(f"{type(self).__name__}.{method} is called inside of its block\n  Do: with block(): ...")

    def _check_after(self) -> None:
        if self._inside is not False:
            raise ProgramError(f"the result of {type(self).__name__} is there after its block")

    def _steps(self) -> AbstractContextManager[Any]:
        raise NotImplementedError

    def _finish_step(self) -> None:
        """Append operators at the end of the block."""

    def _memory(self, init: InitState) -> Variable:
        """The value of a state before the step."""
        raise NotImplementedError

    def _update(self, before: Variable, after: Variable) -> None:
        """Pass ``after`` to the next step as the new value of ``before``."""
        raise NotImplementedError


class TrainingDecoder(_Decoder):
    """A decoder for training with teacher forcing: its block is a step over the target sentences.

    Parameters
    ----------
    state_cell : StateCell
    name : str, optional
        Not used.

    Examples
    --------
    >>> decoder = TrainingDecoder(cell)
    >>> with decoder.block():
    ...     decoder.state_cell.compute_state(inputs={"x": decoder.step_input(embedded)})
    ...     scores = layers.fc(decoder.state_cell.get_state("h"), words, act="softmax")
    ...     decoder.state_cell.update_states()
    ...     decoder.output(scores)
    >>> scores = decoder()
    """

    def __init__(self, state_cell: StateCell, name: str | None = None) -> None:
        super().__init__(state_cell)
        self.dynamic_rnn = layers.DynamicRNN()

    def _steps(self) -> AbstractContextManager[Any]:
        return self.dynamic_rnn.block()

    def _memory(self, init: InitState) -> Variable:
        return self.dynamic_rnn.memory(init=init.value, need_reorder=init.need_reorder)

    def _update(self, before: Variable, after: Variable) -> None:
        self.dynamic_rnn.update_memory(before, after)

    def step_input(self, x: Variable) -> Variable:
        """Return the part of sequences that a step reads."""
        self._check_inside("step_input")
        return self.dynamic_rnn.step_input(x)

    def static_input(self, x: Variable) -> Variable:
        """Return the rows, or sequences, of ``x`` that belong to the sequences of a step."""
        self._check_inside("static_input")
        return self.dynamic_rnn.static_input(x)

    def output(self, *outputs: Variable) -> None:
        """Declare variables whose values of all steps are results."""
        self._check_inside("output")
        self.dynamic_rnn.output(*outputs)

    def __call__(self) -> Variable | list[Variable]:
        """The results, with the LoD of the step inputs: one, or a list."""
        self._check_after()
        return self.dynamic_rnn()


class BeamSearchDecoder(_Decoder):
    """A decoder that searches for the likeliest sentences, by ``layers.beam_search`` in a ``While``.

    Parameters
    ----------
    state_cell : StateCell
    init_ids, init_scores : Variable
        The word that begins each sentence and its score, [sentences, 1], with two LoD levels.
    target_dict_dim : int
        Number of words.
    word_dim : int
        Size of their embedding.
    input_var_dict : mapping of str to Variable
        Inputs of the cell other than the words: a row, or a sequence, for each sentence.
    topk_size : int
        Candidates of each prefix.
    sparse_emb : bool
        The embedding's gradient is sparse.
    max_len : int
        Maximum number of words.
    beam_size : int
        Number of prefixes kept for each sentence.
    end_id : int
        The word that ends a sentence.
    name : str, optional
        Not used.

    Notes
    -----
    ``decode()`` builds the block: an embedding of words, the cell, and an ``fc`` that scores words. Their parameters
    have the same names as in a training program that creates them in the same order. For other parameters, build the
    block with ``read_array`` and ``update_array``. States have no LoD: in the updater's ``fc`` the state must come
    first, since the result has the LoD of the first input.
    """

    def __init__(
        self,
        state_cell: StateCell,
        init_ids: Variable,
        init_scores: Variable,
        target_dict_dim: int,
        word_dim: int,
        input_var_dict: Mapping[str, Variable] = {},
        topk_size: int = 50,
        sparse_emb: bool = True,
        max_len: int = 100,
        beam_size: int = 1,
        end_id: int = 1,
        name: str | None = None,
    ) -> None:
        super().__init__(state_cell)
        self._init_ids, self._init_scores = init_ids, init_scores
        self._target_dict_dim, self._word_dim = target_dict_dim, word_dim
        for each in input_var_dict:
            _check_name("input_var_dict", each, state_cell._inputs)
        self._input_var_dict = input_var_dict
        self._topk_size, self._sparse_emb = topk_size, sparse_emb
        self._beam_size, self._end_id = beam_size, end_id
        self._counter, self._zero_idx = (layers.fill_constant([1], "int64", 0) for _ in range(2))
        self._max_len = layers.fill_constant([1], "int64", check_int("max_len", max_len, minimum=0))
        self._cond = layers.less_than(self._counter, self._max_len)
        self._while_op = layers.While(self._cond, is_test=True)
        self._parent = default_main_program().current_block()
        self._arrays: dict[str, Variable] = {}
        self._updates: list[tuple[Variable, Variable]] = []
        self._results: dict[str, Variable] = {}

    def _steps(self) -> AbstractContextManager[Any]:
        return self._while_op.block()

    def _finish_step(self) -> None:
        with layers.Switch() as switch, switch.case(self._cond):
            layers.increment(self._counter)
            for array, value in self._updates:
                layers.array_write(value, self._counter, array)
            layers.less_than(self._counter, self._max_len, cond=self._cond)

    def _memory(self, init: InitState) -> Variable:
        return self.read_array(init.value)

    def _update(self, before: Variable, after: Variable) -> None:
        self.update_array(before, after)

    def early_stop(self) -> None:
        """End the search; this step adds nothing to the results."""
        self._check_inside("early_stop")
        layers.fill_constant([1], "bool", False, out=self._cond)

    def read_array(self, init: Variable, is_ids: bool = False, is_scores: bool = False) -> Variable:
        """Return the value that the previous step passed to ``update_array``; ``init`` in the first step.

        Parameters
        ----------
        init : Variable
        is_ids, is_scores : bool
            Whether it holds the selected words, or their scores: the results of the search.
        """
        self._check_inside("read_array")
        if is_ids and is_scores:
            refuse("is_scores", is_scores, "False where is_ids is True")
        check_variable("init", init)
        with in_outer_block(self._parent):
            array = layers.array_write(init, self._zero_idx)
        if is_ids or is_scores:
            self._results["ids" if is_ids else "scores"] = array
        value = layers.array_read(array, self._counter)
        self._arrays[value.name] = array
        return value

    def update_array(self, array: Variable, value: Variable) -> None:
        """Set the next step's value of ``array``, a result of ``read_array``."""
        self._check_inside("update_array")
        stored_array = self._arrays.get(check_variable("array", array).name)
        if stored_array is None:
            refuse("array", array, "what read_array returned")
        self._updates.append((stored_array, check_variable("value", value)))

    def decode(self) -> None:
        """Build the block; subclasses may override it."""
        with self.block():
            cell = self.state_cell
            ids = self.read_array(self._init_ids, is_ids=True)
            scores = self.read_array(self._init_scores, is_scores=True)
            size = [self._target_dict_dim, self._word_dim]
            words = layers.embedding(ids, size, is_sparse=self._sparse_emb)
            inputs = dict.fromkeys(cell._inputs, words)
            for name, init in self._input_var_dict.items():
                previous = self.read_array(init)
                inputs[name] = layers.sequence_expand(previous, scores)
                self.update_array(previous, inputs[name])
            for name in cell._initial_states:
                cell.set_state(name, layers.sequence_expand(cell.get_state(name), scores))
            cell.compute_state(inputs)
            out = layers.lod_reset(cell.out_state(), y=scores)
            top_scores, top_ids = layers.topk(layers.fc(out, self._target_dict_dim, act="softmax"), k=self._topk_size)
            total_scores = layers.elementwise_add(layers.log(top_scores), layers.reshape(scores, [-1]), axis=0)
            selected_ids, selected_scores = layers.beam_search(
                ids, scores, top_ids, total_scores, self._beam_size, self._end_id
            )
            cell.update_states()
            self.update_array(ids, selected_ids)
            self.update_array(scores, selected_scores)
            with layers.Switch() as switch, switch.case(layers.is_empty(selected_ids)):
                self.early_stop()

    def __call__(self) -> tuple[Variable, Variable]:
        """The sentences and their scores, with two LoD levels: sentences of sources, the best first, and words."""
        self._check_after()
        ids, scores = self._results.get("ids"), self._results.get("scores")
        if ids is None or scores is None:
            do = "read_array(init_ids, is_ids=True), read_array(init_scores, is_scores=True)"
            raise ProgramError(f"the block of BeamSearchDecoder reads no ids or no scores\n  Do: {do}")
        return layers.beam_search_decode(ids, scores, self._beam_size, self._end_id)
