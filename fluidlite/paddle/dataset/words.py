"""Dictionaries of words, as Paddle's text data sets make them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

UNKNOWN = "<unk>"


def dictionary(words: Iterable[str], above: int) -> dict[str, int]:
    """Numbers of the words that come more often than ``above`` times, the most frequent first; then ``<unk>``."""
    return {word: index for index, word in enumerate([*frequent(words, UNKNOWN, above=above), UNKNOWN])}


def frequent(words: Iterable[str], *without: str, above: int = 0) -> list[str]:
    """The words that come more often than ``above`` times, the most frequent first."""
    counts = Counter(words)
    kept = (word for word, count in counts.items() if count > above and word not in without)
    return sorted(kept, key=lambda word: (-counts[word], word))
