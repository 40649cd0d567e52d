"""Computation: a part of a graph that can be called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fluidlite.base.errors import FeedError, ProgramError
from fluidlite.compiler.arguments import Argument, argument
from fluidlite.compiler.executable.fast_path import Signature
from fluidlite.compiler.executable.fast_path_cache import FastPathEntry
from fluidlite.compiler.graph_cache import check_places
from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.ir.lower import lower
from fluidlite.compiler.ir.node import may_be_argument
from fluidlite.compiler.ir.order import Root
from fluidlite.compiler.memory.memory_plan import MemoryPlan
from fluidlite.compiler.policy import policy
from fluidlite.compiler.runner import Runner
from fluidlite.program.block import Block
from fluidlite.program.operator import Operator
from fluidlite.program.program import Program
from fluidlite.program.variable import Variable

if TYPE_CHECKING:
    from fluidlite.compiler.transformer import Executor, Transformer


class Computation:
    """A function from arguments to the values of results; made by :meth:`Transformer.computation`.

    Attributes
    ----------
    transformer : Transformer
    results : what was asked for
    parameters : tuple of Variable
        What receives the arguments, in order.
    copy : bool
        Results are copies; False: views, where they are on the host.
    program : Program
        The part of the user's program that the results need, in the order in which it runs.
    transformed : Graph
        What it runs: the graph of ``program`` after the transformer's passes.
    state : list of Variable
        The persistent values that it reads or writes.
    fetches : list of str
        The variables of ``program`` that hold results.
    valid : bool
        Its state has values.
    executor : callable or None
        What runs it: tensors by argument name in, one array a fetched value out. Made when the transformer is
        initialised.
    """

    def __init__(self, transformer: Transformer, results: Any, parameters: Sequence[Any], copy: bool = True) -> None:
        self.transformer = transformer
        self.copy = copy
        self.results = dict(results) if isinstance(results, dict) else results
        self._roots: list[Root] = _roots(results)
        self.parameters: tuple[Variable, ...] = _parameters(parameters)
        block = _block((*self._roots, *self.parameters))
        self._lowered = lower(block, self._roots, self.parameters, transformer.seed)
        self.program: Program = self._lowered.program
        self.state: list[Variable] = self._lowered.state
        self.fetches: list[str] = list(dict.fromkeys(name for name in self._lowered.names if name is not None))
        self.transformed: Graph | None = None
        self.executor: Executor | None = None
        self.valid = False
        self._entry = FastPathEntry()
        self._alone = isinstance(results, Variable) and self._lowered.names != [None]

    def transform(self) -> None:
        """Run the passes and make the executor, if there is none yet."""
        if self.executor is not None:
            return
        transformer = self.transformer
        check_places(self.program)
        graph = Graph(self.program, self.fetches, transformer.place, transformer.preferences(policy()))
        if graph.closed:
            transformer.run_registered_graph_passes(graph)
        self.transformed = graph.finished()
        made: Any = transformer.transform_ordered_ops(self, graph.operators)
        made = self.executor if made is None else made  # it may set it, as nGraph's do
        if not callable(made):
            self.executor = None
            raise ProgramError(
                f"transform_ordered_ops of {type(transformer).__name__} gave {made!r} as executor; expected a callable"
            )
        self.executor = made
        self._find_fast_paths()

    def _find_fast_paths(self) -> None:
        """Let calls take the fast paths of the executor, unless a call does more than run it."""
        executor = self.executor
        stores = any(variable.persistable for variable in self.parameters)
        if isinstance(executor, Runner) and self.transformer.runs_itself and not stores:
            arguments = tuple([variable.name for variable in self.parameters])
            signature = Signature(None, arguments, self.transformer.lock, self._alone)
            executor.sign = lambda: signature
            self._entry = executor.executables.fast_paths.entry(None)

    def __call__(self, *args: Any, feed_dict: Mapping[Variable, Any] | None = None) -> Any:
        """Run it.

        Parameters
        ----------
        *args : array_like
            One for each parameter, in order.
        feed_dict : mapping of Variable to array_like, optional
            Instead of positional arguments.

        Returns
        -------
        numpy.ndarray, tuple, dict or None
            As the results were asked for: one value for one, a tuple for a list or tuple, a dict by value for a set,
            a dict with the same keys for a dict, None for None. An action gives None. A scalar has shape (). The arrays
            are copies, if nothing else was asked for.

        Raises
        ------
        ValueError
            For a wrong count, both kinds of arguments, an argument that does not fit, or state that has no value.
        """
        values: Any = None
        if feed_dict is None:
            values = self._entry.first.call(args)
            if values is None:
                values = self._entry.others(args)
            if self._alone and values is not None:
                return values
        if values is None:
            arguments = self._arguments(args, feed_dict)
            with self.transformer.lock:
                values = self.transformer.run(self, arguments, self._lowered.unset)
            if len(values) != len(self.fetches):
                raise ProgramError(f"its executor gave {len(values)} arrays for {len(self.fetches)} results")
        found = dict(zip(self.fetches, values, strict=True))
        ordered = [found[name] if name is not None else None for name in self._lowered.names]
        return self._packed(ordered)

    @property
    def memory_plan(self) -> MemoryPlan:
        """Where the temporaries of the last call lie: bytes, life spans, offsets, and a picture.

        Raises
        ------
        ProgramError
            If it was not called yet, or all of it ran by the interpreter; or its transformer's executors have none.
        """
        if self.executor is None:
            raise ProgramError("there is no memory plan yet: dims are known at the first call\n  Do: call it once")
        found = getattr(self.executor, "memory_plan", None)
        if found is None:
            raise ProgramError(f"{type(self.executor).__name__}, which runs it, has no memory plan")
        plan: MemoryPlan = found
        return plan

    def sources(self) -> dict[str, str]:
        """Return the texts of all that the last call ran, by the names of their files.

        ``steps.txt`` lists what runs, in order, with your lines; ``call.py`` is the function that looks at the
        arguments and goes straight through, where there is one; ``program.py``, on the host, is the whole program as
        Python, which runs by itself; ``kernels/`` holds the text of each kernel that is compiled, in the language of
        its device and in what comes of that.

        Raises
        ------
        ProgramError
            If it was not called yet, or all of it ran by the interpreter.
        """
        from fluidlite.compiler.sources import sources_of

        executables = getattr(self.executor, "executables", None)
        feeds = [variable.name for variable in self.parameters if not variable.persistable]
        return sources_of(executables.last if executables is not None else None, feeds)

    def write_sources(self, folder: str | Path) -> list[Path]:
        """Write :meth:`sources` to files in a folder, which is made if it is not there; return their paths."""
        from fluidlite.compiler.sources import write

        return write(self.sources(), folder)

    def _packed(self, values: list[Any]) -> Any:
        if self.results is None:
            return None
        if isinstance(self.results, (set, frozenset)):
            return dict(zip(self._roots, values, strict=True))
        if isinstance(self.results, dict):
            return dict(zip(self.results, self._apart(values), strict=True))
        if isinstance(self.results, (list, tuple)):
            return tuple(self._apart(values))
        return values[0]

    def _apart(self, values: list[Any]) -> list[Any]:
        """Of one result that was asked for twice, each its own copy."""
        seen: set[int] = set()
        for i, value in enumerate(values):
            if self.copy and value is not None and id(value) in seen:
                values[i] = value.copy()
            seen.add(id(values[i]))
        return values

    def _arguments(self, args: tuple[Any, ...], feed_dict: Mapping[Variable, Any] | None) -> dict[Variable, Argument]:
        if feed_dict is not None:
            if args:
                raise FeedError("a computation takes positional arguments or feed_dict=, not both")
            if not isinstance(feed_dict, Mapping):
                raise FeedError(f"feed_dict is {type(feed_dict).__name__}; expected a mapping of values to arrays")
            known = {variable.name: variable for variable in self.parameters}
            unknown = [
                key
                for key in feed_dict
                if not isinstance(key, Variable) or key.name not in known or not key.stands_for(known[key.name])
            ]
            if unknown:
                raise FeedError(f"feed_dict names {_named(unknown[0])}, which is no parameter of it; {self._expects()}")
            by_name = {variable.name: value for variable, value in feed_dict.items()}
            missing = [variable for variable in self.parameters if variable.name not in by_name]
            if missing:
                raise FeedError(f"feed_dict has no value for {_named(missing[0])}; {self._expects()}")
            args = tuple(by_name[variable.name] for variable in self.parameters)
        if len(args) != len(self.parameters):
            raise FeedError(f"the computation got {len(args)} arguments; {self._expects()}")
        return {v: argument(v, value) for v, value in zip(self.parameters, args, strict=True)}

    def _expects(self) -> str:
        names = ", ".join(variable.name for variable in self.parameters)
        return f"it takes {len(self.parameters)}" + (f": {names}" if names else "")

    def __repr__(self) -> str:
        count = len(self.program.global_block().ops)
        return f"<Computation of {count} operators, {self._expects()}>"


def _named(item: Any) -> str:
    return repr(item.name) if isinstance(item, Variable) else repr(item)


def _roots(results: Any) -> list[Root]:
    if results is None:
        return []
    several = isinstance(results, (list, tuple, set, frozenset, dict))
    items = list(results.values() if isinstance(results, dict) else results) if several else [results]
    for item in items:
        if not isinstance(item, (Variable, Operator)):
            raise ProgramError(
                f"a result of a computation is {item!r}; expected a value or an action of the graph, "
                "a list, tuple, set or dict of them, or None"
            )
    return items


def _parameters(parameters: Sequence[Any]) -> tuple[Variable, ...]:
    seen: set[str] = set()
    for item in parameters:
        if not isinstance(item, Variable):
            raise ProgramError(f"an argument of a computation is {item!r}; expected a value of the graph")
        if not may_be_argument(item):
            raise ProgramError(
                f"{item.name!r} cannot be an argument of a computation: it is no placeholder, variable or persistent "
                "tensor\n  Do: set its is_input to True, if it is to be given instead of computed"
            )
        if item.name in seen:
            raise ProgramError(f"{item.name!r} is listed twice among the arguments of a computation")
        seen.add(item.name)
    return tuple(parameters)


def _block(items: Sequence[Root]) -> Block:
    for item in items[1:]:
        if item.block.program is not items[0].block.program:
            both = " and ".join(
                each.name_and_line() if isinstance(each, Variable) else str(each) for each in (items[0], item)
            )
            raise ProgramError(f"{both}, results or arguments of one computation, belong to different programs")
    return (items[0].block.program if items else Program()).global_block()
