"""``check_gradient``: of programs, graphs and functions, and of operators' samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from fluidlite.conformance.cases import Case, cases_of
from fluidlite.conformance.check import check_sample_gradients
from fluidlite.nodes import Node
from fluidlite.platform.place import PlaceLike
from fluidlite.program.scope import Scope
from fluidlite.program.variable import Variable
from fluidlite.testing.gradient_check import gradient_report
from fluidlite.testing.gradient_report import GradientMismatch, GradientReport


@overload
def check_gradient(subject: Case | str, place: PlaceLike) -> None: ...
@overload
def check_gradient(
    subject: Variable | Node | Callable[..., Any],
    place: PlaceLike = "cpu",
    inputs: Sequence[Any] | None = None,
    *,
    feed: Mapping[Any, Any] | None = None,
    wrt: Sequence[Any] | None = None,
    scope: Scope | None = None,
    rtol: float | None = None,
    elements: int | None = None,
    mode: str = "compiled",
) -> GradientReport: ...
def check_gradient(
    subject: Any,
    place: PlaceLike = "cpu",
    inputs: Sequence[Any] | None = None,
    *,
    feed: Mapping[Any, Any] | None = None,
    wrt: Sequence[Any] | None = None,
    scope: Scope | None = None,
    rtol: float | None = None,
    elements: int | None = None,
    mode: str = "compiled",
) -> GradientReport | None:
    """Hold gradients against central differences.

    Of a program, a graph or a function the differences are of itself, on the place: an element of an input is moved
    four times, and the target is computed with all else as it was: state as at first, and the same random numbers. Of
    a case they are of the operator's float64 reference; all gradients are made together and, where there are several,
    also each alone, since operators leave out the others.

    Parameters
    ----------
    subject : Variable, Node, callable, Case or str
        A target of a Fluid program or of a graph, of any dims; a node (of :mod:`fluidlite.nodes`); a function of graph
        values that returns one; a case; or an operator's type, which means all of its cases.
    place : Place or str
        A node is on its own.
    inputs : sequence of array_like
        The arguments of a function; those that are float are checked.
    feed : mapping of variable or name to array_like
        What a program or graph is fed; arrays are taken in the declared dtypes. State may be given too.
    wrt : sequence of variables or names, optional
        What is checked: fed variables and state. Default: all of them that are float and whose ``stop_gradient`` is
        False (that of ``layers.data`` is True). Of a node: leaves; default: all that have a gradient.
    scope : Scope, optional
        Where a Fluid program's state is, which is copied; default: the global scope. A graph has its initial values.
    rtol : float, optional
        How far both may be apart, relative to the larger of them plus the mean magnitude of the input's gradient; what
        rounding of the target makes of the differences is allowed besides. Default: 1e-6 for inputs in float64, 5e-3 in
        float32, 5e-2 in float16, 1e-1 in bfloat16.
    elements : int, optional
        At most so many elements of each input, drawn at random; default: all.
    mode : {"compiled", "interpreted"}

    Returns
    -------
    GradientReport or None
        Of each input the worst element with both values; None for a case.

    Raises
    ------
    GradientMismatch
        If an element is further apart: its ``report`` says which. A target that does not depend on an input must have
        no differences either: a path that was dropped is found. Paths that stop on purpose (``stop_gradient``) are
        found too; leave their inputs out of ``wrt``.
    ConformanceError
        For a case.
    FluidError
        For an operator without samples, or without a reference.
    GradientError
        If an input can be given no value of its own, or there is no derivative.

    Notes
    -----
    A target of several elements counts as their sum with fixed weights between 1/4 and 7/8, of both signs. A node is
    read twice, so that its gradient is one that adds up; its random nodes draw the same numbers in every run.
    The differences are of fourth order, for functions that are smooth around the inputs: keep them a step (in float32
    1/32 of max(1, abs(element))) away from where a derivative jumps. See G. Dahlquist, A. Bjoerck: Numerical Methods
    in Scientific Computing I (2008), 3.3.
    """
    if not isinstance(subject, (Case, str)):
        report = gradient_report(subject, place, inputs, feed, wrt, scope, rtol, elements, mode)
        if not report.right:
            raise GradientMismatch(report)
        return report
    for one_case in cases_of(subject) if isinstance(subject, str) else [subject]:
        check_sample_gradients(one_case, place)
    return None
