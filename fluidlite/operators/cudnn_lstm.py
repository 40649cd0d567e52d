"""cudnn_lstm: layers of LSTMs over sequences of one length, in one or both directions, on any place."""

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
    """How many numbers W holds: of each layer and direction two weights and two biases."""
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
    kept = [(rows, n * hidden) for _ in range(layers * directions) for n in (4, 1, 1)]
    kept += [(rows, hidden * directions)] * (layers - 1)
    return {
        "Out": Spec.of((steps, batch, hidden * directions), x.dtype),
        "last_h": Spec.of(state, x.dtype),
        "last_c": Spec.of(state, x.dtype),
        "Reserve": [Spec.of(dims, x.dtype) for dims in kept],
    }


_ATTRS = (
    Attr("max_len", "int", 20, minimum=0, doc="the steps are those of Input: of no effect"),
    Attr("input_size", "int", 0, minimum=0, doc="the width of Input; 0: whatever it is"),
    Attr("hidden_size", "int", 100, minimum=1, doc="units of a cell"),
    Attr("num_layers", "int", 1, minimum=1, maximum=1000, doc="LSTMs, each on the results of the one before"),
    Attr("is_bidirec", "bool", False, doc="each layer runs from both ends; both results lie side by side"),
    Attr(
        "dropout_prob",
        "float",
        0.0,
        minimum=0.0,
        maximum=1.0,
        doc="of the results of all layers but the last; kept elements are divided by 1 - dropout_prob",
    ),
    Attr("is_test", "bool", False, doc="nothing is dropped"),
    Attr("fix_seed", "bool", False, doc="use seed, so that every run drops the same elements"),
    Attr("seed", "int", 0, doc="0: the program's seed; else this operator's own"),
)
_INPUTS = ("Input", "InitH", "InitC", "W")
_ORDER = (2, 0, 1, 3)
"""Where candidate, input, forget and output gate are in W."""


def reserved(num_layers: int, directions: int) -> int:
    """How many tensors Reserve has."""
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
            "hidden_size]: the directions of a layer beside each other; none: 0",
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
            "then of each layer but the last what its result was multiplied with by dropout",
        ),
    ],
    attrs=_ATTRS,
    dtypes=dict.fromkeys(_INPUTS, FLOATS),
    doc="layers of lstm without peepholes, each over the hidden states of the one below",
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
    """One product for the inputs of all steps of a layer, then a scan in each direction."""
    steps, batch, width = input.dims
    ways, count = (2 if is_bidirec else 1), num_layers * (2 if is_bidirec else 1)
    below, rows, at = e.reshape(input, (steps * batch, width)), steps * batch, e.number(0)
    biases = e.reshape(
        e.slice_axis(w, 0, w.dims[0] - count * 8 * hidden_size, count * 8 * hidden_size), (count, 2, 4 * hidden_size)
    )
    kept: list[Any] = []
    last: tuple[list[Any], list[Any]] = ([], [])
    factors = _factors(rows, num_layers, hidden_size * ways, dropout_prob, is_test, w.dtype)
    for number in range(count):
        if number % ways == 0:
            made: list[Any] = []
        size = 4 * hidden_size * below.dims[1]
        of_input = e.reshape(e.slice_axis(w, 0, at, size), (4 * hidden_size, below.dims[1]))
        of_state = e.reshape(e.slice_axis(w, 0, at + size, 4 * hidden_size**2), (4 * hidden_size, hidden_size))
        at = at + size + 4 * hidden_size**2
        first = [
            e.full((batch, hidden_size), 0, w.dtype)
            if x is None
            else e.reshape(e.slice_axis(x, 0, number, 1), (batch, hidden_size))
            for x in (init_h, init_c)
        ]
        bias = e.reduce_sum(e.reshape(e.slice_axis(biases, 0, number, 1), (2, 4 * hidden_size)), 0, keep=True)
        gates = e.contract(below, of_input, "ij,kj->ik")
        backward = number % ways == 1
        hidden, cell, activated = e.steps(
            lstm_step, first, [gates], [e.transpose(of_state), bias], backward=backward, order=_ORDER
        )
        made.append(hidden)
        kept += [activated, cell, hidden]
        for ends, x, begin in zip(last, (hidden, cell), first, strict=True):
            ends.append(_last(x, begin, steps, backward))
        if number % ways == ways - 1:
            below = e.concat(made, 1) if ways > 1 else hidden
            if number < count - 1 and not (is_test or dropout_prob == 0):
                below = below * factors[number // ways]
    out = e.reshape(below, (steps, batch, hidden_size * ways))
    stacked = [e.concat([e.reshape(x, (1, batch, hidden_size)) for x in ends], 0) for ends in last]
    return out, *stacked, (*kept, *factors)


def _last(x: Any, first: Any, steps: Any, backward: bool) -> Any:
    """The state after the last step; without steps the first one."""
    batch = first.dims[0]
    if steps == 0:
        return first
    return e.slice_axis(x, 0, 0 if backward else x.dims[0] - batch, batch)


def _factors(rows: Any, num_layers: int, width: int, dropout_prob: Any, is_test: bool, dtype: str) -> list[Any]:
    """What the result of each layer but the last is multiplied with."""
    if num_layers == 1:
        return []
    if is_test or dropout_prob == 0:
        return [e.full((rows, width), 1, dtype)] * (num_layers - 1)
    drawn = e.random_uniform((num_layers - 1, rows, width))
    scale = 1 / (1 - dropout_prob) if dropout_prob < 1 else 0
    every = e.where(drawn >= dropout_prob, e.full(drawn.dims, scale, dtype), 0)
    return [e.reshape(e.slice_axis(every, 0, k, 1), (rows, width)) for k in range(num_layers - 1)]
