"""The warning of nodes whose operators have no kernel on their place."""

from __future__ import annotations

from fluidlite.compiler.graph_runner import warn_of_fallback as report
from fluidlite.compiler.planning.plan import Plan
from fluidlite.compiler.policy import policy
from fluidlite.platform.place import Place

_warned: set[tuple[Place, str]] = set()


def warn_of_fallback(plan: Plan, place: Place) -> None:
    """Warn once for each operator and place of operators that run on the host because the place has no kernel."""
    if policy().fallback != "warn":
        return
    host_types = sorted({line.op.type for line in plan.lines if line.lacks_kernel})
    new_types = [type for type in host_types if (place, type) not in _warned]
    if not new_types:
        return
    _warned.update((place, type) for type in new_types)
    report("operators of nodes", place, new_types)
