"""linear_chain_crf with its gradient, and crf_decoding."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.plugin import IO, Call, Context, register_kernel

from .chain import Chains, log_sum_exp

FLOATS = ("float32", "float64")


def _chains(call: Call, io: IO) -> Chains:
    return Chains(io.array("Emission"), io.array("Transition"), call.lod("Emission")[-1])


def _labels(context: Context, io: IO, tags: int) -> np.ndarray[Any, Any]:
    labels: np.ndarray[Any, Any] = context.check_index(io.array("Label").reshape(-1), tags, io)
    return labels.astype(np.int64, copy=False)


@register_kernel("linear_chain_crf", "cpu", dtypes=FLOATS, indexes=True)
def linear_chain_crf(call: Call, context: Context) -> Any:
    """LogLikelihood = log(sum over paths of exp(score)) - score of the labelled path, a sequence a row."""

    def run(context: Context, io: IO) -> None:
        chains = _chains(call, io)
        labels = _labels(context, io, chains.tags)
        forward = chains.forward()
        if io.has("Alpha"):
            io.array("Alpha")[...] = np.exp(forward - log_sum_exp(forward, 1)[:, None])
        if io.has("EmissionExps"):
            io.array("EmissionExps")[...] = np.exp(chains.emission - chains.emission.max(1, keepdims=True))
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


@register_kernel("linear_chain_crf_grad", "cpu", dtypes=FLOATS, indexes=True)
def linear_chain_crf_grad(call: Call, context: Context) -> Any:
    """Probabilities of tags and of pairs of tags, less the labelled ones, times LogLikelihood@GRAD."""

    def run(context: Context, io: IO) -> None:
        chains = _chains(call, io)
        labels = _labels(context, io, chains.tags)
        forward, backward = chains.forward(), chains.backward()
        which = np.repeat(np.arange(len(chains.filled)), chains.lengths[chains.filled])
        weight = io.array("LogLikelihood@GRAD").reshape(-1).astype(np.float64)[chains.filled][which]
        total = chains.totals(forward)[which]
        grad = np.exp(forward + backward - total[:, None])
        grad[np.arange(len(labels)), labels] -= 1
        grad *= weight[:, None]
        if io.has("Emission@GRAD"):
            io.array("Emission@GRAD")[...] = grad
        if io.has("Transition@GRAD"):
            steps = np.zeros_like(chains.step)
            for rows in chains.pairs():
                onward = (chains.emission[rows] + backward[rows])[:, None, :] - total[rows][:, None, None]
                pairs = np.exp(forward[rows - 1][:, :, None] + chains.step + onward)
                steps += np.tensordot(weight[rows], pairs, 1)
                np.add.at(steps, (labels[rows - 1], labels[rows]), -weight[rows])
            out = io.array("Transition@GRAD")
            out[0], out[1] = grad[chains.firsts].sum(0), grad[chains.lasts].sum(0)
            out[2:] = steps

    return run


@register_kernel("crf_decoding", "cpu", dtypes=FLOATS)
def crf_decoding(call: Call, context: Context) -> Any:
    """ViterbiPath = the best path's tags; with Label, 1 where they agree with it and 0 elsewhere."""

    def run(context: Context, io: IO) -> None:
        path, out = _chains(call, io).best(), io.array("ViterbiPath")
        out[...] = (path == io.array("Label").reshape(-1) if io.has("Label") else path).reshape(out.shape)

    return run
