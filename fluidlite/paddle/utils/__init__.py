"""``paddle.utils``: the curves that the book draws."""

from fluidlite.paddle.utils import plot

__all__ = ["plot"]
