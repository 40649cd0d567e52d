"""What the scripts that write the reference share: Markdown, and writing many pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numpy_docstring import Docstring, Entry

REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "reference"
_SPECIAL = re.compile(r"[\\`*\[\]<|~$]|(?<!\w)_|_(?!\w)")
_CODE = re.compile(r"``(.+?)``|:\w+:`([^`]+)`", re.DOTALL)


def escape(text: str) -> str:
    """Plain text as Markdown; what stands in double backticks, or in a role such as :func:, is code."""
    found, end = "", 0
    for match in _CODE.finditer(text):
        found += _SPECIAL.sub(r"\\\g<0>", text[end : match.start()]) + code(match[1] or match[2])
        end = match.end()
    return found + _SPECIAL.sub(r"\\\g<0>", text[end:])


def code(text: str) -> str:
    """Text as code, fit for a cell of a table."""
    return f"`{text}`".replace("|", "\\|") if text else ""


def line(text: str) -> str:
    return " ".join(text.split())


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of cells that are Markdown already."""
    head = list(head)
    lines = [head, ["---"] * len(head), *map(list, rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def described(doc: Docstring) -> str:
    """What a docstring says, but for its examples."""
    text = f"{escape(line(doc.summary))}\n" if doc.summary else ""
    for paragraph in filter(None, doc.text.split("\n\n")):
        text += f"\n{escape(line(paragraph))}\n"
    for section, entries in doc.sections.items():
        text += f"\n{section}:\n\n" + "".join(map(_entry, entries))
    return text


def _entry(entry: Entry) -> str:
    names = ", ".join(f"**{escape(name)}**" for name in entry.names)
    kind = escape(entry.kind)
    head = f"{names} ({kind})" if names and kind else names or kind
    return f"- {head}" + (f": {escape(line(entry.text))}" if entry.text else "") + "\n"


def settle(pages: Mapping[str, str], folder: str) -> None:
    """Write pages, by path below the reference; another one in ``folder``, which is theirs alone, is removed."""
    for path in (REFERENCE / folder).glob("*.md"):
        if path.relative_to(REFERENCE).as_posix() not in pages:
            path.unlink()
    for name, text in pages.items():
        path = REFERENCE / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
