"""LSTM and GRU layers over padded batches, uni- or bidirectional, with any layers as activations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fluidlite import layers
from fluidlite.layer_helper import check_float, check_int, check_variable, refuse
from fluidlite.layers.rnn import RNNCell, index_first_dim, run_steps, with_name_suffix
from fluidlite.layers.utils import flatten
from fluidlite.program.variable import Variable

__all__ = ["BasicGRUUnit", "BasicLSTMUnit", "basic_gru", "basic_lstm"]


class BasicGRUUnit:
    """One step of a GRU: u h + (1 - u) m, of a new candidate m and the update u.

    u, r = gate([x, h] W_g + b_g); m = act([x, r h] W_c + b_c) (Fluid's ``contrib.layers.BasicGRUUnit``). The operators
    are those of :class:`fluidlite.layers.GRUCell`.

    Parameters
    ----------
    name_scope : str
        Prefix of the parameters' names.
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
        """The same as a call."""
        new: Variable = self._cell(input, pre_hidden)[0]
        return new


class BasicLSTMUnit:
    """One step of an LSTM: c' = c gate(f + forget_bias) + gate(i) act(j), h' = act(c') gate(o).

    i, j, f, o = [x, h] W + b (Fluid's ``contrib.layers.BasicLSTMUnit``). The operators are those of
    :class:`fluidlite.layers.LSTMCell`.

    Parameters
    ----------
    name_scope : str
        Prefix of the parameters' names.
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
        """The same as a call."""
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
    """Return the hidden states of stacked GRU layers over a padded batch, and the last states of each layer.

    Parameters
    ----------
    input : Variable
        [batch, steps, width], or [steps, batch, width] if not ``batch_first``.
    init_hidden : Variable, optional
        [layers, batch, hidden_size], both ways [2 layers, batch, hidden_size]: the two of a layer beside each other.
        None: zeros.
    hidden_size, num_layers : int
    sequence_length : Variable, optional
        Integers, [batch]: states do not change after this length.
    dropout_prob : float
        Probability of dropout of each layer's results, including the last layer's, as in Fluid; not of states.
    bidirectional : bool
        A second stack of layers runs from the last step to the first; results are concatenated.
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

    def cell(scope: str, weight: Any, bias: Any) -> RNNCell:
        return layers.GRUCell(hidden_size, weight, bias, gate_activation, activation, dtype, scope)

    cells = _cells(cell, name, num_layers, bidirectional, param_attr, bias_attr)
    out, (hidden,) = _layers(
        input, {"init_hidden": init_hidden}, hidden_size, cells, sequence_length, dropout_prob, batch_first
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
    """Return the hidden states of stacked LSTM layers over a padded batch, and each layer's last states and cells.

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

    def cell(scope: str, weight: Any, bias: Any) -> RNNCell:
        return layers.LSTMCell(hidden_size, weight, bias, gate_activation, activation, bias_of_forget, dtype, scope)

    cells = _cells(cell, name, num_layers, bidirectional, param_attr, bias_attr)
    first = {"init_hidden": init_hidden, "init_cell": init_cell}
    out, ends = _layers(input, first, hidden_size, cells, sequence_length, dropout_prob, batch_first)
    return out, ends[0], ends[1]


def _cells(
    cell: Callable[[str, Any, Any], RNNCell], name: str, num_layers: int, bidirectional: bool, weight: Any, bias: Any
) -> list[list[RNNCell]]:
    """Create a cell for each layer and direction."""
    count = check_int("num_layers", num_layers, minimum=1)
    directions = (("", "fw"), ("reverse_", "bw"))[: 2 if bidirectional else 1]
    return [
        [
            cell(
                f"{name}_{turned}layers_{i}",
                with_name_suffix(weight, f"_{way}_w_{i}"),
                with_name_suffix(bias, f"_{way}_b_{i}"),
            )
            for i in range(count)
        ]
        for turned, way in directions
    ]


def _layers(
    input: Variable,
    first: dict[str, Variable | None],
    hidden_size: int,
    cells: Sequence[Sequence[RNNCell]],
    sequence_length: Variable | None,
    dropout_prob: float,
    batch_first: bool,
) -> tuple[Variable, list[Variable]]:
    """Run all layers; return the results of all steps, and the last states of all layers and directions."""
    check_int("hidden_size", hidden_size, minimum=1)
    if len(check_variable("input", input).shape) != 3:
        refuse("input", input, "[batch, steps, width], or [steps, batch, width] with batch_first=False")
    rate = check_float("dropout_prob", 0.0 if dropout_prob is None else dropout_prob)
    if not 0 <= rate <= 1:
        refuse("dropout_prob", dropout_prob, "a number from 0 to 1")
    names = [name for name, value in first.items() if value is not None]
    if names and len(names) < len(first):
        (missing,) = (name for name in first if name not in names)
        refuse(missing, None, f"a Variable, as {names[0]} is one; or None for both")
    count, ways = len(cells[0]), len(cells)
    initial_states: list[Variable] = []
    for name in names:
        value = check_variable(name, first[name])
        if len(value.shape) != 3 or value.shape[0] not in (-1, count * ways) or value.shape[2] not in (-1, hidden_size):
            refuse(name, value, f"[{count * ways}, batch, {hidden_size}]")
        initial_states.append(value)
    x = layers.transpose(input, [1, 0, 2]) if batch_first else input
    if sequence_length is not None and len(check_variable("sequence_length", sequence_length).shape) != 1:
        refuse("sequence_length", sequence_length, "[batch]")
    outs, final_states = [], []
    for way, direction_cells in enumerate(cells):
        current = x
        for i, cell in enumerate(direction_cells):
            states: Any = [index_first_dim(each, i * ways + way) for each in initial_states] or cell.get_initial_states(
                x, batch_dim_idx=1
            )
            states = states[0] if len(initial_states) == 1 else states
            _, results = run_steps(_without_output(cell), current, states, sequence_length, is_reverse=bool(way))
            steps = flatten(results)
            current = layers.reverse(steps[0], axis=0) if way else steps[0]
            current = layers.dropout(current, dropout_prob=rate) if rate else current
            final_states.append([index_first_dim(each, -1) for each in steps])
        outs.append(current)
    output = layers.concat(outs, axis=2) if ways > 1 else outs[0]
    order = [final_states[way * count + i] for i in range(count) for way in range(ways)]
    last_states = [layers.stack(list(each), axis=0) for each in zip(*order, strict=True)]
    return layers.transpose(output, [1, 0, 2]) if batch_first else output, last_states


def _without_output(cell: RNNCell) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Return a step function of a cell that returns only its states."""
    return lambda inputs, states: ([], cell(inputs, states)[1])
