"""Labels of classification losses: which class of each row counts, which rows are ignored."""

from __future__ import annotations

from typing import Any

from fluidlite.plugin import IO, Call, Context

from .common import immediate


class Classes:
    """Reads the integer labels of a loss, one a row, none of which is ignored.

    Parameters
    ----------
    rows, classes : int
    """

    def __init__(self, rows: int, classes: int) -> None:
        self.rows, self.classes = rows, classes

    def read(self, context: Context, io: IO) -> Any:
        """Return labels as int64 of shape (rows,), all of them classes; others are late errors."""
        xp = context.xp
        labels = xp.reshape(io.array("Label"), (self.rows,))
        return context.check_index(xp.astype(labels, xp.int64, copy=False), self.classes, io)


class Labels:
    """Reads the integer labels of a loss, one a row.

    Parameters
    ----------
    call : Call
        Of an operator with slot Label and attribute ``ignore_index``.
    rows, classes : int
    """

    def __init__(self, call: Call, rows: int, classes: int) -> None:
        self.rows, self.classes = rows, classes
        self.ignored: int = call.attr("ignore_index")
        self.ignores_a_class = 0 <= self.ignored < classes

    def read(self, context: Context, io: IO) -> tuple[Any, Any]:
        """Return (labels as int64 of shape (rows,), all of them classes; a mask of the ignored rows, or None).

        On the host the mask is None when no row is ignored. Other labels outside the classes
        are late errors.
        """
        xp = context.xp
        labels = xp.reshape(io.array("Label"), (self.rows,))
        if labels.dtype != xp.int64:
            labels = xp.astype(labels, xp.int64)
        if immediate(context) and not self.ignores_a_class and self._all_classes(xp, labels):
            return labels, None
        ignored = labels == self.ignored
        labels = xp.where(ignored, xp.zeros_like(labels), labels)
        return context.check_index(labels, self.classes, io), ignored

    def _all_classes(self, xp: Any, labels: Any) -> bool:
        """Whether every label is a class, by the ufuncs' own reductions: the usual case takes two short calls."""
        return not self.rows or bool(xp.minimum.reduce(labels) >= 0 and xp.maximum.reduce(labels) < self.classes)

    def positions(self, xp: Any, labels: Any) -> Any:
        """Return where the labelled classes lie in the flattened (rows, classes) array."""
        return xp.arange(0, self.rows * self.classes, self.classes, dtype=labels.dtype) + labels

    def pick(self, xp: Any, array: Any, labels: Any) -> Any:
        """Return array[row, label of the row] as shape (rows,)."""
        return xp.take(xp.reshape(array, (-1,)), self.positions(xp, labels), axis=0)

    def one_hot(self, xp: Any, labels: Any, dtype: Any) -> Any:
        """Return 1 where the class is the row's label, shape (rows, classes)."""
        classes = xp.arange(self.classes, dtype=labels.dtype)
        return xp.astype(classes[None, :] == labels[:, None], dtype)
