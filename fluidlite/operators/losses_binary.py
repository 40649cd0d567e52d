"""Elementwise losses of two classes and of ranked pairs."""

from __future__ import annotations

from typing import Any

from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS, compute_dtype
from fluidlite.expr import abs_, exp, log, log1p, logical_and, maximum, where, zeros_like
from fluidlite.expr.declare import gradient, operator
from fluidlite.operators.scalar_op import Elementwise, scalar_op
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Aliasing, Differentiation, Lowering
from fluidlite.program.rules import ScalarRule

# hinge_loss --------------------------------------------------------------------------------------------------------

scalar_op(
    "hinge_loss",
    lambda logits, labels: maximum(1 - (2 * labels - 1) * logits, 0),
    Elementwise(outputs=("Loss",), differentiable=("Logits", "Labels")),
    grad=lambda logits, labels, dloss: (
        where((2 * labels - 1) * logits < 1, (1 - 2 * labels) * dloss, 0),
        where((2 * labels - 1) * logits < 1, -2 * logits * dloss, 0),
    ),
    dtypes=ALL_FLOATS,
    doc="Loss = max(0, 1 - (2 Labels - 1) Logits), Labels 0 or 1",
    source="Fluid hinge_loss_op.cc",
)

# log_loss ----------------------------------------------------------------------------------------------------------


scalar_op(
    "log_loss",
    lambda predicted, labels, *, epsilon: (
        -labels * log(predicted + epsilon) - (1 - labels) * log(1 - predicted + epsilon)
    ),
    Elementwise(outputs=("Loss",), differentiable=("Predicted", "Labels")),
    attrs=(Attr("epsilon", "float", doc="keeps the logarithms finite"),),
    grad=lambda predicted, labels, dloss, *, epsilon: (
        dloss * ((1 - labels) / (1 - predicted + epsilon) - labels / (predicted + epsilon)),
        dloss * (log(1 - predicted + epsilon) - log(predicted + epsilon)),
    ),
    dtypes=ALL_FLOATS,
    doc="Loss = -Labels ln(Predicted + epsilon) - (1 - Labels) ln(1 - Predicted + epsilon)",
    source="Fluid log_loss_op.cc",
)

# modified_huber_loss -----------------------------------------------------------------------------------------------


def _modified_huber(x: Any, y: Any) -> Any:
    value = x * (2 * y - 1)
    return value, where(value < -1, -4 * value, maximum(1 - value, 0) * maximum(1 - value, 0))


def _modified_huber_grad(x: Any, y: Any, intermediate_val: Any, dout: Any) -> Any:
    slope = where(intermediate_val < -1, -4, -2 * maximum(1 - intermediate_val, 0)) * dout
    return slope * (2 * y - 1), slope * 2 * x if x is not None else zeros_like(dout)


scalar_op(
    "modified_huber_loss",
    _modified_huber,
    Differentiation(only_for={"X": "Y"}),
    Elementwise(
        outputs=("IntermediateVal", "Out"),
        slots=[Slot("IntermediateVal", intermediate=True, content="X (2 Y - 1)")],
        differentiable=("X", "Y"),
    ),
    grad=_modified_huber_grad,
    dtypes=ALL_FLOATS,
    doc="v = X (2 Y - 1); Out = max(0, 1 - v)^2, but -4 v if v < -1; Y is 0 or 1",
    source="Fluid modified_huber_loss_op.cc",
)

# rank_loss ---------------------------------------------------------------------------------------------------------


def _softplus(x: Any) -> Any:
    return maximum(x, 0) + log1p(exp(-abs_(x)))


def _rank_grad(label: Any, left: Any, right: Any, dout: Any) -> Any:
    slope = (1 / (1 + exp(right - left)) - label) * dout
    return slope, -slope, (right - left) * dout


scalar_op(
    "rank_loss",
    lambda label, left, right: _softplus(left - right) - label * (left - right),
    Elementwise(differentiable=("Left", "Right", "Label")),
    grad=_rank_grad,
    dtypes=ALL_FLOATS,
    doc="Out = ln(1 + exp(Left - Right)) - Label (Left - Right)",
    source="Fluid rank_loss_op.cc",
)

# margin_rank_loss --------------------------------------------------------------------------------------------------


def _margin_rank(x1: Any, x2: Any, label: Any, *, margin: float) -> Any:
    loss = margin - label * (x1 - x2)
    return where(loss > 0, 1, 0), maximum(loss, 0)


def _margin_rank_grad(x1: Any, x2: Any, label: Any, activated: Any, dout: Any) -> Any:
    slope = activated * label * dout
    # X1 and X2 are None if the gradient of Label is not requested.
    difference = x2 - x1 if x1 is not None and x2 is not None else zeros_like(dout)
    return -slope, slope, activated * difference * dout


scalar_op(
    "margin_rank_loss",
    _margin_rank,
    Differentiation(only_for={"X1": "Label", "X2": "Label"}),
    Elementwise(
        outputs=("Activated", "Out"),
        slots=[Slot("Activated", intermediate=True, content="1 where Out is above 0, else 0")],
        differentiable=("X1", "X2", "Label"),
        grad_attrs=(),
    ),
    attrs=(Attr("margin", "float", 0.0, doc="the difference of scores from which on the loss is 0"),),
    grad=_margin_rank_grad,
    dtypes=ALL_FLOATS,
    doc="Out = max(0, margin - Label (X1 - X2)), Label 1 or -1",
    source="Fluid margin_rank_loss_op.cc",
)

# teacher_student_sigmoid_loss --------------------------------------------------------------------------------------


def _click_weight(label: Any) -> Any:
    """The weight of X in the loss: 1 for a click without a value (-1), the label itself from 0 on."""
    return where(label < -1, 0, where(label < 0, 1, label))


def _teacher_student(x: Any, label: Any, *, soft_max_up_bound: float, soft_max_lower_bound: float) -> Any:
    return where(label < 0, 1, 2) * _softplus(x) - _click_weight(label) * x


def _teacher_student_grad(x: Any, label: Any, dy: Any, *, soft_max_up_bound: float, soft_max_lower_bound: float) -> Any:
    inside = logical_and(x < soft_max_up_bound, x > soft_max_lower_bound)
    slope = where(inside, (where(label < 0, 1, 2) / (1 + exp(-x)) - _click_weight(label)) * dy, 0)
    return slope, where(label < 0, 0, -x * dy)


scalar_op(
    "teacher_student_sigmoid_loss",
    _teacher_student,
    Elementwise(outputs=("Y",), differentiable=("X", "Label")),
    attrs=(
        Attr("soft_max_up_bound", "float", 15.0, doc="from here on up X@GRAD is 0"),
        Attr("soft_max_lower_bound", "float", -15.0, doc="from here on down X@GRAD is 0"),
    ),
    grad=_teacher_student_grad,
    dtypes=ALL_FLOATS,
    doc="Y = the sigmoid cross entropy of X with the click, and with the teacher's value if there is one; Label: -2 no "
    "click, -1 click, else click (0 or 1) plus value",
    source="Fluid teacher_student_sigmoid_loss_op.cc",
)

# sigmoid_cross_entropy_with_logits ---------------------------------------------------------------------------------

_MIN_DIVISOR = 1e-5
"""Lower bound of the number of elements that divides the loss, as in Fluid."""


def _is_ignored(label: Any, ignore: int) -> Any:
    """Whether the truncated label is ``ignore``."""
    first, last = (ignore, ignore + 1) if ignore > 0 else (ignore - 1, ignore) if ignore < 0 else (-1, 1)
    above = label >= first if ignore > 0 else label > first
    return logical_and(above, label <= last if ignore < 0 else label < last)


def _sigmoid_loss(x: Any, label: Any, *, ignore_index: int) -> Any:
    return where(_is_ignored(label, ignore_index), 0, _softplus(x) - x * label)


def _sigmoid_grad(x: Any, label: Any, dout: Any, *, ignore_index: int) -> Any:
    ignored = _is_ignored(label, ignore_index)
    return where(ignored, 0, (1 / (1 + exp(-x)) - label) * dout), where(ignored, 0, -x * dout)


def _refuse_normalize(call: Call) -> str | None:
    return "normalize divides by a count" if call.attr("normalize") else None


def _normalized(x: e.Tensor, label: e.Tensor, ignore: int) -> e.Tensor:
    """Divide by the number of elements whose label is not ``ignore``."""
    counted = e.cast(e.not_equal(label, ignore), compute_dtype(x.dtype))
    return x / maximum(e.reduce_sum(counted, keep=True), _MIN_DIVISOR)


@operator(
    "sigmoid_cross_entropy_with_logits",
    Aliasing(may={"Out": "X"}),
    Lowering(scalar=ScalarRule(_sigmoid_loss, ("Out",), _refuse_normalize)),
    inputs={"X": "scores", "Label": "probabilities, of the dims and dtype of X"},
    attrs=(
        Attr(
            "ignore_index",
            "int",
            -100,
            doc="elements of this label cost 0; labels are truncated for the comparison",
        ),
        Attr("normalize", "bool", False, doc="divide by the number of elements that are not ignored"),
    ),
    dtypes={"X": ALL_FLOATS, "Label": ALL_FLOATS},
    doc="Out = ln(1 + exp(X)) - X Label; 0 where Label is ignore_index",
    source="Fluid sigmoid_cross_entropy_with_logits_op.cc",
)
def sigmoid_cross_entropy(x: e.Tensor, label: e.Tensor, *, ignore_index: int, normalize: bool) -> e.Tensor:
    """An elementwise loss, optionally divided by a count."""
    e.same_dtype(label, x)
    e.same_sizes(label, x.dims, "the dims of X")
    loss: e.Tensor = _sigmoid_loss(x, label, ignore_index=ignore_index)
    return _normalized(loss, label, ignore_index) if normalize else loss


@gradient(
    sigmoid_cross_entropy,
    Aliasing(may={"X@GRAD": "Out@GRAD"}),
    Lowering(scalar=ScalarRule(_sigmoid_grad, ("X@GRAD", "Label@GRAD"), _refuse_normalize)),
    writes=("X", "Label"),
    doc="X@GRAD = (1 / (1 + exp(-X)) - Label) Out@GRAD; Label@GRAD = -X Out@GRAD; 0 where Label is ignore_index",
)
def sigmoid_cross_entropy_grad(
    x: e.Tensor, label: e.Tensor, dout: e.Tensor, *, ignore_index: int, normalize: bool
) -> tuple[e.Tensor, ...]:
    """Hand-written: the derived gradient of softplus as a max and a log1p is wrong at 0."""
    gradients: tuple[e.Tensor, ...] = _sigmoid_grad(x, label, dout, ignore_index=ignore_index)
    return tuple(_normalized(grad, label, ignore_index) for grad in gradients) if normalize else gradients
