"""Which test cases run, and how processes share them."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Mapping
from typing import Any

import pytest
from grouped import Group
from xdist.scheduler import LoadScopeScheduling

import fluidlite as fluid

BY_CASE = (
    "tests/operators/test_samples.py",
    *(f"tests/places/test_{name}.py" for name in ("llvm", "loops", "strict")),
)
"""Files whose cases build kernels of their own for minutes: a process that had one to itself would end last."""
LONG = (
    "tests/operators/test_rank0.py", "tests/end_to_end/", "tests/mutation/", "tests/hostile/", "tests/docs/",
)  # fmt: skip
"""Where few cases take long: if they started last, the other processes would wait for them."""
ON_THE_CPU = "test_conforms_on_the_cpu["
"""Cases of the cpu whose parameters name no place."""
OPERATORS = ("op", "operator", "type", "group")
"""Parameters of tests that say which operator a case is about."""

IN_TURN = (
    *(f"tests/end_to_end/test_{name}.py" for name in ("examples", "old_loops", "old_programs", "recurrent")),
    "tests/end_to_end/test_threads.py::test_an_executor_of_sixteen_threads",
    "tests/nn/test_layers.py::test_layers_make_what_their_formula_says",
    "tests/operators/test_regressions_norm.py::test_iterated_vectors",
    *(
        f"tests/transformers/test_{name}"
        for name in (
            "caches.py", "epilogues.py", "fed_state.py", "fused_domains.py::test_every_random_operator",
            "fused_domains.py::test_the_gradient_of_a_broadcast", "graph_cross_entropy.py", "layout_pass.py",
            "memory_plan.py", "passes_random.py", "passes_simplify.py", "ragged_batches.py", "random_programs.py",
        )
    ),
    *(
        f"tests/unit/nodes/test_{name}.py"
        for name in ("compiled_graphs", "inplace", "layers_of_nodes", "node_values", "updaters")
    ),
    *(
        f"tests/unit/test_{name}.py"
        for name in ("bench", "check_gradient", "control_flow", "decoders", "static_rnn", "tensor_arrays")
    ),
)  # fmt: skip
"""Where tests begin of which no place is the subject, and that take a second or more (see :func:`in_turn`)."""


def rank(nodeid: str) -> int:
    """When a case runs: 0 first, 2 last."""
    return 0 if nodeid.startswith(LONG) else 2 if nodeid.startswith(BY_CASE) else 1


class OperatorScheduling(LoadScopeScheduling):
    """As ``--dist loadfile``, ordered by :func:`rank`; the files of :data:`BY_CASE` are shared a case at a time.

    Of these cases those of one operator go to one process: its differences of references, expressions and texts are
    made there.
    """

    def __init__(self, config: Any, log: Any = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False
        self._indices: dict[Any, dict[str, int]] = {}
        self._owners: dict[str, Any] = {}

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Forget a file, or case, that is done: to count what is left, all that a process was given is looked at."""
        scope = self._split_scope(self.registered_collections[node][item_index])
        super().mark_test_complete(node, item_index, duration)
        if all(self.assigned_work[node][scope].values()):
            del self.assigned_work[node][scope]

    def _assign_work_unit(self, node: Any) -> None:
        """As it was, but with a table of where each case is in the collection, instead of a search for each."""
        scope = self._next(node)
        work_unit = self.workqueue.pop(scope)
        self.assigned_work.setdefault(node, {})[scope] = work_unit
        if node not in self._indices:
            self._indices[node] = {nodeid: i for i, nodeid in enumerate(self.registered_collections[node])}
        indices = self._indices[node]
        node.send_runtest_some([indices[nodeid] for nodeid, completed in work_unit.items() if not completed])

    def _next(self, node: Any) -> str:
        """The first file; or of its cases the first of an operator that no other process has, or the first of all."""
        first, *others = self.workqueue
        file = _file(first)
        if first == file:
            return first
        alike = itertools.takewhile(lambda scope: _file(scope) == file, (first, *others))
        found = next((scope for scope in alike if self._owners.get(_named(scope), node) is node), first)
        self._owners.setdefault(_named(found), node)
        return found

    def _split_scope(self, nodeid: str) -> str:
        file, _, rest = nodeid.partition("::")
        return nodeid if file in BY_CASE and "[" in rest else file


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _named(nodeid: str) -> str:
    """The operator of a case of :data:`BY_CASE`: its name begins with it."""
    return nodeid.partition("[")[2].removesuffix("]").partition("-")[0]


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

    Of a case of several checks only the checks of these are left. Without these options, and where the command line
    names no case, those go whose place has not its turn.

    Raises
    ------
    pytest.UsageError
        No case names such an operator or place.
    """
    operators = {name.removesuffix("_grad") for name in config.getoption("op") or ()}
    places = {name.removesuffix(":0") for name in config.getoption("place") or ()}
    if not operators and not places:
        if not config.getoption("keyword") and not any("::" in name for name in config.args):
            left_out = in_turn(items)
            names = {item.nodeid for item in left_out}
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item.nodeid not in names]
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


def in_turn(items: list[pytest.Item]) -> list[pytest.Item]:
    """Cases that another place's turn leaves out.

    Of cases of :data:`IN_TURN` that differ in their place alone, that of the cpu runs, and that of one other usable
    place: of the next such cases that of the next place. So a program runs on two places, and each place runs many.
    """
    usable = {place.kind for place in fluid.places()} | {"strict"}
    alike: dict[str, list[pytest.Item]] = {}
    for item in items:
        if not item.nodeid.startswith(IN_TURN):
            continue
        test, _, name = item.nodeid.partition("[")
        parts = name.removesuffix("]").split("-")
        named = [part for part in parts if part.removesuffix(":0") in usable]
        if len(named) == 1 and named[0].removesuffix(":0") != "cpu":
            parts.remove(named[0])
            alike.setdefault(f"{test}[{'-'.join(parts)}", []).append(item)
    turns: dict[str, int] = {}
    left_out = []
    for name, cases in alike.items():
        test = name.partition("[")[0]
        turn = turns.setdefault(test, zlib.crc32(test.encode()))
        turns[test] = turn + 1
        left_out += [case for i, case in enumerate(cases) if i != turn % len(cases)]
    return left_out
