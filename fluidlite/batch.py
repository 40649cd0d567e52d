"""``batch``: converts a reader of samples to a reader of batches (lists of samples)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fluidlite.base.arguments import as_int
from fluidlite.base.errors import ProgramError
from fluidlite.layer_helper import check_bool, check_function


def batch(
    reader: Callable[[], Iterable[Any]], batch_size: int, drop_last: bool = False
) -> Callable[[], Iterator[list[Any]]]:
    """Return a reader of batches.

    Parameters
    ----------
    reader : callable
        Returns an iterable of samples at each call.
    batch_size : int
        1 or more.
    drop_last : bool
        Drop a last batch that is smaller.
    """
    size = as_int(batch_size)
    if size is None or size < 1:
        raise ProgramError(f"batch_size is {batch_size!r}; expected an int of 1 or more")
    check_function("reader", reader)
    drop_last = check_bool("drop_last", drop_last)

    def batches() -> Iterator[list[Any]]:
        current_batch: list[Any] = []
        for sample in reader():
            current_batch.append(sample)
            if len(current_batch) == size:
                yield current_batch
                current_batch = []
        if current_batch and not drop_last:
            yield current_batch

    return batches
