"""BeamSearchDecoder: beam search over [batch, beams] with a user-defined cell."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np

from fluidlite.base.dtypes import FLOATS
from fluidlite.base.errors import AttributeValueError, ShapeError
from fluidlite.layer_helper import check_function, check_int, check_variable, refuse
from fluidlite.layers.beam_search import gather_tree
from fluidlite.layers.decoders import Decoder
from fluidlite.layers.index import gather, topk
from fluidlite.layers.nn import softmax
from fluidlite.layers.ops import layer
from fluidlite.layers.shape import reshape, shape, unsqueeze
from fluidlite.layers.slicing_padding import expand, slice
from fluidlite.layers.tensor import assign, cast, fill_constant, fill_constant_batch_size_like
from fluidlite.layers.utils import flatten, map_structure
from fluidlite.program.variable import Variable

IMPOSSIBLE_LOG_PROB = -1e9
"""The log probability of impossible continuations, as in Fluid."""


class BeamSearchDecoder(Decoder):
    """Searches the ``beam_size`` likeliest prefixes of each sequence; for :func:`~fluidlite.layers.dynamic_decode`.

    Parameters
    ----------
    cell : RNNCell
        Its initial states are [batch, ...]; it is called with [batch * beam_size, ...].
    start_token, end_token : int
        The words that begin and end a sequence.
    beam_size : int
    embedding_fn : callable, optional
        Computes the cell's inputs from words, int64 [batch, beams], such as ``lambda ids: fluid.embedding(ids, size)``.
    output_fn : callable, optional
        Computes scores before softmax, [batch, beam_size, words], from the cell's outputs, [batch, beam_size, ...].

    Notes
    -----
    Decoded, the outputs are words, int64 [batch, steps, beam_size], the best beam first; beams that end before the last
    step are continued with ``end_token``. ``final_states.log_probs`` are the logarithms of their probabilities, and
    ``final_states.lengths`` how long they are, with ``end_token``. Source: Fluid 1.7 ``layers/rnn.py``.
    """

    OutputWrapper = namedtuple("OutputWrapper", ("scores", "predicted_ids", "parent_ids"))
    """Outputs of a step, each [batch, beam_size]: scores, words, and the parent beams that they continue."""
    StateWrapper = namedtuple("StateWrapper", ("cell_states", "log_probs", "finished", "lengths"))
    """The cell's states, [batch, beam_size, ...], and of each beam its score, whether it ended, and its length."""

    def __init__(
        self,
        cell: Any,
        start_token: int,
        end_token: int,
        beam_size: int,
        embedding_fn: Callable[[Variable], Any] | None = None,
        output_fn: Callable[[Any], Any] | None = None,
    ) -> None:
        check_function("cell", cell, "an RNNCell")
        check_function("embedding_fn", embedding_fn, "a function, or None")
        check_function("output_fn", output_fn, "a function, or None")
        self.cell, self.embedding_fn, self.output_fn = cell, embedding_fn, output_fn
        self.start_token = check_int("start_token", start_token, 0)
        self.end_token = check_int("end_token", end_token, 0)
        self.beam_size = check_int("beam_size", beam_size, 1)

    @staticmethod
    def tile_beam_merge_with_batch(x: Variable, beam_size: int) -> Variable:
        """Return each row of [batch, ...] ``beam_size`` times, consecutively: [batch * beam_size, ...].

        Tensors that a cell reads besides its states, such as encoder outputs for attention, need this form.

        Parameters
        ----------
        x : Variable
            [batch, ...]
        beam_size : int
        """
        dims = _dims("x", x, 1)
        repeated = _to_beams(x, check_int("beam_size", beam_size, 1))
        return reshape(repeated, [-1, *dims])

    def _split(self, x: Variable) -> Variable:
        """[batch * beams, ...] as [batch, beams, ...]."""
        return reshape(x, [-1, self.beam_size, *_dims("cell", x, 1)])

    def _merge(self, x: Variable) -> Variable:
        """[batch, beams, ...] as [batch * beams, ...]."""
        return reshape(x, [-1, *_dims("embedding_fn", x, 2)])

    def _gather(self, x: Variable, beams: Variable) -> Variable:
        """Reorder the beams of each sequence."""
        count = x.shape[1]
        first = cast(layer("cumsum")(self._ones, axis=0, exclusive=True), "int64") * count
        at = reshape(layer("elementwise_add")(beams, first), [-1])
        return self._split(gather(self._merge(x), at))

    def initialize(self, inits: Any) -> tuple[Any, Any, Variable]:
        """``inits`` are states of the cell, [batch, ...]. Only the first beam of each sequence is possible at first."""
        if inits is None:
            refuse("inits", inits, "the states of the cell", "give those of an encoder, or cell.get_initial_states(x)")
        states = map_structure(lambda x: _to_beams(x, self.beam_size), inits)
        reference, dims = flatten(inits)[0], [-1, self.beam_size]
        words = fill_constant_batch_size_like(reference, dims, "int64", self.start_token)
        dtype = next((x.dtype for x in flatten(inits) if x.dtype in FLOATS), "float32")
        zeros = fill_constant_batch_size_like(reference, dims, dtype, 0.0)
        first_beam_scores = np.full(self.beam_size, IMPOSSIBLE_LOG_PROB, dtype)
        first_beam_scores[0] = 0
        scores = layer("elementwise_add")(zeros, assign(first_beam_scores))
        ended = fill_constant_batch_size_like(reference, dims, "bool", 0)
        lengths = fill_constant_batch_size_like(reference, dims, "int64", 0)
        self._ones = fill_constant_batch_size_like(reference, dims, "int64", 1)
        inputs = words if self.embedding_fn is None else self.embedding_fn(words)
        return inputs, self.StateWrapper(states, scores, ended, lengths), ended

    def step(self, time: Variable, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any, Any, Variable]:
        """One call of the cell, and one selection; ``kwargs`` are passed to the cell."""
        merged = map_structure(self._merge, states.cell_states)
        outputs, cell_states = self.cell(map_structure(self._merge, inputs), merged, **kwargs)
        outputs, cell_states = map_structure(self._split, outputs), map_structure(self._split, cell_states)
        if self.output_fn is not None:
            outputs = self.output_fn(outputs)
        output, state = self._beam_search_step(check_variable("output_fn", outputs), cell_states, states)
        words = output.predicted_ids
        following = words if self.embedding_fn is None else self.embedding_fn(words)
        return output, state, following, state.finished

    def _beam_search_step(self, logits: Variable, cell_states: Any, states: Any) -> tuple[Any, Any]:
        """Select the best of all continuations; a beam that ended has one, ``end_token``, and keeps its score."""
        if len(logits.shape) != 3 or logits.shape[1] != self.beam_size or logits.shape[2] < 1:
            refuse(
                "output_fn",
                logits,
                f"scores [batch, {self.beam_size}, words] with known words",
                error=ShapeError,
                do="let output_fn be an fc with num_flatten_dims=2",
            )
        count = logits.shape[2]
        if self.end_token >= count:
            refuse(
                "end_token",
                self.end_token,
                f"a word below {count}: output_fn scores so many",
                error=AttributeValueError,
            )
        if self.start_token >= count and self.embedding_fn is None:
            refuse("start_token", self.start_token, f"a word below {count}", error=AttributeValueError)
        log_probs = layer("log")(softmax(logits))
        ended = cast(states.finished, logits.dtype)
        continued = layer("elementwise_mul")(log_probs, 1 - ended, axis=0)
        end_scores = np.full(count, IMPOSSIBLE_LOG_PROB, logits.dtype)
        end_scores[self.end_token] = 0
        stopped = layer("elementwise_mul")(expand(unsqueeze(ended, [2]), [1, 1, count]), assign(end_scores))
        scores = layer("elementwise_add")(continued + stopped, states.log_probs, axis=0)
        best, indices = topk(reshape(scores, [-1, self.beam_size * count]), k=self.beam_size)
        number = fill_constant([1], "int64", count)
        parents, words = layer("elementwise_floordiv")(indices, number), layer("elementwise_mod")(indices, number)
        was_ended = self._gather(states.finished, parents)
        lengths = self._gather(states.lengths, parents)
        new_lengths = lengths + cast(layer("logical_not")(was_ended), "int64")
        end = fill_constant([1], "int64", self.end_token)
        is_ended = layer("logical_or")(was_ended, layer("equal")(words, end))
        cells = map_structure(lambda x: self._gather(x, parents), cell_states)
        for output in (words, parents, is_ended, new_lengths):
            output.stop_gradient = True
        return self.OutputWrapper(best, words, parents), self.StateWrapper(cells, best, is_ended, new_lengths)

    def finalize(self, outputs: Any, final_states: Any, sequence_lengths: Variable) -> tuple[Any, Any]:
        """Words of each beam of the last step, traced back: int64 [steps, batch, beam_size]."""
        return gather_tree(outputs.predicted_ids, outputs.parent_ids), final_states

    @property
    def tracks_own_finished(self) -> bool:
        """True: beams are reordered, so the states track which have ended."""
        return True


def _dims(argument: str, x: Any, begin: int) -> list[Any]:
    """The dims of a variable from ``begin`` on; Variables for dims that are unknown before a run."""
    dims = check_variable(argument, x).shape
    if len(dims) < begin:
        refuse(argument, x, "[batch, ...]", error=ShapeError)
    return [dims[i] if dims[i] >= 0 else slice(shape(x), [0], [i], [i + 1]) for i in range(begin, len(dims))]


def _to_beams(x: Variable, beam_size: int) -> Variable:
    """[batch, ...] as [batch, beams, ...], with equal beams."""
    rank = len(check_variable("inits", x).shape)
    return expand(unsqueeze(x, [1]), [1, beam_size, *[1] * (rank - 1)])
