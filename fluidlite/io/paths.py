"""Names and paths of saved files: only regular files inside their folder; every error is a SavedModelError."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from urllib.parse import quote

from fluidlite.base.errors import SavedModelError

PathText = str | os.PathLike[str]

MANIFEST = "__manifest__"
"""The file that lists which files of a folder were saved together."""
STAGING = re.compile(r"\.save-[0-9a-f]{16}\Z")
"""Folders in which a save prepares its files."""
SUFFIX = ".safetensors"

_MAX_STEM = 180
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)  # opening a FIFO without a writer must not block; it is then refused
_READ = os.O_RDONLY | _NONBLOCK | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)


@contextmanager
def path_errors(path: PathText, action: str) -> Iterator[None]:
    """Turn errors of the operating system into SavedModelErrors that name the path."""
    try:
        yield
    except FileNotFoundError:
        raise SavedModelError(f"there is no file {path}\n  Do: check the name; save the model again") from None
    except OSError as exc:
        raise SavedModelError(
            f"{path} cannot be {action}: {exc.strerror or exc}\n  Do: check the path, its permissions and the disk"
        ) from None


def folder_of(dirname: PathText) -> Path:
    """Return the folder that the user named; it need not exist."""
    try:
        text = os.fspath(dirname)
    except TypeError:
        raise SavedModelError(f"dirname is {dirname!r}; expected a path") from None
    _check_text(text, "dirname")
    return Path(text)


def file_of(name: str) -> str:
    """The file name of one variable: its name, percent-encoded so that it cannot leave the folder."""
    text = quote(name, safe="", errors="surrogatepass")
    if len(text) > _MAX_STEM:
        digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()
        text = f"{text[:100]}-{digest[:32]}"
    return text + SUFFIX


def inside(name: PathText, what: str) -> str:
    """Return a file's name relative to the folder, or raise SavedModelError if it is outside.

    ``what``: the name of the argument, for the error.
    """
    try:
        text = os.fspath(name)
    except TypeError:
        raise SavedModelError(f"{what} is {name!r}; expected the name of a file") from None
    _check_text(text, what)
    path = PurePath(text)
    parts = path.parts
    if not parts or path.anchor or ".." in parts:
        raise SavedModelError(f"{what} is {text!r}; expected the name of a file inside the folder")
    if parts[0] == MANIFEST or STAGING.match(parts[0]):
        raise SavedModelError(f"{what} is {text!r}, a name that saved models use themselves\n  Do: choose another name")
    return str(path)


def _check_text(text: object, what: str) -> None:
    try:
        is_valid = isinstance(text, str) and b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        is_valid = False
    if not is_valid:
        raise SavedModelError(f"{what} is {text!r:.80}, which no file can be called")


def open_regular(folder: Path, name: str, follow_links: bool) -> int:
    """Open a regular file of a folder for reading, without blocking; return its descriptor.

    The open descriptor is checked, not the name, which may change meanwhile. A symbolic link is followed if it stays
    inside the folder; other links only with ``follow_links``.

    Raises SavedModelError if there is no regular file of that name, or it is a link that leads out of the folder.
    """
    path = folder / name
    with path_errors(path, "read"):
        if follow_links:
            handle = os.open(path, _READ)
        else:
            root, real = os.path.realpath(folder), os.path.realpath(path)
            below = os.path.relpath(real, root)
            if below.split(os.sep)[0] == os.pardir:
                raise SavedModelError(
                    f"{path} is a link to {real}, which is outside the folder"
                    "\n  Do: copy the file into the folder; follow_links=True if you trust the link"
                )
            handle = _open_below(root, below)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise SavedModelError(f"{path} is no regular file\n  Do: put the saved file there")
    return handle


def _open_below(root: str, below: str) -> int:
    """Open a resolved path component by component: one that has become a link since is an error."""
    if os.open not in os.supports_dir_fd:
        return os.open(os.path.join(root, below), _READ | _NOFOLLOW)
    *folders, last = below.split(os.sep)
    parent = os.open(root, os.O_RDONLY)
    try:
        for part in folders:
            parent, previous = os.open(part, os.O_RDONLY | os.O_DIRECTORY | _NOFOLLOW, dir_fd=parent), parent
            os.close(previous)
        return os.open(last, _READ | _NOFOLLOW, dir_fd=parent)
    finally:
        os.close(parent)


def check_target(folder: Path, name: str) -> None:
    """Raise SavedModelError unless a file of that name can be written, and is inside the folder."""
    path = folder / name
    with path_errors(path, "written"):
        parent = os.path.realpath(path.parent)
        if os.path.relpath(parent, os.path.realpath(folder)).split(os.sep)[0] == os.pardir:
            raise SavedModelError(f"{path.parent} leads to {parent}, which is outside the folder")
        if path.is_dir() and not path.is_symlink():
            raise SavedModelError(f"{path} is a directory; a file is to be saved there\n  Do: choose another name")
