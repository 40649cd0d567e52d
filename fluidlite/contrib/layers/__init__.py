"""Fluid's ``contrib.layers``: recurrent layers made of cells, and layers that do what others do together."""

from fluidlite.base.absent import getattr_of as _getattr_of
from fluidlite.contrib.layers.nn import (
    batch_fc,
    ctr_metric_bundle,
    fused_elemwise_activation,
    fused_embedding_seq_pool,
    partial_concat,
    partial_sum,
    shuffle_batch,
)
from fluidlite.contrib.layers.rnn_impl import BasicGRUUnit, BasicLSTMUnit, basic_gru, basic_lstm
from fluidlite.layers import sequence_topk_avg_pooling

__all__ = [
    "BasicGRUUnit",
    "BasicLSTMUnit",
    "basic_gru",
    "basic_lstm",
    "batch_fc",
    "ctr_metric_bundle",
    "fused_elemwise_activation",
    "fused_embedding_seq_pool",
    "partial_concat",
    "partial_sum",
    "sequence_topk_avg_pooling",
    "shuffle_batch",
]

__getattr__ = _getattr_of(__name__)
