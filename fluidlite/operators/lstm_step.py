"""One step of an LSTM, with peepholes and a projection: all operators of the family are scans of it."""

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
    """Hidden state and cell; beside them the activated gates, and with a projection the state before it.

    ``order`` says where candidate, input, forget and output gate are in what the weight makes; 0, 1, 2, 3 is Fluid's.
    ``parameters``: the weight of the state, the bias, three peepholes if there are, and the weight of the projection if
    there is one: the state is then what it makes.
    """
    (state, cell), (x,), (weight, bias, *more) = states, inputs, parameters
    units = cell.dims[1]
    given = x + e.matmul(state, weight) + bias
    candidate, enters, stays, leaves = (e.slice_axis(given, 1, k * units, units) for k in order)
    if use_peepholes:
        enters, stays = enters + cell * more[0], stays + cell * more[1]
    candidate = activate(candidate_activation, candidate)
    enters, stays = activate(gate_activation, enters), activate(gate_activation, stays)
    new = _limited(candidate * enters + cell * stays, cell_clip)
    leaves = activate(gate_activation, leaves + new * more[2] if use_peepholes else leaves)
    hidden = leaves * activate(cell_activation, new)
    gates = e.concat([candidate, enters, stays, leaves], 1)
    if not proj_activation:
        return (hidden, new), (gates,)
    projected = _limited(activate(proj_activation, e.matmul(hidden, more[-1])), proj_clip)
    return (projected, new), (gates, hidden)


def _limited(x: Any, limit: float) -> Any:
    return e.minimum(e.maximum(x, -limit), limit) if limit else x
