"""auc: parts of the rows are counted into buckets, then one work-item sums the buckets."""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import IO, Call, Context, KernelOptions, Prepared, compute_dtype, register_kernel

from .counting import counter
from .source import PER_ITEM, STATUS, Buffer, build, ctype, load, scratch

_ROW = """
    const $T p = $score;
    const index_t bucket = p >= 0 && p <= 1 ? (index_t)(p * ($T)thresholds) : -1;
    if (bucket < 0) bad_index(status, op_id, bucket, thresholds + 1);
    else counts[mine + 2 * bucket + (label[i] != 0)] += 1;
"""
# From the highest bucket down: the counts that this batch adds to each kind's state, and the area under the curve. The
# position in the ring and each bucket are read before they are written: an output state may alias its input.
_AREA = """
  const int known = status[0] == 0;
  double area = 0, above[2] = {0, 0};
  $start
  for (index_t b = thresholds; b >= 0; --b) {
    double now[2];
    $each
    area += now[0] * (above[1] + now[1] / 2);
    above[0] += now[0];
    above[1] += now[1];
  }
  $end
  $auc
"""
_STATE = {
    "global": "{{ const index_t sum = {stat}[b] + mine; now[{k}] = (double)sum; {to} }}",
    "rows": """{{
      index_t sum = mine;
      for (index_t s = 1; s < steps; ++s) {{
        const index_t old = {stat}[s * buckets + b];
        sum += old;
        if (known) {{ {to} }}
      }}
      now[{k}] = (double)sum;
      {last}
    }}""",
    "ring": """{{
      const index_t sum = {stat}[steps * buckets + b] + mine - (known ? {stat}[place{k} * buckets + b] : 0);
      now[{k}] = (double)sum;
      {to}
    }}""",
}


@register_kernel("auc", "language", options=KernelOptions(indexes=True, written_for="cores"), inplace=True)
def auc(call: Call, context: Context) -> Any:
    """StatPosOut, StatNegOut: counts of positive and negative rows by bucket; AUC: the area under the ROC curve."""
    dtype, (rows, width) = call.dtype("Predict"), call.dims("Predict")
    thresholds, steps = call.attr("num_thresholds"), call.attr("slide_steps")
    score = load(dtype, f"predict[i * {width} + {width - 1}]")
    counted = counter(
        context,
        f"auc_counts{width}_{dtype}",
        [Buffer("predict", dtype), Buffer("label", call.dtype("Label")), STATUS],
        ["thresholds", "op_id"],
        _ROW,
        {"T": ctype(context, compute_dtype(dtype)), "score": score},
        "int32",
        rows,
        2 * (thresholds + 1),
    )
    buckets = thresholds + 1
    layout = "global" if not steps else "rows" if prod(call.dims("StatPos")) == steps * buckets else "ring"
    kinds = {"Neg": "neg", "Pos": "pos"}
    output_kinds = [kind for kind in kinds if call.has(f"Stat{kind}Out")]
    text = {"start": "", "each": "", "end": "", "auc": ""}
    for k, (kind, name) in enumerate(kinds.items()):
        for part, statements in _auc_text(layout, name, k, kind in output_kinds).items():
            text[part] += statements + "\n"
    if call.has("AUC"):
        text["auc"] = "auc[0] = above[0] > 0 && above[1] > 0 ? area / (above[0] * above[1]) : 0;"
    last = build(
        context,
        f"auc_{layout}",
        [
            Buffer("counts", "int32"),
            STATUS,
            *(Buffer(name, "int64") for name in kinds.values()),
            *(Buffer(f"{kinds[kind]}_out", "int64", True) for kind in output_kinds),
            *([Buffer("auc", "float64", True)] if call.has("AUC") else []),
        ],
        ["thresholds", "steps"],
        "  const index_t buckets = thresholds + 1;\n" + _AREA,
        text,
        aliased=True,
    )
    slots = ["StatNeg", "StatPos", *(f"Stat{kind}Out" for kind in output_kinds), *(["AUC"] if call.has("AUC") else [])]

    def run(context: Context, io: IO) -> None:
        counts, status = scratch(io), context.status_span()
        counted.run(context, (io.span("Predict"), io.span("Label"), status), counts, (thresholds, io.op_id))
        last(context, 1, [counts, status, *map(io.span, slots)], (thresholds, steps), PER_ITEM)

    return Prepared(run, counted.workspace)


def _auc_text(layout: str, name: str, k: int, has_output: bool) -> dict[str, str]:
    """Return the statements of one kind of rows: before the loop over buckets, in it, and after it."""
    mine = f"known ? counts[2 * b + {k}] : 0"
    out = f"{name}_out"
    writes = {
        "global": {"to": f"{out}[b] = sum;", "last": ""},
        "rows": {
            "to": f"{out}[(s - 1) * buckets + b] = old;",
            "last": f"if (known) {out}[(steps - 1) * buckets + b] = mine;\n"
            f"      else {{ for (index_t s = 0; s < steps; ++s) {out}[s * buckets + b] = {name}[s * buckets + b]; }}",
        },
        "ring": {
            "to": "for (index_t s = 0; s < steps; ++s) {"
            f" {out}[s * buckets + b] = known && s == place{k} ? mine : {name}[s * buckets + b]; }}\n"
            f"      {out}[steps * buckets + b] = sum;",
            "last": "",
        },
    }[layout]
    if not has_output:
        writes = {"to": "", "last": ""}
    each = _STATE[layout].format(stat=name, k=k, **writes)
    texts = {"each": f"{{ const index_t mine = {mine}; {each} }}"}
    if layout == "ring":
        times = f"{name}[(steps + 1) * buckets]"
        texts["start"] = f"const index_t times{k} = {times}, place{k} = (times{k} % steps + steps) % steps;"
        if has_output:
            texts["end"] = f"{out}[(steps + 1) * buckets] = times{k} + known;"
    return texts
