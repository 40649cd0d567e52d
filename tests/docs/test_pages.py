"""Every code block of the README and of docs/ runs, and prints what the page shows."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from forks import Forks
from grouped import grouped

ROOT = Path(__file__).resolve().parents[2]
RUNNER = Path(__file__).with_name("run_page.py")
REFERENCE = ROOT / "docs" / "reference"
"""``make docs`` writes it, and Sphinx looks at its links."""
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md"))
      if not page.is_relative_to(REFERENCE) and page != ROOT / "docs" / "index.md"),
]  # fmt: skip
RUNS = [page for page in PAGES if re.search(r"^```(python|console)", page.read_text(encoding="utf-8"), re.MULTILINE)]
"""Pages with something to run: a process for each of the others, most of them decisions, would run nothing."""
LINK = re.compile(r"\]\(([^)#]*)(?:#([^)]*))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def needs(page: Path) -> list[str]:
    """What a page says that it needs (see run_page.py)."""
    marked = (line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("<!-- needs: "))
    return [name for line in marked for name in line.removeprefix("<!-- needs: ").removesuffix(" -->").split()]


@functools.cache
def anchors(page: Path) -> frozenset[str]:
    """What the headings of a page can be linked by."""
    words = (re.sub(r"[^\w\- ]", "", title.lower()) for title in HEADING.findall(page.read_text(encoding="utf-8")))
    return frozenset(word.replace(" ", "-") for word in words)


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in RUNS])
def test_page(page: Path, require: Callable[..., None], forks: Forks) -> None:
    for name in needs(page):
        require(name, f"to run {page.name}")
    done = forks(RUNNER, page, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@grouped(("page",), ((page,) for page in PAGES), by=lambda page: str(page.parent.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        other = (page.parent / target).resolve() if target else page
        if other.is_relative_to(REFERENCE):
            continue
        assert other.exists(), f"{page.name} links to {target}: nothing there"
        assert not anchor or anchor in anchors(other), f"{page.name} links to {target}#{anchor}: no such heading"


def test_most_pages_beside_decisions_run() -> None:
    others = [page for page in PAGES if page.parent.name != "decisions"]
    assert len(RUNS) > 0.7 * len(others)


def test_every_page_is_listed() -> None:
    lists = (ROOT / "README.md", ROOT / "docs" / "plugins.md", ROOT / "docs" / "decisions" / "README.md")
    links = ((page, target) for page in lists for target, _ in LINK.findall(page.read_text("utf-8")))
    targets = {(page.parent / target).resolve() for page, target in links}
    assert not [str(page.relative_to(ROOT)) for page in PAGES if page not in targets | {ROOT / "README.md"}]


def test_the_example_of_a_new_operator(forks: Forks) -> None:
    done = forks(ROOT / "examples" / "new_operator.py", cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
