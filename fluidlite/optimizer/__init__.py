"""Optimisers: ``minimize`` appends backward, clipping, weight decay and the updates of the parameters."""

from fluidlite.optimizer.adaptive import (
    AdadeltaOptimizer,
    AdagradOptimizer,
    AdamaxOptimizer,
    AdamOptimizer,
    DecayedAdagradOptimizer,
    FtrlOptimizer,
    LambOptimizer,
    RMSPropOptimizer,
)
from fluidlite.optimizer.average import ExponentialMovingAverage, ModelAverage
from fluidlite.optimizer.base import Optimizer
from fluidlite.optimizer.descent import DpsgdOptimizer, LarsMomentumOptimizer, MomentumOptimizer, SGDOptimizer
from fluidlite.optimizer.lookahead import LookaheadOptimizer

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

__all__ = [
    "SGD", "Adadelta", "AdadeltaOptimizer", "Adagrad", "AdagradOptimizer", "Adam", "AdamOptimizer", "Adamax",
    "AdamaxOptimizer", "DecayedAdagrad", "DecayedAdagradOptimizer", "Dpsgd", "DpsgdOptimizer",
    "ExponentialMovingAverage", "Ftrl", "FtrlOptimizer", "Lamb", "LambOptimizer", "LarsMomentum",
    "LarsMomentumOptimizer", "LookaheadOptimizer", "ModelAverage", "Momentum", "MomentumOptimizer", "Optimizer",
    "RMSProp", "RMSPropOptimizer", "SGDOptimizer",
]  # fmt: skip
