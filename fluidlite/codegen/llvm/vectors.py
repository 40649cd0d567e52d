"""Vectors of floats in kernels' C, with OpenCL's names: ``float16``, ``(float16)(x)``, ``vload16``, ``vstore16``.

``+ - * /`` and ``fma`` take vectors; a scalar operand beside a vector is splatted.
"""

from __future__ import annotations

import re

from fluidlite.codegen.llvm.c_types import DOUBLE, FLOAT, VOID, Type, Value
from fluidlite.codegen.llvm.function import CError, FunctionText

WIDTHS = (2, 4, 8, 16)


def vector(of: Type, count: int) -> Type:
    return Type(f"<{count} x {of.text}>", "vector", of.bits, of=of, count=count)


VECTORS = {f"{name}{n}": vector(of, n) for name, of in (("float", FLOAT), ("double", DOUBLE)) for n in WIDTHS}
"""The vector types by their names in C."""
_NAMES = re.compile(rf"\b(?:{'|'.join(VECTORS)})\b")
MOVES = re.compile(r"v(load|store)(\d+)")
"""The functions that load and store vectors."""


def with_declarations(text: str) -> str:
    """Prepend declarations of the vector types that the text names: the parser needs them."""
    return "".join(f"typedef float {name}; " for name in sorted(set(_NAMES.findall(text)))) + text


def move(writer: FunctionText, match: re.Match[str], args: list[Value]) -> Value:
    """Write ``vloadN(i, p)`` or ``vstoreN(value, i, p)``: the i-th vector from p, which may be unaligned."""
    name = match[0]
    store, width = match[1] == "store", int(match[2])
    if len(args) != 2 + store:
        raise CError(f"{name} takes {2 + store} arguments, not {len(args)}")
    index, pointer = args[-2:]
    of = pointer.type.of
    if of not in (FLOAT, DOUBLE) or width not in WIDTHS:
        raise CError(f"{name} takes a pointer to float or double, and 2, 4, 8 or 16 of them")
    kind = vector(of, width)
    address = writer.element(pointer, index, kind)
    if not store:
        return writer.value(f"load {kind.text}, ptr {address}, align {of.bits // 8}", kind)
    if args[0].type != kind:
        raise CError(f"{name} stores {kind.text}, not {args[0].type.text}")
    writer.emit(f"store {kind.text} {args[0].text}, ptr {address}, align {of.bits // 8}")
    return Value("", VOID)
