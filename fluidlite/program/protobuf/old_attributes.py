"""Attributes in Paddle's saved programs that no definition declares: which are ignored, and which must be neutral."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from fluidlite.base.errors import SavedModelError
from fluidlite.program.roles import ROLES

_ROLES = {**ROLES, 4096: "forward"}
_LOSS = 256
"""The bit of Fluid's role of operators that compute a loss, or start its backward."""
_FRAME = re.compile(r'\s*File "(?P<file>.*)", line (?P<line>\d{1,9}), in ')

IGNORED = frozenset(
    {
        "op_role_var",
        "op_namescope",
        "op_callstack",
        "with_quant_attr",
        "use_cudnn",
        "use_mkldnn",
        "use_quantizer",
        "mkldnn_data_type",
        "workspace_size_MB",
        "exhaustive_search",
        "cudnn_version",
        "grad_inplace",
        "trainer_id",
        "height_sections",
        "epmap",
        "endpoints",
        "pserver_num",
        "skip_eager_deletion_vars",
    }
)
"""Ignored attributes: roles, source lines, and choices of a library, which do not affect results."""


def _is(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value in values


def _empty(value: Any) -> bool:
    return not value


_IS_ONE = _is(1.0, (1.0,), ())

NEUTRAL: dict[str, Callable[[Any], bool]] = {
    # tuned or fused forms with the same results
    "fuse_with_relu": _empty,
    "fuse_relu": _empty,
    "fuse_relu_before_depthwise_conv": _empty,
    "fuse_brelu": _empty,
    "fuse_brelu_threshold": lambda value: True,
    "fuse_activation": _empty,
    "fuse_alpha": lambda value: True,
    "fuse_beta": lambda value: True,
    "fuse_residual_connection": _empty,
    "use_addto": lambda value: True,
    "fuse_eltwise": _empty,
    # scales of quantised data
    "Scale_in": _IS_ONE,
    "Scale_out": _IS_ONE,
    "Scale_in_eltwise": _IS_ONE,
    "Scale_weights": _IS_ONE,
    "Scale_x": _IS_ONE,
    "Scale_y": _IS_ONE,
    "Scale_data": _IS_ONE,
    "Scale": _IS_ONE,
    "Shift": _is(0.0),
    "Shift_data": _is(0.0),
    "force_fp32_output": _empty,
    "out_threshold": lambda value: True,
    "activation_bits": lambda value: True,
    "head_number": _is(1),
    # layouts
    "data_format": _is("AnyLayout", "NCHW", "NCDHW", ""),
    "data_layout": _is("AnyLayout", "NCHW", ""),
    "x_data_format": _is("", "AnyLayout", "NCHW"),
    "y_data_format": _is("", "AnyLayout", "NCHW"),
    # distribution, parameter servers
    "is_distributed": _empty,
    "remote_prefetch": _empty,
    "is_sparse": lambda value: True,
    "table_names": _empty,
    "entry": _is("none", ""),
    "entry_config": _is("none", ""),
    "slot": _is(0),
    "lazy_mode": _empty,
    "min_row_size_to_use_multithread": lambda value: True,
    # modes without effect here
    "is_test": lambda value: True,
    "force_cpu": lambda value: True,
    "padding_algorithm": _is("EXPLICIT", ""),
    "dtype": _is(-1),
    "overwrite": _is(True),
    "fix_seed": _empty,
    "seed": _is(0),
    "trainable_statistics": _empty,
    "decrease_axis": _empty,
    "infer_flags": lambda value: all(item == 1 for item in value),
    "str_value": _empty,
    "axis": _is(-1),
    "bias_after_scale": _is(True),
    "keep_dim": _empty,
}
"""Checks of attributes of some operators in some versions: the values allowed if a definition does not declare them."""

_SAME_AS_DEFAULT = frozenset({"data_format", "data_layout", "x_data_format", "y_data_format"})


def role_of(number: Any) -> str:
    """Return the role with the number ``op_role``."""
    role = _ROLES.get(number & ~_LOSS) if type(number) is int else None
    if role is None:
        raise SavedModelError(f"op_role is {number!r:.40}, which is no role of a program for one place")
    return role


def line_of(callstack: Any) -> tuple[str, int]:
    """Return the script's file and line in ``op_callstack``: the frame that called into Paddle."""
    matches = [_FRAME.match(text) for text in callstack if isinstance(text, str)] if callstack else []
    frames = [(match["file"].replace("\\", "/"), int(match["line"])) for match in matches if match is not None]
    outside = [frame for frame in frames if "paddle/fluid/" not in frame[0]]
    if not outside:
        return "?", 0
    return outside[-1] if frames[0] is outside[0] else outside[0]  # some versions start with the innermost frame


def means_default(name: str, value: Any) -> bool:
    """Whether the value of a declared attribute means its default, as ``AnyLayout`` does."""
    return name in _SAME_AS_DEFAULT and value == "AnyLayout"


def is_neutral(name: str, value: Any) -> bool:
    """Whether an undeclared attribute may be ignored."""
    if name in IGNORED:
        return True
    allowed = NEUTRAL.get(name)
    return allowed is not None and bool(allowed(value))
