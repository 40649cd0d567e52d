"""What array calls of an expression are: their source, and what it reads and writes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import dedent, indent
from typing import Any

from fluidlite.base.errors import ProgramError
from fluidlite.codegen.typed import number as typed_number
from fluidlite.expr.number import Number


@dataclass(frozen=True)
class ArrayCode:
    """The array calls of a traced expression.

    ``operands``: slots, and numbers within them: which arrays ``compute`` reads.
    ``numbers``: what ``N`` holds, and the dtype: an integer, or the offsets of a LoD, where the dtype is empty, else a
    number as that dtype stores it.
    ``outputs``: as ``operands``, which arrays ``compute`` writes.
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
        """``N`` for a call whose sizes are all known."""
        found = []
        for each, dtype in self.numbers:
            value = each.evaluate(values)
            if value is None:
                raise ProgramError(f"{each} is not known")
            found.append(typed_number(value, dtype) if dtype else value if each.op == "offsets" else int(value))
        return tuple(found)

    def text(self, name: str, numbers: Sequence[Any]) -> str:
        """A function of NumPy arrays that stands by itself: operands first, then the arrays that it writes.

        What it needs beside Python are ``np``, ``functions``, ``array_functions`` and ``host_context``.
        """
        said = [f"float({str(n)!r})" if isinstance(n, float) and not math.isfinite(n) else repr(n) for n in numbers]
        work = _NUMBER.sub(lambda found: said[int(found[1])], dedent(self.source.partition("\n")[2]).rstrip("\n"))
        for word, full in (("xp", "np"), ("H", "array_functions"), ("F", "functions"), ("io", "None")):
            work = re.sub(rf"(?<![\w.]){word}(?=\W)", full, work)
        if "(context," in work:
            work = f"context = host_context()\n{work}"
        arrays = ", ".join([*array_names(self.operands, self.outputs), *(["K=[]"] if "H.keep(" in self.source else [])])
        return f"def {name}({arrays}):\n    with np.errstate(all='ignore'):\n{indent(work, ' ' * 8)}\n"


_NUMBER = re.compile(r"(?<!\w)N\[(\d+)\]")


def array_names(operands: Sequence[Any], outputs: Sequence[Any]) -> list[str]:
    """The names of the arrays that ``compute`` reads and writes."""
    return [f"a{k}" for k in range(len(operands))] + [f"out{k}" for k in range(len(outputs))]
