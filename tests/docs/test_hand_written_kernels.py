"""docs/hand_written_kernels.md names each hand-written kernel that loops could compute instead, and why it stays."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fluidlite as fluid
from fluidlite.kernels import language
from fluidlite.program.kernel_registry import kernels
from fluidlite.program.registry import ops

PAGE = (Path(__file__).parents[2] / "docs" / "hand_written_kernels.md").read_text(encoding="utf-8")
ROWS = [line.strip("| ").split("|") for line in PAGE.partition("## Deleted")[0].splitlines() if "| --" not in line]
KEPT = {
    row[0].strip(): [cell.strip() for cell in row[1:]]
    for row in ROWS
    if len(row) >= 5 and re.fullmatch(r"[a-z0-9_]+\.py", row[1].strip())
}
WORTH = 1 / 1.1


def hand_written() -> dict[str, str]:
    """Operators with an expression that have a kernel in the words of the kernel language, and its file."""
    fluid.places()  # plugins register kernels
    found: dict[str, str] = {}
    for kernel in kernels:
        if "language" in kernel.places and kernel.op in ops and ops.get(kernel.op).expression is not None:
            module = kernel.function.__module__
            if module.startswith(language.__name__) and kernel.written_for != "registers":
                found[kernel.op] = module.removeprefix(f"{language.__name__}.") + ".py"
    return found


def test_the_page_lists_what_is_registered() -> None:
    assert {op: row[0] for op, row in KEPT.items()} == hand_written()


@pytest.mark.parametrize("op", KEPT)
def test_each_wins_by_a_tenth(op: str) -> None:
    _, _, _, hand, loops, *_ = [*KEPT[op], ""]
    if loops == "refused":
        return
    assert float(hand.replace(",", "")) <= WORTH * float(loops.replace(",", ""))


def test_those_without_a_rival_are_named() -> None:
    fluid.places()
    alone = {k.op for k in kernels if "language" in k.places and k.op in ops and ops.get(k.op).expression is None}
    mine = {k.op for k in kernels if "language" in k.places and k.function.__module__.startswith(language.__name__)}
    missing = [op for op in alone & mine if not re.search(rf"\b{op}\b", PAGE)]
    assert not missing
