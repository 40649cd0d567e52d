"""What is public is documented."""

from __future__ import annotations

from pathlib import Path

import pytest

import fluidlite as fluid
from fluidlite import hookspecs, plugin
from fluidlite.framework.policy import HOWS

DOCS = Path(__file__).resolve().parents[2] / "docs"


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


@pytest.mark.parametrize("how", HOWS)
def test_ways_to_a_kernel(how: str) -> None:
    assert f"**{how}**" in text("kernels.md")


@pytest.mark.parametrize("name", fluid.memory.__all__)
def test_memory(name: str) -> None:
    assert f"`{name}" in text("memory.md") or f"memory.{name}" in text("memory.md")
