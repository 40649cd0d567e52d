"""nce: noise-contrastive estimation of a class against random classes; and sample_classes, which draws them."""

from __future__ import annotations

import math

from fluidlite import expr as e
from fluidlite.base.dtypes import FLOATS, INTS
from fluidlite.expr.declare import operator
from fluidlite.operators.inference import Inferred, dims_compatible
from fluidlite.operators.operands import column
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Differentiation, Execution, Inference
from fluidlite.program.registry import register_op
from fluidlite.tensor.tensor_spec import Spec

SAMPLERS = ("uniform", "log_uniform", "custom_dist")
_SAMPLER = Attr("sampler", "str", "uniform", choices=SAMPLERS, doc="how classes are drawn")
_CLASSES = Attr("num_total_classes", "int", minimum=1, doc="number of classes")

# sample_classes ----------------------------------------------------------------------------------------------------


def _infer_sample(call: Call) -> Inferred:
    call.need(call.spec("Like").rank >= 1, "Like", "rows of one dim or more")
    custom = call.attr("sampler") == "custom_dist"
    if custom != call.has("Probs"):
        call.fail_attr("sampler", "custom_dist if Probs is given, and no other then")
    if custom:
        classes = call.attr("num_total_classes")
        dims = call.dims("Probs")
        call.need(
            len(dims) == 1 and dims_compatible(dims[0], classes), "Probs", f"[{classes}], a probability for each class"
        )
    return {"Out": Spec.of((call.dims("Like")[0], call.attr("num")), "int64")}


register_op(
    "sample_classes",
    Differentiation(stop_gradient={"Probs": "the drawn classes have no derivative by it"}),
    Inference(_infer_sample),
    Execution(random=True, host_only="classes of a distribution are searched for on the host"),
    inputs=(
        Slot("Like", metadata_only=True, doc="as many rows are drawn as it has"),
        Slot("Probs", dispensable=True, doc="the probability of each class, for custom_dist"),
    ),
    outputs=("Out",),
    attrs=(
        Attr("num", "int", minimum=1, doc="classes a row"),
        _CLASSES,
        _SAMPLER,
        Attr("seed", "int", 0, doc="0: the program's seed; else this operator's own"),
    ),
    dtypes={"Probs": FLOATS},
    doc="Out[i, j] = a class drawn with replacement: uniform; log_uniform, class k with probability "
    "ln((k + 2) / (k + 1)) / ln(classes + 1); or by Probs",
    source="Fluid math/sampler.cc, with all classes: Fluid's nce leaves the last one out, and divides by ln(classes)",
)

_MIN_DIRECT_SCORE = -60.0
"""Below this score exp(-score) may overflow, so that -ln(o / (o + b)) is computed with exp(score)."""

# nce ---------------------------------------------------------------------------------------------------------------


def _probability(classes: e.Tensor, probs: e.Tensor | None, sampler: str, total: int, dtype: str) -> e.Tensor:
    """The probability that a class is drawn."""
    if probs is not None:
        return e.take(e.wide(probs), classes, 0)
    if sampler == "uniform":
        return e.full(classes.dims, 1 / total, dtype)
    return e.log1p(1 / (e.cast(classes, dtype) + 1)) / math.log(total + 1)


@operator(
    "nce",
    Differentiation(
        reads=("Input", "Label", "Weight", "Bias", "SampleWeight", "Samples", "CustomDistProbs"),
        stop_gradient={"SampleWeight": "it is data", "CustomDistProbs": "it is data"},
        doc="with D = Cost@GRAD times -b / (o + b) at true classes and o / (o + b) at drawn ones: Input@GRAD = the "
        "sum of D Weight[class], Weight@GRAD[class] and Bias@GRAD[class] sum up D Input and D",
        memory="Weight@GRAD of the true and of the drawn classes before they are added: twice Weight",
    ),
    inputs=(
        Slot("Input", doc="features, [rows, width]"),
        Slot("Label", doc="the true classes, [rows, true classes]"),
        Slot("Weight", doc="[classes, width]"),
        Slot("Bias", dispensable=True, doc="[classes, 1]"),
        Slot("SampleWeight", dispensable=True, doc="the factor of each row's cost, [rows, 1]"),
        Slot("Samples", doc="the classes that sample_classes drew, [rows, samples]"),
        Slot("CustomDistProbs", dispensable=True, doc="the probability of each class, for custom_dist"),
    ),
    outputs=("Cost",),
    attrs=(_CLASSES, _SAMPLER),
    dtypes={
        "Input": FLOATS,
        "Label": INTS,
        "Weight": FLOATS,
        "Bias": FLOATS,
        "SampleWeight": FLOATS,
        "Samples": INTS,
        "CustomDistProbs": FLOATS,
    },
    doc="Cost = the sum over the true classes of -ln(o / (o + b)) and over the drawn ones of -ln(b / (o + b)); o = "
    "sigmoid(Input Weight[class] + Bias[class]), b = samples times the probability of drawing the class",
    source="Gutmann and Hyvarinen, Noise-contrastive estimation (2010); Fluid nce_op.h, which draws by itself",
)
def nce(
    input: e.Tensor,
    label: e.Tensor,
    weight: e.Tensor,
    bias: e.Tensor | None,
    sample_weight: e.Tensor | None,
    samples: e.Tensor,
    custom_dist_probs: e.Tensor | None,
    *,
    num_total_classes: int,
    sampler: str,
) -> e.Tensor:
    """Gather the weights of the true and the drawn classes."""
    if input.rank != 2:
        e.fail("Input", "[rows, width]")
    rows, width, total = input.dims[0], input.dims[1], num_total_classes
    if weight.rank != 2:
        e.fail("Weight", "[classes, width]")
    e.same_dtype(weight, input)
    e.need(weight.dims[0] == total, "Weight", f"[{total}, width], a row for each class")
    e.need(weight.dims[1] == width, "Weight", "[classes, {0}], as wide as Input", numbers=(width,))
    for slot, classes in (("Label", label), ("Samples", samples)):
        if classes.rank != 2:
            e.fail(slot, "[rows, classes of each]")
        e.need(classes.dims[0] == rows, slot, "[{0}, classes of each], a row for each of Input", numbers=(rows,))
    if (sampler == "custom_dist") != (custom_dist_probs is not None):
        e.fail_attr("sampler", "custom_dist if CustomDistProbs is given, and no other then")
    if custom_dist_probs is not None:
        e.vector(custom_dist_probs, total, "a probability for each class")
        e.same_dtype(custom_dist_probs, input)
    if bias is not None:
        e.same_dtype(bias, input)
        bias = column(bias, total, "one for each class")
    if sample_weight is not None:
        e.same_dtype(sample_weight, input)
        sample_weight = column(sample_weight, rows, "one for each row of Input")

    def scores_and_noise(classes: e.Tensor) -> tuple[e.Tensor, e.Tensor]:
        index = e.checked(e.cast(classes, "int64"), total)
        scores = e.reduce_sum(e.take(weight, index, 0) * e.unsqueeze(input, 1), 2)
        if bias is not None:
            scores = scores + e.take(bias, index, 0)
        noise = _probability(index, custom_dist_probs, sampler, total, scores.dtype) * samples.dims[1]
        return scores, noise

    score, noise = scores_and_noise(label)
    direct = e.log1p(noise * (1 + e.exp(-e.maximum(score, _MIN_DIRECT_SCORE))))
    scaled = e.log(noise + (1 + noise) * e.exp(e.minimum(score, _MIN_DIRECT_SCORE))) - score
    true_cost = e.where(score < _MIN_DIRECT_SCORE, scaled, direct)
    score, noise = scores_and_noise(samples)
    cost = e.reduce_sum(true_cost, 1, keep=True) + e.reduce_sum(e.log1p(e.sigmoid(score) / noise), 1, keep=True)
    if sample_weight is None:
        return cost
    return cost * e.reshape(sample_weight, (rows, 1))
