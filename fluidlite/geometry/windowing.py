"""Random windows of random_crop: the same numbers as Fluid's on the CPU, for each seed.

They come from the "minimal standard" generator of Park, Miller and Stockmeyer (1993), which is ``minstd_rand`` in C++,
as libstdc++'s uniform_int_distribution uses it.
"""

from __future__ import annotations

from collections.abc import Sequence

_FACTOR, _MODULUS = 48271, 2**31 - 1


def random_windows(seed: int, count: int, rooms: Sequence[int]) -> tuple[list[list[int]], int]:
    """Return the starts of ``count`` windows, from 0 to ``rooms`` (included) in each dim, and the next seed."""
    start = seed % 2**64 % _MODULUS or 1
    windows = []
    for instance in range(count):
        state = start * pow(_FACTOR, instance * len(rooms), _MODULUS) % _MODULUS
        window = []
        for room in rooms:
            state, at = _below(state, room + 1)
            window.append(at)
        windows.append(window)
    return windows, start * pow(_FACTOR, count * len(rooms) + 1, _MODULUS) % _MODULUS


def _below(state: int, bound: int) -> tuple[int, int]:
    """Return the next state and a uniform number below ``bound``; draws that would bias it are rejected."""
    scale = (_MODULUS - 2) // bound
    while True:
        state = state * _FACTOR % _MODULUS
        if state - 1 < bound * scale:
            return state, (state - 1) // scale
