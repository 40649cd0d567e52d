"""Second gradients of operators on arrays, steps and selected rows. These are linear, so the gradient of each gradient
operator is the forward operator on the incoming gradients.

An absent element in the gradient of an array is 0. The forward operators need all elements, so zeros are added first,
which the gradient operator computes from zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fluidlite.program.opdef import GRAD
from fluidlite.program.registry import ops

GradFunction = Callable[[Any], None]


def forward_as_gradient(type: str, more_inputs: Sequence[str]) -> GradFunction:
    """The gradient function of an operator from ``Out@GRAD`` to ``X@GRAD``: ``type``, also with ``more_inputs``."""

    def grad(maker: Any) -> None:
        inputs = {"X": maker.output_grad("X" + GRAD), **{name: maker.input(name) for name in more_inputs}}
        maker.op(type, inputs, {"Out": maker.input_grad("Out" + GRAD)})

    return grad


def array_forward_as_gradient(type: str, more_inputs: Sequence[str] = (), attrs: Sequence[str] = ()) -> GradFunction:
    """The same if ``X@GRAD`` is an array with absent elements; ``more_inputs`` are inputs of both operators."""

    def grad(maker: Any) -> None:
        target = maker.input_grad("Out" + GRAD)
        incoming = maker.output_grad("X" + GRAD)
        if target is None:
            return
        zeros, absent, complete = maker.temporary(), maker.temporary(), maker.temporary()
        all_inputs = {name: maker.input(name) for name in more_inputs}
        forward_inputs = {name: value for name, value in all_inputs.items() if ops.get(type).input(name) is not None}
        maker.op("fill_zeros_like", {"X": maker.input("Out" + GRAD)}, {"Out": zeros})
        _append(maker, maker.operator.type, {**all_inputs, "Out" + GRAD: zeros}, {"X" + GRAD: absent}, attrs)
        maker.op("sum_arrays", {"X": [incoming, absent]}, {"Out": complete})
        _append(maker, type, {**forward_inputs, "X": complete}, {"Out": target}, attrs)

    return grad


def _append(maker: Any, type: str, inputs: dict[str, Any], outputs: dict[str, Any], attrs: Sequence[str]) -> None:
    maker.op(type, inputs, outputs, {name: maker.attr(name) for name in attrs})


def grad_write(maker: Any) -> None:
    """The gradient of write_to_array_grad: the array with the element written, if there is an ``X@GRAD``."""
    target, index = maker.input_grad("Out" + GRAD), maker.input("I")
    element = maker.output_grad("X" + GRAD) if maker.count("X" + GRAD) else None
    array_gradient = maker.output_grad("Array" + GRAD) if maker.count("Array" + GRAD) else None
    if array_gradient is None:
        maker.op("read_from_array_grad", {"I": index, "Out" + GRAD: element}, {"X" + GRAD: target})
    elif element is None:  # the element of the incoming gradient is 0
        maker.op("write_to_array_grad", {"X": maker.input("X"), "I": index, "Out" + GRAD: array_gradient},
                 {"Array" + GRAD: target})  # fmt: skip
    else:
        maker.op("write_to_array", {"X": element, "I": index, "Array": array_gradient}, {"Out": target})


def grad_shrink(maker: Any) -> None:
    """The gradient of shrink_rnn_memory_grad: crops to the rows of Out@GRAD, with their LoD."""
    target, incoming, like = maker.input_grad("Out" + GRAD), maker.output_grad("X" + GRAD), maker.input("Out" + GRAD)
    if target is None:
        return
    rows = maker.temporary() if maker.spec("Out" + GRAD).lod_level else target
    offsets = [0] * maker.spec("X").rank
    maker.op("crop", {"X": incoming, "Y": like}, {"Out": rows}, {"offsets": offsets})
    if rows != target:
        maker.op("lod_reset", {"X": rows, "Y": like}, {"Out": target})


def grad_split(maker: Any) -> None:
    """The gradient of split_lod_tensor_grad: the incoming gradient, split."""
    outputs = {slot: maker.input_grad(slot + GRAD) for slot in ("OutTrue", "OutFalse")}
    inputs = {"X": maker.output_grad("X" + GRAD), "Mask": maker.input("Mask")}
    _append(maker, "split_lod_tensor", inputs, outputs, ("level",))


def grad_merge(maker: Any) -> None:
    """The gradient of merge_lod_tensor_grad: the incoming gradients, merged; a missing one is 0."""
    target, inputs = maker.input_grad("Out" + GRAD), {"Mask": maker.input("Mask"), "X": maker.input("Out" + GRAD)}
    if target is None:
        return
    for slot in ("InTrue", "InFalse"):
        if maker.count(slot + GRAD):
            inputs[slot] = maker.output_grad(slot + GRAD)
        else:
            inputs[slot] = maker.temporary()
            maker.op("fill_zeros_like", {"X": maker.input(slot)}, {"Out": inputs[slot]})
    _append(maker, "merge_lod_tensor", inputs, {"Out": target}, ("level",))
