"""The types of the C subset, their LLVM types, and C's rules of conversion."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Type:
    """A C type.

    ``text``: the LLVM type.
    ``kind``: bool (a comparison's result, in C an int), int, float, vector, pointer, array, union or void.
    ``of``: the element type of a pointer, array or vector.
    ``count``: of an array or vector; ``restrict``: of a pointer; ``members``: types by name, of a union.
    """

    text: str
    kind: str
    bits: int = 0
    signed: bool = False
    of: Type | None = None
    count: int = 0
    restrict: bool = False
    members: tuple[tuple[str, Type], ...] = ()

    @property
    def scalar(self) -> bool:
        """Whether the type is arithmetic: a bool, an integer or a float."""
        return self.kind in ("bool", "int", "float")


class Value(NamedTuple):
    """A value: its text in LLVM IR, and its type."""

    text: str
    type: Type


VOID = Type("void", "void")
BOOL = Type("i1", "bool", 1)
INT = Type("i32", "int", 32, True)
UINT = Type("i32", "int", 32)
LONG = Type("i64", "int", 64, True)
ULONG = Type("i64", "int", 64)
FLOAT = Type("float", "float", 32)
DOUBLE = Type("double", "float", 64)

NAMED = {
    "void": VOID,
    "char": Type("i8", "int", 8, True),
    "signed char": Type("i8", "int", 8, True),
    "unsigned char": Type("i8", "int", 8),
    "short": Type("i16", "int", 16, True),
    "unsigned short": Type("i16", "int", 16),
    "int": INT,
    "unsigned int": UINT,
    "unsigned": UINT,
    "long": LONG,
    "unsigned long": ULONG,
    "float": FLOAT,
    "double": DOUBLE,
}


def pointer(of: Type, restrict: bool = False) -> Type:
    return Type("ptr", "pointer", 64, of=of, restrict=restrict)


def array(of: Type, count: int) -> Type:
    return Type(f"[{count} x {of.text}]", "array", of=of, count=count)


def promoted(kind: Type) -> Type:
    """Return the type after C's integer promotion: int for smaller integers."""
    return INT if kind.kind == "bool" or (kind.kind == "int" and kind.bits < 32) else kind


def common(one: Type, other: Type) -> Type:
    """Return the common type of two numbers by C's usual arithmetic conversions."""
    one, other = promoted(one), promoted(other)
    if "float" in (one.kind, other.kind):
        return max((k for k in (one, other) if k.kind == "float"), key=lambda kind: kind.bits)
    if one.bits != other.bits:
        return max(one, other, key=lambda kind: kind.bits)
    return other if one.signed else one


def real(value: float, kind: Type) -> str:
    """Return LLVM's text of a floating-point constant: the bits of a double."""
    if kind.bits == 32:
        (value,) = struct.unpack("<f", struct.pack("<f", value))
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def number(text: str) -> Value:
    """Parse a numeric constant of C; raises ValueError if the text is none."""
    lowered = text.lower()
    hexadecimal = lowered.startswith("0x")
    if not hexadecimal and any(mark in lowered for mark in ".ef"):
        kind = FLOAT if lowered.endswith("f") else DOUBLE
        return Value(real(float(lowered.rstrip("fl")), kind), kind)
    digits = lowered.rstrip("ul")
    suffix = lowered[len(digits) :]
    octal = len(digits) > 1 and digits[0] == "0" and not hexadecimal
    value = int(digits, 8 if octal else 0)
    unsigned, wide = "u" in suffix, "l" in suffix
    if unsigned or (hexadecimal and 2**31 <= value < 2**32 and not wide) or value >= 2**63:
        kind = UINT if value < 2**32 and not wide else ULONG
    else:
        kind = INT if value < 2**31 and not wide else LONG
    return Value(str(value), kind)
