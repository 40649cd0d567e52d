"""Understand sentiment: the sixth chapter, classification of texts by two networks.

`conv`: two convolutions over the words' vectors, pooled over each text. `stacked_lstm`: three stacked LSTMs, every
second one reversed. The chapter's film reviews are not in any package; the
two classes here are sentences of Python's reference and sentences of the standard library's docstrings.

python examples/book/understand_sentiment.py [place]
"""

from __future__ import annotations

import ast
import collections
import functools
import itertools
import random
import re
import sysconfig
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np

import fluidlite as fluid

VARIANTS = ("conv", "stacked_lstm")
DATA = "sentences of pydoc_data.topics, and of docstrings of Python's standard library (real)"
METRIC, BETTER = "accuracy on the test part", "higher"
GOAL = {"conv": 0.83, "stacked_lstm": 0.83}
STEPS = {"conv": 120, "stacked_lstm": 200}
CLASS_DIM, EMB_DIM, HID_DIM, STACKED_NUM, BATCH_SIZE = 2, 32, 64, 3, 64
MIN_WORDS, MAX_WORDS, MIN_WORD_FREQ = 6, 30, 4
MODULES = (
    "argparse calendar codecs configparser csv datetime decimal difflib doctest fractions inspect mailbox optparse"
    " pickle pydoc random shutil smtplib socket statistics string subprocess tarfile tempfile threading turtle uuid"
)


def sentences(texts):
    """The words of each distinct sentence, in lower case; long sentences are truncated."""
    split = (re.findall(r"[a-z]+", part.lower()) for text in texts for part in re.split(r"[.:;!?]\s", text))
    return list(dict.fromkeys(tuple(words[:MAX_WORDS]) for words in split if len(words) >= MIN_WORDS))


def docstrings():
    """Docstrings of modules, classes and functions; nothing is imported."""
    for name in MODULES.split():
        path = Path(sysconfig.get_path("stdlib"), f"{name}.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8"))) if path.exists() else ():
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                yield ast.get_docstring(node) or ""


@functools.cache
def load():
    """Equal numbers of sentences of both classes, in a fixed random order: words, and 0 or 1."""
    reference, library = sentences(topics[name] for name in sorted(topics)), sentences(docstrings())
    rng = random.Random(0)
    count = min(len(reference), len(library))
    samples = [(words, 0) for words in rng.sample(reference, count)]
    samples += [(words, 1) for words in rng.sample(library, count)]
    rng.shuffle(samples)
    return samples


@functools.cache
def word_dict():
    """Indices of the frequent words; all others share that of <unk>."""
    counts = collections.Counter(itertools.chain.from_iterable(words for words, _ in load()))
    words = sorted(word for word, count in counts.items() if count >= MIN_WORD_FREQ)
    return {word: index for index, word in enumerate(["<unk>", *words])}


def reader(test: bool):
    """Return a reader of texts as word indices, and their class; every tenth is for tests."""

    def samples():
        indices = word_dict()
        for position, (words, label) in enumerate(load()):
            if (position % 10 == 0) == test:
                yield [indices.get(word, 0) for word in words], label

    return samples


TRAIN, TEST = reader(test=False), reader(test=True)


def convolution_net(data, input_dim, class_dim, emb_dim, hid_dim):
    """Two convolutions, of three and of four words."""
    emb = fluid.layers.embedding(input=data, size=[input_dim, emb_dim], is_sparse=True)
    conv_3 = fluid.nets.sequence_conv_pool(input=emb, num_filters=hid_dim, filter_size=3, act="tanh", pool_type="sqrt")
    conv_4 = fluid.nets.sequence_conv_pool(input=emb, num_filters=hid_dim, filter_size=4, act="tanh", pool_type="sqrt")
    return fluid.layers.fc(input=[conv_3, conv_4], size=class_dim, act="softmax")


def stacked_lstm_net(data, input_dim, class_dim, emb_dim, hid_dim, stacked_num=STACKED_NUM):
    """Stacked LSTMs; maximum pooling over the text's words gives its class."""
    emb = fluid.layers.embedding(input=data, size=[input_dim, emb_dim], is_sparse=True)
    fc1 = fluid.layers.fc(input=emb, size=hid_dim)
    lstm1, _cell1 = fluid.layers.dynamic_lstm(input=fc1, size=hid_dim)
    inputs = [fc1, lstm1]
    for i in range(2, stacked_num + 1):
        fc = fluid.layers.fc(input=inputs, size=hid_dim)
        lstm, _cell = fluid.layers.dynamic_lstm(input=fc, size=hid_dim, is_reverse=(i % 2) == 0)
        inputs = [fc, lstm]
    fc_last = fluid.layers.sequence_pool(input=inputs[0], pool_type="max")
    lstm_last = fluid.layers.sequence_pool(input=inputs[1], pool_type="max")
    return fluid.layers.fc(input=[fc_last, lstm_last], size=class_dim, act="softmax")


NETWORKS = {"conv": convolution_net, "stacked_lstm": stacked_lstm_net}


def train(place, folder, steps=300, on_step=lambda exe, step, loss: None, variant="conv"):
    """Train, save the model, and return its predictions for the test part."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 1
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        words = fluid.layers.data(name="words", shape=[1], dtype="int64", lod_level=1)
        label = fluid.layers.data(name="label", shape=[1], dtype="int64")
        prediction = NETWORKS[variant](words, len(word_dict()), CLASS_DIM, EMB_DIM, HID_DIM)
        avg_cost = fluid.layers.mean(fluid.layers.cross_entropy(input=prediction, label=label))
        test_program = main.clone(for_test=True)
        fluid.optimizer.Adagrad(learning_rate=0.03).minimize(avg_cost)

    random.seed(0)
    batches = fluid.batch(fluid.reader.shuffle(TRAIN, buf_size=25000), batch_size=BATCH_SIZE, drop_last=True)
    feeder = fluid.DataFeeder(feed_list=[words, label], place=place)
    exe = fluid.Executor(place)
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        epochs = itertools.chain.from_iterable(batches() for _ in itertools.count())
        for step, batch in enumerate(itertools.islice(epochs, steps)):
            (cost,) = exe.run(main, feed=feeder.feed(batch), fetch_list=[avg_cost])
            on_step(exe, step, float(cost[0]))
        fluid.io.save_inference_model(folder, ["words"], [prediction], exe, main)
        (predicted,) = exe.run(test_program, feed=feeder.feed(list(TEST())), fetch_list=[prediction])
    return predicted


def infer(place, folder, variant="conv"):
    """Load the model; return its accuracy on the test part, and its predictions."""
    texts, labels = zip(*TEST(), strict=True)
    exe = fluid.Executor(place)
    with fluid.scope_guard(fluid.Scope()):
        program, feed_names, fetch_targets = fluid.io.load_inference_model(folder, exe)
        lod = [[len(text) for text in texts]]
        tensor = fluid.create_lod_tensor(np.concatenate(texts).reshape(-1, 1).astype("int64"), lod, place)
        (predicted,) = exe.run(program, feed={feed_names[0]: tensor}, fetch_list=fetch_targets)
    return float(np.mean(predicted.argmax(axis=1) == np.asarray(labels))), predicted


if __name__ == "__main__":
    from fluidlite.cli.books import main

    main(__file__)
