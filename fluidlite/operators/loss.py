"""Losses of classifiers: cross_entropy of probabilities, softmax_with_cross_entropy of logits."""

from __future__ import annotations

from typing import Any

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS, INTS
from fluidlite.expr.declare import gradient, operator
from fluidlite.expr.gradients import infer_gradient
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import GRAD, Attr, Slot
from fluidlite.program.operator_options import Differentiation, Inference, Lowering

MIN_LOG = -1e20
"""Fluid's value of log(0), so that one impossible label does not make the whole loss infinite."""
_LABEL_ATTRS = (
    Attr("soft_label", "bool", False, doc="Label holds a probability for each class, not the class"),
    Attr("ignore_index", "int", -100, doc="rows of this class cost 0; of no effect on soft labels"),
)
_LABELS = (*INTS, *ALL_FLOATS)
Dims = tuple[e.Number, ...]

# Shared helpers ---------------------------------------------------------------------------------------------------


def check_label(scores: e.Tensor, label: e.Tensor, soft: bool, axis: int = -1, short: bool = False) -> tuple[int, Dims]:
    """Check the label of scores; return the axis of the classes and the dims of the loss.

    ``soft``: label is [..., classes, ...], a probability for each class; else [..., 1, ...], the class.
    ``axis``: the axis of the classes.
    ``short``: label may also lack its last dim of 1, as the loss does then.
    """
    dims = scores.dims
    if len(dims) < 2:
        e.fail(e.slot(scores), "[..., classes], rank 2 or more")
    at = e.axis("axis", axis, scores)
    e.need(dims[at] != 0, e.slot(scores), "[..., classes, ...], one class or more")
    rows = _row_dims(scores, at)
    if soft:
        e.same_dtype(label, scores)
        if not e.all_agree(label.dims, dims):
            e.fail("Label", f"{e.describe_dims(dims)}, as {e.slot(scores)}, since soft_label is True")
        return at, rows
    if label.dtype not in INTS:
        e.fail_dtype("Label", ", ".join(INTS), "use soft_label=True for labels that are probabilities")
    if short and e.all_agree(label.dims, dims[:-1]):
        return at, dims[:-1]
    if not e.all_agree(label.dims, rows):
        e.fail("Label", f"{e.describe_dims(rows)}, a class for each row of {e.slot(scores)}")
    return at, rows


def _row_dims(scores: e.Tensor, at: int) -> Dims:
    """The dims of scores with 1 at the axis of the classes."""
    return (*scores.dims[:at], e.number(1), *scores.dims[at + 1 :])


def classes(label: e.Tensor, scores: e.Tensor, at: int, ignore_index: int) -> tuple[e.Tensor, e.Tensor]:
    """The class of each row of scores (0 in ignored rows), and the mask of ignored rows; classes are checked."""
    index = e.cast(e.reshape(label, _row_dims(scores, at)), "int64")
    ignored = index == ignore_index
    return e.checked(e.where(ignored, 0, index), scores.dims[at]), ignored


def cost_of(probability: e.Tensor) -> e.Tensor:
    """The negative logarithm, at most 1e20."""
    return e.minimum(-e.log(probability), -MIN_LOG)


# cross_entropy -----------------------------------------------------------------------------------------------------


@operator(
    "cross_entropy",
    inputs={
        "X": "probabilities, [..., classes], as ``softmax`` makes them",
        "Label": "classes, [..., 1] or without the last dim, integers; with soft_label probabilities, [..., classes]",
    },
    outputs=("Y",),
    attrs=_LABEL_ATTRS,
    dtypes={"X": ALL_FLOATS, "Label": _LABELS},
    doc="Y = -log(X[Label]), or -sum(Label log(X)) if soft_label; -log(0) counts as 1e20, which as a "
    "float16 is infinite",
    source="Fluid cross_entropy_op.cc",
)
def cross_entropy(x: e.Tensor, label: e.Tensor, *, soft_label: bool, ignore_index: int) -> e.Tensor:
    """The cross entropy of probabilities."""
    at, dims = check_label(x, label, soft_label, short=True)
    if soft_label:
        return e.reduce_sum(label * cost_of(x), at, keep=True)
    index, ignored = classes(label, x, at, ignore_index)
    return e.reshape(e.where(ignored, 0, cost_of(e.pick(x, index, at))), dims)


@gradient(
    cross_entropy,
    Lowering(decomposed=("Label@GRAD",)),
    writes=("X", "Label"),
    doc="X@GRAD = -Y@GRAD / X at the label (0 elsewhere, and in ignored rows), or -Y@GRAD Label / X if soft_label; "
    "then Label@GRAD = -Y@GRAD log(X), which Fluid does not give",
)
def cross_entropy_grad(
    x: e.Tensor, label: e.Tensor, dy: e.Tensor, *, soft_label: bool, ignore_index: int
) -> tuple[e.Tensor, e.Tensor]:
    """Hand-written: the derived gradient is NaN where X is 0; Fluid's is infinite."""
    at = x.rank - 1
    cost = e.reshape(dy, _row_dims(x, at))
    if soft_label:
        return e.where(e.equal(label, 0), 0, -(label * cost) / x), cost_of(x) * cost
    index, ignored = classes(label, x, at, ignore_index)
    slope = e.where(ignored, 0, -cost / e.pick(x, index, at))
    return e.put(slope, index, at, x.dims[at]), _no_gradient(label)


def _no_gradient(label: e.Tensor) -> e.Tensor:
    """Zeros, as the gradient of integer classes."""
    return e.full(label.dims, 0, e.wide(label).dtype)


# softmax_with_cross_entropy ----------------------------------------------------------------------------------------


@operator(
    "softmax_with_cross_entropy",
    inputs={
        "Logits": "scores, [..., classes, ...]",
        "Label": "classes, [..., 1, ...], integers; with soft_label probabilities, [..., classes, ...]",
    },
    outputs=(Slot("Softmax", dispensable=True, intermediate=True, content="softmax(Logits)"), "Loss"),
    attrs=(
        *_LABEL_ATTRS,
        Attr("numeric_stable_mode", "bool", True, doc="accepted for Fluid programs; the stable formula is always used"),
        Attr("axis", "int", -1, doc="the axis of the classes; negative ones count from the end"),
    ),
    dtypes={"Logits": ALL_FLOATS, "Label": _LABELS},
    doc="Softmax = exp(D) / sum(exp(D)), D = Logits - their maximum; Loss = log(sum(exp(D))) - D[Label], or the sum of "
    "that over soft labels. Fluid takes it from probabilities, with softmax's limit of exp(-64): none is needed here, "
    "as the derivative is Softmax - Label",
    source="Fluid softmax_with_cross_entropy_op.cc",
)
def softmax_with_cross_entropy(
    logits: e.Tensor, label: e.Tensor, *, soft_label: bool, ignore_index: int, axis: int
) -> tuple[e.Tensor, e.Tensor]:
    """Subtract the maximum, so that nothing overflows."""
    at, _ = check_label(logits, label, soft_label, axis)
    maximum = e.reduce_max(logits, at, keep=True, empty=True)
    shifted = logits - maximum
    powers = e.exp(shifted)
    total = e.reduce_sum(powers, at, keep=True)
    if soft_label:
        return powers / total, e.reduce_sum(label * (e.log(total) - shifted), at, keep=True)
    index, ignored = classes(label, logits, at, ignore_index)
    cost = e.log(total) - (e.pick(logits, index, at) - maximum)  # large logits lose no digits
    return powers / total, e.where(ignored, 0, cost)


_infer_derived = infer_gradient(GRAD)


def _infer_softmax_grad(call: Call) -> Any:
    if call.outs.get("Label@GRAD") and not call.has("Logits"):
        call.fail("Logits", "a value, which Label@GRAD needs")
    return _infer_derived(call)


@gradient(
    softmax_with_cross_entropy,
    Differentiation(dispensable=("Softmax@GRAD",), only_for={"Logits": "Label"}),
    Inference(_infer_softmax_grad),
    Lowering(decomposed=("Softmax@GRAD", "Label@GRAD")),
    writes=("Logits", "Label"),
    doc="Logits@GRAD = Loss@GRAD (Softmax - one_hot(Label)), 0 in ignored rows; of soft labels Loss@GRAD (Softmax "
    "sum(Label) - Label), where Fluid takes their sum for 1, and Label@GRAD = -Loss@GRAD log(softmax(Logits)), which "
    "Fluid does not give; the gradient of Softmax, if there is one, is added to Logits@GRAD",
)
def softmax_with_cross_entropy_grad(
    logits: e.Tensor | None,
    softmax: e.Tensor,
    label: e.Tensor,
    dsoftmax: e.Tensor | None,
    dloss: e.Tensor,
    *,
    soft_label: bool,
    ignore_index: int,
    axis: int,
) -> tuple[e.Tensor, e.Tensor]:
    """Hand-written: the derived gradient reads both Logits and Softmax."""
    at = e.axis("axis", axis, softmax)
    cost = e.reshape(dloss, _row_dims(softmax, at))
    if soft_label:
        dlogits = (softmax * e.reduce_sum(label, at, keep=True) - label) * cost
    else:
        index, ignored = classes(label, softmax, at, ignore_index)
        cost = e.where(ignored, 0, cost)
        dlogits = e.put(-cost, index, at, softmax.dims[at], softmax * cost)
    if dsoftmax is not None:
        dlogits = dlogits + softmax * (dsoftmax - e.reduce_sum(softmax * dsoftmax, at, keep=True))
    if not soft_label or logits is None:
        return dlogits, _no_gradient(label)
    shifted = logits - e.reduce_max(logits, at, keep=True, empty=True)
    return dlogits, (e.log(e.reduce_sum(e.exp(shifted), at, keep=True)) - shifted) * cost
