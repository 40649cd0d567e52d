"""Sources of training: loaders (by protocol), arrays, and the whole dataset as one batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fluidlite.base.errors import NetworkError
from fluidlite.nn.feeds import feed_of, shard_of
from fluidlite.program.variable import Variable
from fluidlite.tensor.tensor import Tensor

if TYPE_CHECKING:
    from fluidlite.nn.network import Network


def pair_of_arrays(source: Any) -> bool:
    """Whether a source is a pair of arrays (x, y), not an iterable of batches."""
    return isinstance(source, tuple) and len(source) == 2 and all(hasattr(part, "shape") for part in source)


def on_place(network: Network, source: Any, variables: Sequence[Variable]) -> Any:
    """Return the loader for a network's place and variables, if it has ``on``; else the loader itself."""
    if hasattr(source, "on") and callable(source.on):
        names = tuple(variable.name for variable in variables)
        if getattr(source, "place", None) == network.place and getattr(source, "names", None) == names:
            return source  # its caches and its position are preserved
        return source.on(network.place, names=list(variables))
    if isinstance(source, (str, bytes, Mapping)) or not isinstance(source, Iterable):
        raise NetworkError(f"the loader is {type(source).__name__}; expected an iterable of batches")
    return source


def sharded(network: Network, loader: Any) -> tuple[Any, bool]:
    """Return the loader of this process, and whether its batches must still be split among the processes."""
    group = network.group
    if group.size == 1:
        return loader, False
    if hasattr(loader, "shard") and callable(loader.shard):
        return loader.shard(group.rank, group.size), False
    return loader, True


def batch_count(loader: Any) -> int | None:
    """The number of batches in an epoch; None if the loader has no len."""
    try:
        return len(loader)
    except TypeError:
        return None


def whole_dataset(network: Network, source: Any, variables: Sequence[Variable]) -> list[dict[str, Any]]:
    """Return the dataset as one batch on the place; arrays are copied there once.

    Raises NetworkError if a loader yields several batches, or none.
    """
    group, split = network.group, True
    if pair_of_arrays(source) or isinstance(source, Mapping):
        batch = source
    else:
        batches = []
        loader, split = sharded(network, on_place(network, source, variables))
        for batch in loader:
            batches.append(batch)
            if len(batches) > 1:
                raise NetworkError(
                    "train got several batches; expected the whole dataset as one\n  Do: batched_train(loader)"
                )
        if not batches:
            raise NetworkError("train: the loader yielded no batches")
        (batch,) = batches
    feed = feed_of(batch, variables, "the dataset")
    if split:
        feed = shard_of(feed, group.rank, group.size, "the dataset")
    return [
        {
            name: value
            if isinstance(value, Tensor) and value.place == network.place
            else Tensor().set(value, network.place)
            for name, value in feed.items()
        }
    ]
