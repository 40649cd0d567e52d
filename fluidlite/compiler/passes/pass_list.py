"""The pass list of a transformer, ordered by phase, and the pass manager that runs it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

from fluidlite.base.arguments import check_list
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

REPEATED_PHASES = ("simplify",)
"""Phases whose passes are repeated until none changes the graph: each enables others."""
MAX_ROUNDS = 10
"""Rounds over the passes of such a phase."""

BUILTIN_PASSES: tuple[type[GraphPass], ...] = (
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

PassObserver = Callable[["PassList", GraphPass, Graph], None]


class PassList(list[GraphPass]):
    """Passes in the order in which they run; ``print`` shows them with their phases.

    Passes that were not added by :meth:`add` have the phase of their class.
    """

    def __init__(self, items: Iterable[GraphPass] = ()) -> None:
        super().__init__(check_list("passes", items, "a list of passes"))
        self._check_foreign()
        self._added: dict[int, tuple[str, str]] = {}  # by id of a pass: its phase and its plugin

    def _check_foreign(self) -> None:
        for item in self:
            if type(item) not in BUILTIN_PASSES:
                _check(item)

    def phase(self, item: GraphPass) -> str:
        """The phase of a pass of the list."""
        return self._added.get(id(item), (item.phase, ""))[0]

    def plugin(self, item: GraphPass) -> str:
        """The plugin that registered a pass of the list; "" if none did."""
        return self._added.get(id(item), ("", ""))[1]

    def add(self, item: GraphPass, phase: str | None = None, plugin: str = "") -> None:
        """Add a pass behind those of its phase.

        Raises
        ------
        ProgramError
            If it is no :class:`GraphPass`, or there is no such phase.
        """
        _check(item)
        target = phase if phase is not None else item.phase
        if target not in PHASES:
            raise ProgramError(f"pass {item.name} is for phase {target!r}; the phases are {', '.join(PHASES)}")
        rank = PHASES.index(target)
        position = len(self)
        while position and PHASES.index(self.phase(self[position - 1])) > rank:
            position -= 1
        self.insert(position, item)
        self._added[id(item)] = target, plugin

    def error_name(self, item: GraphPass) -> str:
        """The name of a pass in errors, with its plugin."""
        plugin = self.plugin(item)
        return f"pass {item.name}" + (f" of plugin {plugin!r}" if plugin else "")

    def run(self, graph: Graph, watch: PassObserver | None = None) -> None:
        """Run the passes on a graph, in order; a verifier follows each.

        Passes of the phase ``simplify`` are repeated until none changes the graph, at most 10 times.

        Parameters
        ----------
        graph : Graph
        watch : callable, optional
            Called with this list, the pass and the graph after each.

        Raises
        ------
        ProgramError
            If a pass raises, or breaks the graph; with the name of the pass and its plugin.
        """
        self._check_foreign()
        current = fingerprint(graph)
        for phase, group in groupby(list(self), self.phase):
            phase_passes = list(group)
            for _ in range(MAX_ROUNDS if phase in REPEATED_PHASES else 1):
                before = current
                for item in phase_passes:
                    current = self._run(item, graph, current)
                    if watch is not None:
                        watch(self, item, graph)
                if current == before:
                    break

    def _run(self, item: GraphPass, graph: Graph, before: Fingerprint) -> Fingerprint:
        """Run one pass and the verifier, and remove dead operators; return the graph's fingerprint.

        A built-in pass that changed nothing needs no verifier; another one may have changed a dtype or an attribute.
        """
        try:
            item.do_pass(graph)
        except SupportsError as exc:  # of a kernel or a device, which it names: the pass is not at fault
            lines = dict.fromkeys(str(op.line) for op in graph.ops if op.type == exc.op)
            raise SupportsError(f"{exc}\n  At: {' or '.join(lines)}" if lines else str(exc)) from exc.__cause__
        except ProgramError as exc:
            text = str(exc).removeprefix(f"pass {item.name} ")  # methods of a pass begin their errors so
            raise type(exc)(f"{self.error_name(item)}{' ' if text != str(exc) else ': '}{text}") from exc
        except Exception as exc:
            raise ProgramError(f"{self.error_name(item)} failed: {type(exc).__name__}: {exc}") from exc
        try:
            after = fingerprint(graph)
            if after != before:
                graph.touch()
            if after != before or type(item) not in BUILTIN_PASSES:
                graph.verify()
            if after != before and graph.prune():
                after = fingerprint(graph)
        except ProgramError as exc:
            raise ProgramError(f"{self.error_name(item)} broke the graph: {exc}") from exc
        except Exception as exc:  # the graph is malformed
            why = _malformed(graph) or f"{type(exc).__name__}: {exc}"
            raise ProgramError(f"{self.error_name(item)} broke the graph: {why}") from exc
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
    """The first malformed part of a graph, or None."""
    for what, items, kind in (("operators", graph.ops, GraphOp), ("results", graph.results, GraphValue)):
        if not isinstance(items, list):
            return f"its {what} are a {type(items).__name__}; expected a list"
        for item in items:
            if not isinstance(item, kind):
                return f"{item!r} is among its {what}; expected a {kind.__name__}"
    for op in graph.ops:
        error = _malformed_slots(op)
        if error is not None:
            return error
        try:
            check_operator(op)
        except ProgramError as exc:
            return str(exc)
    return None


def _malformed_slots(op: GraphOp) -> str | None:
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
    """A new list of the built-in passes and those of plugins."""
    pass_list = PassList([item() for item in BUILTIN_PASSES])
    for item, plugin in passes.all():
        pass_list.add(copy.copy(item), item.phase, plugin)  # a pass may have state of its graph
    return pass_list
