"""Arguments of optimisers: positional in the order of Fluid 1.8 or of Fluid 1.1; declared by a signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

Init = TypeVar("Init", bound=Callable[..., None])

_NEW_ARGUMENTS = ("parameter_list", "grad_clip")  # inserted by Fluid 1.8


def either_order(init: Init) -> Init:
    """Let ``__init__`` also take positional arguments in the order of Fluid 1.1.

    Fluid 1.8 inserted ``parameter_list`` and ``grad_clip`` between the others. The argument at the position of
    ``parameter_list`` tells the order: a list or None is that of 1.8, anything else that of 1.1.
    """
    new_order = list(inspect.signature(init).parameters)[1:]
    old_order = [name for name in new_order if name not in _NEW_ARGUMENTS]
    at = new_order.index("parameter_list")

    @wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if len(args) > at and not isinstance(args[at], (list, tuple, set, type(None))) and len(args) <= len(old_order):
            named_args = dict(zip(old_order, args, strict=False))
            repeated = sorted(named_args.keys() & kwargs.keys())
            if repeated:
                raise TypeError(f"{type(self).__name__}: argument {repeated[0]!r} is given twice")
            args, kwargs = (), {**named_args, **kwargs}
        init(self, *args, **kwargs)

    return __init__  # type: ignore[return-value]  # wraps keeps the signature


def hyperparameters(init: Init) -> Init:
    """Generate an optimiser's ``__init__`` from its signature, with :func:`either_order`.

    ``_set_hyperparameters(values, defaults)`` gets all arguments.
    """
    signature = inspect.signature(init)
    defaults = {name: each.default for name, each in signature.parameters.items()}

    @wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)  # raises Python's TypeError for wrong arguments
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        self._set_hyperparameters(dict(list(bound.arguments.items())[1:]), defaults)

    return either_order(__init__)  # type: ignore[return-value]  # wraps keeps the signature
