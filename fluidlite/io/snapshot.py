"""Consistent reads of a folder of saved files, while other processes may save into it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from fluidlite.base.errors import SavedModelError
from fluidlite.io.manifest import MAX_MANIFEST_BYTES, Content, Manifest
from fluidlite.io.paths import MANIFEST, open_regular, path_errors

Read = TypeVar("Read")

_MAX_ATTEMPTS = 20
_CHUNK_BYTES = 1 << 20


class SavedFile:
    """An open file of a snapshot; the digest of its content is checked if the manifest has one.

    ``size``, ``left``: in bytes: of the file, and after the read position.
    """

    def __init__(self, folder: Path, name: str, handle: int, content: Content | None = None) -> None:
        self.path = folder / name
        self._manifest = folder / MANIFEST
        self._stream = os.fdopen(handle, "rb", buffering=0)
        self.left = self.size = os.fstat(handle).st_size
        self._content = content
        self._digest = hashlib.sha256()

    def __enter__(self) -> SavedFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stream.close()

    def peek(self, count: int) -> bytes:
        """Return the first ``count`` bytes of the file (or fewer), without moving the read position."""
        with path_errors(self.path, "read"):
            at = self._stream.tell()
            self._stream.seek(0)
            content = self._stream.read(count)
            self._stream.seek(at)
        return content

    def rewind(self) -> None:
        self._stream.seek(0)
        self.left, self._digest = self.size, hashlib.sha256()

    def _mixed(self, why: str) -> SavedModelError:
        return SavedModelError(
            f"{self.path} was not saved together with the other files of the folder, or somebody changed it: {why}"
            f"\n  Do: save the model again, or remove {self._manifest} to load the folder as it is"
        )

    def _check_size(self) -> None:
        if self._content is not None and self._content.size != self.size:
            raise self._mixed(f"it has {self.size:,} bytes, and {self._content.size:,} were saved")

    def read_into(self, target: memoryview) -> None:
        done = 0
        with path_errors(self.path, "read"):
            while done < len(target):
                count = self._stream.readinto(target[done : done + _CHUNK_BYTES])
                if not count:
                    raise SavedModelError(f"{self.path} is truncated\n  Do: save the model again")
                if self._content is not None:
                    self._digest.update(target[done : done + count])
                done += count
        self.left -= done

    def read(self, count: int) -> bytearray:
        content = bytearray(count)
        self.read_into(memoryview(content))
        return content

    def skip(self, count: int) -> None:
        """Skip ``count`` bytes; they are read only if the file has a digest."""
        if self._content is None:
            self._stream.seek(count, os.SEEK_CUR)
            self.left -= count
            return
        self._check_size()
        buffer = memoryview(bytearray(min(count, _CHUNK_BYTES)))
        while count:
            part = buffer[: min(count, _CHUNK_BYTES)]
            self.read_into(part)
            count -= len(part)

    def finish(self) -> None:
        """Read the rest; raise SavedModelError unless size and digest are those of the manifest."""
        self._check_size()
        self.skip(self.left)
        if self._content is not None and self._digest.hexdigest() != self._content.sha256:
            raise self._mixed("its content is another")


class Snapshot:
    """A folder in the state that one manifest describes."""

    def __init__(self, folder: Path, manifest: Manifest, follow_links: bool) -> None:
        self.folder = folder
        self._manifest = manifest
        self._follow_links = follow_links

    def open(self, name: str) -> SavedFile:
        """Open a file by its name inside the folder; to be used as a context manager."""
        content = self._manifest.files.get(name)
        if content is not None and self._manifest.pending:
            staged = os.path.join(self._manifest.pending, name)
            if os.path.lexists(self.folder / staged):
                try:
                    return SavedFile(self.folder, name, open_regular(self.folder, staged, False), content)
                except SavedModelError:  # it was renamed to its own name meanwhile
                    if os.path.lexists(self.folder / staged):
                        raise
        return SavedFile(self.folder, name, open_regular(self.folder, name, self._follow_links), content)

    def holds(self, name: str) -> bool:
        """Whether a file of that name exists."""
        staged = os.path.join(self._manifest.pending, name) if self._manifest.pending else name
        return os.path.lexists(self.folder / staged) or os.path.lexists(self.folder / name)

    def read(self, name: str, max_bytes: int) -> bytes:
        """The content of a file of at most ``max_bytes``."""
        with self.open(name) as file:
            return _whole(file, max_bytes)


def _whole(file: SavedFile, max_bytes: int) -> bytes:
    if file.size > max_bytes:
        raise SavedModelError(
            f"{file.path} has {file.size:,} bytes; at most {max_bytes:,} are read of such a file"
            "\n  Do: save the model again"
        )
    content = bytes(file.read(file.size))
    file.finish()
    return content


def read_file(path: Path, max_bytes: int) -> bytes:
    """The content of a regular file that the user named directly; links are followed."""
    with SavedFile(path.parent, path.name, open_regular(path.parent, path.name, True)) as file:
        return _whole(file, max_bytes)


def manifest_bytes(folder: Path) -> bytes | None:
    """The manifest's content; None if the folder has none."""
    if not os.path.lexists(folder / MANIFEST):
        return None
    with SavedFile(folder, MANIFEST, open_regular(folder, MANIFEST, False)) as file:
        return _whole(file, MAX_MANIFEST_BYTES)


def read_folder(folder: Path, read: Callable[[Snapshot], Read], follow_links: bool = False) -> Read:
    """Return ``read(snapshot)``; repeat it if a save ended meanwhile.

    Raises SavedModelError if the folder does not exist, ``read`` raises it, files were not saved together, or saves
    into the folder never stop.
    """
    if not os.path.isdir(folder):
        raise SavedModelError(f"there is no directory {folder}\n  Do: check the name; save the model first")
    for _ in range(_MAX_ATTEMPTS):
        before = manifest_bytes(folder)
        error: SavedModelError | None = None
        try:
            manifest = Manifest() if before is None else Manifest.parse(before, folder)
            result = read(Snapshot(folder, manifest, follow_links))
        except SavedModelError as exc:
            error = exc
        if manifest_bytes(folder) == before:
            if error is not None:
                raise error
            return result
    raise SavedModelError(f"{folder} is being saved to all the time\n  Do: load it when that has ended")
