"""Reading a program that Paddle saved: its ``ProgramDesc`` becomes a record of our format, which is then checked."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from fluidlite.base.errors import FluidError, SavedModelError
from fluidlite.program.json_form import FORMAT, program_of
from fluidlite.program.opdef import OpDef
from fluidlite.program.program import FORMAT_VERSION, Program
from fluidlite.program.protobuf.messages import parse
from fluidlite.program.protobuf.old_attributes import is_neutral, line_of, means_default, role_of
from fluidlite.program.registry import ops
from fluidlite.program.renamed_attributes import renamed
from fluidlite.tensor.var_type import VarType, dtype_of

MAX_BYTES = 16 << 20
_MOST_OPERATORS = _MOST_VARIABLES = 100_000
_BATCH, _FETCHES = 9, 10
KINDS = {
    7: VarType.LOD_TENSOR,
    11: VarType.STEP_SCOPES,
    13: VarType.LOD_TENSOR_ARRAY,
    17: VarType.RAW,
}
"""The kinds of variables that are read and written, by Paddle's number."""
_NAMES_OF_KINDS = {8: "SELECTED_ROWS", 12: "LOD_RANK_TABLE", 14: "PLACE_LIST", 15: "READER", 16: "CHANNEL", 18: "TUPLE"}
_ATTRIBUTES = {
    0: "i",
    1: "f",
    2: "s",
    3: "ints",
    4: "floats",
    5: "strings",
    6: "b",
    7: "bools",
    8: "block_idx",
    9: "l",
    10: "blocks_idx",
    11: "longs",
}
"""The field that holds an attribute's value, by the number of its type."""
_WITH_NAMES = {"while": ("X", "Condition", "StepScopes"), "conditional_block": ("Input", "", "Scope")}
"""Operators that run a block: the slots of what it reads, of its condition, and of what its steps leave."""


def is_program(content: bytes) -> bool:
    """Whether a file begins as a ``ProgramDesc`` does, with its first block; JSON of ours begins with a brace."""
    return content[:1] == b"\n"


def read_program(content: bytes) -> Program:
    """Read a program that Paddle 1.x saved. Its feed and fetch operators become names.

    Raises SavedModelError: it is truncated, larger than 16 MiB, lies about itself, or has operators, attributes or
    kinds of variables that are not known here; the message names them.
    Raises MissingExtraError: the package protobuf is not installed.
    """
    if len(content) > MAX_BYTES:
        raise SavedModelError(f"the ProgramDesc has {len(content):,} bytes; at most {MAX_BYTES:,} are read")
    desc = parse("ProgramDesc", content)
    try:
        return program_of(_Reading(desc).record())
    except FluidError:
        raise
    except Exception as exc:  # text that is no UTF-8, and what no check knows
        raise SavedModelError(f"not a valid program: {type(exc).__name__}: {exc}") from exc


def _some(names: Iterable[str]) -> str:
    found = sorted(set(names))
    return ", ".join(repr(name)[:80] for name in found[:20]) + (f" and {len(found) - 20} more" if found[20:] else "")


class _Reading:
    """One program, on its way into a record."""

    def __init__(self, desc: Any) -> None:
        self.blocks = list(desc.blocks)
        counted = (("operators", "ops", _MOST_OPERATORS), ("variables", "vars", _MOST_VARIABLES))
        for what, field, most in counted:
            count = sum(len(getattr(block, field)) for block in self.blocks)
            if count > most:
                raise SavedModelError(f"the program has {count:,} {what}; at most {most:,} are read")
        types = {op.type for block in self.blocks for op in block.ops}
        unknown = [type for type in types if ops.find(type) is None]
        if unknown:
            raise SavedModelError(
                f"the program has operators that fluidlite does not know: {_some(unknown)}"
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
        """Note what a feed or fetch operator says."""
        columns, slots = (self.feeds, op.outputs) if op.type == "feed" else (self.fetches, op.inputs)
        found = [attr.i for attr in op.attrs if attr.name == "col"]
        names = [name for slot in slots for name in slot.arguments]
        if len(found) != 1 or len(names) != 1 or found[0] in columns:
            raise SavedModelError(f"an operator {op.type} names columns {found} and variables {names!r:.80}")
        columns[found[0]] = names[0]

    def record(self) -> dict[str, Any]:
        """The program as :func:`fluidlite.program.json_form.dumps` would write it."""
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
            "vars": [self._variable(var) for var in block.vars if var.type.type not in (_BATCH, _FETCHES)],
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
            held = getattr(var.type, field)
            tensor = held.tensor
            if not tensor.HasField("data_type"):
                raise SavedModelError(f"variable {var.name!r:.60} has no data type")
            try:
                dtype = dtype_of(tensor.data_type)
            except FluidError as exc:
                raise SavedModelError(f"variable {var.name!r:.60}: {exc}") from None
            record |= {"dims": list(tensor.dims), "dtype": dtype, "lod_level": held.lod_level}
        if var.persistable:
            record["persistable"] = True
        if var.name in self.data:
            record |= {"is_data": True, "stop_gradient": True}
        return record

    def _operators(self, block: Any) -> list[dict[str, Any]]:
        read = {name for each in self.blocks for op in each.ops for slot in op.inputs for name in slot.arguments}
        written: set[str] = set(self.data) | {var.name for var in block.vars if var.persistable}
        found = []
        for op in block.ops:
            if op.type in ("feed", "fetch"):
                continue
            found.append(self._operator(op, read, written))
            written.update(name for slot in op.outputs for name in slot.arguments)
        return found

    def _operator(self, op: Any, read: set[str], written: set[str]) -> dict[str, Any]:
        definition = ops.get(op.type)
        values = _values(op)
        file, number = line_of(values.get("op_callstack"))
        inputs, outputs = _slots(op, "inputs"), _slots(op, "outputs")
        strange = [slot for slot in inputs if definition.input(slot) is None]
        for slot in [slot for slot in outputs if definition.output(slot) is None]:
            if read.isdisjoint(outputs[slot]) and not set(self.fetches.values()) & set(outputs[slot]):
                del outputs[slot]  # nobody reads it
            else:
                strange.append(slot)
        if strange:
            raise SavedModelError(f"operator {op.type!r} has slots that fluidlite does not know: {_some(strange)}")
        if op.type in _WITH_NAMES:
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
    """The slots that name variables."""
    found: dict[str, list[str]] = {}
    for slot in getattr(op, field):
        if slot.parameter in found:
            raise SavedModelError(f"operator {op.type!r} has the slot {slot.parameter!r:.60} twice")
        if slot.arguments:
            found[slot.parameter] = list(slot.arguments)
    return found


def _values(op: Any) -> dict[str, Any]:
    """Its attributes."""
    found: dict[str, Any] = {}
    for attr in op.attrs:
        field = _ATTRIBUTES.get(attr.type) if attr.HasField("type") else None
        if field is None or attr.name in found:
            what = "is there twice" if attr.name in found else f"is of type {attr.type}, which fluidlite does not know"
            raise SavedModelError(f"operator {op.type!r}: attribute {attr.name!r:.60} {what}")
        value = getattr(attr, field)
        if field in ("i", "f", "s", "b", "block_idx", "l"):
            if not attr.HasField(field):
                raise SavedModelError(f"operator {op.type!r}: attribute {attr.name!r:.60} has no value of its type")
            found[attr.name] = value
        else:
            found[attr.name] = tuple(value)
    return found


def _attributes(definition: OpDef, values: dict[str, Any]) -> dict[str, Any]:
    """The attributes that the definition declares; others must mean nothing."""
    clean: dict[str, Any] = {}
    unknown = []
    for name, value in renamed(definition.type, values).items():
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
    """Which place ``device_guard`` asked for; Paddle's ``gpu`` is ``cuda`` here."""
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
    """Say under which names the block of an operator knows its values: in Paddle they are those around it."""
    reads, condition, steps = _WITH_NAMES[type]
    outputs.pop(steps, None)  # what a gradient would need of the steps
    given = list(dict.fromkeys(inputs.get(reads, [])))
    given += [name for name in outputs.get("Out", []) if name in written and name not in given]
    inputs[reads] = given
    values |= {"inside": tuple(given), "written": tuple(outputs.get("Out", []))}
    if condition:
        values["condition"] = inputs.get(condition, [""])[0]
