"""Layers and models of nodes: they have weights and make nodes."""

from fluidlite.base.exports import export as _export
from fluidlite.nodes.layers.affine import Affine as Affine, Dropout as Dropout, LayerNorm as LayerNorm
from fluidlite.nodes.layers.base import Layer as Layer
from fluidlite.nodes.layers.combined import Joined as Joined, Stacked as Stacked
from fluidlite.nodes.layers.lookup import Embedding as Embedding, Lookup as Lookup
from fluidlite.nodes.layers.lstm import BiLstm as BiLstm, Lstm as Lstm, State as State

_export(__name__)
