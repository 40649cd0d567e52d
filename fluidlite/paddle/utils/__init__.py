"""``paddle.utils``: the plots of the book's programs."""

from fluidlite.paddle.utils import plot

__all__ = ["plot"]
