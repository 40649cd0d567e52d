"""Checks of the slots and attributes that a user passes to an operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fluidlite.base.arguments import check_mapping, name_of
from fluidlite.base.errors import AttributeValueError, ProgramError
from fluidlite.program.op_call import with_location
from fluidlite.program.opdef import OpDef, Slot
from fluidlite.program.operator import EMPTY, no_attribute
from fluidlite.program.registry import HINTS
from fluidlite.program.renamed_attributes import current_attributes
from fluidlite.program.source_location import SourceLine

if TYPE_CHECKING:
    from fluidlite.program.block import Block


def check_slots(
    definition: OpDef, values: Mapping[str, Any] | None, side: str, line: SourceLine, block: Block
) -> dict[str, list[str]]:
    """Convert the user's slots to names of variables, or raise ProgramError."""
    slots = definition.inputs if side == "input" else definition.outputs
    slots_by_name = {slot.name: slot for slot in slots}
    what = f"operator {definition.type} ({line})"
    clean: dict[str, list[str]] = {}
    values = check_mapping(f"{what}: {side}s", values or {}, "a mapping of slots to variables")
    for name in values:
        if name not in slots_by_name:
            raise ProgramError(f"{what} has no {side} slot {name!r}; it has {', '.join(slots_by_name) or 'none'}")
    for slot in slots:
        names = _names(values.get(slot.name), slot, side, what, block)
        if not names:
            if side == "input" and not slot.dispensable:
                raise ProgramError(
                    f"{what}: input slot {slot.name!r} is missing" + (f"\n  It is: {slot.doc}" if slot.doc else "")
                )
            continue
        clean[slot.name] = names
    return clean


def _names(value: Any, slot: Slot, side: str, what: str, block: Block) -> list[str]:
    if value is None:
        return []
    items = list(value) if isinstance(value, (list, tuple)) else [value]
    if len(items) > 1 and not slot.duplicable:
        raise ProgramError(f"{what}: {side} slot {slot.name!r} takes one variable, got {len(items)}")
    names = []
    for item in items:
        name = name_of(item)
        if name is None:
            raise ProgramError(
                f"{what}: {side} slot {slot.name!r} got {type(item).__name__} {item!r}; expected a variable or its name"
            )
        own = block.find_var(name) if name != EMPTY else None
        if own is not item and name != EMPTY and not isinstance(item, str):
            check_own(own, item, f"{what}: {side} slot {slot.name!r}", block)
        if name != EMPTY and own is None:
            raise ProgramError(
                f"{what}: {side} slot {slot.name!r} names variable {name!r}, which the block does not have"
            )
        names.append(name)
    return [name for name in names if name != EMPTY] if side == "input" else names


def check_own(own: Any, item: Any, what: str, block: Block) -> None:
    """Raise ProgramError if a variable belongs to another program.

    ``own``: the block's variable of the same name, which may be another value, or None.
    """
    stands_for = getattr(item, "stands_for", None)
    if stands_for is None or (own is None and item.block.program is block.program):
        return
    if own is None:
        raise ProgramError(
            f"{what} names variable {item.name_and_line()}, which the block does not have: it is of another program"
            "\n  Do: build both in one program_guard; an operator such as + appends to the program of the variable at "
            "its left"
        )
    if not stands_for(own):
        raise ProgramError(
            f"{what} got {item.name_and_line()} of another program; {own.name_and_line()} of this one is another "
            "value\n  Do: build both in one program, or give the variable of this one: block.var(name)"
        )


def check_attrs(
    definition: OpDef, values: Mapping[str, Any] | None, line: SourceLine
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the canonical attributes of the definition, and the hints; or raise AttributeValueError."""
    what = f"operator {definition.type} ({line})"
    if values is not None and not isinstance(values, Mapping):
        raise ProgramError(f"{what}: attrs is {type(values).__name__}; expected a mapping of names to values")
    values = current_attributes(definition.type, dict(values or {}))
    clean: dict[str, Any] = {}
    for attr in definition.attrs:
        value = values.pop(attr.name, None)
        if value is None:
            if attr.required:
                raise AttributeValueError(f"{what}: attribute {attr.name!r} ({attr.type}) is missing")
            clean[attr.name] = attr.canonical_default
            continue
        try:
            clean[attr.name] = attr.check(value)
        except ProgramError as exc:
            raise with_location(exc, what) from None
    hints = {name: value for name, value in values.items() if name in HINTS}
    unknown = [name for name in values if name not in HINTS]
    if unknown:
        raise no_attribute(definition, what, unknown[0])
    return clean, hints
