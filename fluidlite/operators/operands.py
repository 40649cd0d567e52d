"""What several expressions require of their operands."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite import expr as e


def column(x: e.Tensor, count: e.Numeric, what: str) -> e.Tensor:
    """Require an operand of [count, 1], or [count]: ``what`` they are. Return it as [count]."""
    expected = f"[{{0}}, 1], {what}"
    if x.rank not in (1, 2):
        known = e.known(count)
        e.fail(e.slot(x), expected.format("n" if known is None else known))
    for size, wanted in zip(x.dims, (count, 1), strict=False):
        e.need(size == wanted, e.slot(x), expected, numbers=(e.number(count),))
    return e.reshape(x, (count,))


def same_dtypes(parts: Sequence[e.Tensor], slot: str) -> None:
    """Require a duplicable slot to hold one tensor or more, of one dtype."""
    if not parts:
        e.fail(slot, "one tensor or more")
    for part in parts:
        if part.dtype != parts[0].dtype:
            e.fail_dtype(slot, f"{parts[0].dtype} in all of them")
