"""The names, numbers and lines of a function that is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from fluidlite.expr.number import Number, number as as_number
from fluidlite.expr.tensor import Tensor
from fluidlite.render.buffers import Buffers
from fluidlite.render.readers import unspread


class ArrayText:
    """Text of tensors, numbers and places in memory; ``users`` says who reads a tensor (None: it is a result).

    ``stored``: the dtypes of the arrays that are written, as far as they are known.
    """

    def __init__(
        self,
        users: Mapping[Tensor, Sequence[Tensor | None]],
        buffers: Buffers | None,
        stored: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.users, self.buffers, self.stored = users, buffers, stored
        self.lines: list[str] = []
        self.parts: dict[str, str] = {}
        self.names: dict[Tensor, str] = {}
        self.numbers: dict[tuple[str, str], int] = {}
        self.kept: list[tuple[Number, str]] = []
        self.operands: list[tuple[str, int]] = []
        self.writing: tuple[Tensor, str] | None = None
        self.constant_lines = 0, 0
        self.constant: Mapping[Tensor, None] = {}
        self.ready: dict[Tensor, str] = {}
        self.targets: dict[str, str] = {}
        self.whole: dict[Tensor, bool] = {}

    def into(self, x: Tensor) -> str:
        """The array that is to hold a tensor, for a function that may write there."""
        return f", {self.writing[1]}" if self.writing is not None and self.writing[0] is x else ""

    def number(self, value: Number, dtype: str = "") -> str:
        """A number of the call, as text."""
        if value.op == "const" and not dtype:
            return repr(int(value.value))
        key = (value.key, dtype)
        if key not in self.numbers:
            self.numbers[key] = len(self.kept)
            self.kept.append((value, dtype))
        return f"N[{self.numbers[key]}]"

    def sizes(self, values: Sequence[Number | int]) -> str:
        return "(" + "".join(f"{self.number(as_number(v))}, " for v in values) + ")"

    def value(self, x: Tensor) -> str:
        """A tensor as an array, numbers too."""
        if x.op != "number":
            return self.names[x]
        like = "a0" if self.operands else "out0"
        return f"H.full(xp, (), {self.number(x.params[0], x.dtype)}, {x.dtype!r}, {like})"

    def target(self, array: str, x: Tensor) -> str:
        """What NumPy writes of an elementwise tensor: the array, if it has the tensor's dtype."""
        return array if self.stored.get(array) == x.dtype else f"H.target({array}, {x.dtype!r})"

    def _part(self, text: str) -> str:
        if text not in self.parts:
            self.parts[text] = f"p{len(self.parts) + 1}"
            self.lines.append(f"{self.parts[text]} = {text}")
        return self.parts[text]

    def _reached(self, arg: Tensor, x: Tensor) -> str:
        """The array of an operand, that may be broadcast by whoever reads it."""
        name = self.names[arg]
        return self.names[unspread(arg, x)] if name == "None" else name
