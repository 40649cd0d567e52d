"""accuracy."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import IO, Call, Context, register_kernel

from .source import HEAVY, Buffer, build

_BODY = """
  index_t right = 0;
  for (index_t i = 0; i < rows; ++i) {
    int hit = 0;
    for (index_t j = 0; j < k; ++j) hit |= indices[i * k + j] == label[i];
    right += hit;
  }
  $results
"""
_RESULTS = {
    "Accuracy": ("accuracy", "float32", "accuracy[0] = (float)right / (float)(rows > 0 ? rows : 1);"),
    "Correct": ("correct", "int32", "correct[0] = (int)right;"),
    "Total": ("total", "int32", "total[0] = (int)rows;"),
}


@register_kernel("accuracy", "dialect")
def accuracy(call: Call, context: Context) -> Any:
    """Accuracy = Correct / Total, where a row is correct if any of its indices is its label."""
    numbers = call.dims("Indices")
    wanted = [slot for slot in _RESULTS if call.has(slot)]
    results = [Buffer(name, dtype, True) for name, dtype, _ in map(_RESULTS.__getitem__, wanted)]
    kernel = build(
        context, "accuracy",
        [Buffer("indices", call.dtype("Indices")), Buffer("label", call.dtype("Label")), *results],
        ["rows", "k"], _BODY, {"results": "\n  ".join(_RESULTS[slot][2] for slot in wanted)},
    )  # fmt: skip

    def run(context: Context, io: IO) -> None:
        # one item: a few thousand comparisons cost less than a second launch
        kernel(context, 1, [io.span("Indices"), io.span("Label"), *map(io.span, wanted)], numbers, HEAVY)

    return run
