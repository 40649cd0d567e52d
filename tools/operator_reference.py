"""Writes docs/reference/operators.md and a page for each family of operators, from definitions and kernel registry.

python tools/operator_reference.py            write the pages
python tools/operator_reference.py --missing  print the attributes that lack a description
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping

from pages import code, escape, line, settle, table

import fluidlite as fluid
from fluidlite.cli import op_docs as facts
from fluidlite.cli.kernel_matrix import Cell, Row, kernel_matrix
from fluidlite.program.opdef import OpDef

PLACES = ("cpu:0", "opencl:0", "fpga:0")
FOLDER = "operators"
HEAD = """# All operators

Written by `tools/operator_reference.py` from the definitions and the kernel registry; `fluidlite op conv2d` prints
the same for one operator. {count} operators, {gradients} of them with a gradient, in {families} families.

The columns of places say how most of an operator's sample calls get their kernel ([kernels](../kernels.md)); `fpga:0`
is the memory-only device of `plugins/fluidlite-fpga`, with native kernels for what a training step needs.

Words on the pages of the families:

- **list**: the slot takes a list of variables. **optional**: it may be left out.
- **for the gradient**: an output that exists only because the gradient reads it.
- **dims only**: no kernel reads the input's bytes. **numbers read when planning**: they decide sizes, and no kernel
  reads them on its device.
- **floats**: {floats}. **integers**: {integers}.
  **numbers**: both. **every dtype**: and bool. A slot that names no dtypes has those of the other inputs, or what the
  formula says.

"""


def _how(cell: Cell) -> str:
    """The ways of an operator on a place, the commonest first; without counts, which every new sample changes."""
    first, *others = [how for how, _ in cell.hows.most_common()] or ["?"]
    return cell.named(first) + (f"; some calls {', '.join(map(cell.named, sorted(others)))}" if others else "")


def _kernels(row: Row) -> list[str]:
    return [_how(row.cells[fluid.Place.parse(place)]) for place in PLACES]


def _operator(op: OpDef, rows: Mapping[str, Row]) -> str:
    """The part of a page that is about one operator."""
    text = f"## {op.type}\n\n{escape(line(op.doc))}\n\n"
    notes = list(facts.traits(op)) + [f"As in {op.source}."] * bool(op.source)
    text += "".join(f"- {escape(line(note))}\n" for note in notes)
    text += f"- Gradient: {escape(facts.gradient_words(op))}.\n\n"
    sides = (("input", op.inputs), ("output", op.outputs))
    slots = [
        (side, code(slot.name), escape(facts.slot_words(op, slot)), escape(line(slot.doc or slot.content)))
        for side, given in sides for slot in given
    ]  # fmt: skip
    text += table(("", "slot", "takes", "what it holds"), slots)
    if op.attrs:
        attrs = [
            (code(attr.name), facts.attr_type(attr), code(facts.attr_default(attr)), escape(facts.attr_range(attr)),
             escape(line(facts.attr_meaning(op, attr))))
            for attr in op.attrs
        ]  # fmt: skip
        text += "\n" + table(("attribute", "type", "default", "allowed", "meaning"), attrs)
    gradient = facts.gradient_of(op)
    types = [op.type, *([gradient.type] if gradient is not None else [])]
    return text + "\n" + table(("kernel", *PLACES), [(code(type), *_kernels(rows[type])) for type in types])


def _family(family: facts.Family, rows: Mapping[str, Row]) -> str:
    text = f"# {escape(family.title.rstrip('.'))}\n\n"
    text += f"One of the families of [all operators](../{FOLDER}.md), declared in `operators/{family.name}.py`.\n\n"
    if len(family.operators) > 1:
        text += f"{', '.join(f'[{op.type}](#{op.type})' for op in family.operators)}\n\n"
    return text + "\n".join(_operator(op, rows) for op in family.operators)


def pages() -> dict[str, str]:
    """The text of each page, by path below the reference."""
    rows = {row.op: row for row in kernel_matrix(PLACES)}
    families = facts.families()
    operators = sorted(((op, family) for family in families for op in family.operators), key=lambda pair: pair[0].type)

    def link(op: OpDef, family: facts.Family) -> str:
        return f"[{op.type}]({FOLDER}/{family.name}.md#{op.type})"

    groups = {name: ", ".join(facts.GROUPS[name]) for name in ("floats", "integers")}
    counts = {"count": len(operators), "gradients": sum(op.grad is not None for op, _ in operators)}
    index = HEAD.format(families=len(families), **counts, **groups) + "## By family\n\n"
    for family in families:
        members = ", ".join(link(op, family) for op in family.operators)
        index += f"- [{family.name}]({FOLDER}/{family.name}.md): {escape(family.title)}\\\n  {members}\n"
    index += "\n## From A to Z\n\n"
    cells = [(link(op, family), escape(line(op.doc)), *_kernels(rows[op.type])) for op, family in operators]
    index += table(("operator", "meaning", *PLACES), cells)
    found = {f"{FOLDER}.md": index}
    return found | {f"{FOLDER}/{family.name}.md": _family(family, rows) for family in families}


def main(arguments: list[str]) -> int:
    warnings.simplefilter("error", fluid.PluginWarning)  # without a plugin's kernels the pages would be wrong
    if "--missing" in arguments:
        for name in facts.undocumented():
            print(name)
        return 0
    settle(pages(), FOLDER)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
