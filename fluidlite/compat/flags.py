"""Fluid's flags: ``set_flags({"FLAGS_check_nan_inf": True})``, or the variable ``FLAGS_check_nan_inf=1``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from fluidlite.base.arguments import check_bool, check_list, check_mapping
from fluidlite.base.errors import ProgramError
from fluidlite.compiler.instrumentation import check_finite, set_process_observer

_CHECK = "FLAGS_check_nan_inf"
_flags: dict[str, Any] = {
    _CHECK: False,
    # Hints without effect: memory is always planned, and kernels are selected for each call.
    "FLAGS_allocator_strategy": "auto_growth",
    "FLAGS_benchmark": False,
    "FLAGS_conv_workspace_size_limit": 512,
    "FLAGS_cpu_deterministic": False,
    "FLAGS_cudnn_deterministic": False,
    "FLAGS_cudnn_exhaustive_search": False,
    "FLAGS_eager_delete_tensor_gb": 0.0,
    "FLAGS_fast_eager_deletion_mode": True,
    "FLAGS_fraction_of_gpu_memory_to_use": 0.92,
    "FLAGS_initial_cpu_memory_in_mb": 500,
    "FLAGS_memory_fraction_of_eager_deletion": 1.0,
    "FLAGS_paddle_num_threads": 1,
    "FLAGS_sync_nccl_allreduce": True,
    "FLAGS_use_pinned_memory": True,
}


def set_flags(flags: Mapping[str, Any]) -> None:
    """Set flags by Fluid's names.

    Raises
    ------
    ProgramError
        A flag is unknown, or a switch gets no truth value; then no flag is changed.
    """
    new_flags = dict(check_mapping("flags", flags, "a dict such as {'FLAGS_check_nan_inf': True}"))
    for name in new_flags:
        if name not in _flags:
            raise ProgramError(f"there is no flag {name!r}; there are {', '.join(_flags)}")
    if _CHECK in new_flags:
        new_flags[_CHECK] = check_bool(_CHECK, new_flags[_CHECK])
    _flags.update(new_flags)
    set_process_observer(check_finite, _flags[_CHECK])


def get_flags(names: str | Sequence[str]) -> dict[str, Any]:
    """Values of flags."""
    requested = check_list("flags", names, "names of flags", one=str)
    for name in requested:
        if name not in _flags:
            raise ProgramError(f"there is no flag {name!r}; there are {', '.join(_flags)}")
    return {name: _flags[name] for name in requested}


if os.environ.get(_CHECK, "").lower() in ("1", "true"):
    set_flags({_CHECK: True})
