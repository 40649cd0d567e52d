"""Computation: a callable subgraph."""

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
    results : the results as passed to :meth:`Transformer.computation`
    parameters : tuple of Variable
        The values that receive the arguments, in order.
    copy : bool
        Results are copies; False: results on the host are views.
    program : Program
        The part of the user's program that the results need, in the order in which it runs.
    transformed : Graph
        The graph that runs: that of ``program`` after the transformer's passes.
    state : list of Variable
        The persistent values that it reads or writes.
    fetches : list of str
        The variables of ``program`` that hold results.
    valid : bool
        Whether its state has values.
    executor : callable or None
        Takes tensors by argument name, returns one array for each fetched value. Made when the transformer is
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
        self._fast_paths = FastPathEntry()
        self._is_single = isinstance(results, Variable) and self._lowered.names != [None]

    def transform(self) -> None:
        """Run the passes and make the executor, unless it exists."""
        if self.executor is not None:
            return
        transformer = self.transformer
        check_places(self.program)
        graph = Graph(self.program, self.fetches, transformer.place, transformer.preferences(policy()))
        if graph.closed:
            transformer.run_registered_graph_passes(graph)
        self.transformed = graph.finished()
        exe: Any = transformer.transform_ordered_ops(self, graph.operators)
        exe = self.executor if exe is None else exe  # a subclass may set the attribute, as in nGraph
        if not callable(exe):
            self.executor = None
            raise ProgramError(
                f"transform_ordered_ops of {type(transformer).__name__} gave {exe!r} as executor; expected a callable"
            )
        self.executor = exe
        self._use_fast_paths()

    def _use_fast_paths(self) -> None:
        """Use the fast paths of the executor, unless a call also sets state or ``run`` is overridden."""
        executor = self.executor
        sets_state = any(variable.persistable for variable in self.parameters)
        if isinstance(executor, Runner) and self.transformer.runs_itself and not sets_state:
            arguments = tuple([variable.name for variable in self.parameters])
            signature = Signature(None, arguments, self.transformer.lock, self._is_single)
            executor.make_signature = lambda: signature
            self._fast_paths = executor.executables.fast_paths.entry(None)

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
            The structure of ``results``: one value for one, a tuple for a list or tuple, a dict by value for a set,
            a dict with the same keys for a dict, None for None. An action gives None. A scalar has shape (). The arrays
            are copies unless ``copy`` is False.

        Raises
        ------
        ValueError
            For a wrong count, both kinds of arguments, an argument that does not fit, or state that has no value.
        """
        values: Any = None
        if feed_dict is None:
            values = self._fast_paths.call(args)
            if self._is_single and values is not None:
                return values
        if values is None:
            arguments = self._arguments(args, feed_dict)
            with self.transformer.lock:
                values = self.transformer.run(self, arguments, self._lowered.unset)
            if len(values) != len(self.fetches):
                raise ProgramError(f"its executor gave {len(values)} arrays for {len(self.fetches)} results")
        values_by_name = dict(zip(self.fetches, values, strict=True))
        ordered = [values_by_name[name] if name is not None else None for name in self._lowered.names]
        return self._structured(ordered)

    @property
    def memory_plan(self) -> MemoryPlan:
        """The memory plan of the last call: bytes, live ranges and offsets of temporaries, and a plot.

        Raises
        ------
        ProgramError
            If it was not called yet, if the interpreter ran all of it, or if its executor has no memory plan.
        """
        if self.executor is None:
            raise ProgramError("there is no memory plan yet: dims are known at the first call\n  Do: call it once")
        plan: MemoryPlan | None = getattr(self.executor, "memory_plan", None)
        if plan is None:
            raise ProgramError(f"{type(self.executor).__name__}, which runs it, has no memory plan")
        return plan

    def sources(self) -> dict[str, str]:
        """Return the source texts of the last call, by file name.

        ``steps.txt`` lists the steps in order, with the user's lines; ``call.py`` is the fast path, if one exists;
        ``program.py``, on the host, is the whole program as a standalone Python script; ``kernels/`` has the text of
        each compiled kernel, in the language of its device and in the languages that it is lowered to.

        Raises
        ------
        ProgramError
            If it was not called yet, or if the interpreter ran all of it.
        """
        from fluidlite.compiler.sources import sources_of

        executables = getattr(self.executor, "executables", None)
        feeds = [variable.name for variable in self.parameters if not variable.persistable]
        return sources_of(executables.last if executables is not None else None, feeds)

    def write_sources(self, folder: str | Path) -> list[Path]:
        """Write :meth:`sources` to files in a folder, which is created if missing; return their paths."""
        from fluidlite.compiler.sources import write

        return write(self.sources(), folder)

    def _structured(self, values: list[Any]) -> Any:
        if self.results is None:
            return None
        if isinstance(self.results, (set, frozenset)):
            return dict(zip(self._roots, values, strict=True))
        if isinstance(self.results, dict):
            return dict(zip(self.results, self._with_copies_of_duplicates(values), strict=True))
        if isinstance(self.results, (list, tuple)):
            return tuple(self._with_copies_of_duplicates(values))
        return values[0]

    def _with_copies_of_duplicates(self, values: list[Any]) -> list[Any]:
        """Copy results that were requested more than once, so that no two share memory."""
        returned_ids: set[int] = set()
        for i, value in enumerate(values):
            if self.copy and value is not None and id(value) in returned_ids:
                values[i] = value.copy()
            returned_ids.add(id(values[i]))
        return values

    def _arguments(self, args: tuple[Any, ...], feed_dict: Mapping[Variable, Any] | None) -> dict[Variable, Argument]:
        if feed_dict is not None:
            if args:
                raise FeedError("a computation takes positional arguments or feed_dict=, not both")
            if not isinstance(feed_dict, Mapping):
                raise FeedError(f"feed_dict is {type(feed_dict).__name__}; expected a mapping of values to arrays")
            params = {variable.name: variable for variable in self.parameters}
            unknown = [
                key
                for key in feed_dict
                if not isinstance(key, Variable) or key.name not in params or not key.stands_for(params[key.name])
            ]
            if unknown:
                raise FeedError(f"feed_dict names {_label(unknown[0])}, which is no parameter of it; {self._expects()}")
            by_name = {variable.name: value for variable, value in feed_dict.items()}
            missing = [variable for variable in self.parameters if variable.name not in by_name]
            if missing:
                raise FeedError(f"feed_dict has no value for {_label(missing[0])}; {self._expects()}")
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


def _label(item: Any) -> str:
    return repr(item.name) if isinstance(item, Variable) else repr(item)


def _roots(results: Any) -> list[Root]:
    if results is None:
        return []
    is_collection = isinstance(results, (list, tuple, set, frozenset, dict))
    items = list(results.values() if isinstance(results, dict) else results) if is_collection else [results]
    for item in items:
        if not isinstance(item, (Variable, Operator)):
            raise ProgramError(
                f"a result of a computation is {item!r}; expected a value or an action of the graph, "
                "a list, tuple, set or dict of them, or None"
            )
    return items


def _parameters(parameters: Sequence[Any]) -> tuple[Variable, ...]:
    names: set[str] = set()
    for item in parameters:
        if not isinstance(item, Variable):
            raise ProgramError(f"an argument of a computation is {item!r}; expected a value of the graph")
        if not may_be_argument(item):
            raise ProgramError(
                f"{item.name!r} cannot be an argument of a computation: it is no placeholder, variable or persistent "
                "tensor\n  Do: set its is_input to True, if it is to be given instead of computed"
            )
        if item.name in names:
            raise ProgramError(f"{item.name!r} is listed twice among the arguments of a computation")
        names.add(item.name)
    return tuple(parameters)


def _block(items: Sequence[Root]) -> Block:
    for item in items[1:]:
        if item.block.program is not items[0].block.program:
            names = " and ".join(
                each.name_and_line() if isinstance(each, Variable) else str(each) for each in (items[0], item)
            )
            raise ProgramError(f"{names}, results or arguments of one computation, belong to different programs")
    return (items[0].block.program if items else Program()).global_block()
