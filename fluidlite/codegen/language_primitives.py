"""Scalar primitives and conversions as text of a kernel language's C."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fluidlite.base.dtypes import ALL_INTS, HALVES
from fluidlite.codegen.language_math import NEARBY, math_call
from fluidlite.codegen.primitives import PRIMITIVES


def held(dtype: str, types: Mapping[str, str]) -> str:
    """The type in which a compute dtype's values are held."""
    return str(types["int32" if dtype == "bool" else dtype])


def primitive(
    op: str, names: Sequence[str], dtype: str, types: Mapping[str, str], math: Mapping[str, str], near: bool = False
) -> str:
    """The value of a primitive of values that have names.

    ``dtype``: in which it computes.
    ``near``: whether functions that branch by their argument's size are for arguments that are not large.
    """
    rule = PRIMITIVES[op]
    template = (rule.c_int if dtype in ALL_INTS else "") or rule.c
    kind = held(dtype, types)
    unsigned = types["uint64" if dtype == "int64" else "uint32"]
    text = template.format(**dict(zip("abc", names, strict=False)), T=kind, U=unsigned)

    def called(match: re.Match[str]) -> str:
        function = math_call(match[1], dtype, math)
        return f"({kind})" + (NEARBY.get(function, function) if near else function)

    return re.sub(r"@(\w+)", called, text)


def converted(name: str, given: str, wanted: str, types: Mapping[str, str], rounding: str = "") -> str:
    """A value in another dtype; through a half type, if ``rounding`` is one."""
    if rounding in HALVES:
        return f"fl_load_{rounding}(fl_store_{rounding}({name}))"
    if wanted == "bool":
        return f"({name} != 0)"
    if wanted in ALL_INTS and given.startswith("float"):
        return f"fl_to_{wanted}_{given}({name})"
    return f"({held(wanted, types)}){name}"
