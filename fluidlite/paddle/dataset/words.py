"""Dictionaries of words, built as in Paddle's text data sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

UNKNOWN = "<unk>"


def dictionary(words: Iterable[str], above: int) -> dict[str, int]:
    """Indices of the words that occur more than ``above`` times, the most frequent first; then ``<unk>``."""
    return {word: index for index, word in enumerate([*frequent_words(words, UNKNOWN, above=above), UNKNOWN])}


def frequent_words(words: Iterable[str], *excluded: str, above: int = 0) -> list[str]:
    """The words that occur more than ``above`` times, the most frequent first."""
    counts = Counter(words)
    words_above = (word for word, count in counts.items() if count > above and word not in excluded)
    return sorted(words_above, key=lambda word: (-counts[word], word))
