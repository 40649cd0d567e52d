"""``paddle.dataset.imdb``: reviews as word indices, and 0 (positive) or 1 (negative)."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from fluidlite.base.errors import LoaderError
from fluidlite.paddle.dataset import files
from fluidlite.paddle.dataset.words import UNKNOWN, dictionary

Sample = tuple[list[int], int]
_FILE = "imdb/aclImdb_v1.tar.gz"
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CUTOFF = 150  # occurrences; words with no more of them share ``<unk>``
_PRAISE = ["good", "great", "fine", "lovely", "superb", "moving", "clever", "fresh"]
_BLAME = ["bad", "dull", "poor", "weak", "awful", "boring", "clumsy", "stale"]
_OTHERS = ["the", "a", "film", "story", "actor", "scene", "plot", "music"]
_OTHERS += ["end", "was", "is", "it", "with", "and", "so"]


def word_dict() -> dict[str, int]:
    """Indices of the words of all reviews; rare ones share that of ``<unk>``."""
    parts = [_reviews(part) for part in ("train", "test")]
    cutoff = _CUTOFF if files.find(_FILE) is not None else 0
    return dictionary((word for part in parts for words, _ in part for word in words), cutoff)


def train(word_idx: Mapping[str, int]) -> Callable[[], Iterator[Sample]]:
    """A reader of the training reviews."""
    return _reader("train", word_idx)


def test(word_idx: Mapping[str, int]) -> Callable[[], Iterator[Sample]]:
    """A reader of the test reviews."""
    return _reader("test", word_idx)


def _reader(part: str, word_idx: Mapping[str, int]) -> Callable[[], Iterator[Sample]]:
    if UNKNOWN not in word_idx:
        raise LoaderError(f"paddle.dataset.imdb: the dictionary has no {UNKNOWN!r}\n  Do: give that of word_dict()")
    unknown = word_idx[UNKNOWN]

    def samples() -> Iterator[Sample]:
        for words, label in _reviews(part):
            yield [word_idx.get(word, unknown) for word in words], label

    return samples


def _reviews(part: str) -> Iterator[tuple[list[str], int]]:
    path = files.find(_FILE)
    if path is None:
        files.report_substitute("imdb", _FILE, "1,000 generated reviews of 5 to 25 words")
        yield from generated_reviews(part)
        return
    folders = tuple(f"aclImdb/{part}/{kind}/" for kind in ("pos", "neg"))
    pattern = f"{folders[0]}*.txt"
    for name, content in files.members(path, lambda name: name.startswith(folders) and name.endswith(".txt"), pattern):
        text = content.decode("utf-8", "replace")
        yield text.rstrip("\n\r").translate(_PUNCTUATION).lower().split(), int(name.startswith(folders[1]))


def generated_reviews(part: str) -> Iterator[tuple[list[str], int]]:
    """Generated reviews of 5 to 25 words, about a third of them words of praise (0) or of blame (1)."""
    rng = np.random.default_rng(0 if part == "train" else 1)
    for number in range(800 if part == "train" else 200):
        label = number % 2
        is_judgement = rng.random(rng.integers(5, 26)) < 0.35
        is_judgement[rng.integers(len(is_judgement))] = True
        judgement_words = _BLAME if label else _PRAISE
        yield [str(rng.choice(judgement_words if judges else _OTHERS)) for judges in is_judgement], label
