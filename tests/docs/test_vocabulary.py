"""The project's words are the field's: what was once said in words of its own stays renamed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("fluidlite", "plugins", "tests", "docs", "examples", "benchmarks", "tools")

PHRASES = {
    r"straight ways?": "fast path",
    r"usual way": "slow path",
    r"shortest way": "fast path",
    r"whereabouts|users_line": "source location",
    r"plain ?forms?": "compute form",
    r"dealt": "scheduled, split",
    r"late errors?": "deferred error",
    r"operators that run themselves": "control-flow and host-callback operators",
    r"twins?": "elementwise form, duplicate",
    r"lifespans?": "live range",
    r"settled": "valid",
    r"\w*dialects?\w*(?<!portable-dialect)": "kernel language",
    r"home rule|copy home": "owning place, write-back",
    r"elementwise_twin|held_state|Lifespans|HeldState|_NoWay|NO_WAY|block_way": "the names of fluidlite/compiler",
}
FILES = {
    "bell", "bounded", "whereabouts", "plainform", "recycle", "relayout", "lifetimes", "lifespans",
    "tensor_elements", "fused_twins", "dialect_stream", "array_pure", "team", "direct", "ways", "prologue", "replay",
    "bound", "held_state", "pieces", "norm_kept", "descent", "maxouting", "filling", "operator_facts",
    "demo_view",
}  # fmt: skip

PARTICIPLES = {
    "found", "given", "made", "kept", "wanted", "known", "asked", "told", "said", "seen", "held", "taken", "shown",
    "home", "again", "there", "others",
}  # fmt: skip
"""Names that tell nothing of the value or the function: a local name is a noun that tells the type."""
ADVERBS = {
    "MOST", "LEAST", "FEWEST", "GREATEST", "ENOUGH", "NEAR", "FAR", "BRIEF", "FEW", "MANY", "SEVERAL", "MUCH", "WORTH",
}  # fmt: skip
"""Words that no constant has in its name: a constant names a quantity, such as MAX_CACHED_PLANS."""


def texts() -> Iterator[tuple[Path, str]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".md") and path.parent.name != "decisions" and path != Path(__file__).resolve():
                yield path, path.read_text(encoding="utf-8")
    yield ROOT / "README.md", (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("phrase", PHRASES)
def test_words(phrase: str) -> None:
    pattern = re.compile(rf"\b(?:{phrase})\b", re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path, text in texts()
        if pattern.search(text)
        for number, line in enumerate(text.split("\n"), 1)
        if pattern.search(line)
    ]
    assert not found, f"say {PHRASES[phrase]}:\n" + "\n".join(found)


def test_no_conflict_markers() -> None:
    markers = re.compile("^(<{7}|>{7}) ", re.MULTILINE)
    assert not [path for path, text in texts() if markers.search(text)]


def test_files() -> None:
    found = [path for path in (ROOT / "fluidlite").rglob("*.py") if path.stem in FILES]
    assert not found
    for gone in ("framework", "transformers", "tools", "platform/cpu", "platform/cuda", "platform/opencl"):
        assert not list((ROOT / "fluidlite" / gone).glob("*.py")), gone


def bindings(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The names that a module binds, each with its line: parameters, variables, attributes, functions, classes."""
    for node in ast.walk(tree):
        match node:
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno


def unclear(name: str) -> bool:
    words = name.strip("_")
    return words in PARTICIPLES or (words.isupper() and not ADVERBS.isdisjoint(words.split("_")))


@pytest.mark.parametrize("folder", ["fluidlite", "plugins", "examples"])
def test_names(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name, line in bindings(ast.parse(path.read_text(encoding="utf-8")))
        if unclear(name)
    ]
    assert not found, "name the value or the quantity:\n" + "\n".join(found)


def test_unclear_names_are_found() -> None:
    tree = ast.parse("MOST_BYTES = 1\ndef f(given, x):\n    self.kept = y = x\n    return [found for found in y]")
    assert [name for name, _ in bindings(tree) if unclear(name)] == ["MOST_BYTES", "given", "kept", "found"]
