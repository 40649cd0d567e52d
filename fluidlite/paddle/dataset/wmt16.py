"""``paddle.dataset.wmt16``: sentences in English and German, as word indices."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fluidlite.base.arguments import check_int
from fluidlite.base.errors import LoaderError
from fluidlite.paddle.dataset import files
from fluidlite.paddle.dataset.translations import Sample, generated_lines, indexed_words, make_sample, sentence_pair

_FILE = "wmt16/wmt16.tar.gz"
_MAX_BYTES = 256 << 20
_LANGUAGES = ("en", "de")


def train(src_dict_size: int, trg_dict_size: int, src_lang: str = "en") -> Callable[[], Iterator[Sample]]:
    """A reader of the training sentences: source, target after ``<s>``, target before ``<e>``."""
    return _reader("train", src_dict_size, trg_dict_size, src_lang)


def test(src_dict_size: int, trg_dict_size: int, src_lang: str = "en") -> Callable[[], Iterator[Sample]]:
    """A reader of the test sentences."""
    return _reader("test", src_dict_size, trg_dict_size, src_lang)


def validation(src_dict_size: int, trg_dict_size: int, src_lang: str = "en") -> Callable[[], Iterator[Sample]]:
    """A reader of the sentences for validation."""
    return _reader("val", src_dict_size, trg_dict_size, src_lang)


def _column(lang: str) -> int:
    if lang not in _LANGUAGES:
        raise LoaderError(f"paddle.dataset.wmt16: the language is {lang!r}; expected 'en' or 'de'")
    return _LANGUAGES.index(lang)


def get_dict(lang: str, dict_size: int, reverse: bool = False) -> dict[str, int] | dict[int, str]:
    """Indices of the most frequent words of a language; ``reverse``: words by index."""
    dictionary = _dict(lang, dict_size)
    return {i: word for word, i in dictionary.items()} if reverse else dictionary


def _dict(lang: str, dict_size: int) -> dict[str, int]:
    column, size = _column(lang), check_int("dict_size", dict_size)
    if size < 3:
        raise LoaderError(f"paddle.dataset.wmt16: a dictionary is to have {size} words; expected 3 or more")
    pairs = (sentence_pair(line) for line in _lines("train"))
    return indexed_words((pair[column] for pair in pairs if pair is not None), size)


def _reader(part: str, src_dict_size: int, trg_dict_size: int, src_lang: str) -> Callable[[], Iterator[Sample]]:
    column = _column(src_lang)

    def samples() -> Iterator[Sample]:
        source, target = _dict(src_lang, src_dict_size), _dict(_LANGUAGES[1 - column], trg_dict_size)
        for line in _lines(part):
            pair = sentence_pair(line)
            if pair is not None:
                yield make_sample((pair[column], pair[1 - column]), source, target)

    return samples


def _lines(part: str) -> Iterator[str]:
    path = files.find(_FILE)
    if path is None:
        files.report_substitute("wmt16", _FILE, "2,400 generated pairs: digits in English and German words")
        yield from generated_lines(part, "en", "de")
        return
    member_name = f"wmt16/{part}"
    for _, content in files.members(path, member_name.__eq__, member_name, _MAX_BYTES):
        yield from files.lines(content)
        return
