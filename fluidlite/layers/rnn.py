"""RNN cells, and ``rnn``, which applies a cell to the steps of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

from fluidlite.base.errors import ProgramError
from fluidlite.layer_helper import LayerHelper, check_float, check_int, check_variable, refuse
from fluidlite.layers import ops
from fluidlite.layers.common import layers_getattr
from fluidlite.layers.nn import mul
from fluidlite.layers.sequence_lod import sequence_mask
from fluidlite.layers.shape import shape, split, squeeze, stack, transpose, unstack
from fluidlite.layers.slicing_padding import reverse, slice
from fluidlite.layers.static_rnn import StaticRNN
from fluidlite.layers.tensor import cast, concat, fill_constant, fill_constant_batch_size_like
from fluidlite.layers.utils import flatten, map_structure, pack_sequence_as
from fluidlite.param_attr import ParamAttr
from fluidlite.program.variable import Variable

__all__ = ["GRUCell", "LSTMCell", "RNNCell", "rnn"]

Cell = Callable[..., tuple[Any, Any]]


class RNNCell:
    """One step of a recurrent network: a subclass defines :meth:`call`, :attr:`state_shape` and its parameters."""

    def call(self, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Append one step; return its output and the new states, of the structure of ``states``."""
        raise NotImplementedError(f"{type(self).__name__} must define call(inputs, states)")

    def __call__(self, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any]:
        return self.call(inputs, states, **kwargs)

    @property
    def state_shape(self) -> Any:
        """Dims of a row of each state: a list of ints, or a structure of such lists."""
        raise NotImplementedError(f"{type(self).__name__} must define state_shape, or be given initial states")

    def get_initial_states(
        self, batch_ref: Any, shape: Any = None, dtype: Any = None, init_value: float = 0, batch_dim_idx: int = 0
    ) -> Any:
        """Return constant states for as many rows as ``batch_ref`` has.

        Parameters
        ----------
        batch_ref : Variable, or a structure of Variables
            The first one determines the rows, and the default dtype.
        shape : list of int, or a structure of such lists
            Default: :attr:`state_shape`.
        dtype : dtype
        init_value : float
        batch_dim_idx : int
            The dim of ``batch_ref`` with the number of rows.
        """
        like = _leaves(batch_ref)[0]
        return _over_shapes(
            lambda dims: fill_constant_batch_size_like(
                like, [-1, *dims], dtype or like.dtype, init_value, input_dim_idx=batch_dim_idx
            ),
            self.state_shape if shape is None else shape,
        )


class _Gates(RNNCell):
    """Base class of both cells: parameters that all steps share, and products of input and state."""

    def __init__(
        self,
        hidden_size: int,
        param_attr: Any,
        bias_attr: Any,
        gate_activation: Any,
        activation: Any,
        dtype: Any,
        name: str,
    ) -> None:
        self.hidden_size = check_int("hidden_size", hidden_size, minimum=1)
        self._helper = LayerHelper(name, name=name, param_attr=param_attr, bias_attr=bias_attr)
        self._dtype = dtype
        self._gate, self._act = (
            _activation(f, kind) for f, kind in ((gate_activation, "sigmoid"), (activation, "tanh"))
        )
        self._parameters: list[tuple[Any, Any]] = []
        self._program: Any = None

    _suffixes: tuple[str, ...] = ("",)
    """Appended to the name of a ParamAttr, of which each pair of parameters has a copy."""

    def _products(self, number: int, inputs: Variable, state: Variable, width: int, count: int) -> Variable:
        """[inputs, state] weight + bias, of the ``number``-th of ``count`` pairs of parameters."""
        helper = self._helper
        rows = check_variable("inputs", inputs)
        if len(rows.shape) != 2 or rows.shape[1] < 1:
            refuse("inputs", inputs, "[rows, width] with a known width")
        if self._program is not helper.main_program:
            self._parameters, self._program = [], helper.main_program
        if len(self._parameters) == number:
            attr, bias_attr = (
                _parameter_attr(a, number, count, self._suffixes) for a in (helper.param_attr, helper.bias_attr)
            )
            weight = helper.create_parameter(attr, [rows.shape[1] + self.hidden_size, width], self._dtype)
            bias = (
                None if bias_attr is False else helper.create_parameter(bias_attr, [width], self._dtype, is_bias=True)
            )
            self._parameters.append((weight, bias))
        weight, bias = self._parameters[number]
        product = mul(concat([rows, state], axis=1), weight)
        return product if bias is None else product + bias


class GRUCell(_Gates):
    """h' = update h + (1 - update) act([x, reset h] W_c + b_c); reset, update = gate([x, h] W_g + b_g).

    Parameters
    ----------
    hidden_size : int
    param_attr, bias_attr : ParamAttr, or a list of two, optional
        Of the gates, [width + hidden_size, 2 hidden_size], and of the candidate, [width + hidden_size, hidden_size].
        If one is used for both, ``_gate`` or ``_candidate`` is appended to its name, as in Fluid.
    gate_activation, activation : callable, optional
        Layers; default ``sigmoid`` and ``tanh``.
    dtype : dtype
    name : str
    """

    _suffixes = ("_gate", "_candidate")

    def __init__(
        self,
        hidden_size: int,
        param_attr: Any = None,
        bias_attr: Any = None,
        gate_activation: Any = None,
        activation: Any = None,
        dtype: Any = "float32",
        name: str = "GRUCell",
    ) -> None:
        super().__init__(hidden_size, param_attr, bias_attr, gate_activation, activation, dtype, name)

    def call(self, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any]:
        """``inputs`` [rows, width], ``states`` [rows, hidden_size]; return the new state, twice."""
        state = check_variable("states", states)
        reset, update = split(self._gate(self._products(0, inputs, state, 2 * self.hidden_size, 2)), 2, dim=1)
        candidate = self._act(self._products(1, inputs, reset * state, self.hidden_size, 2))
        new = update * state + (1 - update) * candidate
        return new, new

    @property
    def state_shape(self) -> Any:
        """[hidden_size]."""
        return [self.hidden_size]


class LSTMCell(_Gates):
    """c' = c gate(f + forget_bias) + gate(i) act(j), h' = act(c') gate(o); i, j, f, o = [x, h] W + b.

    Parameters
    ----------
    hidden_size : int
    param_attr, bias_attr : ParamAttr, optional
        Of the gates, [width + hidden_size, 4 hidden_size] and [4 hidden_size].
    gate_activation, activation : callable, optional
        Layers; default ``sigmoid`` and ``tanh``.
    forget_bias : float
    dtype : dtype
    name : str
    """

    def __init__(
        self,
        hidden_size: int,
        param_attr: Any = None,
        bias_attr: Any = None,
        gate_activation: Any = None,
        activation: Any = None,
        forget_bias: float = 1.0,
        dtype: Any = "float32",
        name: str = "LSTMCell",
    ) -> None:
        super().__init__(hidden_size, param_attr, bias_attr, gate_activation, activation, dtype, name)
        self.forget_bias = check_float("forget_bias", forget_bias)

    def call(self, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any]:
        """``inputs`` [rows, width], ``states`` [h, c]; return h and [h, c] after the step."""
        if not isinstance(states, (list, tuple)) or len(states) != 2:
            refuse("states", states, "a hidden state and a cell")
        state, cell = (check_variable("states", each) for each in states)
        enter, candidate, keep, out = split(self._products(0, inputs, state, 4 * self.hidden_size, 1), 4, dim=1)
        new_cell = cell * self._gate(keep + self.forget_bias) + self._gate(enter) * self._act(candidate)
        new = self._act(new_cell) * self._gate(out)
        return new, [new, new_cell]

    @property
    def state_shape(self) -> Any:
        """[hidden_size] twice."""
        return [[self.hidden_size], [self.hidden_size]]


def rnn(
    cell: RNNCell,
    inputs: Any,
    initial_states: Any = None,
    sequence_length: Variable | None = None,
    time_major: bool = False,
    is_reverse: bool = False,
    **kwargs: Any,
) -> tuple[Any, Any]:
    """Return the outputs of a cell for the steps of a batch, and its last states.

    A known number of steps is unrolled; an unknown one runs as a :class:`StaticRNN`.

    inputs: A Variable, or a structure of Variables: [batch, steps, ...], or [steps, batch, ...] if ``time_major``
    initial_states: In the structure of the cell's states; default: zeros
    sequence_length: int32 or int64, [batch]: later steps do not change the states. Outputs of later steps are the
        results of the cell, as in Fluid.
    is_reverse: From the last step to the first; padding comes first then, and does not change the states
    kwargs: Passed to each call of the cell
    Returns: Outputs of all steps, laid out as ``inputs``; the states after the last step
    """
    if not isinstance(cell, RNNCell):
        refuse("cell", cell, "an RNNCell")
    leaves = _leaves(inputs)
    for leaf in leaves:
        if len(check_variable("inputs", leaf).shape) < 2:
            refuse("inputs", leaf, "[batch, steps, ...], or [steps, batch, ...] with time_major=True")
    axis = 0 if time_major else 1
    counts = {leaf.shape[axis] for leaf in leaves}
    if 0 in counts or len(counts - {-1}) > 1:
        refuse("inputs", leaves[0], "one number of steps, at least 1")
    if sequence_length is not None and len(check_variable("sequence_length", sequence_length).shape) != 1:
        refuse("sequence_length", sequence_length, "[batch]")
    if initial_states is None:
        initial_states = cell.get_initial_states(inputs, batch_dim_idx=1 - axis)

    if -1 in counts:
        to_time_major: Callable[[Variable], Variable] = _swap_axes if axis else lambda x: x
        sequences = pack_sequence_as(inputs, [to_time_major(leaf) for leaf in leaves])
        outputs, states = run_steps(cell, sequences, initial_states, sequence_length, is_reverse, **kwargs)
        return map_structure(to_time_major, outputs), map_structure(lambda leaf: index_first_dim(leaf, -1), states)
    steps = counts.pop()
    parts = [unstack(leaf, axis=axis) for leaf in leaves]
    states, outputs = initial_states, []
    for t in reversed(range(steps)) if is_reverse else range(steps):
        active = None
        if sequence_length is not None:
            limit = fill_constant([1], sequence_length.dtype, t)
            active = ops.greater_than(sequence_length, limit)
        output, states = _step(cell, pack_sequence_as(inputs, [part[t] for part in parts]), states, active, kwargs)
        outputs.append(output)
    if is_reverse:
        outputs.reverse()
    columns = [stack(list(leaf), axis=axis) for leaf in zip(*map(_leaves, outputs), strict=True)]
    return pack_sequence_as(outputs[0], columns), states


def _step(cell: Cell, inputs: Any, states: Any, active: Variable | None, kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    output, new_states = cell(inputs, states, **kwargs)
    return output, new_states if active is None else _keep_ended(states, new_states, active)


def run_steps(
    cell: Cell, inputs: Any, states: Any, sequence_length: Variable | None, is_reverse: bool, **kwargs: Any
) -> tuple[Any, Any]:
    """Outputs and states of all steps of inputs [steps, batch, ...], whose number may be unknown before a run.

    Outputs are in the order of the steps, states in the order of computation.
    """
    sequences = flatten(inputs)
    if sequence_length is not None:
        sequences = [*sequences, _step_mask(sequences[0], sequence_length)]
    loop = StaticRNN()
    ordered = [reverse(each, 0) for each in sequences] if is_reverse else sequences
    with loop.step():
        step_inputs = [loop.step_input(each) for each in ordered]
        active = step_inputs.pop() if sequence_length is not None else None
        before = [loop.memory(init=each) for each in _leaves(states)]
        output, new_states = _step(
            cell, pack_sequence_as(inputs, step_inputs), pack_sequence_as(states, before), active, kwargs
        )
        after = flatten(new_states)
        for old, each in zip(before, after, strict=True):
            loop.update_memory(old, each)
        loop.output(*flatten(output), *after)
    results = flatten(loop())
    count = len(results) - len(after)
    outs = [reverse(each, 0) for each in results[:count]] if is_reverse else results[:count]
    return pack_sequence_as(output, outs), pack_sequence_as(new_states, results[count:])


def _swap_axes(x: Variable) -> Variable:
    return transpose(x, [1, 0, *range(2, len(x.shape))])


def _step_mask(x: Variable, sequence_length: Variable) -> Variable:
    """1 for each step of ``x`` [steps, batch, ...] that a sequence has, and 0 after its end: [steps, batch]."""
    steps = x.shape[0] if x.shape[0] >= 0 else slice(shape(x), axes=[0], starts=[0], ends=[1])
    mask = transpose(sequence_mask(sequence_length, maxlen=steps, dtype="int64"), [1, 0])
    mask.stop_gradient = True
    return mask


def index_first_dim(x: Variable, at: int) -> Variable:
    """Index the first dim; -1: the last row."""
    end = at + 1 if at >= 0 else 10**9
    return squeeze(slice(x, axes=[0], starts=[at], ends=[end]), axes=[0])


def _keep_ended(old: Any, new: Any, active: Variable) -> Any:
    """The new states of sequences that have the step, the old ones of others."""
    before, after = _leaves(old), _leaves(new)
    if len(before) != len(after):
        raise ProgramError(f"the cell was given {len(before)} states, and returned {len(after)}; expected as many")
    merged = []
    for old_state, new_state in zip(before, after, strict=True):
        mask = cast(active, new_state.dtype)
        mask.stop_gradient = True
        from_new, from_old = (
            ops.elementwise_mul(x, y, axis=0) for x, y in ((new_state, mask), (old_state, 1.0 - mask))
        )
        merged.append(from_new + from_old)
    return pack_sequence_as(new, merged)


def _activation(activation: Any, default: str) -> Callable[[Any], Variable]:
    if activation is None:
        return ops.layer(default)
    if not callable(activation):
        refuse("activation", activation, "a layer, such as fluid.layers.sigmoid")
    layer: Callable[[Any], Variable] = activation
    return layer


def _parameter_attr(attr: Any, number: int, count: int, suffixes: tuple[str, ...]) -> Any:
    """The ParamAttr of one of several parameters."""
    if not isinstance(attr, list):
        return with_name_suffix(attr, suffixes[number])
    if len(attr) != count:
        refuse("param_attr", attr, f"one ParamAttr, or {count}")
    return attr[number]


def with_name_suffix(attr: Any, suffix: str) -> Any:
    """A ParamAttr with a suffix appended to its name, if it has one."""
    if not isinstance(attr, ParamAttr) or attr.name is None:
        return attr
    attr = copy(attr)
    attr.name += suffix
    return attr


# Structures --------------------------------------------------------------------------------------------------------


def _leaves(structure: Any) -> list[Any]:
    leaves = flatten(structure)
    if not leaves:
        refuse("inputs", structure, "one Variable or more")
    return leaves


def _over_shapes(function: Callable[[Sequence[int]], Any], shape: Any) -> Any:
    """Apply a function to each shape of a structure; lists of ints are the leaves."""
    if isinstance(shape, int):
        return function([shape])
    if isinstance(shape, Mapping):
        return {name: _over_shapes(function, each) for name, each in shape.items()}
    if isinstance(shape, (list, tuple)):
        if all(isinstance(each, int) for each in shape):
            return function([d for d in shape if d != -1])
        return type(shape)([_over_shapes(function, each) for each in shape])
    return refuse("shape", shape, "a list of ints, or a structure of such lists")


__getattr__ = layers_getattr(__name__)  # Fluid's path of layers that other modules declare
