"""SelectedRows: sparse rows of a taller tensor, in the variables of a scope."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from fluidlite.base.arguments import check_int
from fluidlite.base.dtypes import NUMPY
from fluidlite.base.errors import OutOfRangeError, ProgramError
from fluidlite.platform.device_registry import devices
from fluidlite.tensor.tensor import Tensor


class RowsHolder(Protocol):
    """The holder of the row numbers (``tensor``) and of the tensor's height (``number``)."""

    tensor: Tensor
    number: int | float | None


class SelectedRows:
    """Rows of a taller tensor: Fluid's ``core.SelectedRows``.

    Parameters
    ----------
    rows : list of int
        The row numbers; the values of repeated rows are added up.
    height : int
        Number of rows of the tensor; 0: unknown.

    Raises
    ------
    ProgramError
        If ``rows`` or ``height`` are not integers of 0 or more.
    """

    def __init__(self, rows: Iterable[int] = (), height: int = 0) -> None:
        self._values = Tensor()
        self._holder: RowsHolder = SimpleNamespace(tensor=Tensor(), number=None)  # in no scope
        self.set_height(height)
        self.set_rows(rows)

    @classmethod
    def of(cls, values: Tensor, holder: RowsHolder, height: int = 0) -> SelectedRows:
        """Return the sparse rows of a scope's variables, which share memory with them."""
        selected = cls.__new__(cls)
        selected._values, selected._holder = values, holder
        if height:
            holder.number = height
        return selected

    def rows(self) -> list[int]:
        """Return the row numbers, in the order of the values."""
        numbers = self._holder.tensor
        return [int(row) for row in numbers.numpy().reshape(-1)] if numbers.initialized else []

    def set_rows(self, rows: Iterable[int]) -> None:
        """Set the row numbers of the values."""
        numbers = [check_int("a row of SelectedRows", row) for row in rows]
        if any(not 0 <= number < 1 << 63 for number in numbers):
            raise ProgramError(f"the rows of SelectedRows are {numbers!r:.80}; expected numbers of 0 or more")
        self._holder.tensor.set(np.array(numbers, np.int64), self._values.place or devices.host())

    def height(self) -> int:
        """Return the number of rows of the tensor; 0: unknown."""
        return int(self._holder.number or 0)

    def set_height(self, height: int) -> None:
        """Set the number of rows of the tensor."""
        self._holder.number = check_int("the height of SelectedRows", height, least=0)

    def get_tensor(self) -> Tensor:
        """Return the values, [count, width]; the next run reads new values if they are set."""
        return self._values

    def to_dense(self) -> np.ndarray[Any, Any]:
        """Return the whole tensor as an array: repeated rows are added up, missing rows are 0.

        Raises
        ------
        ProgramError
            If there are no values, another number of them than of rows, or no height.
        OutOfRangeError
            If a row is not below the height.
        """
        rows, height = self.rows(), self.height()
        if not self._values.initialized or self._values.dims[:1] != (len(rows),) or not height:
            shape = list(self._values.dims) if self._values.initialized else "no values"
            raise ProgramError(
                f"SelectedRows of {len(rows)} rows hold {shape} and have height {height}; expected a value for each row"
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
