"""Batch: what loaders give, a feed as it is."""

from __future__ import annotations

from fluidlite.tensor.tensor import Tensor


class Batch(dict[str, Tensor]):
    """Tensors on the loader's place, by the names of the fields; ``Executor.run`` takes it as a feed.

    Its memory is the caller's for as long as he holds one of its tensors.

    Attributes
    ----------
    number : int
        From 0, in its epoch.
    size : int
        Samples.
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
