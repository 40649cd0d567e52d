"""The random unit: Philox 4x32-10 (Salmon et al., SC'11), so that element i does not depend on the work partition.

Element i is the upper 24 bits of word i % 4 of block i // 4. Normal numbers are sqrt(2) erfinv of it,
by Giles' polynomials ("Approximating the erfinv function", GPU Computing Gems, 2011).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import erf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_MASK, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_ROUNDS = 10
_CENTRAL = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
    0.246640727, 1.50140941,
)  # fmt: skip
_TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)  # fmt: skip

Random = Sequence[int]
"""Key (two words), run number, stream."""


def _upper_bits(count: int, random: Random) -> NDArray[np.int32]:
    """The upper 24 bits of ``count`` words."""
    key0, key1, run, stream = random
    blocks = np.arange((count + 3) // 4, dtype=np.uint64)
    c0, c1 = blocks & _MASK, blocks >> _HALF
    c2, c3 = np.full_like(blocks, run & 0xFFFFFFFF), np.full_like(blocks, stream & 0xFFFFFFFF)
    for _ in range(_ROUNDS):
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c2 = (p1 >> _HALF) ^ c1 ^ np.uint64(key0), (p0 >> _HALF) ^ c3 ^ np.uint64(key1)
        c1, c3 = p1 & _MASK, p0 & _MASK
        key0, key1 = (key0 + _W0) & 0xFFFFFFFF, (key1 + _W1) & 0xFFFFFFFF
    words = np.stack([c0, c1, c2, c3], axis=1).reshape(-1)[:count]
    return (words >> np.uint64(8)).astype(np.int32)


def uniform(count: int, random: Random) -> NDArray[np.float32]:
    """Numbers in [0, 1), each a multiple of 2 ** -24."""
    return _upper_bits(count, random).astype(np.float32) * np.float32(2.0**-24)


def gaussian(count: int, random: Random) -> NDArray[np.float32]:
    """Numbers of the standard normal distribution."""
    x = (2 * _upper_bits(count, random) + (1 - 2**24)).astype(np.float32) * np.float32(2.0**-24)
    w = -np.log((1 - x) * (1 + x))
    central, tail = _polynomial(_CENTRAL, w - np.float32(2.5)), _polynomial(_TAIL, np.sqrt(w) - np.float32(3))
    result: NDArray[np.float32] = x * np.float32(sqrt(2)) * np.where(w < 5, central, tail)
    return result


def truncated(count: int, random: Random) -> NDArray[np.float32]:
    """Numbers of the standard normal distribution truncated at two standard deviations."""
    t = np.float32(erf(sqrt(2))) * (2 * uniform(count, random) - 1)
    w = -np.log((1 - t) * (1 + t)) - np.float32(2.5)
    result: NDArray[np.float32] = np.float32(sqrt(2)) * _polynomial(_CENTRAL, w) * t
    return result


def _polynomial(coefficients: Sequence[float], x: NDArray[np.float32]) -> Any:
    result = x * np.float32(coefficients[0]) + np.float32(coefficients[1])
    for coefficient in coefficients[2:]:
        result = result * x + np.float32(coefficient)
    return result
