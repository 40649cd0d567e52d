"""Writes a program as Paddle 1.x's ``ProgramDesc``, with feed and fetch operators."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from fluidlite.base.errors import SavedModelError
from fluidlite.program.edit import sub_blocks
from fluidlite.program.operator import Operator
from fluidlite.program.program import Program
from fluidlite.program.protobuf.messages import message_classes
from fluidlite.program.protobuf.reading import ATTRIBUTES, KINDS, MAX_BYTES
from fluidlite.program.roles import role_number
from fluidlite.program.variable import Variable
from fluidlite.tensor.var_type import AttrType, dtype_number

_VERSION = 1_008_000  # the version of Paddle that the file states: 1.8.0
_NUMBERS = {kind: number for number, kind in KINDS.items()}
_OURS = {"while": ("inside", "written", "condition", "max_iterations"), "conditional_block": ("inside", "written")}
"""fluidlite's attributes of operators with blocks, which Paddle derives from the names in slots."""


def write_program(program: Program) -> bytes:
    """Return the ``ProgramDesc`` of a program, with feeds ``program.feed_names`` and fetches ``program.fetch_names``.

    Raises SavedModelError: Paddle's format cannot represent an attribute or a kind of variable, or it is too large.
    Raises MissingExtraError: the package protobuf is not installed.
    """
    desc = message_classes()["ProgramDesc"]()
    desc.version.version = _VERSION
    for block in program.blocks:
        block_desc = desc.blocks.add(idx=block.idx, parent_idx=block.parent_idx)
        if block.idx == 0:
            _column_variables(block_desc)
            _columns(block_desc, "feed", program.feed_names)
        for variable in block.vars.values():
            _variable(block_desc, variable)
        for op in block.ops:
            _operator(block_desc, op)
        if block.idx == 0:
            _columns(block_desc, "fetch", program.fetch_names)
    content: bytes = desc.SerializeToString(deterministic=True)
    if len(content) > MAX_BYTES:
        raise SavedModelError(f"the program takes {len(content):,} bytes; a file holds at most {MAX_BYTES:,}")
    return content


def _column_variables(block: Any) -> None:
    for name, number in (("feed", 9), ("fetch", 10)):
        var = block.vars.add(name=name, persistable=True)
        var.type.type = number


def _columns(block: Any, type: str, names: Sequence[str]) -> None:
    for column, name in enumerate(names):
        op = block.ops.add(type=type)
        op.inputs.add(parameter="X", arguments=["feed" if type == "feed" else name])
        op.outputs.add(parameter="Out", arguments=[name if type == "feed" else "fetch"])
        op.attrs.add(name="col", type=0, i=column)


def _variable(block: Any, variable: Variable) -> None:
    number = _NUMBERS.get(variable.type)
    if number is None or variable.saved():
        raise SavedModelError(
            f"variable {variable.name!r} is {variable.type!r}, which is not written in Paddle's format"
        )
    var = block.vars.add(name=variable.name, persistable=variable.persistable, need_check_feed=variable.is_data)
    var.type.type = number
    field = {7: var.type.lod_tensor, 13: var.type.tensor_array}.get(number)
    if variable.spec is None or field is None:
        return
    field.tensor.data_type = dtype_number(variable.spec.dtype)
    field.tensor.dims.extend(variable.spec.dims)
    field.lod_level = variable.spec.lod_level


def _operator(block: Any, op: Operator) -> None:
    if len(sub_blocks(op)) != (op.type in _OURS):  # branches of two blocks, recurrent ones, gradients
        raise SavedModelError(f"{op} runs blocks as Paddle's format cannot say\n  Do: save with format='fluidlite'")
    desc = block.ops.add(type=op.type)
    for field, slots in ((desc.inputs, op.inputs), (desc.outputs, op.outputs)):
        for slot, names in slots.items():
            field.add(parameter=slot, arguments=names)
    for attr in op.definition.attrs:
        value = op.attrs[attr.name]
        if value is not None and attr.name not in _OURS.get(op.type, ()):
            _attribute(desc, op, attr.name, attr.type, value)
    _attribute(desc, op, "op_role", "int", role_number(op.role))
    _attribute(desc, op, "op_namescope", "str", f"/{op.namescope}/" if op.namescope else "/")
    if "op_device" in op.hints:
        _attribute(desc, op, "op_device", "str", op.hints["op_device"])


def _fits(number: float) -> bool:
    """Whether a positive number is neither 0 nor infinite as a float32, the type of attributes in Paddle's format."""
    return 2.0**-150 < number < (2 - 2.0**-24) * 2.0**127


def _attribute(desc: Any, op: Operator, name: str, kind: str, value: Any) -> None:
    if kind == "dtype":
        kind, value = "int", dtype_number(value)
    items = value if isinstance(value, tuple) else (value,)
    is_int64 = kind in ("int", "ints") and any(not -(2**31) <= item < 2**31 for item in items)
    lost = kind in ("float", "floats") and any(item and isfinite(item) and not _fits(abs(item)) for item in items)
    if lost or (is_int64 and any(item >= 2**63 for item in items)):
        raise SavedModelError(f"{op}: attribute {name!r} is {value!r:.40}, which Paddle's format cannot hold")
    number = AttrType.of(kind.replace("int", "long") if is_int64 else kind).value
    field = ATTRIBUTES[number]
    attr_desc = desc.attrs.add(name=name, type=number)
    if isinstance(value, tuple):
        getattr(attr_desc, field).extend(value)
    else:
        setattr(attr_desc, field, value)
