"""Networks: stacks of layers with training and evaluation, on any place.

network = fluid.nn.Network([64], "cpu", optimizer=fluid.optimizer.Adam(0.01), loss="softmax_cross_entropy")
network.add_layer(fluid.nn.Dense(64, "relu"))
network.add_layer(fluid.nn.Dense(10))
network.batched_train(loader, epochs=5)
"""

from fluidlite.base.exports import export as _export
from fluidlite.nn import callbacks as callbacks, losses as losses, metrics as metrics
from fluidlite.nn.callbacks import Callback as Callback, Checkpoint as Checkpoint, EarlyStop as EarlyStop
from fluidlite.nn.layer import Layer as Layer
from fluidlite.nn.layers import (
    LSTM as LSTM,
    Activation as Activation,
    BatchNorm as BatchNorm,
    Conv2D as Conv2D,
    Dense as Dense,
    Dropout as Dropout,
    Embedding as Embedding,
    Flatten as Flatten,
    Function as Function,
    LayerNorm as LayerNorm,
    Pool2D as Pool2D,
    Reshape as Reshape,
)
from fluidlite.nn.network import Network as Network
from fluidlite.nn.progress import Progress as Progress
from fluidlite.nn.steps import Steps as Steps
from fluidlite.nn.summary import LayerSummary as LayerSummary, Summary as Summary

_export(__name__, "callbacks", "losses", "metrics")
