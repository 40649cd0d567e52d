"""Every code block of the README and of docs/ runs, and prints what the page shows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUNNER = Path(__file__).with_name("run_page.py")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def needs(page: Path) -> list[str]:
    """What a page says that it needs (see run_page.py)."""
    marked = (line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("<!-- needs: "))
    return [name for line in marked for name in line.removeprefix("<!-- needs: ").removesuffix(" -->").split()]


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_page(page: Path, require: Callable[..., None]) -> None:
    for name in needs(page):
        require(name, f"to run {page.name}")
    if "```python\n" not in (text := page.read_text(encoding="utf-8")) and "$ fluidlite" not in text:
        return
    done = subprocess.run([sys.executable, str(RUNNER), str(page)], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_page_is_linked() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    index = readme + (ROOT / "docs" / "decisions" / "README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        assert page.name in index, f"{page.relative_to(ROOT)} is linked from neither README.md nor docs/decisions/README.md"


def test_links_lead_somewhere() -> None:
    import re

    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}, which is not there"


def test_every_example_runs(require: Callable[..., None]) -> None:
    examples = sorted((ROOT / "examples").glob("*.py"))
    assert examples
    for example in examples:
        done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, cwd=ROOT, check=False)
        assert done.returncode == 0, f"{example.name}:\n{done.stdout}{done.stderr}"
