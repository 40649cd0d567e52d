"""Saving several files into a folder as one: after a kill at any moment it holds all of the old or all of the new.

New files are written into a staging folder beside the old ones, and put on disk. Then the manifest, which names the
staging folder and the digest of each file, takes the place of the old manifest: from this rename on the save has
happened, and reading goes to the staging folder for files that are still there. Then the files get their own names,
by renames without anything slow between them; a manifest that names no staging folder ends the save. The next save
finishes what a kill left half done.
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
except ImportError:  # not on this system; savers of one folder have to take turns themselves
    fcntl = None  # type: ignore[assignment]

Writer = Callable[[str], None] | bytes
"""What makes a file, called with its path; or its content."""

_TEMPORARY = re.compile(r"\.(.{1,40})\.[a-z0-9_]{8}\.tmp\Z")
"""What a save that was cut off left before there were staging folders."""
_MAX_WAIT_SECONDS = 60.0
_CHUNK_BYTES = 1 << 20


def save_files(dirname: PathText, writers: Mapping[str, Writer]) -> None:
    """Save files into a folder, which is made if it does not exist: all of them or none.

    ``writers``: by name inside the folder; the names are those that :func:`fluidlite.io.paths.inside` returns.
    Raises SavedModelError: a path that cannot be written, or another process that saves into the folder for a minute.
    What was saved before is still there then.
    """
    folder = folder_of(dirname)
    with path_errors(folder, "written"):
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            before = _finish(folder, writers)
            if writers:
                _save(folder, writers, before)


def _save(folder: Path, writers: Mapping[str, Writer], before: Manifest) -> None:
    for name in writers:
        check_target(folder, name)
    staging = folder / f".save-{secrets.token_hex(8)}"
    try:
        staging.mkdir()
        files = {name: content for name, content in before.files.items() if os.path.lexists(folder / name)}
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
                os.chmod(path, mode)  # as the umask says, whatever the writer made of it
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
    """Put a file on disk; return what identifies its content."""
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
    with open(new, "xb") as stream:  # never through a link that somebody put there
        stream.write(manifest.text())
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(new, folder / MANIFEST)
    _sync_folder(folder)


def _unstage(folder: Path, staging: Path, names: Iterable[str]) -> None:
    """Give staged files their own names; those that have them already are left."""
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
    """End the save that the manifest says is under way, and remove what other saves left; return the manifest."""
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
        elif (found := _TEMPORARY.match(entry.name)) and found[1] in prefixes:
            os.unlink(entry.path)
    return manifest


def _sync_folder(path: Path) -> None:
    """Put the names of a folder on disk, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other savers out of the folder; a kill ends that. File systems without locks have none."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        until = time.monotonic() + _MAX_WAIT_SECONDS
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
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
