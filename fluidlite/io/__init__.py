"""Saved models: parameters as safetensors, programs as JSON. Loading never runs code."""

from __future__ import annotations

from fluidlite.io.inference_model import load_inference_model, save_inference_model
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

__all__ = [
    "get_parameter_value", "get_parameter_value_by_name", "is_parameter", "is_persistable", "load_inference_model",
    "load_params", "load_persistables", "load_vars", "save_inference_model", "save_params", "save_persistables",
    "save_vars",
]  # fmt: skip
