"""A generated kernel of array calls as a function that stands by itself, with its sizes and numbers in its text."""

from __future__ import annotations

import re
from typing import Any

from fluidlite.codegen.array import Emitted, Layout
from fluidlite.codegen.typed import Typed

_FUNCTION = re.compile(r"env\.function\('(\w+)'\)")
_HELPER = re.compile(r"env\.helper\('(\w+)'\)")
_DTYPE = re.compile(r"env\.dtype\('(\w+)'\)")
_SPREAD = re.compile(r"env\.spread\((\w+)\)")
_NUMBER = re.compile(r"(t_\w+)\((.+)\)")
_OFFSET = re.compile(r"\boffsets\[(\d+)\]")
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")


def operand_names(code: Typed, layout: Layout) -> dict[int, str]:
    """Names of a function's operands, by position in ``io.tensors``: ``in0``, ... are read, ``out0``, ... written."""
    written = {slot for slot, _, _ in code.outputs}
    found: dict[int, str] = {}
    counts = {"in": 0, "out": 0}
    for slot, position in sorted(layout.positions.items(), key=lambda item: item[1]):
        kind = "out" if slot in written else "in"
        found[position] = f"{kind}{counts[kind]}"
        counts[kind] += 1
    return found


def function_text(name: str, code: Typed, layout: Layout, emitted: Emitted, env: Any) -> tuple[str, dict[int, str]]:
    """Write a kernel of the ``out`` style as a function of arrays.

    Its lines are those that run. What it needs beside Python are ``np``, ``functions`` (fluidlite's, of the same
    name in ``codegen``), ``ml_dtypes`` and ``host_function`` (a function that the host's device brings).

    Returns the text, and parameters by their position in ``io.tensors``, in order. After them come ``workspace``
    (bytes) and ``random`` (Philox words), where the text names them.
    """
    operands = operand_names(code, layout)
    words, first = _words(emitted, env)

    def said(line: str) -> str:
        line = _OFFSET.sub(lambda match: str(env.offsets[int(match[1])]), line)
        line = line.replace("io.workspace.native()", "workspace").replace("io.random", "random")
        return _WORD.sub(lambda match: words.get(match[0], match[0]), line)

    lines = [said(line) for line in first]
    arrays = [(f"a{i}", instr.value) for i, instr in enumerate(code.instrs) if instr.op == "input"]
    arrays += [(f"o{k}", slot) for k, (slot, _, _) in enumerate(code.outputs)]
    for array, slot in arrays:
        operand = operands[layout.positions[slot]]
        if layout.natural:
            words[array] = operand
        else:
            lines.append(f"{array} = {operand}.reshape({env.shapes[slot]!r})")
    for there, slots in emitted.there:
        given, made = (operands[layout.positions[slot]] for slot in slots)
        lines.append(f"{there} = {given} is {made}")
    lines += [said(line) for line in emitted.lines]
    text = "\n".join(lines)
    parameters = [*operands.values(), *(each for each in ("workspace", "random") if re.search(rf"\b{each}\b", text))]
    return "\n".join([f"def {name}({', '.join(parameters)}):", *(f"    {line}" for line in lines)]) + "\n", operands


def _words(emitted: Emitted, env: Any) -> tuple[dict[str, str], list[str]]:
    """What stands for each name that the text takes from its environment; and lines that make numbers."""
    words: dict[str, str] = {}
    first: list[str] = []
    for name, expression in emitted.bound:
        if found := _DTYPE.fullmatch(expression):
            words[name] = f"ml_dtypes.{found[1]}" if found[1] == "bfloat16" else f"np.{found[1]}"
        elif found := _HELPER.fullmatch(expression):
            words[name] = f"functions.{found[1]}"
        elif found := _FUNCTION.match(expression):
            function = "host_function('where')" if found[1] == "where" else f"np.{found[1]}"
            words[name] = function + expression[found.end() :]
        elif expression == "env.xp":
            words[name] = "np"
        elif expression == "env.reshape":
            words[name] = "np.reshape"
        elif found := _SPREAD.fullmatch(expression):
            volume, dims = (env.volume, env.block) if env.blocked else (env.size, env.dims)
            first.append(f"{name} = np.full({volume}, {found[1]}, {found[1]}.dtype).reshape({dims!r})")
        elif found := _NUMBER.fullmatch(expression):
            number = repr(eval(found[2], {"env": env}))
            number = f"float({number!r})" if number in ("inf", "-inf", "nan") else number
            first.append(f"{name} = {words[found[1]]}({number})")
        else:
            words[name] = repr(eval(expression, {"env": env}))
    return words, first
