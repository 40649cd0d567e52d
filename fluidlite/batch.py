"""``batch``: a reader of samples to a reader of lists of samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fluidlite.base.arguments import as_whole
from fluidlite.base.errors import ProgramError
from fluidlite.layer_helper import check_bool, check_function


def batch(
    reader: Callable[[], Iterable[Any]], batch_size: int, drop_last: bool = False
) -> Callable[[], Iterator[list[Any]]]:
    """Return a reader of batches.

    Parameters
    ----------
    reader : callable
        Makes an iterable of samples each time it is called.
    batch_size : int
        1 or more.
    drop_last : bool
        Leave out a last batch that is smaller.
    """
    size = as_whole(batch_size)
    if size is None or size < 1:
        raise ProgramError(f"batch_size is {batch_size!r}; expected an int of 1 or more")
    check_function("reader", reader)
    drop_last = check_bool("drop_last", drop_last)

    def batches() -> Iterator[list[Any]]:
        held: list[Any] = []
        for sample in reader():
            held.append(sample)
            if len(held) == size:
                yield held
                held = []
        if held and not drop_last:
            yield held

    return batches
