"""sample_logits: the scores of the true classes and of random ones; and sample_negatives, which draws these."""

from __future__ import annotations

import numpy as np

from fluidlite import expr as e
from fluidlite.base.dtypes import FLOATS, INTS
from fluidlite.expr.declare import gradient, operator
from fluidlite.operators.inference import Inferred
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Differentiation, Execution, Inference
from fluidlite.program.registry import register_op
from fluidlite.tensor.tensor_spec import Spec

MAX_LOGIT = float(np.float32(1e20))
"""Fluid's limit of scores: it replaces infinity, and is subtracted from the score of a drawn class that is true."""

# sample_negatives ----------------------------------------------------------------------------------------------------


def _infer_negatives(call: Call) -> Inferred:
    labels, classes, count = call.dims("Labels"), call.attr("num_classes"), call.attr("num_samples")
    call.need(len(labels) == 2, "Labels", "[rows, true classes]")
    if count > classes:
        call.fail_attr("num_samples", f"{classes} or less, the number of classes: none is drawn twice")
    dims = (labels[0], labels[1] + count if labels[1] >= 0 else -1)
    return {"Samples": Spec.of(dims, "int64"), "Probabilities": Spec.of(dims, call.attr("dtype"))}


register_op(
    "sample_negatives",
    Inference(_infer_negatives),
    Execution(random=True, host_only="classes are drawn one after the other until enough are different"),
    inputs=(Slot("Labels", doc="the true classes, [rows, true classes]"),),
    outputs=(
        Slot("Samples", doc="the true classes, and behind them drawn ones, the same for each row"),
        Slot("Probabilities", doc="how often each is expected among the drawn ones, as Samples"),
    ),
    attrs=(
        Attr("num_samples", "int", minimum=1, doc="how many different classes are drawn"),
        Attr("num_classes", "int", minimum=1, doc="number of classes"),
        Attr("dtype", "dtype", "float32", choices=FLOATS, doc="dtype of Probabilities"),
        Attr("seed", "int", 0, doc="0: the program's seed; else this operator's own"),
    ),
    dtypes={"Labels": INTS},
    doc="Class k is drawn with probability p = ln((k + 2) / (k + 1)) / ln(num_classes + 1), and again if it was drawn "
    "before; its Probability is 1 - (1 - p)^tries",
    source="Fluid math/sample_prob.h, with uniq",
)

# sample_logits -------------------------------------------------------------------------------------------------------


def _flat_index(samples: e.Tensor, rows: e.Numeric, classes: e.Numeric) -> e.Tensor:
    """The index of each sample's score in the flattened scores."""
    checked = e.checked(e.cast(samples, "int64"), classes)
    return e.reshape(e.iota((rows,), 0), (rows, 1)) * classes + checked


@operator(
    "sample_logits",
    Differentiation(stop_gradient={"Probabilities": "it is data"}),
    inputs=(
        Slot("Logits", doc="scores of all classes, [rows, classes]"),
        Slot("Labels", doc="the true classes, [rows, true classes]"),
        Slot("Samples", doc="the true classes, and behind them others, [rows, true classes + samples]"),
        Slot("Probabilities", doc="the probability of each sample, as Samples"),
    ),
    outputs=(Slot("SampledLogits", doc="as Samples"), Slot("SampledLabels", doc="as Labels")),
    attrs=(Attr("remove_accidental_hits", "bool", True, doc="scores of samples that are true classes get -1e20"),),
    dtypes={"Logits": FLOATS, "Labels": INTS, "Samples": INTS, "Probabilities": FLOATS},
    doc="SampledLogits = Logits of Samples - ln(Probabilities), of infinities 1e20; SampledLabels = the columns of the "
    "true classes",
    source="Fluid sample_logits_op.h, which draws by itself",
)
def sample_logits(
    logits: e.Tensor, labels: e.Tensor, samples: e.Tensor, probabilities: e.Tensor, *, remove_accidental_hits: bool
) -> tuple[e.Tensor, e.Tensor]:
    """Gather scores; an accidental hit is a drawn class that equals one of the row's true ones."""
    for slot, x in (("Logits", logits), ("Labels", labels), ("Samples", samples), ("Probabilities", probabilities)):
        if x.rank != 2:
            e.fail(slot, "rank 2: rows, and classes of each")
    rows, classes, true, sampled = logits.dims[0], logits.dims[1], labels.dims[1], samples.dims[1]
    e.need(labels.dims[0] == rows, "Labels", "[{0}, true classes], a row for each of Logits", numbers=(rows,))
    e.need(samples.dims[0] == rows, "Samples", "[{0}, classes], a row for each of Logits", numbers=(rows,))
    e.need(sampled >= true, "Samples", "[rows, {0} or more]: Labels, and others behind them", numbers=(true,))
    e.need(probabilities.dims[0] == rows, "Probabilities", "the dims of Samples")
    e.need(probabilities.dims[1] == sampled, "Probabilities", "the dims of Samples")
    e.same_dtype(probabilities, logits)
    flat = e.reshape(e.wide(logits), (rows * classes,))
    scores = e.take(flat, _flat_index(samples, rows, classes), 0, "clamp")
    if remove_accidental_hits:
        ids = e.cast(samples, "int64")
        first = e.unsqueeze(e.slice_axis(ids, 1, 0, true), 1)
        is_true_class = e.reduce_any(e.equal(e.unsqueeze(ids, 2), first), 2)
        is_drawn = e.iota((rows, sampled), 1) >= true
        scores = scores - e.where(e.logical_and(is_true_class, is_drawn), MAX_LOGIT, 0.0)
    scores = scores - e.log(e.wide(probabilities))
    scores = e.where(e.isinf(scores), e.where(scores > 0, MAX_LOGIT, -MAX_LOGIT), scores)
    return scores, e.broadcast(e.unsqueeze(e.iota((true,), 0), 0), (rows, true))


@gradient(
    sample_logits,
    writes=("Logits",),
    metadata=("Logits",),
    doc="Logits@GRAD = the sum of SampledLogits@GRAD of each class",
)
def sample_logits_grad(logits: e.Tensor, samples: e.Tensor, dsampled_logits: e.Tensor) -> e.Tensor:
    """Hand-written: it does not read Logits."""
    rows, classes = logits.dims
    flat = e.add_at(e.wide(dsampled_logits), _flat_index(samples, rows, classes), 0, rows * classes)
    return e.reshape(flat, (rows, classes))
