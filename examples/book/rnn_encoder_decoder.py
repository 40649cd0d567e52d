"""Encoder and decoder: the chapter before attention, in which one vector encodes a whole sentence.

A bidirectional LSTM reads the source; its final states are the only input of the decoder, another LSTM.
It is trained by teacher forcing, and translates by greedy decoding. Sentences are numbers in
words.

python examples/book/rnn_encoder_decoder.py [place]
"""

from __future__ import annotations

import numpy as np
from _translating import BOS, EOS, Translator, build_dict, named, padded, words_of

import fluidlite as fluid

layers = fluid.layers

DATA = "English and Spanish words of the numbers below 10,000, by num2words (real)"
METRIC, GOAL, BETTER = "translations that are right, word by word, test part", 0.95, "higher"
STEPS = 400
WORD_DIM, HIDDEN_DIM, BATCH_SIZE = 32, 96, 64
TEST_SIZE = 300


_DICT_NUMBERS = [*range(100), *range(100, 10_000, 50)]
SOURCE_DICT, TARGET_DICT = build_dict("en", _DICT_NUMBERS), build_dict("es", _DICT_NUMBERS)
SOURCE_LENGTH, TARGET_LENGTH = 8, 8  # words of the longest sentence, with <e>


def reader(test: bool):
    """Return a reader of: source, its length, the target after <s>, the target before <e>, and its length."""

    def samples():
        numbers = np.random.default_rng(0).permutation(10_000)
        for number in numbers[:TEST_SIZE] if test else numbers[TEST_SIZE:]:
            source = [*(SOURCE_DICT[w] for w in words_of(int(number), "en")), EOS]
            target = [TARGET_DICT[w] for w in words_of(int(number), "es")]
            yield (padded(source, SOURCE_LENGTH), [len(source)], padded([BOS, *target], TARGET_LENGTH),
                   padded([*target, EOS], TARGET_LENGTH), [len(target) + 1])  # fmt: skip

    return samples


def embed(ids, table, size):
    return fluid.embedding(ids, size=[size, WORD_DIM], param_attr=named(table))


def bi_lstm_encoder(source, length):
    """Encode by a bidirectional LSTM; return the initial hidden and cell states of the decoder."""
    words = embed(source, "source_words", len(SOURCE_DICT))
    final_states = []
    for direction in ("forward", "backward"):
        cell = layers.LSTMCell(HIDDEN_DIM, named(f"{direction}_w"), named(f"{direction}_b"))
        _, states = layers.rnn(cell, words, sequence_length=length, is_reverse=direction == "backward")
        final_states.append(states)
    return [
        layers.fc(layers.concat(list(pair), axis=1), HIDDEN_DIM, act=act, param_attr=named(f"{name}_w"),
                  bias_attr=named(f"{name}_b"))
        for name, act, pair in zip(("hidden", "cell"), ("tanh", None), zip(*final_states, strict=True), strict=True)
    ]  # fmt: skip


def lstm_decoder(states, helper, **options):
    """Scores of words, [batch, words, dictionary], and the best, [batch, words]; the helper gives the steps' inputs."""
    cell = layers.LSTMCell(HIDDEN_DIM, named("decoder_w"), named("decoder_b"))

    def scores(outputs):
        return layers.fc(outputs, len(TARGET_DICT), param_attr=named("word_w"), bias_attr=named("word_b"))

    outputs, _ = layers.dynamic_decode(layers.BasicDecoder(cell, helper, scores), states, **options)
    return outputs


def source_data():
    source = layers.data("source", [SOURCE_LENGTH], dtype="int64")
    length = layers.data("source_length", [1], dtype="int64")
    return source, layers.reshape(length, [-1])


def train_program():
    """Return the mean cost of all words, including <e>."""
    states = bi_lstm_encoder(*source_data())
    target = layers.data("target", [TARGET_LENGTH], dtype="int64")
    label = layers.data("label", [TARGET_LENGTH], dtype="int64")
    length = layers.reshape(layers.data("target_length", [1], dtype="int64"), [-1])
    helper = layers.TrainingHelper(embed(target, "target_words", len(TARGET_DICT)), length)
    scores = lstm_decoder(states, helper).cell_outputs  # steps: the length of the longest target of the batch
    steps = layers.reduce_max(length)
    label = layers.slice(label, axes=[1], starts=[0], ends=[steps])
    mask = layers.sequence_mask(length, maxlen=steps, dtype="float32")
    cost = layers.softmax_with_cross_entropy(scores, layers.unsqueeze(label, [2]))
    return layers.reduce_sum(layers.squeeze(cost, [2]) * mask) / layers.reduce_sum(mask)


def translation_program():
    """Return the words of each sentence, [batch, words]."""
    source, length = source_data()
    states = bi_lstm_encoder(source, length)
    start = layers.fill_constant_batch_size_like(source, [-1], "int64", BOS)
    helper = layers.GreedyEmbeddingHelper(lambda ids: embed(ids, "target_words", len(TARGET_DICT)), start, EOS)
    return lstm_decoder(states, helper, max_step_num=TARGET_LENGTH - 1, is_test=True).sample_ids


COLUMNS = ("source", "source_length", "target", "label", "target_length")
TRANSLATOR = Translator(
    train_program,
    translation_program,
    train=reader(test=False),
    test=reader(test=True),
    columns=COLUMNS,
    best=lambda words: words,
    length=TARGET_LENGTH,
)


def train(place, folder, steps=STEPS, on_step=lambda exe, step, loss: None):
    """Train, save the translation model, and return its translations of the test part."""
    return TRANSLATOR.train(place, folder, steps, on_step, learning_rate=0.005, batch_size=BATCH_SIZE, buf_size=10_000)


def infer(place, folder):
    """Load the model; return the share of correct translations of the test part, and the translations."""
    return TRANSLATOR.infer(place, folder)


if __name__ == "__main__":
    from fluidlite.cli.books import main

    main(__file__)
