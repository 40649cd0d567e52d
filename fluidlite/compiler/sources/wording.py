"""Text fragments of emitted programs: dtypes, slots, numbers, arguments of launches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fluidlite.compiler.kernel_runs import with_spec
from fluidlite.platform.context import Context
from fluidlite.program.opdef import Attr
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Spec
from fluidlite.tensor.transfer import borrow


class RandomWord:
    """The text of one word of the key of a run's random numbers."""

    def __init__(self, text: str) -> None:
        self.text = text


def stand_in(spec: Spec, context: Context) -> Tensor:
    """A tensor with memory of its own, by which recorded launches identify it."""
    array = np.zeros(max(spec.nbytes, 1), np.uint8)
    return with_spec(borrow(array, Spec.of(array.shape, "uint8"), context), spec)


def arguments_text(parameters: Sequence[str], args: Sequence[Any], names: dict[int, str]) -> list[str]:
    """The texts of a launch's arguments; ``names``: those of buffers, by ``id`` of their memory."""
    texts, skip = [], False
    for position, (kind, value) in enumerate(zip(parameters, args, strict=True)):
        if skip:
            skip = False
        elif kind == "buffer":
            start, skip = args[position + 1], True
            name = names[id(value)]
            texts.append(f"({name}, {start})" if start else name)
        else:
            texts.append(value.text if isinstance(value, RandomWord) else number_text(value))
    return texts


def number_text(value: Any) -> str:
    """The text of a number, which evaluates to the same number."""
    plain = value.item() if hasattr(value, "item") else value
    text = repr(plain)
    return f"float({text!r})" if text in ("inf", "-inf", "nan") else text


def value_text(value: Any) -> str:
    """The text of numbers and strings, also in lists, tuples and dicts, which evaluates to equal values."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {value_text(each)}" for key, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        inside = ", ".join(map(value_text, value))
        if isinstance(value, list):
            return f"[{inside}]"
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    return number_text(value) if isinstance(value, (float, np.generic)) else repr(value)


def escaped(text: str) -> str:
    """A text escaped for comments and strings: names and lines of a loaded program may contain any character."""
    return "".join(each if each.isprintable() and each not in '\\"' else f"\\x{ord(each):02x}" for each in text)


def dtype_text(name: str) -> str:
    return f"ml_dtypes.{name}" if name == "bfloat16" else f"np.{name}"


def slots_text(slots: Any) -> str:
    specs_by_slot = {}
    for slot, specs in slots.items():
        group = []
        for spec in specs:
            item: list[Any] = [spec.dims, spec.dtype]
            if spec.lod or spec.value is not None:
                item.append(spec.lod)
            if spec.value is not None:
                item.append(spec.value)
            group.append(tuple(item))
        specs_by_slot[slot] = group
    return value_text(specs_by_slot)


def is_not_default(attr: Attr | None, value: Any) -> bool:
    """Whether an attribute differs from its default."""
    return attr is None or attr.default != value or type(attr.default) is not type(value)


def body_text(text: str) -> str:
    """The text of a function after its name."""
    return text.rstrip().partition("(")[2]
