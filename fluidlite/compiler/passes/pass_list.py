"""The one list of passes of a transformer, by phase; and how it is run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from itertools import groupby
from operator import itemgetter
from typing import Any

from fluidlite.base.arguments import listed
from fluidlite.base.errors import ProgramError, SupportsError
from fluidlite.compiler.ir.graph import Fingerprint, Graph, fingerprint
from fluidlite.compiler.ir.graph_nodes import GraphOp, GraphValue
from fluidlite.compiler.ir.verify import check_operator
from fluidlite.compiler.passes.arithmetic import SimplifyArithmetic
from fluidlite.compiler.passes.base import GraphPass
from fluidlite.compiler.passes.constant_folding import FoldConstants
from fluidlite.compiler.passes.copy_elimination import EliminateCopies
from fluidlite.compiler.passes.cse import CommonSubexpressions
from fluidlite.compiler.passes.dce import DeadCode
from fluidlite.compiler.passes.decompose import Decompose
from fluidlite.compiler.passes.epilogue import FuseEpilogues
from fluidlite.compiler.passes.fuse import FuseElementwise
from fluidlite.compiler.passes.fuse_expressions import FuseExpressions
from fluidlite.compiler.passes.layout import AssignLayouts
from fluidlite.compiler.passes.matmul_rewrites import FoldTransposes, SplitProducts
from fluidlite.compiler.passes.schedule import ScheduleUpdates
from fluidlite.compiler.passes.view_simplify import SimplifyShapes
from fluidlite.program.pass_registry import PHASES, passes

REPEATED = ("simplify",)
"""Phases whose passes run again while one of them finds something: each makes work for the others."""
MOST_ROUNDS = 10

OURS: tuple[type[GraphPass], ...] = (
    DeadCode,
    FoldConstants,
    SimplifyArithmetic,
    SplitProducts,
    FoldTransposes,
    SimplifyShapes,
    EliminateCopies,
    CommonSubexpressions,
    Decompose,
    AssignLayouts,
    FuseElementwise,
    FuseEpilogues,
    FuseExpressions,
    ScheduleUpdates,
)
"""The built-in passes: phase by phase, in the order in which they run."""

Watch = Callable[["PassList", GraphPass, Graph], None]


class PassList(list[GraphPass]):
    """Passes in the order in which they run; ``print`` shows them with their phases.

    What stands in it without having been added by :meth:`add` has the phase that its class says.
    """

    def __init__(self, items: Iterable[GraphPass] = ()) -> None:
        super().__init__(listed("passes", items, "a list of passes"))
        self._check_foreign()
        self._added: dict[int, tuple[str, str]] = {}  # the phase and the plugin of those that were added

    def _check_foreign(self) -> None:
        for item in self:
            if type(item) not in OURS:
                _check(item)

    def phase(self, item: GraphPass) -> str:
        """The phase of one of its passes."""
        return self._added.get(id(item), (item.phase, ""))[0]

    def plugin(self, item: GraphPass) -> str:
        """The plugin that brought one of its passes; "" for others."""
        return self._added.get(id(item), ("", ""))[1]

    def add(self, item: GraphPass, phase: str | None = None, plugin: str = "") -> None:
        """Add a pass behind those of its phase.

        Raises
        ------
        ProgramError
            If it is no :class:`GraphPass`, or there is no such phase.
        """
        _check(item)
        where = phase if phase is not None else item.phase
        if where not in PHASES:
            raise ProgramError(f"pass {item.name} is for phase {where!r}; the phases are {', '.join(PHASES)}")
        rank = PHASES.index(where)
        at = len(self)
        while at and PHASES.index(self.phase(self[at - 1])) > rank:
            at -= 1
        self.insert(at, item)
        self._added[id(item)] = where, plugin

    def called(self, item: GraphPass) -> str:
        """How errors call one of its passes: by its plugin too."""
        plugin = self.plugin(item)
        return f"pass {item.name}" + (f" of plugin {plugin!r}" if plugin else "")

    def run(self, graph: Graph, watch: Watch | None = None) -> None:
        """Run the passes on a graph, in order; a verifier follows each.

        Those of the phase ``simplify`` run again while one of them finds something, at most 10 times.

        Parameters
        ----------
        graph : Graph
        watch : callable, optional
            Called with this list, the pass and the graph after each.

        Raises
        ------
        ProgramError
            If a pass raises, or breaks the graph; the pass is named, and the plugin that brought it.
        """
        self._check_foreign()
        now = fingerprint(graph)
        phased = [(self._added.get(id(item), (item.phase,))[0], item) for item in self]
        for phase, group in groupby(phased, itemgetter(0)):
            several = [item for _, item in group]
            for _ in range(MOST_ROUNDS if phase in REPEATED else 1):
                before = now
                for item in several:
                    now = self._run(item, graph, now)
                    if watch is not None:
                        watch(self, item, graph)
                if now == before:
                    break

    def _run(self, item: GraphPass, graph: Graph, before: Fingerprint) -> Fingerprint:
        """Run one pass and the verifier, and take out what nothing needs; return what the graph is made of then.

        A built-in pass that found nothing needs no verifier; others may have changed a dtype or an attribute by hand.
        """
        try:
            item.do_pass(graph)
        except SupportsError as exc:  # of a kernel, or of a device: it says whose, and no pass is to blame
            lines = dict.fromkeys(str(op.line) for op in graph.ops if op.type == exc.op)
            raise SupportsError(f"{exc}\n  At: {' or '.join(lines)}" if lines else str(exc)) from exc.__cause__
        except ProgramError as exc:
            text = str(exc).removeprefix(f"pass {item.name} ")  # as the methods of a pass begin their own errors
            raise type(exc)(f"{self.called(item)}{' ' if text != str(exc) else ': '}{text}") from exc
        except Exception as exc:
            raise ProgramError(f"{self.called(item)} failed: {type(exc).__name__}: {exc}") from exc
        try:
            after = fingerprint(graph)
            if after != before:
                graph.touch()
            if after != before or type(item) not in OURS:
                graph.verify()
            if after != before and graph.prune():
                after = fingerprint(graph)
        except ProgramError as exc:
            raise ProgramError(f"{self.called(item)} broke the graph: {exc}") from exc
        except Exception as exc:  # not even the form of a graph is left
            why = _malformed(graph) or f"{type(exc).__name__}: {exc}"
            raise ProgramError(f"{self.called(item)} broke the graph: {why}") from exc
        return after

    def __str__(self) -> str:
        width = max((len(self.phase(item)) for item in self), default=0)
        lines = []
        for item in self:
            plugin = self.plugin(item)
            lines.append(f"{self.phase(item):<{width}}  {item.name}" + (f" (plugin {plugin!r})" if plugin else ""))
        return "\n".join(lines)


def _check(item: Any) -> None:
    if not isinstance(item, GraphPass):
        raise ProgramError(f"{item!r} is no GraphPass; define a subclass with do_pass(graph)")
    if item.phase not in PHASES:
        raise ProgramError(f"pass {item.name} is for phase {item.phase!r}; the phases are {', '.join(PHASES)}")


def _malformed(graph: Graph) -> str | None:
    """What is no part of a graph where one should be, or None."""
    for what, items, kind in (("operators", graph.ops, GraphOp), ("results", graph.results, GraphValue)):
        if not isinstance(items, list):
            return f"its {what} are a {type(items).__name__}; expected a list"
        for item in items:
            if not isinstance(item, kind):
                return f"{item!r} is among its {what}; expected a {kind.__name__}"
    for op in graph.ops:
        found = _odd_slots(op)
        if found is not None:
            return found
        try:
            check_operator(op)
        except ProgramError as exc:
            return str(exc)
    return None


def _odd_slots(op: GraphOp) -> str | None:
    sides: list[tuple[str, Any]] = [("inputs", op.inputs), ("outputs", op.outputs)]
    for side, slots in sides:
        if not isinstance(slots, dict):
            return f"the {side} of an operator {op.type!r} are {slots!r}; expected a dict of lists of values"
        for slot, values in slots.items():
            if not isinstance(values, list):
                return f"{slot} of an operator {op.type!r} is {values!r}; expected a list of values"
            for value in values:
                if not isinstance(value, GraphValue) and (side == "inputs" or value is not None):
                    return f"{slot} of an operator {op.type!r} holds {value!r}; expected values of the graph"
    if not isinstance(op.attrs, dict):
        return f"the attributes of {op!r} are {op.attrs!r}; expected a dict"
    return None


def default_passes() -> PassList:
    """The passes of a transformer, those of plugins included: a list of its own for each."""
    found = PassList([item() for item in OURS])
    for item, plugin in passes.all():
        found.add(copy.copy(item), item.phase, plugin)  # a pass may keep notes of the graph that it is at
    return found
