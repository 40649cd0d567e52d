"""Transformer: makes computations on a place, and owns the state that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fluidlite.base.dtypes import NUMPY
from fluidlite.base.errors import ProgramError
from fluidlite.base.fork import new_rlock
from fluidlite.base.lru_cache import CacheReport, total
from fluidlite.base.weak_objects import WeakObjects
from fluidlite.compiler.arguments import Argument, as_declared_array, filled_array
from fluidlite.compiler.computation import Computation
from fluidlite.compiler.executable.executable_cache import ExecutableCache
from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.ir.graph_nodes import GraphOp
from fluidlite.compiler.ir.node import Node
from fluidlite.compiler.memory.storage import DeviceBufferStorage, DeviceTensor, allocate_buffers
from fluidlite.compiler.passes import GraphPass, PassList, default_passes
from fluidlite.compiler.policy import Policy
from fluidlite.compiler.runner import Runner
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place, PlaceLike
from fluidlite.program.codegen_registry import generator_capability
from fluidlite.program.program import Program, default_startup_program
from fluidlite.program.scope import Scope
from fluidlite.program.variable import Variable
from fluidlite.render.loops.guarded_cache import cache_info as answers_info
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Spec
from fluidlite.tensor.transfer import borrow

Executor = Callable[[Mapping[str, Tensor]], Sequence[Any]]


class Transformer:
    """Makes computations of a graph and runs them on a place.

    Parameters
    ----------
    place : Place or str, optional
        The place of computations and state; default: the host's.
    seed : int, optional
        Key of the random operators of its computations; default: that of the program. 0: drawn once for each process.
    codegen : str, optional
        The code generator whose kernels it uses: one of :func:`codegen_choices`. Default: the best of each.

    Attributes
    ----------
    scope : Scope
        The state: variables and persistent tensors, shared by all of its computations.
    computations : list of Computation
    graph_passes : PassList
        The passes that change the graph of a computation before its first run, in order: a list of GraphPass that
        shows the phase of each. Another list may be assigned.

    Raises
    ------
    PlaceError, DeviceUnavailable
        If the place cannot be used, or has no such generator.

    Notes
    -----
    A subclass may override :meth:`transform_ordered_ops` to run programs differently, and :meth:`allocate` to
    initialise state; :meth:`device_buffer_storage` and :meth:`device_tensor` make the memory of temporaries, which is
    allocated between :meth:`start_transform_allocate` and :meth:`finish_transform_allocate`.
    """

    def __init__(self, place: PlaceLike | None = None, seed: int | None = None, codegen: str | None = None) -> None:
        self.place: Place = devices.unit(place).place if place is not None else devices.host()
        self.codegen = codegen
        self._capability = None if codegen is None else generator_capability(devices.unit(self.place), codegen)
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise ProgramError(f"the seed of a transformer is {seed!r}; expected an int")
        self.seed = seed
        self.scope = Scope()
        self.computations: list[Computation] = []
        self._graph_passes = default_passes()
        self.lock = new_rlock()
        self.closed = False
        self._buffers: WeakObjects[DeviceBufferStorage] = WeakObjects()
        self._initialised = False
        self._active_calls = 0  # in progress; more than one if an operator calls back
        self._startups: dict[str, Program] = {}

    # Computations

    def computation(self, results: Any, *parameters: Any, copy: bool = True) -> Computation:
        """Make a computation; before or after others have run.

        Parameters
        ----------
        results : Variable, action, operator, list, tuple, set or dict of them, or None
            The results of a call. Only what they need runs: an assignment that no result needs does not run.
        *parameters : Variable
            The values that receive the arguments of a call: every placeholder that the results need; variables and
            persistent tensors, whose stored value a call then sets; others whose ``is_input`` is True.
        copy : bool
            Results are copies. False: on the host they are read-only views of the memory of temporaries or state, which
            later calls overwrite.

        Raises
        ------
        ValueError
            For a placeholder that is used and not listed, a parameter that cannot be given or is listed twice, a
            result that is none, a temporary that is read before it is assigned, or contradicting ``sequential``.
        """
        self._check_open()
        computation = Computation(self, results, parameters, copy)
        with self.lock:
            startup = default_startup_program()
            for variable in computation.state:
                if not isinstance(variable, Node):
                    self._startups.setdefault(variable.name, startup)
            self.computations.append(computation)
        return computation

    def transform_ordered_ops(self, computation: Computation, ordered_ops: Sequence[GraphOp]) -> Executor:
        """Make the executor of a computation from its operators, in the order of execution.

        Returns
        -------
        callable
            Takes tensors by argument name, returns one new array for each of ``computation.fetches``.
        """
        executables = ExecutableCache(self._new_buffer, self.device_tensor, computation.copy, self._transform_allocate)
        assert computation.transformed is not None
        return self._runner(computation.transformed, executables)

    def _runner(self, graph: Graph, executables: ExecutableCache | None = None) -> Runner:
        return Runner(graph, self.place, self.scope, executables, self.preferences)

    def preferences(self, policy: Policy) -> Policy:
        """Return a policy with the code generator of this transformer."""
        return policy if self._capability is None else policy.with_codegen(self.place.kind, self._capability)

    @property
    def runs_itself(self) -> bool:
        """Whether :meth:`run` is not overridden; calls may then take fast paths."""
        return type(self).run is Transformer.run

    def device_buffer_storage(self, context: Context) -> DeviceBufferStorage:
        """Make the storage for the temporaries of a computation on a place; it is empty at first."""
        return DeviceBufferStorage(context)

    def _new_buffer(self, context: Context) -> DeviceBufferStorage:
        storage = self.device_buffer_storage(context)
        if isinstance(storage, DeviceBufferStorage):
            self._buffers.add(storage)
        return storage

    @property
    def device_buffers(self) -> tuple[DeviceBufferStorage, ...]:
        """The storages of its computations, allocated or not."""
        return tuple(self._buffers)

    def _transform_allocate(self, buffers: Sequence[DeviceBufferStorage]) -> None:
        self.start_transform_allocate()
        allocate_buffers(buffers)
        self.finish_transform_allocate()

    def start_transform_allocate(self) -> None:
        """Hook: called before the buffers of a computation are allocated, each by its ``transform_allocate``.

        Buffers are allocated when the computation is linked: before its first call, and again if other dims need more.
        The call raises what this hook raises; the next call tries again.
        """

    def finish_transform_allocate(self) -> None:
        """Hook: called after the buffers are allocated, before kernels are linked to them."""

    def device_tensor(self, storage: DeviceBufferStorage, spec: Spec, offset: int) -> Tensor:
        """Make a tensor with metadata ``spec`` at ``offset`` bytes of a storage."""
        return DeviceTensor.at(storage, spec, offset)

    # Passes

    @property
    def graph_passes(self) -> PassList:
        """The passes, in order of execution."""
        return self._graph_passes

    @graph_passes.setter
    def graph_passes(self, passes: Iterable[GraphPass]) -> None:
        if not isinstance(passes, Iterable):
            raise ProgramError(f"the passes of a transformer are {passes!r}; expected a list of GraphPass")
        self._graph_passes = passes if isinstance(passes, PassList) else PassList(passes)

    def register_graph_pass(self, graph_pass: GraphPass, phase: str | None = None) -> None:
        """Add a pass after those of its phase; it applies to computations that have not run yet.

        Parameters
        ----------
        graph_pass : GraphPass
        phase : str, optional
            For example ``"simplify"`` or ``"fuse"``; default: the phase of the pass.

        Raises
        ------
        ValueError
            If it is no :class:`GraphPass`, or there is no such phase.
        """
        self._graph_passes.add(graph_pass, phase)

    def run_registered_graph_passes(self, graph: Graph) -> None:
        """Run the passes on the graph of a computation, in order; a verifier runs after each.

        Raises
        ------
        ProgramError
            If a pass raises or breaks the graph; names the pass and its plugin.
        """
        self.graph_passes.run(graph)

    # State

    def initialize(self) -> None:
        """Make the executors of all computations, and initialise state without a value; calls do so when needed.

        If a subclass overrides it, it is called before the first call of a computation.
        """
        self._check_open()
        self._initialised = True
        with self.lock:
            for computation in self.computations:
                self._initialize(computation, frozenset())

    def _first_call(self) -> None:
        """Call :meth:`initialize` if a subclass overrides it; else computations are initialised at their first call."""
        self._initialised = True  # before the call: it may call computations
        try:
            if type(self).initialize is not Transformer.initialize:
                self.initialize()
        except BaseException:
            self._initialised = False
            raise

    def _initialize(self, computation: Computation, arguments: frozenset[str]) -> None:
        computation.transform()
        self.allocate([v for v in computation.state if v.name not in arguments])

    def _has(self, name: str) -> bool:
        variable = self.scope.find_var(name)
        return variable is not None and variable.tensor.initialized

    def allocate_storage(self, state: Iterable[Variable]) -> None:
        """Create a variable of the scope for each state variable without a value.

        Memory is allocated when values are set.
        """
        for variable in state:
            self.scope.var(variable.name)

    def allocate(self, state: Iterable[Variable] | None = None) -> None:
        """Create state without a value by :meth:`allocate_storage`, and set its initial value.

        Parameters
        ----------
        state : iterable of Variable, optional
            Default: the state of all computations.
        """
        if state is None:
            state = {v.name: v for each in self.computations for v in each.state}.values()
        state = [variable for variable in state if not self._has(variable.name)]
        self.allocate_storage(state)
        from_startup: dict[int, tuple[Program, list[str]]] = {}
        for variable in state:
            initial = variable.initial if isinstance(variable, Node) else None
            if initial is not None:
                self.set_state(variable, self._initial_value(variable, initial))
            elif variable.name in self._startups:
                startup = self._startups[variable.name]
                if variable.name in startup.global_block().vars:
                    from_startup.setdefault(id(startup), (startup, []))[1].append(variable.name)
        for startup, names in from_startup.values():
            pruned = startup.prune(names)
            if self.seed is not None:
                pruned.random_seed = self.seed
            self._runner(Graph(pruned, ()).finished())({})

    def _initial_value(self, variable: Variable, initial: Any) -> np.ndarray[Any, Any]:
        if isinstance(initial, Variable):
            return as_declared_array(variable, Computation(self, initial, ())(), "initial value")
        return filled_array(variable, initial(variable._spec().dims) if callable(initial) else initial, "initial value")

    def set_state(self, variable: Variable, value: np.ndarray[Any, Any]) -> None:
        """Overwrite the stored value of a variable or persistent tensor."""
        array = value.astype(NUMPY[variable.dtype], copy=False)
        self.scope.var(variable.name).tensor.set(array, self.place)

    # Calls

    def run(
        self, computation: Computation, arguments: Mapping[Variable, Argument], unset: Sequence[str]
    ) -> Sequence[Any]:
        """Run a computation with checked arguments; called by :meth:`Computation.__call__`."""
        self._check_open()
        if not self._initialised:
            self._first_call()
        if len(arguments) > 1 and any(variable.persistable for variable in arguments):
            # an argument may be a view of state that another one sets
            arguments = {variable: value._replace(array=np.array(value.array)) for variable, value in arguments.items()}
        state = {variable: value.array for variable, value in arguments.items() if variable.persistable}
        if not computation.valid:
            names = frozenset(variable.name for variable in state)
            self._initialize(computation, names)
            for name in unset:
                if not self._has(name) and name not in names:
                    raise ProgramError(
                        f"{name!r} has no value yet"
                        "\n  Do: give it an initial_value, assign it first, or pass it as an argument"
                    )
            computation.valid = True
        for variable, value in state.items():
            self.set_state(variable, value)
        host = get_context(devices.host())
        tensors = {
            variable.name: borrow(value.array, Spec.of(value.array.shape, variable.dtype, value.lod), host)
            for variable, value in arguments.items()
            if not variable.persistable
        }
        executor = computation.executor
        assert executor is not None
        self._active_calls += 1
        try:
            results = executor(tensors)
        finally:
            self._active_calls -= 1
        return results

    def cache_info(self) -> CacheReport:
        """Return statistics of the caches of its computations, in sum, and of its place.

        Caches are "executables" and "plans"; "prepared kernels" and "compiled kernels" of this thread's context; those
        of the device ("kernels on disk"); and that of all places ("loops on disk"). Fast paths query none of them.
        """
        with self.lock:
            runners = [c.executor for c in self.computations if isinstance(c.executor, Runner)]
        report = CacheReport()
        report["executables"] = total(runner.executables.info() for runner in runners)
        report["plans"] = total(runner.plans.info() for runner in runners)
        report.update(get_context(self.place).cache_info())
        report["loops on disk"] = answers_info()
        return report

    # End

    def close(self) -> None:
        """Drop state and executors; later calls raise.

        Raises
        ------
        ProgramError
            If an operator of a computation that is running calls it.
        """
        with self.lock:
            if self._active_calls:
                raise ProgramError("the transformer cannot be closed while it runs\n  Do: close() after the call")
            self.closed = True
            for computation in self.computations:
                close = getattr(computation.executor, "close", None)
                if close is not None:
                    close()
                computation.executor = None
            self.computations.clear()
            self.scope = Scope()

    def _check_open(self) -> None:
        if self.closed:
            raise ProgramError("the transformer is closed\n  Do: make_transformer()")

    def __enter__(self) -> Transformer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.place}, {len(self.computations)} computations>"
