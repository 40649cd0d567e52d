"""Recurrent layers: LSTMs and GRUs over sequences, over padded batches, and one step of each."""

from __future__ import annotations

from typing import Any

from fluidlite.layer_helper import check_variable, refuse
from fluidlite.layers.declare import Bias, Names, VariableList, Weight, also, layer
from fluidlite.layers.nn import fc
from fluidlite.layers.tensor import concat
from fluidlite.operators.cudnn_lstm import reserve_count, weight_size
from fluidlite.param_attr import ParamAttr
from fluidlite.program.opdef import Attr
from fluidlite.program.variable import Variable

_ACTIVATION_NUMBERS = {"identity": 0, "sigmoid": 1, "tanh": 2, "relu": 3}

_SIZE_NAMES: Names = {"size": Attr("size", "int", minimum=1)}
_PROJECTION_ATTR = Attr("proj_size", "int", minimum=1, doc="the width of the projection")


def _activation_attr(doc: str) -> Attr:
    """The attribute of an activation name, which becomes a number for the operator."""
    return Attr("activation", "str", choices=tuple(_ACTIVATION_NUMBERS), doc=doc)


def _units(size: Any, gates: int) -> int:
    if size % gates:
        refuse("size", size, f"a multiple of {gates}: {gates} gates of as many units each")
    units: int = size // gates
    return units


@layer("lstm", {**_SIZE_NAMES, "dtype": ""}, called="lstm", stop_gradient=())
def dynamic_lstm(
    input: Variable,
    size: int,
    h_0: Variable | None = None,
    c_0: Variable | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_peepholes: bool = True,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    candidate_activation: str = "tanh",
    dtype: Any = "float32",
    name: str | None = None,
) -> tuple[Variable, Variable]:
    """Return the hidden states and the cells of an LSTM over the sequences of a LoD tensor.

    size: 4 times the units of a cell
    param_attr: Of the weight from state to gates, [units, 4 units]
    bias_attr: Of the bias, [1, 4 units], or with peepholes [1, 7 units]
    use_peepholes: The input and the forget gate read the previous cell, the output gate reads the new one
    dtype: Of the parameters: the dtype of ``input``
    Returns: Hidden states and cells, [steps of all sequences, units], with the sequences of ``input``

    >>> [each.shape for each in dynamic_lstm(data("input", [-1, 4], lod_level=1), 4)]
    [(-1, 1), (-1, 1)]
    """
    units = _units(size, 4)
    bias = Bias([1, (7 if use_peepholes else 4) * units], dtype, True)
    return also(Weight=Weight([units, 4 * units], dtype=dtype), Bias=bias)


@layer("lstmp", {**_SIZE_NAMES, "proj_size": _PROJECTION_ATTR, "dtype": ""}, called="lstmp", stop_gradient=())
def dynamic_lstmp(
    input: Variable,
    size: int,
    proj_size: int,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_peepholes: bool = True,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    candidate_activation: str = "tanh",
    proj_activation: str = "tanh",
    dtype: Any = "float32",
    name: str | None = None,
    h_0: Variable | None = None,
    c_0: Variable | None = None,
    cell_clip: float | None = None,
    proj_clip: float | None = None,
) -> tuple[Variable, Variable]:
    """Return the projected states and the cells of an LSTM whose gates read a projection of its hidden state.

    size: 4 times the units of a cell
    param_attr: Of both weights, [proj_size, 4 units] and [units, proj_size]; a list of two to name them
    bias_attr, dtype: As for ``dynamic_lstm``
    Returns: [steps of all sequences, proj_size] and [steps of all sequences, units]

    >>> [each.shape for each in dynamic_lstmp(data("input", [-1, 4], lod_level=1), 4, 2)]
    [(-1, 2), (-1, 1)]
    """
    units, attrs = _units(size, 4), ParamAttr.to_attr(param_attr)
    if isinstance(attrs, list) and len(attrs) != 2:
        refuse("param_attr", param_attr, "one ParamAttr, or one for each of the two weights")
    if not isinstance(attrs, (list, bool)) and attrs is not None and attrs.name is not None:
        refuse("param_attr", param_attr, "a list of two: one name is for one parameter")
    first, second = attrs if isinstance(attrs, list) else (attrs, attrs)
    return also(
        Weight=Weight([proj_size, 4 * units], dtype=dtype, attr=first),
        ProjWeight=Weight([units, proj_size], dtype=dtype, attr=second),
        Bias=Bias([1, (7 if use_peepholes else 4) * units], dtype, True),
    )


@layer("gru", {**_SIZE_NAMES, "candidate_activation": "activation"}, called="gru", stop_gradient=())
def dynamic_gru(
    input: Variable,
    size: int,
    param_attr: Any = None,
    bias_attr: Any = None,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    candidate_activation: str = "tanh",
    h_0: Variable | None = None,
    origin_mode: bool = False,
) -> Variable:
    """Return the hidden states of a GRU over the sequences of a LoD tensor.

    size: Units
    param_attr: Of the weight, [size, 3 size]; in memory first the weight of update and reset, [size, 2 size], then
        the candidate's
    bias_attr: Of the bias, [1, 3 size]; False: none
    Returns: [steps of all sequences, size], with the sequences of ``input``

    >>> dynamic_gru(data("input", [-1, 3], lod_level=1), 1).shape
    (-1, 1)
    """
    return also(Weight=Weight([size, 3 * size]), Bias=Bias([1, 3 * size]))


@layer(
    "gru_unit",
    {
        **_SIZE_NAMES,
        "hidden": "HiddenPrev",
        "activation": _activation_attr("of the candidate"),
        "gate_activation": _activation_attr("of the gates"),
    },
    returns=("Hidden", "ResetHiddenPrev", "Gate"),
    stop_gradient=(),
)
def gru_unit(
    input: Variable,
    hidden: Variable,
    size: int,
    param_attr: Any = None,
    bias_attr: Any = None,
    activation: str = "tanh",
    gate_activation: str = "sigmoid",
    origin_mode: bool = False,
) -> tuple[Variable, Variable, Variable]:
    """Return the new state, the old one times the reset gate, and the gates, of one step of a GRU.

    hidden: [rows, units]: the previous state
    size: 3 times the units
    param_attr, bias_attr: As for ``dynamic_gru``
    Returns: [rows, units], [rows, units], [rows, 3 units]

    >>> [each.shape for each in gru_unit(data("input", [-1, 3], lod_level=1), data("hidden", [2, 1]), 3)]
    [(-1, 1), (-1, 1), (-1, 3)]
    """
    units = _units(size, 3)
    return also(
        Weight=Weight([units, 3 * units]),
        Bias=Bias([1, 3 * units]),
        activation=_ACTIVATION_NUMBERS[activation],
        gate_activation=_ACTIVATION_NUMBERS[gate_activation],
    )


@layer(
    "lstm_unit",
    {"x_t": "", "hidden_t_prev": "", "cell_t_prev": "C_prev"},
    returns=("H", "C"),
    stop_gradient=(),
)
def lstm_unit(
    x_t: Variable,
    hidden_t_prev: Variable,
    cell_t_prev: Variable,
    forget_bias: float = 0.0,
    param_attr: Any = None,
    bias_attr: Any = None,
    name: str | None = None,
) -> tuple[Variable, Variable]:
    """Return the new state and the new cell of one step of an LSTM, the product with its weight included.

    x_t: [rows, width]: the input of the step
    hidden_t_prev, cell_t_prev: [rows, units]: the previous state and cell
    param_attr: Of the weight, [width + units, 4 units]: input, forget and output gate, candidate
    bias_attr: Of the bias, [4 units]; False: none
    Returns: Both [rows, units]

    >>> x_t = data("x_t", [2, 4])
    >>> hidden_t_prev = data("hidden_t_prev", [2, 4])
    >>> cell_t_prev = data("cell_t_prev", [2, 4])
    >>> [each.shape for each in lstm_unit(x_t, hidden_t_prev, cell_t_prev)]
    [(2, 4), (2, 4)]
    """
    for argument, value in (("x_t", x_t), ("hidden_t_prev", hidden_t_prev), ("cell_t_prev", cell_t_prev)):
        if len(check_variable(argument, value).shape) != 2:
            refuse(argument, value, "a rank of 2")
    units = cell_t_prev.shape[1]
    if units < 1:
        refuse("cell_t_prev", cell_t_prev, "[rows, units] with a known number of units")
    return also(X=fc(concat([x_t, hidden_t_prev], axis=1), 4 * units, param_attr=param_attr, bias_attr=bias_attr))


@layer("cudnn_lstm", {"default_initializer": ""}, called="cudnn_lstm", stop_gradient=())
def lstm(
    input: Variable,
    init_h: Variable,
    init_c: Variable,
    max_len: int,
    hidden_size: int,
    num_layers: int,
    dropout_prob: float = 0.0,
    is_bidirec: bool = False,
    is_test: bool = False,
    name: str | None = None,
    default_initializer: Any = None,
    seed: int = -1,
) -> tuple[Variable, Variable, Variable]:
    """Return the hidden states of layers of LSTMs over sequences of one length, and their last states and cells.

    default_initializer: Of all weights and biases, which are one parameter; default Xavier

    >>> input = data("input", [2, 3, 4])
    >>> init_h = data("init_h", [2, 3, 4])
    >>> init_c = data("init_c", [2, 3, 4])
    >>> [each.shape for each in lstm(input, init_h, init_c, 2, 4, 1, is_bidirec=True)]
    [(2, 3, 8), (2, 3, 4), (2, 3, 4)]
    """
    if len(input.shape) != 3 or input.shape[2] < 1:
        refuse("input", input, "[steps, batch, width] with a known width")
    width, directions = input.shape[2], 2 if is_bidirec else 1
    weight = Weight([weight_size(width, hidden_size, num_layers, directions)], default_initializer, attr=ParamAttr())
    reserve = VariableList("num_layers", reserve_count(num_layers, directions))
    return also(W=weight, Reserve=reserve, input_size=width, fix_seed=seed > 0, seed=max(seed, 0))
