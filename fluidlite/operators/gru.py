"""gru over the sequences of a LoD tensor, and gru_unit, a single step."""

from __future__ import annotations

from typing import Any

from fluidlite import expr as e
from fluidlite.expr.attributes import need_dtype
from fluidlite.expr.declare import operator
from fluidlite.operators.inference import Inferred
from fluidlite.operators.recurrent_common import (
    FLOATS,
    activate,
    activation,
    initial_states,
    need_dims,
    need_gates,
    rows_like,
    sequences,
)
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Differentiation, Execution, Inference, Lowering
from fluidlite.tensor.tensor_spec import Spec

_ORIGIN = Attr(
    "origin_mode",
    "bool",
    False,
    doc="update weights the old state and 1 - update the candidate, as in Cho et al.; False: the reverse",
)
_WEIGHT = Slot(
    "Weight",
    doc="[units, 3 units]; in memory the weight of the update and the reset gate, [units, 2 units], is "
    "followed by that of the candidate, [units, units]",
)
_ATTRS = (
    activation("activation", "tanh", "of the candidate"),
    activation("gate_activation", "sigmoid", "of the update and the reset gate"),
    Attr("is_reverse", "bool", False, doc="from the last step of each sequence to the first"),
    _ORIGIN,
)
_DTYPES = dict.fromkeys(("Input", "H0", "Weight", "Bias"), FLOATS)


def _infer(call: Call) -> Inferred:
    count, weight, x = sequences(call), call.dims("Weight"), call.spec("Input")
    call.need(len(weight) == 2, "Weight", "a rank of 2")
    units = weight[0]
    need_dims(call, "Weight", (units, 3 * units if units >= 0 else -1), "from the hidden state to the 3 gates")
    need_gates(call, units, 3)
    need_dims(call, "H0", (count, units), "a first state for each sequence")
    need_dims(call, "Bias", (1, 3 * units if units >= 0 else -1), "the biases of the gates")
    return {
        "BatchGate": Spec.of(x.dims, x.dtype),
        "BatchResetHiddenPrev": Spec.of((x.dims[0], units), x.dtype),
        "BatchHidden": Spec.of((x.dims[0], units), x.dtype),
        "Hidden": rows_like(call, units),
    }


def gru_step(
    states: Any, inputs: Any, parameters: Any, *, activation: str, gate_activation: str, origin_mode: bool
) -> tuple[Any, Any]:
    """One step: the hidden state; also the gates and the reset previous state.

    ``parameters``: the weight of the update and reset gates, that of the candidate, and optionally the bias.
    """
    (previous,), (x,), (gate_weight, candidate_weight, *bias) = states, inputs, parameters
    units = previous.dims[1]
    gate_inputs = x + bias[0] if bias else x
    gates = e.slice_axis(gate_inputs, 1, 0, 2 * units) + e.matmul(previous, gate_weight)
    update, reset = (activate(gate_activation, e.slice_axis(gates, 1, start, units)) for start in (0, units))
    reset_state = reset * previous
    candidate = activate(
        activation, e.slice_axis(gate_inputs, 1, 2 * units, units) + e.matmul(reset_state, candidate_weight)
    )
    old, new = (update, 1 - update) if origin_mode else (1 - update, update)
    return (old * previous + new * candidate,), (e.concat([update, reset, candidate], 1), reset_state)


def _weights(weight: Any, units: Any) -> tuple[Any, Any]:
    """The weight of both gates and that of the candidate, which are consecutive in memory."""
    flat = e.reshape(weight, (3 * units * units,))
    gate_weight = e.reshape(e.slice_axis(flat, 0, 0, 2 * units * units), (units, 2 * units))
    return gate_weight, e.reshape(e.slice_axis(flat, 0, 2 * units * units, units * units), (units, units))


@operator(
    "gru",
    Differentiation(
        reads=("Input", "H0", "Weight", "Bias", "BatchGate", "BatchResetHiddenPrev", "BatchHidden"),
        dispensable=("BatchGate@GRAD", "BatchResetHiddenPrev@GRAD", "BatchHidden@GRAD"),
        doc="back through the steps",
    ),
    Inference(_infer),
    inputs=[
        Slot(
            "Input",
            doc="input term of each gate at each step, [steps of all sequences, 3 units]: update, reset, "
            "candidate; sequences by LoD",
        ),
        Slot("H0", dispensable=True, doc="the hidden state before the first step, [sequences, units]; none: 0"),
        _WEIGHT,
        Slot("Bias", dispensable=True, doc="[1, 3 units]"),
    ],
    outputs=[
        Slot("BatchGate", intermediate=True, content="the gates, activated, rows by step: the longest sequence first"),
        Slot("BatchResetHiddenPrev", intermediate=True, content="reset Hidden[t-1], rows by step"),
        Slot("BatchHidden", intermediate=True, content="Hidden, rows by step"),
        "Hidden",
    ],
    attrs=_ATTRS,
    dtypes=_DTYPES,
    doc="update and reset are of Input + Hidden[t-1] Weight + Bias; the candidate of Input + (reset Hidden[t-1]) "
    "Weight; Hidden[t] = (1 - update) Hidden[t-1] + update candidate",
    source="Fluid gru_op.cc, gru_kernel.h",
)
def gru(
    input: Any,
    h0: Any,
    weight: Any,
    bias: Any,
    *,
    activation: str,
    gate_activation: str,
    is_reverse: bool,
    origin_mode: bool,
) -> Any:
    """A scan over rows that are sorted by step."""
    units, offsets = weight.dims[0], e.offsets(input)
    parameters = (*_weights(weight, units), *(() if bias is None else (e.slice_axis(bias, 0, 0, 1),)))
    hidden, gates, reset_state = e.steps(
        gru_step,
        [initial_states(h0, offsets, units, weight.dtype)],
        [e.arrange(input, offsets, reverse=is_reverse)],
        parameters,
        offsets,
        activation=activation,
        gate_activation=gate_activation,
        origin_mode=origin_mode,
    )
    return gates, reset_state, hidden, e.arrange(hidden, offsets, inverse=True, reverse=is_reverse)


# gru_unit ----------------------------------------------------------------------------------------------------------

_BY_NUMBER = ("identity", "sigmoid", "tanh", "relu")


@operator(
    "gru_unit",
    Differentiation(
        reads=("Input", "HiddenPrev", "Weight", "Bias"),
        doc="the gradients of all inputs, through the gates, which are computed again",
        memory="where arrays compute, gates and their gradients before and after each function: five times Gate",
    ),
    Execution(memory="where arrays compute, the gates before and after each function: twice as much as Gate"),
    Lowering(library=True),
    inputs=[
        Slot("Input", doc="[rows, 3 units]: update, reset, candidate"),
        Slot("HiddenPrev", doc="[rows, units]"),
        _WEIGHT,
        Slot("Bias", dispensable=True, doc="[1, 3 units]"),
    ],
    outputs=[
        Slot("Gate", intermediate=True, content="the gates, activated"),
        Slot("ResetHiddenPrev", intermediate=True, content="reset HiddenPrev"),
        "Hidden",
    ],
    attrs=[
        Attr("activation", "int", 2, choices=(0, 1, 2, 3), doc="of the candidate: identity, sigmoid, tanh or relu"),
        Attr("gate_activation", "int", 1, choices=(0, 1, 2, 3), doc="of the gates: identity, sigmoid, tanh or relu"),
        _ORIGIN,
    ],
    dtypes=dict.fromkeys(("Input", "HiddenPrev", "Weight", "Bias"), FLOATS),
    doc="one step of gru for each row",
    source="Fluid gru_unit_op.h",
)
def gru_unit(
    input: Any, hidden_prev: Any, weight: Any, bias: Any, *, activation: int, gate_activation: int, origin_mode: bool
) -> Any:
    """The gates read the input and the previous state; the candidate reads the reset state."""
    if hidden_prev.rank != 2:
        e.fail("HiddenPrev", "a rank of 2")
    rows, units = hidden_prev.dims
    for slot, x, dims in (
        ("Input", input, (rows, 3 * units)),
        ("Weight", weight, (units, 3 * units)),
        ("Bias", bias, (e.number(1), 3 * units)),
    ):
        if x is not None:
            e.need_dims(x, dims, slot, "3 gates of as many units as HiddenPrev has")
            need_dtype(x, [hidden_prev], slot)
    parameters = (*_weights(weight, units), *(() if bias is None else (bias,)))
    (hidden,), (gates, reset_state) = gru_step(
        [hidden_prev],
        [input],
        parameters,
        activation=_BY_NUMBER[activation],
        gate_activation=_BY_NUMBER[gate_activation],
        origin_mode=origin_mode,
    )
    return gates, reset_state, hidden
