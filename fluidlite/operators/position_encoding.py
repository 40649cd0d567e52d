"""add_position_encoding: add sinusoidal position encodings to the steps of sequences."""

from __future__ import annotations

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.expr.declare import gradient, operator
from fluidlite.program.opdef import Attr

_MAX_WIDTH = 1 << 16
"""Maximum last dim of X."""


def _waves(steps: e.Number, half: e.Number) -> e.Tensor:
    """The encoding of each step, [steps, 2 half]; computed in float64."""
    rank = e.cast(e.iota((1, half), 1), "float64")
    rates = e.pow_(10000.0, -rank / (half - 1)) if half != 1 else e.full((1, 1), 1 / 10000.0, "float64")
    angles = e.cast(e.iota((steps, 1), 0), "float64") * rates
    return e.concat([e.sin(angles), e.cos(angles)], 1)


@operator(
    "add_position_encoding",
    inputs={"X": "[batch, steps, width], or sequences as a LoD tensor [steps, width]; the width is even"},
    attrs=(
        Attr("alpha", "float", 1.0, minimum=0.0, doc="factor of X"),
        Attr("beta", "float", 1.0, minimum=0.0, doc="factor of the waves"),
    ),
    dtypes={"X": ALL_FLOATS},
    source="Fluid add_position_encoding_op.cc",
    doc="Out = alpha X + beta P; P[j] = sin(j / 10000 ^ (k / (half - 1))) for k < half = width / 2, then the cosines",
)
def add_position_encoding(x: e.Tensor, *, alpha: e.Number, beta: e.Number) -> e.Tensor:
    """Steps count from the beginning of each sequence."""
    levels = e.lod_level(x)
    if levels and not (x.rank == 2 and levels == 1):
        e.fail("X", "[steps, width] with one level of LoD")
    if not levels and x.rank != 3:
        e.fail("X", "[batch, steps, width], or sequences as [steps, width] with LoD")
    width = x.dims[-1]
    e.need(width % 2 == 0, "X", "an even width: half of it sines, half cosines")
    e.need(width <= _MAX_WIDTH, "X", f"a width of at most {_MAX_WIDTH:,}")
    rows = x.dims[-2]
    steps = e.longest(x) if levels else rows
    waves = e.cast(e.reshape(_waves(steps, width // 2) * beta, (steps, width)), e.wide(x).dtype)
    if levels:
        starts = e.offsets(x)
        begins = e.take(starts, e.segment_of(starts, rows), 0, "clamp")
        waves = e.take(waves, e.iota((rows,), 0) - begins, 0, "clamp")
    return e.wide(x) * alpha + waves


@gradient(add_position_encoding, doc="X@GRAD = alpha Out@GRAD")
def add_position_encoding_grad(dout: e.Tensor, *, alpha: e.Number) -> e.Tensor:
    """Hand-written: the derived gradient reads X."""
    return e.wide(dout) * alpha
