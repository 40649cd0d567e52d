"""Layers of beam search: one step, and decoding of the results of all steps."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite.layers.declare import Returned, layer
from fluidlite.program.variable import Variable


@layer(
    "beam_search",
    {"return_parent_idx": Returned("parent_idx")},
    returns=("selected_ids", "selected_scores"),
    extra=("parent_idx",),
    stop_gradient=True,
)
def beam_search(
    pre_ids: Variable,
    pre_scores: Variable,
    ids: Variable | None,
    scores: Variable,
    beam_size: int,
    end_id: int,
    level: int = 0,
    is_accumulated: bool = True,
    name: str | None = None,
    return_parent_idx: bool = False,
) -> tuple[Variable, ...]:
    """Return the best continuations of each source's prefixes, for one step of a search.

    pre_ids, pre_scores: The last word (int32 or int64) and the score (float32 or float64) of each prefix, [prefixes,
        1]. For the first step they are the words that begin sentences, and their scores, fed with a LoD of two
        levels.
    ids: Candidates of each prefix for the next word, [prefixes, candidates], as ``layers.topk`` finds them; None: the
        columns of ``scores``
    end_id: The word that ends a sentence: a prefix that has it keeps its score, and has no other candidates
    is_accumulated: ``scores`` are of whole prefixes; False: they are probabilities of the next word, whose logarithm
        is added to ``pre_scores``

    >>> pre_ids = data("pre_ids", [-1, 1], "int64", lod_level=1)
    >>> pre_scores = data("pre_scores", [-1, 1], lod_level=1)
    >>> scores = data("scores", [-1, 4], lod_level=1)
    >>> [each.shape for each in beam_search(pre_ids, pre_scores, None, scores, 2, 1)]
    [(-1, 1), (-1, 1)]
    """


@layer("beam_search_decode", stop_gradient=True)
def beam_search_decode(
    ids: Variable | Sequence[Variable],
    scores: Variable | Sequence[Variable],
    beam_size: int,
    end_id: int,
    name: str | None = None,
) -> tuple[Variable, Variable]:
    """Return the sentences found by the steps of a search.

    >>> ids, scores = data("ids", [-1, 1], "int64", 2), data("scores", [-1, 1], lod_level=2)
    >>> [each.shape for each in beam_search_decode([ids, ids], [scores, scores], beam_size=2, end_id=1)]
    [(-1, 1), (-1, 1)]
    """


@layer("gather_tree", stop_gradient=True)
def gather_tree(ids: Variable, parents: Variable) -> Variable:
    """Return the complete sequences of a beam search, whose beams are reordered at each step.

    Returns: Dims of ``ids``: each beam of the last step, traced back to the first

    >>> gather_tree(data("ids", [3, 2, 2], "int64"), data("parents", [3, 2, 2], "int64")).shape
    (3, 2, 2)
    """
