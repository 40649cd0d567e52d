"""Runs a documentation page: its code in order, in one namespace, and compares what it prints with what it shows.

    python tests/docs/run_page.py docs/places.md           check; exit 1 and tell where they differ
    python tests/docs/run_page.py --write docs/places.md   write what it printed into the page

Fenced blocks, by their first word:

- ``python``: runs. ``python file=name.py`` is written to a folder on the path instead, to be imported.
  ``python from=path`` quotes a file of the repository, and must occur there.
- ``text`` straight after one that runs: what that printed; ``...`` stands for anything.
- ``console``: lines ``$ fluidlite ...`` run, and what follows each is its output; other commands do not run.

A line ``<!-- needs: opencl cc -->`` names what must be there for the page to run.
"""

from __future__ import annotations

import contextlib
import difflib
import doctest
import io
import linecache
import re
import shlex
import subprocess
import sys
import tempfile
import traceback
import warnings
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^```(?P<info>\S.*)?$")
_NEEDS = re.compile(r"<!-- needs: (.*?) -->")
_COMMAND = "import sys; from fluidlite.cli.main import main; sys.argv[0] = 'fluidlite'; main()"


@dataclass
class Block:
    """A fenced block; ``first`` and ``last`` are the indices of its lines of text, ``last`` exclusive."""

    kind: str
    options: dict[str, str]
    text: str
    first: int
    last: int


@dataclass
class Page:
    """A page's blocks, and what running them found."""

    path: Path
    lines: list[str]
    blocks: list[Block]
    problems: list[str] = field(default_factory=list)
    changes: list[tuple[Block, str]] = field(default_factory=list)

    @property
    def needs(self) -> list[str]:
        """Names of what must be there."""
        return [name for line in self.lines for found in _NEEDS.findall(line) for name in found.split()]


def read(path: Path) -> Page:
    """Split a page into blocks."""
    lines = path.read_text(encoding="utf-8").splitlines()
    blocks: list[Block] = []
    start: tuple[int, str] | None = None
    for number, line in enumerate(lines):
        fence = _FENCE.match(line)
        if fence is None:
            continue
        if start is None:
            start = (number, fence["info"] or "")
        else:
            kind, *options = start[1].split() or [""]
            pairs = dict(option.partition("=")[::2] for option in options)
            blocks.append(Block(kind, pairs, "\n".join(lines[start[0] + 1 : number]) + "\n", start[0] + 1, number))
            start = None
    if start is not None:
        raise ValueError(f"{path}:{start[0] + 1}: a block is not closed")
    return Page(path, lines, blocks)


def same(want: str, got: str) -> bool:
    """Whether what was printed is what the page shows; blanks at the ends of lines do not count."""
    shown, printed = ("\n".join(line.rstrip() for line in text.rstrip().splitlines()) + "\n" for text in (want, got))
    if shown.endswith("\n...\n"):  # which may stand for no line at all
        shown, printed = shown + "end\n", printed + "\nend\n"
    return doctest.OutputChecker().check_output(shown, printed, doctest.ELLIPSIS)


def _compare(page: Page, block: Block, got: str) -> None:
    if not same(block.text, got):
        diff = difflib.unified_diff(block.text.splitlines(), got.splitlines(), "shown", "printed", lineterm="")
        page.problems.append(f"{page.path}:{block.first + 1}: the page shows something else\n" + "\n".join(diff))
        page.changes.append((block, got))


def run(page: Page, folder: Path) -> None:
    """Run the blocks; problems and changes are collected in the page."""
    names: dict[str, object] = {"__name__": "example"}
    printed: str | None = None
    for number, block in enumerate(page.blocks):
        if block.kind == "python" and "from" in block.options:
            source = (ROOT / block.options["from"]).read_text(encoding="utf-8")
            if _lines(block.text) not in _lines(source):
                page.problems.append(f"{page.path}:{block.first + 1}: this is no longer in {block.options['from']}")
        elif block.kind == "python" and "file" in block.options:
            (folder / block.options["file"]).write_text(block.text, encoding="utf-8")
        elif block.kind == "python":
            printed = _execute(page, block, number, names)
            continue
        elif block.kind == "console":
            _commands(page, block)
        elif block.kind == "text" and printed is not None:
            _compare(page, block, printed)
        printed = None


def _lines(text: str) -> str:
    """The lines of a text without indentation and empty ones: a quoted method is formatted as if it stood alone."""
    return "\n".join(["", *(line.strip() for line in text.splitlines() if line.strip()), ""])


def _execute(page: Page, block: Block, number: int, names: dict[str, object]) -> str:
    file = "example.py"  # so that errors and reports, which name the user's line, are the same wherever the block is
    linecache.cache[file] = (len(block.text), None, block.text.splitlines(keepends=True), file)
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            exec(compile(block.text, file, "exec"), names)
    except Exception:
        page.problems.append(f"{page.path}:{block.first + 1}: block {number} raised\n{traceback.format_exc()}")
    return out.getvalue()


def _commands(page: Page, block: Block) -> None:
    command, shown, new = "", "", []

    def finish() -> None:
        if not command.startswith("fluidlite "):
            new.append(shown)
            return
        done = subprocess.run(
            [sys.executable, "-c", _COMMAND, *shlex.split(command)[1:]],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        got = "".join(line.rstrip() + "\n" for line in (done.stdout + done.stderr).rstrip().splitlines())
        if not same(shown, got):
            page.problems.append(f"{page.path}:{block.first + 1}: $ {command} printed\n{got}")
        new.append(shown if same(shown, got) else got)

    for line in [*block.text.splitlines(), "$ "]:
        if line.startswith("$ "):
            finish()
            new.append(line + "\n")
            command, shown = line[2:], ""
        else:
            shown += line + "\n"
    text = "".join(new).removesuffix("$ \n")
    if text != block.text:
        page.changes.append((block, text))


def write(page: Page) -> None:
    """Put what was printed into the page."""
    for block, text in reversed(page.changes):
        page.lines[block.first : block.last] = [line.rstrip() for line in text.rstrip("\n").splitlines()]
    page.path.write_text("\n".join(page.lines) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Run pages; return the exit code."""
    failed = False
    for name in arguments:
        if name == "--write":
            continue
        page = read(Path(name).resolve())
        with tempfile.TemporaryDirectory() as folder:
            sys.path.insert(0, folder)
            warnings.simplefilter("error")
            from fluidlite import FallbackWarning

            warnings.simplefilter("ignore", FallbackWarning)
            with contextlib.chdir(folder):  # what a page saves is for itself alone
                run(page, Path(folder))
            sys.path.remove(folder)
        if "--write" in arguments:
            write(page)
        failed |= bool(page.problems)
        if page.problems:
            print("\n\n".join(page.problems))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
