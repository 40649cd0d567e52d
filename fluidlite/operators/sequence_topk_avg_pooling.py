"""sequence_topk_avg_pooling: averages of the top k elements of each row of ragged matrices."""

from __future__ import annotations

from itertools import pairwise

from fluidlite import expr as e
from fluidlite.base.dtypes import FLOATS
from fluidlite.expr.declare import gradient
from fluidlite.operators.inference import Inferred, dims_compatible
from fluidlite.operators.ragged import need_one_level, same_count
from fluidlite.operators.sequence_rows import sequence_count
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Execution, Inference
from fluidlite.program.registry import register_op
from fluidlite.tensor.tensor_spec import Spec


def _infer(call: Call) -> Inferred:
    x, row, column = (need_one_level(call, slot) for slot in ("X", "ROW", "COLUMN"))
    call.need(
        x.rank in (1, 2) and all(dims_compatible(d, 1) for d in x.dims[1:]), "X", "a number a row, as [numbers, 1]"
    )
    call.need(row.rank >= 1, "ROW", "rows of one dim or more")
    topks, channels = call.attr("topks"), call.attr("channel_num")
    if not topks or list(topks) != sorted(set(topks)) or topks[0] < 1:
        call.fail_attr("topks", "numbers of 1 or more that rise")
    matrices = same_count(call, "ROW", sequence_count(row), "X", sequence_count(x))
    same_count(call, "COLUMN", sequence_count(column), "X", matrices)
    if x.lod and row.lod and column.lod:
        sizes = [[b - a for a, b in pairwise(spec.lod[0])] for spec in (x, row, column)]
        for i, (numbers, rows, columns) in enumerate(zip(*sizes, strict=True)):
            if numbers != channels * rows * columns:
                call.fail(
                    "X",
                    f"{channels} x {rows} x {columns} numbers in sequence {i}: channels, rows and columns",
                    got=numbers,
                )
    out = Spec.of((row.dims[0], channels * len(topks)), x.dtype, lod=row.lod, lod_level=1)
    rows = row.dims[0]
    return {"Out": out, "pos": Spec.of((rows * channels * topks[-1] if rows >= 0 else -1,), "int32")}


_POOL = register_op(
    "sequence_topk_avg_pooling",
    Inference(_infer, kernel_dtype="X"),
    Execution(host_only="rows of matrices of different sizes are sorted on the host"),
    inputs=(
        Slot("X", doc="matrices, channel after channel and row after row, [numbers, 1] with a LoD of one level"),
        Slot("ROW", metadata_only=True, doc="its LoD tells how many rows each matrix has"),
        Slot("COLUMN", metadata_only=True, doc="its LoD tells how many columns"),
    ),
    outputs=(
        Slot("Out", doc="[rows of all matrices, channels * topks], with the LoD of ROW"),
        Slot(
            "pos",
            intermediate=True,
            content="where in X the largest numbers of each row and channel are, the "
            "largest first, as many as the last of topks; -1 where a row has fewer",
        ),
    ),
    attrs=(
        Attr("topks", "ints", doc="of how many numbers to take the average, in rising order"),
        Attr("channel_num", "int", minimum=1, doc="how many channels each matrix has"),
    ),
    dtypes={"X": FLOATS},
    doc="Out[row, channel, i] = the sum of the topks[i] largest numbers of the row, divided by topks[i]; of a row of "
    "fewer numbers, that of all, divided by topks[i] too",
    source="Fluid sequence_ops/sequence_topk_avg_pooling_op.h; of equal numbers the first comes first",
)


@gradient(_POOL, metadata=("X",), doc="X@GRAD[pos] = the sum of Out@GRAD / topks[i] over the averages that hold it")
def sequence_topk_avg_pooling_grad(
    x: e.Tensor, pos: e.Tensor, dout: e.Tensor, *, topks: tuple[int, ...], channel_num: int
) -> e.Tensor:
    """Hand-written: each average extends the previous one, so that gradients are cumulative sums from the last."""
    rows, largest = dout.dims[0], topks[-1]
    grads = e.reshape(e.wide(dout), (rows, channel_num, len(topks)))
    parts = []
    for j in range(largest):
        shares = [e.slice_axis(grads, 2, i, 1) / float(k) for i, k in enumerate(topks) if k > j]
        sum_of_shares = shares[0]
        for share in shares[1:]:
            sum_of_shares = sum_of_shares + share
        parts.append(sum_of_shares)
    flat = e.reshape(e.concat(parts, 2), (rows * channel_num * largest,))
    return e.reshape(e.add_at(flat, e.cast(pos, "int64"), 0, x.dims[0]), x.dims)
