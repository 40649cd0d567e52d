"""Programs with costs of whole sequences: layers, gradients by name, and what is refused, by operator and slot."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby, product
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.conformance.operators import warpctc
from fluidlite.conformance.operators.chunk_eval import enumerated

L = fluid.layers


def ragged(array: Any, *offsets: int) -> Any:
    found = fluid.LoDTensor()
    found.set(np.asarray(array), fluid.CPUPlace())
    found.set_lod([list(offsets)])
    return found


def run(build: Callable[..., Any], return_numpy: bool = True, **feeds: Any) -> list[Any]:
    """What layers make of feeds: LoD tensors or arrays, of which floats have gradients."""
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        given = []
        for name, value in feeds.items():
            array = np.asarray(value)
            level = len(value.lod()) if isinstance(value, fluid.LoDTensor) else 0
            dims = [-1, *array.shape[1:]] if level else list(array.shape)
            given.append(L.data(name, dims, dtype=str(array.dtype), append_batch_size=False, lod_level=level))
            given[-1].stop_gradient = array.dtype.kind != "f"
        made = build(*given)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        outs = list(made) if isinstance(made, (tuple, list)) else [made]
        found: list[Any] = exe.run(feed=feeds, fetch_list=outs, return_numpy=return_numpy)
        return found


def words(*tokens: int, at: tuple[int, ...]) -> Any:
    return ragged(np.array(tokens, "int64").reshape(-1, 1), *at)


def test_ignored_tokens_are_left_out_of_a_distance() -> None:
    x, y = words(1, 9, 2, 3, 9, at=(0, 4, 5)), words(1, 2, 9, 9, 4, 9, 5, at=(0, 5, 7))
    out, count = run(lambda x, y: L.edit_distance(x, y, ignored_tokens=[9]), x=x, y=y)
    assert out.tolist() == [[pytest.approx(1 / 3)], [1.0]]
    assert count.tolist() == [2]
    out, _ = run(lambda x, y: L.edit_distance(x, y, normalized=False), x=x, y=y)
    assert out.tolist() == [[3.0], [1.0]]


def test_distances_are_a_metric() -> None:
    """It is symmetric, 0 of a sequence and itself alone, and no way round is shorter."""
    some = [words(*tokens, at=(0, len(tokens))) for tokens in ((1, 2, 3, 1), (2, 1), (3, 3, 3, 2, 1), (1, 2, 3, 2))]
    table = np.array([[run(lambda x, y: L.edit_distance(x, y, False), x=x, y=y)[0].item() for y in some] for x in some])
    np.testing.assert_array_equal(table, table.T)
    np.testing.assert_array_equal(table == 0, np.eye(4, dtype=bool))
    assert (table[:, None] <= table[:, :, None] + table[None]).all()


def test_labels_are_decoded_in_both_forms() -> None:
    best = np.array([1, 1, 0, 1, 2, 0, 0])
    scores = np.eye(3, dtype="float32")[best]
    (out,) = run(lambda x: L.ctc_greedy_decoder(x, 0), False, x=ragged(scores, 0, 5, 5, 7))
    assert np.asarray(out).ravel().tolist() == [1, 1, 2]
    assert out.lod() == [[0, 3, 3, 3]]
    padded = np.stack([scores[:5], np.pad(scores[5:], ((0, 3), (0, 0)), constant_values=7)])
    out, sizes = run(lambda x, n: L.ctc_greedy_decoder(x, 0, n, padding_value=-1), x=padded, n=np.array([5, 2]))
    assert out.tolist() == [[1, 1, 2, -1, -1], [-1] * 5]
    assert sizes.tolist() == [[3], [0]]


def test_costs_of_every_label_are_one_chance() -> None:
    """The chances of all labels that three steps of three classes can spell sum to 1."""
    logits = np.random.default_rng(0).normal(size=(3, 3)).astype("float32")
    labels = {tuple(c for c, _ in groupby(path) if c) for path in product(range(3), repeat=3)}
    at = np.cumsum([0, *map(len, labels)])
    label = words(*[c for row in labels for c in row], at=tuple(at.tolist()))
    x = ragged(np.tile(logits, (len(labels), 1)), *range(0, 3 * len(labels) + 1, 3))
    (costs,) = run(L.warpctc, x=x, y=label)
    assert np.exp(-costs.astype(np.float64)).sum() == pytest.approx(1, abs=1e-6)


def test_scores_that_no_exponential_holds_have_costs() -> None:
    logits = np.array([[0, 900, -900]] * 40, "float32")
    (cost,) = run(L.warpctc, x=ragged(logits, 0, 40), y=words(2, at=(0, 1)))
    assert cost.item() == pytest.approx(39 * 900 + 1800, rel=1e-4)  # blanks but for one step: class 1 is on no path


def test_scores_that_are_no_numbers_have_no_cost() -> None:
    """And a class that cannot be, of minus infinity, is on no path."""
    logits = np.zeros((4, 3), "float32")
    logits[1, 0], logits[2:, 2] = np.nan, -np.inf
    (costs,) = run(L.warpctc, x=ragged(logits, 0, 2, 4), y=words(1, 1, at=(0, 1, 2)))
    assert np.isnan(costs[0, 0])
    assert costs[1, 0] == pytest.approx(-np.log(3 / 4))


def test_gradients_are_divided_by_steps() -> None:
    x, y = ragged(np.random.default_rng(1).normal(size=(5, 3)), 0, 3, 5), words(1, 2, 1, at=(0, 2, 3))

    def build(normed: bool) -> Any:
        def made(x: Any, y: Any) -> Any:
            cost = L.warpctc(x, y, norm_by_times=normed)
            return [cost, *fluid.gradients([L.reduce_sum(cost)], [x])]

        return made

    (cost, grad), (same, normed) = ([np.asarray(a) for a in run(build(on), False, x=x, y=y)] for on in (False, True))
    np.testing.assert_array_equal(cost, same)
    np.testing.assert_allclose(normed, grad / np.array([[3], [3], [3], [2], [2]]), rtol=1e-12)


def test_chunks_of_a_sentence_are_counted() -> None:
    """Persons (0) and places (1) by IOB, of batches that an evaluator adds up."""
    right, found = (0, 1, 4, 2, 3, 3, 0), (0, 1, 4, 2, 3, 2, 0)
    made = run(lambda x, y: L.chunk_eval(x, y, "IOB", 2), x=words(*found, at=(0, 6, 7)), y=words(*right, at=(0, 6, 7)))
    assert [a.item() for a in made] == [pytest.approx(n) for n in (2 / 4, 2 / 3, 4 / 7, 4, 3, 2)]
    evaluator = fluid.metrics.ChunkEvaluator()
    for _ in range(2):
        evaluator.update(*made[3:])
    assert evaluator.eval() == pytest.approx((2 / 4, 2 / 3, 4 / 7))


@pytest.mark.parametrize(("scheme", "tags"), [("IOB", 2), ("IOE", 2), ("IOBES", 4), ("plain", 1)])
def test_chunks_of_every_short_sequence_are_those_of_the_reference(scheme: str, tags: int) -> None:
    every = list(product(range(tags + 1), repeat=4))
    x = words(*[t for row in every for t in row], at=tuple(range(0, 4 * len(every) + 1, 4)))
    made = run(lambda x, y: L.chunk_eval(x, y, scheme, 1), x=x, y=x)
    wanted = sum(len(enumerated(list(row), 1, scheme)) for row in every)
    assert [a.item() for a in made] == [1, 1, 1, wanted, wanted, wanted]


def test_padded_chains_cost_what_sequences_do() -> None:
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(2, 4, 3)), rng.integers(0, 3, (2, 4))
    y[1, 2:] = 9  # behind the end: it does not count
    move = fluid.ParamAttr(name="move", initializer=fluid.initializer.NumpyArrayInitializer(rng.normal(size=(5, 3))))

    def build(x: Any, y: Any, *n: Any) -> Any:
        cost = L.linear_chain_crf(x, y, move, *n)
        weight = fluid.default_main_program().global_block().var("move")
        path = L.crf_decoding(x, fluid.ParamAttr(name="move"), None, *n)
        return [cost, path, *fluid.gradients([cost], [x, weight])]

    rows = np.array([0, 1, 2, 3, 4, 5])
    flat = {"x": ragged(x.reshape(8, 3)[rows], 0, 4, 6), "y": words(*y.reshape(8)[rows], at=(0, 4, 6))}
    cost, path, dx, dw = (np.asarray(a) for a in run(build, False, **flat))
    found = run(build, x=x, y=y, n=np.array([4, 2]))
    np.testing.assert_allclose(found[0], cost, rtol=1e-12)
    np.testing.assert_array_equal(found[1].reshape(8), [*path.ravel(), 0, 0])
    np.testing.assert_allclose(found[2].reshape(8, 3), [*dx, *np.zeros((2, 3))], rtol=1e-12)
    np.testing.assert_allclose(found[3], dw, rtol=1e-12)


X, Y = ragged(np.zeros((4, 3), "float32"), 0, 1, 4), words(1, 2, at=(0, 1, 2))
WAYS = np.array([[1, 2], [0, 1]])
PADDED = {"x": np.zeros((4, 2, 3), "float32"), "y": np.array([[1, 2], [1, 1]])}


@pytest.mark.parametrize(
    ("build", "feeds", "said"),
    [
        (L.edit_distance, {"x": Y, "y": words(1, at=(0, 1))}, "edit_distance.*Refs.*2 sequences"),
        (L.edit_distance, {"x": Y, "y": words(1, at=(0, 1, 1))}, "edit_distance.*Refs has no tokens in sequence 1"),
        (lambda x, y, n, m: L.edit_distance(x, y, True, None, n, m),
         {"x": PADDED["y"], "y": PADDED["y"], "n": np.array([2, 3]), "m": np.array([1, 1])},
         "edit_distance.*HypsLength holds 3 for sequence 1"),
        (lambda x, y, n: L.edit_distance(x, y, input_length=n),
         {"x": PADDED["y"], "y": PADDED["y"], "n": np.array([2, 3])}, "edit_distance.*RefsLength"),
        (lambda x: L.ctc_greedy_decoder(x, 3), {"x": X}, "ctc_greedy_decoder.*blank.*0 to 2"),
        (lambda x, n: L.ctc_greedy_decoder(x, 0, n), {"x": PADDED["x"], "n": np.array([1, 1, 1, 3])},
         "ctc_align.*InputLength holds 3 for sequence 3"),
        (lambda x, y: L.chunk_eval(x, y, "IOB", 1), {"x": Y, "y": words(1, 3, at=(0, 1, 2))},
         "chunk_eval.*Label holds 3 in sequence 1.*0 to 2"),
        (lambda x, y: L.chunk_eval(x, y, "IOB", 1), {"x": Y, "y": words(1, 2, at=(0, 2))}, "chunk_eval.*Label.*LoD"),
        (lambda x, y: L.chunk_eval(x, y, "IOX", 1), {"x": Y, "y": Y}, "chunk_eval.*chunk_scheme"),
        (lambda x, y: L.chunk_eval(x, y, "IOB", 1, [1]), {"x": Y, "y": Y}, "chunk_eval.*excluded_chunk_types"),
        (lambda x, y, n: L.chunk_eval(x, y, "IOB", 1, None, n), {"x": WAYS, "y": WAYS, "n": np.array([1, 3])},
         "chunk_eval.*SeqLength holds 3 for sequence 1"),
        (lambda x, y: L.warpctc(x, y, 3), {"x": X, "y": Y}, "warpctc.*blank.*0 to 2"),
        (L.linear_chain_crf, {"x": X, "y": words(0, 1, 2, 0, at=(0, 2, 4))}, "linear_chain_crf.*Label.*Emission"),
        (L.linear_chain_crf, {"x": X, "y": words(0, 1, 3, 0, at=(0, 1, 4))}, "linear_chain_crf.*3 is out of range"),
        (lambda x, y, n: L.linear_chain_crf(x, y, None, n),
         {"x": PADDED["x"], "y": np.zeros((4, 2), "int64"), "n": np.array([1, 2, 3, 0])},
         "linear_chain_crf.*Length holds 3 for sequence 2"),
        (L.warpctc, {"x": X, "y": words(1, 3, at=(0, 1, 2))}, "warpctc.*Label holds 3 in sequence 1"),
        (L.warpctc, {"x": X, "y": words(0, 1, at=(0, 1, 2))}, "warpctc.*Label holds 0 in sequence 0.*blank"),
        (L.warpctc, {"x": X, "y": words(1, 2, at=(0, 1, 1, 2))}, "warpctc.*Label.*2 sequences"),
        (L.warpctc, {"x": X, "y": np.array([[1], [2]])}, "warpctc.*Label.*LoD"),
        (lambda x, y, n, m: L.warpctc(x, y, 0, False, n, m), {**PADDED, "n": np.array([4, 5]), "m": np.array([1, 1])},
         "warpctc.*LogitsLength holds 5"),
        (lambda x, y, n, m: L.warpctc(x, y, 0, False, n, m), {**PADDED, "n": np.array([4, 4]), "m": np.array([-1, 1])},
         "warpctc.*LabelLength holds -1"),
    ],
)  # fmt: skip
def test_refused(build: Callable[..., Any], feeds: dict[str, Any], said: str) -> None:
    with pytest.raises(fluid.FluidError, match=f"(?s){said}"):
        run(build, **feeds)


@pytest.mark.parametrize("label", [[0], [3], [-1], [1, 0]])
def test_the_reference_of_warpctc_refuses_what_the_kernel_refuses(label: list[int]) -> None:
    with pytest.raises(ValueError, match="the blank, or no class"):
        warpctc.enumerated(np.zeros((4, 3)), label, 0)
