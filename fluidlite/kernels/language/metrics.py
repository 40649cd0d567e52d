"""mean_iou and precision_recall: classes are counted by :mod:`counting`, then one work-item computes the scores."""

from __future__ import annotations

from math import prod
from string import Template
from typing import Any

from fluidlite.plugin import IO, Call, Context, KernelOptions, Prepared, register_kernel

from .counting import counter
from .source import PER_ITEM, STATUS, Buffer, build, ctype, scratch

_CHECK_CLASSES = """
    const index_t p = found[i], l = label[i];
    if (p < 0 || p >= classes) bad_index(status, op_id, p, classes);
    else if (l < 0 || l >= classes) bad_index(status, op_id, l, classes);
"""

_IOU_ROW = (
    _CHECK_CLASSES
    + """
    else if (p == l) counts[mine + p] += 1;
    else { counts[mine + classes + p] += 1; counts[mine + classes + l] += 1; }
"""
)
# If the status word is set, counts are taken as 0: outputs may be state.
_IOU = """
  const int known = status[0] == 0;
  float total = 0, occurs = 0;
  for (index_t c = 0; c < classes; ++c) {
    const index_t right = (known ? counts[c] : 0)$corrects, wrong = (known ? counts[classes + c] : 0)$wrongs;
    if (right + wrong > 0) { total += (float)right / (float)(right + wrong); occurs += 1; }
    $stores
  }
  $mean
"""


@register_kernel("mean_iou", "language", options=KernelOptions(indexes=True, written_for="cores"))
def mean_iou(call: Call, context: Context) -> Any:
    """OutCorrect, OutWrong: right and wrong predictions of each class; OutMeanIou: the mean right / (right + wrong)."""
    n, dtype = call.attr("num_classes"), call.dtype("Predictions")
    counted = counter(
        context,
        "mean_iou_counts",
        [Buffer("found", dtype), Buffer("label", dtype), STATUS],
        ["classes", "op_id"],
        _IOU_ROW,
        {},
        "int32",
        prod(call.dims("Predictions")),
        2 * n,
    )
    lists = {"InCorrects": "corrects", "InWrongs": "wrongs", "InMeanIou": "means"}
    kinds = {"InMeanIou": "float32"}
    states = [(slot, i) for slot in lists for i in range(len(call.ins.get(slot, ())))]
    terms = {
        name: "".join(f" + {name}{i}[{'0' if slot in kinds else 'c'}]" for s, i in states if s == slot)
        for slot, name in lists.items()
    }
    stores = {"OutCorrect": "out_correct[c] = (int)right;", "OutWrong": "out_wrong[c] = (int)wrong;"}
    results = {"OutCorrect": "out_correct", "OutWrong": "out_wrong", "OutMeanIou": "out_mean"}
    outputs = {slot: name for slot, name in results.items() if call.has(slot)}
    words = {
        "corrects": terms["corrects"],
        "wrongs": terms["wrongs"],
        "stores": " ".join(text for slot, text in stores.items() if slot in outputs),
        "mean": f"out_mean[0] = (occurs > 0 ? total / occurs : 0){terms['means']};" if "OutMeanIou" in outputs else "",
    }
    last = build(
        context,
        "mean_iou",
        [
            Buffer("counts", "int32"),
            STATUS,
            *(Buffer(f"{lists[s]}{i}", kinds.get(s, "int32")) for s, i in states),
            *(Buffer(name, "float32" if slot == "OutMeanIou" else "int32", True) for slot, name in outputs.items()),
        ],
        ["classes"],
        _IOU,
        words,
        aliased=True,
    )

    def run(context: Context, io: IO) -> None:
        counts, status = scratch(io), context.status_span()
        counted.run(context, (io.span("Predictions"), io.span("Labels"), status), counts, (n, io.op_id))
        spans = [counts, status, *(io.span(slot, i) for slot, i in states), *map(io.span, outputs)]
        last(context, 1, spans, (n,), PER_ITEM)

    return Prepared(run, counted.workspace)


_PRECISION_ROW = (
    _CHECK_CLASSES
    + """
    else if (p == l) counts[mine + p] += $weight;
    else { counts[mine + classes + p] += $weight; counts[mine + 2 * classes + l] += $weight; }
"""
)
_RATE = "({0} > 0 || {1} > 0 ? {0} / ({0} + {1}) : ($T)1)"
_SCORES = """
  {
    $T sums[3] = {0, 0, 0}, means[2] = {0, 0};
    for (index_t c = 0; c < classes; ++c) {
      const $T tp = $tp, fp = $fp, fn = $fn;
      sums[0] += tp; sums[1] += fp; sums[2] += fn;
      means[0] += $rate_p; means[1] += $rate_r;
    }
    const $T tp = sums[0], fp = sums[1], fn = sums[2], p = means[0] / classes, r = means[1] / classes;
    $name[0] = p; $name[1] = r; $name[2] = p > 0 || r > 0 ? 2 * p * r / (p + r) : 0;
    const $T mp = $rate_p, mr = $rate_r;
    $name[3] = mp; $name[4] = mr; $name[5] = mp > 0 || mr > 0 ? 2 * mp * mr / (mp + mr) : 0;
  }
"""
_PRECISION = """
  const int known = status[0] == 0;
  $batch
  $accumulated
  $states
"""
_STATES = """
  $T all = 0;
  for (index_t c = 0; c < classes; ++c) all += counts[c] + counts[2 * classes + c];
  for (index_t c = 0; c < classes; ++c) {
    const $T tp = counts[c], fp = counts[classes + c], fn = counts[2 * classes + c];
    const $T found[4] = {tp, fp, all - (tp + fp + fn), fn};
    for (int k = 0; k < 4; ++k) out_states[4 * c + k] = $before(known ? found[k] : 0);
  }
"""


@register_kernel("precision_recall", "language", options=KernelOptions(indexes=True, written_for="cores"), inplace=True)
def precision_recall(call: Call, context: Context) -> Any:
    """AccumStatesInfo: TP, FP, TN, FN of each class; BatchMetrics, AccumMetrics: scores of the batch and the sums."""
    n, dtype, kind = call.attr("class_number"), call.dtype("MaxProbs"), ctype(context, call.dtype("MaxProbs"))
    reads = [Buffer("found", call.dtype("Indices")), Buffer("label", call.dtype("Labels"))]
    slots = ["Indices", "Labels"]
    if call.has("Weights"):
        reads.append(Buffer("weight", dtype))
        slots.append("Weights")
    counted = counter(
        context,
        "precision_counts",
        [*reads, STATUS],
        ["classes", "op_id"],
        _PRECISION_ROW,
        {"weight": "weight[i]" if call.has("Weights") else "1"},
        dtype,
        call.dims("Indices")[0],
        3 * n,
    )
    states = call.has("StatesInfo")

    def scores(name: str, accumulated: bool) -> str:
        def count(k: int, column: int) -> str:
            previous = f"states[4 * c + {column}] + " if accumulated and states else ""
            return f"{previous}counts[{k} * classes + c]"

        rates = {"rate_p": _RATE.format("tp", "fp"), "rate_r": _RATE.format("tp", "fn")}
        text = Template(_SCORES).substitute(
            {"T": "$T", "name": name, "tp": count(0, 0), "fp": count(1, 1), "fn": count(2, 3), **rates}
        )
        return Template(text).substitute(T=kind)

    results = {"BatchMetrics": "batch", "AccumMetrics": "accumulated", "AccumStatesInfo": "out_states"}
    outputs = {slot: name for slot, name in results.items() if call.has(slot)}
    words = {
        "batch": scores("batch", False) if "BatchMetrics" in outputs else "",
        "accumulated": scores("accumulated", True) if "AccumMetrics" in outputs else "",
        "states": Template(_STATES).substitute(T=kind, before="states[4 * c + k] + " if states else "")
        if "AccumStatesInfo" in outputs
        else "",
    }
    last = build(
        context,
        f"precision_recall_{dtype}",
        [
            Buffer("counts", dtype),
            STATUS,
            *([Buffer("states", dtype)] if states else []),
            *(Buffer(name, dtype if name == "out_states" else "float64", True) for name in outputs.values()),
        ],
        ["classes"],
        _PRECISION,
        words,
        aliased=True,
    )

    def run(context: Context, io: IO) -> None:
        counts, status = scratch(io), context.status_span()
        counted.run(context, [*map(io.span, slots), status], counts, (n, io.op_id))
        spans = [counts, status, *([io.span("StatesInfo")] if states else []), *map(io.span, outputs)]
        last(context, 1, spans, (n,), PER_ITEM)

    return Prepared(run, counted.workspace)
