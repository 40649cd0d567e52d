"""Write a text to a path that the user named."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from fluidlite.base.errors import ProgramError


def write_text(path: str | PathLike[str], text: str, what: str, inside: str | None = None) -> Path:
    """Write a text into a file and return its path; error messages call the text ``what``.

    ``inside``: the name of the file; ``path`` is then its folder. Missing folders are created.

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
    except (OSError, TypeError, ValueError) as exc:  # not a path, or not a valid one
        why = getattr(exc, "strerror", None) or exc
        raise ProgramError(
            f"{what} cannot be written to {path!r:.200}: {why}\n  Do: check the path, its permissions and the disk"
        ) from None
    return file
