"""Words to vectors: the fourth chapter, a neural n-gram language model.

Four words predict the fifth: their vectors, of a shared table, are concatenated; a hidden layer and a softmax over the
dictionary follow. `dense` and `sparse` differ only in `is_sparse` of the table: the gradient of the sparse one has
only the rows of the batch's words.

python examples/book/word2vec.py [place]
"""

from __future__ import annotations

import collections
import functools
import itertools
import math
import random
import re
from pydoc_data.topics import topics

import numpy as np

import fluidlite as fluid

VARIANTS = ("dense", "sparse")
DATA = "English sentences of Python's reference, pydoc_data.topics (real)"
METRIC, GOAL, BETTER = "perplexity of the next word, test part", 130.0, "lower"
STEPS = 1000
EMBED_SIZE, HIDDEN_SIZE, N, BATCH_SIZE = 32, 128, 5, 64
MIN_WORD_FREQ = 10


@functools.cache
def sentences():
    """The words of each distinct sentence of more than three words, in lower case."""
    text = " ".join(topics[name] for name in sorted(topics))
    word_lists = (tuple(re.findall(r"[a-z]+", sentence.lower())) for sentence in re.split(r"[.:;!?]\s", text))
    return list(dict.fromkeys(words for words in word_lists if len(words) > 3))


@functools.cache
def build_dict():
    """Indices of the frequent words, of <s> and <e> for begin and end, and of <unk> for all other words."""
    counts = collections.Counter(itertools.chain.from_iterable(sentences()))
    words = sorted(word for word, count in counts.items() if count >= MIN_WORD_FREQ)
    return {word: index for index, word in enumerate([*words, "<s>", "<e>", "<unk>"])}


def reader(test: bool):
    """Return a reader of n-grams of word indices; every tenth sentence is for tests."""

    def samples():
        word_dict = build_dict()
        for number, words in enumerate(sentences()):
            if (number % 10 == 0) == test:
                ids = [word_dict.get(word, word_dict["<unk>"]) for word in ("<s>", *words, "<e>")]
                for end in range(N, len(ids) + 1):
                    yield tuple(ids[end - N : end])

    return samples


TRAIN, TEST = reader(test=False), reader(test=True)


def inference_program(words, is_sparse):
    """Return the probabilities of the next word."""
    dict_size = len(build_dict())
    embeddings = [
        fluid.layers.embedding(
            input=word,
            size=[dict_size, EMBED_SIZE],
            dtype="float32",
            is_sparse=is_sparse,
            param_attr=fluid.ParamAttr(name="shared_w"),
        )
        for word in words
    ]
    concat_embed = fluid.layers.concat(input=embeddings, axis=1)
    hidden1 = fluid.layers.fc(input=concat_embed, size=HIDDEN_SIZE, act="sigmoid")
    return fluid.layers.fc(input=hidden1, size=dict_size, act="softmax")


def train(place, folder, steps=STEPS, on_step=lambda exe, step, loss: None, variant="dense"):
    """Train, save the model, and return its predictions for the test part."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 1
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        names = ["firstw", "secondw", "thirdw", "fourthw"]
        words = [fluid.layers.data(name=name, shape=[1], dtype="int64") for name in names]
        next_word = fluid.layers.data(name="nextw", shape=[1], dtype="int64")
        predict_word = inference_program(words, is_sparse=variant == "sparse")
        avg_cost = fluid.layers.mean(fluid.layers.cross_entropy(input=predict_word, label=next_word))
        test_program = main.clone(for_test=True)
        fluid.optimizer.Adagrad(learning_rate=0.1).minimize(avg_cost)

    random.seed(0)
    batches = fluid.batch(fluid.reader.shuffle(TRAIN, buf_size=100000), batch_size=BATCH_SIZE, drop_last=True)
    feeder = fluid.DataFeeder(feed_list=[*words, next_word], place=place)
    exe = fluid.Executor(place)
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        epochs = itertools.chain.from_iterable(batches() for _ in itertools.count())
        for step, batch in enumerate(itertools.islice(epochs, steps)):
            (cost,) = exe.run(main, feed=feeder.feed(batch), fetch_list=[avg_cost])
            on_step(exe, step, float(cost[0]))
        fluid.io.save_inference_model(folder, names, [predict_word], exe, main)
        (predicted,) = exe.run(test_program, feed=feeder.feed(list(TEST())), fetch_list=[predict_word])
    return predicted


def infer(place, folder, variant="dense"):
    """Load the model; return its perplexity on the test part, and its predictions."""
    grams = np.asarray(list(TEST()), np.int64)
    exe = fluid.Executor(place)
    with fluid.scope_guard(fluid.Scope()):
        program, feed_names, fetch_targets = fluid.io.load_inference_model(folder, exe)
        feed = {name: grams[:, place : place + 1] for place, name in enumerate(feed_names)}
        (predicted,) = exe.run(program, feed=feed, fetch_list=fetch_targets)
    probabilities = predicted[np.arange(len(grams)), grams[:, -1]]
    return math.exp(-np.mean(np.log(probabilities.astype("float64")))), predicted


if __name__ == "__main__":
    from fluidlite.cli.books import main

    main(__file__)
