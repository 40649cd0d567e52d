"""The table of primitives of tensors: what each is made of, and what it is.

Each has one rule a kind, by its name: dims and dtype where it is made (:mod:`tensor`, :mod:`views`, :mod:`reductions`,
:mod:`segments`, :mod:`windows`, :mod:`indexing`), its derivative (``derivative_rules.RULES``), how simpler ones say it
for places without array calls (``lowering.RULES``; none: an operator is it), and its array calls
(``fluidlite.render.array_calls.ARRAY_CALLS``): a new one is one file here, that adds to these tables, and an entry of
the last. Scalar ones are those of ``fluidlite.codegen.primitives.PRIMITIVES``, with
derivatives in ``derivative_rules.SCALAR_RULES``.
"""

from __future__ import annotations

from typing import NamedTuple


class TensorPrimitive(NamedTuple):
    """One primitive.

    ``kind``: with which it is listed.
    ``operands``, ``params``: what it is made of.
    ``dims``, ``dtype``: those of the result.
    ``moves``: it only moves numbers, half types as they are; all others compute, in float32 at least.
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
    "input": TensorPrimitive("leaves", "none", "slot, number within it", "its own symbols", "the operand's", True),
    "number": TensorPrimitive("leaves", "none", "a Number", "none", "any but half types"),
    "iota": TensorPrimitive("leaves", "none", "axis along which it counts", "those asked for", "what is asked for"),
    "offsets": TensorPrimitive(
        "leaves", "none", "slot, number within it, level of its LoD", "one more than the level has sequences", "int64"
    ),
    "random": TensorPrimitive(
        "leaves",
        "none",
        "uniform or gaussian, sub-stream: a number an element, by the operator's key",
        "those asked for",
        "float32",
    ),
    "map": TensorPrimitive(
        "elementwise",
        "tensors of its dims, or numbers",
        "a scalar primitive",
        "those to which operands broadcast",
        "that in which they meet; of comparisons bool",
    ),
    "cast": TensorPrimitive("elementwise", "x", "none", "those of x", "what is asked for", True),
    "stop": TensorPrimitive("elementwise", "x", "none", "those of x", "x's", True),
    "reshape": TensorPrimitive("views", "x", "none", "as many elements as x", "x's", True),
    "transpose": TensorPrimitive("views", "x", "axes of x, in order", "those of x, in that order", "x's", True),
    "broadcast": TensorPrimitive("views", "x", "the axes in which its 1 grows", "those asked for", "x's", True),
    "slice": TensorPrimitive("views", "x", "starts, steps (negative too)", "how many are taken an axis", "x's", True),
    "pad": TensorPrimitive(
        "views",
        "x, a number",
        "low, high, interior: counts an axis, negative ones cut off",
        "low + size + interior between each two + high",
        "x's",
        True,
    ),
    "concat": TensorPrimitive(
        "views", "one or more", "axis", "their sum along the axis", "that in which they meet", True
    ),
    "window": TensorPrimitive(
        "windows",
        "x",
        "axis, which becomes two; stride, dilation",
        "windows, then the elements of one",
        "x's",
        True,
    ),
    "unwindow": TensorPrimitive(
        "windows", "parts", "axis, stride, dilation: what window's derivative adds up", "one axis of two", _WIDE
    ),
    "reduce": TensorPrimitive("reductions", "x", "kind, axes", "those of x, the axes 1", _COMPUTED),
    "arg": TensorPrimitive("reductions", "x", "kind, axis", "those of x, the axis 1", "int64"),
    "contract": TensorPrimitive(
        "reductions", "a, b", "the axes of a, of b and of the result, by letter", "by letter", "that in which they meet"
    ),
    "call": TensorPrimitive(
        "calls",
        "operands",
        "slot, operator, their slots, attributes: a call of another, where one is decomposed",
        "those of the result",
        "the call's",
        True,
    ),
    "scan": TensorPrimitive("scans", "x", "kind, axis, reverse, exclusive", "those of x", _COMPUTED),
    "recur": TensorPrimitive("scans", "factors, summands", "axis, reverse", "those of both", _WIDE),
    "steps": TensorPrimitive(
        "scans",
        "states, inputs, parameters, offsets of a LoD",
        "a step's function, counts of operands, rows, direction, the results' dims and dtypes",
        "none: it has results",
        "the first state's",
    ),
    "step_result": TensorPrimitive("scans", "steps", "which result of them", "the rows, then the step's", "the step's"),
    "arrange": TensorPrimitive(
        "segments",
        "x, offsets of a LoD",
        "rows or sequences, inverse, reverse: rows by step, and back",
        "those of x",
        "x's",
        True,
    ),
    "step_table": TensorPrimitive(
        "segments", "offsets of a LoD", "kind, direction, rows: which row, by step", "what is asked for", "int64"
    ),
    "segment": TensorPrimitive("segments", "x, offsets", "kind", "a row for each segment", _WIDE),
    "segment_of": TensorPrimitive("segments", "offsets", "none", "the rows asked for", "int64"),
    "take": TensorPrimitive("gathers", "x, indices", "axis, mode", "those of the indices for the axis", "x's", True),
    "pick": TensorPrimitive(
        "gathers", "x, indices of its dims but for axis", "axis, mode", "the indices'", "x's", True
    ),
    "checked": TensorPrimitive("gathers", "indices", "the size below which they must lie", "the indices'", "theirs"),
    "add_at": TensorPrimitive(
        "scatters",
        "updates, indices, what they are added to",
        "axis: what take's derivative adds up",
        "the axis asked for in place of the indices'",
        _WIDE,
    ),
    "add_rows": TensorPrimitive(
        "scatters",
        "rows, indices, what they are added to",
        "none; add_at as simpler primitives say it",
        "those of what is added to",
        "the rows'",
    ),
    "set_at": TensorPrimitive("scatters", "x, updates, indices", "axis", "those of x", "x's", True),
    "put": TensorPrimitive(
        "scatters",
        "updates, indices, what they are added to",
        "axis: what pick's derivative adds up",
        "the updates', but for the axis",
        _WIDE,
    ),
}
"""By name, with those of a kind beside each other."""
