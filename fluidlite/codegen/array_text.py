"""Writes a generated kernel of array calls as a standalone function, with sizes and numbers in its text."""

from __future__ import annotations

import re
from typing import Any

from fluidlite.codegen.array import ArrayLayout, Emitted
from fluidlite.codegen.typed import Typed

_FUNCTION = re.compile(r"env\.function\('(\w+)'\)")
_HELPER = re.compile(r"env\.helper\('(\w+)'\)")
_DTYPE = re.compile(r"env\.dtype\('(\w+)'\)")
_SPREAD = re.compile(r"env\.spread\((\w+)\)")
_NUMBER = re.compile(r"(t_\w+)\((.+)\)")
_OFFSET = re.compile(r"\boffsets\[(\d+)\]")
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")


def operand_names(code: Typed, layout: ArrayLayout) -> dict[int, str]:
    """The names of a function's operands by index in ``io.tensors``: ``in0``, ... are read, ``out0``, ... written."""
    written = {slot for slot, _, _ in code.outputs}
    names: dict[int, str] = {}
    counts = {"in": 0, "out": 0}
    for slot, position in sorted(layout.positions.items(), key=lambda item: item[1]):
        kind = "out" if slot in written else "in"
        names[position] = f"{kind}{counts[kind]}"
        counts[kind] += 1
    return names


def function_text(
    name: str, code: Typed, layout: ArrayLayout, emitted: Emitted, env: Any
) -> tuple[str, dict[int, str]]:
    """Write a kernel of the ``out`` style as a function of arrays.

    Its lines are those of the kernel. Its globals are ``np``, ``functions`` (the module of that name in
    ``fluidlite.codegen``), ``ml_dtypes`` and ``host_function`` (a function that the host's device provides).

    Returns the text, and the parameters by their index in ``io.tensors``, in order. After these come ``workspace``
    (bytes) and ``random`` (Philox words), if the text uses them.
    """
    operands = operand_names(code, layout)
    replacements, first = _replacements(emitted, env)

    def resolved(line: str) -> str:
        line = _OFFSET.sub(lambda match: str(env.offsets[int(match[1])]), line)
        line = line.replace("io.workspace.native()", "workspace").replace("io.random", "random")
        return _WORD.sub(lambda match: replacements.get(match[0], match[0]), line)

    lines = [resolved(line) for line in first]
    arrays = [(f"a{i}", instr.value) for i, instr in enumerate(code.instrs) if instr.op == "input"]
    arrays += [(f"o{k}", slot) for k, (slot, _, _) in enumerate(code.outputs)]
    for array, slot in arrays:
        operand = operands[layout.positions[slot]]
        if layout.natural:
            replacements[array] = operand
        else:
            lines.append(f"{array} = {operand}.reshape({env.shapes[slot]!r})")
    for flag, slots in emitted.alias_flags:
        source, target = (operands[layout.positions[slot]] for slot in slots)
        lines.append(f"{flag} = {source} is {target}")
    lines += [resolved(line) for line in emitted.lines]
    text = "\n".join(lines)
    parameters = [*operands.values(), *(each for each in ("workspace", "random") if re.search(rf"\b{each}\b", text))]
    return "\n".join([f"def {name}({', '.join(parameters)}):", *(f"    {line}" for line in lines)]) + "\n", operands


def _replacements(emitted: Emitted, env: Any) -> tuple[dict[str, str], list[str]]:
    """The replacement of each name that the text takes from its environment, and the lines that create numbers."""
    replacements: dict[str, str] = {}
    first: list[str] = []
    for name, expression in emitted.bound:
        if match := _DTYPE.fullmatch(expression):
            replacements[name] = f"ml_dtypes.{match[1]}" if match[1] == "bfloat16" else f"np.{match[1]}"
        elif match := _HELPER.fullmatch(expression):
            replacements[name] = f"functions.{match[1]}"
        elif match := _FUNCTION.match(expression):
            function = "host_function('where')" if match[1] == "where" else f"np.{match[1]}"
            replacements[name] = function + expression[match.end() :]
        elif expression == "env.xp":
            replacements[name] = "np"
        elif expression == "env.reshape":
            replacements[name] = "np.reshape"
        elif match := _SPREAD.fullmatch(expression):
            volume, dims = (env.volume, env.block) if env.blocked else (env.size, env.dims)
            first.append(f"{name} = np.full({volume}, {match[1]}, {match[1]}.dtype).reshape({dims!r})")
        elif match := _NUMBER.fullmatch(expression):
            number = repr(eval(match[2], {"env": env}))
            number = f"float({number!r})" if number in ("inf", "-inf", "nan") else number
            first.append(f"{name} = {replacements[match[1]]}({number})")
        else:
            replacements[name] = repr(eval(expression, {"env": env}))
    return replacements, first
