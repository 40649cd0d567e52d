"""Every kernel in C, generated or generic, translated to LLVM IR and compiled for this processor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from operator_checks import PAIRWISE, by_operator, run_checks
from unoptimised import most_unoptimised

import fluidlite as fluid
from fluidlite.testing import Check

pytest.importorskip("llvmlite")
pytest.importorskip("pycparser")
PLACE = fluid.Place("llvm")


@pytest.fixture(scope="module", autouse=True)
def llvm(load_plugin: Callable[[str, str], None]) -> None:
    load_plugin("llvm", "llvm_device")


@pytest.mark.parametrize("group", by_operator(most_unoptimised(PAIRWISE)))
def test_conforms(group: list[Check], no_fallback: None) -> None:
    assert run_checks(group, PLACE)
