"""The Executor: converts feeds, runs a plan from the cache, and converts fetches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fluidlite.base.arguments import check_bool, check_mapping
from fluidlite.base.errors import FetchError, PlaceError, ProgramError
from fluidlite.base.fork import new_lock
from fluidlite.base.lru_cache import CacheReport, LRUCache
from fluidlite.compiler.body_executors import set_default_executor
from fluidlite.compiler.explain import Report
from fluidlite.compiler.graph_cache import GraphCache
from fluidlite.compiler.graph_runner import GraphRunner
from fluidlite.compiler.instrumentation import observers
from fluidlite.compiler.kernel_checks import needs_interpreter
from fluidlite.compiler.policy import FALLBACKS, Policy, check_libraries
from fluidlite.executor.dataset_runs import Dataset, FetchHandler, run_dataset
from fluidlite.executor.default_place import resolve_place
from fluidlite.executor.feeds import check_read, feed_tensors
from fluidlite.executor.fetches import fetch_names, fetched_arrays, fetched_tensor
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import get_context, new_context, using
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place, PlaceLike
from fluidlite.program.codegen_registry import generator_capability
from fluidlite.program.program import Program, default_main_program
from fluidlite.program.reader import fed_by_readers
from fluidlite.program.scope import Scope, global_scope
from fluidlite.program.state import share_written_memory
from fluidlite.program.variable import Variable
from fluidlite.render.loops.guarded_cache import cache_info as answers_info
from fluidlite.tensor.tensor import Tensor

if TYPE_CHECKING:  # imported by executors that need them: they take a fifth of the import time
    from fluidlite.compiler.executable.executable import Fetched
    from fluidlite.compiler.executable.executable_cache import ExecutableCache
    from fluidlite.compiler.executable.fast_path import Signature
    from fluidlite.compiler.executable.fast_path_cache import FastPathCache
    from fluidlite.compiler.memory.memory_plan import MemoryPlan
    from fluidlite.compiler.passes import GraphPass, PassList

MODES = ("interpreted", "compiled")
"""Modes of executors."""
DEFAULT_MODE = "compiled"
"""The mode of executors without ``mode``."""


class Runnable(Protocol):
    """A program that runs itself, for example on several places; an executor delegates runs to it."""

    def run_on(
        self, executor: Any, feed: Any, fetch_list: Any, scope: Scope, return_numpy: bool, return_merged: bool
    ) -> list[Any]:
        """Run once; arguments and result are those of :meth:`Executor.run`."""
        ...


class Executor:
    """Runs programs on a place.

    Parameters
    ----------
    place : Place or str
        ``"cpu"``, ``fluid.CUDAPlace(0)``, ``"opencl:0"``, a plugin's ...
    libraries : mapping of place kind to library names, optional
        Preferred libraries of this executor.
    fallback : {"error", "warn", "allow"}, optional
        Fallback policy of this executor.
    mode : {"interpreted", "compiled"}, optional
        "interpreted": operator by operator, without passes. "compiled": after passes, linked to memory, and cached.
        Results are equal up to rounding. While an observer is active, operators run one by one in both modes.
    passes : iterable of GraphPass, optional
        The passes of mode "compiled"; default: those of transformers. ``()``: none.
    codegen : str, optional
        The code generator whose kernels the place uses: one of ``codegen_choices(place)``. Default: the best of each.
    context : Context or int, optional
        The context of its runs in all threads: a context of the place, or the number of a queue of the device, on which
        the executor makes its own context. Runs of executors on different queues overlap, if the device has several.
        Default: the context of the thread.

    Raises
    ------
    PlaceError, DeviceUnavailable
        If the place cannot be used, or has no such generator or queue; with the root cause.
    """

    def __init__(
        self,
        place: PlaceLike = "cpu",
        libraries: Mapping[str, Sequence[str]] | None = None,
        fallback: str | None = None,
        mode: str | None = None,
        passes: Iterable[GraphPass] | None = None,
        codegen: str | None = None,
        context: Context | int | None = None,
    ) -> None:
        unit = devices.unit(resolve_place(place))
        self.place: Place = unit.place
        self.codegen = codegen
        capability = None if codegen is None else generator_capability(unit, codegen)
        get_context(self.place)
        self._owns_context = isinstance(context, int)
        self._context = _context_of(self.place, context)
        self._host = devices.host()
        mode = DEFAULT_MODE if mode is None else mode
        if mode not in MODES:
            raise ProgramError(f"mode is {mode!r}; expected one of {', '.join(MODES)}")
        if fallback is not None and fallback not in FALLBACKS:
            raise ProgramError(f"fallback is {fallback!r}; expected one of {', '.join(FALLBACKS)}")
        for names in check_mapping("libraries", libraries or {}, "a mapping of kinds of places to names").values():
            check_libraries(names)
        self.mode = mode
        self._passes: tuple[GraphPass, ...] | None = None
        self._executables: ExecutableCache | None = None
        self._fast_paths: FastPathCache | None = None  # None if runs must set a context first
        make_passes: Callable[[], PassList] | None = None
        if mode == "compiled":
            from fluidlite.compiler.executable.executable_cache import ExecutableCache
            from fluidlite.compiler.passes import PassList

            self._executables = ExecutableCache()
            self._fast_paths = self._executables.fast_paths if self._context is None else None
            if passes is not None:
                pass_list = PassList(passes)
                self._passes, make_passes = tuple(pass_list), lambda: pass_list
        self._graphs = GraphCache(self.place, make_passes)
        self._libraries = dict(libraries or {})
        self._fallback = fallback
        # closures that do not reference the executor, so that it is freed by its reference count
        own_passes, own_libraries, kind = self._passes, self._libraries, self.place.kind

        def preferences(base: Policy) -> Policy:
            base = base.with_libraries(own_libraries) if own_libraries else base
            base = replace(base, fallback=fallback) if fallback is not None else base
            return base.with_codegen(kind, capability) if capability is not None else base

        def bodies(where: Place) -> Executor:
            """Make the executor of a sub-block: with these settings, on the context of the run."""
            return Executor(where, own_libraries, fallback, mode, own_passes, codegen)

        if self._executables is not None:
            self._executables.bodies = bodies
        self._runner = GraphRunner(self.place, self._executables, bodies, preferences)
        self._lock = new_lock()
        self._pruned_programs: LRUCache[Program] = LRUCache(16, "parts of programs")
        self.closed = False

    def run(
        self,
        program: Program | Runnable | None = None,
        feed: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        fetch_list: Sequence[Variable | str] | Variable | str | None = None,
        feed_var_name: str = "feed",
        fetch_var_name: str = "fetch",
        scope: Scope | None = None,
        return_numpy: bool = True,
        use_program_cache: bool = True,
        return_merged: bool = True,
        use_prune: bool = False,
    ) -> list[Any]:
        """Run a program once.

        Parameters
        ----------
        program : Program or CompiledProgram, optional
            Default: the main program.
        feed : mapping of name to array or Tensor, optional
            Borrowed until the run returns, and not written.
        fetch_list : variables or names, optional
        feed_var_name, fetch_var_name, use_program_cache
            Fluid's, without effect: programs have no variables for feeds and fetches, and are always cached.
        scope : Scope, optional
            The scope of persistable variables; default: the global scope.
        return_numpy : bool
            Return NumPy arrays, or (False) tensors with LoD. Both own their memory.
        return_merged : bool
            For a program that runs on several places: concatenate their values, or (False) return a list by place.
        use_prune : bool
            Run only the operators that the fetches need, given the feeds: if only a loss is fetched, no parameter is
            updated. Feeds that these operators do not read are ignored.

        Returns
        -------
        list
            One value for each fetched variable.

        Raises
        ------
        EOFException
            If a reader of the program (``layers.py_reader``) has no more batches.
        FluidError
            One error with the operator and the user's line; later runs are not affected.
        """
        if program is None:
            program = default_main_program()
        if scope is None:
            scope = global_scope()
        if getattr(program, "readers", None):
            feed = fed_by_readers(program, feed, self.place)
        if use_prune is not False and check_bool("use_prune of Executor.run", use_prune):
            program, feed, fetch_list = self._prune(program, feed, fetch_list)
        if self._fast_paths is not None and return_numpy is True and type(program) is Program:
            entry = self._fast_paths.get(program.serial)
            if entry is not None:
                results: list[Any] | None = entry.call(program, feed, fetch_list, scope)
                if results is not None:
                    self._runner.last = None
                    return results
        if not (return_numpy.__class__ is use_program_cache.__class__ is return_merged.__class__ is bool):
            return_numpy = check_bool("return_numpy of Executor.run", return_numpy)
            return_merged = check_bool("return_merged of Executor.run", return_merged)
            check_bool("use_program_cache of Executor.run", use_program_cache)
        if not isinstance(program, Program) and hasattr(program, "run_on"):
            results = program.run_on(self, feed, fetch_list, scope, return_numpy, return_merged)
            return results
        if self._context is None or self.closed:
            return self._run_checked(program, feed, fetch_list, scope, return_numpy)
        if self._context.closed:
            raise ProgramError(f"the context of the executor on {self.place} is closed")
        with using(self._context):
            return self._run_checked(program, feed, fetch_list, scope, return_numpy)

    def _prune(self, program: Any, feed: Any, fetch_list: Any) -> tuple[Program, dict[str, Any], tuple[str, ...]]:
        """Return the pruned program that computes the fetches, the feeds that it reads, and the fetched names."""
        if not isinstance(program, Program):
            raise ProgramError(
                f"use_prune of Executor.run is for a Program, got {type(program).__name__}"
                "\n  Do: fluid.CompiledProgram(program.prune(fetch_list))"
            )
        if isinstance(feed, (list, tuple)) and len(feed) == 1:
            feed = feed[0]
        feeds = check_mapping("the feed", feed or {}, "a mapping of names to arrays")
        names = fetch_names(program, fetch_list)
        for name in feeds:
            program.global_block().own(name, "the feed")
        key = program.serial, program.edits, names, frozenset(feeds)
        part = self._pruned_programs.get(key, lambda: program.prune(names, [*feeds]))
        read = {name for block in part.blocks for op in block.ops for name in op.input_arg_names}
        return part, {name: value for name, value in feeds.items() if name in read or name in names}, names

    def _run_checked(self, program: Any, feed: Any, fetch_list: Any, scope: Scope, return_numpy: bool) -> list[Any]:
        """Check the arguments and run: the slow path, and that of executors with a context."""
        if self.closed:
            raise ProgramError("the executor is closed")
        if not isinstance(program, Program):
            raise ProgramError(f"Executor.run takes a Program, got {type(program).__name__}")
        if not isinstance(scope, Scope):
            raise ProgramError(f"scope is {type(scope).__name__}; expected a Scope\n  Do: scope=fluid.Scope()")
        if isinstance(feed, (list, tuple)):
            if len(feed) > 1:
                raise ProgramError(
                    f"the feed is a list of {len(feed)} mappings; an Executor has one place, give one mapping"
                )
            feed = feed[0] if feed else None
        if feed is not None and not isinstance(feed, Mapping):
            raise ProgramError(f"the feed is {type(feed).__name__}; expected a mapping of names to arrays")
        names = fetch_names(program, fetch_list)
        block = program.global_block()
        tensors = feed_tensors(block, feed, get_context(self._host)) if feed else {}
        fetched = self._run(program, tensors, names, scope)
        if return_numpy:
            for name, (_, spec) in zip(names, fetched, strict=True):
                if spec.lod:
                    raise FetchError(
                        f"variable {name!r} holds LoD of {spec.lod_level} level(s), {len(spec.lod[-1]) - 1} sequences, "
                        "which a NumPy array cannot"
                        "\n  Do: exe.run(..., return_numpy=False)"
                    )
            return [fetched_arrays(name, array, spec) for name, (array, spec) in zip(names, fetched, strict=True)]
        host = get_context(self._host)
        return [fetched_tensor(array, spec, host) for array, spec in fetched]

    def _run(self, program: Program, feeds: dict[str, Tensor], names: tuple[str, ...], scope: Scope) -> Fetched:
        """Run a program in the mode of the executor: from the executable cache, or by its graph."""
        key: Any = None
        fast_path: Callable[[], Signature] | None = None

        def make_signature() -> Signature:
            from fluidlite.compiler.executable.fast_path import Signature

            return Signature(program.serial, tuple(feeds), program=program, fetches=names)

        if self._executables is not None and not observers():
            feed_specs = tuple([(name, tensor.spec, tensor.place) for name, tensor in feeds.items()])
            key = program.serial, program.edits, feed_specs, names, get_context(self.place)
            fast_path = make_signature if self._fast_paths is not None else None
            cached_results = self._runner.run_cached(key, self._runner.policy(), feeds, scope, fast_path)
            if cached_results is not None:
                return cached_results
        policy = self._runner.policy()
        passes = self._executables is not None and (key is not None or not needs_interpreter())
        with self._lock:
            graph = self._graphs.get(program, names, policy, passes)
            if passes and share_written_memory(
                scope, graph.state
            ):  # state aliases: passes assume that variables do not
                graph, key = self._graphs.get(program, names, policy, False), None

        return self._runner.run(graph, feeds, scope, policy, key, fast_path, lambda: check_read(graph, feeds))

    def train_from_dataset(
        self,
        program: Program | Runnable | None = None,
        dataset: Dataset | None = None,
        scope: Scope | None = None,
        thread: int = 0,
        debug: bool = False,
        fetch_list: Sequence[Variable | str] | None = None,
        fetch_info: Sequence[str] | None = None,
        print_period: int = 100,
        fetch_handler: FetchHandler | None = None,
    ) -> None:
        """Run a program with each batch of a dataset, one after another.

        Parameters
        ----------
        program : Program or CompiledProgram, optional
            Default: the main program.
        dataset : QueueDataset or InMemoryDataset
            Made by ``fluid.DatasetFactory().create_dataset(...)``. Slots that the program does not have are ignored.
        scope : Scope, optional
            The scope of persistable variables; default: the global scope.
        thread : int
            Number of threads that make batches, at most that of the dataset; 0: that of the dataset.
        debug : bool
            Print the times of operators at the end.
        fetch_list : list of Variable or str, optional
            The variables that are printed at every ``print_period``-th batch.
        fetch_info : list of str, optional
            The text that is printed before each; default: the names.
        print_period : int
        fetch_handler : FetchHandler, optional
            Receives the values of variables periodically.

        Raises
        ------
        LoaderError
            If the dataset has no files, or a file has another format; earlier batches have run.
        """
        run_dataset(self, program, dataset, scope, thread, debug, fetch_list, fetch_info, print_period, fetch_handler)

    infer_from_dataset = train_from_dataset
    """The same as ``train_from_dataset``, including updates: pass a program without an optimizer, such as
    ``program.clone(for_test=True)``."""

    def explain_last(self) -> Report:
        """Return the report of the plan that ran last.

        Raises
        ------
        ProgramError
            If nothing was run yet.
        """
        plan = self._runner.last
        if plan is None and self._executables is not None:
            plan = self._executables.last_plan
        if plan is None:
            raise ProgramError("this executor has run nothing yet")
        executable = self._executables.last if self._executables is not None else None
        memory = executable.memory if executable is not None and executable.plan is plan else None
        return Report(plan, lambda: memory)

    @property
    def memory_plan(self) -> MemoryPlan:
        """The memory plan of the last run: bytes, live ranges and offsets of temporaries, and a plot.

        Raises
        ------
        ProgramError
            If nothing was linked to memory yet, or the executor is interpreted.
        """
        if self._executables is None:
            raise ProgramError("an interpreted executor has no memory plan: it runs operator by operator")
        return self._executables.last_executable().memory

    def sources(self) -> dict[str, str]:
        """Return the source texts of the last run, by file name.

        The files are those of ``Computation.sources``.

        Raises
        ------
        ProgramError
            If nothing was run yet, or if the interpreter ran all of it, as for startup programs.
        """
        from fluidlite.compiler.sources import sources_of

        last = self._executables.last if self._executables is not None else None
        return sources_of(last, list(last.plan.feeds) if last is not None else ())

    def write_sources(self, folder: str | Path) -> list[Path]:
        """Write :meth:`sources` to files in a folder, which is created if missing; return their paths."""
        from fluidlite.compiler.sources import write

        return write(self.sources(), folder)

    def cache_info(self) -> CacheReport:
        """Return statistics of the caches of this executor, and of its place, which all executors share.

        In the order of lookup: "executables" (plans with their memory), "plans", "graphs" (of programs); "prepared
        kernels" and "compiled kernels" of this thread's context; those of the device ("kernels on disk"); and that of
        all places ("loops on disk"). A hit ends the lookup; fast paths query none of them.
        """
        report = CacheReport()
        if self._executables is not None:
            report["executables"] = self._executables.info()
        report["plans"] = self._runner.plans.info()
        report["graphs"] = self._graphs.graphs.info()
        report.update((self._context or get_context(self.place)).cache_info())
        report["loops on disk"] = answers_info()
        return report

    def sibling(self, place: PlaceLike) -> Executor:
        """Return an executor with the same settings on another place; ``codegen`` only if both are of one kind."""
        codegen = self.codegen if resolve_place(place).kind == self.place.kind else None
        return Executor(place, self._libraries, self._fallback, self.mode, self._passes, codegen)

    def close(self) -> None:
        """Drop cached plans and their memory; later runs raise."""
        self._runner.clear()
        self._graphs.graphs.clear()
        self.closed = True
        if self._owns_context and self._context is not None:
            self._context.close()


set_default_executor(Executor)


def _context_of(place: Place, context: Context | int | None) -> Context | None:
    """Return the context that is passed to an executor, or a new one on a queue of its place."""
    if context is None or (isinstance(context, Context) and context.place == place and not context.closed):
        return context
    if not isinstance(context, Context):
        return new_context(place, context)
    reason = "it is closed" if context.place == place else f"it is one of {context.place}"
    raise PlaceError(f"an executor on {place} cannot use {context!r}: {reason}")
