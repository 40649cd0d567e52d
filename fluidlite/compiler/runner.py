"""Runs the graph of a computation: arrays of what it fetches, by argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fluidlite.base.errors import FetchError
from fluidlite.compiler.executable.executable_cache import ExecutableCache
from fluidlite.compiler.executable.fast_path import Signature
from fluidlite.compiler.executable.launch_report import Pieces, pieces
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
    """An executor of one graph: ``runner(arguments)`` returns fresh host arrays of what it fetches.

    Other dims of the arguments are planned and bound again.
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
        self.sign: Callable[[], Signature] | None = None
        self.graph, self.scope = graph, scope

    def __call__(self, arguments: Mapping[str, Tensor]) -> Arrays:
        """Run once; the arguments are borrowed until it returns."""
        given = tuple([(name, tensor.spec, tensor.place) for name, tensor in arguments.items()])
        key, wanted = (given, get_context(self.place)), self.policy()
        fetched = self.again(key, wanted, arguments, self.scope, self.sign)
        if fetched is None:
            fetched = self.run(self.graph, arguments, self.scope, wanted, key, self.sign)
        for name, (_, spec) in zip(self.graph.fetches, fetched, strict=True):
            if spec.lod:
                raise FetchError(
                    f"the result {name!r} has LoD, which a NumPy array cannot hold"
                    "\n  Do: Executor.run(..., return_numpy=False)"
                )
        return [array for array, _ in fetched]

    @property
    def memory_plan(self) -> MemoryPlan:
        """Where the temporaries of the last call lie; ProgramError if nothing was bound yet."""
        return self.executables.bound().memory

    @property
    def pieces(self) -> Pieces:
        """What the last call did: launches that are one call or one captured graph, and why other steps are alone.

        Raises ProgramError if nothing was bound yet.
        """
        return pieces(self.executables.bound())

    close = GraphRunner.clear
