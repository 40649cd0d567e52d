"""Layers of LSTMs and GRUs over padded batches, one or both ways, of cells whose activations are any layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fluidlite import layers
from fluidlite.layer_helper import check_float, check_int, check_variable, refuse
from fluidlite.layers.rnn import kept, renamed, row, steps_there
from fluidlite.layers.static_rnn import StaticRNN
from fluidlite.program.variable import Variable

__all__ = ["BasicGRUUnit", "BasicLSTMUnit", "basic_gru", "basic_lstm"]


class BasicGRUUnit:
    """One step of a GRU: u h + (1 - u) m, of a new candidate m and the update u.

    u, r = gate([x, h] W_g + b_g); m = act([x, r h] W_c + b_c) (Fluid's ``contrib.layers.BasicGRUUnit``). The operators
    are those of :class:`fluidlite.layers.GRUCell`.

    Parameters
    ----------
    name_scope : str
        In the names of the parameters.
    hidden_size : int
    param_attr, bias_attr : ParamAttr, optional
        Of the gates, [width + hidden_size, 2 hidden_size], and of the candidate, [width + hidden_size, hidden_size]; a
        name gets ``_gate`` and ``_candidate`` behind it.
    gate_activation, activation : callable, optional
        Layers; default ``sigmoid`` and ``tanh``.
    dtype : dtype
    """

    def __init__(
        self,
        name_scope: str,
        hidden_size: int,
        param_attr: Any = None,
        bias_attr: Any = None,
        gate_activation: Any = None,
        activation: Any = None,
        dtype: Any = "float32",
    ) -> None:
        self._cell = layers.GRUCell(hidden_size, param_attr, bias_attr, gate_activation, activation, dtype, name_scope)

    def __call__(self, input: Variable, pre_hidden: Variable) -> Variable:
        """[rows, width] and [rows, hidden_size]; return the new hidden state."""
        return self.forward(input, pre_hidden)

    def forward(self, input: Variable, pre_hidden: Variable) -> Variable:
        """As a call."""
        new: Variable = self._cell(input, pre_hidden)[0]
        return new


class BasicLSTMUnit:
    """One step of an LSTM: c' = c gate(f + forget_bias) + gate(i) act(j), h' = act(c') gate(o).

    i, j, f, o = [x, h] W + b (Fluid's ``contrib.layers.BasicLSTMUnit``). The operators are those of
    :class:`fluidlite.layers.LSTMCell`.

    Parameters
    ----------
    name_scope : str
        In the names of the parameters.
    hidden_size : int
    param_attr, bias_attr : ParamAttr, optional
        Of the gates, [width + hidden_size, 4 hidden_size] and [4 hidden_size].
    gate_activation, activation : callable, optional
        Layers; default ``sigmoid`` and ``tanh``.
    forget_bias : float
    dtype : dtype
    """

    def __init__(
        self,
        name_scope: str,
        hidden_size: int,
        param_attr: Any = None,
        bias_attr: Any = None,
        gate_activation: Any = None,
        activation: Any = None,
        forget_bias: float = 1.0,
        dtype: Any = "float32",
    ) -> None:
        self._cell = layers.LSTMCell(
            hidden_size, param_attr, bias_attr, gate_activation, activation, forget_bias, dtype, name_scope
        )

    def __call__(self, input: Variable, pre_hidden: Variable, pre_cell: Variable) -> tuple[Variable, Variable]:
        """[rows, width], and states [rows, hidden_size]; return the new hidden state and the new cell."""
        return self.forward(input, pre_hidden, pre_cell)

    def forward(self, input: Variable, pre_hidden: Variable, pre_cell: Variable) -> tuple[Variable, Variable]:
        """As a call."""
        _, (hidden, cell) = self._cell(input, [pre_hidden, pre_cell])
        return hidden, cell


def basic_gru(
    input: Variable,
    init_hidden: Variable | None,
    hidden_size: int,
    num_layers: int = 1,
    sequence_length: Variable | None = None,
    dropout_prob: float = 0.0,
    bidirectional: bool = False,
    batch_first: bool = True,
    param_attr: Any = None,
    bias_attr: Any = None,
    gate_activation: Any = None,
    activation: Any = None,
    dtype: Any = "float32",
    name: str = "basic_gru",
) -> tuple[Variable, Variable]:
    """Return the hidden states of layers of GRUs over a padded batch, and the last ones of each layer.

    Parameters
    ----------
    input : Variable
        [batch, steps, width], or [steps, batch, width] if not ``batch_first``.
    init_hidden : Variable, optional
        [layers, batch, hidden_size], both ways [2 layers, batch, hidden_size]: the two of a layer beside each other.
        None: zeros.
    hidden_size, num_layers : int
    sequence_length : Variable, optional
        Integers, [batch]: from there on states stay as they are.
    dropout_prob : float
        Of the results of each layer, the last one too, as in Fluid; states are not dropped.
    bidirectional : bool
        A second stack of layers runs from the last step to the first; results lie side by side.
    batch_first : bool
    param_attr, bias_attr : ParamAttr, optional
        As of :class:`BasicGRUUnit`; a name gets ``_fw_w_0`` (or ``_bw_b_1``) behind it: direction, weight or bias,
        layer.
    gate_activation, activation : callable, optional
    dtype : dtype
    name : str

    Returns
    -------
    (Variable, Variable)
        ``rnn_out``, laid out as ``input``, of ``hidden_size`` (both ways 2 ``hidden_size``) numbers a step;
        ``last_hidden``, as ``init_hidden``.
    """

    def unit(scope: str, weight: Any, bias: Any) -> BasicGRUUnit:
        return BasicGRUUnit(scope, hidden_size, weight, bias, gate_activation, activation, dtype)

    units = _units(unit, name, num_layers, bidirectional, param_attr, bias_attr)
    out, (hidden,) = _layers(
        input, {"init_hidden": init_hidden}, hidden_size, units, sequence_length, dropout_prob, batch_first, dtype
    )
    return out, hidden


def basic_lstm(
    input: Variable,
    init_hidden: Variable | None,
    init_cell: Variable | None,
    hidden_size: int,
    num_layers: int = 1,
    sequence_length: Variable | None = None,
    dropout_prob: float = 0.0,
    bidirectional: bool = False,
    batch_first: bool = True,
    param_attr: Any = None,
    bias_attr: Any = None,
    gate_activation: Any = None,
    activation: Any = None,
    forget_bias: float = 1.0,
    dtype: Any = "float32",
    name: str = "basic_lstm",
) -> tuple[Variable, Variable, Variable]:
    """Return the hidden states of layers of LSTMs over a padded batch, and the last states and cells of each layer.

    Parameters
    ----------
    init_hidden, init_cell : Variable, optional
        Both of the dims of ``init_hidden`` of :func:`basic_gru`; None: zeros.
    param_attr, bias_attr : ParamAttr, optional
        As of :class:`BasicLSTMUnit`, under names as of :func:`basic_gru`.
    forget_bias : float
    input, hidden_size, num_layers, sequence_length, dropout_prob, bidirectional, batch_first
        As of :func:`basic_gru`.
    gate_activation, activation, dtype, name
        As of :func:`basic_gru`.

    Returns
    -------
    (Variable, Variable, Variable)
        ``rnn_out``, laid out as ``input``, of ``hidden_size`` (both ways 2 ``hidden_size``) numbers a step;
        ``last_hidden`` and ``last_cell``, as ``init_hidden``.
    """
    bias_of_forget = check_float("forget_bias", forget_bias)

    def unit(scope: str, weight: Any, bias: Any) -> BasicLSTMUnit:
        return BasicLSTMUnit(scope, hidden_size, weight, bias, gate_activation, activation, bias_of_forget, dtype)

    units = _units(unit, name, num_layers, bidirectional, param_attr, bias_attr)
    first = {"init_hidden": init_hidden, "init_cell": init_cell}
    out, (hidden, cell) = _layers(input, first, hidden_size, units, sequence_length, dropout_prob, batch_first, dtype)
    return out, hidden, cell


def _units(
    unit: Callable[[str, Any, Any], Any], name: str, num_layers: int, bidirectional: bool, weight: Any, bias: Any
) -> list[list[Any]]:
    """A unit for each layer, of each direction."""
    count = check_int("num_layers", num_layers, minimum=1)
    directions = (("", "fw"), ("reverse_", "bw"))[: 2 if bidirectional else 1]
    return [
        [
            unit(f"{name}_{turned}layers_{i}", renamed(weight, f"_{way}_w_{i}"), renamed(bias, f"_{way}_b_{i}"))
            for i in range(count)
        ]
        for turned, way in directions
    ]


def _layers(
    input: Variable,
    first: dict[str, Variable | None],
    hidden_size: int,
    units: Sequence[Sequence[Any]],
    sequence_length: Variable | None,
    dropout_prob: float,
    batch_first: bool,
    dtype: Any,
) -> tuple[Variable, list[Variable]]:
    """The results of all steps, and the last states of all layers and directions."""
    check_int("hidden_size", hidden_size, minimum=1)
    if len(check_variable("input", input).shape) != 3:
        refuse("input", input, "[batch, steps, width], or [steps, batch, width] with batch_first=False")
    rate = check_float("dropout_prob", 0.0 if dropout_prob is None else dropout_prob)
    if not 0 <= rate <= 1:
        refuse("dropout_prob", dropout_prob, "a number from 0 to 1")
    given = [name for name, value in first.items() if value is not None]
    if given and len(given) < len(first):
        (left,) = (name for name in first if name not in given)
        refuse(left, None, f"a Variable, as {given[0]} is one; or None for both")
    count, ways = len(units[0]), len(units)
    begun: list[Variable] = []
    for name in given:
        value = check_variable(name, first[name])
        if len(value.shape) != 3 or value.shape[0] not in (-1, count * ways) or value.shape[2] not in (-1, hidden_size):
            refuse(name, value, f"[{count * ways}, batch, {hidden_size}]")
        begun.append(value)
    x = layers.transpose(input, [1, 0, 2]) if batch_first else input
    mask = None
    if sequence_length is not None:
        if len(check_variable("sequence_length", sequence_length).shape) != 1:
            refuse("sequence_length", sequence_length, "[batch]")
        mask = steps_there(x, sequence_length, dtype)
    outs, lasts = [], []
    for way, mine in enumerate(units):
        turned = [each if each is None or not way else layers.reverse(each, axis=0) for each in (x, mask)]
        states = [[row(each, i * ways + way) for each in begun] for i in range(count)]
        out, last = _one_way(turned, mine, states or [[]] * count, len(first), hidden_size, rate)
        outs.append(layers.reverse(out, axis=0) if way else out)
        lasts.append(last)
    made = layers.concat(outs, axis=2) if ways > 1 else outs[0]
    ends = [
        layers.stack([lasts[way][i][k] for i in range(count) for way in range(ways)], axis=0) for k in range(len(first))
    ]
    return layers.transpose(made, [1, 0, 2]) if batch_first else made, ends


def _one_way(
    read: Sequence[Variable | None],
    units: Sequence[Any],
    begun: Sequence[Sequence[Variable]],
    states: int,
    hidden_size: int,
    rate: float,
) -> tuple[Variable, list[list[Variable]]]:
    """The layers of one direction, step by step: results of all steps, and the last states of each layer."""
    x, mask = read
    assert x is not None
    rnn = StaticRNN()
    with rnn.step():
        now = first_read = rnn.step_input(x)
        there = None if mask is None else rnn.step_input(mask)
        for unit, first in zip(units, begun, strict=True):
            before = [rnn.memory(init=each) for each in first] or [
                rnn.memory(batch_ref=first_read, shape=[-1, hidden_size], ref_batch_dim_idx=1) for _ in range(states)
            ]
            made = unit(now, *before)
            after = made if isinstance(made, tuple) else (made,)
            if there is not None:
                after = tuple(kept(old, new, there) for old, new in zip(before, after, strict=True))
            for old, new in zip(before, after, strict=True):
                rnn.update_memory(old, new)
                rnn.step_output(new)
            now = layers.dropout(after[0], dropout_prob=rate) if rate else after[0]
        rnn.step_output(now)
    made = rnn()
    assert isinstance(made, list)
    last = [row(each, -1) for each in made[:-1]]
    return made[-1], [last[i : i + states] for i in range(0, len(last), states)]
