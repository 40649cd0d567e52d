"""LSTM: one or several stacked layers of long short-term memory over the steps of each row."""

from __future__ import annotations

from math import sqrt
from typing import Any

from fluidlite.base.dtypes import is_float
from fluidlite.initializer import Uniform
from fluidlite.layer_helper import LayerHelper
from fluidlite.layers import reshape, slice, transpose
from fluidlite.nn.layer import Layer
from fluidlite.operators.cudnn_lstm import reserve_count, weight_size
from fluidlite.param_attr import ParamAttr
from fluidlite.program.variable import Variable
from fluidlite.tensor.tensor_spec import Spec


class LSTM(Layer):
    """Hidden states of LSTMs, [rows, steps, units], or those after the last step, [rows, units].

    It uses the operator of ``fluid.layers.lstm``; the initial states are 0.

    Parameters
    ----------
    units : int
    layers : int
        Number of stacked layers.
    both_ways : bool
        Bidirectional: each layer runs in both directions, and the result is twice as wide.
    steps : bool
        Whether to return the states of all steps; False: those of the last layer after the last step of each
        direction.
    dropout : float
        Probability of dropout between the layers, in training.
    weight : Initializer or ParamAttr, optional
        Of the one parameter with all weights and biases; default: uniform numbers up to 1 / sqrt(units).
    name : str, optional
    """

    kind = "lstm"
    configured = ("units", "layers", "both_ways", "steps", "dropout")

    def __init__(
        self,
        units: int,
        layers: int = 1,
        both_ways: bool = False,
        steps: bool = True,
        dropout: float = 0.0,
        weight: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.units, self.layers, self.both_ways = units, layers, both_ways
        self.steps, self.dropout, self._weight = steps, dropout, weight

    def expects(self, spec: Spec) -> str | None:
        if len(spec.dims) != 3 or not is_float(spec.dtype) or spec.dims[2] < 1:
            return "[rows, steps, width], a floating-point type, the width known"
        return None

    def build(self, x: Variable) -> Variable:
        """Append the operator between two transposes: it takes [steps, rows, width]."""
        helper = LayerHelper("lstm", name=self.name)
        directions = 2 if self.both_ways else 1
        attr = self.attr(self._weight) or ParamAttr()
        count = weight_size(x.shape[2], self.units, self.layers, directions)
        bound = 1 / sqrt(self.units) if self.units > 0 else 0.0
        weight = helper.create_parameter(attr, [count], x.dtype, default_initializer=Uniform(-bound, bound))
        outputs = {slot: helper.create_variable_for_type_inference() for slot in ("Out", "last_h", "last_c")}
        reserve_variables = [
            helper.create_variable_for_type_inference() for _ in range(reserve_count(self.layers, directions))
        ]
        attrs = {
            "input_size": x.shape[2],
            "hidden_size": self.units,
            "num_layers": self.layers,
            "is_bidirec": self.both_ways,
            "dropout_prob": self.dropout,
        }
        helper.append_op(
            "cudnn_lstm",
            {"Input": transpose(x, [1, 0, 2]), "W": weight},
            {**outputs, "Reserve": reserve_variables},
            attrs,
        )
        if self.steps:
            return transpose(outputs["Out"], [1, 0, 2])
        last = slice(outputs["last_h"], [0], [(self.layers - 1) * directions], [self.layers * directions])
        return reshape(transpose(last, [1, 0, 2]), [-1, directions * self.units])
