"""Saved models: parameters as safetensors, programs as JSON. Loading never runs code. Readers are here too."""

from fluidlite.base.exports import export as _export
from fluidlite.batch import batch as batch
from fluidlite.io import load_operator as _load_operator  # noqa: F401  declares the operator
from fluidlite.io.inference_model import (
    append_fetch_ops as append_fetch_ops,
    get_inference_program as get_inference_program,
    load_inference_model as load_inference_model,
    prepend_feed_ops as prepend_feed_ops,
    save_inference_model as save_inference_model,
)
from fluidlite.io.program_state import (
    get_program_parameter as get_program_parameter,
    get_program_persistable_vars as get_program_persistable_vars,
    load_program_state as load_program_state,
    set_program_state as set_program_state,
)
from fluidlite.io.state import is_belong_to_optimizer as is_belong_to_optimizer, load as load, save as save
from fluidlite.io.variables import (
    get_parameter_value as get_parameter_value,
    get_parameter_value_by_name as get_parameter_value_by_name,
    is_parameter as is_parameter,
    is_persistable as is_persistable,
    load_params as load_params,
    load_persistables as load_persistables,
    load_vars as load_vars,
    save_params as save_params,
    save_persistables as save_persistables,
    save_vars as save_vars,
)
from fluidlite.loaders.fluid_loader import DataLoader as DataLoader, PyReader as PyReader
from fluidlite.reader import *  # noqa: F403  its __all__ is the list

_export(__name__)
