"""The table of tensor primitives: their operands, parameters and results.

Each primitive has these rules, by its name: dims and dtype in its constructor (:mod:`tensor`, :mod:`views`,
:mod:`reductions`, :mod:`segments`, :mod:`windows`, :mod:`indexing`), the derivative (``derivative_rules.RULES``), the
lowering to simpler primitives, for places without array calls (``lowering.RULES``; none: an operator computes it), and
array calls (``fluidlite.render.array_calls.ARRAY_CALLS``). A new primitive is one file here, which adds to these
tables, and an entry of the last. Scalar primitives are in ``fluidlite.codegen.primitives.PRIMITIVES``, their
derivatives in ``derivative_rules.SCALAR_RULES``.
"""

from __future__ import annotations

from typing import NamedTuple


class TensorPrimitive(NamedTuple):
    """One primitive.

    ``kind``: its group in the documentation.
    ``operands``, ``params``: the operands and parameters, in words.
    ``dims``, ``dtype``: the dims and dtype of the result, in words.
    ``moves``: whether it only moves elements, also of half types; other primitives compute, in float32 at least.
    """

    kind: str
    operands: str
    params: str
    dims: str
    dtype: str
    moves: bool = False


_COMPUTED = "x's; half types become float32, bool int32"
_WIDE = "x's; half types become float32"

TENSOR_PRIMITIVES: dict[str, TensorPrimitive] = {
    "input": TensorPrimitive("leaves", "none", "slot, index within it", "symbols", "the operand's", True),
    "number": TensorPrimitive("leaves", "none", "a Number", "none", "any but half types"),
    "iota": TensorPrimitive("leaves", "none", "the axis of the counter", "the requested dims", "the requested dtype"),
    "offsets": TensorPrimitive(
        "leaves",
        "none",
        "slot, index within it, level of its LoD",
        "the number of sequences of the level, plus 1",
        "int64",
    ),
    "random": TensorPrimitive(
        "leaves",
        "none",
        "uniform or gaussian, sub-stream: a number for each element, by the operator's key",
        "the requested dims",
        "float32",
    ),
    "map": TensorPrimitive(
        "elementwise",
        "tensors of its dims, or numbers",
        "a scalar primitive",
        "the broadcast dims of the operands",
        "the promoted dtype; bool for comparisons",
    ),
    "cast": TensorPrimitive("elementwise", "x", "none", "those of x", "the requested dtype", True),
    "stop": TensorPrimitive("elementwise", "x", "none", "those of x", "x's", True),
    "reshape": TensorPrimitive("views", "x", "none", "dims with the number of elements of x", "x's", True),
    "transpose": TensorPrimitive("views", "x", "axes of x, in order", "those of x, permuted", "x's", True),
    "broadcast": TensorPrimitive(
        "views", "x", "the axes of size 1 that are repeated", "the requested dims", "x's", True
    ),
    "slice": TensorPrimitive("views", "x", "starts, steps (negative too)", "the sizes of the slice", "x's", True),
    "pad": TensorPrimitive(
        "views",
        "x, a number",
        "low, high, interior: counts for each axis; negative ones crop",
        "low + size + (size - 1) * interior + high",
        "x's",
        True,
    ),
    "concat": TensorPrimitive(
        "views", "one or more", "axis", "the sum of sizes along the axis", "the promoted dtype", True
    ),
    "window": TensorPrimitive(
        "windows",
        "x",
        "axis, stride, dilation",
        "the axis becomes two: windows, and elements of a window",
        "x's",
        True,
    ),
    "unwindow": TensorPrimitive(
        "windows", "parts", "axis, stride, dilation: the adjoint of window", "the two axes become one", _WIDE
    ),
    "reduce": TensorPrimitive("reductions", "x", "kind, axes", "those of x, with 1 for the axes", _COMPUTED),
    "arg": TensorPrimitive("reductions", "x", "kind, axis", "those of x, with 1 for the axis", "int64"),
    "contract": TensorPrimitive(
        "reductions", "a, b", "the axes of a, of b and of the result, by letter", "by letter", "the promoted dtype"
    ),
    "call": TensorPrimitive(
        "calls",
        "operands",
        "slot, operator, slots, attributes: a call of another operator in a decomposition",
        "those of the result",
        "the call's",
        True,
    ),
    "scan": TensorPrimitive("scans", "x", "kind, axis, reverse, exclusive", "those of x", _COMPUTED),
    "recur": TensorPrimitive("scans", "factors, summands", "axis, reverse", "those of both", _WIDE),
    "steps": TensorPrimitive(
        "scans",
        "states, inputs, parameters, offsets of a LoD",
        "the function of a step, counts of operands, rows, direction, dims and dtypes of the results",
        "none: it has several results",
        "the first state's",
    ),
    "step_result": TensorPrimitive(
        "scans", "steps", "the number of the result", "the rows, then the dims of the step's result", "the step's"
    ),
    "arrange": TensorPrimitive(
        "segments",
        "x, offsets of a LoD",
        "rows or sequences, inverse, reverse: to step-major order, and back",
        "those of x",
        "x's",
        True,
    ),
    "step_table": TensorPrimitive(
        "segments",
        "offsets of a LoD",
        "kind, direction, rows: row indices in step-major order",
        "the requested dtype",
        "int64",
    ),
    "segment": TensorPrimitive("segments", "x, offsets", "kind", "a row for each segment", _WIDE),
    "segment_of": TensorPrimitive("segments", "offsets", "none", "the requested rows", "int64"),
    "take": TensorPrimitive(
        "gathers", "x, indices", "axis, mode", "those of x, with the indices' in place of the axis", "x's", True
    ),
    "pick": TensorPrimitive(
        "gathers", "x, indices of its dims but for axis", "axis, mode", "the indices'", "x's", True
    ),
    "checked": TensorPrimitive("gathers", "indices", "the exclusive upper bound", "the indices'", "theirs"),
    "add_at": TensorPrimitive(
        "scatters",
        "updates, indices, base",
        "axis: the adjoint of take",
        "those of the updates, with the axis in place of the indices'",
        _WIDE,
    ),
    "add_rows": TensorPrimitive(
        "scatters",
        "rows, indices, base",
        "none; add_at is lowered to it",
        "those of base",
        "the rows'",
    ),
    "set_at": TensorPrimitive("scatters", "x, updates, indices", "axis", "those of x", "x's", True),
    "put": TensorPrimitive(
        "scatters",
        "updates, indices, base",
        "axis: the adjoint of pick",
        "the updates', except for the axis",
        _WIDE,
    ),
}
"""By name, grouped by kind."""
