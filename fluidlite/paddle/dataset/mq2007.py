"""``paddle.dataset.mq2007``: documents of queries, each with 46 features and a relevance of 0 to 2 (LETOR 4.0)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fluidlite.base.errors import LoaderError
from fluidlite.paddle.dataset import files

_FOLDER = "MQ2007/MQ2007/Fold1"
_FEATURES = 46

Document = tuple[int, np.ndarray[Any, Any]]
"""Its relevance and features."""
Query = tuple[int, list[Document]]


def train(format: str = "pairwise") -> files.Samples:
    """A reader of the training queries.

    Parameters
    ----------
    format : {"pairwise", "pointwise", "listwise", "plain_txt"}
        Pairs ``([1], better, worse)``; ``(relevance, features)``; a whole query, ``([[relevance], ...], features)``,
        the best first; ``(query, relevance, features)``.
    """
    return _reader("train", format)


def test(format: str = "pairwise") -> files.Samples:
    """A reader of the test queries; see :func:`train`."""
    return _reader("test", format)


def _pairs(query: Query) -> Iterator[tuple[Any, ...]]:
    documents = query[1]
    for i, (relevance, features) in enumerate(documents):
        for other_relevance, other in documents[i + 1 :]:
            if relevance != other_relevance:
                yield np.array([1]), *((features, other) if relevance > other_relevance else (other, features))


def _lists(query: Query) -> Iterator[tuple[Any, ...]]:
    ordered = sorted(query[1], key=lambda document: -document[0])
    yield np.array([[relevance] for relevance, _ in ordered]), np.array([features for _, features in ordered])


def _plain(query: Query) -> Iterator[tuple[Any, ...]]:
    for relevance, features in query[1]:
        yield query[0], relevance, features


_FORMATS: dict[str, Callable[[Query], Iterator[tuple[Any, ...]]]] = {
    "pairwise": _pairs,
    "pointwise": lambda query: iter(query[1]),
    "listwise": _lists,
    "plain_txt": _plain,
}


def _reader(part: str, format: str) -> files.Samples:
    samples = _FORMATS.get(format)
    if samples is None:
        raise LoaderError(f"paddle.dataset.mq2007: format is {format!r}; expected one of {', '.join(_FORMATS)}")
    return files.Samples(lambda: (sample for query in _queries(part) if _is_used(query) for sample in samples(query)))


def _is_used(query: Query) -> bool:
    """Whether a query has a relevant document; Paddle skips the others."""
    return any(relevance for relevance, _ in query[1])


def _queries(part: str) -> Iterator[Query]:
    name = f"{_FOLDER}/{part}.txt"
    path = files.find(name)
    if path is None:
        files.report_substitute("mq2007", name, "100 generated queries of 10 documents")
        yield from _generated(part)
        return
    current: Query | None = None
    for number, line in enumerate(files.lines(files.read(path), "ascii")):
        if not line.strip():
            continue
        query, document = _document(path, number, line)
        if current is None or current[0] != query:
            if current is not None:
                yield current
            current = query, []
        current[1].append(document)
    if current is not None:
        yield current


def _document(path: Path, number: int, line: str) -> tuple[int, Document]:
    """A line: ``relevance qid:number 1:value ... 46:value # ...``."""
    try:
        relevance, query, *pairs = line.split("#")[0].split()
        head, _, qid = query.partition(":")
        features = np.full(_FEATURES, -1.0)
        for pair in pairs:
            index, _, value = pair.partition(":")
            if not 1 <= int(index) <= _FEATURES:
                raise ValueError(f"feature {index}")
            features[int(index) - 1] = float(value)
        if head != "qid":
            raise ValueError(f"{query!r:.40} where qid:number is expected")
        return int(qid), (int(relevance), features)
    except ValueError as exc:
        raise LoaderError(f"{path}, line {number + 1}, is no document of LETOR: {exc}") from None


def _generated(part: str) -> Iterator[Query]:
    """Generated queries: the relevance ranks a weighted sum of features, with noise."""
    weights = np.random.default_rng(0).normal(size=_FEATURES)
    rng = np.random.default_rng(1 if part == "train" else 2)
    for query in range(80 if part == "train" else 20):
        features = rng.uniform(0, 1, (10, _FEATURES))
        scores = (features - 0.5) @ weights + rng.normal(0, 0.2, 10)
        ranks = np.argsort(np.argsort(scores))
        yield query, [(int(max(rank - 7, 0)), row) for rank, row in zip(ranks, features, strict=True)]
