"""cudnn_lstm: stacked, optionally bidirectional LSTMs over sequences of equal length, on any place."""

from __future__ import annotations

from typing import Any

from fluidlite import expr as e
from fluidlite.expr.declare import operator
from fluidlite.operators.inference import Inferred
from fluidlite.operators.lstm_step import lstm_step
from fluidlite.operators.recurrent_common import FLOATS, need_dims
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Differentiation, Execution, Inference
from fluidlite.tensor.tensor_spec import Spec


def weight_size(input_size: int, hidden_size: int, num_layers: int, directions: int) -> int:
    """Number of elements of W: two weights and two biases for each layer and direction."""
    widths = [input_size, *[hidden_size * directions] * (num_layers - 1)]
    return sum(directions * 4 * hidden_size * (width + hidden_size + 2) for width in widths)


def _infer(call: Call) -> Inferred:
    x, hidden, layers = call.spec("Input"), call.attr("hidden_size"), call.attr("num_layers")
    call.need(x.rank == 3, "Input", "[steps, batch, width]")
    steps, batch, width = x.dims
    directions = 2 if call.attr("is_bidirec") else 1
    if call.attr("input_size") and 0 <= width != call.attr("input_size"):
        call.fail_attr("input_size", f"{width}, the width of Input")
    if call.has("InitH") != call.has("InitC"):
        call.fail("InitC" if call.has("InitH") else "InitH", "InitH and InitC, or none of them")
    state = (layers * directions, batch, hidden)
    for slot in ("InitH", "InitC"):
        need_dims(call, slot, state, "a first state for each layer, direction and sequence")
    if width >= 0:
        need_dims(call, "W", (weight_size(width, hidden, layers, directions),), "the weights and biases of all layers")
    rows = steps * batch if steps >= 0 and batch >= 0 else -1
    reserve_dims = [(rows, n * hidden) for _ in range(layers * directions) for n in (4, 1, 1)]
    reserve_dims += [(rows, hidden * directions)] * (layers - 1)
    return {
        "Out": Spec.of((steps, batch, hidden * directions), x.dtype),
        "last_h": Spec.of(state, x.dtype),
        "last_c": Spec.of(state, x.dtype),
        "Reserve": [Spec.of(dims, x.dtype) for dims in reserve_dims],
    }


_ATTRS = (
    Attr("max_len", "int", 20, minimum=0, doc="the steps are those of Input: of no effect"),
    Attr("input_size", "int", 0, minimum=0, doc="the width of Input; 0: any"),
    Attr("hidden_size", "int", 100, minimum=1, doc="units of a cell"),
    Attr("num_layers", "int", 1, minimum=1, maximum=1000, doc="LSTMs, each on the results of the previous one"),
    Attr("is_bidirec", "bool", False, doc="each layer runs in both directions; their results are concatenated"),
    Attr(
        "dropout_prob",
        "float",
        0.0,
        minimum=0.0,
        maximum=1.0,
        doc="of the results of all layers except the last; other elements are divided by 1 - dropout_prob",
    ),
    Attr("is_test", "bool", False, doc="nothing is dropped"),
    Attr("fix_seed", "bool", False, doc="use seed, so that every run drops the same elements"),
    Attr("seed", "int", 0, doc="0: the program's seed; else this operator's own"),
)
_INPUTS = ("Input", "InitH", "InitC", "W")
_ORDER = (2, 0, 1, 3)
"""Positions of the candidate, input, forget and output gate in W."""


def reserve_count(num_layers: int, directions: int) -> int:
    """Number of tensors in Reserve."""
    return 3 * num_layers * directions + num_layers - 1


@operator(
    "cudnn_lstm",
    Differentiation(
        reads=(*_INPUTS, "Reserve"),
        dispensable=("Out@GRAD", "last_h@GRAD", "last_c@GRAD", "Reserve@GRAD"),
        doc="back through layers and steps",
    ),
    Inference(_infer),
    Execution(random=True),
    inputs=[
        Slot("Input", doc="[steps, batch, width]"),
        Slot(
            "InitH",
            dispensable=True,
            doc="hidden states before the first step, [layers x directions, batch, "
            "hidden_size]: the directions of a layer are adjacent; none: 0",
        ),
        Slot("InitC", dispensable=True, doc="cells before the first step, as InitH"),
        Slot(
            "W",
            doc="first, for each layer and direction, the weight of its input, [4 hidden_size, width], and of "
            "its state, [4 hidden_size, hidden_size]; then for each two biases, [4 hidden_size]. Gates: input, "
            "forget, candidate, output",
        ),
    ],
    outputs=[
        Slot("Out", doc="hidden states of the last layer, [steps, batch, hidden_size x directions]"),
        Slot("last_h", doc="hidden states after the last step, as InitH"),
        Slot("last_c", doc="cells after the last step, as InitH"),
        Slot(
            "Reserve",
            duplicable=True,
            intermediate=True,
            content="of each layer and direction the gates (candidate, "
            "input, forget, output), activated, the cells and the hidden states, a row for each step and sequence; "
            "then for each layer except the last the dropout factors of its result",
        ),
    ],
    attrs=_ATTRS,
    dtypes=dict.fromkeys(_INPUTS, FLOATS),
    doc="layers of lstm without peepholes, each over the hidden states of the previous layer",
    source="Fluid cudnn_lstm_op.cc; the order of W is cuDNN's",
)
def cudnn_lstm(
    input: Any,
    init_h: Any,
    init_c: Any,
    w: Any,
    *,
    hidden_size: int,
    num_layers: int,
    is_bidirec: bool,
    dropout_prob: Any,
    is_test: bool,
) -> Any:
    """For each layer one matmul of the inputs of all steps, then a scan in each direction."""
    steps, batch, width = input.dims
    directions, count = (2 if is_bidirec else 1), num_layers * (2 if is_bidirec else 1)
    layer_input, rows, at = e.reshape(input, (steps * batch, width)), steps * batch, e.number(0)
    biases = e.reshape(
        e.slice_axis(w, 0, w.dims[0] - count * 8 * hidden_size, count * 8 * hidden_size), (count, 2, 4 * hidden_size)
    )
    reserve: list[Any] = []
    final_states: tuple[list[Any], list[Any]] = ([], [])
    factors = _factors(rows, num_layers, hidden_size * directions, dropout_prob, is_test, w.dtype)
    for number in range(count):
        if number % directions == 0:
            layer_outputs: list[Any] = []
        size = 4 * hidden_size * layer_input.dims[1]
        input_weight = e.reshape(e.slice_axis(w, 0, at, size), (4 * hidden_size, layer_input.dims[1]))
        state_weight = e.reshape(e.slice_axis(w, 0, at + size, 4 * hidden_size**2), (4 * hidden_size, hidden_size))
        at = at + size + 4 * hidden_size**2
        initial = [
            e.full((batch, hidden_size), 0, w.dtype)
            if x is None
            else e.reshape(e.slice_axis(x, 0, number, 1), (batch, hidden_size))
            for x in (init_h, init_c)
        ]
        bias = e.reduce_sum(e.reshape(e.slice_axis(biases, 0, number, 1), (2, 4 * hidden_size)), 0, keep=True)
        gates = e.contract(layer_input, input_weight, "ij,kj->ik")
        backward = number % directions == 1
        hidden, cell, activated = e.steps(
            lstm_step, initial, [gates], [e.transpose(state_weight), bias], backward=backward, order=_ORDER
        )
        layer_outputs.append(hidden)
        reserve += [activated, cell, hidden]
        for states, x, begin in zip(final_states, (hidden, cell), initial, strict=True):
            states.append(_final_state(x, begin, steps, backward))
        if number % directions == directions - 1:
            layer_input = e.concat(layer_outputs, 1) if directions > 1 else hidden
            if number < count - 1 and not (is_test or dropout_prob == 0):
                layer_input = layer_input * factors[number // directions]
    out = e.reshape(layer_input, (steps, batch, hidden_size * directions))
    stacked = [e.concat([e.reshape(x, (1, batch, hidden_size)) for x in states], 0) for states in final_states]
    return out, *stacked, (*reserve, *factors)


def _final_state(x: Any, initial: Any, steps: Any, backward: bool) -> Any:
    """The state after the last step; without steps the first one."""
    batch = initial.dims[0]
    if steps == 0:
        return initial
    return e.slice_axis(x, 0, 0 if backward else x.dims[0] - batch, batch)


def _factors(rows: Any, num_layers: int, width: int, dropout_prob: Any, is_test: bool, dtype: str) -> list[Any]:
    """The dropout factors of the output of each layer except the last."""
    if num_layers == 1:
        return []
    if is_test or dropout_prob == 0:
        return [e.full((rows, width), 1, dtype)] * (num_layers - 1)
    numbers = e.random_uniform((num_layers - 1, rows, width))
    scale = 1 / (1 - dropout_prob) if dropout_prob < 1 else 0
    scales = e.where(numbers >= dropout_prob, e.full(numbers.dims, scale, dtype), 0)
    return [e.reshape(e.slice_axis(scales, 0, k, 1), (rows, width)) for k in range(num_layers - 1)]
