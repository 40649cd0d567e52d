"""The state of the array code writer: names, numbers and lines of the generated function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from fluidlite.expr.number import Number, number as as_number
from fluidlite.expr.tensor import Tensor
from fluidlite.render.buffers import Buffers
from fluidlite.render.readers import without_broadcast


class ArrayText:
    """Writes tensors, numbers and outputs as text.

    ``users``: the readers of each tensor (None: it is a result).
    ``stored``: the dtypes of output arrays, as far as they are known.
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
        self.number_table: list[tuple[Number, str]] = []
        self.operands: list[tuple[str, int]] = []
        self.writing: tuple[Tensor, str] | None = None
        self.constant_lines = 0, 0
        self.constant: Mapping[Tensor, None] = {}
        self.safe_indices: dict[Tensor, str] = {}
        self.targets: dict[str, str] = {}
        self.has_full_dims: dict[Tensor, bool] = {}

    def into(self, x: Tensor) -> str:
        """The argument with the output array of a tensor, for functions that can write to it; else ``""``."""
        return f", {self.writing[1]}" if self.writing is not None and self.writing[0] is x else ""

    def number(self, value: Number, dtype: str = "") -> str:
        """The text of a number of the call."""
        if value.op == "const" and not dtype:
            return repr(int(value.value))
        key = (value.key, dtype)
        if key not in self.numbers:
            self.numbers[key] = len(self.number_table)
            self.number_table.append((value, dtype))
        return f"N[{self.numbers[key]}]"

    def sizes(self, values: Sequence[Number | int]) -> str:
        return "(" + "".join(f"{self.number(as_number(v))}, " for v in values) + ")"

    def value(self, x: Tensor) -> str:
        """The text of a tensor as an array; a number becomes a 0-d array."""
        if x.op != "number":
            return self.names[x]
        like = "a0" if self.operands else "out0"
        return f"H.full(xp, (), {self.number(x.params[0], x.dtype)}, {x.dtype!r}, {like})"

    def target(self, array: str, x: Tensor) -> str:
        """The ``out`` argument of NumPy for an elementwise tensor: the array, if it has the tensor's dtype."""
        return array if self.stored.get(array) == x.dtype else f"H.target({array}, {x.dtype!r})"

    def _part(self, text: str) -> str:
        if text not in self.parts:
            self.parts[text] = f"p{len(self.parts) + 1}"
            self.lines.append(f"{self.parts[text]} = {text}")
        return self.parts[text]

    def _broadcastable(self, arg: Tensor, x: Tensor) -> str:
        """The array of an operand whose reader broadcasts it implicitly."""
        name = self.names[arg]
        return self.names[without_broadcast(arg, x)] if name == "None" else name
