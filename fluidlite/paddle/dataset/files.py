"""The folder of data sets: finds their files, reads them within size limits, reports substitutes."""

from __future__ import annotations

import gzip
import lzma
import os
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from stat import S_ISREG
from typing import Any, TypeVar

from fluidlite.base.errors import LoaderError

Read = TypeVar("Read")
VARIABLE = "FLUIDLITE_DATASETS"
MAX_FILE_BYTES = 1 << 30
"""Maximum size of a file, also decompressed; a larger one is rejected."""
MAX_MEMBER_BYTES = 16 << 20
"""Maximum size of an archive's member; a larger one is rejected."""
_DAMAGES = (
    OSError, EOFError, ValueError, NotImplementedError, RuntimeError, lzma.LZMAError, tarfile.TarError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What Python's readers of compressed files and archives raise where one is damaged, or wants a password."""

_chosen_folder: list[Path] = []  # of set_folder; empty: the variable's
_reported: set[tuple[str, str]] = set()  # data sets and substitutes reported on stderr


def set_folder(folder: str | os.PathLike[str]) -> None:
    """Set the folder of data sets; it takes precedence over ``FLUIDLITE_DATASETS``.

    Raises LoaderError if it is no folder.
    """
    path = Path(folder)
    if not path.is_dir():
        raise LoaderError(f"the folder of data sets {str(folder)!r} is no folder\n  Do: make it, or name another")
    _chosen_folder[:] = [path]


def folder() -> Path | None:
    """The folder that ``--data`` or ``FLUIDLITE_DATASETS`` names, or None."""
    if _chosen_folder:
        return _chosen_folder[0]
    text = os.environ.get(VARIABLE)
    return Path(text) if text else None


def find(name: str) -> Path | None:
    """The path of a file, such as ``mnist/train-images-idx3-ubyte.gz``; None if it does not exist.

    Raises LoaderError if ``FLUIDLITE_DATASETS`` names no folder, or the path no regular file.
    """
    base = folder()
    if base is None:
        return None
    if not base.is_dir():
        raise LoaderError(f"{VARIABLE} names {str(base)!r}, which is no folder\n  Do: make it, or unset {VARIABLE}")
    path = base / name
    if not path.exists():
        return None
    if not S_ISREG(path.stat().st_mode):
        raise LoaderError(f"{path} is no regular file")
    return path


def report_substitute(dataset: str, missing: str, substitute: str) -> None:
    """Report on stderr, once, the substitute for a missing file."""
    if (dataset, substitute) not in _reported:
        _reported.add((dataset, substitute))
        path = f"{folder() or '$' + VARIABLE}/{missing}"
        print(f"paddle.dataset.{dataset}: {substitute}, since there is no {path}", file=sys.stderr)


@contextmanager
def _reading(what: object) -> Iterator[None]:
    """Raise LoaderError where a file is damaged."""
    try:
        yield
    except LoaderError:
        raise
    except _DAMAGES as exc:
        raise LoaderError(f"{what} cannot be read: {exc}") from exc


def _regular_files(path: Path, archive: tarfile.TarFile) -> Iterator[tuple[str, tarfile.TarInfo]]:
    """The regular files of a tar archive, by name. A negative size would lead to the same header again."""
    for member in archive:
        if member.size < 0:
            raise LoaderError(f"{path}: {member.name!r:.80} is of {member.size} bytes")
        if member.isfile():
            yield member.name.removeprefix("./"), member


def read(path: Path) -> bytes:
    """The content of a file, decompressed if its name ends with ``.gz``; LoaderError if damaged or too large."""
    with _reading(path), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        content: bytes = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise LoaderError(f"{path} holds more than {MAX_FILE_BYTES:,} bytes")
    return content


def lines(content: bytes, encoding: str = "utf-8") -> list[str]:
    """The lines of a text; as those of a file opened in binary mode they end at line feeds only.

    ``str.splitlines`` would divide them at U+0085, U+2028 or form feeds too. A carriage return before the end is kept.
    """
    texts = content.decode(encoding, "replace").split("\n")
    return texts if texts[-1] else texts[:-1]


def members(
    path: Path, is_member: Callable[[str], bool], description: str, max_bytes: int = MAX_MEMBER_BYTES
) -> Iterator[tuple[str, bytes]]:
    """Names and contents of an archive's regular files for which ``is_member(name)``, in the archive's order.

    Raises LoaderError, with ``description``, if there is none.
    """
    is_empty = True
    with _reading(path), tarfile.open(path) as archive:
        for name, member in _regular_files(path, archive):
            if not is_member(name):
                continue
            is_empty = False
            if member.size > max_bytes:
                raise LoaderError(f"{path}: {name} is of {member.size:,} bytes; at most {max_bytes:,}")
            file = archive.extractfile(member)
            assert file is not None  # a regular file
            yield name, file.read()
    if is_empty:
        raise LoaderError(f"{path} has no file {description}")


class Archive:
    """Random access to the files of a tar archive; a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with _reading(path), ExitStack() as stack:
            self._tar = stack.enter_context(tarfile.open(path))
            self._members = dict(_regular_files(path, self._tar))
            stack.pop_all()  # __exit__ closes it

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *error: object) -> None:
        self._tar.close()

    def read(self, name: str) -> bytes:
        """The content of a file; LoaderError if it is missing or too large."""
        member = self._members.get(name)
        if member is None:
            raise LoaderError(f"{self.path} has no file {name}")
        if member.size > MAX_MEMBER_BYTES:
            raise LoaderError(f"{self.path}: {name} is of {member.size:,} bytes; at most {MAX_MEMBER_BYTES:,}")
        with _reading(f"{self.path}: {name}"):
            file = self._tar.extractfile(member)
            assert file is not None  # a regular file
            return file.read()


def zip_members(path: Path, prefix: str, max_bytes: int = MAX_MEMBER_BYTES) -> Iterator[tuple[str, bytes]]:
    """Names and contents of a zip archive's files with a prefix, in the order of names."""
    with _reading(path), zipfile.ZipFile(path) as archive:
        for entry in sorted(archive.infolist(), key=lambda entry: entry.filename):
            if not entry.filename.startswith(prefix) or entry.is_dir():
                continue
            with archive.open(entry) as file:
                content = file.read(max_bytes + 1)
            if len(content) > max_bytes:
                raise LoaderError(f"{path}: {entry.filename} has more than {max_bytes:,} bytes")
            yield entry.filename, content


def read_once(
    cache: dict[Any, Read],
    dataset: str,
    name: str,
    read: Callable[[Path], Read],
    generate: Callable[[], Read],
    substitute: str,
) -> Read:
    """A file's content, cached until the file changes; without a file, a generated substitute, which is reported."""
    path, key = find(name), None
    if path is not None:
        stat = path.stat()  # the time alone does not distinguish two writes within its resolution
        key = str(path), stat.st_mtime_ns, stat.st_size, stat.st_ino
    if key not in cache:
        content = generate() if path is None else read(path)
        cache.clear()
        cache[key] = content
    if path is None:
        report_substitute(dataset, name, substitute)
    return cache[key]


class Samples:
    """A reader that is also iterable, since Paddle's scripts use some data sets in both ways."""

    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self._make = make

    def __call__(self) -> Iterator[Any]:
        return self._make()

    __iter__ = __call__
