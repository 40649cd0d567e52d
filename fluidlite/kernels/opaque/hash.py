"""hash: XXH64 of all rows at once, a word at a time."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import IO, Call, Context, register_kernel

P1, P2, P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9  # the primes of XXH64
P4, P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
WORD_MASK = 2**64 - 1  # arithmetic is modulo 2**64


@register_kernel("hash", "array")
def hash_(call: Call, context: Context) -> Any:
    """Out[i, j, 0] = the hash of row i under seed j, modulo ``mod_by``."""
    xp, (rows, width), mod_by = context.xp, call.dims("X"), call.attr("mod_by")
    narrow = call.dtype("X") == "int32"

    def run(context: Context, io: IO) -> None:
        out = io.array("Out")
        x = xp.astype(io.array("X"), xp.int64)
        if narrow:
            x = x & 0xFFFFFFFF
        x = xp.astype(x, xp.uint64)
        words = [x[:, i] for i in range(width)]
        tail = None
        if narrow:
            tail = words[-1] if width % 2 else None
            words = [a | _shifted(b, 32) for a, b in zip(words[::2], words[1::2], strict=False)]
        size = 4 * width if narrow else 8 * width
        for seed in range(call.attr("num_hash")):
            start = xp.zeros((rows,), dtype=xp.uint64)
            digest = _digest(start, words, tail, size, seed)
            out[:, seed, 0] = xp.astype(digest % _word(digest, mod_by), out.dtype)

    def _word(like: Any, number: int) -> Any:
        return xp.full_like(like, number & WORD_MASK)

    def _shifted(value: Any, bits: int) -> Any:
        return value << _word(value, bits)

    def _rotated(value: Any, bits: int) -> Any:
        return _shifted(value, bits) | (value >> _word(value, 64 - bits))

    def _mixed(lane: Any, word: Any) -> Any:
        return _rotated(lane + word * _word(word, P2), 31) * _word(word, P1)

    def _digest(zero: Any, words: list[Any], tail: Any, size: int, seed: int) -> Any:
        consumed = 0
        if size >= 32:
            lanes = [_word(zero, start) for start in (seed + P1 + P2, seed + P2, seed, seed - P1)]
            for consumed in range(4, len(words) + 1, 4):
                lanes = [_mixed(lane, word) for lane, word in zip(lanes, words[consumed - 4 : consumed], strict=True)]
            digest = sum((_rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)), start=zero)
            for lane in lanes:
                digest = (digest ^ _mixed(zero, lane)) * _word(zero, P1) + _word(zero, P4)
        else:
            digest = _word(zero, seed + P5)
        digest = digest + _word(zero, size)
        for word in words[consumed:]:
            digest = _rotated(digest ^ _mixed(zero, word), 27) * _word(zero, P1) + _word(zero, P4)
        if tail is not None:
            digest = _rotated(digest ^ (tail * _word(zero, P1)), 23) * _word(zero, P2) + _word(zero, P3)
        for bits, factor in ((33, P2), (29, P3)):
            digest = (digest ^ (digest >> _word(zero, bits))) * _word(zero, factor)
        return digest ^ (digest >> _word(zero, 32))

    return run
