"""Fluid's ``incubate``: writers of the files that datasets read."""

from fluidlite.base.absent import getattr_of as _getattr_of
from fluidlite.incubate import data_generator as data_generator

__all__ = ["data_generator"]

__getattr__ = _getattr_of(__name__)
