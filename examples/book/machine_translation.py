"""Machine translation: the eighth chapter, an encoder and a decoder with attention, and beam search.

A bidirectional GRU reads the source. At each step the decoder's input is the sum of its outputs, weighted by attention,
and the previous word. Translations are found by beam search: the most probable prefixes of each sentence are
extended. Sentences are numbers in words; French counts by twenties where English counts by tens.

python examples/book/machine_translation.py [place]
"""

from __future__ import annotations

import numpy as np
from _translating import BOS, EOS, Translator, build_dict, named, padded, words_of

import fluidlite as fluid

layers = fluid.layers

DATA = "English and French words of the numbers below 100,000, by num2words (real)"
METRIC, GOAL, BETTER = "translations that are right, word by word, test part", 0.95, "higher"
STEPS = 120
WORD_DIM, HIDDEN_DIM, BATCH_SIZE, BEAM_SIZE = 32, 64, 128, 4
TEST_SIZE = 200


_DICT_NUMBERS = [*range(100), *range(100, 1000, 50), *range(1000, 100_000, 1000)]
SOURCE_DICT, TARGET_DICT = build_dict("en", _DICT_NUMBERS), build_dict("fr", _DICT_NUMBERS)
SOURCE_LENGTH, TARGET_LENGTH = 9, 12  # words of the longest sentence, with <e>


def reader(test: bool):
    """Return a reader of: source, its length, the target after <s>, the target before <e>, and its mask."""

    def samples():
        numbers = np.random.default_rng(0).permutation(100_000)
        for number in numbers[:TEST_SIZE] if test else numbers[TEST_SIZE:]:
            source = [*(SOURCE_DICT[w] for w in words_of(int(number), "en")), EOS]
            target = [TARGET_DICT[w] for w in words_of(int(number), "fr")]
            mask = (np.arange(TARGET_LENGTH) <= len(target)).astype("float32")
            yield (padded(source, SOURCE_LENGTH), [len(source)], padded([BOS, *target], TARGET_LENGTH),
                   padded([*target, EOS], TARGET_LENGTH), mask)  # fmt: skip

    return samples


def embed(ids, table, size):
    return fluid.embedding(ids, size=[size, WORD_DIM], param_attr=named(table))


def encoder(source, length):
    """Outputs of a bidirectional GRU, [batch, words, 2 * HIDDEN_DIM], and a vector of the whole sentence."""
    words = embed(source, "source_words", len(SOURCE_DICT))
    outputs, states = [], []
    for direction in ("forward", "backward"):
        attrs = [[named(f"{direction}_{part}_{kind}") for part in ("gates", "candidate")] for kind in ("w", "b")]
        output, state = layers.rnn(
            layers.GRUCell(HIDDEN_DIM, *attrs), words, sequence_length=length, is_reverse=direction == "backward"
        )
        outputs.append(output)
        states.append(state)
    final_states = layers.concat(states, axis=1)
    sentence = layers.fc(final_states, HIDDEN_DIM, param_attr=named("first_w"), bias_attr=named("first_b"), act="tanh")
    return layers.concat(outputs, axis=2), sentence


class DecoderCell(layers.RNNCell):
    """A GRU whose input is the previous word, and the encoder's outputs summed by attention weights."""

    def __init__(self):
        attrs = [[named(f"decoder_{part}_{kind}") for part in ("gates", "candidate")] for kind in ("w", "b")]
        self.gru = layers.GRUCell(HIDDEN_DIM, *attrs)

    def attend(self, hidden, encoded, keys, hidden_words):
        query = layers.fc(hidden, HIDDEN_DIM, param_attr=named("query_w"), bias_attr=False)
        mixed = layers.tanh(layers.elementwise_add(layers.transpose(keys, [1, 0, 2]), query))
        scores = layers.fc(mixed, 1, num_flatten_dims=2, param_attr=named("score_w"), bias_attr=False)
        scores = layers.transpose(layers.squeeze(scores, [2]), [1, 0]) + hidden_words
        return layers.reduce_sum(layers.elementwise_mul(encoded, layers.softmax(scores), axis=0), dim=1)

    def call(self, inputs, states, encoded, keys, hidden_words):
        context = self.attend(states, encoded, keys, hidden_words)
        return self.gru(layers.concat([inputs, context], axis=1), states)


def decoder(encoded, sentence, length, target=None):
    """Scores of the words that follow those of ``target``; without it, translations by beam search."""
    mask = layers.sequence_mask(length, maxlen=SOURCE_LENGTH, dtype="float32")
    cell_inputs = {
        "encoded": encoded,
        "keys": layers.fc(encoded, HIDDEN_DIM, num_flatten_dims=2, param_attr=named("key_w"), bias_attr=False),
        "hidden_words": (mask - 1.0) * 1e9,
    }
    cell = DecoderCell()

    def scores(outputs):
        attrs = named("word_w"), named("word_b")
        return layers.fc(outputs, len(TARGET_DICT), len(outputs.shape) - 1, *attrs)

    if target is not None:
        outputs, _ = layers.rnn(cell, embed(target, "target_words", len(TARGET_DICT)), sentence, **cell_inputs)
        return scores(outputs)
    tile = layers.BeamSearchDecoder.tile_beam_merge_with_batch
    cell_inputs = {name: tile(value, BEAM_SIZE) for name, value in cell_inputs.items()}
    search = layers.BeamSearchDecoder(
        cell, BOS, EOS, BEAM_SIZE, lambda ids: embed(ids, "target_words", len(TARGET_DICT)), scores
    )
    words, _ = layers.dynamic_decode(search, sentence, max_step_num=TARGET_LENGTH - 1, is_test=True, **cell_inputs)
    return words


def source_data():
    source = layers.data("source", [SOURCE_LENGTH], dtype="int64")
    length = layers.data("source_length", [1], dtype="int64")
    return source, layers.reshape(length, [-1])


def train_program():
    """Return the mean cost of all words, including <e>."""
    source, length = source_data()
    target = layers.data("target", [TARGET_LENGTH], dtype="int64")
    label = layers.data("label", [TARGET_LENGTH], dtype="int64")
    mask = layers.data("counts", [TARGET_LENGTH])
    scores = decoder(*encoder(source, length), length, target)
    cost = layers.softmax_with_cross_entropy(scores, layers.unsqueeze(label, [2]))
    cost = layers.reduce_sum(layers.squeeze(cost, [2]) * mask)
    return cost / layers.reduce_sum(mask)


def translation_program():
    """Return the words of the beams of each sentence, [batch, words, BEAM_SIZE], the best beam first."""
    source, length = source_data()
    return decoder(*encoder(source, length), length)


COLUMNS = ("source", "source_length", "target", "label", "counts")
TRANSLATOR = Translator(
    train_program,
    translation_program,
    train=reader(test=False),
    test=reader(test=True),
    columns=COLUMNS,
    best=lambda beams: beams[:, :, 0],  # the best beam of each sentence
    length=TARGET_LENGTH,
)


def train(place, folder, steps=STEPS, on_step=lambda exe, step, loss: None):
    """Train, save the translation model, and return its translations of the test part."""
    return TRANSLATOR.train(place, folder, steps, on_step, learning_rate=0.01, batch_size=BATCH_SIZE, buf_size=2000)


def infer(place, folder):
    """Load the model; return the share of correct translations of the test part, and the translations."""
    return TRANSLATOR.infer(place, folder)


if __name__ == "__main__":
    from fluidlite.cli.books import main

    main(__file__)
