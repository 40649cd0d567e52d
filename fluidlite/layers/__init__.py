# mypy: implicit-reexport
"""The program builder's layers, under Fluid's names; ``fluid.layers.fc`` and so on. Each module lists its own."""

from __future__ import annotations

from inspect import isclass as _isclass
from sys import modules as _modules
from typing import Any

from fluidlite.layers import device as device, ops
from fluidlite.layers.beam_search import *
from fluidlite.layers.beam_search_decoder import *
from fluidlite.layers.branches import *
from fluidlite.layers.class_sampling import *
from fluidlite.layers.control_flow import *
from fluidlite.layers.conv import *
from fluidlite.layers.creation import *
from fluidlite.layers.decoders import *
from fluidlite.layers.distributions import *
from fluidlite.layers.dynamic_decode import *
from fluidlite.layers.dynamic_rnn import *
from fluidlite.layers.features import *
from fluidlite.layers.if_else import *
from fluidlite.layers.index import *
from fluidlite.layers.io import *
from fluidlite.layers.learning_rate_scheduler import *
from fluidlite.layers.lod import *
from fluidlite.layers.loops import *
from fluidlite.layers.loss import *
from fluidlite.layers.loss_regression import *
from fluidlite.layers.metric_op import *
from fluidlite.layers.nn import *
from fluidlite.layers.norm import *
from fluidlite.layers.normalization_stats import *
from fluidlite.layers.placement import *
from fluidlite.layers.pool import *
from fluidlite.layers.preprocessor import *
from fluidlite.layers.products import *
from fluidlite.layers.public import public as _public
from fluidlite.layers.py_func import *
from fluidlite.layers.rank_table import *
from fluidlite.layers.readers import *
from fluidlite.layers.recurrent import *
from fluidlite.layers.recurrent_cells import *
from fluidlite.layers.reduce import *
from fluidlite.layers.selected_rows import *
from fluidlite.layers.sequence import *
from fluidlite.layers.sequence_matrices import *
from fluidlite.layers.shape import *
from fluidlite.layers.slicing_padding import *
from fluidlite.layers.static_rnn import *
from fluidlite.layers.structured import *
from fluidlite.layers.tensor import *
from fluidlite.layers.tensor_array import *
from fluidlite.layers.vision import *
from fluidlite.layers.vision_sequence import *

_exported = [*ops.__all__]
for _name, _layer in [*globals().items()]:
    if getattr(_layer, "__module__", "").startswith(f"{__name__}.") and not _name.startswith("_"):
        _exported.append(_name)
        if not _isclass(_layer):  # a script may derive from a class
            globals()[_name] = _public(_layer)
            setattr(_modules[_layer.__module__], _name, globals()[_name])  # Fluid's paths: layers.nn.fc
globals()["__all__"] = _exported


def __getattr__(name: str) -> Any:
    if name in ops.__all__:  # made of the operator's definition when first asked for
        return ops.layer(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *ops.__all__})
