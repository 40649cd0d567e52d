"""data_norm: normalise channels by statistics of all previous data, which are parameters.

As in Fluid, the "gradients" of the three parameters are the sums of the batch, which Fluid's parameter servers add to
their sums.
"""

from __future__ import annotations

from collections.abc import Mapping

from fluidlite import expr as e
from fluidlite.base.dtypes import FLOATS
from fluidlite.expr.declare import gradient, operator
from fluidlite.program.opdef import Attr, Slot

_MIN_PRESENT_MAGNITUDE = 1e-7
"""A slot is absent from a row if the magnitude of its first number is less than this."""
_SUMS = ("BatchSize", "BatchSum", "BatchSquareSum")


def _check_operands(x: e.Tensor, vectors: Mapping[str, e.Tensor | None], slot_dim: int, uses_scale: bool) -> None:
    """Refuse X and parameters that do not fit; ``uses_scale``: whether scale_w and bias are used."""
    for name in ("scale_w", "bias"):
        if uses_scale and vectors[name] is None:
            e.fail_attr("enable_scale_and_shift", f"False, or an input in slot {name}")
    if x.rank != 2:
        e.fail("X", "a rank of 2: batch and channels")
    e.need(x.dims[1] != 0, "X", "one channel or more")
    for name, vector in vectors.items():
        if vector is not None and (uses_scale or name not in ("scale_w", "bias")):
            e.same_dtype(vector, x)
            e.vector(vector, x.dims[1], "the number of channels of X")
    if slot_dim > 0:
        e.need_attr(x.dims[1] % slot_dim == 0, "slot_dim", "a divisor of the number of channels of X ({X})")


class _SlotMask:
    """The mask of present slots: channels form slots of a width, absent from a row if their first number is 0."""

    def __init__(self, x: e.Tensor, width: int) -> None:
        self.x, self.width, self.absent = x, width, None
        if width > 0:
            first = e.unsqueeze(e.slice_axis(x, 1, 0, x.dims[1] // width, width), 2)
            self.absent = e.logical_and(first > -_MIN_PRESENT_MAGNITUDE, first < _MIN_PRESENT_MAGNITUDE)

    def masked(self, y: e.Tensor) -> e.Tensor:
        """A tensor of the dims of X, with 0 where a slot is absent."""
        if self.absent is None:
            return y
        slots = (self.x.dims[0], self.x.dims[1] // self.width, self.width)
        return e.reshape(e.where(self.absent, 0, e.reshape(y, slots)), self.x.dims)

    def count(self) -> e.Tensor:
        """For each channel, the number of rows in which its slot is present."""
        rows, channels = self.x.dims
        if self.absent is None:
            return e.full((channels,), rows, self.x.dtype)
        slot_counts = e.reduce_sum(e.cast(e.logical_not(self.absent), self.x.dtype), 0)
        return e.reshape(e.broadcast(slot_counts, (channels // self.width, self.width)), (channels,))


@operator(
    "data_norm",
    inputs=(
        Slot("X", doc="[batch, channels], float32 or float64"),
        *_SUMS,
        Slot("scale_w", dispensable=True),
        Slot("bias", dispensable=True),
    ),
    outputs=(
        "Y",
        Slot("Means", intermediate=True, content="BatchSum / BatchSize"),
        Slot("Scales", intermediate=True, content="sqrt(BatchSize / BatchSquareSum)"),
    ),
    attrs=(
        Attr(
            "epsilon", "float", 1e-4, minimum=0.0, maximum=0.001, doc="is added to BatchSquareSum@GRAD for each sample"
        ),
        Attr(
            "slot_dim",
            "int",
            -1,
            doc="if above 0, channels form slots of this width, and a slot whose first number is 0 "
            "is absent: its Y is 0, and it is in no sum",
        ),
        Attr("summary_decay_rate", "float", 0.9999999, doc="of Fluid's servers; of no effect"),
        Attr("enable_scale_and_shift", "bool", False, doc="whether scale_w and bias are used"),
        Attr("data_layout", "str", "NCHW", choices=("NCHW", "NHWC"), doc="X is [batch, channels], so of no effect"),
        Attr("sync_stats", "bool", False, doc="of several devices; of no effect"),
    ),
    dtypes={"X": FLOATS},
    source="Fluid data_norm_op.cc",
    doc="Means = BatchSum / BatchSize; Scales = sqrt(BatchSize / BatchSquareSum); Y = (X - Means) Scales, and then "
    "Y scale_w + bias if that is enabled",
)
def data_norm(
    x: e.Tensor,
    batch_size: e.Tensor,
    batch_sum: e.Tensor,
    batch_square_sum: e.Tensor,
    scale_w: e.Tensor | None,
    bias: e.Tensor | None,
    *,
    slot_dim: int,
    enable_scale_and_shift: bool,
) -> tuple[e.Tensor, e.Tensor, e.Tensor]:
    """Normalise, scale and shift; then set absent slots to 0."""
    sums = dict(zip(_SUMS, (batch_size, batch_sum, batch_square_sum), strict=True))
    _check_operands(x, {**sums, "scale_w": scale_w, "bias": bias}, slot_dim, enable_scale_and_shift)
    means, scales = batch_sum / batch_size, e.sqrt(batch_size / batch_square_sum)
    y = (x - means) * scales
    if enable_scale_and_shift:
        y = y * scale_w + bias
    return _SlotMask(x, slot_dim).masked(y), means, scales


@gradient(
    data_norm,
    writes=("X", *_SUMS, "scale_w", "bias"),
    metadata=("bias",),
    source="Fluid data_norm_op.cc",
    doc="X@GRAD = Y@GRAD Scales; scale_w@GRAD and bias@GRAD as those of a product and a sum. These are no gradients: "
    "BatchSize@GRAD is the number of samples, BatchSum@GRAD the sum of X, BatchSquareSum@GRAD that of (X - Means)^2 + "
    "epsilon; of slots these are 1 and means over the samples that show them",
)
def data_norm_grad(
    x: e.Tensor,
    scale_w: e.Tensor | None,
    bias: e.Tensor | None,
    means: e.Tensor,
    scales: e.Tensor,
    dy: e.Tensor,
    *,
    epsilon: float,
    slot_dim: int,
    enable_scale_and_shift: bool,
) -> tuple[e.Tensor, ...]:
    """Hand-written: Fluid's gradients of the sums are no derivatives, nor is X@GRAD of absent slots without scale_w."""
    vectors = {"Means": means, "Scales": scales, "scale_w": scale_w, "bias": bias}
    _check_operands(x, vectors, slot_dim, enable_scale_and_shift)
    e.same_dtype(dy, x)
    if not e.all_agree(dy.dims, x.dims):
        e.fail("Y@GRAD", f"{e.describe_dims(x.dims)}, the dims of X")
    mask, centred = _SlotMask(x, slot_dim), x - means
    dx = mask.masked(dy) * scales * scale_w if enable_scale_and_shift else dy * scales
    dscale, dbias = (e.reduce_sum(mask.masked(part), 0) for part in (dy * centred * scales, dy))
    total, squares = (e.reduce_sum(mask.masked(part), 0) for part in (x, centred * centred))
    count = mask.count()
    if slot_dim > 0:  # means instead of sums, for channels with a present slot
        divisor = e.maximum(count, 1)
        total, squares = total / divisor, squares / divisor
    squares = squares + count * epsilon
    return dx, e.minimum(count, 1) if slot_dim > 0 else count, total, squares, dscale, dbias
