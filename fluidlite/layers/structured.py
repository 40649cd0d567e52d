"""Layers that compare or decode sequences: edit_distance, ctc_greedy_decoder, warpctc, chunk_eval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluidlite.base.dtypes import FLOATS, INTS
from fluidlite.base.errors import DtypeError
from fluidlite.layer_helper import LayerHelper, check_int, check_variable, refuse
from fluidlite.layers.common import append
from fluidlite.layers.declare import also, layer
from fluidlite.layers.index import topk
from fluidlite.layers.shape import squeeze
from fluidlite.program.opdef import Attr
from fluidlite.program.variable import Variable

_IGNORED = Attr("ignored_tokens", "ints", doc="left out of both before they are compared; for inputs with LoD")


def _can_be_lengths(lengths: Variable, batch: int) -> bool:
    """Whether a variable may be [batch] or [batch, 1]."""
    return tuple(lengths.shape[1:]) in ((), (1,), (-1,)) and (
        -1 in (batch, *lengths.shape[:1]) or tuple(lengths.shape[:1]) == (batch,)
    )


@layer(
    "edit_distance",
    {
        "input": "Hyps",
        "label": "Refs",
        "ignored_tokens": _IGNORED,
        "input_length": "HypsLength",
        "label_length": "RefsLength",
    },
    returns=("Out", "SequenceNum"),
    stop_gradient=True,
)
def edit_distance(
    input: Variable,
    label: Variable,
    normalized: bool = True,
    ignored_tokens: Sequence[int] | None = None,
    input_length: Variable | None = None,
    label_length: Variable | None = None,
) -> tuple[Variable, Variable]:
    """Return the Levenshtein distance of each pair of sequences, and the number of pairs.

    >>> input = data("input", [-1, 1], "int64", lod_level=1)
    >>> label = data("label", [-1, 1], "int64", lod_level=1)
    >>> [each.shape for each in edit_distance(input, label)]
    [(-1, 1), (1,)]
    """
    if not ignored_tokens:
        return also()
    if input_length is not None:
        refuse("ignored_tokens", ignored_tokens, "none where sequences are padded: tokens are left out of LoD tensors")
    pair = (("input", input), ("label", label))
    for name, value in pair:
        if value.lod_level != 1 or len(value.shape) not in (1, 2) or value.shape[1:] not in ((), (1,), (-1,)):
            refuse(name, value, "[rows, 1] with one level of LoD")
    tokens = {"tokens": ignored_tokens}
    hyps, refs = (append("sequence_erase", {"X": x, "Values": x}, tokens, stop_gradient=True) for _, x in pair)
    return also(Hyps=hyps, Refs=refs)


def ctc_greedy_decoder(
    input: Variable, blank: int, input_length: Variable | None = None, padding_value: int = 0, name: str | None = None
) -> Any:
    """Return the labels of each sequence's likeliest path: the best class of each step, without repetitions and blanks.

    input: Probabilities or scores: [rows, classes] with LoD, or padded, [batch, longest, classes], with lengths
    blank: From 0 to classes - 1: the class that is no label
    input_length: int32 or int64, [batch]
    padding_value: The value after the labels of a padded sequence
    Returns: int64, [labels, 1] with LoD; or with ``input_length``: [batch, longest], and the number of labels of each,
        [batch, 1]
    """
    if check_variable("input", input).dtype not in FLOATS:
        refuse("input", input, f"one of {', '.join(FLOATS)}: scores of classes", error=DtypeError)
    check_int("blank", blank, 0)
    check_int("padding_value", padding_value)
    if input_length is not None and check_variable("input_length", input_length).dtype not in INTS:
        refuse("input_length", input_length, "int32 or int64: lengths", error=DtypeError)
    rank = 2 if input_length is None else 3
    if len(input.shape) != rank or (rank == 2 and input.lod_level != 1):
        refuse("input", input, "[rows, classes] with one level of LoD" if rank == 2 else "[batch, longest, classes]")
    if 0 <= input.shape[-1] <= blank:
        refuse("blank", blank, f"a class of input, from 0 to {input.shape[-1] - 1}")
    if input_length is not None and not _can_be_lengths(input_length, input.shape[0]):
        refuse("input_length", input_length, f"[{input.shape[0]}]: the length of each sequence of input")
    _, best = topk(input, 1)
    attrs = {"blank": blank, "merge_repeated": True, "padding_value": padding_value}
    helper = LayerHelper("ctc_align", name=name)
    outputs = {"Output": helper.create_variable_for_type_inference(stop_gradient=True)}
    if input_length is None:
        helper.append_op("ctc_align", {"Input": best, "Values": best}, outputs, attrs)
        return outputs["Output"]
    outputs["OutputLength"] = helper.create_variable_for_type_inference(stop_gradient=True)
    helper.append_op("ctc_align", {"Input": squeeze(best, [2]), "InputLength": input_length}, outputs, attrs)
    return outputs["Output"], outputs["OutputLength"]


@layer("warpctc", {"input": "Logits", "input_length": "LogitsLength"})
def warpctc(
    input: Variable,
    label: Variable,
    blank: int = 0,
    norm_by_times: bool = False,
    input_length: Variable | None = None,
    label_length: Variable | None = None,
) -> Variable:
    """Return the cost of each sequence's labels by connectionist temporal classification.

    label: int32 or int64, without blanks: [labels, 1] with LoD, or padded, [batch, longest label]. One that is no
        class, or is the blank, is an OutOfRangeError.
    blank: From 0 to classes - 1: the class that is no label

    >>> warpctc(data("input", [-1, 4], lod_level=1), data("label", [-1, 1], "int64", lod_level=1)).shape
    (-1, 1)
    """


@layer("chunk_eval", {"input": "Inference", "seq_length": "SeqLength"}, stop_gradient=True)
def chunk_eval(
    input: Variable,
    label: Variable,
    chunk_scheme: str,
    num_chunk_types: int,
    excluded_chunk_types: Sequence[int] | None = None,
    seq_length: Variable | None = None,
) -> tuple[Variable, Variable, Variable, Variable, Variable, Variable]:
    """Return precision, recall and F1 of chunks, and the numbers of predicted, true and correct ones.

    Returns: Precision, recall, F1: float32, [1]; counts of chunks of ``input``, of ``label`` and of both: int64, [1].
        ``metrics.ChunkEvaluator`` adds the counts of batches

    >>> input = data("input", [-1, 1], "int64", lod_level=1)
    >>> label = data("label", [-1, 1], "int64", lod_level=1)
    >>> [each.shape for each in chunk_eval(input, label, "IOB", 2)]
    [(1,), (1,), (1,), (1,), (1,), (1,)]
    """
