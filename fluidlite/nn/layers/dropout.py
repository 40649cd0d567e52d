"""Dropout: some numbers become 0 in training."""

from __future__ import annotations

from fluidlite.layers import dropout
from fluidlite.nn.layer import Layer
from fluidlite.program.variable import Variable


class Dropout(Layer):
    """Each number becomes 0 with a probability, and the others are divided by 1 - rate; at test nothing happens.

    Parameters
    ----------
    rate : float
        The probability, 0 to 1.
    name : str, optional
    """

    kind = "dropout"
    configured = ("rate",)

    def __init__(self, rate: float, name: str | None = None) -> None:
        super().__init__(name)
        self.rate = rate

    def build(self, x: Variable) -> Variable:
        return dropout(x, self.rate, name=self.name, dropout_implementation="upscale_in_train")
