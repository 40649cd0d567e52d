"""The scripts that write the reference: Markdown, and docstrings."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"


def load(name: str) -> ModuleType:
    """Import a script of tools/."""
    spec = importlib.util.spec_from_file_location(f"tools_{name}", TOOLS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    return load("pages")


@pytest.mark.parametrize(
    ("text", "markdown"),
    [
        ("|X| * 2 <= [1]", r"\|X\| \* 2 \<= \[1\]"),
        ("num_filters, _mean, fc_", r"num_filters, \_mean, fc\_"),
        ("as ``a|b_`` says", r"as `a\|b_` says"),
        ("see :func:`conv2d`, `x`", r"see `conv2d`, \`x\`"),
    ],
)
def test_escape(pages: ModuleType, text: str, markdown: str) -> None:
    assert pages.escape(text) == markdown


def test_settle_removes_pages_of_families_that_are_gone(
    pages: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "REFERENCE", tmp_path)
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "old.md").write_text("old")
    pages.settle({"all.md": "index", "some/a.md": "a"}, "some")
    assert {path.name: path.read_text() for path in tmp_path.rglob("*.md")} == {"all.md": "index", "a.md": "a"}


def described(x: int, y: int, *rest: int, name: str = "") -> int:
    """Return the sum.

    More of it.

    Parameters
    ----------
    x, y : int
        Two numbers,
        on two lines.
    *rest
    name : str, optional

    Returns
    -------
    int
        The sum.

    Raises
    ------
    ValueError
    """
    return x + y


def vague(x: int, y: int) -> None:
    """Do it.

    Parameters
    ----------
    x : int
    z : int
    """


def test_docstrings() -> None:
    tool = load("numpy_docstring")
    doc = tool.read(described)
    assert (doc.summary, doc.text) == ("Return the sum.", "More of it.")
    assert doc.names("Parameters") == ["x", "y", "rest", "name"]
    assert doc.sections["Parameters"][0].text == "Two numbers,\non two lines."
    assert [entry.kind for entry in doc.sections["Returns"] + doc.sections["Raises"]] == ["int", "ValueError"]
    assert tool.problems(described) == []
    assert tool.problems(vague) == [
        "parameter 'y' is not described", "there is no parameter 'z'", "it has no Returns"
    ]  # fmt: skip
    assert "it has no summary" in tool.problems(lambda: None)
