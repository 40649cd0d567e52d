"""Gradients of the gradient operators of arrays, steps and rows that are chosen: these are linear, so that each is the
forward operator, of the gradients that come in.

An element that is absent in the gradient of an array is 0. The forward operators want all elements, so that zeros are
added first, which the gradient operator itself makes of zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fluidlite.program.opdef import GRAD
from fluidlite.program.registry import ops

GradFunction = Callable[[Any], None]


def forward_again(type: str, more: Sequence[str]) -> GradFunction:
    """Return the gradient function of what makes ``X@GRAD`` of ``Out@GRAD``; ``more`` are the forward operator's other
    inputs.
    """

    def grad(maker: Any) -> None:
        inputs = {"X": maker.output_grad("X" + GRAD), **{name: maker.input(name) for name in more}}
        maker.op(type, inputs, {"Out": maker.input_grad("Out" + GRAD)})

    return grad


def forward_again_of_array(type: str, more: Sequence[str] = (), attrs: Sequence[str] = ()) -> GradFunction:
    """The same where ``X@GRAD`` is an array of which elements may be absent; ``more`` are the other inputs of both."""

    def grad(maker: Any) -> None:
        wanted = maker.input_grad("Out" + GRAD)
        given = maker.output_grad("X" + GRAD)
        if wanted is None:
            return
        zeros, absent, whole = maker.temporary(), maker.temporary(), maker.temporary()
        others = {name: maker.input(name) for name in more}
        again = {name: held for name, held in others.items() if ops.get(type).input(name) is not None}
        maker.op("fill_zeros_like", {"X": maker.input("Out" + GRAD)}, {"Out": zeros})
        _append(maker, maker.operator.type, {**others, "Out" + GRAD: zeros}, {"X" + GRAD: absent}, attrs)
        maker.op("sum_arrays", {"X": [given, absent]}, {"Out": whole})
        _append(maker, type, {**again, "X": whole}, {"Out": wanted}, attrs)

    return grad


def _append(maker: Any, type: str, inputs: dict[str, Any], outputs: dict[str, Any], attrs: Sequence[str]) -> None:
    maker.op(type, inputs, outputs, {name: maker.attr(name) for name in attrs})


def grad_write(maker: Any) -> None:
    """Of write_to_array_grad: the array with the element put back; without ``X@GRAD`` there is none to put back."""
    wanted, index = maker.input_grad("Out" + GRAD), maker.input("I")
    element = maker.output_grad("X" + GRAD) if maker.count("X" + GRAD) else None
    rest = maker.output_grad("Array" + GRAD) if maker.count("Array" + GRAD) else None
    if rest is None:
        maker.op("read_from_array_grad", {"I": index, "Out" + GRAD: element}, {"X" + GRAD: wanted})
    elif element is None:  # of what comes in, the element counts for nothing
        maker.op("write_to_array_grad", {"X": maker.input("X"), "I": index, "Out" + GRAD: rest},
                 {"Array" + GRAD: wanted})  # fmt: skip
    else:
        maker.op("write_to_array", {"X": element, "I": index, "Array": rest}, {"Out": wanted})


def grad_shrink(maker: Any) -> None:
    """Of shrink_rnn_memory_grad: as many rows as there were, with their LoD."""
    wanted, given, like = maker.input_grad("Out" + GRAD), maker.output_grad("X" + GRAD), maker.input("Out" + GRAD)
    if wanted is None:
        return
    rows = maker.temporary() if maker.spec("Out" + GRAD).lod_level else wanted
    offsets = [0] * maker.spec("X").rank
    maker.op("crop", {"X": given, "Y": like}, {"Out": rows}, {"offsets": offsets})
    if rows != wanted:
        maker.op("lod_reset", {"X": rows, "Y": like}, {"Out": wanted})


def grad_split(maker: Any) -> None:
    """Of split_lod_tensor_grad: what comes in, split."""
    outputs = {slot: maker.input_grad(slot + GRAD) for slot in ("OutTrue", "OutFalse")}
    inputs = {"X": maker.output_grad("X" + GRAD), "Mask": maker.input("Mask")}
    _append(maker, "split_lod_tensor", inputs, outputs, ("level",))


def grad_merge(maker: Any) -> None:
    """Of merge_lod_tensor_grad: what comes in, merged; a part that nothing wanted before counts for nothing."""
    wanted, inputs = maker.input_grad("Out" + GRAD), {"Mask": maker.input("Mask"), "X": maker.input("Out" + GRAD)}
    if wanted is None:
        return
    for slot in ("InTrue", "InFalse"):
        if maker.count(slot + GRAD):
            inputs[slot] = maker.output_grad(slot + GRAD)
        else:
            inputs[slot] = maker.temporary()
            maker.op("fill_zeros_like", {"X": maker.input(slot)}, {"Out": inputs[slot]})
    _append(maker, "merge_lod_tensor", inputs, {"Out": wanted}, ("level",))
