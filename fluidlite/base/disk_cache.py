"""What takes long to make, kept on disk by what it was made from."""

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
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
MOST_BYTES = 256 << 20
"""What the folder may hold; the files that were used least recently go first."""
TRIM_BELOW = "01"
"""The folder is looked through when a file is written whose name is below this: one in 256, whoever writes it.

Processes that write a few files each would look through all, had each of them to begin with that.
"""


def folder() -> Path:
    """Return where the system wants caches of this user's programs."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "fluidlite"
    base = os.environ.get("LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fluidlite"


class DiskCache:
    """Bytes by key, one file each. A file that is broken, or not this user's, is as good as none.

    Parameters
    ----------
    path : Path, optional
        The folder, made when first needed; default: the one of that name in :func:`folder`.
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
                    raise PermissionError(f"{file} belongs to another user")  # it may be code, put there by somebody
                if not S_ISREG(facts.st_mode) or facts.st_size > MOST_BYTES:
                    raise OSError(f"{file} is no file of this cache")  # a pipe, or a device, may have no end
                content = stream.read()
            mark, rest = content[: len(_MARK)], content[len(_MARK) :]
            if mark == _MARK and rest[:32] == hashlib.sha256(rest[32:]).digest():
                os.utime(file)
                self.hits += 1
                return rest[32:]
        except (OSError, RuntimeError):  # RuntimeError: no home
            pass
        self.misses += 1
        return None

    def put(self, content: bytes, *key: str) -> None:
        """Keep bytes; where that is not possible, say so once."""
        if self._broken:
            return
        try:
            file = self._file(key)
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=file.parent)
            try:
                with os.fdopen(handle, "wb") as out:
                    out.write(_MARK + hashlib.sha256(content).digest() + content)
                os.replace(name, file)  # who reads at the same time sees all of it, or the file before
            except BaseException:
                os.unlink(name)
                raise
            if file.name < TRIM_BELOW:
                self._trim()
        except (OSError, RuntimeError) as exc:
            self._broken = True
            _log.warning("%s cannot be kept on disk, and are made by each process: %s", self.name, exc)

    def size(self) -> tuple[int, int]:
        """Return how many files there are, and the bytes that they take on the disk."""
        try:
            found = [nbytes for _, nbytes, _ in self._files()]
        except (OSError, RuntimeError):
            found = []
        return len(found), sum(found)

    def info(self) -> CacheInfo:
        entries, nbytes = self.size()
        return CacheInfo(entries, None, self.hits, self.misses, 0.0, nbytes, MOST_BYTES)

    def _file(self, key: tuple[str, ...]) -> Path:
        return self._folder() / (hashlib.sha256("\0".join(key).encode()).hexdigest() + ".bin")

    def _trim(self) -> None:
        files = list(self._files())
        size = sum(nbytes for _, nbytes, _ in files)
        for _, nbytes, name in sorted(files):
            if size <= MOST_BYTES:
                return
            with suppress(FileNotFoundError):  # another process was faster
                os.unlink(name)
            size -= nbytes

    def _files(self) -> Iterator[tuple[float, int, str]]:
        """When each file was used last, the bytes that it takes in blocks of the disk, and its name."""
        for entry in os.scandir(self._folder()):
            if entry.name.endswith(".bin"):
                with suppress(FileNotFoundError):
                    facts = entry.stat()
                    yield facts.st_mtime, -(-facts.st_size // _BLOCK) * _BLOCK, entry.path
