"""``paddle.dataset.conll05``: semantic role labels of the words of a sentence, for each of its verbs."""

from __future__ import annotations

import atexit
import gzip
import io
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from fluidlite.base.errors import LoaderError
from fluidlite.paddle.dataset import files

_FOLDER = "conll05st"
_TESTS = f"{_FOLDER}/conll05st-tests.tar.gz"
_WORDS, _PROPS = (f"conll05st-release/test.wsj/{kind}/test.wsj.{kind}.gz" for kind in ("words", "props"))
_MAX_BYTES = 64 << 20
UNK_IDX = 0
_folders: list[str] = []
"""The temporary folder of generated word vectors, removed at exit; empty if none was made."""
_VECTOR_LENGTH = 32

Dict = dict[str, int]
Tagged = tuple[list[str], str, list[str]]
"""Words, the verb, and a label for each word."""


def get_dict() -> tuple[Dict, Dict, Dict]:
    """Indices of words, of verbs and of labels."""
    paths = [files.find(f"{_FOLDER}/{name}Dict.txt") for name in ("word", "verb", "target")]
    if files.find(_TESTS) is None or None in paths:
        return _generated_dicts()
    words, verbs, labels = (_entries(path) for path in paths if path is not None)
    tags = dict.fromkeys(label[2:] for label in labels if label.startswith(("B-", "I-")))
    label_indices = {f"{begin}-{tag}": 2 * i + j for i, tag in enumerate(tags) for j, begin in enumerate("BI")}
    label_indices["O"] = len(label_indices)
    return {word: i for i, word in enumerate(words)}, {word: i for i, word in enumerate(verbs)}, label_indices


def _entries(path: Path) -> list[str]:
    return [line.strip() for line in files.lines(files.read(path)) if line.strip()]


def get_embedding() -> str:
    """The path of word vectors: 16 bytes, then float32 [words, 32]."""
    path = files.find(f"{_FOLDER}/emb")
    if path is not None:
        return str(path)
    files.report_substitute("conll05", f"{_FOLDER}/emb", "generated word vectors")
    if not _folders:
        _folders.append(tempfile.mkdtemp(prefix="fluidlite-conll05-"))
        atexit.register(shutil.rmtree, _folders[0], ignore_errors=True)
    vectors_path = Path(_folders[0]) / "emb"
    table = np.random.default_rng(0).normal(0, 0.1, (len(get_dict()[0]), _VECTOR_LENGTH)).astype("float32")
    vectors_path.write_bytes(bytes(16) + table.tobytes())
    return str(vectors_path)


def test() -> Callable[[], Iterator[tuple[list[int], ...]]]:
    """A reader of: words, the five context words around the verb (each repeated), verb, marks of the five, labels."""
    return _samples


def _samples() -> Iterator[tuple[list[int], ...]]:
    words, verbs, labels = get_dict()
    for sentence, verb, tags in _tagged_sentences():
        yield _sample(sentence, verb, tags, words, verbs, labels)


def _sample(
    sentence: list[str], verb: str, tags: list[str], words: Dict, verbs: Dict, labels: Dict
) -> tuple[list[int], ...]:
    if "B-V" not in tags:
        raise LoaderError(f"paddle.dataset.conll05: a sentence has no verb: {' '.join(sentence)[:80]!r}")
    verb_position, length = tags.index("B-V"), len(sentence)
    context, mark = [], [0] * length
    for position in range(verb_position - 2, verb_position + 3):
        inside = 0 <= position < length
        if inside:
            mark[position] = 1
        context.append(sentence[position] if inside else "bos" if position < 0 else "eos")
    unknown = [tag for tag in tags if tag not in labels]
    if unknown or verb not in verbs:
        raise LoaderError(f"paddle.dataset.conll05: the dictionaries have no {(unknown or [verb])[0]!r}")
    context_words = [[words.get(word, UNK_IDX)] * length for word in context]
    word_indices = [words.get(word, UNK_IDX) for word in sentence]
    return (word_indices, *context_words, [verbs[verb]] * length, mark, [labels[tag] for tag in tags])


def _tagged_sentences() -> Iterator[Tagged]:
    path = files.find(_TESTS)
    if path is None:
        yield from _generated()
        return
    with files.Archive(path) as archive:
        lines = [_unpacked_lines(path, name, archive.read(name)) for name in (_WORDS, _PROPS)]
    if len(lines[0]) != len(lines[1]):
        raise LoaderError(f"{path}: words have {len(lines[0])} lines, and roles {len(lines[1])}")
    sentence: list[str] = []
    columns: list[list[str]] = []
    for word, props in zip((*lines[0], ""), (*lines[1], ""), strict=True):
        if word.strip():
            sentence.append(word.strip())
            columns.append(props.split())
            continue
        if sentence:
            yield from _roles(path, sentence, columns)
        sentence, columns = [], []


def _unpacked_lines(path: Path, name: str, content: bytes) -> list[str]:
    try:
        with gzip.open(io.BytesIO(content)) as file:
            text: bytes = file.read(_MAX_BYTES + 1)
    except (zlib.error, OSError, EOFError) as exc:
        raise LoaderError(f"{path}: {name} cannot be read: {exc}") from None
    if len(text) > _MAX_BYTES:
        raise LoaderError(f"{path}: {name} unpacks to more than {_MAX_BYTES:,} bytes")
    return files.lines(text, "latin-1")


def _roles(path: Path, sentence: list[str], columns: list[list[str]]) -> Iterator[Tagged]:
    """The roles for each verb of a sentence; column 0 has the verbs, each other column one verb's brackets."""
    verbs = [row[0] for row in columns if row and row[0] != "-"]
    if any(len(row) != len(verbs) + 1 for row in columns):
        raise LoaderError(f"{path}: the roles of {' '.join(sentence)[:60]!r} have not a column for each of its verbs")
    for index, verb in enumerate(verbs):
        tags, current = [], ""
        for row in columns:
            bracket = row[index + 1]
            if bracket.startswith("("):
                current = bracket[1 : bracket.find("*")]
                tags.append(f"B-{current}")
            elif bracket in ("*", "*)"):
                tags.append(f"I-{current}" if current else "O")
            else:
                raise LoaderError(f"{path}: {bracket!r:.40} is no bracket of a role")
            if bracket.endswith(")"):
                current = ""
        yield sentence, verb, tags


_NAMES = ["Anna", "Paul", "Maria", "Peter"]
_VERBS = ["sees", "buys", "reads", "takes", "sells"]
_THINGS = ["book", "house", "letter", "car", "song"]
_WHERE = ["town", "garden", "school"]


def _generated() -> Iterator[Tagged]:
    files.report_substitute("conll05", _TESTS, "400 generated sentences of subject, verb, object and place")
    rng = np.random.default_rng(0)
    for _ in range(400):
        name, verb, thing, where = (str(rng.choice(each)) for each in (_NAMES, _VERBS, _THINGS, _WHERE))
        sentence, tags = [name, verb, "the", thing], ["B-A0", "B-V", "B-A1", "I-A1"]
        if rng.random() < 0.5:
            sentence += ["in", "the", where]
            tags += ["B-AM-LOC", "I-AM-LOC", "I-AM-LOC"]
        if rng.random() < 0.3:
            sentence, tags = ["today", *sentence], ["O", *tags]
        yield sentence, verb, tags


def _generated_dicts() -> tuple[Dict, Dict, Dict]:
    words = ["<unk>", "bos", "eos", "the", "in", "today", *_NAMES, *_VERBS, *_THINGS, *_WHERE]
    labels = [f"{begin}-{tag}" for tag in ("A0", "V", "A1", "AM-LOC") for begin in "BI"] + ["O"]
    return tuple({name: i for i, name in enumerate(names)} for names in (words, _VERBS, labels))  # type: ignore[return-value]
