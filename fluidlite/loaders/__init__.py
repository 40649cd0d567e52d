"""Loaders: batches of a dataset on a place, prefetched for the training loop."""

from __future__ import annotations

from fluidlite.loaders.batch import Batch
from fluidlite.loaders.full import FullLoader
from fluidlite.loaders.loader import BatchedLoader, EpochIterator, Loader
from fluidlite.loaders.trace import Span, picture as trace_picture

__all__ = ["Batch", "BatchedLoader", "EpochIterator", "FullLoader", "Loader", "Span", "trace_picture"]
