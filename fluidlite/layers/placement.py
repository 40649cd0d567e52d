"""Where values of a program lie: device_view and device_transfer."""

from __future__ import annotations

from fluidlite.layers.declare import also, layer
from fluidlite.platform.place import Place, PlaceLike
from fluidlite.program.variable import Variable


@layer("device_view", {"place": ""})
def device_view(x: Variable, place: PlaceLike, name: str | None = None) -> Variable:
    """A view of a value, which must lie on ``place`` already: no copy; value and gradient are shared.

    Returns: The same dims and dtype
    Raises: When it is run, if ``x`` lies on another place; :func:`device_transfer` copies it

    >>> device_view(data("x", [2, 4]), "cpu").shape
    (2, 4)
    """
    return also(op_device=str(Place.parse(place)))


@layer("device_transfer", {"place": ""})
def device_transfer(x: Variable, place: PlaceLike, name: str | None = None) -> Variable:
    """Copy a value to a place, and its gradient back.

    Operators run where the executor is, or where ``fluid.device_guard`` says; those that shall run on ``place`` are
    appended inside ``fluid.device_guard(place)``.

    Returns: The same dims and dtype

    >>> device_transfer(data("x", [2, 4]), "cpu").shape
    (2, 4)
    """
    return also(op_device=str(Place.parse(place)))
