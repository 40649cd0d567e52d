"""The warning of nodes whose operators have no kernel on their place."""

from __future__ import annotations

from fluidlite.compiler.graph_runner import warn_of_fallback as report
from fluidlite.compiler.planning.plan import Plan
from fluidlite.compiler.policy import policy
from fluidlite.platform.place import Place

_warned: set[tuple[Place, str]] = set()


def warn_of_fallback(plan: Plan, place: Place) -> None:
    """Warn, once an operator and place, of operators that run on the host for want of a kernel, as executors do."""
    if policy().fallback != "warn":
        return
    fallen = sorted({line.op.type for line in plan.lines if line.lacks_kernel})
    new = [type for type in fallen if (place, type) not in _warned]
    if not new:
        return
    _warned.update((place, type) for type in new)
    report("operators of nodes", place, new)
