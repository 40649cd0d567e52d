"""Optimisers: ``minimize`` appends backward, clipping, weight decay and the updates of the parameters."""

from fluidlite.base.absent import getattr_of as _getattr_of
from fluidlite.base.exports import export as _export
from fluidlite.optimizer.adaptive import (
    AdadeltaOptimizer as AdadeltaOptimizer,
    AdagradOptimizer as AdagradOptimizer,
    AdamaxOptimizer as AdamaxOptimizer,
    AdamOptimizer as AdamOptimizer,
    DecayedAdagradOptimizer as DecayedAdagradOptimizer,
    FtrlOptimizer as FtrlOptimizer,
    LambOptimizer as LambOptimizer,
    RMSPropOptimizer as RMSPropOptimizer,
)
from fluidlite.optimizer.average import (
    ExponentialMovingAverage as ExponentialMovingAverage,
    ModelAverage as ModelAverage,
)
from fluidlite.optimizer.base import Optimizer as Optimizer
from fluidlite.optimizer.lookahead import LookaheadOptimizer as LookaheadOptimizer
from fluidlite.optimizer.recompute import RecomputeOptimizer as RecomputeOptimizer
from fluidlite.optimizer.sgd import (
    DpsgdOptimizer as DpsgdOptimizer,
    LarsMomentumOptimizer as LarsMomentumOptimizer,
    MomentumOptimizer as MomentumOptimizer,
    SGDOptimizer as SGDOptimizer,
)
from fluidlite.regularizer import append_regularization_ops as append_regularization_ops

SGD = SGDOptimizer
Momentum = MomentumOptimizer
LarsMomentum = LarsMomentumOptimizer
Dpsgd = DpsgdOptimizer
Adam = AdamOptimizer
Adamax = AdamaxOptimizer
Adagrad = AdagradOptimizer
DecayedAdagrad = DecayedAdagradOptimizer
Adadelta = AdadeltaOptimizer
RMSProp = RMSPropOptimizer
Ftrl = FtrlOptimizer
Lamb = LambOptimizer

__getattr__ = _getattr_of(__name__)
_export(__name__)
