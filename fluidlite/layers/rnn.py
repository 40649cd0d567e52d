"""Cells, and ``rnn``, which applies one to the steps of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

from fluidlite.base.errors import ProgramError
from fluidlite.layer_helper import LayerHelper, check_float, check_int, check_variable, refuse
from fluidlite.layers.common import append, elsewhere
from fluidlite.layers.sequence_lod import sequence_mask
from fluidlite.layers.shape import shape, split, squeeze, stack, transpose, unstack
from fluidlite.layers.slicing_padding import reverse, slice
from fluidlite.layers.static_rnn import StaticRNN
from fluidlite.layers.structure import flat, over, packed
from fluidlite.layers.tensor import cast, concat, fill_constant, fill_constant_batch_size_like
from fluidlite.param_attr import ParamAttr
from fluidlite.program.variable import Variable

__all__ = ["GRUCell", "LSTMCell", "RNNCell", "rnn"]

Cell = Callable[..., tuple[Any, Any]]


class RNNCell:
    """One step of a recurrent network: a subclass says :meth:`call`, :attr:`state_shape` and its parameters."""

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
            The first one tells the rows, and the dtype unless that is given.
        shape : list of int, or a structure of such lists
            Default: :attr:`state_shape`.
        dtype : dtype
        init_value : float
        batch_dim_idx : int
            Which dim of ``batch_ref`` counts the rows.
        """
        like = _leaves(batch_ref)[0]
        return _over_shapes(
            lambda dims: fill_constant_batch_size_like(
                like, [-1, *dims], dtype or like.dtype, init_value, input_dim_idx=batch_dim_idx
            ),
            self.state_shape if shape is None else shape,
        )


class _Gates(RNNCell):
    """What both cells are made of: parameters that all steps share, and products of input and state."""

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
    """Behind the name of a ParamAttr, of which each pair of parameters takes a copy."""

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
                _of_several(a, number, count, self._suffixes) for a in (helper.param_attr, helper.bias_attr)
            )
            weight = helper.create_parameter(attr, [rows.shape[1] + self.hidden_size, width], self._dtype)
            bias = (
                None if bias_attr is False else helper.create_parameter(bias_attr, [width], self._dtype, is_bias=True)
            )
            self._parameters.append((weight, bias))
        weight, bias = self._parameters[number]
        made = append("mul", "mul", {"X": concat([rows, state], axis=1), "Y": weight})
        return made if bias is None else made + bias


class GRUCell(_Gates):
    """h' = update h + (1 - update) act([x, reset h] W_c + b_c); reset, update = gate([x, h] W_g + b_g).

    Parameters
    ----------
    hidden_size : int
    param_attr, bias_attr : ParamAttr, or a list of two, optional
        Of the gates, [width + hidden_size, 2 hidden_size], and of the candidate, [width + hidden_size, hidden_size].
        The name of one for both gets ``_gate`` or ``_candidate`` behind it, as in Fluid.
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
    """Return the outputs of a cell over the steps of a batch, and its last states.

    A known number of steps is unrolled; else they are those of a :class:`StaticRNN`.

    inputs: A Variable, or a structure of Variables: [batch, steps, ...], or [steps, batch, ...] if ``time_major``
    initial_states: As the cell's states; default: zeros
    sequence_length: int32 or int64, [batch]: from there on states stay as they are. Outputs of such steps are what the
        cell makes of them, as in Fluid.
    is_reverse: From the last step to the first; padding comes first then, and leaves the states as they are
    kwargs: Given to each call of the cell
    Returns: Outputs of all steps, laid out as ``inputs``; the states after the last step
    """
    if not isinstance(cell, RNNCell):
        refuse("cell", cell, "an RNNCell")
    given = _leaves(inputs)
    for each in given:
        if len(check_variable("inputs", each).shape) < 2:
            refuse("inputs", each, "[batch, steps, ...], or [steps, batch, ...] with time_major=True")
    axis = 0 if time_major else 1
    counts = {each.shape[axis] for each in given}
    if 0 in counts or len(counts - {-1}) > 1:
        refuse("inputs", given[0], "one number of steps, at least 1")
    if sequence_length is not None and len(check_variable("sequence_length", sequence_length).shape) != 1:
        refuse("sequence_length", sequence_length, "[batch]")
    if initial_states is None:
        initial_states = cell.get_initial_states(inputs, batch_dim_idx=1 - axis)

    if -1 in counts:
        swap: Callable[[Variable], Variable] = _swapped if axis else lambda x: x
        sequences = packed(inputs, [swap(each) for each in given])
        outputs, states = looped(cell, sequences, initial_states, sequence_length, is_reverse, **kwargs)
        return over(swap, outputs), over(lambda each: row(each, -1), states)
    steps = counts.pop()
    parts = [unstack(each, axis=axis) for each in given]
    states, outputs = initial_states, []
    for t in reversed(range(steps)) if is_reverse else range(steps):
        has = None
        if sequence_length is not None:
            limit = fill_constant([1], sequence_length.dtype, t)
            has = append("greater_than", "greater_than", {"X": sequence_length, "Y": limit}, stop_gradient=True)
        output, states = _step(cell, packed(inputs, [part[t] for part in parts]), states, has, kwargs)
        outputs.append(output)
    if is_reverse:
        outputs.reverse()
    columns = [stack(list(each), axis=axis) for each in zip(*map(_leaves, outputs), strict=True)]
    return packed(outputs[0], columns), states


def _step(cell: Cell, inputs: Any, states: Any, has: Variable | None, kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    output, new = cell(inputs, states, **kwargs)
    return output, new if has is None else _kept(states, new, has)


def looped(
    cell: Cell, inputs: Any, states: Any, sequence_length: Variable | None, is_reverse: bool, **kwargs: Any
) -> tuple[Any, Any]:
    """Outputs and states of all steps of inputs [steps, batch, ...], whose number a run may know alone.

    Outputs are in the order of the steps, states in that in which the steps were made.
    """
    sequences = flat(inputs)
    if sequence_length is not None:
        sequences = [*sequences, _steps_there(sequences[0], sequence_length)]
    loop = StaticRNN()
    turned = [reverse(each, 0) for each in sequences] if is_reverse else sequences
    with loop.step():
        now = [loop.step_input(each) for each in turned]
        has = now.pop() if sequence_length is not None else None
        before = [loop.memory(init=each) for each in _leaves(states)]
        output, new = _step(cell, packed(inputs, now), packed(states, before), has, kwargs)
        after = flat(new)
        for old, each in zip(before, after, strict=True):
            loop.update_memory(old, each)
        loop.output(*flat(output), *after)
    made = flat(loop())
    count = len(made) - len(after)
    outs = [reverse(each, 0) for each in made[:count]] if is_reverse else made[:count]
    return packed(output, outs), packed(new, made[count:])


def _swapped(x: Variable) -> Variable:
    return transpose(x, [1, 0, *range(2, len(x.shape))])


def _steps_there(x: Variable, sequence_length: Variable) -> Variable:
    """1 for each step of ``x`` [steps, batch, ...] that a sequence has, and 0 behind: [steps, batch]."""
    steps = x.shape[0] if x.shape[0] >= 0 else slice(shape(x), axes=[0], starts=[0], ends=[1])
    mask = transpose(sequence_mask(sequence_length, maxlen=steps, dtype="int64"), [1, 0])
    mask.stop_gradient = True
    return mask


def row(x: Variable, at: int) -> Variable:
    """One of the first dim; -1: the last."""
    end = at + 1 if at >= 0 else 10**9
    return squeeze(slice(x, axes=[0], starts=[at], ends=[end]), axes=[0])


def _kept(old: Any, new: Any, has: Variable) -> Any:
    """The new states of sequences that have the step, the old ones of others."""
    before, after = _leaves(old), _leaves(new)
    if len(before) != len(after):
        raise ProgramError(f"the cell was given {len(before)} states, and returned {len(after)}; expected as many")
    made = []
    for was, now in zip(before, after, strict=True):
        mask = cast(has, now.dtype)
        mask.stop_gradient = True
        passed, left = (
            append("elementwise_mul", "elementwise_mul", {"X": x, "Y": y}, {"axis": 0})
            for x, y in ((now, mask), (was, 1.0 - mask))
        )
        made.append(passed + left)
    return packed(new, made)


def _activation(activation: Any, default: str) -> Callable[[Any], Variable]:
    if activation is None:
        return lambda x: append(default, default, {"X": x})
    if not callable(activation):
        refuse("activation", activation, "a layer, such as fluid.layers.sigmoid")
    made: Callable[[Any], Variable] = activation
    return made


def _of_several(attr: Any, number: int, count: int, suffixes: tuple[str, ...]) -> Any:
    """What was said of one of several parameters."""
    if not isinstance(attr, list):
        return renamed(attr, suffixes[number])
    if len(attr) != count:
        refuse("param_attr", attr, f"one ParamAttr, or {count}")
    return attr[number]


def renamed(attr: Any, suffix: str) -> Any:
    """What was said of a parameter, under a name of its own if it has one."""
    if not isinstance(attr, ParamAttr) or attr.name is None:
        return attr
    attr = copy(attr)
    attr.name += suffix
    return attr


# Structures --------------------------------------------------------------------------------------------------------


def _leaves(structure: Any) -> list[Any]:
    found = flat(structure)
    if not found:
        refuse("inputs", structure, "one Variable or more")
    return found


def _over_shapes(function: Callable[[Sequence[int]], Any], shape: Any) -> Any:
    """A structure of shapes with each replaced: lists of ints are the leaves."""
    if isinstance(shape, int):
        return function([shape])
    if isinstance(shape, Mapping):
        return {name: _over_shapes(function, each) for name, each in shape.items()}
    if isinstance(shape, (list, tuple)):
        if all(isinstance(each, int) for each in shape):
            return function([d for d in shape if d != -1])
        return type(shape)([_over_shapes(function, each) for each in shape])
    return refuse("shape", shape, "a list of ints, or a structure of such lists")


__getattr__ = elsewhere(__name__)  # Fluid's path of layers that other modules declare
