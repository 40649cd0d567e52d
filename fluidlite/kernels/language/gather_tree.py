"""gather_tree: a work-item follows one beam from the last step to the first."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import IO, Call, Context, KernelOptions, register_kernel

from .source import STATUS, Buffer, build, group_size

# After a parent that is out of range, the beam is its own parent.
_TREE = """
  const index_t first = gid / beams * beams, count = batch * beams;
  index_t at = gid;
  for (index_t step = steps - 1; step >= 0; --step) {
    out[step * count + gid] = ids[step * count + at];
    if (step == 0) continue;
    const index_t parent = parents[step * count + at];
    if (parent < 0 || parent >= beams) { bad_index(status, op_id, parent, beams); at = gid; }
    else at = first + parent;
  }
"""


@register_kernel("gather_tree", "language", options=KernelOptions(indexes=True))
def gather_tree(call: Call, context: Context) -> Any:
    """Out[t] = Ids[t] at the ancestors of the last step's beams."""
    steps, batch, beams = call.dims("Ids")
    dtype = call.dtype("Ids")
    kernel = build(
        context,
        f"gather_tree_{dtype}",
        [Buffer("ids", dtype), Buffer("parents", dtype), Buffer("out", dtype, True), STATUS],
        ["steps", "batch", "beams", "op_id"],
        _TREE,
    )
    items = batch * beams

    def run(context: Context, io: IO) -> None:
        spans = (io.span("Ids"), io.span("Parents"), io.span("Out"), context.status_span())
        kernel(context, items, spans, (steps, batch, beams, io.op_id), group_size(items))

    return run
