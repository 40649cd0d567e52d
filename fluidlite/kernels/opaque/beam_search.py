"""beam_search: the best candidates of each source, by a partial sort (partition) and a sort of the selected ones."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from fluidlite.kernel_support import OutOfRangeError
from fluidlite.plugin import IO, Call, Context, register_kernel

from .ragged import Array


def rows_at(lod: tuple[tuple[int, ...], ...], level: int) -> Array:
    """Return the offsets of a LoD level, counted in rows."""
    offsets = np.asarray(lod[level])
    for below in lod[level + 1 :]:
        offsets = np.asarray(below)[offsets]
    return offsets


def best(scores: Array, rows: Array, count: int) -> Array:
    """Return the indices of the largest scores, descending; of equal ones, later rows, then earlier indices first."""
    if len(scores) > count:
        threshold = np.partition(scores, len(scores) - count)[len(scores) - count]
        candidates = np.flatnonzero(scores >= threshold)
    else:
        candidates = np.arange(len(scores))
    order = np.lexsort((candidates, -rows[candidates], -scores[candidates]))
    best_rows: Array = candidates[order[:count]]
    return best_rows


@register_kernel("beam_search", "cpu", dtypes=("float32", "float64"))
def beam_search(call: Call, context: Context) -> Any:
    """Select candidates; each prefix has a row of candidates, and an ended prefix only the first column."""
    source_offsets, count = rows_at(call.lod("scores"), call.attr("level")), call.attr("beam_size")
    end, accumulated = call.attr("end_id"), call.attr("is_accumulated")
    prefixes, *candidate_dims = call.dims("scores")
    width = prod(candidate_dims)

    def run(context: Context, io: IO) -> None:
        previous_ids, previous_scores = io.array("pre_ids").reshape(-1), io.array("pre_scores").reshape(-1)
        scores = io.array("scores").reshape(prefixes, width)
        is_ended = previous_ids == end
        is_invalid = np.isnan(scores).any(1) if accumulated else ~(scores >= 0).all(1)
        is_invalid = (is_invalid & ~is_ended) | np.isnan(previous_scores)
        if is_invalid.any():
            expected = "numbers" if accumulated else "probabilities, for is_accumulated is False"
            raise OutOfRangeError(
                f"scores of prefix {int(np.flatnonzero(is_invalid)[0])} are NaN"
                f"{'' if accumulated else ' or negative'}; expected {expected}"
            )
        if not accumulated:
            with np.errstate(divide="ignore"):
                scores = previous_scores[:, None] + np.log(scores)
        ids = io.array("ids").reshape(prefixes, width) if io.has("ids") else np.arange(width)[None].repeat(prefixes, 0)
        is_candidate = np.ones((prefixes, max(width, 1)), bool)
        is_candidate[is_ended, 1:] = False
        if not width:  # only ended prefixes continue
            scores, ids = np.zeros((prefixes, 1), previous_scores.dtype), np.zeros((prefixes, 1), previous_ids.dtype)
            is_candidate[~is_ended] = False
        first = np.where(is_ended, previous_scores, scores[:, 0])
        first_tokens = np.where(is_ended, end, ids[:, 0])
        parent_parts: list[Array] = []
        selected_parts: list[tuple[Array, Array]] = []
        for begin, stop in pairwise(source_offsets.tolist()):
            rows, columns = np.nonzero(is_candidate[begin:stop])
            rows = rows + begin
            values = np.where(columns == 0, first[rows], scores[rows, columns])
            order = best(values, rows, count)
            rows, columns = rows[order], columns[order]
            tokens = np.where(columns == 0, first_tokens[rows], ids[rows, columns])
            if (is_ended[rows] & (tokens == end)).all():  # all beams had ended before, so this source is finished
                continue
            by_row = np.argsort(rows, kind="stable")
            parent_parts.append(rows[by_row])
            selected_parts.append((tokens[by_row], values[order][by_row]))
        parents = np.concatenate(parent_parts) if parent_parts else np.zeros(0, np.int64)
        offsets = (
            np.concatenate(([0], np.cumsum(np.bincount(parents, minlength=prefixes)))) if prefixes else np.zeros(1)
        )
        lod = (tuple(source_offsets.tolist()), tuple(offsets.astype(int).tolist()))
        for slot, part_index in (("selected_ids", 0), ("selected_scores", 1)):
            if io.has(slot):
                io.resize(slot, (len(parents), 1), lod=lod)
                out = io.array(slot)
                if len(parents):
                    out[:, 0] = np.concatenate([selected[part_index] for selected in selected_parts])
        if io.has("parent_idx"):
            io.resize("parent_idx", (len(parents),))
            io.array("parent_idx")[...] = parents

    return run
