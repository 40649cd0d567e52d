"""Report the effect of each pass of a transformer on a program, as plain data and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from difflib import SequenceMatcher
from typing import Any

from fluidlite.base.errors import ProgramError
from fluidlite.cli.model_runs import fetched_names
from fluidlite.compiler.factory import make_transformer_factory
from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.ir.graph_nodes import READ, GraphOp
from fluidlite.compiler.ir.lower import lower
from fluidlite.compiler.ir.node import SEQUENTIAL, WRITE
from fluidlite.compiler.passes import GraphPass, PassList
from fluidlite.compiler.transformer import Transformer
from fluidlite.platform.place import Place
from fluidlite.program.operator import Operator
from fluidlite.program.program import Program
from fluidlite.program.text import operator_text


@dataclass
class PassRun:
    """One run of a pass.

    ``before``, ``after``: the operators, a line each.
    ``counts``: the change of the number of operators, by type.
    """

    name: str
    phase: str
    plugin: str
    before: list[str]
    after: list[str]
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def changed(self) -> bool:
        return self.before != self.after

    @property
    def title(self) -> str:
        """The pass and its effect on the number of operators."""
        named = f"{self.phase}  {self.name}" + (f" (plugin {self.plugin!r})" if self.plugin else "")
        if not self.changed:
            return f"{named}: nothing to do"
        more = ", ".join(f"{count:+d} {type}" for type, count in self.counts.items())
        return f"{named}: {len(self.before)} -> {len(self.after)} operators" + (f"; {more}" if more else "")

    def lines(self) -> list[str]:
        """The diff of the program before and after the pass: ``-`` is removed, ``+`` is new."""
        result: list[str] = []
        for kind, a, b, c, d in SequenceMatcher(None, self.before, self.after, autojunk=False).get_opcodes():
            if kind == "equal":
                result += [f"  {line}" for line in self.before[a:b]]
            else:
                result += [f"- {line}" for line in self.before[a:b]]
                result += [f"+ {line}" for line in self.after[c:d]]
        return result


@dataclass
class Report:
    """The effects of a transformer's passes on a program."""

    place: str
    fetches: list[str]
    before: list[str]
    after: list[str]
    steps: list[PassRun]

    def data(self) -> dict[str, Any]:
        return asdict(self)

    def text(self, only: Sequence[str] = ()) -> str:
        """As text: the program, each pass, and the final program; or the named passes alone."""
        result: list[str] = []
        if not only:
            result += [f"on {self.place}, for {', '.join(self.fetches) or 'its effects'}:"]
            result += [f"  {line}" for line in self.before]
        for step in self.steps:
            if only and step.name not in only:
                continue
            result += ["", step.title] if step.changed else [step.title]
            if step.changed:
                result += [f"  {line}" for line in step.lines()]
        if not only:
            result += ["", f"in all: {len(self.before)} -> {len(self.after)} operators"]
        return "\n".join(result).lstrip()


def passes_report(program: Program, place: str = "cpu", fetches: Sequence[str] = ()) -> Report:
    """Run the passes of a place's transformer on a copy of a program, and record the effect of each.

    ``place``: one of ``transformer_choices()``.
    ``fetches``: default: see :func:`fetched_names`.
    Raises FetchError or ProgramError if the program lacks a variable, or has sub-blocks; and errors of passes.
    """
    names = fetched_names(program, fetches)
    with make_transformer_factory(place)() as transformer:
        graph = _graph(program, names, transformer.place)
        if not graph.closed:
            raise ProgramError("the program has control flow: it runs as it is, without passes")
        return _report(transformer, graph, names)


def _report(transformer: Transformer, graph: Graph, names: list[str]) -> Report:
    steps: list[PassRun] = []
    first = last = _lines(graph)
    kinds = Counter(op.type for op in graph.ops)

    def note(passes: PassList, item: GraphPass, graph: Graph) -> None:
        nonlocal last, kinds
        lines, types = _lines(graph), Counter(op.type for op in graph.ops)
        counts = {type: types[type] - kinds[type] for type in sorted(types | kinds) if types[type] != kinds[type]}
        step = PassRun(item.name, passes.phase(item), passes.plugin(item), last, lines, counts)
        if step.changed or all(other.name != item.name for other in steps):
            steps.append(step)  # of a repeated phase, report only passes with an effect
        last, kinds = lines, types

    transformer.graph_passes.run(graph, note)
    return Report(str(transformer.place), names, first, last, steps)


def _graph(program: Program, names: Sequence[str], place: Place) -> Graph:
    block = program.global_block()
    if not any(op.definition is WRITE or op.definition is SEQUENTIAL for op in block.ops):
        return Graph(program, names, place)
    feeds = [variable for variable in block.vars.values() if variable.is_data]
    lowered = lower(block, [block.var(name) for name in names], feeds, None)
    return Graph(lowered.program, [name for name in lowered.names if name is not None], place)


def _lines(graph: Graph) -> list[str]:
    return [_line(op) for op in graph.ops]


def _line(op: GraphOp) -> str:
    source = op.operator
    if op.type == READ or op.type != source.type:  # a read or write of state
        return repr(op)
    ins = {slot: _names(values) for slot, values in op.inputs.items()}
    outs = {slot: _names(values) for slot, values in op.outputs.items()}
    copy = Operator(source.block, source.definition, ins, outs, op.attrs, {}, source.id, source.role, source.line)
    return f"{operator_text(copy)}  # {source.line}"


def _names(values: Iterable[Any]) -> list[str]:
    return [value.name for value in values if value is not None]
