"""``fluid.one_hot`` and ``fluid.embedding``: the layers of these names without the trailing 1 of their input."""

from __future__ import annotations

from fluidlite.layers import index
from fluidlite.layers.declare import layer_like
from fluidlite.layers.public import public

__all__ = ["embedding", "one_hot"]


@public
@layer_like(index.one_hot, "one_hot_v2")
def one_hot() -> None:
    """Return float32 [..., depth] with 1 at the class that ``input``, integers [...], names.

    >>> one_hot(data("input", [2], "int64"), 4).shape
    (2, 4)
    """


@public
@layer_like(index.embedding, "lookup_table_v2")
def embedding() -> None:
    """Return the rows of a table that the ids in ``input``, integers [...], name: [..., width].

    >>> embedding(data("input", [2], "int64"), [9, 4]).shape
    (2, 4)
    """
