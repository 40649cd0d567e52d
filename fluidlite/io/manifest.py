"""The manifest of a folder: the files that were saved together, with size and digest."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fluidlite.base.errors import SavedModelError
from fluidlite.io.paths import MANIFEST, STAGING, inside

_FORMAT, _VERSION = "fluidlite.manifest", 1
MAX_MANIFEST_BYTES = 4 << 20


def parse_record(text: bytes, path: Path, format: str, version: int, what: str, do: str) -> dict[str, Any]:
    """Parse a file's JSON object and check its format and version.

    Raises SavedModelError if it is malformed, or of another format or version.
    """
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise SavedModelError(f"{path} is truncated or malformed: {exc}{do}") from None
    if not isinstance(record, dict) or record.get("format") != format:
        raise SavedModelError(f"{path} is no {what}{do}")
    file_version = record.get("version")
    if file_version != version or isinstance(file_version, bool):
        raise SavedModelError(
            f"{path} is of version {file_version!r:.40}; this fluidlite reads {version}\n  Do: update fluidlite"
        )
    return record


class Content(NamedTuple):
    """Size and digest of a file's content."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The files of a folder that were saved together.

    ``files``: by name; other files of the folder are loaded without a check.
    ``pending``: the staging folder, inside this one, that still holds some of the files under the same names; or "".
    """

    files: dict[str, Content] = field(default_factory=dict)
    pending: str = ""

    def text(self) -> bytes:
        """The manifest as JSON.

        Raises SavedModelError if it names too many files.
        """
        record: dict[str, object] = {"format": _FORMAT, "version": _VERSION}
        if self.pending:
            record["pending"] = self.pending
        record["files"] = {name: list(self.files[name]) for name in sorted(self.files)}
        text = json.dumps(record, indent=1).encode()
        if len(text) > MAX_MANIFEST_BYTES:
            raise SavedModelError(
                f"{len(self.files)} files are too many for one folder\n  Do: save them as one, with a filename"
            )
        return text

    @staticmethod
    def parse(text: bytes, folder: Path) -> Manifest:
        """Read a manifest.

        Raises SavedModelError if it is malformed or of a newer version.
        """
        path = folder / MANIFEST
        do = f"\n  Do: save the model again, or remove {path} to load the folder as it is"
        record = parse_record(text, path, _FORMAT, _VERSION, "manifest of a saved model", do)
        pending, files = record.get("pending", ""), record.get("files")
        if not isinstance(pending, str) or (pending and not STAGING.match(pending)) or not isinstance(files, dict):
            raise SavedModelError(f"{path} is malformed{do}")
        contents = {}
        for name, content in files.items():
            is_valid = isinstance(content, list) and [type(item) for item in content] == [int, str] and content[0] >= 0
            if not is_valid or inside(name, f"a file that {path} names") != name:
                raise SavedModelError(f"{path} is malformed: it says {content!r:.60} of {name!r:.60}{do}")
            contents[name] = Content(*content)
        return Manifest(contents, pending)
