"""Reads Paddle's ``ProgramDesc``: converts it to a record of fluidlite's JSON format, which is then validated."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import numpy as np

from fluidlite.base.errors import FluidError, SavedModelError
from fluidlite.program.json_form import FORMAT, program_of
from fluidlite.program.opdef import OpDef
from fluidlite.program.program import FORMAT_VERSION, Program
from fluidlite.program.protobuf.messages import parse
from fluidlite.program.protobuf.old_attributes import is_neutral, line_of, means_default, role_of
from fluidlite.program.registry import ops
from fluidlite.program.renamed_attributes import current_attributes
from fluidlite.tensor.var_type import VarType, dtype_of

MAX_BYTES = 16 << 20  # of a ProgramDesc
_MAX_OPERATORS = _MAX_VARIABLES = 100_000  # of all blocks together
_FEED_MINIBATCH, _FETCH_LIST = 9, 10  # Paddle's kinds of the variables of feeds and fetches
KINDS = {
    7: VarType.LOD_TENSOR,
    11: VarType.STEP_SCOPES,
    13: VarType.LOD_TENSOR_ARRAY,
    17: VarType.RAW,
}
"""The supported kinds of variables, by Paddle's number."""
_NAMES_OF_KINDS = {8: "SELECTED_ROWS", 12: "LOD_RANK_TABLE", 14: "PLACE_LIST", 15: "READER", 16: "CHANNEL", 18: "TUPLE"}
ATTRIBUTES = dict(
    enumerate(["i", "f", "s", "ints", "floats", "strings", "b", "bools", "block_idx", "l", "blocks_idx", "longs"])
)
"""The field with an attribute's value, by the number of its type in :class:`fluidlite.tensor.var_type.AttrType`."""
_BLOCK_OPERATOR_SLOTS = {"while": ("X", "Condition", "StepScopes"), "conditional_block": ("Input", "", "Scope")}
"""Operators that run a block: the slots of its inputs, of its condition, and of its step scopes."""


def is_program(content: bytes) -> bool:
    """Whether a file starts like a ``ProgramDesc``, with its first block; fluidlite's JSON starts with a brace."""
    return content[:1] == b"\n"


def read_program(content: bytes) -> Program:
    """Read a program that Paddle 1.x saved. Its feed and fetch operators become names.

    Raises SavedModelError: it is truncated, larger than 16 MiB, inconsistent, or has unknown operators, attributes or
    kinds of variables; the message names them.
    Raises MissingExtraError: the package protobuf is not installed.
    """
    if len(content) > MAX_BYTES:
        raise SavedModelError(f"the ProgramDesc has {len(content):,} bytes; at most {MAX_BYTES:,} are read")
    desc = parse("ProgramDesc", content)
    try:
        return program_of(_RecordConverter(desc).record())
    except FluidError:
        raise
    except Exception as exc:  # text that is no UTF-8, and content that no check covers
        raise SavedModelError(f"not a valid program: {type(exc).__name__}: {exc}") from exc


def _listing(names: Iterable[str]) -> str:
    items = sorted(set(names))
    return ", ".join(repr(name)[:80] for name in items[:20]) + (f" and {len(items) - 20} more" if items[20:] else "")


class _RecordConverter:
    """The conversion of one program to a record."""

    def __init__(self, desc: Any) -> None:
        self.blocks = list(desc.blocks)
        limits = (("operators", "ops", _MAX_OPERATORS), ("variables", "vars", _MAX_VARIABLES))
        for what, field, limit in limits:
            count = sum(len(getattr(block, field)) for block in self.blocks)
            if count > limit:
                raise SavedModelError(f"the program has {count:,} {what}; at most {limit:,} are read")
        types = {op.type for block in self.blocks for op in block.ops}
        unknown = [type for type in types if ops.find(type) is None]
        if unknown:
            raise SavedModelError(
                f"the program has operators that fluidlite does not know: {_listing(unknown)}"
                "\n  Do: fluidlite ops lists those that it knows; a plugin can register others"
            )
        self.feeds: dict[int, str] = {}
        self.fetches: dict[int, str] = {}
        for block in self.blocks:
            for op in block.ops:
                if op.type in ("feed", "fetch"):
                    self._column(op)
        self.data = set(self.feeds.values())
        self.ids = 0

    def _column(self, op: Any) -> None:
        """Store the column and the variable of a feed or fetch operator."""
        columns, slots = (self.feeds, op.outputs) if op.type == "feed" else (self.fetches, op.inputs)
        indices = [attr.i for attr in op.attrs if attr.name == "col"]
        names = [name for slot in slots for name in slot.arguments]
        if len(indices) != 1 or len(names) != 1 or indices[0] in columns:
            raise SavedModelError(f"an operator {op.type} names columns {indices} and variables {names!r:.80}")
        columns[indices[0]] = names[0]

    def record(self) -> dict[str, Any]:
        """Return the program in the format of :func:`fluidlite.program.json_form.dumps`."""
        for what, columns in (("feed", self.feeds), ("fetch", self.fetches)):
            if sorted(columns) != list(range(len(columns))):
                raise SavedModelError(f"the columns of its {what} operators are {sorted(columns)!r:.80}")
        return {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "random_seed": 0,
            "feed": [self.feeds[i] for i in range(len(self.feeds))],
            "fetch": [self.fetches[i] for i in range(len(self.fetches))],
            "blocks": [self._block(index, block) for index, block in enumerate(self.blocks)],
        }

    def _block(self, index: int, block: Any) -> dict[str, Any]:
        if block.idx != index:
            raise SavedModelError(f"block {index} calls itself {block.idx}")
        names = [var.name for var in block.vars]
        if len(set(names)) != len(names):
            raise SavedModelError(f"block {index} declares a variable twice")
        return {
            "idx": index,
            "parent": block.parent_idx if block.HasField("parent_idx") else -1,
            "vars": [self._variable(var) for var in block.vars if var.type.type not in (_FEED_MINIBATCH, _FETCH_LIST)],
            "ops": self._operators(block),
        }

    def _variable(self, var: Any) -> dict[str, Any]:
        number = var.type.type
        if not var.HasField("name") or not var.type.HasField("type"):
            raise SavedModelError(f"variable {var.name!r:.60} has no name or no type")
        if number not in KINDS:
            kind = _NAMES_OF_KINDS.get(number, number)
            raise SavedModelError(f"variable {var.name!r:.60} is of type {kind}, which fluidlite does not know")
        record: dict[str, Any] = {"name": var.name, "type": KINDS[number]}
        field = {7: "lod_tensor", 13: "tensor_array"}.get(number, "")
        if field and var.type.HasField(field):
            content = getattr(var.type, field)
            tensor = content.tensor
            if not tensor.HasField("data_type"):
                raise SavedModelError(f"variable {var.name!r:.60} has no data type")
            try:
                dtype = dtype_of(tensor.data_type)
            except FluidError as exc:
                raise SavedModelError(f"variable {var.name!r:.60}: {exc}") from None
            record |= {"dims": list(tensor.dims), "dtype": dtype, "lod_level": content.lod_level}
        if var.persistable:
            record["persistable"] = True
        if var.name in self.data:
            record |= {"is_data": True, "stop_gradient": True}
        return record

    def _operators(self, block: Any) -> list[dict[str, Any]]:
        read = {name for other in self.blocks for op in other.ops for slot in op.inputs for name in slot.arguments}
        written: set[str] = set(self.data) | {var.name for var in block.vars if var.persistable}
        records = []
        for op in block.ops:
            if op.type in ("feed", "fetch"):
                continue
            records.append(self._operator(op, read, written))
            written.update(name for slot in op.outputs for name in slot.arguments)
        return records

    def _operator(self, op: Any, read: set[str], written: set[str]) -> dict[str, Any]:
        definition = ops.get(op.type)
        values = _values(op)
        file, number = line_of(values.get("op_callstack"))
        inputs, outputs = _slots(op, "inputs"), _slots(op, "outputs")
        unknown = [slot for slot in inputs if definition.input(slot) is None]
        for slot in [slot for slot in outputs if definition.output(slot) is None]:
            if read.isdisjoint(outputs[slot]) and not set(self.fetches.values()) & set(outputs[slot]):
                del outputs[slot]  # it is not read
            else:
                unknown.append(slot)
        if unknown:
            raise SavedModelError(f"operator {op.type!r} has slots that fluidlite does not know: {_listing(unknown)}")
        if op.type in _BLOCK_OPERATOR_SLOTS:
            _name_values(op.type, values, inputs, outputs, written)
        self.ids += 1
        return {
            "type": op.type,
            "id": self.ids - 1,
            "inputs": inputs,
            "outputs": outputs,
            "attrs": _attributes(definition, values),
            "hints": _hints(values),
            "role": role_of(values.get("op_role", 0)),
            "line": [os.path.basename(file), number, ""],
            "scope": _namescope(values),
        }


def _slots(op: Any, field: str) -> dict[str, list[str]]:
    """Return the names of variables by slot, without empty slots."""
    names_by_slot: dict[str, list[str]] = {}
    for slot in getattr(op, field):
        if slot.parameter in names_by_slot:
            raise SavedModelError(f"operator {op.type!r} has the slot {slot.parameter!r:.60} twice")
        if slot.arguments:
            names_by_slot[slot.parameter] = list(slot.arguments)
    return names_by_slot


def _values(op: Any) -> dict[str, Any]:
    """Return the values of an operator's attributes."""
    values: dict[str, Any] = {}
    for attr in op.attrs:
        field = ATTRIBUTES.get(attr.type) if attr.HasField("type") else None
        if field is None or attr.name in values:
            what = "is there twice" if attr.name in values else f"is of type {attr.type}, which fluidlite does not know"
            raise SavedModelError(f"operator {op.type!r}: attribute {attr.name!r:.60} {what}")
        value = getattr(attr, field)
        if field in ("i", "f", "s", "b", "block_idx", "l"):
            if not attr.HasField(field):
                raise SavedModelError(f"operator {op.type!r}: attribute {attr.name!r:.60} has no value of its type")
            values[attr.name] = _written(value) if field == "f" else value
        else:
            values[attr.name] = tuple(map(_written, value)) if field == "floats" else tuple(value)
    return values


def _written(number: float) -> float:
    """The shortest decimal number of a float32: 0.001 was stored as 0.0010000000474974513. Integers are exact."""
    return number if number.is_integer() else float(str(np.float32(number)))


def _attributes(definition: OpDef, values: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes that the definition declares; raise SavedModelError for others that are not neutral."""
    clean: dict[str, Any] = {}
    unknown = []
    for name, value in current_attributes(definition.type, values).items():
        if name in ("op_role", "op_device"):
            continue
        if definition.attr(name) is not None:
            if not means_default(name, value):
                clean[name] = value
        elif not is_neutral(name, value):
            unknown.append(f"{name}={value!r:.40}")
    if unknown:
        declared = ", ".join(attr.name for attr in definition.attrs) or "none"
        raise SavedModelError(
            f"operator {definition.type!r} has attributes that fluidlite does not know, or not with these values: "
            f"{', '.join(sorted(unknown)[:20])}; it has {declared}"
        )
    return clean


def _hints(values: dict[str, Any]) -> dict[str, Any]:
    """Return the hint of ``device_guard``'s place; Paddle's ``gpu`` is ``cuda`` here."""
    text = values.get("op_device", "")
    if not isinstance(text, str) or not text:
        return {}
    return {"op_device": "cuda" + text[3:] if text.startswith("gpu") else text}


def _namescope(values: dict[str, Any]) -> str:
    scope = values.get("op_namescope", "")
    return scope.strip("/") if isinstance(scope, str) else ""


def _name_values(
    type: str, values: dict[str, Any], inputs: dict[str, list[str]], outputs: dict[str, list[str]], written: set[str]
) -> None:
    """Add the names that an operator's values have in its block: in Paddle they are the outer names."""
    reads, condition, steps = _BLOCK_OPERATOR_SLOTS[type]
    outputs.pop(steps, None)  # only a gradient would read it
    names = list(dict.fromkeys(inputs.get(reads, [])))
    names += [name for name in outputs.get("Out", []) if name in written and name not in names]
    inputs[reads] = names
    values |= {"inside": tuple(names), "written": tuple(outputs.get("Out", []))}
    if condition:
        values["condition"] = inputs.get(condition, [""])[0]
