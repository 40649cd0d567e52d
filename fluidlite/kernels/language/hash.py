"""hash: XXH64; a work-item hashes one row with one seed."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import Call, Context, register_kernel

from .source import Buffer, build

_ROTATED = "(({0} << {1}) | ({0} >> (64 - {1})))"
_LANES = ("a", "b", "c", "d")
_MIX = "{lane} += {word} * P2; {lane} = " + _ROTATED.format("{lane}", 31) + " * P1;"
_MERGE = "w = 0; " + _MIX.format(lane="w", word="{lane}") + " h = (h ^ w) * P1 + P4;"

_HASH = """
  const $U P1 = 0x9E3779B185EBCA87UL, P2 = 0xC2B2AE3D27D4EB4FUL, P3 = 0x165667B19E3779F9UL;
  const $U P4 = 0x85EBCA77C2B2AE63UL, P5 = 0x27D4EB2F165667C5UL;
  const index_t row = gid / hashes, from = row * width, bytes = width * $size, count = bytes / 8;
  const $U seed = ($U)(gid - row * hashes);
  $U h, w;
  index_t i = 0;
  if (bytes >= 32) {
    $U a = seed + P1 + P2, b = seed + P2, c = seed, d = seed - P1;
    for (; i + 4 <= count; i += 4) { $stripe }
    h = $joined;
    $merged
  } else {
    h = seed + P5;
  }
  h += ($U)bytes;
  for (; i < count; ++i) { w = 0; $lane h ^= w; h = $turned27 * P1 + P4; }
  $rest
  h = (h ^ (h >> 33)) * P2;
  h = (h ^ (h >> 29)) * P3;
  h ^= h >> 32;
  out[gid] = ($T)(h % ($U)mod_by);
"""

_REST = """if (bytes % 8) { h ^= ($U)($W)x[from + width - 1] * P1; h = $turned23 * P2 + P3; }"""


@register_kernel("hash", "language")
def hash_(call: Call, context: Context) -> Any:
    """Out[i, j, 0] = the hash of row i under seed j, modulo ``mod_by``."""
    dtype, (rows, width), hashes = call.dtype("X"), call.dims("X"), call.attr("num_hash")
    types, narrow = context.language.types, dtype == "int32"
    wide, single = types["uint64"], types["uint32"]

    def word(at: str) -> str:
        if narrow:
            return f"(({wide})({single})x[from + 2 * ({at})] | (({wide})({single})x[from + 2 * ({at}) + 1] << 32))"
        return f"({wide})x[from + {at}]"

    words = {
        "U": wide,
        "T": types[dtype],
        "size": "4" if narrow else "8",
        "stripe": " ".join(_MIX.format(lane=lane, word=word(f"i + {k}")) for k, lane in enumerate(_LANES)),
        "joined": " + ".join(_ROTATED.format(lane, bits) for lane, bits in zip(_LANES, (1, 7, 12, 18), strict=True)),
        "merged": "\n    ".join(_MERGE.format(lane=lane) for lane in _LANES),
        "lane": _MIX.format(lane="w", word=word("i")),
        "turned27": _ROTATED.format("h", 27),
        "rest": _REST.replace("$U", wide).replace("$W", single).replace("$turned23", _ROTATED.format("h", 23))
        if narrow
        else "",
    }
    kernel = build(
        context,
        f"hash_{dtype}",
        [Buffer("x", dtype), Buffer("out", dtype, True)],
        ["width", "hashes", "mod_by"],
        _HASH,
        words,
    )
    numbers = (width, hashes, call.attr("mod_by"))
    return lambda context, io: kernel(context, rows * hashes, (io.span("X"), io.span("Out")), numbers)
