"""``fluid.evaluator``: metrics that a program accumulates over runs; superseded by ``fluid.metrics``."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite import layers, unique_name
from fluidlite.base.absent import getattr_of
from fluidlite.base.errors import ProgramError
from fluidlite.initializer import Constant
from fluidlite.layer_helper import LayerHelper
from fluidlite.program.scope import global_scope
from fluidlite.program.variable import Variable

__all__ = ["ChunkEvaluator", "EditDistance"]


class Evaluator:
    """Base of evaluators: states of the main program that runs accumulate.

    Attributes
    ----------
    states : list of Variable
    metrics : list of Variable
        The metrics of a single run.
    """

    def __init__(self, name: str) -> None:
        self.states: list[Variable] = []
        self.metrics: list[Variable] = []
        self.helper = LayerHelper(name)

    def _accumulated(self, suffix: str, value: Variable, dtype: str) -> Variable:
        """Create a state to which each run adds a value."""
        state = self.helper.create_global_variable(
            persistable=True, name=unique_name.generate(f"{self.helper.name}.{suffix}"), shape=[1], dtype=dtype
        )
        self.helper.set_variable_initializer(state, Constant(0.0))
        added = layers.cast(value, dtype) if value.dtype != dtype else value
        layers.sums([state, layers.reshape(added, [1])], out=state)
        self.states.append(state)
        return state

    def _values(self) -> list[float]:
        values = []
        for state in self.states:
            variable = global_scope().find_var(state.name)
            if variable is None or not variable.get_tensor().initialized:
                raise ProgramError(f"the evaluator's state {state.name!r} has no value\n  Do: run the startup program")
            values.append(float(np.ravel(variable.get_tensor().numpy())[0]))
        return values

    def reset(self, executor: Any, reset_program: Any = None) -> None:
        """Set the states to 0.

        Parameters
        ----------
        executor : Executor
        reset_program : Program, optional
            Not used.
        """
        for state in self.states:
            tensor = global_scope().var(state.name).get_tensor()
            tensor.set(np.zeros(1, state.dtype), executor.place)


class ChunkEvaluator(Evaluator):
    """Precision, recall and F1 of chunks over several runs; see ``layers.chunk_eval``.

    Parameters
    ----------
    input, label : Variable
        Tags, of sequences.
    chunk_scheme, num_chunk_types, excluded_chunk_types
        As in ``layers.chunk_eval``.
    """

    def __init__(
        self,
        input: Variable,
        label: Variable,
        chunk_scheme: str,
        num_chunk_types: int,
        excluded_chunk_types: list[int] | None = None,
    ) -> None:
        super().__init__("chunk_evaluator")
        precision, recall, f1, inferred, labelled, correct = layers.chunk_eval(
            input, label, chunk_scheme, num_chunk_types, excluded_chunk_types
        )
        for suffix, value in (("infer", inferred), ("label", labelled), ("correct", correct)):
            self._accumulated(suffix, value, "int64")
        self.metrics += [precision, recall, f1]

    def eval(self, executor: Any, eval_program: Any = None) -> tuple[Any, Any, Any]:
        """Precision, recall and F1 of all runs since the last reset, each an array of one number."""
        inferred, labelled, correct = self._values()
        precision = correct / inferred if inferred else 0.0
        recall = correct / labelled if labelled else 0.0
        f1 = 2 * precision * recall / (precision + recall) if correct else 0.0
        return tuple(np.asarray([number], "float32") for number in (precision, recall, f1))  # type: ignore[return-value]


class EditDistance(Evaluator):
    """The mean edit distance and the fraction of sequences with errors, over several runs.

    Parameters
    ----------
    input, label : Variable
        Tokens, of sequences.
    ignored_tokens : list of int, optional
        Removed before the comparison.
    """

    def __init__(self, input: Variable, label: Variable, ignored_tokens: list[int] | None = None) -> None:
        super().__init__("edit_distance")
        distances, count = layers.edit_distance(input, label, ignored_tokens=ignored_tokens)
        zero = layers.fill_constant([1], "float32", 0.0)
        differs = layers.cast(layers.greater_than(distances, zero), "float32")
        self._accumulated("total", layers.reduce_sum(distances), "float32")
        self._accumulated("count", count, "int64")
        self._accumulated("wrong", layers.reduce_sum(differs), "int64")
        self.metrics += [layers.mean(distances), layers.mean(differs)]

    def eval(self, executor: Any, eval_program: Any = None) -> tuple[Any, Any]:
        """The mean distance and the fraction of sequences that differ, each an array of one number."""
        total, count, wrong = self._values()
        if not count:
            raise ProgramError("EditDistance: there were no sequences yet\n  Do: run the program first")
        return np.asarray([total / count], "float32"), np.asarray([wrong / count], "float32")


__getattr__ = getattr_of(__name__)
