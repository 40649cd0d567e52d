"""The program builder's layers, under Fluid's names; ``fluid.layers.fc`` and so on."""

from __future__ import annotations

from typing import Any

from fluidlite.layers import io, learning_rate_scheduler, loss, metric_op, nn, ops, tensor
from fluidlite.layers.io import *
from fluidlite.layers.learning_rate_scheduler import *
from fluidlite.layers.loss import *
from fluidlite.layers.metric_op import *
from fluidlite.layers.nn import *
from fluidlite.layers.tensor import *

__all__: list[str] = []
for _room in (io, learning_rate_scheduler, loss, metric_op, nn, ops, tensor):
    __all__ += _room.__all__


def __getattr__(name: str) -> Any:
    if name in ops.__all__:  # made of the operator's definition when first asked for
        return ops.layer(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
