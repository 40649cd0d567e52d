"""Dictionaries of words, as Paddle's text data sets make them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

UNKNOWN = "<unk>"


def dictionary(words: Iterable[str], above: int) -> dict[str, int]:
    """Numbers of the words that come more often than ``above`` times, the most frequent first; then ``<unk>``."""
    counts = Counter(words)
    counts.pop(UNKNOWN, None)
    kept = sorted((word for word, count in counts.items() if count > above), key=lambda word: (-counts[word], word))
    return {word: index for index, word in enumerate([*kept, UNKNOWN])}
