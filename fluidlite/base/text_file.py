"""Writing a text where the user asks for it."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from fluidlite.base.errors import ProgramError


def write_text(path: str | PathLike[str], text: str, what: str, inside: str | None = None) -> Path:
    """Write a text, ``what`` for the error, into a file; return its path.

    ``inside``: ``path`` is a folder, and this the file in it; folders are made that are not there.

    Raises
    ------
    ProgramError
        The file cannot be written.
    """
    try:
        file = Path(path)
        if inside is not None:
            file = file / inside
            file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except (OSError, TypeError, ValueError) as exc:  # no path, or none that a file can have
        why = getattr(exc, "strerror", None) or exc
        raise ProgramError(
            f"{what} cannot be written to {path!r:.200}: {why}\n  Do: check the path, its permissions and the disk"
        ) from None
    return file
