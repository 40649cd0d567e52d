"""Seeds of what tensors, initialisers and nodes draw: one sequence a process, which a number starts anew."""

from __future__ import annotations

import hashlib
import os
from itertools import count

from fluidlite.base.errors import NodeError
from fluidlite.base.fork import first_in_child

_start = b""
_numbers = count()


def seed(number: int) -> None:
    """Start the sequence of seeds anew: what is drawn in the same order afterwards is the same, on every place.

    Parameters
    ----------
    number : int
    """
    if isinstance(number, bool) or not isinstance(number, int):
        raise NodeError(f"seed takes {number!r:.60}; expected an int")
    _begin(str(number).encode())


def next_seed() -> int:
    """The next seed, from 1 to 2**31 - 1."""
    digest = hashlib.blake2b(b"%b:%d" % (_start, next(_numbers)), digest_size=8).digest()
    return int.from_bytes(digest) % (2**31 - 1) + 1


def _begin(start: bytes) -> None:
    global _start, _numbers
    _start, _numbers = start, count()


def _draw() -> None:
    _begin(os.urandom(16))


_draw()
first_in_child(_draw)  # workers that are forks of one process draw numbers of their own
