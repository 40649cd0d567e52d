"""``check_gradient``: checks of gradients of programs, graphs, functions, nodes and operators' samples."""

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
    """Check gradients against central differences.

    For a program, a graph or a function, the differences are of itself, on the place: an element of an input is
    perturbed four times, and the target is computed with everything else unchanged: the initial state and the same
    random numbers. For a case they are of the operator's float64 reference; all gradients are computed together and, if
    there are several, also each alone, since operators may leave out the others.

    Parameters
    ----------
    subject : Variable, Node, callable, Case or str
        A target of a Fluid program or of a graph, of any dims; a node (of :mod:`fluidlite.nodes`); a function of graph
        values that returns one; a case; or an operator's type, for all of its cases.
    place : Place or str
        Ignored for a node, which has a place.
    inputs : sequence of array_like
        The arguments of a function; float ones are checked.
    feed : mapping of variable or name to array_like
        The feed of a program or graph; arrays are converted to the declared dtypes. It may contain state.
    wrt : sequence of variables or names, optional
        Fed variables and state to check. Default: all float ones with ``stop_gradient`` False (that of ``layers.data``
        is True). For a node: leaves; default: all that have a gradient.
    scope : Scope, optional
        The scope of a Fluid program's state, which is copied; default: the global scope. A graph uses initial values.
    rtol : float, optional
        The tolerance relative to the larger value plus the mean magnitude of the input's gradient; the effect of
        rounding of the target on the differences is added. Default: 1e-6 for inputs in float64, 5e-3 in float32, 5e-2
        in float16, 1e-1 in bfloat16.
    elements : int, optional
        Maximum number of elements of each input, drawn at random; default: all.
    mode : {"compiled", "interpreted"}

    Returns
    -------
    GradientReport or None
        The worst element of each input with both values; None for a case.

    Raises
    ------
    GradientMismatch
        If an element differs by more than the tolerance; ``report`` has the details. For a target that does not depend
        on an input the differences must be 0, so that missing gradient paths are found. Paths that stop on purpose
        (``stop_gradient``) are reported too; leave their inputs out of ``wrt``.
    ConformanceError
        For a case.
    FluidError
        For an operator without samples, or without a reference.
    GradientError
        If an input cannot be changed by itself, or there is no derivative.

    Notes
    -----
    A target of several elements is reduced to their sum with fixed weights of magnitude 1/4 to 7/8. A node is read
    twice, so that its gradient accumulates; its random nodes draw the same numbers in every run.
    The differences are of fourth order, for functions that are smooth around the inputs: keep them a step (in float32
    1/32 of max(1, abs(element))) away from where a derivative jumps. See G. Dahlquist, A. Bjoerck: Numerical Methods
    in Scientific Computing I (2008), 3.3.
    """
    if not isinstance(subject, (Case, str)):
        report = gradient_report(subject, place, inputs, feed, wrt, scope, rtol, elements, mode)
        if not report.right:
            raise GradientMismatch(report)
        return report
    for case in cases_of(subject) if isinstance(subject, str) else [subject]:
        check_sample_gradients(case, place)
    return None
