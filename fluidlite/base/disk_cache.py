"""A content-addressed cache on disk for values that are slow to compute, such as compiled kernels."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG

from fluidlite.base.lru_cache import CacheInfo

_log = logging.getLogger("fluidlite.cache")
_MARK = b"fluidlite-cache-1\n"
_BLOCK = 4096
_FINISHED, _UNFINISHED = ".bin", ".tmp"  # a process that is ended while it writes leaves an unfinished file
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
MAX_BYTES = 256 << 20
"""Limit of the folder's size in bytes; the least recently used files are deleted first."""
TRIM_BELOW = "01"
"""The folder's size is checked when a file is written whose name is below this text: at one write in 256.

Checking at each process's first write would scan the folder too often: many processes write only a few files.
"""


def folder() -> Path:
    """Return the folder for this user's caches, by the convention of the system."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "fluidlite"
    base = os.environ.get("LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fluidlite"


class DiskCache:
    """Bytes by key, one file each. A file that is corrupt, or belongs to another user, counts as missing.

    Parameters
    ----------
    path : Path, optional
        The folder, created when first needed; default: the subfolder ``name`` of :func:`folder`.
    name : str

    Attributes
    ----------
    hits, misses : int
    """

    def __init__(self, path: Path | None = None, name: str = "kernels") -> None:
        self.path, self.name = path, name
        self.hits = self.misses = 0
        self._broken = False

    def _folder(self) -> Path:
        if self.path is None:
            self.path = folder() / self.name
        return self.path

    def get(self, *key: str) -> bytes | None:
        try:
            file = self._file(key)
            with open(os.open(file, _READ), "rb") as stream:
                facts = os.fstat(stream.fileno())
                if hasattr(os, "getuid") and facts.st_uid != os.getuid():
                    raise PermissionError(f"{file} belongs to another user")  # it may hold code that another user wrote
                if not S_ISREG(facts.st_mode) or facts.st_size > MAX_BYTES:
                    raise OSError(f"{file} is no file of this cache")  # reading a pipe or a device may never end
                content = stream.read()
            mark, rest = content[: len(_MARK)], content[len(_MARK) :]
            if mark == _MARK and rest[:32] == hashlib.sha256(rest[32:]).digest():
                with suppress(OSError):  # a cache that is only read
                    os.utime(file)
                self.hits += 1
                return rest[32:]
        except (OSError, RuntimeError):  # RuntimeError: the user has no home folder
            pass
        self.misses += 1
        return None

    def put(self, content: bytes, *key: str) -> None:
        """Store bytes; log a warning once if that fails."""
        if self._broken:
            return
        try:
            file = self._file(key)
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(suffix=_UNFINISHED, dir=file.parent)
            try:
                with os.fdopen(handle, "wb") as out:
                    out.write(_MARK + hashlib.sha256(content).digest() + content)
                os.replace(name, file)  # atomic: a concurrent reader sees the old or the new file
            except BaseException:
                os.unlink(name)
                raise
            if file.name < TRIM_BELOW:
                self._trim()
        except (OSError, RuntimeError) as exc:
            self._broken = True
            _log.warning("%s cannot be kept on disk, and are made by each process: %s", self.name, exc)

    def size(self) -> tuple[int, int]:
        """Return the number of files and the bytes that they occupy on the disk."""
        try:
            sizes = [nbytes for _, nbytes, _ in self._files()]
        except (OSError, RuntimeError):
            sizes = []
        return len(sizes), sum(sizes)

    def info(self) -> CacheInfo:
        entries, nbytes = self.size()
        return CacheInfo(entries, None, self.hits, self.misses, 0.0, nbytes, MAX_BYTES)

    def _file(self, key: tuple[str, ...]) -> Path:
        return self._folder() / (hashlib.sha256("\0".join(key).encode()).hexdigest() + _FINISHED)

    def _trim(self) -> None:
        files = list(self._files())
        size = sum(nbytes for _, nbytes, _ in files)
        for _, nbytes, name in sorted(files):
            if size <= MAX_BYTES:
                return
            with suppress(FileNotFoundError):  # another process was faster
                os.unlink(name)
            size -= nbytes

    def _files(self) -> Iterator[tuple[float, int, str]]:
        """Yield each file's time of last use, its bytes on the disk (whole blocks) and its path."""
        for entry in os.scandir(self._folder()):
            if entry.name.endswith((_FINISHED, _UNFINISHED)):
                with suppress(FileNotFoundError):
                    facts = entry.stat()
                    yield facts.st_mtime, -(-facts.st_size // _BLOCK) * _BLOCK, entry.path
