# mypy: implicit-reexport
"""The program builder's layers, under Fluid's names; ``fluid.layers.fc`` and so on.

The layers of a module are those in its ``__all__``, or all its functions and classes.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from inspect import isclass as _isclass, isfunction as _isfunction
from pkgutil import iter_modules as _iter_modules
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING, Any

from fluidlite.base.absent import absent as _absent
from fluidlite.layers import device as device, ops, utils as utils
from fluidlite.layers.public import public as _public

if TYPE_CHECKING:  # the names that the loop below exports
    from fluidlite.layers.beam_search import *

    # layers with the name of their module
    from fluidlite.layers.beam_search import beam_search
    from fluidlite.layers.beam_search_decoder import *
    from fluidlite.layers.branches import *
    from fluidlite.layers.class_sampling import *
    from fluidlite.layers.control_flow import *
    from fluidlite.layers.conv import *
    from fluidlite.layers.creation import *
    from fluidlite.layers.decoders import *
    from fluidlite.layers.distributions import *
    from fluidlite.layers.dynamic_decode import *
    from fluidlite.layers.dynamic_decode import dynamic_decode
    from fluidlite.layers.dynamic_rnn import *
    from fluidlite.layers.if_else import *
    from fluidlite.layers.index import *
    from fluidlite.layers.io import *
    from fluidlite.layers.learning_rate_scheduler import *
    from fluidlite.layers.loops import *
    from fluidlite.layers.loss import *
    from fluidlite.layers.loss_regression import *
    from fluidlite.layers.metric_op import *
    from fluidlite.layers.nn import *
    from fluidlite.layers.norm import *
    from fluidlite.layers.normalization_stats import *
    from fluidlite.layers.pool import *
    from fluidlite.layers.preprocessor import *
    from fluidlite.layers.products import *
    from fluidlite.layers.py_func import *
    from fluidlite.layers.py_func import py_func
    from fluidlite.layers.rank_table import *
    from fluidlite.layers.readers import *
    from fluidlite.layers.recurrent import *
    from fluidlite.layers.reduce import *
    from fluidlite.layers.rnn import *
    from fluidlite.layers.rnn import rnn
    from fluidlite.layers.selected_rows import *
    from fluidlite.layers.sequence_lod import *
    from fluidlite.layers.shape import *
    from fluidlite.layers.shape import shape
    from fluidlite.layers.slicing_padding import *
    from fluidlite.layers.static_rnn import *
    from fluidlite.layers.structured import *
    from fluidlite.layers.tensor import *
    from fluidlite.layers.tensor_array import *
    from fluidlite.layers.vision import *
    from fluidlite.layers.vision_sequence import *


def _layers_of(module: _ModuleType) -> list[str]:
    members = {name: each for name, each in vars(module).items() if getattr(each, "__module__", "") == module.__name__}
    return [name for name, each in members.items() if name[0] != "_" and (_isclass(each) or _isfunction(each))]


_HELPERS = {"attribute_checks", "common", "declare", "declared", "declared_use", "device", "documentation"}  # no layers
_HELPERS |= {"int_or_variable", "ops", "public", "sub_blocks", "utils"}
_modules = [
    _import_module(f"{__name__}.{_info.name}")
    for _info in _iter_modules(__spec__.submodule_search_locations)
    if _info.name not in _HELPERS
]
_exported = [*ops.__all__]
for _module in _modules:
    vars(_module).setdefault("__all__", _layers_of(_module))
    for _name in _module.__all__:
        if not _isclass(getattr(_module, _name)):  # a script may derive from a class
            setattr(_module, _name, _public(getattr(_module, _name)))  # Fluid's paths: layers.nn.fc
        globals()[_name] = getattr(_module, _name)
    _exported += _module.__all__
globals()["__all__"] = _exported


def __getattr__(name: str) -> Any:
    if name in ops.__all__:  # generated from the operator's definition on first use
        return ops.layer(name)
    raise _absent(__name__, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *ops.__all__})
