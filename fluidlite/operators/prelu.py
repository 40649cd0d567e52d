"""prelu: a slope of its own for negative elements, which is learned. The expression is leaky_relu's with a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.codegen.expr import where
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, Sample
from fluidlite.framework.spec import Dims
from fluidlite.operators.inference import Inferred, agree, like, same_dtype, size
from fluidlite.operators.samples import EVERY, WIDE, Array, away_from, rand
from fluidlite.operators.scalar_op import SUMMED, scalar_op


def _infer(call: Call) -> Inferred:
    x, alpha, mode = call.dims("X"), call.dims("Alpha"), call.attr("mode")
    same_dtype(call, "Alpha", "X")
    if mode == "all" and not agree(size(alpha), 1):
        call.fail("Alpha", "one element, since mode is 'all'")
    if mode == "channel":
        call.need(len(x) >= 2, "X", "[rows, channels, ...], since mode is 'channel'")
        if not agree(size(alpha), x[1]):
            call.fail("Alpha", f"{x[1]} elements, one for each channel of X ({call.shown('X')})")
    if mode == "element":
        call.need(len(x) >= 1, "X", "rank 1 or more, since mode is 'element'")
        if not (agree(size(alpha), size(x)) or agree(size(alpha), size(x[1:]))):
            call.fail("Alpha", f"an element for each of X ({call.shown('X')}), or for each of one of its rows")
    return {"Out": like(call.spec("X"))}


def _aligned(x: Dims, count: int, mode: str) -> Dims:
    """Alpha's dims among those of X; Fluid counts its elements only."""
    if mode == "channel":
        return (1, x[1], *(1,) * (len(x) - 2))
    return x if count == size(x) else (1, *x[1:])


def _placed(call: Call) -> Mapping[str, Dims]:
    if call.attr("mode") == "all":  # one number has its place anyway
        return {}
    dims = _aligned(call.dims("X"), size(call.dims("Alpha")), call.attr("mode"))
    return {"Alpha": dims, "Alpha@GRAD": dims}


def _reference(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, slopes, mode = inputs["X"], inputs["Alpha"].reshape(-1), attrs["mode"]
    out = np.array(x)
    flat = out.reshape(-1)
    inner = int(np.prod(x.shape[2:])) if x.ndim > 1 else 1
    for i, value in enumerate(x.reshape(-1)):
        which = {"all": 0, "channel": i // inner % x.shape[1] if x.ndim > 1 else 0, "element": i % slopes.size}[mode]
        if value <= 0:
            flat[i] = slopes[which] * value
    return {"Out": out}


def _samples() -> list[Sample]:
    def case(name: str, x: tuple[int, ...], alpha: tuple[int, ...], mode: str | None, dtypes: Any = WIDE) -> Sample:
        inputs: dict[str, Array] = {"X": away_from(rand(*x), 0), "Alpha": rand(*alpha, low=0.1, high=0.9, seed=1)}
        attrs = {} if mode is None else {"mode": mode}
        return Sample(inputs, attrs, ("X", "Alpha") if 0 < np.prod(x) < 1000 else (), name=name, dtypes=dtypes)

    return [
        case("all", (3, 4, 2), (1,), None, EVERY),
        case("channel", (2, 3, 4, 5), (1, 3, 1, 1), "channel", EVERY),
        case("channel_vector", (2, 3, 4, 5), (3,), "channel"),
        case("channel_matrix", (4, 3), (1, 3), "channel"),
        case("element", (2, 3, 4), (2, 3, 4), "element", EVERY),
        case("element_row", (2, 3, 4), (1, 3, 4), "element"),
        case("element_flat", (3, 2, 2), (4,), "element"),
        case("element_one_row", (1, 3), (3,), "element"),
        case("large", (3, 64, 33), (1, 64, 1), "channel"),
        case("empty", (0, 3, 2), (3,), "channel"),
        case("rank0", (), (1,), "all"),
    ]


# At 0 the slope counts, as in Fluid. A slope or a gradient that is no number stays where it is used.
scalar_op(
    "prelu", lambda x, alpha: where(x > 0, x, alpha * x), attrs=(Attr("mode", "str", "all", choices=(
        "all", "channel", "element"), doc="one slope for all, for each channel (dim 1), or for each element"),),
    grad=lambda x, alpha, dout: (where(x > 0, dout, alpha * dout), where(x > 0, 0, x * dout)),
    infer=_infer, placed=_placed, may_alias={"Out": "X"}, differentiable=("X", "Alpha"), broadcasts=True,
    dtypes={"X": ALL_FLOATS, "Alpha": ALL_FLOATS}, reference=_reference, samples=_samples,
    grad_memory=SUMMED, doc="Out = X if X > 0, else Alpha X", source="Fluid prelu_op.h",
)  # fmt: skip
