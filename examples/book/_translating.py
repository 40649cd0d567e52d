"""Shared code of the two translation chapters: numbers in words, and the training and inference loops.

Sentences are numbers in words, of English and another language. <s> begins a sentence, <e> ends it and pads its row
to the common length.
"""

from __future__ import annotations

import itertools
import random
import re
from functools import cache

import numpy as np
from num2words import num2words

import fluidlite as fluid

BOS, EOS = 0, 1


@cache
def words_of(number, lang):
    """The words of a number, without hyphens and commas."""
    return re.findall(r"\w+", num2words(number, lang=lang))


def build_dict(lang, numbers):
    """Indices of a language's words, after those of <s> and <e>; ``numbers`` contain all words."""
    return {w: i for i, w in enumerate(["<s>", "<e>", *sorted({w for n in numbers for w in words_of(n, lang)})])}


def padded(ids, length):
    """Pad a sentence with <e> to ``length`` words."""
    return np.array([*ids, *[EOS] * (length - len(ids))], np.int64)


def named(name):
    """A parameter that both programs and all steps share by name."""
    return fluid.ParamAttr(name=name)


def feed_of(batch, columns, names=()):
    """A batch of samples as arrays by column name; of all columns if ``names`` is empty."""
    arrays = dict(zip(columns, map(np.array, zip(*batch, strict=True)), strict=True))
    return {name: arrays[name] for name in names or arrays}


def fill_after_end(best, length):
    """Replace all words after the first <e> of each sentence by <e>; [sentences, length]."""
    words = np.full((len(best), length), EOS)
    words[:, : best.shape[1]] = best
    return np.where(np.cumsum(words == EOS, axis=1) > 0, EOS, words)


class Translator:
    """A translation model: its training program, its translation program, and their feeds.

    Parameters
    ----------
    train_program, translation_program : callable
        Append layers; return the cost, or the words of translations.
    train, test : readers
        Readers of tuples of ``columns``, which include ``source``, ``source_length`` and ``label``.
    best : callable
        Converts the result of the translation program to a row of words for each sentence.
    length : int
        Length of the longest translation.
    """

    def __init__(self, train_program, translation_program, train, test, columns, best, length):
        self.train_program, self.translation_program = train_program, translation_program
        self.train_samples, self.test_samples, self.columns = train, test, columns
        self.best, self.length = best, length

    def train(self, place, folder, steps, on_step, learning_rate, batch_size, buf_size):
        """Train, save the translation model, and return its translations of the test part."""
        main, startup, translation = fluid.Program(), fluid.Program(), fluid.Program()
        main.random_seed = startup.random_seed = 1
        with fluid.program_guard(main, startup), fluid.unique_name.guard():
            loss = self.train_program()
            fluid.optimizer.Adam(learning_rate=learning_rate).minimize(loss)
        with fluid.program_guard(translation, fluid.Program()), fluid.unique_name.guard():
            words = self.translation_program()

        random.seed(0)
        batches = fluid.batch(fluid.reader.shuffle(self.train_samples, buf_size), batch_size, drop_last=True)
        exe = fluid.Executor(place)
        with fluid.scope_guard(fluid.Scope()):
            exe.run(startup)
            epochs = itertools.chain.from_iterable(batches() for _ in itertools.count())
            for step, batch in enumerate(itertools.islice(epochs, steps)):
                (cost,) = exe.run(main, feed=feed_of(batch, self.columns), fetch_list=[loss])
                on_step(exe, step, float(cost[0]))
            names = ["source", "source_length"]
            fluid.io.save_inference_model(folder, names, [words], exe, translation)
            feed = feed_of(self.test_samples(), self.columns, names)
            (translations,) = exe.run(translation, feed=feed, fetch_list=[words])
        return fill_after_end(self.best(translations), self.length)

    def infer(self, place, folder):
        """Load the model; return the share of correct translations of the test part, and the translations."""
        test = list(self.test_samples())
        exe = fluid.Executor(place)
        with fluid.scope_guard(fluid.Scope()):
            program, feed_names, fetch_targets = fluid.io.load_inference_model(folder, exe)
            feed = feed_of(test, self.columns, feed_names)
            (translations,) = exe.run(program, feed=feed, fetch_list=fetch_targets)
        best = fill_after_end(self.best(translations), self.length)
        labels = feed_of(test, self.columns)["label"]
        return float((best == labels).all(axis=1).mean()), best
