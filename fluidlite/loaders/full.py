"""FullLoader: a whole dataset on a place, as one batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fluidlite.base.errors import LoaderError
from fluidlite.loaders.assembly import fields_of
from fluidlite.loaders.batch import Batch
from fluidlite.loaders.loader import Loader
from fluidlite.loaders.producer import producer_of
from fluidlite.loaders.settings import Settings
from fluidlite.loaders.sources import Rows, Transform, source_of
from fluidlite.platform.place import PlaceLike
from fluidlite.tensor.tensor import Tensor

_ALL = (1 << 63) - 1


class FullLoader(Loader):
    """The whole dataset in one batch, which is copied to the place once and kept there.

    Use it if the dataset and the model fit into the place's memory. The parameters are those of
    :class:`BatchedLoader`.
    """

    def __init__(
        self,
        source: Any,
        place: PlaceLike | None = None,
        names: Any = None,
        *,
        transform: Transform | None = None,
        batch_transform: Transform | None = None,
    ) -> None:
        samples = source_of(source)
        size = max(samples.samples, 1) if isinstance(samples, Rows) else _ALL
        settings = Settings(
            samples, fields_of(names), size, "samples", False, 0, False, 1, 1, 1, False, transform, batch_transform
        )
        super().__init__(settings, place)

    def _reset(self) -> None:
        self._tensors: tuple[dict[str, Tensor], int] | None = None

    @property
    def batch_size(self) -> int | None:
        """None: a batch is the whole dataset."""
        return None

    def __len__(self) -> int:
        """One batch an epoch."""
        return 1

    def __iter__(self) -> Iterator[Batch]:
        """The one batch of an epoch."""
        number, self._epoch, self._first = self._epoch, self._epoch + 1, 0
        if self._tensors is None:
            self._tensors = self._load()
        tensors, size = self._tensors
        return iter((Batch(tensors, 0, size, number),))

    def _load(self) -> tuple[dict[str, Tensor], int]:
        producer = producer_of(self._settings, 0)
        try:
            request = producer.request()
            batch = producer.produce(request)
        finally:
            producer.close()
        tensors = {}
        for field in batch.fields:
            lod = [list(level) for level in field.lod] or None
            tensors[field.name] = Tensor().set(field.array, self.place, lod)
        if not batch.size:
            raise LoaderError("the source is empty: there is nothing to load")
        return tensors, batch.size

    def close(self) -> None:
        """Release the tensors, except those of batches that are still referenced."""
        self._tensors = None
