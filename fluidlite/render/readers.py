"""What array calls do with a tensor because of who reads it: it is made by its reader, or stored as it is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fluidlite.base.dtypes import FLOATS
from fluidlite.codegen.primitives import PRIMITIVES
from fluidlite.expr.tensor import Tensor

MADE_BY_READERS = frozenset({"take", "contract"})
"""What may be made where its one reader is."""


def unspread(arg: Tensor, x: Tensor) -> Tensor:
    """What is broadcast, before it is: array functions do that themselves."""
    return arg.args[0] if arg.op == "broadcast" and len(arg.dims) == len(x.dims) else arg


def reduces_windows(x: Tensor | None) -> bool:
    """Whether a tensor reduces each of some windows to one element."""
    if x is None or x.op not in ("reduce", "arg") or x.args[0].op != "window":
        return False
    inner = x.args[0].params[0] + 1
    return bool(x.params[1] == (inner if x.op == "arg" else (inner,)))


def unwindows_one(x: Tensor | None) -> bool:
    """Whether a tensor adds up windows of which one element each, that an index names, is not 0."""
    if x is None or x.op != "unwindow" or x.args[0].op != "put":
        return False
    (put,) = x.args
    one = put.params[0] == x.params[0] + 1 and put.args[0].dims[put.params[0]].key == "1"
    return one and len(put.args) == 2


def computed_by_reader(x: Tensor, users: Mapping[Tensor, Sequence[Tensor | None]]) -> bool:
    """Whether a tensor is made where its one reader is: what indices name in a product, a product that they add up."""
    found = users.get(x, ())
    user = found[0] if len(found) == 1 else None
    if user is None or x.op not in MADE_BY_READERS:
        return False
    if x.op == "take" and user.op == "contract":
        at = gathered_factor(user, users)
        return at is not None and user.args[at] is x
    return x.op == "contract" and user.op == "add_at" and user.args[0] is x and gathered_factor(x, users) is None


def gathered_factor(x: Tensor, users: Mapping[Tensor, Sequence[Tensor | None]]) -> int | None:
    """Which factor of a product indices name, and nobody else reads; None: neither."""
    return next((k for k, arg in enumerate(x.args) if arg.op == "take" and len(users.get(arg, ())) == 1), None)


def called_function(x: Tensor) -> str:
    """The function of a scalar primitive: the namespace's, or of ours with @ in front."""
    primitive = PRIMITIVES[x.params[0]]
    return primitive.xp_int if x.args[-1].dtype not in FLOATS and primitive.xp_int else primitive.xp


def has_all_dims(x: Tensor) -> bool:
    """Whether operands of a scalar primitive have all its dims between them, so that the result has."""
    missing, reached = {*enumerate(x.sizes)}, False
    for source in [unspread(arg, x) for arg in x.args if arg.op != "number"]:
        if len(source.dims) == len(x.dims):
            missing.difference_update(enumerate(source.sizes))
            reached = True
    return reached and not missing


def takes_array(called: str) -> bool:
    """Whether a scalar primitive's function takes the array that it writes, on NumPy."""
    return called == "where" or isinstance(getattr(np, called, None), np.ufunc)


def stored_at_once(x: Tensor) -> bool:
    """Whether an elementwise result may be computed where it is stored, on NumPy."""
    return x.op == "map" and takes_array(called_function(x)) and has_all_dims(x)


def in_sum(x: Tensor, users: Mapping[Tensor, Sequence[Tensor | None]]) -> bool:
    """Whether a tensor is a product of floats that sums alone read."""
    if x.op != "map" or x.params[0] != "mul" or x.dtype not in FLOATS or any(arg.op == "number" for arg in x.args):
        return False
    readers = users.get(x, ())
    return (
        bool(readers)
        and has_all_dims(x)
        and all(
            user is not None and user.op == "reduce" and user.params[0] == "sum" and user.dtype == x.dtype
            for user in readers
        )
    )
