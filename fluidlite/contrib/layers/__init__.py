"""Fluid's ``contrib.layers``: recurrent layers made of cells."""

from fluidlite.contrib.layers.rnn_impl import BasicGRUUnit, BasicLSTMUnit, basic_gru, basic_lstm

__all__ = ["BasicGRUUnit", "BasicLSTMUnit", "basic_gru", "basic_lstm"]
