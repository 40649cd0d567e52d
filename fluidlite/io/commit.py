"""Atomic saves of several files into a folder: after a kill at any moment it holds all old files or all new ones.

New files are written into a staging folder and synced. Then a manifest, which names the staging folder and the digest
of each file, replaces the old manifest. This rename commits the save: from then on readers read files in the staging
folder that are not yet moved. Then the files are renamed to their own names, without slow steps between them, and a
manifest without a staging folder ends the save. The next save completes a save that was killed.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fluidlite.base.errors import SavedModelError
from fluidlite.io.manifest import Content, Manifest
from fluidlite.io.paths import MANIFEST, STAGING, PathText, check_target, folder_of, path_errors
from fluidlite.io.snapshot import manifest_bytes

try:
    import fcntl
except ImportError:  # no locks: users must not save into one folder concurrently
    fcntl = None  # type: ignore[assignment]

Writer = Callable[[str], None] | bytes
"""A function that writes a file, called with its path; or the file's content."""

_TEMPORARY = re.compile(r"\.(.{1,40})\.[a-z0-9_]{8}\.tmp\Z")
"""Names of files that an interrupted save of an older version left."""
_MAX_WAIT_SECONDS = 60.0
_CHUNK_BYTES = 1 << 20


def save_files(dirname: PathText, writers: Mapping[str, Writer]) -> None:
    """Save files into a folder, which is created if necessary: all of them or none.

    ``writers``: by name inside the folder, as :func:`fluidlite.io.paths.inside` returns it.
    Raises SavedModelError if a path cannot be written, or another process keeps saving into the folder for a minute.
    The old files then stay as they are.
    """
    folder = folder_of(dirname)
    with path_errors(folder, "written"):
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            manifest = _finish(folder, writers)
            if writers:
                _save(folder, writers, manifest)


def _save(folder: Path, writers: Mapping[str, Writer], manifest: Manifest) -> None:
    for name in writers:
        check_target(folder, name)
    staging = folder / f".save-{secrets.token_hex(8)}"
    try:
        staging.mkdir()
        files = {name: content for name, content in manifest.files.items() if os.path.lexists(folder / name)}
        for name, write in writers.items():
            path = staging / name
            with path_errors(folder / name, "written"):
                path.parent.mkdir(parents=True, exist_ok=True)
                with open(path, "xb") as stream:
                    mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
                if isinstance(write, bytes):
                    path.write_bytes(write)
                else:
                    write(str(path))
                os.chmod(path, mode)  # the mode of the umask, whatever mode the writer set
                files[name] = _content_of(path)
        for each in {staging, *((staging / name).parent for name in writers), folder}:
            _sync_folder(each)
        _replace_manifest(folder, staging, Manifest(files, staging.name))
        _unstage(folder, staging, writers)
        _replace_manifest(folder, staging, Manifest(files))
    finally:
        if _manifest(folder).pending != staging.name:
            shutil.rmtree(staging, ignore_errors=True)


def _content_of(path: Path) -> Content:
    """Sync a file to disk; return its size and digest."""
    digest, size = hashlib.sha256(), 0
    with open(path, "rb+", buffering=0) as stream:
        buffer = memoryview(bytearray(_CHUNK_BYTES))
        while count := stream.readinto(buffer):
            digest.update(buffer[:count])
            size += count
        os.fsync(stream.fileno())
    return Content(size, digest.hexdigest())


def _replace_manifest(folder: Path, staging: Path, manifest: Manifest) -> None:
    new = staging / MANIFEST
    new.unlink(missing_ok=True)
    with open(new, "xb") as stream:  # "x": never writes through an existing link
        stream.write(manifest.text())
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(new, folder / MANIFEST)
    _sync_folder(folder)


def _unstage(folder: Path, staging: Path, names: Iterable[str]) -> None:
    """Rename staged files to their own names; skip those that were renamed before."""
    for name in names:
        if os.path.lexists(staging / name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(staging / name, folder / name)
    for each in {folder, *((folder / name).parent for name in names)}:
        _sync_folder(each)


def _manifest(folder: Path) -> Manifest:
    text = manifest_bytes(folder)
    return Manifest() if text is None else Manifest.parse(text, folder)


def _finish(folder: Path, names: Iterable[str]) -> Manifest:
    """Complete the save that the manifest records, and remove leftovers of other saves; return the manifest."""
    manifest = _manifest(folder)
    if manifest.pending:
        staging = folder / manifest.pending
        staging.mkdir(exist_ok=True)
        for name in manifest.files:
            if os.path.lexists(staging / name):
                check_target(folder, os.path.join(manifest.pending, name))
                check_target(folder, name)
        check_target(folder, os.path.join(manifest.pending, MANIFEST))
        _unstage(folder, staging, manifest.files)
        manifest = Manifest(manifest.files)
        _replace_manifest(folder, staging, manifest)
    prefixes = {Path(name).name[:40] for name in names}
    for entry in os.scandir(folder):
        if STAGING.match(entry.name):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
        elif (match := _TEMPORARY.match(entry.name)) and match[1] in prefixes:
            os.unlink(entry.path)
    return manifest


def _sync_folder(path: Path) -> None:
    """Sync a folder's entries to disk, if the system can."""
    if os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder against other saves; a kill releases the lock. File systems without locks are not locked."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        deadline = time.monotonic() + _MAX_WAIT_SECONDS
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise SavedModelError(
                        f"another process has been saving into {folder} for {_MAX_WAIT_SECONDS:.0f} seconds"
                        "\n  Do: save into another folder, or end that process"
                    ) from None
                time.sleep(0.02)
                continue
            except OSError:
                pass
            break
        yield
    finally:
        os.close(handle)
