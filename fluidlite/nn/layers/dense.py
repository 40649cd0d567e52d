"""Dense: every unit sees every number of its row."""

from __future__ import annotations

from typing import Any

from fluidlite.base.dtypes import is_float
from fluidlite.layers import fc
from fluidlite.nn.layer import Layer
from fluidlite.program.variable import Variable
from fluidlite.tensor.tensor_spec import Spec


class Dense(Layer):
    """act(x . weight + bias), [rows, units]; further dims of x are flattened.

    Parameters
    ----------
    units : int
    activation : str, optional
        ``"relu"``, ``"softmax"``, ... any activation of ``fluid.layers``.
    weight, bias : Initializer or ParamAttr, optional
        First values; default: Xavier's uniform numbers, and zeros. ``bias=False``: none.
    name : str, optional
    """

    kind = "dense"
    configured = ("units", "activation")

    def __init__(
        self, units: int, activation: str | None = None, weight: Any = None, bias: Any = None, name: str | None = None
    ) -> None:
        super().__init__(name)
        self.units, self.activation, self._weight, self._bias = units, activation, weight, bias

    def expects(self, spec: Spec) -> str | None:
        if len(spec.dims) < 2 or not is_float(spec.dtype) or any(d < 0 for d in spec.dims[1:]):
            return "[rows, width], a floating-point type, the width known"
        return None

    def build(self, x: Variable) -> Variable:
        return fc(
            x,
            self.units,
            param_attr=self.attr(self._weight),
            bias_attr=self.attr(self._bias),
            act=self.activation,
            name=self.name,
        )
