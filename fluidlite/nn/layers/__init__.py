"""The layers that a network is made of: each appends the operators of ``fluid.layers``."""

from fluidlite.base.exports import export as _export
from fluidlite.nn.layers.conv import Conv2D as Conv2D
from fluidlite.nn.layers.dense import Dense as Dense
from fluidlite.nn.layers.dropout import Dropout as Dropout
from fluidlite.nn.layers.embedding import Embedding as Embedding
from fluidlite.nn.layers.normalisation import BatchNorm as BatchNorm, LayerNorm as LayerNorm
from fluidlite.nn.layers.pool import Pool2D as Pool2D
from fluidlite.nn.layers.recurrent import LSTM as LSTM
from fluidlite.nn.layers.shape import (
    Activation as Activation,
    Flatten as Flatten,
    Function as Function,
    Reshape as Reshape,
)

_export(__name__)
