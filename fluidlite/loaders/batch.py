"""Batch: the items of loaders, which can be fed directly."""

from __future__ import annotations

from fluidlite.tensor.tensor import Tensor


class Batch(dict[str, Tensor]):
    """Tensors on the loader's place, by field name; ``Executor.run`` accepts it as a feed.

    Its memory stays valid as long as one of its tensors is referenced.

    Attributes
    ----------
    number : int
        Its number in the epoch, from 0.
    size : int
        Number of samples.
    epoch : int
    """

    __slots__ = ("epoch", "number", "size")

    def __init__(self, tensors: dict[str, Tensor], number: int, size: int, epoch: int) -> None:
        super().__init__(tensors)
        self.number = number
        self.size = size
        self.epoch = epoch

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}: {tensor.spec!r}" for name, tensor in self.items())
        return f"Batch({self.number} of epoch {self.epoch}, {self.size} samples: {fields})"
