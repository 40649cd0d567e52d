"""Checks of operands that several expressions share."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite import expr as e


def column(x: e.Tensor, count: e.Numeric, description: str) -> e.Tensor:
    """Require an operand of [count, 1] or [count], which ``description`` describes. Return it as [count]."""
    expected = f"[{{0}}, 1], {description}"
    if x.rank not in (1, 2):
        known_count = e.static_value(count)
        e.fail(e.slot(x), expected.format("n" if known_count is None else known_count))
    for size, expected_size in zip(x.dims, (count, 1), strict=False):
        e.need(size == expected_size, e.slot(x), expected, numbers=(e.number(count),))
    return e.reshape(x, (count,))


def same_dtypes(parts: Sequence[e.Tensor], slot: str) -> None:
    """Require a duplicable slot to hold one tensor or more, of one dtype."""
    if not parts:
        e.fail(slot, "one tensor or more")
    for part in parts:
        if part.dtype != parts[0].dtype:
            e.fail_dtype(slot, f"{parts[0].dtype} in all of them")
