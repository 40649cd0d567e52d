"""Every dialect kernel, generated or generic, translated to LLVM IR and compiled for this processor."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fluidlite as fluid
from fluidlite import loader
from fluidlite.testing import Check, checks

pytest.importorskip("llvmlite")
pytest.importorskip("pycparser")
PLUGINS = str(Path(__file__).parent.parent / "plugins")
PLACE = fluid.Place("llvm")
CHECKS = checks()


@pytest.fixture(scope="module", autouse=True)
def llvm() -> Iterator[None]:
    fluid.places()
    sys.path.insert(0, PLUGINS)
    try:
        record = loader.load("llvm", "llvm_device")
    finally:
        sys.path.remove(PLUGINS)
    assert record.state == "loaded", record.traceback
    yield
    loader.unload("llvm")


@pytest.fixture
def no_fallback() -> Iterator[None]:
    before = fluid.get_fallback()
    fluid.set_fallback("error")
    yield
    fluid.set_fallback(before)


@pytest.mark.parametrize("check", [pytest.param(check, id=check.id) for check in CHECKS])
def test_conforms(check: Check, no_fallback: None) -> None:
    check(PLACE)
