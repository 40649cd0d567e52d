"""Philox 4x32-10, the counter-based random number generator of all places (Salmon et al., SC'11).

The counter is (block low, block high, run number, stream + sub-stream), the key the program's seed. Element
``i`` takes word ``i % 4`` of block ``i // 4``; its upper 24 bits make the number:

- uniform: ``(word >> 8) * 2**-24``, in [0, 1), the same bits everywhere;
- gaussian: ``sqrt(2) * erfinv(x)`` of ``x = (2 * (word >> 8) + 1 - 2**24) * 2**-24``, which float32 holds
  exactly, with Giles' single-precision polynomials (2010); places agree to 4 ulp.
"""

from __future__ import annotations

from typing import Any

from fluidlite.codegen.polynomials import horner

M0, M1 = 0xD2511F53, 0xCD9E8D57
W0, W1 = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10
MASK = 0xFFFFFFFF

CENTRAL = (
    1.50140941,
    0.246640727,
    -0.00417768164,
    -0.00125372503,
    0.00021858087,
    -4.39150654e-06,
    -3.5233877e-06,
    3.43273939e-07,
    2.81022636e-08,
)
TAIL = (
    2.83297682,
    1.00167406,
    0.00943887047,
    -0.0076224613,
    0.00573950773,
    -0.00367342844,
    0.00134934322,
    0.000100950558,
    -0.000200214257,
)
"""The lowest power first."""
SQRT2 = 1.4142135623730951

Random = tuple[int, int, int, int]
"""Key (2 words), run number, stream."""


def block(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """The four words of one block, in Python integers: the reference."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        p0, p1 = M0 * c0, M1 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK, (p0 >> 32) ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + W0) & MASK, (k1 + W1) & MASK
    return c0, c1, c2, c3


def _product(a: Any, factor: int) -> tuple[Any, Any]:
    """The upper and lower word of a 32 x 32 bit product, from halves of 16 bits, whose products fit in int64."""
    low = a * (factor & 0xFFFF)
    middle = a * (factor >> 16) + (low >> 16)
    return middle >> 16, ((middle & 0xFFFF) << 16) | (low & 0xFFFF)


def words(xp: Any, start: int, count: int, random: Random, sub: int, device: Any = None) -> Any:
    """Return words ``start`` to ``start + count`` as an integer array.

    ``device`` is passed for namespaces with only the Array-API standard; they compute in int64.
    """
    first, last = start // 4, (start + count + 3) // 4
    skip = start - 4 * first
    if device is None:
        return _unsigned_words(xp, first, last, random, sub)[skip : skip + count]
    key0, key1, run, stream = random
    blocks = xp.arange(first, last, dtype=xp.int64, device=device)
    c0, c1 = blocks & MASK, blocks >> 32
    c2, c3 = xp.full_like(blocks, run & MASK), xp.full_like(blocks, (stream + sub) & MASK)
    for _ in range(ROUNDS):
        high0, low0 = _product(c0, M0)
        high1, low1 = _product(c2, M1)
        c0, c1, c2, c3 = high1 ^ c1 ^ key0, low1, high0 ^ c3 ^ key1, low0
        key0, key1 = (key0 + W0) & MASK, (key1 + W1) & MASK
    return xp.reshape(xp.stack([c0, c1, c2, c3], axis=1), (-1,))[skip : skip + count]


def _unsigned_words(xp: Any, first: int, last: int, random: Random, sub: int) -> Any:
    """The words of blocks ``first`` to ``last`` in uint64, in place."""
    key0, key1, run, stream = random
    count, kind = last - first, xp.uint64
    mask, half = kind(MASK), kind(32)
    c0 = xp.arange(first, last, dtype=kind)
    c1 = c0 >> half
    c0 &= mask
    c2, c3 = xp.full(count, run & MASK, dtype=kind), xp.full(count, (stream + sub) & MASK, dtype=kind)
    for _ in range(ROUNDS):
        c0 *= kind(M0)
        c2 *= kind(M1)
        c1 ^= kind(key0)
        c1 ^= c2 >> half
        c3 ^= kind(key1)
        c3 ^= c0 >> half
        c0 &= mask
        c2 &= mask
        c0, c1, c2, c3 = c1, c2, c3, c0
        key0, key1 = (key0 + W0) & MASK, (key1 + W1) & MASK
    return xp.stack([c0, c1, c2, c3], axis=1).reshape(-1)


def uniform(xp: Any, start: int, count: int, random: Random, sub: int, device: Any = None) -> Any:
    """Return ``count`` float32 numbers in [0, 1) from element ``start`` on."""
    bits = words(xp, start, count, random, sub, device)
    if device is None:
        return (bits >> xp.uint64(8)).astype(xp.float32) * xp.float32(2.0**-24)
    return xp.astype(bits >> 8, xp.float32) * 2.0**-24


def gaussian(xp: Any, start: int, count: int, random: Random, sub: int, device: Any = None) -> Any:
    """Return ``count`` float32 numbers of the standard normal distribution from element ``start`` on."""
    bits = words(xp, start, count, random, sub, device)
    if device is None:
        whole = 2 * (bits >> xp.uint64(8)).astype(xp.int32) + (1 - 2**24)
        x = whole.astype(xp.float32) * xp.float32(2.0**-24)
    else:
        x = xp.astype(2 * (bits >> 8) + (1 - 2**24), xp.float32) * 2.0**-24
    w = -xp.log((1.0 - x) * (1.0 + x))
    return x * SQRT2 * xp.where(w < 5.0, horner(CENTRAL, w - 2.5), horner(TAIL, xp.sqrt(w) - 3.0))
