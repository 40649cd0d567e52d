"""What a check of gradients found: the worst element of each input, as text and as an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fluidlite.conformance.tolerances import ConformanceError


class ElementGradient(NamedTuple):
    """What was found of the gradient with respect to one element.

    Attributes
    ----------
    at : tuple of int
        Its index.
    gradient, difference : float
    wrong : bool
        Whether they are further apart than is allowed.
    """

    at: tuple[int, ...]
    gradient: float
    difference: float
    wrong: bool


@dataclass(frozen=True)
class InputGradient:
    """What was found of the gradient with respect to one input.

    Attributes
    ----------
    name, dtype : str
    dims : tuple of int
    compared : int
        How many elements.
    index : tuple of int
        The worst element: where both values are furthest apart in units of what is allowed.
    gradient, difference : float
        Both values there: the program's gradient, and the central difference.
    error : float
        Their distance, relative to the larger of them plus the mean magnitude of the input's gradient.
    wrong : int
        How many elements are further apart than is allowed.
    resolution : float
        The distance that rounding of the target alone may make in the worst element.
    elements : tuple of ElementGradient
        All that were compared.
    """

    name: str
    dtype: str
    dims: tuple[int, ...]
    compared: int
    index: tuple[int, ...]
    gradient: float
    difference: float
    error: float
    wrong: int
    resolution: float
    elements: tuple[ElementGradient, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        if not self.compared:
            return f"{self.name} {self.dtype}{list(self.dims)}: no elements"
        return (
            f"{self.name} {self.dtype}{list(self.dims)}: {self.wrong} of {self.compared} wrong; worst at "
            f"{list(self.index)}: gradient {self.gradient:.9g}, difference {self.difference:.9g}, "
            f"relative error {self.error:.2g} (differences resolve {self.resolution:.2g})"
        )


@dataclass(frozen=True)
class GradientReport:
    """The answer of :func:`check_gradient`; its text has a line an input.

    Attributes
    ----------
    target, place : str
    rtol : dict of dtype to float
        The relative tolerance of the gradients of inputs of that dtype.
    inputs : tuple of InputGradient
    """

    target: str
    place: str
    rtol: Mapping[str, float]
    inputs: tuple[InputGradient, ...]

    @property
    def worst(self) -> InputGradient:
        """The input with the largest relative error."""
        return max(self.inputs, key=lambda found: (found.wrong > 0, found.error))

    @property
    def right(self) -> bool:
        """Whether every element is as near as is allowed."""
        return not any(found.wrong for found in self.inputs)

    def table(self) -> str:
        """A line an element: its index, the gradient and the central difference, and whether they are too far apart."""
        lines = []
        for found in self.inputs:
            lines.append(f"{found.name} {found.dtype}{list(found.dims)}")
            for each in found.elements:
                mark = "  wrong" if each.wrong else ""
                lines.append(f"  {list(each.at)!s:12} {each.gradient:14.6g} {each.difference:14.6g}{mark}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return "\n".join([f"gradient of {self.target} on {self.place}", *(f"  {found}" for found in self.inputs)])


class GradientMismatch(ConformanceError):
    """A gradient is not what differences of the target say; ``report`` has both.

    Attributes
    ----------
    report : GradientReport
    """

    def __init__(self, report: GradientReport) -> None:
        super().__init__(str(report))
        self.report = report
