"""What is public is documented."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import fluidlite as fluid
from fluidlite import hookspecs, plugin
from fluidlite.cli.op_docs import families
from fluidlite.compiler.policy import KERNEL_KINDS
from fluidlite.program.registry import ops

DOCS = Path(__file__).resolve().parents[2] / "docs"
RESULTS = DOCS.parent / "benchmarks" / "operators" / "RESULTS.md"


def text(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


HOOKS = [name for name, value in vars(hookspecs).items() if callable(value) and name.startswith("register_")]


def test_there_are_five_hooks() -> None:
    assert len(HOOKS) == 5


@pytest.mark.parametrize("hook", HOOKS)
def test_hooks(hook: str) -> None:
    assert f"`{hook}(" in text("plugins.md")


@pytest.mark.parametrize("name", plugin.__all__)
def test_names_of_the_plugin_api(name: str) -> None:
    assert f"`{name}`" in text("plugins.md"), f"fluidlite.plugin.{name} is not described in docs/plugins.md"


@pytest.mark.parametrize("how", KERNEL_KINDS)
def test_ways_to_a_kernel(how: str) -> None:
    assert f"**{how}**" in text("kernels.md")


@pytest.mark.parametrize("name", fluid.memory.__all__)
def test_memory(name: str) -> None:
    assert f"`{name}" in text("memory.md") or f"memory.{name}" in text("memory.md")


def test_the_demos_table_is_the_readmes() -> None:
    from fluidlite.cli.demo import DemoResult
    from fluidlite.cli.demo_table import summary_table

    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    shown = next(line for line in readme.splitlines() if line.startswith("place ") and "operators" in line)
    columns = [str(column.header) for column in summary_table(DemoResult([])).columns]
    assert "".join(shown.split()) == "".join("".join(columns).split())


def load(name: str) -> Any:
    """Import a script of tools/."""
    folder = str(DOCS.parent / "tools")
    if folder not in sys.path:
        sys.path.append(folder)
    return import_module(name)


def tool(name: str, option: str) -> str:
    """Run a script of tools/, which must end well; return what it printed."""
    script = DOCS.parent / "tools" / name
    done = subprocess.run([sys.executable, str(script), option], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_everything_of_the_plugin_api_has_a_docstring() -> None:
    assert tool("module_reference.py", "--missing").split() == []


def test_every_attribute_is_described() -> None:
    """By its ``doc``, or by the operator's formula, which names it."""
    assert tool("operator_reference.py", "--missing") == ""


def test_every_layer_is_described() -> None:
    """Each has a summary, every parameter, and what it returns."""
    assert tool("layer_reference.py", "--missing") == ""


def test_every_page_is_for_some_reader() -> None:
    known = {name for pages in load("docs_index").READERS.values() for name in pages}
    written = {path.stem for path in DOCS.glob("*.md")} - {"index"}
    assert written - known == set()
    assert {name for name in known if "/" not in name} - written == set()


def test_every_public_name_has_an_entry() -> None:
    """In the reference, which ``make docs`` writes; layers have pages of their own."""
    for path, page in load("module_reference").pages().items():
        if path != "modules/index.md":
            names = getattr(import_module(path.removeprefix("modules/").removesuffix(".md")), "__all__", ())
            assert [name for name in names if f"\n## {name}\n" not in page] == []
    layers = "".join(load("layer_reference").pages().values())
    assert [name for name in fluid.layers.__all__ if f"\n## {name}\n" not in layers] == []


def test_there_are_sixty_names_in_the_plugin_api_at_most() -> None:
    assert len(plugin.__all__) <= 60


def test_the_readme_counts_operators_and_layers() -> None:
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    operators = sum(len(family.operators) for family in families())
    assert f"{operators} operators" in readme
    assert f"{len(set(fluid.layers.__all__))} layers" in readme


def test_pages_name_files_that_exist() -> None:
    """By their path in the repository, or in the package; ``tools/timeline.py`` is Paddle's."""
    root = DOCS.parent
    pages = [*DOCS.glob("*.md"), root / "README.md", root / "CONTRIBUTING.md", root / "benchmarks" / "README.md"]
    named = [
        (page.name, path)
        for page in pages
        for path in re.findall(r"`([a-z_]+/[a-z_0-9/]*\.py)`", page.read_text(encoding="utf-8"))
        if path != "tools/timeline.py"
    ]
    folders = re.findall(r"`([a-z_]+/[a-z_/]*)`", text("architecture.md"))
    named += [("architecture.md", path) for path in folders]
    assert len(named) > 60
    assert [each for each in named if not any((base / each[1]).exists() for base in (root, root / "fluidlite"))] == []


def test_the_first_kernel_is_short() -> None:
    block = text("write_a_kernel.md").split("```python\n")[1].split("```")[0]
    assert "@register_kernel" in block
    assert len(block.splitlines()) <= 15


def beyond_the_limits() -> list[tuple[str, str]]:
    """Operators of the benchmark that allocate more than their limit, with what the table says of them."""
    rows = RESULTS.read_text(encoding="utf-8").partition("## Beyond the limits")[2].splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows if row.startswith("| ")]
    return [(row[0], row[1]) for row in cells if "allocates" in row[1]]


def test_what_allocates_more_than_twice_its_outputs_says_so() -> None:
    found = beyond_the_limits()
    assert found, f"the table of {RESULTS} has another form"
    silent = [label for label, _ in found if not ops.get(label.partition(" ")[0].rstrip(",")).memory]
    assert silent == [], "say with register_op(memory=...) what these allocate, and why"


def test_every_operator_beyond_a_limit_has_its_cause() -> None:
    """In the committed table: what is slower than the aim says why, and what is planned."""
    rows = RESULTS.read_text(encoding="utf-8").partition("## Beyond the limits")[2].partition("<!--")[0]
    assert rows.count("|") > 20
    assert "not looked into" not in rows
