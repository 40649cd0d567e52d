"""Declarations of OpenCL's built-in functions, for PoCL, which otherwise parses its whole header for each program.

PoCL puts clang's ``opencl-c.h``, 18,000 lines, before every program: 100 of the 115 ms that a small one takes to build.
The header is empty where ``_OPENCL_H_`` is defined. For each function declared here, all overloads are declared that a
call with scalars can select, with the header's attributes: every call selects the same function as with the header.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

WITHOUT_HEADER = "-D_OPENCL_H_"
"""The build option that leaves the header out."""
_INTEGERS = ("char", "short", "int", "long")
_WIDTHS = (2, 3, 4, 8, 16)
_SPACES = ("__global", "__local", "__private", "__constant")
_MOVED = re.compile(r"(vload|vstore)(\d+)")
_PARAMETERS = {"fmod": 2, "pow": 2, "fma": 3}


def reads_header(device: Any) -> bool:
    """Whether this is PoCL on a CPU."""
    names: tuple[str, str] = device.name, device.platform.name
    return names[0].startswith(("pthread", "basic", "cpu")) and names[1] == "Portable Computing Language"


def declarations(source: str, types: Mapping[str, str], math: Mapping[str, str | None]) -> str:
    """Return declarations of the types, and of the functions that ``source`` may call.

    ``types``, ``math``: the kernel language's types, and its functions of floats.
    """
    floats = [name for name in ("float", "double") if name in types.values()]
    stored = [*_INTEGERS, *(f"u{name}" for name in _INTEGERS), *floats]
    lines = ["#pragma OPENCL EXTENSION cl_khr_fp64 : enable"] if "double" in floats else []
    lines.append(
        "#pragma GCC poison half"
    )  # no function here has an overload for half: a program that uses it needs the header
    lines += [f"typedef unsigned {name} u{name};" for name in _INTEGERS]
    lines += [f"typedef {name} {name}{n} __attribute__((ext_vector_type({n})));" for name in stored for n in _WIDTHS]
    lines.append("typedef __SIZE_TYPE__ size_t;")
    lines += [_declaration("size_t", name, "uint", "const") for name in ("get_global_id", "get_local_id")]
    lines.append(_declaration("void", "barrier", "uint", "convergent"))
    functions = {name for name in math.values() if name is not None}
    for name in sorted(set(re.findall(r"\w+", source))):
        if name in functions:
            lines += _function(name, floats)
        elif (moved := _MOVED.fullmatch(name)) is not None:
            lines += _vector_moves(name, int(moved[2]), stored)
    return "\n".join(lines) + "\n"


def _function(name: str, floats: list[str]) -> Iterator[str]:
    for scalar in floats:
        for kind in (scalar, *(f"{scalar}{width}" for width in _WIDTHS)):
            yield _declaration(kind, name, ", ".join([kind] * _PARAMETERS.get(name, 1)), "const")


def _vector_moves(name: str, width: int, stored: list[str]) -> Iterator[str]:
    for kind in stored:
        for space in _SPACES:
            if name.startswith("vload"):
                yield _declaration(f"{kind}{width}", name, f"size_t, const {space} {kind}*", "pure")
            elif space != "__constant":
                yield _declaration("void", name, f"{kind}{width}, size_t, {space} {kind}*")


def _declaration(result: str, name: str, parameters: str, *attributes: str) -> str:
    return f"{result} __attribute__(({', '.join(('overloadable', *attributes))})) {name}({parameters});"
