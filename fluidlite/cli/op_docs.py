"""Descriptions of operator definitions, for the reference pages and for ``fluidlite op``."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from fluidlite.base.dtypes import ALL, ALL_FLOATS, ALL_INTS
from fluidlite.cli.kernel_matrix import gradient_types
from fluidlite.operators import __name__ as own
from fluidlite.program.opdef import Attr, OpDef, Slot
from fluidlite.program.registry import ops
from fluidlite.program.rules import GradRule

GROUPS = {
    "every dtype": ALL,
    "numbers": (*ALL_INTS, *ALL_FLOATS),
    "floats": ALL_FLOATS,
    "integers": ALL_INTS,
}
"""Names of groups of dtypes, largest first."""
_TYPES = {"ints": "list of int", "floats": "list of float", "strs": "list of str", "bools": "list of bool"}


@dataclass(frozen=True)
class Family:
    """The operators that one file declares."""

    name: str
    title: str
    text: str
    operators: tuple[OpDef, ...]


def family_of(op: OpDef) -> str:
    """The name of the file that declares an operator, without its ending."""
    return Path(op.origin.rpartition(":")[0]).stem


def is_own(op: OpDef) -> bool:
    return "/" + own.replace(".", "/") + "/" in Path(op.origin).as_posix()


def families() -> list[Family]:
    """Fluidlite's own operators by family, without gradient operators, which are described with their operator."""
    members: dict[str, list[OpDef]] = {}
    for op in ops:
        if is_own(op) and forward_of(op) is None:
            members.setdefault(family_of(op), []).append(op)
    result = []
    for name, operators in sorted(members.items()):
        doc = sys.modules[f"{own}.{name}"].__doc__ or ""
        title, _, text = doc.strip().partition("\n")
        result.append(Family(name, title, text.strip(), tuple(operators)))
    return result


def forward_of(op: OpDef) -> OpDef | None:
    forward = _forwards(ops.generation).get(op.type)
    return forward if forward is not None and family_of(forward) == family_of(op) else None


@lru_cache(maxsize=1)
def _forwards(generation: int) -> dict[str, OpDef]:
    """Operators by the type of their gradient operator; cached for one generation of the registry."""
    forwards = {}
    for op in ops:
        gradient = gradient_of(op)
        if gradient is not None and "_grad" in gradient.type:  # other operators may also serve as a gradient
            forwards[gradient.type] = op
    return forwards


def gradient_of(op: OpDef) -> OpDef | None:
    """The operator's own gradient operator, or None."""
    gradient = ops.find(op.grad.type if isinstance(op.grad, GradRule) else f"{op.type}_grad")
    return gradient if op.grad is not None else None


def dtype_words(dtypes: Iterable[str]) -> str:
    """Format dtypes as text, with names of groups."""
    left = set(dtypes)
    words = []
    for word, group in GROUPS.items():
        if left >= set(group):
            words.append(word)
            left -= set(group)
    return ", ".join((*words, *(dtype for dtype in ALL if dtype in left)))


def slot_words(op: OpDef, slot: Slot) -> str:
    """Describe a slot: flags, dtypes and content."""
    flags = {
        "list": slot.duplicable,
        "optional": slot.dispensable,
        "for the gradient": slot.intermediate,
        "dims only": slot.metadata_only,
        "numbers read when planning": slot.value,
        "on the host": slot.on_host,
    }
    parts = [flag for flag, is_set in flags.items() if is_set]
    if slot.kinds != ("dense",):
        parts.append(" or ".join(slot.kinds))
    if slot.name in op.dtypes:
        parts.append(dtype_words(op.dtypes[slot.name]))
    return ", ".join(parts)


def attr_type(attr: Attr) -> str:
    return _TYPES.get(attr.type, attr.type)


def attr_default(attr: Attr) -> str:
    """The default as Python code; ``required`` if there is none."""
    if attr.required:
        return "required"
    return repr(list(attr.default) if isinstance(attr.default, tuple) else attr.default)


def attr_range(attr: Attr) -> str:
    """The range of allowed values."""
    if attr.choices is not None:
        return " or ".join(map(repr, attr.choices))
    low, high = (None if end is None else f"{end:g}" for end in (attr.minimum, attr.maximum))
    if low is not None and high is not None:
        return f"{low} to {high}"
    if low is not None:
        return f"{low} or more"
    return "" if high is None else f"{high} or less"


def attr_meaning(op: OpDef, attr: Attr) -> str:
    """The meaning of an attribute; one that occurs in the operator's formula needs no description."""
    if attr.doc or re.search(rf"\b{re.escape(attr.name)}\b", op.doc) is None:
        return attr.doc
    return "see the formula"


def traits(op: OpDef) -> Iterator[str]:
    """Further properties of an operator, a sentence each."""
    if op.marker:
        yield "It marks variables, and never runs."
    if op.run is not None:
        yield "It runs itself, on no kernel."
    if op.scalar is not None:
        yield "Elementwise: kernels are generated from its expression."
    if op.random:
        yield "Random: equal seeds give equal numbers on every place."
    if op.dynamic:
        yield "Dynamic: sizes of its outputs depend on values."
    if op.effect:
        yield "It does more than write outputs, so it runs even if nobody reads them."
    if op.host_only:
        yield f"Pinned to the host: {op.host_only}."
    if op.decompose is not None:
        yield "Decomposes into other operators where there is no kernel."
    for out, source in op.must_alias.items():
        yield f"{out} is {source}, written in place."
    for out, source in op.may_alias.items():
        yield f"{out} may share the memory of {source}."
    for slot, why in op.stop_gradient.items():
        yield f"No derivative flows through {slot}: {why}."
    for slot, instead in op.no_gradient.items():
        yield f"Backward raises on a path through {slot}; do {instead}."
    for each in (op, gradient_of(op)):
        if each is not None and each.memory:
            yield f"Memory of {each.type}: {each.memory}."


def gradient_words(op: OpDef) -> str:
    """Describe the operators of the gradient, and their inputs and outputs."""
    if op.grad is None:
        return "none"
    gradient = gradient_of(op)
    if gradient is None:
        types = gradient_types(op)
        return f"made of {', '.join(types)}" if types else "made by its definition, for each call"
    unread = [slot.name for slot in gradient.inputs if slot.unread]
    reads = ", ".join(slot.name for slot in gradient.inputs if not slot.unread)
    text = f"{gradient.type} reads {reads or 'nothing'}"
    if unread:
        text += f" and only the dims of {', '.join(unread)}"
    text += f"; writes {', '.join(slot.name for slot in gradient.outputs)}"
    second = gradient_words(gradient)
    return text if second == "none" else f"{text}. The gradient's own gradient: {second}"


def undocumented() -> list[str]:
    """Attributes of fluidlite's own operators without a description in definition or formula."""
    names: list[str] = []
    for family in families():
        for op in family.operators:
            names += [f"{op.type}.{attr.name}" for attr in op.attrs if not attr_meaning(op, attr)]
    return names


def as_data(op: OpDef) -> dict[str, Any]:
    return {
        "op": op.type,
        "family": family_of(op),
        "doc": " ".join(op.doc.split()),
        "source": op.source,
        "inputs": {slot.name: slot_words(op, slot) for slot in op.inputs},
        "outputs": {slot.name: slot_words(op, slot) for slot in op.outputs},
        "attrs": {
            attr.name: {
                "type": attr_type(attr),
                "default": attr_default(attr),
                "allowed": attr_range(attr),
                "doc": attr_meaning(op, attr),
            }
            for attr in op.attrs
        },
        "traits": list(traits(op)),
        "gradient": gradient_words(op),
    }
