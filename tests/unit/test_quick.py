"""What the quick check takes to be touched by a change."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "quick.py"


@pytest.fixture(scope="module")
def quick() -> Any:
    spec = importlib.util.spec_from_file_location("quick", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tests_that_import_a_changed_module_are_touched(quick: Any) -> None:
    tests = {
        "tests/a.py": "import os\nfrom fluidlite.memory.pool import Pool\n",
        "tests/b.py": "from fluidlite.memory import pool, other\n",
        "tests/c.py": "from fluidlite.memory.pool_of_others import x\n",
        "tests/d.py": "import fluidlite.memory.pool\n",
        "tests/e.py": "",
    }
    found = quick.tests_of(["tests/e.py", "README.md", "fluidlite/memory/pool.py"], tests)
    assert found[0] == "tests/e.py" and sorted(found[1:]) == ["tests/a.py", "tests/b.py", "tests/d.py"]
    assert quick.tests_of(["README.md"], tests) == []


def test_operators_of_a_changed_file_are_named(quick: Any) -> None:
    assert "relu" in quick.operators_of(["fluidlite/operators/activations.py"])
    assert quick.operators_of(["fluidlite/memory/pool.py"]) == []


def test_a_base_that_git_does_not_know_is_refused(quick: Any) -> None:
    with pytest.raises(SystemExit, match="--base BRANCH"):
        quick.changed_files("no such branch")


def test_the_core_is_there(quick: Any) -> None:
    for name in quick.CORE:
        assert (TOOL.parents[1] / "tests" / "unit" / name).is_file(), name
