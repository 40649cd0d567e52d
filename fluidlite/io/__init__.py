"""Saved models: parameters as safetensors, programs as JSON. Loading never runs code. Readers are here too."""

from __future__ import annotations

from fluidlite.batch import batch
from fluidlite.io.inference_model import get_inference_program, load_inference_model, save_inference_model
from fluidlite.io.variables import (
    get_parameter_value,
    get_parameter_value_by_name,
    is_parameter,
    is_persistable,
    load_params,
    load_persistables,
    load_vars,
    save_params,
    save_persistables,
    save_vars,
)
from fluidlite.reader import (
    ComposeNotAligned,
    buffered,
    cache,
    chain,
    compose,
    firstn,
    map_readers,
    shuffle,
)

__all__ = [
    "ComposeNotAligned", "batch", "buffered", "cache", "chain", "compose", "firstn", "get_inference_program",
    "get_parameter_value", "get_parameter_value_by_name", "is_parameter", "is_persistable", "load_inference_model",
    "load_params", "load_persistables", "load_vars", "map_readers", "save_inference_model", "save_params",
    "save_persistables", "save_vars", "shuffle",
]  # fmt: skip
