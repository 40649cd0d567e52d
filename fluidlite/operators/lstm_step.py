"""One step of an LSTM with optional peepholes and projection; all LSTM operators scan it."""

from __future__ import annotations

from typing import Any

from fluidlite import expr as e
from fluidlite.operators.recurrent_common import activate


def lstm_step(
    states: Any,
    inputs: Any,
    parameters: Any,
    *,
    use_peepholes: bool = False,
    cell_clip: float = 0.0,
    gate_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    candidate_activation: str = "tanh",
    proj_clip: float = 0.0,
    proj_activation: str = "",
    order: tuple[int, ...] = (0, 1, 2, 3),
) -> tuple[Any, Any]:
    """The new states (hidden, cell), and the outputs: the activated gates and, with a projection, the hidden state.

    ``order``: positions of the candidate, input, forget and output gate in the columns of the weight; Fluid's is
    0, 1, 2, 3.
    ``parameters``: the weight of the state, the bias, optionally three peepholes, and optionally the weight of the
    projection, whose result is then the state.
    """
    (state, cell), (x,), (weight, bias, *optional) = states, inputs, parameters
    units = cell.dims[1]
    gate_inputs = x + e.matmul(state, weight) + bias
    candidate, input_gate, forget_gate, output_gate = (e.slice_axis(gate_inputs, 1, k * units, units) for k in order)
    if use_peepholes:
        input_gate, forget_gate = input_gate + cell * optional[0], forget_gate + cell * optional[1]
    candidate = activate(candidate_activation, candidate)
    input_gate, forget_gate = activate(gate_activation, input_gate), activate(gate_activation, forget_gate)
    new_cell = _clipped(candidate * input_gate + cell * forget_gate, cell_clip)
    output_gate = activate(gate_activation, output_gate + new_cell * optional[2] if use_peepholes else output_gate)
    hidden = output_gate * activate(cell_activation, new_cell)
    gates = e.concat([candidate, input_gate, forget_gate, output_gate], 1)
    if not proj_activation:
        return (hidden, new_cell), (gates,)
    projected = _clipped(activate(proj_activation, e.matmul(hidden, optional[-1])), proj_clip)
    return (projected, new_cell), (gates, hidden)


def _clipped(x: Any, limit: float) -> Any:
    return e.minimum(e.maximum(x, -limit), limit) if limit else x
