"""The layers of networks; each appends operators of ``fluid.layers``."""

from fluidlite.base.exports import export as _export
from fluidlite.nn.layers.images import Conv2D as Conv2D, Pool2D as Pool2D
from fluidlite.nn.layers.recurrent import LSTM as LSTM
from fluidlite.nn.layers.rows import (
    BatchNorm as BatchNorm,
    Dense as Dense,
    Dropout as Dropout,
    Embedding as Embedding,
    LayerNorm as LayerNorm,
)
from fluidlite.nn.layers.shape import (
    Activation as Activation,
    Flatten as Flatten,
    Function as Function,
    Reshape as Reshape,
)

_export(__name__)
