"""``paddle.dataset.sentiment``: NLTK's movie reviews as word indices, and 0 (negative) or 1 (positive)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from fluidlite.base.errors import LoaderError
from fluidlite.paddle.dataset import files
from fluidlite.paddle.dataset.imdb import generated_reviews
from fluidlite.paddle.dataset.words import frequent_words

Sample = tuple[list[int], int]
_FILE = "corpora/movie_reviews.zip"
_WORD = re.compile(r"\w+|[^\w\s]+")
_TRAINING_SHARE = 0.8
"""1,600 of NLTK's 2,000 reviews."""

_reviews_of_file: dict[tuple[str, float] | None, list[tuple[list[str], int]]] = {}
"""The reviews of the last file, by its path and state."""


def _reviews() -> list[tuple[list[str], int]]:
    """All reviews, negative and positive ones alternating."""
    substitute = "1,000 generated reviews of 5 to 25 words"
    return files.read_once(_reviews_of_file, "sentiment", _FILE, _from_file, _substitute, substitute)


def _from_file(path: Path) -> list[tuple[list[str], int]]:
    kinds: dict[str, list[list[str]]] = {"neg": [], "pos": []}
    for name, content in files.zip_members(path, "movie_reviews/"):
        folder = name.split("/")[1]
        if folder in kinds and name.endswith(".txt"):
            kinds[folder].append(_WORD.findall(content.decode("latin-1").lower()))
    if not kinds["neg"] or not kinds["pos"]:
        raise LoaderError(f"{path} has no files movie_reviews/neg/*.txt and movie_reviews/pos/*.txt")
    pairs = zip(kinds["neg"], kinds["pos"], strict=False)
    return [(words, label) for pair in pairs for label, words in enumerate(pair)]


def _substitute() -> list[tuple[list[str], int]]:
    rows = chain(generated_reviews("train"), generated_reviews("test"))
    return [(words, 1 - is_negative) for words, is_negative in rows]


def get_word_dict() -> list[tuple[str, int]]:
    """The words with their indices, the most frequent first."""
    words = frequent_words(word for words, _ in _reviews() for word in words)
    return [(word, i) for i, word in enumerate(words)]


def _samples(training: bool) -> Iterator[Sample]:
    word_indices, reviews = dict(get_word_dict()), _reviews()
    split = int(len(reviews) * _TRAINING_SHARE)
    for words, label in reviews[:split] if training else reviews[split:]:
        yield [word_indices[word] for word in words], label


def train() -> files.Samples:
    """A reader of the first four fifths of the reviews."""
    return files.Samples(lambda: _samples(True))


def test() -> files.Samples:
    """A reader of the last fifth of the reviews."""
    return files.Samples(lambda: _samples(False))
