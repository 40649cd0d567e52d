"""dynamic_decode and its decoders: against enumeration, against rnn() with its gradients, and what is refused."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.errors import AttributeValueError, FluidError, ProgramError, ShapeError

L = fluid.layers
WORDS, START, END, HIDDEN = 4, 0, 1, 3
WHERE = [("cpu:0", "interpreted"), *((str(place), "compiled") for place in fluid.places()
                                     if place.kind in ("cpu", "opencl", "fpga"))]  # fmt: skip


def run(build: Any, feed: dict[str, Any], place: str = "cpu", mode: str = "compiled") -> list[Any]:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        fluid.default_main_program().random_seed = fluid.default_startup_program().random_seed = 5
        given = [L.data(n, list(v.shape[1:]), dtype=str(v.dtype)) for n, v in feed.items()]
        for each in given:
            each.stop_gradient = False
        outs = build(*given)
        exe = fluid.Executor(place, mode=mode, fallback="allow")
        with fluid.scope_guard(fluid.Scope()):
            exe.run(fluid.default_startup_program())
            found: list[Any] = exe.run(feed=feed, fetch_list=list(outs))
            return found


class Table(L.RNNCell):
    """A cell whose state is a row that words turn: so the next word hangs on all before it."""

    def __init__(self, turn: Any) -> None:
        self.turn = turn

    def call(self, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any]:
        new = L.tanh(L.matmul(states, L.assign(self.turn)) + inputs)
        return new, new


RNG = np.random.default_rng(11)
TURN, VECTORS, SCORES = (RNG.normal(size=dims).astype("float32") for dims in ((3, 3), (WORDS, 3), (3, WORDS)))

BIAS = np.float32([0, 3.2, 0, 0])


def embed(ids: Any) -> Any:
    flat = L.gather(L.assign(VECTORS), L.reshape(ids, [-1]))
    return L.reshape(flat, [-1, *ids.shape[1:], HIDDEN])


def score(hidden: Any) -> Any:
    return L.mul(hidden, L.assign(SCORES), len(hidden.shape) - 1) + L.assign(BIAS)


def enumerated(state: Any, steps: int) -> list[tuple[list[int], float]]:
    """All sentences with the logarithms of their probabilities, the likeliest first; ended ones go on with END."""
    found = []
    for words in product(range(WORDS), repeat=steps):
        cut = words[: words.index(END) + 1] if END in words else words
        if words[len(cut) :] != (END,) * (steps - len(cut)):
            continue
        hidden, before, total = state.astype(np.float64), START, 0.0
        for word in cut:
            hidden = np.tanh(hidden @ TURN + VECTORS[before])
            logits = hidden @ SCORES + BIAS
            total += logits[word] - np.log(np.exp(logits).sum())
            before = word
        found.append((list(words), total))
    return sorted(found, key=lambda each: -each[1])


@pytest.mark.parametrize(("place", "mode"), WHERE)
def test_a_wide_beam_finds_the_likeliest_sentences(place: str, mode: str) -> None:
    steps, states = 3, RNG.normal(size=(2, HIDDEN)).astype("float32")
    expected = [enumerated(state, steps) for state in states]
    beam = len(expected[0])

    def build(x: Any) -> Any:
        decoder = L.BeamSearchDecoder(Table(TURN), START, END, beam, embed, score)
        words, final, lengths = L.dynamic_decode(decoder, x, steps - 1, is_test=True, return_length=True)
        return words, final.log_probs, lengths

    words, scores, lengths = run(build, {"x": states}, place, mode)
    for i, sentences in enumerate(expected):
        assert words[i].T.tolist() == [each for each, _ in sentences]
        np.testing.assert_allclose(scores[i], [value for _, value in sentences], rtol=1e-4)
        assert lengths[i].tolist() == [each.index(END) + 1 if END in each else steps for each, _ in sentences]


def narrow(state: Any, steps: int, beam: int) -> list[list[int]]:
    """A search as one writes it on paper."""
    beams: list[tuple[list[int], Any, float]] = [([START], state.astype(np.float64), 0.0)]
    for _ in range(steps):
        every = []
        for words, hidden, total in beams:
            if END in words[1:]:
                every.append(([*words, END], hidden, total))
                continue
            new = np.tanh(hidden @ TURN + VECTORS[words[-1]])
            logits = new @ SCORES + BIAS
            logs = logits - np.log(np.exp(logits).sum())
            every += [([*words, w], new, total + logs[w]) for w in range(WORDS)]
        beams = sorted(every, key=lambda each: -each[2])[:beam]
        if all(END in words[1:] for words, _, _ in beams):
            break
    return [words[1:] for words, _, _ in beams]


@pytest.mark.parametrize("limit", [None, 2])
def test_a_narrow_beam_ends_when_all_its_prefixes_have(limit: int | None) -> None:
    every = [np.random.default_rng(seed).normal(size=(1, HIDDEN)).astype("float32") for seed in range(50)]
    states = next(each for each in every if 3 < len(narrow(each[0], 40, 2)[0]) < 12)

    def build(x: Any) -> Any:
        decoder = L.BeamSearchDecoder(Table(TURN), START, END, 2, embed, score)
        return L.dynamic_decode(decoder, x, limit, is_test=True)[:1]

    (words,) = run(build, {"x": states})
    assert words[0].T.tolist() == narrow(states[0], 40 if limit is None else limit + 1, 2)


def test_a_beam_of_one_is_greedy_and_so_is_a_cold_sample() -> None:
    states = RNG.normal(size=(3, HIDDEN)).astype("float32")

    def build(x: Any) -> Any:
        beam = L.BeamSearchDecoder(Table(TURN), START, END, 1, embed, score)
        start = L.fill_constant_batch_size_like(x, [-1], "int64", START)
        made = [L.reshape(L.dynamic_decode(beam, x, 5, is_test=True)[0], [0, -1])]
        for helper in (L.GreedyEmbeddingHelper(embed, start, END),
                       L.SampleEmbeddingHelper(embed, start, END, softmax_temperature=1e-3, seed=3)):  # fmt: skip
            outputs, _ = L.dynamic_decode(L.BasicDecoder(Table(TURN), helper, score), x, 5, is_test=True)
            made.append(outputs.sample_ids)
        return made

    beam, greedy, cold = run(build, {"x": states})
    until = [row.tolist().index(END) + 1 if END in row else len(row) for row in beam]
    for a, b, c, n in zip(beam, greedy, cold, until, strict=True):
        assert a[:n].tolist() == b[:n].tolist() == c[:n].tolist()


@pytest.mark.parametrize(("place", "mode"), [each for each in WHERE if "opencl" not in each[0]])
def test_forced_steps_are_those_of_rnn_and_have_its_gradients(place: str, mode: str) -> None:
    feed = {"x": RNG.normal(size=(3, 4, 2)).astype("float32"), "h": RNG.normal(size=(3, 2)).astype("float32"),
            "n": np.array([4, 1, 2])}  # fmt: skip
    weights, biases = (
        [RNG.normal(size=dims).astype("float32") for dims in some] for some in (((4, 4), (4, 2)), ((4,), (2,)))
    )
    mask = (np.arange(4) < feed["n"][:, None]).astype("float32")[:, :, None]

    def build(x: Any, h: Any, n: Any) -> Any:
        made = []
        for decoded in (False, True):
            start = fluid.initializer.NumpyArrayInitializer
            attrs = [[fluid.ParamAttr(name=f"{decoded}{each.shape}", initializer=start(each)) for each in some]
                     for some in (weights, biases)]  # fmt: skip
            cell = L.GRUCell(2, *attrs)
            lengths = L.reshape(n, [-1])
            if decoded:
                decoder = L.BasicDecoder(cell, L.TrainingHelper(x, lengths))
                outputs, last = L.dynamic_decode(decoder, h, impute_finished=True)
                outputs = outputs.cell_outputs
            else:
                outputs, last = L.rnn(cell, x, h, lengths)
            loss = L.reduce_sum(L.square(outputs) * L.assign(np.tile(mask, (1, 1, 2)))) + L.reduce_sum(last)
            made += [loss, last, *fluid.gradients([loss], [x, h])]
        return made

    feed["n"] = feed["n"].reshape(-1, 1)
    found = run(build, feed, place, mode)
    for one, other in zip(found[:4], found[4:], strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-6)
        assert np.abs(one).max() > 0


def test_lengths_are_counted_and_sequences_of_no_steps_have_none() -> None:
    feed = {"x": np.ones((2, 3, 2), "float32"), "h": np.zeros((2, 2), "float32"), "n": np.array([[2], [0]])}

    def build(x: Any, h: Any, n: Any) -> Any:
        helper = L.TrainingHelper(x, L.reshape(n, [-1]))
        outputs, _, lengths = L.dynamic_decode(
            L.BasicDecoder(L.GRUCell(2), helper), h, output_time_major=True, return_length=True
        )
        return outputs.cell_outputs, outputs.sample_ids, lengths

    cells, words, lengths = run(build, feed)
    assert cells.shape == (2, 2, 2)
    assert words.shape == (2, 2)
    assert lengths.tolist() == [2, 0]
    feed["n"][:] = 0
    with pytest.raises(ShapeError, match="empty array"):
        run(build, feed)


def test_rows_for_attention_are_tiled_beam_by_beam() -> None:
    x = np.arange(6, dtype="float32").reshape(2, 3)
    (tiled,) = run(lambda x: [L.BeamSearchDecoder.tile_beam_merge_with_batch(x, 2)], {"x": x})
    assert tiled.tolist() == [*[x[0].tolist()] * 2, *[x[1].tolist()] * 2]


def test_rows_of_open_dims_are_tiled_and_taken_along() -> None:
    """What an encoder of any number of steps says is tiled for attention, or a state of the cell."""

    class Attends(Table):
        def call(self, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any]:
            mean = L.reduce_mean(L.concat([states[1], kwargs["read"]], 1), 1)
            out, new = super().call(inputs, states[0])
            return out + mean - mean, [new, states[1]]

    feed = {"x": RNG.normal(size=(2, HIDDEN)).astype("float32"), "y": RNG.normal(size=(2, 4, HIDDEN)).astype("float32")}

    def build(x: Any, y: Any) -> Any:
        y = L.reshape(y, [0, L.slice(L.shape(y), [0], [1], [2]), HIDDEN])
        assert y.shape[1] == -1
        decoder = L.BeamSearchDecoder(Attends(TURN), START, END, 2, embed, score)
        read = decoder.tile_beam_merge_with_batch(y, 2)
        plain = L.BeamSearchDecoder(Table(TURN), START, END, 2, embed, score)
        words, states = L.dynamic_decode(decoder, [x, y], 3, is_test=True, read=read)
        return read, words, states.cell_states[1], L.dynamic_decode(plain, x, 3, is_test=True)[0]

    read, words, kept, plain = run(build, feed)
    np.testing.assert_array_equal(read, np.repeat(feed["y"], 2, axis=0))
    np.testing.assert_array_equal(kept, np.repeat(feed["y"][:, None], 2, axis=1))
    np.testing.assert_array_equal(words, plain)


def refused(build: Any) -> str:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        x = L.data("x", [HIDDEN])
        with pytest.raises(FluidError) as caught:
            build(x)
        assert len(fluid.default_main_program().blocks) == 1
        return f"{type(caught.value).__name__}: {caught.value}"


def beamed(x: Any, start: Any = START, end: Any = END, beam: Any = 2, output: Any = score) -> Any:
    return L.dynamic_decode(L.BeamSearchDecoder(Table(TURN), start, end, beam, embed, output), x, 3)


@pytest.mark.parametrize(
    ("build", "error", "texts"),
    [
        (lambda x: beamed(x, beam=0), AttributeValueError, ["argument 'beam_size'", "1 or more"]),
        (lambda x: beamed(x, start=None), ProgramError, ["argument 'start_token'"]),
        (lambda x: beamed(x, end=WORDS), AttributeValueError, ["argument 'end_token'", "below 4"]),
        (lambda x: beamed(x, end=-1), AttributeValueError, ["argument 'end_token'"]),
        (lambda x: beamed(None), ProgramError, ["argument 'inits'", "states of the cell"]),
        (lambda x: beamed(x, output=lambda h: L.reduce_sum(h, 2)), ShapeError, ["output_fn", "[batch, 2, words]"]),
        (lambda x: L.dynamic_decode(Table(TURN), x), ProgramError, ["argument 'decoder'"]),
        (lambda x: L.TrainingHelper(x, x), FluidError, ["sequence_length"]),
        (lambda x: L.BasicDecoder(Table(TURN), None), ProgramError, ["argument 'helper'"]),
    ],
)
def test_what_cannot_be_decoded_is_refused(build: Any, error: Any, texts: list[str]) -> None:
    text = refused(build)
    assert "test_decoders.py" in text
    assert issubclass(error, FluidError)
    assert error is FluidError or text.startswith(error.__name__)
    assert all(part in text for part in texts), text


def test_steps_that_return_other_states_are_refused() -> None:
    class Odd(L.Decoder):
        def __init__(self, make: Any) -> None:
            self.make = make

        def initialize(self, inits: Any) -> Any:
            return inits, [inits], L.fill_constant_batch_size_like(inits, [-1], "bool", 0)

        def step(self, time: Any, inputs: Any, states: Any, **kwargs: Any) -> Any:
            return inputs, self.make(states[0]), inputs, L.fill_constant_batch_size_like(inputs, [-1], "bool", 1)

    assert "another structure" in refused(lambda x: L.dynamic_decode(Odd(lambda s: s), x))
    assert "same dtype and rank" in refused(lambda x: L.dynamic_decode(Odd(lambda s: [L.cast(s, "float64")]), x))


class Logs(L.RNNCell):
    """Adds the logarithm of its input: of zeros behind the end, minus infinity."""

    def call(self, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any]:
        new = states + L.log(inputs)
        return new, new

    @property
    def state_shape(self) -> Any:
        return [2]


@pytest.mark.parametrize(("place", "mode"), WHERE)
def test_states_of_what_has_ended_are_kept_whatever_comes_behind(place: str, mode: str) -> None:
    def build(x: Any, length: Any, state: Any) -> Any:
        decoder = L.BasicDecoder(Logs(), L.TrainingHelper(x, L.reshape(length, [-1])))
        return [L.dynamic_decode(decoder, inits=state, impute_finished=True)[1]]

    x = np.ones((2, 3, 2), "float32")
    x[0, 1:] = 0
    feed = {"x": x, "length": np.array([[1], [3]]), "state": np.ones((2, 2), "float32")}
    (found,) = run(build, feed, place, mode)
    np.testing.assert_array_equal(found, np.ones((2, 2)))


def test_beams_that_have_ended_are_kept_where_they_are_now() -> None:
    """A beam search keeps account itself: ``impute_finished`` changes nothing, though beams change their places."""

    def build(impute: bool) -> Any:
        def uniform(name: str, high: float) -> fluid.ParamAttr:
            return fluid.ParamAttr(name=name, initializer=fluid.initializer.Uniform(-high, high))

        def outputs(state: Any) -> Any:
            return L.fc(state, 6, len(state.shape) - 1, uniform("o_w", 3), fluid.ParamAttr(name="o_b"))

        def decoded(state: Any) -> Any:
            cell = L.GRUCell(4, param_attr=uniform("cell", 2))
            search = L.BeamSearchDecoder(
                cell, 0, 1, 3, lambda ids: fluid.embedding(ids, [6, 3], param_attr=uniform("emb", 2)), outputs
            )
            beams, final, lengths = L.dynamic_decode(
                search, inits=state, max_step_num=8, is_test=True, return_length=True, impute_finished=impute
            )
            return [beams, final.log_probs, final.lengths, lengths]

        return decoded

    feed = {"state": np.random.default_rng(1).normal(size=(5, 4)).astype("float32")}
    for mine, other in zip(run(build(True), feed), run(build(False), feed), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_one_name_for_both_parameters_of_a_gru_cell() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        cell = L.GRUCell(4, param_attr=fluid.ParamAttr(name="cell"))
        cell(L.data("x", [3]), L.data("h", [4]))
        names = {p.name for p in fluid.default_main_program().all_parameters()}
    assert {"cell_gate", "cell_candidate"} <= names
