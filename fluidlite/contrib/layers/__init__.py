"""Fluid's ``contrib.layers``: recurrent layers of cells, and layers that combine others."""

from fluidlite.base.absent import getattr_of as _getattr_of
from fluidlite.base.exports import export as _export
from fluidlite.contrib.layers.nn import (
    batch_fc as batch_fc,
    ctr_metric_bundle as ctr_metric_bundle,
    fused_elemwise_activation as fused_elemwise_activation,
    fused_embedding_seq_pool as fused_embedding_seq_pool,
    partial_concat as partial_concat,
    partial_sum as partial_sum,
    shuffle_batch as shuffle_batch,
)
from fluidlite.contrib.layers.rnn_impl import (
    BasicGRUUnit as BasicGRUUnit,
    BasicLSTMUnit as BasicLSTMUnit,
    basic_gru as basic_gru,
    basic_lstm as basic_lstm,
)
from fluidlite.layers import sequence_topk_avg_pooling as sequence_topk_avg_pooling

__getattr__ = _getattr_of(__name__)
_export(__name__)
