"""The arguments of optimisers: by position in the order of Fluid 1.8 or of Fluid 1.1, and told once, by a signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

Init = TypeVar("Init", bound=Callable[..., None])

_NEWER = ("parameter_list", "grad_clip")


def either_order(init: Init) -> Init:
    """Let ``__init__`` take positional arguments as Fluid 1.1 does too.

    Fluid 1.8 put ``parameter_list`` and ``grad_clip`` among the others. What comes in the place of
    ``parameter_list`` tells which order is meant: a list or None is 1.8's, anything else 1.1's.
    """
    newer = list(inspect.signature(init).parameters)[1:]
    older = [name for name in newer if name not in _NEWER]
    at = newer.index("parameter_list")

    @wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if len(args) > at and not isinstance(args[at], (list, tuple, set, type(None))) and len(args) <= len(older):
            kept = dict(zip(older, args, strict=False))
            twice = sorted(kept.keys() & kwargs.keys())
            if twice:
                raise TypeError(f"{type(self).__name__}: argument {twice[0]!r} is given twice")
            args, kwargs = (), {**kept, **kwargs}
        init(self, *args, **kwargs)

    return __init__  # type: ignore[return-value]  # wraps keeps the signature


def hyperparameters(init: Init) -> Init:
    """Make an optimiser's ``__init__`` of its signature alone, which :func:`either_order` reads.

    ``_set_hyperparameters(values, defaults)`` gets all arguments.
    """
    signature = inspect.signature(init)
    defaults = {name: each.default for name, each in signature.parameters.items()}

    @wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)  # raises what Python says of wrong arguments
        given = signature.bind(self, *args, **kwargs)
        given.apply_defaults()
        self._set_hyperparameters(dict(list(given.arguments.items())[1:]), defaults)

    return either_order(__init__)  # type: ignore[return-value]  # wraps keeps the signature
