"""Parts of one problem on several threads: each is done once, errors come out, and results are those of one thread."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from grouped import grouped
from operator_checks import PAIRWISE

from fluidlite.compiler.selection import policy
from fluidlite.compiler.selection.policy import Policy
from fluidlite.platform import threads
from fluidlite.program.kernel_registry import kernels
from fluidlite.render import blocks
from fluidlite.testing import Check

TYPES = ("lrn", "layer_norm", "group_norm", "instance_norm", "batch_norm")
OF_NORMS = [check for check in PAIRWISE if check.operator in TYPES]


@grouped(
    ("check", "most"),
    [pytest.param(check, most, id=f"{check.id}-{most}") for check in OF_NORMS for most in (1, 30)],
    by=lambda check, most: check.operator,
)
def test_blocks_on_threads(check: Check, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Array calls, which other kernels would come before."""
    monkeypatch.setattr(blocks, "MOST", most)
    monkeypatch.setattr(threads, "available_processors", lambda: 3)
    monkeypatch.setattr(policy, "_current", Policy(exclude=("native", "language", "decomposed")))
    kernels.generation += 1  # prepared kernels know the size of a block
    try:
        check("cpu")
    finally:
        kernels.generation += 1


def each(parts: int, limit: int | None, work: Any) -> None:
    context: Any = SimpleNamespace(threads=limit)
    threads.each_part(context, parts, lambda: work)


@pytest.mark.parametrize("limit", [None, 1, 2, 100])
@pytest.mark.parametrize("parts", [0, 1, 2, 17])
def test_each_part_is_done_once(parts: int, limit: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "available_processors", lambda: 4)
    done: list[int] = []
    used = set()

    def work(part: int) -> None:
        done.append(part)
        used.add(threading.get_ident())

    each(parts, limit, work)
    assert sorted(done) == list(range(parts))
    assert limit != 1 or used <= {threading.get_ident()}


def test_an_error_of_any_part_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "available_processors", lambda: 4)
    for bad in range(4):

        def work(part: int, bad: int = bad) -> None:
            if part == bad:
                raise ValueError(f"part {part}")

        with pytest.raises(ValueError, match=f"part {bad}"):
            each(4, None, work)
