"""Fusion in array code: tensors that their readers compute, or that are computed in the output array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fluidlite.base.dtypes import FLOATS
from fluidlite.codegen.primitives import PRIMITIVES
from fluidlite.expr.tensor import Tensor

FUSIBLE_PRIMITIVES = frozenset({"take", "contract"})
"""Primitives that a single reader may compute."""


def without_broadcast(arg: Tensor, x: Tensor) -> Tensor:
    """The operand of a broadcast, since array functions broadcast implicitly; other tensors unchanged."""
    return arg.args[0] if arg.op == "broadcast" and len(arg.dims) == len(x.dims) else arg


def reduces_windows(x: Tensor | None) -> bool:
    """Whether a tensor reduces each window to one element."""
    if x is None or x.op not in ("reduce", "arg") or x.args[0].op != "window":
        return False
    inner = x.args[0].params[0] + 1
    return bool(x.params[1] == (inner if x.op == "arg" else (inner,)))


def is_sparse_unwindow(x: Tensor | None) -> bool:
    """Whether a tensor sums windows with one nonzero element each, at an index."""
    if x is None or x.op != "unwindow" or x.args[0].op != "put":
        return False
    (put,) = x.args
    is_single = put.params[0] == x.params[0] + 1 and put.args[0].dims[put.params[0]].key == "1"
    return is_single and len(put.args) == 2


def is_computed_by_reader(x: Tensor, users: Mapping[Tensor, Sequence[Tensor | None]]) -> bool:
    """Whether the only reader computes a tensor: a gather in a contraction, or a contraction in a scatter."""
    readers = users.get(x, ())
    user = readers[0] if len(readers) == 1 else None
    if user is None or x.op not in FUSIBLE_PRIMITIVES:
        return False
    if x.op == "take" and user.op == "contract":
        at = gathered_factor(user, users)
        return at is not None and user.args[at] is x
    return x.op == "contract" and user.op == "add_at" and user.args[0] is x and gathered_factor(x, users) is None


def gathered_factor(x: Tensor, users: Mapping[Tensor, Sequence[Tensor | None]]) -> int | None:
    """The number of a factor that is a gather without other readers; None: neither."""
    return next((k for k, arg in enumerate(x.args) if arg.op == "take" and len(users.get(arg, ())) == 1), None)


def called_function(x: Tensor) -> str:
    """The name of a scalar primitive's function in the namespace, or with @ in front in ``codegen.functions``."""
    primitive = PRIMITIVES[x.params[0]]
    return primitive.xp_int if x.args[-1].dtype not in FLOATS and primitive.xp_int else primitive.xp


def covers_all_dims(x: Tensor) -> bool:
    """Whether the operands of a scalar primitive broadcast to all of its dims."""
    missing, reached = {*enumerate(x.sizes)}, False
    for arg in x.args:
        source = without_broadcast(arg, x)
        if source.op != "number" and len(source.dims) == len(x.dims):
            missing.difference_update(enumerate(source.sizes))
            reached = True
    return reached and not missing


def has_out_argument(called: str) -> bool:
    """Whether a scalar primitive's function has an ``out`` argument on NumPy."""
    return called == "where" or isinstance(getattr(np, called, None), np.ufunc)


def can_compute_in_output(x: Tensor) -> bool:
    """Whether an elementwise result can be computed in its output array, on NumPy."""
    return x.op == "map" and has_out_argument(called_function(x)) and covers_all_dims(x)


def is_fused_into_sum(x: Tensor, users: Mapping[Tensor, Sequence[Tensor | None]]) -> bool:
    """Whether a tensor is a product of floats that only sums read."""
    if x.op != "map" or x.params[0] != "mul" or x.dtype not in FLOATS or any(arg.op == "number" for arg in x.args):
        return False
    readers = users.get(x, ())
    return (
        bool(readers)
        and covers_all_dims(x)
        and all(
            user is not None and user.op == "reduce" and user.params[0] == "sum" and user.dtype == x.dtype
            for user in readers
        )
    )
