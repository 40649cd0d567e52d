"""Runs the graph of a computation: takes tensors by argument name, returns arrays of its fetches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fluidlite.base.errors import FetchError
from fluidlite.compiler.executable.executable_cache import ExecutableCache
from fluidlite.compiler.executable.fast_path import Signature
from fluidlite.compiler.executable.launch_report import LaunchGroups, launch_groups
from fluidlite.compiler.graph_runner import GraphRunner
from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.memory.memory_plan import MemoryPlan
from fluidlite.compiler.policy import Policy
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.place import Place
from fluidlite.program.scope import Scope
from fluidlite.tensor.tensor import Tensor

Arrays = list[np.ndarray[Any, Any]]


class Runner(GraphRunner):
    """An executor of one graph: ``runner(arguments)`` returns new host arrays of its fetches.

    Arguments with other dims get another plan and executable.
    """

    executables: ExecutableCache

    def __init__(
        self,
        graph: Graph,
        place: Place,
        scope: Scope,
        executables: ExecutableCache | None = None,
        preferences: Callable[[Policy], Policy] | None = None,
    ) -> None:
        executables = executables if executables is not None else ExecutableCache()
        super().__init__(place, executables, preferences=preferences)
        self.make_signature: Callable[[], Signature] | None = None
        self.graph, self.scope = graph, scope

    def __call__(self, arguments: Mapping[str, Tensor]) -> Arrays:
        """Run once; the arguments are borrowed until it returns."""
        argument_specs = tuple([(name, tensor.spec, tensor.place) for name, tensor in arguments.items()])
        key, policy = (argument_specs, get_context(self.place)), self.policy()
        fetched = self.run_cached(key, policy, arguments, self.scope, self.make_signature)
        if fetched is None:
            fetched = self.run(self.graph, arguments, self.scope, policy, key, self.make_signature)
        for name, (_, spec) in zip(self.graph.fetches, fetched, strict=True):
            if spec.lod:
                raise FetchError(
                    f"the result {name!r} has LoD, which a NumPy array cannot hold"
                    "\n  Do: Executor.run(..., return_numpy=False)"
                )
        return [array for array, _ in fetched]

    @property
    def memory_plan(self) -> MemoryPlan:
        """The memory plan of the last call; raises ProgramError if nothing was linked yet."""
        return self.executables.last_executable().memory

    @property
    def pieces(self) -> LaunchGroups:
        """The launch groups of the last call: merged launches or captured graphs, and why other steps are unbatched.

        Raises ProgramError if nothing was linked yet.
        """
        return launch_groups(self.executables.last_executable())

    close = GraphRunner.clear
