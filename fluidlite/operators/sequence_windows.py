"""sequence_conv and sequence_enumerate: windows of steps within sequences."""

from __future__ import annotations

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS, INTS
from fluidlite.expr.declare import operator
from fluidlite.operators.sequence_rows import rows_of
from fluidlite.program.opdef import Attr
from fluidlite.program.operator_options import Differentiation, Execution

_MAX_STEPS = 1 << 12
"""Maximum number of steps in a window, and of its offset."""


def _windows(x: e.Tensor, start: int, length: int) -> e.Tensor:
    """For each row, the rows of its window, [rows, length]; -1 outside its sequence."""
    rows, count = rows_of(x), x.dims[0]
    at = e.reshape(rows.row, (count, 1)) + e.iota((1, length), 1) + start
    inside = e.logical_and(at >= e.reshape(rows.begin, (count, 1)), at < e.reshape(rows.end, (count, 1)))
    return e.where(inside, at, -1)


@operator(
    "sequence_conv",
    Differentiation(
        reads=("X", "Filter"),
        doc="X@GRAD = the sums over the windows that a step lies in; Filter@GRAD = the windows times Out@GRAD",
        memory="the windows, and their gradient: each X contextLength times",
    ),
    Execution(memory="the windows: X contextLength times"),
    inputs={"X": "[rows, width], with LoD"},
    attrs=(
        Attr("contextLength", "int", minimum=1, maximum=_MAX_STEPS, doc="steps of a window"),
        Attr("contextStart", "int", 0, minimum=-_MAX_STEPS, maximum=_MAX_STEPS, doc="offset of a window's first step"),
        Attr("contextStride", "int", 1, minimum=1, maximum=1, doc="1, as in Fluid"),
    ),
    dtypes={"X": ALL_FLOATS, "Filter": ALL_FLOATS},
    source="Fluid sequence_conv_op.h",
    doc="Out[t] = the steps t + contextStart, ... of its sequence side by side, times Filter; 0 beyond the sequence",
)
def sequence_conv(x: e.Tensor, filter_: e.Tensor, *, contextLength: int, contextStart: int) -> e.Tensor:
    """Flatten windows to the rows of a matrix, as Fluid does, and multiply by Filter."""
    if x.rank != 2:
        e.fail("X", "[rows, width] with LoD")
    e.same_dtype(filter_, x)
    columns = x.dims[1] * contextLength
    expected = "[{0}, 'filters']: a window of X has as many numbers"
    if filter_.rank != 2:
        e.fail("Filter", expected.format(e.describe_dims((columns,))[0]))
    e.need(filter_.dims[0] == columns, "Filter", expected, numbers=(columns,))
    windows = e.take(e.wide(x), _windows(x, contextStart, contextLength), 0, "zero")
    return e.matmul(e.reshape(windows, (x.dims[0], columns)), e.wide(filter_))


@operator(
    "sequence_enumerate",
    inputs={"X": "int32 or int64, [rows, 1], with LoD"},
    attrs=(
        Attr("win_size", "int", minimum=1, maximum=_MAX_STEPS, doc="numbers of a window"),
        Attr("pad_value", "int", 0, doc="value outside the sequence"),
    ),
    dtypes={"X": INTS},
    source="Fluid sequence_enumerate_op.h",
    doc="Out[t] = the numbers t, ..., t + win_size - 1 of its sequence, pad_value beyond it",
)
def sequence_enumerate(x: e.Tensor, *, win_size: int, pad_value: int) -> e.Tensor:
    """Gather the windows of each row."""
    if x.rank not in (1, 2):
        e.fail("X", "[rows, 1] with LoD")
    if x.rank == 2:
        e.need(x.dims[1] == 1, "X", "[rows, 1] with LoD")
    at = _windows(x, 0, win_size)
    return e.where(at >= 0, e.take(e.reshape(x, (x.dims[0],)), at, 0, "zero"), pad_value)
