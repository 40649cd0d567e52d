"""``paddle.dataset.imikolov``: n-grams or sentences of English text, as word indices."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fluidlite.base.arguments import check_int
from fluidlite.base.errors import LoaderError
from fluidlite.paddle.dataset import files
from fluidlite.paddle.dataset.words import UNKNOWN, dictionary

_FILE = "imikolov/simple-examples.tgz"
_TEST_INTERVAL = 10  # of the substitute: each tenth sentence is for tests


class DataType:
    """The kind of a sample: the ``n`` words of a window, or a sentence and the same shifted by a word."""

    NGRAM = 1
    SEQ = 2


def build_dict(min_word_freq: int = 50) -> dict[str, int]:
    """Indices of the words that occur more than ``min_word_freq`` times, with ``<s>``, ``<e>`` and ``<unk>``."""
    min_frequency = check_int("min_word_freq", min_word_freq)
    lines = [line for part in ("train", "valid") for line in _lines(part)]
    return dictionary((word for line in lines for word in ("<s>", *line, "<e>")), min_frequency)


def train(word_idx: Mapping[str, int], n: int, data_type: int = DataType.NGRAM) -> Callable[[], Iterator[Any]]:
    """A reader of the training text: tuples of ``n`` indices, or two lists."""
    return _reader("train", word_idx, n, data_type)


def test(word_idx: Mapping[str, int], n: int, data_type: int = DataType.NGRAM) -> Callable[[], Iterator[Any]]:
    """A reader of the test text."""
    return _reader("valid", word_idx, n, data_type)


def _reader(part: str, word_idx: Mapping[str, int], n: int, data_type: int) -> Callable[[], Iterator[Any]]:
    width = check_int("n", n)
    if data_type not in (DataType.NGRAM, DataType.SEQ) or (data_type == DataType.NGRAM and width < 1):
        raise LoaderError(f"paddle.dataset.imikolov: n is {n!r} and data_type {data_type!r}; expected 1 or more, NGRAM")
    absent = [word for word in ("<s>", "<e>", UNKNOWN) if word not in word_idx]
    if absent:
        raise LoaderError(
            f"paddle.dataset.imikolov: the dictionary has no {absent[0]!r}\n  Do: give that of build_dict()"
        )
    unknown = word_idx[UNKNOWN]

    def samples() -> Iterator[Any]:
        for line in _lines(part):
            if data_type == DataType.NGRAM:
                ids = [word_idx.get(word, unknown) for word in ("<s>", *line, "<e>")]
                for end in range(width, len(ids) + 1):
                    yield tuple(ids[end - width : end])
                continue
            ids = [word_idx.get(word, unknown) for word in line]
            if width <= 0 or len(ids) < width:
                yield [word_idx["<s>"], *ids], [*ids, word_idx["<e>"]]

    return samples


def _lines(part: str) -> Iterator[list[str]]:
    path = files.find(_FILE)
    if path is None:
        yield from _substitute(part)
        return
    member_name = f"simple-examples/data/ptb.{part}.txt"
    for _, content in files.members(path, member_name.__eq__, member_name):
        for line in files.lines(content):
            yield line.split()
        return


def _substitute(part: str) -> Iterator[list[str]]:
    """Substitute: sentences of Python's reference, which ships with Python."""
    from pydoc_data.topics import topics

    files.report_substitute("imikolov", _FILE, "the English text of Python's reference (pydoc_data.topics)")
    text = " ".join(topics[name] for name in sorted(topics))
    for number, sentence in enumerate(re.split(r"[.:;!?]\s", text)):
        words = re.findall(r"[a-z]+", sentence.lower())
        if len(words) > 3 and (number % _TEST_INTERVAL == 0) == (part == "valid"):
            yield words
