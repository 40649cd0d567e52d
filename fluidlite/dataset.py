"""Fluid's ``dataset``: text files of samples that ``Executor.train_from_dataset`` reads."""

from fluidlite.base.absent import getattr_of as _getattr_of
from fluidlite.loaders.datasets import DatasetFactory, InMemoryDataset, QueueDataset

__all__ = ["DatasetFactory", "InMemoryDataset", "QueueDataset"]

__getattr__ = _getattr_of(__name__)
