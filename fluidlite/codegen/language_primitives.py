"""C text of scalar primitives and dtype conversions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fluidlite.base.dtypes import ALL_INTS, HALVES
from fluidlite.codegen.language_math import SMALL_ARGUMENT_VARIANTS, math_call
from fluidlite.codegen.primitives import PRIMITIVES


def value_type(dtype: str, types: Mapping[str, str]) -> str:
    """The C type of values in a compute dtype."""
    return str(types["int32" if dtype == "bool" else dtype])


def primitive(
    op: str, names: Sequence[str], dtype: str, types: Mapping[str, str], math: Mapping[str, str], near: bool = False
) -> str:
    """The C text of a primitive applied to named values.

    ``dtype``: the compute dtype.
    ``near``: use the variants for small arguments of functions that branch by the argument's size.
    """
    rule = PRIMITIVES[op]
    template = (rule.c_int if dtype in ALL_INTS else "") or rule.c
    kind = value_type(dtype, types)
    unsigned = types["uint64" if dtype == "int64" else "uint32"]
    text = template.format(**dict(zip("abc", names, strict=False)), T=kind, U=unsigned)

    def called(match: re.Match[str]) -> str:
        function = math_call(match[1], dtype, math)
        return f"({kind})" + (SMALL_ARGUMENT_VARIANTS.get(function, function) if near else function)

    return re.sub(r"@(\w+)", called, text)


def conversion_text(name: str, source: str, target: str, types: Mapping[str, str], rounding: str = "") -> str:
    """The C text of a value converted to another dtype; rounded to the half type ``rounding``, if it is one."""
    if rounding in HALVES:
        return f"fl_load_{rounding}(fl_store_{rounding}({name}))"
    if target == "bool":
        return f"({name} != 0)"
    if target in ALL_INTS and source.startswith("float"):
        return f"fl_to_{target}_{source}({name})"
    return f"({value_type(target, types)}){name}"
