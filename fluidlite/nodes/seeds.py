"""Seeds of random tensors, initialisers and nodes: one sequence for each process, restarted by :func:`seed`."""

from __future__ import annotations

import hashlib
import os
from itertools import count

from fluidlite.base.errors import NodeError
from fluidlite.base.fork import first_in_child

_start = b""
_numbers = count()


def seed(number: int) -> None:
    """Restart the sequence of seeds: equal calls in equal order then draw equal numbers, on every place.

    Parameters
    ----------
    number : int
    """
    if isinstance(number, bool) or not isinstance(number, int):
        raise NodeError(f"seed takes {number!r:.60}; expected an int")
    _restart(str(number).encode())


def next_seed() -> int:
    """The next seed, from 1 to 2**31 - 1."""
    digest = hashlib.blake2b(b"%b:%d" % (_start, next(_numbers)), digest_size=8).digest()
    return int.from_bytes(digest) % (2**31 - 1) + 1


def _restart(start: bytes) -> None:
    global _start, _numbers
    _start, _numbers = start, count()


def _begin_random() -> None:
    _restart(os.urandom(16))


_begin_random()
first_in_child(_begin_random)  # so that forked workers draw different numbers
