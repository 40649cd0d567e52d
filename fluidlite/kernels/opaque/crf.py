"""linear_chain_crf with its gradient, and crf_decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fluidlite.plugin import IO, Call, Context, KernelOptions, register_kernel

from .chain import Array, Chains, log_sum_exp
from .ragged import lengths_of

FLOATS = ("float32", "float64")


class SequenceSteps:
    """The steps of all sequences, concatenated: all rows of a LoD tensor, or those of a padded one without padding."""

    def __init__(self, call: Call, io: IO) -> None:
        self.inside: Array | None = None
        x = io.array("Emission")
        if io.has("Length"):
            lengths = lengths_of(io, "Length", x.shape[1], "Emission")
            self.inside = np.arange(x.shape[1]) < lengths[:, None]
            self.offsets: Sequence[int] = np.cumsum([0, *lengths]).tolist()
        else:
            self.offsets = call.lod("Emission")[-1]
        self.chains = Chains(self.read(x), io.array("Transition"), self.offsets)

    def read(self, array: Array) -> Array:
        """Return the steps of an array with the layout of Emission."""
        return array if self.inside is None else array[self.inside]

    def write(self, array: Array, steps: Array) -> None:
        """Write steps to an array with the layout of Emission, and 0 to its padding."""
        if self.inside is None:
            array[...] = steps
        else:
            array[...] = 0
            array[self.inside] = steps

    def labels(self, context: Context, io: IO) -> Array:
        """Return the label of each step; raise OutOfRangeError for a label out of range."""
        label = io.array("Label")
        label = label.reshape(-1) if self.inside is None else self.read(label.reshape(self.inside.shape))
        labels: Array = context.check_index(label, self.chains.tags, io)
        return labels.astype(np.int64, copy=False)


@register_kernel("linear_chain_crf", "cpu", dtypes=FLOATS, options=KernelOptions(indexes=True))
def linear_chain_crf(call: Call, context: Context) -> Any:
    """LogLikelihood = log(sum over paths of exp(score)) - score of the labelled path, one row a sequence."""

    def run(context: Context, io: IO) -> None:
        steps = SequenceSteps(call, io)
        chains, labels = steps.chains, steps.labels(context, io)
        forward = chains.forward()
        if io.has("Alpha"):
            steps.write(io.array("Alpha"), np.exp(forward - log_sum_exp(forward, 1)[:, None]))
        if io.has("EmissionExps"):
            steps.write(io.array("EmissionExps"), np.exp(chains.emission - chains.emission.max(1, keepdims=True)))
        if io.has("TransitionExps"):
            io.array("TransitionExps")[...] = np.exp(io.array("Transition"))
        score = chains.emission[np.arange(len(labels)), labels]
        score[chains.firsts] += chains.first[labels[chains.firsts]]
        score[chains.lasts] += chains.last[labels[chains.lasts]]
        for rows in chains.pairs():
            score[rows] += chains.step[labels[rows - 1], labels[rows]]
        out = io.array("LogLikelihood").reshape(-1)
        out[...] = 0
        if len(chains.filled):
            out[chains.filled] = chains.totals(forward) - np.add.reduceat(score, chains.firsts)

    return run


@register_kernel("linear_chain_crf_grad", "cpu", dtypes=FLOATS, options=KernelOptions(indexes=True))
def linear_chain_crf_grad(call: Call, context: Context) -> Any:
    """Probabilities of tags and of pairs of tags, minus the labelled ones, times LogLikelihood@GRAD."""

    def run(context: Context, io: IO) -> None:
        steps = SequenceSteps(call, io)
        chains, labels = steps.chains, steps.labels(context, io)
        forward, backward = chains.forward(), chains.backward()
        sequence_of_step = np.repeat(np.arange(len(chains.filled)), chains.lengths[chains.filled])
        weight = io.array("LogLikelihood@GRAD").reshape(-1).astype(np.float64)[chains.filled][sequence_of_step]
        total = chains.totals(forward)[sequence_of_step]
        grad = np.exp(forward + backward - total[:, None])
        grad[np.arange(len(labels)), labels] -= 1
        grad *= weight[:, None]
        if io.has("Emission@GRAD"):
            steps.write(io.array("Emission@GRAD"), grad)
        if io.has("Transition@GRAD"):
            transition_grad = np.zeros_like(chains.step)
            for rows in chains.pairs():
                onward = (chains.emission[rows] + backward[rows])[:, None, :] - total[rows][:, None, None]
                pairs = np.exp(forward[rows - 1][:, :, None] + chains.step + onward)
                transition_grad += np.tensordot(weight[rows], pairs, 1)
                np.add.at(transition_grad, (labels[rows - 1], labels[rows]), -weight[rows])
            out = io.array("Transition@GRAD")
            out[0], out[1] = grad[chains.firsts].sum(0), grad[chains.lasts].sum(0)
            out[2:] = transition_grad

    return run


@register_kernel("crf_decoding", "cpu", dtypes=FLOATS)
def crf_decoding(call: Call, context: Context) -> Any:
    """ViterbiPath = the best path's tags; with Label, 1 where they agree with it and 0 elsewhere."""

    def run(context: Context, io: IO) -> None:
        steps, out = SequenceSteps(call, io), io.array("ViterbiPath")
        path = steps.chains.best()
        if io.has("Label"):
            label = io.array("Label")
            path = path == (label.reshape(-1) if steps.inside is None else steps.read(label.reshape(out.shape)))
        steps.write(out, path if steps.inside is not None else path.reshape(out.shape))

    return run
