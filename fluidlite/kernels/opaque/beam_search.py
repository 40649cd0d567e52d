"""beam_search: the best candidates of each source, by a partition and a sort of what is left."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from fluidlite.kernel_support import OutOfRangeError
from fluidlite.plugin import IO, Call, Context, register_kernel

from .ragged import Array


def rows_at(lod: tuple[tuple[int, ...], ...], level: int) -> Array:
    """The offsets of a level, counted in rows."""
    offsets = np.asarray(lod[level])
    for below in lod[level + 1 :]:
        offsets = np.asarray(below)[offsets]
    return offsets


def best(scores: Array, rows: Array, count: int) -> Array:
    """Where the best of scores are, the best first; of equal ones those of later rows, and then the earlier."""
    if len(scores) > count:
        least = np.partition(scores, len(scores) - count)[len(scores) - count]
        among = np.flatnonzero(scores >= least)
    else:
        among = np.arange(len(scores))
    order = np.lexsort((among, -rows[among], -scores[among]))
    found: Array = among[order[:count]]
    return found


@register_kernel("beam_search", "cpu", dtypes=("float32", "float64"))
def beam_search(call: Call, context: Context) -> Any:
    """Candidates of a prefix are a row; one that ended has its first column alone."""
    high, count = rows_at(call.lod("scores"), call.attr("level")), call.attr("beam_size")
    end, accumulated = call.attr("end_id"), call.attr("is_accumulated")
    prefixes, *others = call.dims("scores")
    width = prod(others)

    def run(context: Context, io: IO) -> None:
        last, before = io.array("pre_ids").reshape(-1), io.array("pre_scores").reshape(-1)
        scores = io.array("scores").reshape(prefixes, width)
        ended = last == end
        wrong = np.isnan(scores).any(1) if accumulated else ~(scores >= 0).all(1)
        wrong = (wrong & ~ended) | np.isnan(before)
        if wrong.any():
            expected = "numbers" if accumulated else "probabilities, for is_accumulated is False"
            raise OutOfRangeError(
                f"scores of prefix {int(np.flatnonzero(wrong)[0])} are NaN"
                f"{'' if accumulated else ' or negative'}; expected {expected}"
            )
        if not accumulated:
            with np.errstate(divide="ignore"):
                scores = before[:, None] + np.log(scores)
        ids = io.array("ids").reshape(prefixes, width) if io.has("ids") else np.arange(width)[None].repeat(prefixes, 0)
        some = np.ones((prefixes, max(width, 1)), bool)
        some[ended, 1:] = False
        if not width:  # only what ended goes on
            scores, ids = np.zeros((prefixes, 1), before.dtype), np.zeros((prefixes, 1), last.dtype)
            some[~ended] = False
        first = np.where(ended, before, scores[:, 0])
        words = np.where(ended, end, ids[:, 0])
        chosen: list[Array] = []
        picked: list[tuple[Array, Array]] = []
        for begin, stop in pairwise(high.tolist()):
            rows, columns = np.nonzero(some[begin:stop])
            rows = rows + begin
            values = np.where(columns == 0, first[rows], scores[rows, columns])
            at = best(values, rows, count)
            rows, columns = rows[at], columns[at]
            tokens = np.where(columns == 0, words[rows], ids[rows, columns])
            if (ended[rows] & (tokens == end)).all():  # all had ended before: it was written, and ends here
                continue
            grouped = np.argsort(rows, kind="stable")
            chosen.append(rows[grouped])
            picked.append((tokens[grouped], values[at][grouped]))
        parents = np.concatenate(chosen) if chosen else np.zeros(0, np.int64)
        low = np.concatenate(([0], np.cumsum(np.bincount(parents, minlength=prefixes)))) if prefixes else np.zeros(1)
        lod = (tuple(high.tolist()), tuple(low.astype(int).tolist()))
        for slot, which in (("selected_ids", 0), ("selected_scores", 1)):
            if io.has(slot):
                io.resize(slot, (len(parents), 1), lod=lod)
                out = io.array(slot)
                if len(parents):
                    out[:, 0] = np.concatenate([each[which] for each in picked])
        if io.has("parent_idx"):
            io.resize("parent_idx", (len(parents),))
            io.array("parent_idx")[...] = parents

    return run
