"""The report of a gradient check: the worst element of each input, as text and as an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fluidlite.conformance.tolerances import ConformanceError


class ElementGradient(NamedTuple):
    """The result for one element of an input.

    Attributes
    ----------
    at : tuple of int
        The element's index.
    gradient, difference : float
    wrong : bool
        Whether they differ by more than the tolerance.
    """

    at: tuple[int, ...]
    gradient: float
    difference: float
    wrong: bool


@dataclass(frozen=True)
class InputGradient:
    """The result for one input.

    Attributes
    ----------
    name, dtype : str
    dims : tuple of int
    compared : int
        Number of compared elements.
    index : tuple of int
        The worst element: its difference is the largest multiple of its tolerance.
    gradient, difference : float
        Both values there: the program's gradient, and the central difference.
    error : float
        Their distance, relative to the larger of them plus the mean magnitude of the input's gradient.
    wrong : int
        Number of elements that differ by more than the tolerance.
    resolution : float
        The difference that rounding of the target alone may cause in the worst element.
    elements : tuple of ElementGradient
        All compared elements.
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
    """The result of :func:`check_gradient`; its text has a line an input.

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
        return max(self.inputs, key=lambda result: (result.wrong > 0, result.error))

    @property
    def right(self) -> bool:
        """Whether every element is within the tolerance."""
        return not any(result.wrong for result in self.inputs)

    def table(self) -> str:
        """A line an element: its index, the gradient, the central difference, and whether they differ."""
        lines = []
        for result in self.inputs:
            lines.append(f"{result.name} {result.dtype}{list(result.dims)}")
            for element in result.elements:
                mark = "  wrong" if element.wrong else ""
                lines.append(f"  {list(element.at)!s:12} {element.gradient:14.6g} {element.difference:14.6g}{mark}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return "\n".join([f"gradient of {self.target} on {self.place}", *(f"  {result}" for result in self.inputs)])


class GradientMismatch(ConformanceError):
    """A gradient differs from the central differences of the target; ``report`` has both.

    Attributes
    ----------
    report : GradientReport
    """

    def __init__(self, report: GradientReport) -> None:
        super().__init__(str(report))
        self.report = report
