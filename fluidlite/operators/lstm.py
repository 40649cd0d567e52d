"""lstm and lstmp (with a projection) over the sequences of a LoD tensor."""

from __future__ import annotations

from typing import Any

from fluidlite import expr as e
from fluidlite.expr.declare import operator
from fluidlite.operators.inference import Inferred
from fluidlite.operators.lstm_step import lstm_step
from fluidlite.operators.recurrent_common import (
    FLOATS,
    activation,
    initial_states,
    need_dims,
    need_gates,
    rows_like,
    sequences,
)
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Differentiation, Inference
from fluidlite.tensor.tensor_spec import Spec

_ATTRS = (
    Attr("use_peepholes", "bool", True, doc="gates also read the cell; Bias then holds 3 more units"),
    Attr("is_reverse", "bool", False, doc="from the last step of each sequence to the first"),
    Attr(
        "cell_clip",
        "float",
        0.0,
        minimum=0.0,
        static=True,
        doc="cells are clipped to [-cell_clip, cell_clip]; 0: they are not",
    ),
    activation("gate_activation", "sigmoid", "of the input, the forget and the output gate"),
    activation("cell_activation", "tanh", "of the cell in the hidden state"),
    activation("candidate_activation", "tanh", "of the candidate"),
)
_DTYPES = dict.fromkeys(("Input", "H0", "C0", "Weight", "Bias"), FLOATS)
_INPUT = Slot(
    "Input",
    doc="input term of each gate at each step, [steps of all sequences, 4 units]: candidate, input, "
    "forget, output; sequences by LoD",
)
_C0 = Slot("C0", dispensable=True, doc="the cell before the first step, [sequences, units]; none: 0")
_BIAS = Slot(
    "Bias",
    doc="[1, 4 units] for the gates; with peepholes [1, 7 units]: followed by those of the input, the forget "
    "and the output gate",
)
_GATES = Slot("BatchGate", intermediate=True, content="the gates, activated, rows by step: the longest sequence first")
_CELLS = Slot("BatchCellPreAct", intermediate=True, content="the cell before its activation, rows by step")


def _check_common(call: Call, state: int, units: int) -> None:
    count = sequences(call)
    need_gates(call, units, 4)
    if call.has("H0") != call.has("C0"):
        call.fail("C0" if call.has("H0") else "H0", "H0 and C0, or none of them")
    need_dims(call, "H0", (count, state), "a first state for each sequence")
    need_dims(call, "C0", (count, units), "a first cell for each sequence")
    blocks = 7 if call.attr("use_peepholes") else 4
    meaning = "gates and peepholes" if blocks == 7 else "gates"
    need_dims(call, "Bias", (1, blocks * units if units >= 0 else -1), f"the biases of {meaning}")


def _units(call: Call, slot: str = "Weight") -> tuple[int, int]:
    dims = call.dims(slot)
    call.need(len(dims) == 2, slot, "a rank of 2")
    return dims[0], (dims[1] // 4 if dims[1] >= 0 else -1)


def _infer(call: Call) -> Inferred:
    state, units = _units(call)
    need_dims(call, "Weight", (state, 4 * state if state >= 0 else -1), "from the hidden state to the 4 gates")
    _check_common(call, state, units)
    return {"Hidden": rows_like(call, units), **_cell_specs(call, units)}


def _cell_specs(call: Call, units: int) -> dict[str, Spec]:
    x = call.spec("Input")
    cells = Spec.of((x.dims[0], units), x.dtype)
    return {"Cell": rows_like(call, units), "BatchGate": Spec.of(x.dims, x.dtype), "BatchCellPreAct": cells}


def _bias_and_peepholes(bias: Any, units: Any, peepholes: bool) -> list[Any]:
    """The bias of the gates and the peepholes of the input, forget and output gate, each as one row."""
    row = e.slice_axis(bias, 0, 0, 1)
    if not peepholes:
        return [row]
    return [e.slice_axis(row, 1, at * units, size * units) for at, size in ((0, 4), (4, 1), (5, 1), (6, 1))]


def _scan(
    input: Any, initial: Any, widths: Any, weight: Any, bias: Any, projection: list[Any], is_reverse: bool, attrs: Any
) -> Any:
    """A scan over rows that are sorted by step; ``initial``, ``widths``: of the state and of the cell."""
    offsets = e.offsets(input)
    peepholes = _bias_and_peepholes(bias, widths[1], attrs["use_peepholes"])
    state, cell, gates, *hidden = e.steps(
        lstm_step,
        [initial_states(x, offsets, width, weight.dtype) for x, width in zip(initial, widths, strict=True)],
        [e.arrange(input, offsets, reverse=is_reverse)],
        [weight, *peepholes, *projection],
        offsets,
        **attrs,
    )
    outputs = [e.arrange(x, offsets, inverse=True, reverse=is_reverse) for x in (state, cell)]
    return *outputs, gates, cell, *hidden


@operator(
    "lstm",
    Differentiation(
        reads=("Input", "H0", "C0", "Weight", "Bias", "Hidden", "BatchGate", "BatchCellPreAct"),
        dispensable=("Hidden@GRAD", "Cell@GRAD", "BatchGate@GRAD", "BatchCellPreAct@GRAD"),
        doc="back through the steps; 0 where cell_clip clips",
    ),
    Inference(_infer),
    inputs=[
        _INPUT,
        Slot("H0", dispensable=True, doc="the hidden state before the first step, [sequences, units]; none: 0"),
        _C0,
        Slot("Weight", doc="from the hidden state to the gates, [units, 4 units]"),
        _BIAS,
    ],
    outputs=["Hidden", "Cell", _GATES, _CELLS],
    attrs=_ATTRS,
    dtypes=_DTYPES,
    doc="candidate, input and forget are of Input + Hidden[t-1] Weight + Bias; Cell[t] = candidate input + Cell[t-1] "
    "forget; Hidden[t] = output cell_activation(Cell[t]), for each sequence",
    source="Fluid lstm_op.cc, lstm_kernel.h",
)
def lstm(input: Any, h0: Any, c0: Any, weight: Any, bias: Any, *, is_reverse: bool, **attrs: Any) -> Any:
    """The state of a step is its hidden state."""
    return _scan(input, (h0, c0), (weight.dims[0], weight.dims[0]), weight, bias, [], is_reverse, attrs)


def _infer_projected(call: Call) -> Inferred:
    state, units = _units(call)
    width = call.dims("Weight")[1]
    call.need(width < 0 or width % 4 == 0, "Weight", "a second dim of 4 gates")
    need_dims(call, "ProjWeight", (units, state), "from the hidden state to the projected one")
    _check_common(call, state, units)
    specs = _cell_specs(call, units)
    return {"Projection": rows_like(call, state), **specs, "BatchHidden": specs["BatchCellPreAct"]}


@operator(
    "lstmp",
    Differentiation(
        reads=(
            "Input",
            "H0",
            "C0",
            "Weight",
            "ProjWeight",
            "Bias",
            "Projection",
            "BatchGate",
            "BatchCellPreAct",
            "BatchHidden",
        ),
        dispensable=("Projection@GRAD", "Cell@GRAD", "BatchGate@GRAD", "BatchCellPreAct@GRAD", "BatchHidden@GRAD"),
        doc="back through the steps; 0 where a state is clipped",
    ),
    Inference(_infer_projected),
    inputs=[
        _INPUT,
        Slot("H0", dispensable=True, doc="the projected state before the first step, [sequences, width]; none: 0"),
        _C0,
        Slot("Weight", doc="from the projected state to the gates, [width, 4 units]"),
        Slot("ProjWeight", doc="from the hidden state to the projected one, [units, width]"),
        _BIAS,
    ],
    outputs=[
        "Projection",
        "Cell",
        _GATES,
        _CELLS,
        Slot("BatchHidden", intermediate=True, content="the hidden state, rows by step"),
    ],
    attrs=(
        *_ATTRS,
        Attr(
            "proj_clip",
            "float",
            0.0,
            minimum=0.0,
            static=True,
            doc="projected states are clipped to [-proj_clip, proj_clip]; 0: not",
        ),
        activation("proj_activation", "tanh", "of the projected state"),
    ),
    dtypes={**_DTYPES, "ProjWeight": FLOATS},
    doc="an lstm whose gates read Projection[t] = proj_activation(Hidden[t] ProjWeight) in place of Hidden",
    source="Fluid lstmp_op.cc, lstm_kernel.h",
)
def lstmp(
    input: Any, h0: Any, c0: Any, weight: Any, proj_weight: Any, bias: Any, *, is_reverse: bool, **attrs: Any
) -> Any:
    """The state of a step is its projected hidden state."""
    units, width = proj_weight.dims
    return _scan(input, (h0, c0), (width, units), weight, bias, [proj_weight], is_reverse, attrs)
