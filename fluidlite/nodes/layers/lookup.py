"""Lookup: a weight for each key; Embedding: rows of one table."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

from fluidlite.base.errors import NodeError
from fluidlite.nodes import losses
from fluidlite.nodes.device_nodes import DeviceView
from fluidlite.nodes.devices import Device
from fluidlite.nodes.initialisers import Uniform
from fluidlite.nodes.layers.base import Layer, check_sizes, dims_of
from fluidlite.nodes.leaves import Weight
from fluidlite.nodes.node import Node
from fluidlite.nodes.shaping import Permute
from fluidlite.platform.place import PlaceLike


class Lookup(Layer):
    """A vector for each key of a dictionary. Each is a separate weight, so an update touches only those that were used.

    Parameters
    ----------
    dev : Device or Place or str
        Of the weights.
    keys : iterable
        Words, characters, ...
    width : int
    init : callable, optional
        Default: uniform in -0.1 to 0.1.
    unknown : bool
        Whether all other keys share one vector; else they raise.
    dtype : str
    """

    def __init__(
        self,
        dev: Device | PlaceLike,
        keys: Iterable[Hashable],
        width: int,
        *,
        init: Any = None,
        unknown: bool = False,
        dtype: str = "float32",
    ) -> None:
        check_sizes("Lookup", width=width)
        init = Uniform() if init is None else init
        self.table = {key: Weight(dev, [width], init=init, dtype=dtype) for key in dict.fromkeys(keys)}
        self.unknown = Weight(dev, [width], init=init, dtype=dtype) if unknown else None

    def run(self, key: Hashable, dev: Device | PlaceLike | None = None) -> Node:
        """The vector of a key, [width]: the weight itself, or a view of it on a device of the same memory.

        Raises
        ------
        NodeError
            If the key is unknown, and the layer has no vector for unknown keys.
        """
        weight = self.table.get(key, self.unknown)
        if weight is None:
            raise NodeError(f"Lookup has no key {key!r:.60} among {len(self.table)}\n  Do: Lookup(..., unknown=True)")
        return weight if dev is None else DeviceView(weight, dev)

    def __len__(self) -> int:
        return len(self.table)

    def __contains__(self, key: Hashable) -> bool:
        return key in self.table


class Embedding(Layer):
    """Vectors by index, rows of one table [rows, width].

    Parameters
    ----------
    dev : Device or Place or str
    rows, width : int
    init : callable, optional
        Default: uniform in -0.1 to 0.1.
    dtype : str
    """

    def __init__(
        self, dev: Device | PlaceLike, rows: int, width: int, *, init: Any = None, dtype: str = "float32"
    ) -> None:
        check_sizes("Embedding", rows=rows, width=width)
        self.w = Weight(dev, [rows, width], init=Uniform() if init is None else init, dtype=dtype)

    def run(self, indices: Any, dev: Device | PlaceLike | None = None) -> Node:
        """Columns [width, ...] of indices [...], int64; ``dev``: as of :class:`Lookup`."""
        table: Node = self.w if dev is None else DeviceView(self.w, dev)
        vectors = losses.Lookup(table, indices)
        rank = len(dims_of(self, indices)) if isinstance(indices, Node) else np.ndim(indices)
        return Permute(vectors, [rank, *range(rank)]) if rank else vectors
