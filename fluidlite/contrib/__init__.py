"""Fluid's ``contrib``: Trainer, Inferencer, decoders, recurrent layers, memory estimates, operator counts."""

from fluidlite.base.absent import getattr_of as _getattr_of
from fluidlite.base.exports import export as _export
from fluidlite.contrib import decoder as decoder, layers as layers
from fluidlite.contrib.decoder import (
    BeamSearchDecoder as BeamSearchDecoder,
    InitState as InitState,
    StateCell as StateCell,
    TrainingDecoder as TrainingDecoder,
)
from fluidlite.contrib.extend_optimizer import (
    extend_with_decoupled_weight_decay as extend_with_decoupled_weight_decay,
)
from fluidlite.contrib.inferencer import Inferencer as Inferencer
from fluidlite.contrib.layers import (
    BasicGRUUnit as BasicGRUUnit,
    BasicLSTMUnit as BasicLSTMUnit,
    basic_gru as basic_gru,
    basic_lstm as basic_lstm,
    batch_fc as batch_fc,
    ctr_metric_bundle as ctr_metric_bundle,
    fused_elemwise_activation as fused_elemwise_activation,
    fused_embedding_seq_pool as fused_embedding_seq_pool,
    partial_concat as partial_concat,
    partial_sum as partial_sum,
    sequence_topk_avg_pooling as sequence_topk_avg_pooling,
    shuffle_batch as shuffle_batch,
)
from fluidlite.contrib.memory_usage_calc import memory_usage as memory_usage
from fluidlite.contrib.op_frequence import op_freq_statistic as op_freq_statistic
from fluidlite.contrib.trainer import (
    BeginEpochEvent as BeginEpochEvent,
    BeginStepEvent as BeginStepEvent,
    CheckpointConfig as CheckpointConfig,
    EndEpochEvent as EndEpochEvent,
    EndStepEvent as EndStepEvent,
    Trainer as Trainer,
)

__getattr__ = _getattr_of(__name__)
_export(__name__)
