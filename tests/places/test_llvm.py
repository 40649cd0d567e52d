"""Every kernel in C, generated or generic, translated to LLVM IR and compiled for this processor."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import grouped
import pytest
from loop_texts import OTHERWISE, record_texts
from operator_checks import CHECKS, QUARTERS, by_operator, case_of, pairwise, run_checks, shared
from unoptimised import most_unoptimised

import fluidlite as fluid
from fluidlite.program.registry import ops
from fluidlite.program.rules import GradRule
from fluidlite.testing import Check

pytest.importorskip("llvmlite")
pytest.importorskip("pycparser")
PLACE = fluid.Place("llvm")


@pytest.fixture(scope="module", autouse=True)
def llvm(load_plugin: Callable[[str, str], None]) -> None:
    load_plugin("llvm", "llvm_device")


written = set[str]()
"""The operators whose loops were written in this process: the text of a call is made once."""


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    types = record_texts(monkeypatch)
    yield types
    written.update(types)


KINDS = ("language", "memory", "llvm")


@pytest.mark.parametrize("group", by_operator(most_unoptimised(shared(pairwise(CHECKS, KINDS), QUARTERS["llvm"]))))
def test_conforms(group: list[Check], no_fallback: None, texts: set[str]) -> None:
    """Kernels are right; and those that ``test_loops.py`` leaves to this file are loops."""
    assert run_checks(group, PLACE)
    if group[0].operator not in OTHERWISE and not grouped.chosen:
        assert expressions(group) <= texts | written


def expressions(group: list[Check]) -> set[str]:
    """The types of checked operators, and of their gradients, that are expressions."""
    found = set[str]()
    for case in filter(None, map(case_of, group)):
        found.add(case.op.type)
        if case.sample.grads and isinstance(case.op.grad, GradRule):
            found.add(case.op.grad.type)
    return {type for type in found if ops.get(type).expression is not None}
