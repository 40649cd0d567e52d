"""The folder of data sets: where their files are, reading them within limits, saying what stands for them."""

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
"""A larger file, compressed or not, is refused."""
MAX_MEMBER_BYTES = 16 << 20
"""A larger member of an archive is refused."""

_named: list[Path] = []
_said: set[tuple[str, str]] = set()


def set_folder(folder: str | os.PathLike[str]) -> None:
    """Read data sets from a folder in place of the one that ``FLUIDLITE_DATASETS`` names.

    Raises LoaderError if it is none.
    """
    path = Path(folder)
    if not path.is_dir():
        raise LoaderError(f"the folder of data sets {str(folder)!r} is no folder\n  Do: make it, or name another")
    _named[:] = [path]


def folder() -> Path | None:
    """The folder that ``--data`` or ``FLUIDLITE_DATASETS`` names, or None."""
    if _named:
        return _named[0]
    text = os.environ.get(VARIABLE)
    return Path(text) if text else None


def find(name: str) -> Path | None:
    """The path of a file, such as ``mnist/train-images-idx3-ubyte.gz``; None if the user has none.

    Raises LoaderError if ``FLUIDLITE_DATASETS`` names no folder, or what is there is no regular file.
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


def say_instead(dataset: str, missing: str, instead: str) -> None:
    """Say once, on stderr, what is read in place of a file."""
    if (dataset, instead) not in _said:
        _said.add((dataset, instead))
        where = f"{folder() or '$' + VARIABLE}/{missing}"
        print(f"paddle.dataset.{dataset}: {instead}, since there is no {where}", file=sys.stderr)


def read(path: Path) -> bytes:
    """The content of a file, unpacked if its name ends with ``.gz``; LoaderError if it is damaged or too large."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content: bytes = file.read(MAX_FILE_BYTES + 1)
    except (OSError, EOFError, zlib.error) as exc:
        raise LoaderError(f"{path} cannot be read: {exc}") from exc
    if len(content) > MAX_FILE_BYTES:
        raise LoaderError(f"{path} holds more than {MAX_FILE_BYTES:,} bytes")
    return content


def members(
    path: Path, chosen: Callable[[str], bool], wanted: str, most: int = MAX_MEMBER_BYTES
) -> Iterator[tuple[str, bytes]]:
    """Names and contents of an archive's regular files whose name is chosen, in the archive's order.

    Raises LoaderError, which says what is ``wanted``, if there is none.
    """
    none = True
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                if not chosen(name) or not member.isfile():
                    continue
                none = False
                if member.size > most:
                    raise LoaderError(f"{path}: {name} is of {member.size:,} bytes; at most {most:,}")
                file = archive.extractfile(member)
                assert file is not None  # a regular file
                yield name, file.read()
    except (OSError, EOFError, zlib.error, tarfile.TarError) as exc:
        raise LoaderError(f"{path} cannot be read: {exc}") from exc
    if none:
        raise LoaderError(f"{path} has no file {wanted}")


class Archive:
    """The files of a tar archive, in any order; a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._tar = tarfile.open(path)  # noqa: SIM115  __exit__ closes it
            self._members = {each.name.removeprefix("./"): each for each in self._tar if each.isfile()}
        except (OSError, EOFError, zlib.error, tarfile.TarError) as exc:
            raise LoaderError(f"{path} cannot be read: {exc}") from exc

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *error: object) -> None:
        self._tar.close()

    def read(self, name: str) -> bytes:
        """The content of a file; LoaderError if there is none, or it is too large."""
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


def zip_members(path: Path, prefix: str, most: int = MAX_MEMBER_BYTES) -> Iterator[tuple[str, bytes]]:
    """Names and contents of a zip archive's files whose name begins so, in the order of names."""
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in sorted(archive.infolist(), key=lambda entry: entry.filename):
                if not entry.filename.startswith(prefix) or entry.is_dir():
                    continue
                with archive.open(entry) as file:
                    content = file.read(most + 1)
                if len(content) > most:
                    raise LoaderError(f"{path}: {entry.filename} has more than {most:,} bytes")
                yield entry.filename, content
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError) as exc:
        raise LoaderError(f"{path} cannot be read: {exc}") from exc


def read_once(
    held: dict[Any, Read],
    dataset: str,
    name: str,
    read: Callable[[Path], Read],
    generate: Callable[[], Read],
    instead: str,
) -> Read:
    """What a file holds, kept until it changes; what is generated, and said, where the user has none."""
    path, key = find(name), None
    if path is not None:
        facts = path.stat()  # a time alone does not tell two writes of one moment apart
        key = str(path), facts.st_mtime_ns, facts.st_size, facts.st_ino
    if key not in held:
        found = generate() if path is None else read(path)
        held.clear()
        held[key] = found
    if path is None:
        say_instead(dataset, name, instead)
    return held[key]


class Samples:
    """A reader that can also be iterated over itself, since Paddle's scripts do both with some data sets."""

    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self._make = make

    def __call__(self) -> Iterator[Any]:
        return self._make()

    __iter__ = __call__
