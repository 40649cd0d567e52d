"""Which test cases run, and how processes share them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from grouped import Group
from xdist.scheduler import LoadScopeScheduling

BY_CASE = ("tests/operators/test_samples.py", "tests/places/test_llvm.py", "tests/places/test_loops.py")
"""Files whose cases build kernels of their own for minutes: a process that had one to itself would end last."""
LONG = (
    "tests/operators/test_rank0.py", "tests/end_to_end/", "tests/mutation/", "tests/hostile/", "tests/docs/",
)  # fmt: skip
"""Where few cases take long: if they started last, the other processes would wait for them."""
ON_THE_CPU = "test_conforms_on_the_cpu["
"""Cases of the cpu whose parameters name no place."""
OPERATORS = ("op", "operator", "type", "group")
"""Parameters of tests that say which operator a case is about."""


def rank(nodeid: str) -> int:
    """When a case runs: 0 first, 2 last."""
    return 0 if nodeid.startswith(LONG) else 2 if nodeid.startswith(BY_CASE) else 1


class OperatorScheduling(LoadScopeScheduling):
    """As ``--dist loadfile``, ordered by :func:`rank`; the files of :data:`BY_CASE` are shared a case at a time."""

    def __init__(self, config: Any, log: Any = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False
        self._indices: dict[Any, dict[str, int]] = {}

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Forget a file, or case, that is done: to count what is left, all that a process was given is looked at."""
        scope = self._split_scope(self.registered_collections[node][item_index])
        super().mark_test_complete(node, item_index, duration)
        if all(self.assigned_work[node][scope].values()):
            del self.assigned_work[node][scope]

    def _assign_work_unit(self, node: Any) -> None:
        """As it was, but with a table of where each case is in the collection, instead of a search for each."""
        scope, work_unit = self.workqueue.popitem(last=False)
        self.assigned_work.setdefault(node, {})[scope] = work_unit
        if node not in self._indices:
            self._indices[node] = {nodeid: i for i, nodeid in enumerate(self.registered_collections[node])}
        indices = self._indices[node]
        node.send_runtest_some([indices[nodeid] for nodeid, completed in work_unit.items() if not completed])

    def _split_scope(self, nodeid: str) -> str:
        file, _, rest = nodeid.partition("::")
        return nodeid if file in BY_CASE and "[" in rest else file


def operator_of(parameters: Mapping[str, Any]) -> str | None:
    """The operator that a case's parameters name, its gradient counted as itself; None if they name none."""
    for name in OPERATORS:
        if (value := parameters.get(name)) is None:
            continue
        first = value[0] if isinstance(value, list) and value else value
        text = getattr(first, "operator", None) or getattr(first, "type", first)
        if isinstance(text, str):
            return text.removesuffix("_grad")
    return None


def place_of(parameters: Mapping[str, Any]) -> str | None:
    """The place that a case's parameters name; None if they name none."""
    value = parameters.get("place")
    return None if value is None else str(value).removesuffix(":0")


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the cases of the operators of ``--op``, and of the places of ``--place``; those that name none go.

    Of a case of several checks only the checks of these are left.

    Raises
    ------
    pytest.UsageError
        No case names such an operator or place.
    """
    operators = {name.removesuffix("_grad") for name in config.getoption("op") or ()}
    places = {name.removesuffix(":0") for name in config.getoption("place") or ()}
    if not operators and not places:
        return

    def chosen(parameters: Mapping[str, Any], place: str | None = None) -> bool:
        named = not operators or operator_of(parameters) in operators
        return named and (not places or (place_of(parameters) or place) in places)

    kept, dropped = [], []
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if isinstance(members := parameters.get("members"), Group):
            left = Group(m for m in members if chosen(m.values))
            parameters["members"] = left or members
            (kept if left else dropped).append(item)
            continue
        (kept if chosen(parameters, "cpu" if item.name.startswith(ON_THE_CPU) else None) else dropped).append(item)
    if not kept:
        raise pytest.UsageError(
            f"no case is of operator {sorted(operators) or 'any'} on place {sorted(places) or 'any'}"
            "\n  Do: name operators as `fluidlite ops` does, and places as `fluidlite places` does"
        )
    config.hook.pytest_deselected(items=dropped)
    items[:] = kept
