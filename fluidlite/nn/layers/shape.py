"""Layers that reshape (Flatten, Reshape) or apply a function (Activation, Function)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from fluidlite.base.arguments import check_int
from fluidlite.base.errors import NetworkError
from fluidlite.layer_helper import LayerHelper
from fluidlite.layers import reshape
from fluidlite.nn.layer import Layer
from fluidlite.program.variable import Variable
from fluidlite.tensor.tensor_spec import Spec


class Flatten(Layer):
    """[rows, everything else]."""

    kind = "flatten"

    def expects(self, spec: Spec) -> str | None:
        return "[rows, ...], all dims but the first known" if any(d < 0 for d in spec.dims[1:]) else None

    def build(self, x: Variable) -> Variable:
        """Append a reshape, which copies nothing."""
        return reshape(x, [0, prod(x.shape[1:])], name=self.name)


class Reshape(Layer):
    """[rows, *dims].

    Parameters
    ----------
    dims : sequence of int
        Without the rows; -1 for a dim that follows from the others.
    name : str, optional
    """

    kind = "reshape"
    configured = ("dims",)

    def __init__(self, dims: Sequence[int], name: str | None = None) -> None:
        super().__init__(name)
        self.dims = [check_int("dims of Reshape", d, NetworkError, -1) for d in dims]

    def expects(self, spec: Spec) -> str | None:
        inner, target = spec.dims[1:], self.dims
        if any(d < 0 for d in inner):
            return "[rows, ...], all dims but the first known"
        count = prod(d for d in target if d >= 0)
        fits = prod(inner) == count if -1 not in target else bool(count) and prod(inner) % count == 0
        return None if fits else f"{count} numbers a row, as many as {target} has"

    def build(self, x: Variable) -> Variable:
        """Append a reshape, which copies nothing."""
        inner = prod(x.shape[1:])
        count = prod(d for d in self.dims if d >= 0)
        dims = [inner // count if d < 0 else d for d in self.dims]
        return reshape(x, [0, *dims], name=self.name)


class Activation(Layer):
    """A function of each element, or of each row: any activation of ``fluid.layers``.

    Parameters
    ----------
    function : str
        ``"relu"``, ``"tanh"``, ``"softmax"``, ...
    name : str, optional
    """

    kind = "activation"
    configured = ("function",)

    def __init__(self, function: str, name: str | None = None) -> None:
        super().__init__(name)
        self.function = function

    def build(self, x: Variable) -> Variable:
        return LayerHelper(self.function, name=self.name, act=self.function).append_activation(x)


class Function(Layer):
    """A layer that applies a function, such as one of ``fluid.layers``, to its input.

    Parameters
    ----------
    function : callable
        ``function(variable) -> variable``.
    name : str, optional
    """

    kind = "function"

    def __init__(self, function: Callable[[Variable], Variable], name: str | None = None) -> None:
        super().__init__(name)
        if not callable(function):
            raise NetworkError(f"layer Function got {function!r:.80}; expected a function of a variable")
        self.function = function

    def build(self, x: Variable) -> Variable:
        return self.function(x)

    def config(self) -> dict[str, Any]:
        """The function's name; saved networks do not contain its code."""
        return {"function": getattr(self.function, "__name__", type(self.function).__name__)}
