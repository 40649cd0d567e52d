"""``paddle.dataset.wmt14``: sentences in English and French, as numbers of words."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fluidlite.base.arguments import whole
from fluidlite.base.errors import LoaderError
from fluidlite.paddle.dataset import files
from fluidlite.paddle.dataset.translations import Sample, generated, numbered, pair_of, sample_of

_FILE = "wmt14/wmt14.tgz"
_MAX_BYTES = 512 << 20
_LONGEST = 80


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
    """Words by their numbers, of the source and of the target; ``reverse=False``: numbers by words."""
    source, target = _dicts(dict_size)
    if not reverse:
        return source, target
    return {i: word for word, i in source.items()}, {i: word for word, i in target.items()}


def _dicts(dict_size: int) -> tuple[dict[str, int], dict[str, int]]:
    size = whole("dict_size", dict_size)
    if size < 3:
        raise LoaderError(f"paddle.dataset.wmt14: dict_size is {size}; expected 3 or more")
    path = files.find(_FILE)
    if path is None:
        lines = [line.split("\t") for line in generated("train", "en", "fr")]
        return numbered((line[0] for line in lines), size), numbered((line[1] for line in lines), size)
    found: dict[str, dict[str, int]] = {}
    names = ("src.dict", "trg.dict")
    for name, content in files.members(path, lambda name: name.rsplit("/", 1)[-1] in names, names[0], _MAX_BYTES):
        words = content.decode("utf-8", "replace").splitlines()[:size]
        found[name.rsplit("/", 1)[-1]] = {word.strip(): i for i, word in enumerate(words)}
    if len(found) != 2:
        raise LoaderError(f"{path} has no files src.dict and trg.dict")
    return found["src.dict"], found["trg.dict"]


def _reader(part: str, dict_size: int) -> Callable[[], Iterator[Sample]]:
    whole("dict_size", dict_size)

    def samples() -> Iterator[Sample]:
        source, target = _dicts(dict_size)
        for line in _lines(part):
            pair = pair_of(line)
            if pair is None:
                continue
            found = sample_of(pair, source, target)
            if len(found[0]) <= _LONGEST and len(found[1]) <= _LONGEST + 1:
                yield found

    return samples


def _lines(part: str) -> Iterator[str]:
    path = files.find(_FILE)
    if path is None:
        files.say_instead("wmt14", _FILE, "2,200 generated pairs: digits in English and French words")
        yield from generated(part, "en", "fr")
        return
    wanted = f"{part}/{part}"
    for _, content in files.members(path, lambda name: name.endswith(wanted), wanted, _MAX_BYTES):
        yield from content.decode("utf-8", "replace").splitlines()
