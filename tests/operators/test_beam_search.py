"""Beam search, a step and whole searches, against enumeration of all sentences; and what is refused."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.errors import AttributeValueError, DtypeError, OutOfRangeError, ProgramError, ShapeError

L = fluid.layers
WORDS, END, START = 4, 1, 0


def ragged(array: Any, *lod: list[int]) -> Any:
    found = fluid.LoDTensor()
    found.set(np.asarray(array), fluid.CPUPlace())
    found.set_lod(list(lod))
    return found


def chances(seed: int, steps: int) -> Any:
    """The probability, at each step, of each word behind each word."""
    return np.random.default_rng(seed).dirichlet(np.ones(WORDS), (steps, WORDS)).astype("float32")


def search(table: Any, beam: int, accumulated: bool = True) -> Any:
    """A search whose steps are unrolled: the next word hangs on the last one alone."""
    ids, scores = (L.data(n, [1], dtype=t, lod_level=2) for n, t in (("ids", "int64"), ("scores", "float32")))
    every = [(ids, scores)]
    for words in table:
        ids, scores = every[-1]
        next_word = L.lod_reset(L.gather(L.assign(words), L.reshape(ids, [-1])), y=scores)
        if accumulated:
            best, which = L.topk(next_word, k=min(beam, WORDS))
            whole = L.lod_reset(L.elementwise_add(L.log(best), L.reshape(scores, [-1]), axis=0), y=scores)
            every.append(L.beam_search(ids, scores, which, whole, beam, END))
        else:
            every.append(L.beam_search(ids, scores, None, next_word, beam, END, is_accumulated=False))
    return L.beam_search_decode([i for i, _ in every], [s for _, s in every], beam, END)


def found(place: str, mode: str, sources: int, build: Any) -> list[list[tuple[list[int], float]]]:
    """The sentences of each source with their scores."""
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        outs = list(build())
        at = list(range(sources + 1))
        feed = {"ids": ragged(np.full((sources, 1), START), at, at),
                "scores": ragged(np.zeros((sources, 1), "float32"), at, at)}  # fmt: skip
        exe = fluid.Executor(place, mode=mode, fallback="allow")
        ids, scores = exe.run(feed=feed, fetch_list=outs, return_numpy=False)
    assert ids.lod() == scores.lod()
    upper, lower = ids.lod()
    words, values = (np.asarray(each).ravel().tolist() for each in (ids, scores))
    every = [(words[a:b], values[b - 1]) for a, b in pairwise(lower)]
    return [every[a:b] for a, b in pairwise(upper)]


def enumerated(table: Any) -> list[tuple[list[int], float]]:
    """All sentences of so many words behind the start, or of fewer that end, the likeliest first."""
    logs = np.log(table.astype(np.float64))
    sentences = {}
    for words in product(range(WORDS), repeat=len(table)):
        cut = words[: words.index(END) + 1] if END in words else words
        path = (START, *cut)
        sentences[cut] = sum(log[a, b] for log, a, b in zip(logs, path, cut, strict=False))
    return [([START, *words], score) for words, score in sorted(sentences.items(), key=lambda each: -each[1])]


MODES = ("compiled", "interpreted")
PLACES = [str(place) for place in fluid.places() if place.kind in ("cpu", "opencl", "fpga")]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", PLACES)
def test_a_beam_that_holds_every_prefix_finds_the_likeliest_sentences(place: str, mode: str) -> None:
    """A beam as wide as there are sentences leaves none out: all are found, in order, of two sources alike."""
    table = chances(3, 3)
    expected = enumerated(table)
    for one in found(place, mode, 2, lambda: search(table, len(expected))):
        assert [words for words, _ in one] == [words for words, _ in expected]
        np.testing.assert_allclose([score for _, score in one], [score for _, score in expected], rtol=1e-5)


def narrow(table: Any, beam: int) -> list[tuple[list[int], float]]:
    """A search as one writes it on paper: lists of words, sorted and cut at each step."""
    logs = np.log(table.astype(np.float64))
    beams: list[tuple[list[int], float]] = [([START], 0.0)]
    for log in logs:
        every = []
        for words, score in beams:
            if words[-1] == END and len(words) > 1:
                every.append((words, score))
            else:
                every += [([*words, w], score + log[words[-1], w]) for w in range(WORDS)]
        beams = sorted(every, key=lambda each: -each[1])[:beam]
    return beams


@pytest.mark.parametrize("accumulated", [True, False])
@pytest.mark.parametrize(("seed", "beam", "steps"), [(0, 1, 4), (1, 2, 5), (2, 3, 6), (5, 2, 1)])
def test_a_narrow_beam_finds_what_a_search_on_paper_does(seed: int, beam: int, steps: int, accumulated: bool) -> None:
    table = chances(seed, steps)
    expected = narrow(table, beam)
    (one,) = found("cpu", "compiled", 1, lambda: search(table, beam, accumulated))
    assert [words for words, _ in one] == [words for words, _ in expected]
    np.testing.assert_allclose([score for _, score in one], [score for _, score in expected], rtol=1e-5)


def looped(table: Any, steps: int, beam: int) -> Any:
    """The decoder of Fluid 1.x: a loop that writes what it selects into tensor arrays, till nothing is left."""
    ids, scores = (L.data(n, [1], dtype=t, lod_level=2) for n, t in (("ids", "int64"), ("scores", "float32")))
    at, limit = L.fill_constant([1], "int64", 0), L.fill_constant([1], "int64", steps)
    words = L.assign(table)
    every = [L.array_write(ids, at), L.array_write(scores, at)]
    more = L.less_than(at, limit)
    with L.While(more).block():
        pre_ids, pre_scores = (L.array_read(each, at) for each in every)
        next_word = L.lod_reset(L.gather(words, L.reshape(pre_ids, [-1])), y=pre_scores)
        best, which = L.topk(next_word, k=min(beam, WORDS))
        whole = L.elementwise_add(L.log(best), L.reshape(pre_scores, [-1]), axis=0)
        chosen, reached = L.beam_search(pre_ids, pre_scores, which, whole, beam, END)
        L.increment(at)
        L.array_write(chosen, at, every[0])
        L.array_write(reached, at, every[1])
        L.logical_and(L.less_than(at, limit), L.logical_not(L.is_empty(chosen)), out=more)
    return L.beam_search_decode(*every, beam, END)


@pytest.mark.parametrize(("place", "mode"), [*((place, "compiled") for place in PLACES if "opencl" not in place),
                                             ("cpu", "interpreted")])  # fmt: skip
def test_a_loop_over_tensor_arrays_finds_what_a_search_on_paper_does(place: str, mode: str) -> None:
    """Sentences that all end before the limit end the loop."""
    table = np.repeat(chances(8, 1), 12, 0)
    table[:, :, END] += 0.3
    table /= table.sum(-1, keepdims=True)
    expected = narrow(table, 2)
    assert all(words[-1] == END for words, _ in expected)
    for one in found(place, mode, 2, lambda: looped(table[0], len(table), 2)):
        assert [words for words, _ in one] == [words for words, _ in expected]
        np.testing.assert_allclose([score for _, score in one], [score for _, score in expected], rtol=1e-5)


def step(scores: Any, lod: list[list[int]], pre_ids: Any, pre_scores: Any, **attrs: Any) -> Any:
    """One step on feeds."""
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        given = {"p": ragged(pre_ids, *lod), "q": ragged(pre_scores, *lod), "s": ragged(scores, *lod)}
        p, q, s = (
            L.data(n, list(np.asarray(v).shape[1:]), dtype=str(np.asarray(v).dtype), lod_level=len(lod))
            for n, v in given.items()
        )
        outs = L.beam_search(p, q, None, s, **attrs, return_parent_idx=True)
        return fluid.Executor("cpu").run(feed=given, fetch_list=list(outs), return_numpy=False)


def test_a_step_tells_prefixes_and_what_is_selected_of_each() -> None:
    scores = np.array([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3], [0.2, 0.2, 0.6], [0, 0, 0]], "float32")
    lod = [[0, 2, 4], [0, 1, 2, 3, 4]]
    ids, values, parents = step(
        np.log(np.maximum(scores, 1e-9)), lod, [[5], [5], [5], [2]], np.float32([[0], [0], [0], [-0.1]]),
        beam_size=2, end_id=2,
    )  # fmt: skip
    assert np.asarray(ids).ravel().tolist() == [1, 0, 2, 2]
    assert np.asarray(parents).tolist() == [0, 1, 2, 3]
    assert ids.lod() == values.lod() == [[0, 2, 4], [0, 1, 2, 3, 4]]
    assert np.asarray(values)[3, 0] == np.float32(-0.1)


def test_what_ended_is_written_once() -> None:
    """A source whose prefixes have all ended selects none; when all sources have, nothing is left."""
    scores, lod = np.zeros((2, 3), "float32"), [[0, 1, 2], [0, 1, 2]]
    ids, _, parents = step(scores, lod, [[2], [0]], np.float32([[-1], [-1]]), beam_size=1, end_id=2)
    assert np.asarray(ids).ravel().tolist() == [0]
    assert ids.lod() == [[0, 1, 2], [0, 0, 1]]
    ids, _, parents = step(scores, lod, [[2], [2]], np.float32([[-1], [-1]]), beam_size=1, end_id=2)
    assert np.asarray(ids).shape == (0, 1)
    assert np.asarray(parents).shape == (0,)
    assert ids.lod() == [[0, 1, 2], [0, 0, 0]]


def test_equal_scores_are_told_apart() -> None:
    ids, _, parents = step(np.zeros((2, 3), "float32"), [[0, 2], [0, 1, 2]], [[0], [0]], np.float32([[0], [0]]),
                           beam_size=4, end_id=1)  # fmt: skip
    assert np.asarray(parents).tolist() == [0, 1, 1, 1]
    assert np.asarray(ids).ravel().tolist() == [0, 0, 1, 2]


def declared(name: str, shape: list[int], dtype: str, level: int = 2) -> Any:
    return L.data(name, shape, dtype=dtype, lod_level=level)


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"beam_size": 0}, AttributeValueError, "beam_search.*beam_size"),
    ({"end_id": -1}, AttributeValueError, "beam_search.*end_id"),
    ({"ids": None, "end_id": 3}, AttributeValueError, "end_id.*less than 3"),
    ({"level": 2}, AttributeValueError, "level.*less than 2"),
    ({"pre_ids": None}, ProgramError, "argument 'pre_ids'.*a Variable"),
    ({"scores": ("s", [3], "float32", 0)}, ShapeError, "scores.*a LoD tensor(.|\n)*lod_reset"),
    ({"scores": ("s", [4], "float32")}, ShapeError, "ids"),
    ({"pre_scores": ("q2", [3], "float32")}, ShapeError, "pre_scores"),
    ({"pre_scores": ("q2", [1], "float64")}, (DtypeError, ShapeError), "pre_scores.*float32"),
    ({"ids": ("i2", [3], "float32")}, DtypeError, "ids"),
]


@pytest.mark.parametrize(("change", "error", "text"), REFUSED)
def test_a_step_is_refused(change: dict[str, Any], error: Any, text: str) -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        given: dict[str, Any] = {"pre_ids": declared("p", [1], "int64"), "pre_scores": declared("q", [1], "float32"),
                                 "ids": declared("i", [3], "int64"), "beam_size": 2, "end_id": 1}  # fmt: skip
        if "scores" not in change:
            given["scores"] = declared("s0", [3], "float32")
        given |= {k: declared(*v) if isinstance(v, tuple) else v for k, v in change.items()}
        with pytest.raises(error, match=text) as caught:
            L.beam_search(**given)
    assert "test_beam_search.py" in str(caught.value)


def test_scores_that_are_no_numbers_are_refused_and_the_next_run_works() -> None:
    lod = [[0, 2], [0, 1, 2]]
    for bad, attrs in ((np.nan, {}), (-0.5, {"is_accumulated": False})):
        with pytest.raises(OutOfRangeError, match=r"beam_search(.|\n)*scores of prefix 1 are NaN"):
            step(np.float32([[0.5, 0.5], [0.5, bad]]), lod, [[0], [0]], np.float32([[0], [0]]), beam_size=2, end_id=1,
                 **attrs)  # fmt: skip
    step(np.float32([[0.5, 0.5], [0.5, 0.5]]), lod, [[0], [0]], np.float32([[0], [0]]), beam_size=2, end_id=1)


def test_steps_that_do_not_follow_each_other_are_refused() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        one, other, flat = (declared(n, [1], "int64", level) for n, level in (("a", 2), ("b", 2), ("c", 1)))
        score, second = declared("s", [1], "float32"), declared("t", [1], "float32")
        with pytest.raises(ShapeError, match=r"Ids.*two levels"):
            L.beam_search_decode([flat], [score], 2, 1)
        with pytest.raises(ProgramError, match=r"Scores.*2 steps"):
            L.beam_search_decode([one, other], [score], 2, 1)
        with pytest.raises(AttributeValueError, match="beam_size"):
            L.beam_search_decode([one], [score], 0, 1)
        with pytest.raises(DtypeError, match="Scores"):
            L.beam_search_decode([one], [other], 1, 1)
        outs = L.beam_search_decode([one, other], [score, second], 2, 1)
        exe = fluid.Executor("cpu")
        feed = {"a": ragged([[0]], [0, 1], [0, 1]), "s": ragged(np.float32([[0]]), [0, 1], [0, 1])}
        feed |= {"b": ragged([[2], [3]], [0, 2], [0, 1, 2]), "t": ragged(np.float32([[0], [1]]), [0, 2], [0, 1, 2])}
        with pytest.raises(ProgramError, match=r"beam_search_decode(.|\n)*goes on from 2 prefixes(.|\n)*selected 1"):
            exe.run(feed=feed, fetch_list=list(outs), return_numpy=False)
        feed |= {"b": ragged([[2], [3]], [0, 1], [0, 2]), "t": ragged(np.float32([[0], [1]]), [0, 1], [0, 2])}
        ids, _ = exe.run(feed=feed, fetch_list=list(outs), return_numpy=False)
        assert np.asarray(ids).ravel().tolist() == [0, 3, 0, 2]
        assert ids.lod() == [[0, 2], [0, 2, 4]]
