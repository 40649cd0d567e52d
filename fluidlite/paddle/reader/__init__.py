"""``paddle.reader``: the names of its module ``decorator``."""

from fluidlite.paddle.reader import decorator
from fluidlite.paddle.reader.decorator import *  # noqa: F403

__all__ = ["decorator", *decorator.__all__]
