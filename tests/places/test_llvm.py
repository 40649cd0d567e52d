"""Every dialect kernel, generated or generic, translated to LLVM IR and compiled for this processor."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import fluidlite as fluid
from fluidlite.testing import Check, checks

pytest.importorskip("llvmlite")
pytest.importorskip("pycparser")
PLACE = fluid.Place("llvm")
CHECKS = checks()


@pytest.fixture(scope="module", autouse=True)
def llvm(load_plugin: Callable[[str, str], None]) -> None:
    load_plugin("llvm", "llvm_device")


@pytest.mark.parametrize("check", [pytest.param(check, id=check.id) for check in CHECKS])
def test_conforms(check: Check, no_fallback: None) -> None:
    check(PLACE)
