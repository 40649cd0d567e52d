"""Writes docs/reference/operators.md: every operator, and how each place gets its kernel.

python tools/operator_table.py            write the page
python tools/operator_table.py --check    exit 1 if the page is not up to date
"""

from __future__ import annotations

import sys
from pathlib import Path

import fluidlite as fluid
from fluidlite.framework.opdef import Attr, OpDef, Slot
from fluidlite.framework.registry import ops
from fluidlite.operators import __name__ as own
from fluidlite.tools.matrix import Cell, kernel_matrix

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "operators.md"
PLACES = ("cpu:0", "opencl:0", "fpga:0")
HEAD = """# All operators

Written by `tools/operator_table.py` from the definitions and the kernel registry. The columns of the second table say
how most of an operator's sample calls get their kernel ([../kernels.md](../kernels.md)); `fpga:0` is the memory-only
device of `plugins/fluidlite-fpga`, with three native kernels.

## Meaning

`*` marks a slot that takes a list, `?` one that may be left out. Attributes are shown with their defaults.

| operator | inputs | outputs | attributes | meaning |
|---|---|---|---|---|
"""


def _slot(slot: Slot) -> str:
    return slot.name + "*" * slot.duplicable + "?" * slot.dispensable


def _attr(attr: Attr) -> str:
    value = list(attr.default) if isinstance(attr.default, tuple) else attr.default
    return f"{attr.name}: {attr.type}" + ("" if attr.required else f" = {value!r}")


def _joined(items: list[str]) -> str:
    return ", ".join(f"`{item}`" for item in items)


def _meaning(op: OpDef) -> str:
    slots = [_joined([_slot(slot) for slot in side]) for side in (op.inputs, op.outputs)]
    doc = " ".join(op.doc.split()).replace("|", "\\|").replace("*", "\\*")
    return f"| `{op.type}` | {slots[0]} | {slots[1]} | {_joined([_attr(attr) for attr in op.attrs])} | {doc} |"


def _how(cell: Cell) -> str:
    others = [how for how, _ in cell.hows.most_common()[1:]]
    return cell.how + (f" ({', '.join(sorted(others))})" if others else "")


def page() -> str:
    """The page's text."""
    mine = [op for op in ops if str(Path(op.origin).as_posix()).find("/" + own.replace(".", "/") + "/") >= 0]
    forward = [op for op in mine if not op.type.endswith("_grad")]
    text = HEAD + "\n".join(map(_meaning, forward)) + "\n\n## How each place gets its kernel\n\n"
    text += f"| operator | {' | '.join(PLACES)} |\n|---|{'---|' * len(PLACES)}\n"
    types = {op.type for op in mine}
    for row in kernel_matrix(PLACES):
        if row.op in types:
            hows = [_how(row.cells[fluid.Place.parse(place)]) for place in PLACES]
            text += f"| `{row.op}` | {' | '.join(hows)} |\n"
    return text


def main(arguments: list[str]) -> int:
    """Write or check the page; return the exit code."""
    new = page()
    if "--check" in arguments:
        if PAGE.exists() and PAGE.read_text(encoding="utf-8") == new:
            return 0
        print(f"{PAGE} is not up to date\n  Do: python tools/operator_table.py")
        return 1
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
