"""Fluid's ``contrib.decoder``: decoders whose cell is a function over named states."""

from fluidlite.base.absent import getattr_of as _getattr_of
from fluidlite.contrib.decoder.beam_search_decoder import BeamSearchDecoder, InitState, StateCell, TrainingDecoder

__all__ = ["BeamSearchDecoder", "InitState", "StateCell", "TrainingDecoder"]

__getattr__ = _getattr_of(__name__)
