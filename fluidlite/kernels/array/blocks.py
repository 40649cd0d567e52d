"""Sums over all elements in blocks that stay in cache, so that no temporary is as large as the tensor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

BLOCK = 65536


def blocks(array: Any) -> Iterator[Any]:
    """The elements of a contiguous array, block by block, as views of one dimension."""
    flat = array.reshape(-1)
    for start in range(0, flat.shape[0], BLOCK):
        yield flat[start : start + BLOCK]
