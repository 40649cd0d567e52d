"""Helpers of the translation data sets: samples of two sentences, and a generated substitute."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from fluidlite.base.errors import LoaderError
from fluidlite.paddle.dataset.words import UNKNOWN, frequent_words

START, END = "<s>", "<e>"
Pair = tuple[str, str]
Sample = tuple[list[int], list[int], list[int]]

_DIGITS = {
    "en": "zero one two three four five six seven eight nine",
    "fr": "zéro un deux trois quatre cinq six sept huit neuf",
    "de": "null eins zwei drei vier fünf sechs sieben acht neun",
}


def sentence_pair(line: str) -> Pair | None:
    """The two tab-separated sentences of a line; None if it has not two."""
    parts = line.strip().split("\t")
    return (parts[0], parts[1]) if len(parts) == 2 else None


def indexed_words(lines: Iterable[str], size: int) -> dict[str, int]:
    """Indices of ``<s>``, ``<e>``, ``<unk>`` and then of the most frequent words, ``size`` in all."""
    names = (START, END, UNKNOWN)
    words = frequent_words((word for line in lines for word in line.split()), *names)[: max(size - 3, 0)]
    return {word: i for i, word in enumerate([*names, *words])}


def make_sample(pair: Pair, source: dict[str, int], target: dict[str, int]) -> Sample:
    """The source between ``<s>`` and ``<e>``, the target after ``<s>``, and the target before ``<e>``."""
    for indices in (source, target):
        absent = [name for name in (START, END, UNKNOWN) if name not in indices]
        if absent:
            raise LoaderError(f"the dictionary of a data set of translations has no {absent[0]!r}")
    ids = [source.get(word, source[UNKNOWN]) for word in (START, *pair[0].split(), END)]
    words = [target.get(word, target[UNKNOWN]) for word in pair[1].split()]
    return ids, [target[START], *words], [*words, target[END]]


def generated_lines(part: str, source: str, target: str) -> Iterator[str]:
    """Generated lines: three to seven digits as words, in two languages."""
    rng = np.random.default_rng(sum(map(ord, part)))
    digit_words = [_DIGITS[language].split() for language in (source, target)]
    for _ in range(2000 if part == "train" else 200):
        digits = rng.integers(0, 10, rng.integers(3, 8))
        yield "\t".join(" ".join(words[digit] for digit in digits) for words in digit_words)
