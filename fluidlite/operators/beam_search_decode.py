"""beam_search_decode: the sentences of a beam search, traced back from its last step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from fluidlite.base.dtypes import FLOATS, INTS
from fluidlite.base.errors import OutOfRangeError, ProgramError
from fluidlite.operators.inference import Inferred
from fluidlite.operators.sequence_rows import spec_with_lod
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Differentiation, Execution, Inference
from fluidlite.program.registry import register_op
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_array import TensorArray
from fluidlite.tensor.tensor_spec import TENSOR_ARRAY, Lod

Array = np.ndarray[Any, Any]
_KINDS = ("dense", TENSOR_ARRAY)
_SLOT_ADVICE = "give it what layers.beam_search selected, a variable a step, the first step first"


def _infer(call: Call) -> Inferred:
    is_array = [call.spec(slot).kind == TENSOR_ARRAY for slot in ("Ids", "Scores")]
    if is_array[0] != is_array[1]:
        call.fail("Scores", "a tensor array, as Ids is" if is_array[0] else "a variable a step, as Ids is")
    for slot in ("Ids", "Scores"):
        for i in range(call.count(slot)):
            spec = call.spec(slot, i)
            if spec.kind == TENSOR_ARRAY and not spec.dims:
                call.fail(slot, "an array to which something was written")
            if spec.lod_level != 2:
                call.fail(slot, "a LoD of two levels: prefixes of sources, and selected of prefixes", do=_SLOT_ADVICE)
            if spec.kind == TENSOR_ARRAY and call.count(slot) > 1:
                call.fail(slot, "one tensor array, or a variable a step")
    if call.count("Ids") != call.count("Scores"):
        call.fail("Scores", f"{call.count('Ids')} steps, as many as Ids has")
    ids, scores = call.spec("Ids"), call.spec("Scores")
    return {"SentenceIds": spec_with_lod((-1, 1), ids, (), 2), "SentenceScores": spec_with_lod((-1, 1), scores, (), 2)}


class _Selection:
    """The rows that one step of the search selected, with their sources and parents."""

    def __init__(self, number: int, ids: Tensor, scores: Tensor) -> None:
        self.ids, self.scores = ids.numpy().reshape(-1), scores.numpy().reshape(-1)
        lod: Lod = tuple(tuple(level) for level in ids.lod())
        if len(lod) != 2:
            raise ProgramError(f"Ids of step {number} has {len(lod)} levels of LoD; expected two\n  Do: {_SLOT_ADVICE}")
        if len(self.ids) != len(self.scores):
            raise ProgramError(f"Scores of step {number} has {len(self.scores)} rows, Ids has {len(self.ids)}")
        self.sources, selected = lod
        sizes = np.diff(selected)
        self.parents = np.repeat(np.arange(len(sizes)), sizes)
        self.row_ranges = [(selected[a], selected[b]) for a, b in pairwise(self.sources)]


def sentences(steps: Sequence[_Selection], source: int, end: int) -> list[tuple[list[int], list[float]]]:
    """Words and scores of each hypothesis of a source, the best last score first."""
    rows: list[int] = []
    hypotheses: list[tuple[list[int], list[float]]] = []
    for step in reversed(steps):
        if not rows:  # the last step with a selection for this source
            rows = list(range(*step.row_ranges[source]))
            hypotheses = [([step.ids[row].item()], [step.scores[row].item()]) for row in rows]
        else:
            for (words, scores), row in zip(hypotheses, rows, strict=True):
                if step.ids[row] != end:  # a sentence that has ended is repeated by each later step
                    words.append(step.ids[row].item())
                    scores.append(step.scores[row].item())
        rows = [int(step.parents[row]) for row in rows]
    hypotheses.sort(key=lambda hypothesis: -hypothesis[1][0])
    return [(words[::-1], scores[::-1]) for words, scores in hypotheses]


def _check(steps: Sequence[_Selection]) -> None:
    for number, (previous, following) in enumerate(pairwise(steps)):
        if len(following.sources) != len(previous.sources):
            raise ProgramError(
                f"Ids of step {number + 1} is of {len(following.sources) - 1} sources, and step {number} of "
                f"{len(previous.sources) - 1}; expected as many"
            )
        if following.sources[-1] != len(previous.ids):
            raise ProgramError(
                f"Ids of step {number + 1} goes on from {following.sources[-1]} prefixes, and step {number} selected "
                f"{len(previous.ids)}; expected as many\n  Do: {_SLOT_ADVICE}"
            )


def _steps(frame: Any, op: Any, slot: str) -> list[Tensor]:
    """The tensor of each step, from a tensor array or from one variable for each step."""
    tensors: list[Tensor] = frame.read(slot)
    if len(tensors) == 1 and isinstance(tensors[0], TensorArray):
        try:
            tensors = tensors[0].present()
        except OutOfRangeError as exc:
            raise OutOfRangeError(f"{op}: {slot}: {exc}") from None
    if not tensors:
        raise ProgramError(f"{slot} has no steps; expected one or more\n  Do: {_SLOT_ADVICE}")
    return tensors


def _run(frame: Any, op: Any) -> None:
    ids, scores = _steps(frame, op, "Ids"), _steps(frame, op, "Scores")
    if len(ids) != len(scores):
        raise ProgramError(f"Scores has {len(scores)} steps; expected {len(ids)}, as many as Ids has")
    steps = [_Selection(number, *pair) for number, pair in enumerate(zip(ids, scores, strict=True))]
    _check(steps)
    by_source = [sentences(steps, source, op.attrs["end_id"]) for source in range(len(steps[0].sources) - 1)]
    upper = np.cumsum([0, *(len(hypotheses) for hypotheses in by_source)]).tolist()
    lower = np.cumsum([0, *(len(words) for hypotheses in by_source for words, _ in hypotheses)]).tolist()
    for slot, part, like in (("SentenceIds", 0, ids[0]), ("SentenceScores", 1, scores[0])):
        numbers = [number for hypotheses in by_source for hypothesis in hypotheses for number in hypothesis[part]]
        out = Tensor().set(np.asarray(numbers, like.numpy().dtype).reshape(-1, 1))
        out.set_lod([upper, lower])
        if frame.output_count(slot):
            frame.write(slot, [out])


register_op(
    "beam_search_decode",
    Differentiation(stop_gradient={"Scores": "the selection has no derivative by the scores"}),
    Inference(_infer, dynamic=True),
    Execution(run=_run),
    inputs=(
        Slot(
            "Ids",
            duplicable=True,
            run_place=True,
            kinds=_KINDS,
            doc="selected_ids of beam_search: a tensor array, or one variable for each step",
        ),
        Slot("Scores", duplicable=True, run_place=True, kinds=_KINDS, doc="selected_scores, in the form of Ids"),
    ),
    outputs=(
        Slot(
            "SentenceIds",
            on_host=True,
            doc="words, [words, 1], with two levels of LoD: sentences of sources, words of sentences",
        ),
        Slot("SentenceScores", on_host=True, doc="the score of each sentence up to each word, with the same LoD"),
    ),
    attrs=(
        Attr("beam_size", "int", minimum=1, doc="the beam size of the search; of no effect"),
        Attr("end_id", "int", minimum=0, doc="the word that ends a sentence"),
    ),
    dtypes={"Ids": INTS, "Scores": FLOATS},
    doc="The sentences of each source that its last step selected, the best first, each to its first end_id",
    source="Fluid beam_search_decode_op.h",
)
