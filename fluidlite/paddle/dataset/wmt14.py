"""``paddle.dataset.wmt14``: sentences in English and French, as word indices."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fluidlite.base.arguments import check_int
from fluidlite.base.errors import LoaderError
from fluidlite.paddle.dataset import files
from fluidlite.paddle.dataset.translations import Sample, generated_lines, indexed_words, make_sample, sentence_pair

_FILE = "wmt14/wmt14.tgz"
_MAX_BYTES = 512 << 20
_MAX_WORDS = 80  # of a sentence; samples with longer ones are skipped


def train(dict_size: int) -> Callable[[], Iterator[Sample]]:
    """A reader of the training sentences: source, target after ``<s>``, target before ``<e>``."""
    return _reader("train", dict_size)


def test(dict_size: int) -> Callable[[], Iterator[Sample]]:
    """A reader of the test sentences."""
    return _reader("test", dict_size)


def gen(dict_size: int) -> Callable[[], Iterator[Sample]]:
    """A reader of the sentences for generation."""
    return _reader("gen", dict_size)


def get_dict(
    dict_size: int, reverse: bool = True
) -> tuple[dict[int, str], dict[int, str]] | tuple[dict[str, int], dict[str, int]]:
    """Words by index, of the source and of the target; ``reverse=False``: indices by word."""
    source, target = _dicts(dict_size)
    if not reverse:
        return source, target
    return {i: word for word, i in source.items()}, {i: word for word, i in target.items()}


def _dicts(dict_size: int) -> tuple[dict[str, int], dict[str, int]]:
    size = check_int("dict_size", dict_size)
    if size < 3:
        raise LoaderError(f"paddle.dataset.wmt14: dict_size is {size}; expected 3 or more")
    path = files.find(_FILE)
    if path is None:
        lines = [line.split("\t") for line in generated_lines("train", "en", "fr")]
        return indexed_words((line[0] for line in lines), size), indexed_words((line[1] for line in lines), size)
    dictionaries: dict[str, dict[str, int]] = {}
    names = ("src.dict", "trg.dict")
    for name, content in files.members(path, lambda name: name.rsplit("/", 1)[-1] in names, names[0], _MAX_BYTES):
        words = files.lines(content)[:size]
        dictionaries[name.rsplit("/", 1)[-1]] = {word.strip(): i for i, word in enumerate(words)}
    if len(dictionaries) != 2:
        raise LoaderError(f"{path} has no files src.dict and trg.dict")
    return dictionaries["src.dict"], dictionaries["trg.dict"]


def _reader(part: str, dict_size: int) -> Callable[[], Iterator[Sample]]:
    check_int("dict_size", dict_size)

    def samples() -> Iterator[Sample]:
        source, target = _dicts(dict_size)
        for line in _lines(part):
            pair = sentence_pair(line)
            if pair is None:
                continue
            sample = make_sample(pair, source, target)
            if len(sample[0]) <= _MAX_WORDS and len(sample[1]) <= _MAX_WORDS + 1:
                yield sample

    return samples


def _lines(part: str) -> Iterator[str]:
    path = files.find(_FILE)
    if path is None:
        files.report_substitute("wmt14", _FILE, "2,200 generated pairs: digits in English and French words")
        yield from generated_lines(part, "en", "fr")
        return
    member_suffix = f"{part}/{part}"
    for _, content in files.members(path, lambda name: name.endswith(member_suffix), member_suffix, _MAX_BYTES):
        yield from files.lines(content)
