"""SelectedRows: rows of a taller tensor, as a scope holds them."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from fluidlite.base.arguments import whole
from fluidlite.base.dtypes import NUMPY
from fluidlite.base.errors import OutOfRangeError, ProgramError
from fluidlite.platform.device_registry import devices
from fluidlite.tensor.tensor import Tensor


class Held(Protocol):
    """What holds the numbers of rows, and beside them the height of the tensor."""

    tensor: Tensor
    number: int | float | None


class SelectedRows:
    """Rows of a taller tensor: Fluid's ``core.SelectedRows``.

    Parameters
    ----------
    rows : list of int
        Which rows; one may come several times, and then its values add up.
    height : int
        Number of rows of the tensor; 0: nobody has said.

    Raises
    ------
    ProgramError
        If ``rows`` are no whole numbers of 0 or more, or ``height`` is none.
    """

    def __init__(self, rows: Iterable[int] = (), height: int = 0) -> None:
        self._values = Tensor()
        self._held: Held = SimpleNamespace(tensor=Tensor(), number=None)  # in no scope
        self.set_height(height)
        self.set_rows(rows)

    @classmethod
    def of(cls, values: Tensor, held: Held, height: int = 0) -> SelectedRows:
        """Those that a scope holds; what is set here is set there."""
        made = cls.__new__(cls)
        made._values, made._held = values, held
        if height:
            held.number = height
        return made

    def rows(self) -> list[int]:
        """Which rows, in the order of the values."""
        found = self._held.tensor
        return [int(row) for row in found.numpy().reshape(-1)] if found.initialized else []

    def set_rows(self, rows: Iterable[int]) -> None:
        """Say which rows the values are."""
        numbers = [whole("a row of SelectedRows", row) for row in rows]
        if any(not 0 <= number < 1 << 63 for number in numbers):
            raise ProgramError(f"the rows of SelectedRows are {numbers!r:.80}; expected numbers of 0 or more")
        self._held.tensor.set(np.array(numbers, np.int64), self._values.place or devices.host())

    def height(self) -> int:
        """Number of rows of the tensor; 0: nobody has said."""
        return int(self._held.number or 0)

    def set_height(self, height: int) -> None:
        """Say how many rows the tensor has."""
        self._held.number = whole("the height of SelectedRows", height, least=0)

    def get_tensor(self) -> Tensor:
        """The values, [count, width]; setting them is seen by the next run."""
        return self._values

    def to_dense(self) -> np.ndarray[Any, Any]:
        """The whole tensor as an array: equal rows added up, 0 in those that are not held.

        Raises
        ------
        ProgramError
            If there are no values, another number of them than of rows, or no height.
        OutOfRangeError
            If a row is not below the height.
        """
        rows, height = self.rows(), self.height()
        if not self._values.initialized or self._values.dims[:1] != (len(rows),) or not height:
            held = list(self._values.dims) if self._values.initialized else "no values"
            raise ProgramError(
                f"SelectedRows of {len(rows)} rows hold {held} and have height {height}; expected a value for each row"
                "\n  Do: set_height, set_rows and get_tensor().set"
            )
        outside = [row for row in rows if row >= height]
        if outside:
            raise OutOfRangeError(f"row {outside[0]} is out of range; expected 0 to {height - 1}")
        values = self._values.numpy()
        whole_tensor = np.zeros((height, *values.shape[1:]), NUMPY[self._values.dtype])
        np.add.at(whole_tensor, np.array(rows, np.int64), values)
        return whole_tensor

    def __repr__(self) -> str:
        return f"SelectedRows(height={self.height()}, rows={self.rows()!r:.60}, values={self._values!r})"
