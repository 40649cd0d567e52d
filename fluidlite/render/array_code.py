"""The generated array code of an expression: Python source with its operands, outputs and numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import dedent, indent
from typing import Any

from fluidlite.base.errors import ProgramError
from fluidlite.codegen.typed import converted_number as typed_number
from fluidlite.expr.number import Number


@dataclass(frozen=True)
class ArrayCode:
    """The array calls of a traced expression.

    ``operands``: (slot, number) of each array that ``compute`` reads.
    ``numbers``: the numbers in ``N`` with their dtypes; an empty dtype stands for integers and offsets of a LoD.
    ``outputs``: (slot, number) of each array that ``compute`` writes.
    """

    source: str
    operands: tuple[tuple[str, int], ...]
    numbers: tuple[tuple[Number, str], ...]
    outputs: tuple[tuple[str, int], ...]

    def function(self) -> Callable[..., Any]:
        """The compiled source."""
        namespace: dict[str, Any] = {}
        exec(compile(self.source, "<fluidlite expression>", "exec"), namespace)
        return namespace["compute"]  # type: ignore[no-any-return]

    def values(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """The numbers ``N`` of a call whose sizes are all known."""
        evaluated = []
        for each, dtype in self.numbers:
            value = each.evaluate(values)
            if value is None:
                raise ProgramError(f"{each} is not known")
            evaluated.append(typed_number(value, dtype) if dtype else value if each.op == "offsets" else int(value))
        return tuple(evaluated)

    def text(self, name: str, numbers: Sequence[Any]) -> str:
        """A standalone function of NumPy arrays: operands first, then the arrays that it writes.

        It imports nothing, and uses ``np``, ``functions``, ``array_functions`` and ``host_context``.
        """
        texts = [f"float({str(n)!r})" if isinstance(n, float) and not math.isfinite(n) else repr(n) for n in numbers]
        body = _NUMBER.sub(lambda match: texts[int(match[1])], dedent(self.source.partition("\n")[2]).rstrip("\n"))
        for short, name_in_text in (("xp", "np"), ("H", "array_functions"), ("F", "functions"), ("io", "None")):
            body = re.sub(rf"(?<![\w.]){short}(?=\W)", name_in_text, body)
        if "(context," in body:
            body = f"context = host_context()\n{body}"
        arrays = ", ".join([*array_names(self.operands, self.outputs), *(["K=[]"] if "H.keep(" in self.source else [])])
        return f"def {name}({arrays}):\n    with np.errstate(all='ignore'):\n{indent(body, ' ' * 8)}\n"


_NUMBER = re.compile(r"(?<!\w)N\[(\d+)\]")


def array_names(operands: Sequence[Any], outputs: Sequence[Any]) -> list[str]:
    """The names of the arrays that ``compute`` reads and writes."""
    return [f"a{k}" for k in range(len(operands))] + [f"out{k}" for k in range(len(outputs))]
