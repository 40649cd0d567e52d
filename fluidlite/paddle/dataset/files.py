"""The folder of data sets: finds their files, reads them within size limits, reports substitutes."""

from __future__ import annotations

import gzip
import os
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
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


def read(path: Path) -> bytes:
    """The content of a file, decompressed if its name ends with ``.gz``; LoaderError if damaged or too large."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content: bytes = file.read(MAX_FILE_BYTES + 1)
    except (OSError, EOFError, zlib.error) as exc:
        raise LoaderError(f"{path} cannot be read: {exc}") from exc
    if len(content) > MAX_FILE_BYTES:
        raise LoaderError(f"{path} holds more than {MAX_FILE_BYTES:,} bytes")
    return content


def members(
    path: Path, is_member: Callable[[str], bool], description: str, max_bytes: int = MAX_MEMBER_BYTES
) -> Iterator[tuple[str, bytes]]:
    """Names and contents of an archive's regular files for which ``is_member(name)``, in the archive's order.

    Raises LoaderError, with ``description``, if there is none.
    """
    is_empty = True
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                if not is_member(name) or not member.isfile():
                    continue
                is_empty = False
                if member.size > max_bytes:
                    raise LoaderError(f"{path}: {name} is of {member.size:,} bytes; at most {max_bytes:,}")
                file = archive.extractfile(member)
                assert file is not None  # a regular file
                yield name, file.read()
    except (OSError, EOFError, zlib.error, tarfile.TarError) as exc:
        raise LoaderError(f"{path} cannot be read: {exc}") from exc
    if is_empty:
        raise LoaderError(f"{path} has no file {description}")


class Archive:
    """Random access to the files of a tar archive; a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._tar = tarfile.open(path)  # noqa: SIM115  __exit__ closes it
            self._members = {member.name.removeprefix("./"): member for member in self._tar if member.isfile()}
        except (OSError, EOFError, zlib.error, tarfile.TarError) as exc:
            raise LoaderError(f"{path} cannot be read: {exc}") from exc

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
        try:
            file = self._tar.extractfile(member)
            assert file is not None  # a regular file
            return file.read()
        except (OSError, EOFError, zlib.error, tarfile.TarError) as exc:
            raise LoaderError(f"{self.path}: {name} cannot be read: {exc}") from exc


def zip_members(path: Path, prefix: str, max_bytes: int = MAX_MEMBER_BYTES) -> Iterator[tuple[str, bytes]]:
    """Names and contents of a zip archive's files with a prefix, in the order of names."""
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in sorted(archive.infolist(), key=lambda entry: entry.filename):
                if not entry.filename.startswith(prefix) or entry.is_dir():
                    continue
                with archive.open(entry) as file:
                    content = file.read(max_bytes + 1)
                if len(content) > max_bytes:
                    raise LoaderError(f"{path}: {entry.filename} has more than {max_bytes:,} bytes")
                yield entry.filename, content
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError) as exc:
        raise LoaderError(f"{path} cannot be read: {exc}") from exc


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
