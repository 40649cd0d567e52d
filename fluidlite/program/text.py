"""Programs as readable text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fluidlite.program.block import Block
    from fluidlite.program.operator import Operator
    from fluidlite.program.program import Program


_MAX_ITEMS = 8  # items of a list that are printed


def _value(value: Any) -> str:
    if isinstance(value, tuple) and len(value) > _MAX_ITEMS:
        return f"[{', '.join(map(_value, value[:_MAX_ITEMS]))}, ... {len(value)} in all]"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return f"{value:g}" if isinstance(value, float) else repr(value)


def operator_text(op: Operator) -> str:
    """Return an operator as one line: outputs = type(inputs, attributes)."""
    outs = ", ".join(name for names in op.outputs.values() for name in names)
    ins = ", ".join(f"{slot}={names[0] if len(names) == 1 else names}" for slot, names in op.inputs.items())
    defaults = {attr.name: attr.canonical_default for attr in op.definition.attrs}
    attr_texts = [
        f"{name}={_value(value)}"
        for name, value in op.attrs.items()
        if value is not None and value != defaults.get(name)
    ]
    body = ", ".join(filter(None, [ins, *attr_texts]))
    return f"{outs} = {op.type}({body})" if outs else f"{op.type}({body})"


def block_text(block: Block, details: bool = True) -> str:
    """Return a block as text: variables, then operators with the user's lines."""
    lines = [f"block {block.idx}" + (f" (in block {block.parent_idx})" if block.parent_idx >= 0 else "") + ":"]
    if details:
        lines += [f"  var {variable}" for variable in block.vars.values()]
    texts = [operator_text(op) for op in block.ops]
    width = min(max(map(len, texts), default=0), 100)
    for op, text in zip(block.ops, texts, strict=True):
        role = "" if op.role == "forward" else f" [{op.role}]"
        role += f" in {op.namescope}" if op.namescope else ""
        lines.append(f"  {text:<{width}}  # {op.line}{role}")
    return "\n".join(lines)


def program_text(program: Program, details: bool = False) -> str:
    """Return all blocks as text."""
    return "\n".join(block_text(block, details or block.idx == 0) for block in program.blocks)
