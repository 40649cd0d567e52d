"""Serialization of programs as versioned JSON. Loading validates every field and runs no code."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from fluidlite.base.arguments import finite
from fluidlite.base.dtypes import dtype_name
from fluidlite.base.errors import FluidError, SavedModelError
from fluidlite.base.plugin_callback import ensure_loaded
from fluidlite.program.block import Block
from fluidlite.program.edit import sub_blocks
from fluidlite.program.operator import Operator
from fluidlite.program.operator_arguments import check_attrs, check_slots
from fluidlite.program.program import FORMAT_VERSION, TRAINING_ROLES, Program
from fluidlite.program.registry import ops
from fluidlite.program.saved_options import option_of, option_record
from fluidlite.program.source_location import SourceLine
from fluidlite.program.variable import Parameter, Variable
from fluidlite.program.variable_metadata import SelectedRowsOf
from fluidlite.tensor.tensor_spec import TENSOR_ARRAY, Spec, dims_problem

FORMAT = "fluidlite.program"
_MAX_BLOCKS, _MAX_DEPTH = 10_000, 64  # blocks of a program, and their nesting: larger files are refused
_MAX_ID = 2**31 - 1  # of an operator
_ROLES = ("forward", *TRAINING_ROLES)
_HINTS_OF_NAMES = ("op_device", "op_library")

Flags = dict[str, bool]
KINDS: dict[str, Callable[[Block, str, Spec | None, Flags, dict[str, Any]], Variable]] = {}
"""Readers of variable kinds of higher layers, by the field that :meth:`Variable.saved` writes."""


def dumps(program: Program) -> str:
    """Return a program as JSON text. User lines keep the file's name without its directory."""
    return json.dumps(
        {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "random_seed": program.random_seed,
            "feed": program.feed_names,
            "fetch": program.fetch_names,
            "blocks": [_block(block) for block in program.blocks],
        },
        indent=1,
        allow_nan=True,
    )


def _block(block: Block) -> dict[str, Any]:
    return {
        "idx": block.idx,
        "parent": block.parent_idx,
        "vars": [_variable(variable) for variable in block.vars.values()],
        "ops": [_operator(op) for op in block.ops],
    }


def _variable(variable: Variable) -> dict[str, Any]:
    record: dict[str, Any] = {"name": variable.name, "type": variable.type}
    if variable.spec is not None:
        record |= {"dims": list(variable.spec.dims), "dtype": variable.spec.dtype, "lod_level": variable.spec.lod_level}
    for flag in ("persistable", "stop_gradient", "is_data"):
        if getattr(variable, flag):
            record[flag] = True
    error_clip = option_record("error_clip", variable.error_clip)
    if error_clip is not None:
        record["error_clip"] = error_clip
    if isinstance(variable, Parameter):
        record["parameter"] = _training(variable)
    if variable.selected is not None:
        record["selected"] = variable.selected._asdict()
    return record | variable.saved()


def _training(parameter: Parameter) -> dict[str, Any]:
    rate = parameter.optimize_attr.get("learning_rate", 1.0)
    if isinstance(rate, Variable) and rate.name not in parameter.block.vars:
        rate = 1.0  # its operators were removed, as in a program for inference
    fields = {
        "trainable": parameter.trainable,
        "learning_rate": rate.name if isinstance(rate, Variable) else float(rate),
        "do_model_average": parameter.do_model_average,
        "regularizer": option_record("regularizer", parameter.regularizer),
        "gradient_clip": option_record("gradient_clip", parameter.gradient_clip_attr),
    }
    return {name: fact for name, fact in fields.items() if fact is not None}


def _operator(op: Operator) -> dict[str, Any]:
    return {
        "type": op.type,
        "version": op.definition.version,
        "id": op.id,
        "inputs": op.inputs,
        "outputs": op.outputs,
        "attrs": {name: value for name, value in op.attrs.items() if value is not None},
        "hints": {name: value for name, value in op.hints.items() if isinstance(value, (str, int, float, bool))},
        "role": op.role,
        "line": [os.path.basename(op.line.file), op.line.number, op.line.api],
        "scope": op.namescope,
    }


class _Reader:
    """Reads typed fields of parsed JSON; errors name the field and its position."""

    def __init__(self, record: Any, position: str) -> None:
        if not isinstance(record, dict):
            raise SavedModelError(f"not a program: {position} is {type(record).__name__}, expected an object")
        self.record = record
        self.position = position

    def number(self, name: str, minimum: int, maximum: int, default: int | None = None) -> int:
        """Return an integer in a range, both ends included; it is required unless a default is given."""
        value: int = self.get(name, int, default, required=default is None)
        if not minimum <= value <= maximum:
            raise SavedModelError(
                f"not a program: {self.position}.{name} is {value!r:.40}; {minimum} to {maximum} are possible"
            )
        return value

    def get(self, name: str, types: type | tuple[type, ...], default: Any = None, required: bool = True) -> Any:
        if name not in self.record:
            if required:
                raise SavedModelError(f"not a program: {self.position} has no {name!r}")
            return default
        value = self.record[name]
        boolean = isinstance(value, bool) and types is int
        if not isinstance(value, types) or boolean:
            raise SavedModelError(f"not a program: {self.position}.{name} is {value!r:.80}")
        return value


def loads(text: str | bytes) -> Program:
    """Read a program; see :meth:`Program.from_json`."""
    try:
        record = json.loads(text)
    except (ValueError, TypeError, RecursionError) as exc:
        raise SavedModelError(f"not a program: the JSON is truncated or malformed ({exc})") from None
    return program_of(record)


def program_of(record: Any) -> Program:
    """Return the program of a record in the format of :func:`dumps`; every field is validated."""
    top = _Reader(record, "the file")
    if top.record.get("format") != FORMAT:
        raise SavedModelError(f"not a program: format is {top.record.get('format')!r:.60}, expected {FORMAT!r}")
    version = top.get("version", int)
    if version > FORMAT_VERSION or version < 1:
        raise SavedModelError(
            f"the program is of format version {version}; this fluidlite reads versions 1 to {FORMAT_VERSION}"
            "\n  Do: update fluidlite"
        )
    blocks = top.get("blocks", list)
    if not 1 <= len(blocks) <= _MAX_BLOCKS:
        raise SavedModelError(f"not a program: it has {len(blocks)} blocks")
    program = Program()
    program._random_seed = top.number("random_seed", -(2**63), 2**64 - 1, 0)
    program.feed_names = _texts(top.get("feed", list, [], required=False), "feed")
    program.fetch_names = _texts(top.get("fetch", list, [], required=False), "fetch")
    program.blocks = []
    try:
        for index, item in enumerate(blocks):
            program.blocks.append(_read_block(program, index, _Reader(item, f"block {index}")))
        for index, item in enumerate(blocks):
            _read_operators(program.blocks[index], item, len(blocks))
    except SavedModelError:
        raise
    except FluidError as exc:
        raise SavedModelError(f"not a valid program: {exc}") from exc
    except Exception as exc:  # invalid content that no check covers
        raise SavedModelError(f"not a valid program: {type(exc).__name__}: {exc}") from exc
    _refuse_circles(program)
    return program


def _refuse_circles(program: Program) -> None:
    """Raise SavedModelError unless every operator runs only blocks inside its own, so that runs terminate."""
    for block in program.blocks:
        for op in block.ops:
            for index in sub_blocks(op):
                if index <= block.idx:
                    raise SavedModelError(f"{op} in block {block.idx} runs block {index}; a block runs only later ones")


def _texts(items: list[Any], where: str) -> list[str]:
    if not all(isinstance(item, str) for item in items):
        raise SavedModelError(f"not a program: {where} holds something else than names")
    return items


def _read_block(program: Program, index: int, record: _Reader) -> Block:
    parent = record.get("parent", int)
    if not -1 <= parent < index or (index and parent < 0):
        raise SavedModelError(f"not a program: block {index} says that its parent is {parent}")
    block = Block(program, index, parent)
    outer, depth = block.parent, 0
    while outer is not None:
        outer, depth = outer.parent, depth + 1
        if depth > _MAX_DEPTH:
            raise SavedModelError(f"not a program: block {index} lies in more than {_MAX_DEPTH} others")
    for number, item in enumerate(record.get("vars", list)):
        field = _Reader(item, f"block {index} variable {number}")
        name = field.get("name", str)
        spec = None
        if "dims" in field.record:
            dims = field.get("dims", list)
            if not all(type(d) is int and d >= -1 for d in dims):
                raise SavedModelError(f"not a program: variable {name!r} has dims {dims!r:.80}")
            dtype = dtype_name(field.get("dtype", str))
            problem = dims_problem(dims, dtype)
            if problem:
                raise SavedModelError(f"not a program: variable {name!r} {problem}")
            kind = TENSOR_ARRAY if field.record.get("type") == TENSOR_ARRAY else "dense"
            spec = Spec.of(dims, dtype, lod_level=field.number("lod_level", 0, _MAX_DEPTH, 0), kind=kind)
        flags = {f: field.get(f, bool, False, required=False) for f in ("persistable", "stop_gradient", "is_data")}
        if "parameter" in field.record:
            if spec is None:
                raise SavedModelError(f"not a program: parameter {name!r} has no dims")
            options = _Reader(field.get("parameter", dict), f"parameter {name!r}")
            variable: Variable = Parameter(
                block,
                name,
                spec.dims,
                spec.dtype,
                trainable=options.get("trainable", bool, True, required=False),
                optimize_attr={"learning_rate": _rate(options)},
                stop_gradient=flags["stop_gradient"],
                lod_level=spec.lod_level,
                do_model_average=options.get("do_model_average", bool, None, required=False),
                regularizer=_option(options, "regularizer"),
                gradient_clip_attr=_option(options, "gradient_clip"),
            )
        elif "node" in field.record:
            if "node" not in KINDS:
                ensure_loaded()
            variable = KINDS["node"](block, name, spec, flags, field.get("node", dict))
        else:
            variable = Variable(block, name, spec, **flags, kind=field.get("type", str, "dense", required=False))
        variable.error_clip = _option(field, "error_clip")
        if "selected" in field.record:
            _select(variable, _Reader(field.get("selected", dict), f"rows of {name!r}"))
        block.vars[name] = variable
    for variable in block.vars.values():
        if variable.selected is not None and variable.selected.rows not in block.vars:
            raise SavedModelError(f"not a program: {variable.name!r} has its rows in {variable.selected.rows!r:.60}")
        if isinstance(variable, Parameter) and isinstance(rate := variable.optimize_attr["learning_rate"], str):
            if rate not in block.vars:
                raise SavedModelError(f"not a program: {variable.name!r} has the learning rate {rate!r:.60}")
            variable.optimize_attr = {"learning_rate": block.vars[rate]}
    return block


def _select(variable: Variable, record: _Reader) -> None:
    """Read the row numbers and the height of a variable with sparse rows."""
    height = record.number("height", 1, 2**63 - 1)
    merged: bool = record.get("merged", bool, False, required=False)
    variable.select(SelectedRowsOf(record.get("rows", str), height, merged))


def _hints(record: _Reader) -> dict[str, Any]:
    hints: dict[str, Any] = record.get("hints", dict, {}, required=False)
    for name, value in hints.items():
        if not isinstance(value, str if name in _HINTS_OF_NAMES else (str, int, float)):
            raise SavedModelError(f"not a program: {record.position}.hints.{name} is {value!r:.80}")
    return hints


def _rate(options: _Reader) -> float | str:
    """Return a factor, or the name of the learning rate's variable."""
    rate: float | str = options.get("learning_rate", (int, float, str), 1.0, required=False)
    what = f"not a program: the learning rate of {options.position}"
    return rate if isinstance(rate, str) else finite(what, rate, SavedModelError)


def _option(record: _Reader, role: str) -> Any:
    """Return a regularizer or a clip, or None."""
    option = record.get(role, list, None, required=False)
    return None if option is None else option_of(role, option, f"{record.position}.{role}")


def _read_operators(block: Block, item: dict[str, Any], count: int) -> None:
    program = block.program
    for number, raw in enumerate(item.get("ops", [])):
        record = _Reader(raw, f"block {block.idx} operator {number}")
        definition = ops.get(record.get("type", str))
        version = record.get("version", int, 1, required=False)
        if version > definition.version:
            raise SavedModelError(
                f"operator {definition.type!r} is of definition version {version}; "
                f"this fluidlite knows {definition.version}"
            )
        line_fields = record.get("line", list, ["?", 0, ""], required=False)
        if len(line_fields) != 3 or not isinstance(line_fields[1], int):
            raise SavedModelError(f"not a program: the line of operator {number} is {line_fields!r:.60}")
        line = SourceLine(os.path.basename(str(line_fields[0])), line_fields[1], str(line_fields[2]))
        attrs, _ = check_attrs(definition, record.get("attrs", dict), line)
        for attr in definition.attrs:
            index = attrs[attr.name] if attr.type == "block" else None
            if index is not None and not 0 <= index < count:
                raise SavedModelError(f"operator {definition.type!r} runs block {index}; there are {count}")
        role = record.get("role", str, "forward", required=False)
        if role not in _ROLES:
            raise SavedModelError(
                f"not a program: {record.position}.role is {role!r:.40}; expected one of {', '.join(_ROLES)}"
            )
        op = Operator(
            block,
            definition,
            check_slots(definition, record.get("inputs", dict), "input", line, block),
            check_slots(definition, record.get("outputs", dict), "output", line, block),
            attrs,
            _hints(record),
            record.number("id", 0, _MAX_ID),
            role,
            line,
            record.get("scope", str, "", required=False),
        )
        op.check_outputs()
        op.infer()
        program._next_id = max(program._next_id, op.id + 1)
        block.ops.append(op)
