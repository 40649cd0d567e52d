"""Run a recipe in one mode."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.platform.place import Place
from fluidlite.tensor.tensor import Tensor
from fluidlite.testing.fuzz.recipe import Built, Recipe
from fluidlite.testing.fuzz.tolerance import Array

Results = list[dict[str, Array]]


class RunFailed(Exception):
    """A run raised an error; ``turn`` is the number of the run."""

    def __init__(self, error: BaseException, turn: int) -> None:
        super().__init__(str(error))
        self.error = error
        self.turn = turn


def new_scope(recipe: Recipe, place: Place) -> Any:
    """Return a scope with the initial state."""
    from fluidlite.program.scope import Scope

    scope = Scope()
    for name, array in recipe.state.items():
        scope.var(name).get_tensor().set(array, place)
    return scope


def execute(recipe: Recipe, built: Built, executor: Any, scope: Any, place: Place) -> Results:
    """Execute all runs; return the fetched values and the state after each.

    Raises RunFailed.
    """
    names = [*recipe.fetches, *built.gradients.values()]
    results: Results = []
    for turn, run in enumerate(recipe.runs):
        feed = {
            n: Tensor().set(a, None, [list(x) for x in recipe.lods[n]]) if n in recipe.lods else a
            for n, a in run.items()
        }
        fed_bytes = {name: array.tobytes() for name, array in run.items()}
        try:
            values = executor.run(built.program, feed=feed, fetch_list=names, scope=scope, return_numpy=False)
            values_by_name = {name: np.array(value.numpy()) for name, value in zip(names, values, strict=True)}
            for name in recipe.state:
                values_by_name["state " + name] = np.array(scope.find_var(name).get_tensor().numpy())
            memory = executor.explain_last().memory
            if memory is not None:
                memory.verify()
        except Exception as error:
            raise RunFailed(error, turn) from error
        for name, array in run.items():
            if array.tobytes() != fed_bytes[name]:
                raise RunFailed(AssertionError(f"the run wrote into its feed {name!r}"), turn)
        results.append(values_by_name)
    return results
