"""Fluid's contrib.decoder: a translator that copies learns, and is searched with as a search on paper does."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.contrib.decoder.beam_search_decoder import BeamSearchDecoder, InitState, StateCell, TrainingDecoder

L = fluid.layers
WORDS, START, END, HIDDEN, EMBEDDED, LONGEST = 7, 0, 1, 24, 12, 6
PLACES = [str(place) for place in fluid.places() if place.kind in ("cpu", "opencl", "fpga")]
EXECUTORS = [("cpu:0", "interpreted"), *((place, "compiled") for place in PLACES)]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Give every test a new scope; a place with few kernels runs the programs too."""
    with fluid.scope_guard(fluid.Scope()), warnings.catch_warnings():
        warnings.simplefilter("ignore", fluid.FallbackWarning)
        fluid.set_fallback("allow")
        yield


def encoder() -> Any:
    source = L.data("source", [1], dtype="int64", lod_level=1)
    embedded = L.embedding(source, [WORDS, EMBEDDED], is_sparse=True)
    hidden, _ = L.dynamic_lstm(L.fc(embedded, HIDDEN * 4, act="tanh"), HIDDEN * 4)
    return L.sequence_last_step(hidden)


def state_cell(context: Any) -> Any:
    cell = StateCell(inputs={"x": None}, states={"h": InitState(init=context, need_reorder=True)}, out_state="h")

    @cell.state_updater
    def updater(cell: Any) -> None:
        before, word = cell.get_state("h"), cell.get_input("x")
        cell.set_state("h", L.fc([before, word], HIDDEN, act="tanh"))

    return cell


def training_program() -> Any:
    """The loss of the chapter's training program."""
    decoder = TrainingDecoder(state_cell(encoder()))
    target = L.data("target", [1], dtype="int64", lod_level=1)
    embedded = L.embedding(target, [WORDS, EMBEDDED], is_sparse=True)
    with decoder.block():
        decoder.state_cell.compute_state(inputs={"x": decoder.step_input(embedded)})
        scores = L.fc(decoder.state_cell.get_state("h"), WORDS, act="softmax")
        decoder.state_cell.update_states()
        decoder.output(scores)
    label = L.data("label", [1], dtype="int64", lod_level=1)
    return L.mean(L.cross_entropy(decoder(), label))


class Attentive(BeamSearchDecoder):
    """A block of one's own, as the docs of Fluid show it: no sentence goes beyond its first two words."""

    def decode(self) -> None:
        with self.block():
            ids, scores = (
                self.read_array(self._init_ids, is_ids=True),
                self.read_array(self._init_scores, is_scores=True),
            )
            words = L.embedding(ids, [WORDS, EMBEDDED])
            self.state_cell.set_state("h", L.sequence_expand(self.state_cell.get_state("h"), scores))
            self.state_cell.compute_state(inputs={"x": words})
            out = L.lod_reset(self.state_cell.out_state(), y=scores)
            best, which = L.topk(L.fc(out, WORDS, act="softmax"), k=WORDS)
            whole = L.elementwise_add(L.log(best), L.reshape(scores, [-1]), axis=0)
            chosen, reached = L.beam_search(ids, scores, which, whole, self._beam_size, END)
            limit = L.fill_constant([1], "int64", 2)
            with L.Switch() as switch:
                with switch.case(L.logical_or(L.is_empty(chosen), L.greater_equal(self._counter, limit))):
                    self.early_stop()
                with switch.default():
                    self.state_cell.update_states()
                    self.update_array(ids, chosen)
                    self.update_array(scores, reached)


def decoding_program(kind: type[BeamSearchDecoder], beam: int) -> list[Any]:
    context = encoder()
    ids = L.data("init_ids", [1], dtype="int64", lod_level=2)
    scores = L.data("init_scores", [1], dtype="float32", lod_level=2)
    decoder = kind(
        state_cell=state_cell(context), init_ids=ids, init_scores=scores, target_dict_dim=WORDS, word_dim=EMBEDDED,
        input_var_dict={}, topk_size=WORDS, sparse_emb=True, max_len=LONGEST, beam_size=beam, end_id=END,
    )  # fmt: skip
    decoder.decode()
    return [*decoder(), context]


def made(build: Any, *arguments: Any) -> tuple[Any, Any, Any]:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        outs = build(*arguments)
        if build is training_program:
            fluid.optimizer.Adam(0.02).minimize(outs)
    return main, startup, outs


def sentences(rng: Any, lengths: Any) -> list[list[int]]:
    return [list(rng.integers(2, WORDS, length)) for length in lengths]


def ragged(rows: list[list[int]]) -> Any:
    return fluid.create_lod_tensor(np.concatenate(rows).reshape(-1, 1).astype("int64"), [[len(r) for r in rows]], "cpu")


@pytest.fixture(scope="module")
def trained() -> tuple[fluid.Scope, list[float]]:
    """The scope of a translator that copies, and its losses."""
    rng, losses = np.random.default_rng(0), []
    lengths = rng.integers(1, 4, (4, 32))  # in turn: a batch of other lengths is planned anew
    main, startup, loss = made(training_program)
    with fluid.scope_guard(scope := fluid.Scope()):
        exe = fluid.Executor("cpu")
        exe.run(startup)
        for number in range(250):
            rows = sentences(rng, lengths[number % 4])
            feed = {"source": ragged(rows), "target": ragged([[START, *row] for row in rows]),
                    "label": ragged([[*row, END] for row in rows])}  # fmt: skip
            losses.append(float(exe.run(main, feed, [loss])[0][0]))
    return scope, losses


Beams = list[tuple[list[int], list[float]]]


def on_paper(scope: fluid.Scope, hidden: Any, beam: int, steps: int) -> Beams:
    """Search from one encoder's output: sentences with the scores of their prefixes, the best first."""
    names = "embedding_1.w_0", "fc_1.w_0", "fc_1.w_1", "fc_1.b_0", "fc_2.w_0", "fc_2.b_0"
    table, of_hidden, of_word, bias, weight, offset = (
        np.asarray(scope.find_var(name).get_tensor()).astype("float64") for name in names
    )
    beams: list[Any] = [([START], [0.0], hidden.astype("float64"))]
    for _ in range(steps):
        found: list[Any] = []
        for words, scores, state in beams:
            if words[-1] == END:
                found.append((scores[-1], words, scores, state))
                continue
            new = np.tanh(state @ of_hidden + table[words[-1]] @ of_word + bias)
            logits = new @ weight + offset
            logs = logits - np.log(np.exp(logits).sum())
            found += [(scores[-1] + v, [*words, w], [*scores, scores[-1] + v], new) for w, v in enumerate(logs)]
        beams = [each[1:] for each in sorted(found, key=lambda each: -each[0])[:beam]]
        if all(words[-1] == END for words, *_ in beams):
            break
    return [(words, scores) for words, scores, _ in beams]


def searched(kind: type[BeamSearchDecoder], beam: int, rows: Any, place: str, mode: str) -> Any:
    main, _, outs = made(decoding_program, kind, beam)
    levels = [[1] * len(rows)] * 2
    feed = {"source": ragged(rows),
            "init_ids": fluid.create_lod_tensor(np.full((len(rows), 1), START), levels, "cpu"),
            "init_scores": fluid.create_lod_tensor(np.zeros((len(rows), 1), "float32"), levels, "cpu")}  # fmt: skip
    ids, scores, context = fluid.Executor(place, mode=mode).run(main, feed, outs, return_numpy=False)
    sources, words = ids.lod()
    found = [[(np.asarray(ids).ravel()[a:b].tolist(), np.asarray(scores).ravel()[a:b])
              for a, b in zip(words[i:j], words[i + 1 : j + 1], strict=True)]
             for i, j in pairwise(sources)]  # fmt: skip
    return found, np.asarray(context)


def test_training_learns_to_copy(trained: Any) -> None:
    _, losses = trained
    assert losses[0] > 1.5
    assert np.mean(losses[-10:]) < 0.1


@pytest.mark.parametrize(("place", "mode"), EXECUTORS)
@pytest.mark.parametrize(("kind", "beam", "steps"), [(BeamSearchDecoder, 1, LONGEST), (BeamSearchDecoder, 3, LONGEST),
                                                     (Attentive, 2, 2)])  # fmt: skip
def test_what_is_found_is_what_a_search_on_paper_finds(
    trained: Any, kind: Any, beam: int, steps: int, place: str, mode: str
) -> None:
    rng = np.random.default_rng(9)
    rows = sentences(rng, rng.integers(1, 4, 5))
    with fluid.scope_guard(trained[0]):  # parameters have the names that they have in the training program
        found, contexts = searched(kind, beam, rows, place, mode)
    if steps == LONGEST:
        assert [each[0][0] for each in found] == [[START, *row, END] for row in rows]
    for one, context in zip(found, contexts, strict=True):
        expected = on_paper(trained[0], context, beam, steps)
        assert [words for words, _ in one] == [words for words, _ in expected]
        for (_, scores), (_, right) in zip(one, expected, strict=True):
            np.testing.assert_allclose(scores, right, rtol=1e-3, atol=1e-4)


def test_the_search_is_saved_and_reads_rows_and_sequences_of_the_source(tmp_path: Any) -> None:
    """Other inputs of the cell follow the prefixes, as states do."""
    found = []
    for kind in ("row", "sequence"):
        main, startup = fluid.Program(), fluid.Program()
        startup.random_seed = 3
        with fluid.unique_name.guard(), fluid.program_guard(main, startup), fluid.scope_guard(fluid.Scope()):
            words = L.embedding(L.data("source", [1], dtype="int64", lod_level=1), [WORDS, EMBEDDED])
            context = L.sequence_pool(words, "sum")
            first = InitState(init_boot=context, shape=[-1, HIDDEN], value=0.5)
            cell = StateCell(inputs={"x": None, "read": None}, states={"h": first}, out_state="h")

            @cell.state_updater
            def updater(cell: Any, kind: str = kind) -> None:
                read = cell.get_input("read")
                read = read if kind == "row" else L.sequence_pool(read, "sum")
                cell.set_state("h", L.fc([cell.get_state("h"), cell.get_input("x"), read], HIDDEN, act="tanh"))

            ids, scores = (L.data(n, [1], dtype=t, lod_level=2) for n, t in (("ids", "int64"), ("scores", "float32")))
            given = {"read": context if kind == "row" else words}
            decoder = fluid.contrib.BeamSearchDecoder(cell, ids, scores, WORDS, EMBEDDED, given, WORDS, beam_size=2)
            decoder.decode()
            exe = fluid.Executor("cpu")
            exe.run(startup)
            feeds = ["source", "ids", "scores"]
            fluid.io.save_inference_model(str(tmp_path), feeds, list(decoder()), exe, main)
            program, _, outs = fluid.io.load_inference_model(str(tmp_path), exe)
            levels = [[1, 1]] * 2
            starts = (fluid.create_lod_tensor(np.zeros((2, 1), dtype), levels, "cpu") for dtype in ("int64", "float32"))
            feed = dict(zip(feeds, (ragged([[2, 3], [4]]), *starts), strict=True))
            found.append(exe.run(program, feed, outs, return_numpy=False))
    for row, sequence in zip(*found, strict=True):
        assert row.lod() == sequence.lod()
        np.testing.assert_allclose(row, sequence, rtol=1e-5)


def test_misuse_of_decoders() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = L.data("x", [3], lod_level=1)
        ids, scores = (L.data(n, [1], dtype=t, lod_level=2) for n, t in (("ids", "int64"), ("scores", "float32")))
        state = InitState(x)
        cell = StateCell({"x": None}, {"h": state}, "h")
        assert cell.get_state("h") is state
        training, search = TrainingDecoder(cell), BeamSearchDecoder(cell, ids, scores, 4, 3)
        for call, text in (
            (lambda: InitState(shape=[-1, 3]), "init_boot"),
            (lambda: InitState(init_boot=x), "shape"),
            (lambda: StateCell({}, {"h": x}, "h"), "states.*InitState"),
            (lambda: StateCell({}, {"h": state}, "c"), "out_state.*'h'"),
            (lambda: cell.get_state("c"), "state_name.*'h'"),
            (lambda: cell.get_input("x"), "input_name.*compute_state"),
            (lambda: cell.compute_state({"x": x}), "no updater"),
            (cell.update_states, "inside of the block"),
            (lambda: training.step_input(x), "step_input is called inside"),
            (lambda: search.read_array(ids), "read_array is called inside"),
            (lambda: training.state_cell, "state_cell is called inside"),
            (training, "after its block"),
            (search, "after its block"),
            (lambda: TrainingDecoder(x), "state_cell.*a StateCell"),
            (lambda: BeamSearchDecoder(cell, ids, scores, 4, 3, {"y": x}), "input_var_dict.*'x'"),
        ):
            with pytest.raises(fluid.errors.ProgramError, match=f"(?s){text}"):
                call()
        with pytest.raises(fluid.errors.ProgramError, match="what read_array returned"), search.block():
            search.update_array(ids, scores)
        with pytest.raises(fluid.errors.ProgramError, match="one block"), search.block():
            pass
