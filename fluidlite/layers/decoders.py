"""Decoders define one step of decoding; their helpers choose words and the inputs of the next step."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

from fluidlite.base.dtypes import INTS
from fluidlite.base.errors import DtypeError
from fluidlite.layer_helper import check_float, check_function, check_int, check_variable, refuse
from fluidlite.layers.index import argmax, gather, sampling_id
from fluidlite.layers.nn import scale, softmax
from fluidlite.layers.ops import layer
from fluidlite.layers.shape import squeeze, transpose
from fluidlite.layers.slicing_padding import pad
from fluidlite.layers.tensor import cast, fill_constant, fill_constant_batch_size_like
from fluidlite.layers.utils import flatten, map_structure
from fluidlite.program.variable import Variable


class Decoder:
    """A decoder for :func:`~fluidlite.layers.dynamic_decode`: a subclass defines the start and one step."""

    def initialize(self, inits: Any) -> tuple[Any, Any, Variable]:
        """Return the inputs and states of the first step, and which sequences have ended before it, bool [batch, ...].

        Parameters
        ----------
        inits
            The argument of ``dynamic_decode``.
        """
        raise NotImplementedError(f"{type(self).__name__} must define initialize(inits)")

    def step(self, time: Variable, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any, Any, Variable]:
        """Append one step; return its outputs, the next states, the next inputs, and which sequences have ended.

        Parameters
        ----------
        time : Variable
            int64 [1]: the number of the step, from 0.
        inputs, states
            As returned by :meth:`initialize` or the previous step.
        """
        raise NotImplementedError(f"{type(self).__name__} must define step(time, inputs, states)")

    def finalize(self, outputs: Any, final_states: Any, sequence_lengths: Variable) -> tuple[Any, Any]:
        """Return outputs and states as users get them; optional. ``outputs`` are [steps, batch, ...]."""
        raise NotImplementedError

    @property
    def tracks_own_finished(self) -> bool:
        """Whether the decoder tracks itself which sequences have ended, as it reorders them between steps."""
        return False


class DecodeHelper:
    """A helper of BasicDecoder: a subclass defines the first inputs, the choice of words, and the next inputs."""

    def initialize(self) -> tuple[Any, Variable]:
        """Return the inputs of the first step, and which sequences have ended before it."""
        raise NotImplementedError(f"{type(self).__name__} must define initialize()")

    def sample(self, time: Variable, outputs: Any, states: Any) -> Variable:
        """Return the words chosen from a step's outputs."""
        raise NotImplementedError(f"{type(self).__name__} must define sample(time, outputs, states)")

    def next_inputs(self, time: Variable, outputs: Any, states: Any, sample_ids: Variable) -> tuple[Variable, Any, Any]:
        """Return which sequences have ended, the inputs of the next step, and the states."""
        raise NotImplementedError(f"{type(self).__name__} must define next_inputs(time, outputs, states, sample_ids)")


class TrainingHelper(DecodeHelper):
    """Teacher forcing: steps read the true inputs instead of the chosen words.

    Parameters
    ----------
    inputs : Variable, or a structure of Variables
        [batch, steps, ...], or [steps, batch, ...] if ``time_major``.
    sequence_length : Variable
        int32 or int64, [batch].
    time_major : bool
    """

    def __init__(self, inputs: Any, sequence_length: Variable, time_major: bool = False) -> None:
        for each in flatten(inputs):
            if len(check_variable("inputs", each).shape) < 2:
                refuse("inputs", each, "[batch, steps, ...], or [steps, batch, ...] with time_major=True")
        lengths = check_variable("sequence_length", sequence_length)
        if lengths.dtype not in INTS:
            refuse("sequence_length", lengths, "int32 or int64", error=DtypeError)
        if len(lengths.shape) != 1:
            refuse("sequence_length", lengths, "[batch]")
        self.inputs, self.sequence_length, self.time_major = inputs, lengths, time_major
        self._steps = map_structure(self._pad_steps, inputs)

    def _pad_steps(self, x: Variable) -> Variable:
        """[steps + 1, batch, ...]: the padded last step is read but not used."""
        rank = len(x.shape)
        steps = x if self.time_major else transpose(x, [1, 0, *range(2, rank)])
        return pad(steps, [0, 1] + [0, 0] * (rank - 1))

    def _at(self, step: Variable) -> Any:
        return map_structure(lambda x: squeeze(gather(x, step), [0]), self._steps)

    def initialize(self) -> tuple[Any, Variable]:
        """The first step; sequences of length 0 have ended."""
        none = fill_constant([1], self.sequence_length.dtype, 0)
        return self._at(fill_constant([1], "int64", 0)), layer("equal")(self.sequence_length, none)

    def sample(self, time: Variable, outputs: Any, states: Any) -> Variable:
        """The word with the highest score."""
        return argmax(outputs, axis=-1)

    def next_inputs(self, time: Variable, outputs: Any, states: Any, sample_ids: Variable) -> tuple[Variable, Any, Any]:
        """The next step of the inputs; a sequence ends by its length."""
        following = time + 1
        ended = layer("less_equal")(self.sequence_length, cast(following, self.sequence_length.dtype))
        return ended, self._at(following), states


class GreedyEmbeddingHelper(DecodeHelper):
    """Steps read the best word of the previous step.

    Parameters
    ----------
    embedding_fn : callable
        Computes inputs from words, int64 [batch].
    start_tokens : Variable
        int64, [batch]: the words of the first step.
    end_token : int
        The word that ends a sequence.
    """

    def __init__(self, embedding_fn: Callable[[Variable], Any], start_tokens: Variable, end_token: int) -> None:
        function = "a function of words, such as lambda ids: fluid.embedding(ids, size)"
        check_function("embedding_fn", embedding_fn, function)
        tokens = check_variable("start_tokens", start_tokens)
        if tokens.dtype != "int64":
            refuse("start_tokens", tokens, "int64", error=DtypeError)
        if len(tokens.shape) != 1:
            refuse("start_tokens", tokens, "[batch]")
        self.embedding_fn, self.start_tokens = embedding_fn, tokens
        self.end_token = check_int("end_token", end_token, 0)

    def initialize(self) -> tuple[Any, Variable]:
        """The inputs of ``start_tokens``; no sequence has ended."""
        ended = fill_constant_batch_size_like(self.start_tokens, [-1], "bool", 0)
        return self.embedding_fn(self.start_tokens), ended

    def sample(self, time: Variable, outputs: Any, states: Any) -> Variable:
        """The word with the highest score."""
        return argmax(outputs, axis=-1)

    def next_inputs(self, time: Variable, outputs: Any, states: Any, sample_ids: Variable) -> tuple[Variable, Any, Any]:
        """The inputs of the chosen words."""
        ended = layer("equal")(sample_ids, fill_constant([1], "int64", self.end_token))
        return ended, self.embedding_fn(sample_ids), states


class SampleEmbeddingHelper(GreedyEmbeddingHelper):
    """Steps read a word that is sampled by the probabilities of the previous step.

    Parameters
    ----------
    embedding_fn, start_tokens, end_token
        As of :class:`GreedyEmbeddingHelper`.
    softmax_temperature : float, optional
        Outputs are divided by it before their softmax; None: 1.
    seed : int, optional
    """

    def __init__(
        self,
        embedding_fn: Callable[[Variable], Any],
        start_tokens: Variable,
        end_token: int,
        softmax_temperature: float | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(embedding_fn, start_tokens, end_token)
        self.softmax_temperature = None
        if softmax_temperature is not None:
            self.softmax_temperature = check_float("softmax_temperature", softmax_temperature)
            if not self.softmax_temperature > 0:
                refuse("softmax_temperature", softmax_temperature, "a number above 0, or None")
        self.seed = 0 if seed is None else check_int("seed", seed)

    def sample(self, time: Variable, outputs: Any, states: Any) -> Variable:
        """A sampled word."""
        logits = outputs if self.softmax_temperature is None else scale(outputs, 1 / self.softmax_temperature)
        return sampling_id(softmax(logits), seed=self.seed, dtype="int64")


class BasicDecoder(Decoder):
    """A cell whose outputs choose one word in each step.

    Parameters
    ----------
    cell : RNNCell
    helper : DecodeHelper
    output_fn : callable, optional
        Computes scores of words from the cell's output, such as an fc.
    """

    OutputWrapper = namedtuple("OutputWrapper", ("cell_outputs", "sample_ids"))
    """Outputs of a step: the cell's outputs, through ``output_fn``, and the words."""

    def __init__(self, cell: Any, helper: DecodeHelper, output_fn: Callable[[Any], Any] | None = None) -> None:
        check_function("cell", cell, "an RNNCell")
        if not isinstance(helper, DecodeHelper):
            refuse("helper", helper, "a DecodeHelper, such as TrainingHelper or GreedyEmbeddingHelper")
        check_function("output_fn", output_fn, "a function, or None")
        self.cell, self.helper, self.output_fn = cell, helper, output_fn

    def initialize(self, inits: Any) -> tuple[Any, Any, Variable]:
        """``inits`` are the states of the cell."""
        if inits is None:
            refuse("inits", inits, "the states of the cell", "give those of an encoder, or cell.get_initial_states(x)")
        inputs, ended = self.helper.initialize()
        return inputs, inits, ended

    def step(self, time: Variable, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any, Any, Variable]:
        """One call of the cell; ``kwargs`` are passed to it."""
        outputs, next_states = self.cell(inputs, states, **kwargs)
        if self.output_fn is not None:
            outputs = self.output_fn(outputs)
        words = self.helper.sample(time, outputs, next_states)
        words.stop_gradient = True
        ended, following, next_states = self.helper.next_inputs(time, outputs, next_states, words)
        return self.OutputWrapper(outputs, words), next_states, following, ended
