"""Layers of rows: Dense, Embedding, Dropout, BatchNorm and LayerNorm."""

from __future__ import annotations

from typing import Any

from fluidlite.base.dtypes import INTS, is_float
from fluidlite.input import embedding
from fluidlite.layers import batch_norm, dropout, fc, layer_norm
from fluidlite.nn.layer import Layer
from fluidlite.param_attr import ParamAttr
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
        Initial values; default: Xavier's uniform numbers, and zeros. ``bias=False``: none.
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


class Embedding(Layer):
    """An embedding: the table's rows at the input's ids, [..., width].

    Parameters
    ----------
    vocabulary : int
        Rows of the table.
    width : int
    padding : int, optional
        The row of this id is zeros, and is not trained.
    weight : Initializer or ParamAttr, optional
        Initial values of the table.
    name : str, optional
    """

    kind = "embedding"
    configured = ("vocabulary", "width", "padding")

    def __init__(
        self, vocabulary: int, width: int, padding: int | None = None, weight: Any = None, name: str | None = None
    ) -> None:
        super().__init__(name)
        self.vocabulary, self.width, self.padding, self._weight = vocabulary, width, padding, weight

    def expects(self, spec: Spec) -> str | None:
        return None if spec.dtype in INTS else f"ids, one of {', '.join(INTS)}"

    def build(self, x: Variable) -> Variable:
        """Append a look-up; the table's name has the form of other layers' parameters."""
        attr = self.attr(self._weight) or ParamAttr()
        if attr.name is None:
            attr = attr.copy()
            attr.name = f"{self.name}.w_0"
        return embedding(x, [self.vocabulary, self.width], padding_idx=self.padding, param_attr=attr)


class Dropout(Layer):
    """Dropout: each element becomes 0 with a probability, others are divided by 1 - rate; identity in evaluation.

    Parameters
    ----------
    rate : float
        The probability, 0 to 1.
    name : str, optional
    """

    kind = "dropout"
    configured = ("rate",)

    def __init__(self, rate: float, name: str | None = None) -> None:
        super().__init__(name)
        self.rate = rate

    def build(self, x: Variable) -> Variable:
        return dropout(x, self.rate, name=self.name, dropout_implementation="upscale_in_train")


class BatchNorm(Layer):
    """Batch normalisation of each channel; in evaluation by moving averages of training.

    Parameters
    ----------
    momentum : float
        The factor of the old value in a moving average.
    epsilon : float
    activation : str, optional
    name : str, optional
    """

    kind = "batch_norm"
    configured = ("momentum", "epsilon", "activation")

    def __init__(
        self, momentum: float = 0.9, epsilon: float = 1e-5, activation: str | None = None, name: str | None = None
    ) -> None:
        super().__init__(name)
        self.momentum, self.epsilon, self.activation = momentum, epsilon, activation

    def expects(self, spec: Spec) -> str | None:
        if not 2 <= len(spec.dims) <= 5 or not is_float(spec.dtype):
            return "[rows, channels, ...] of rank 2 to 5, a floating-point type"
        return None

    def build(self, x: Variable) -> Variable:
        return batch_norm(
            x,
            act=self.activation,
            momentum=self.momentum,
            epsilon=self.epsilon,
            name=self.name,
            moving_mean_name=f"{self.name}.mean",
            moving_variance_name=f"{self.name}.variance",
        )


class LayerNorm(Layer):
    """Layer normalisation of each row.

    Parameters
    ----------
    epsilon : float
    activation : str, optional
    name : str, optional
    """

    kind = "layer_norm"
    configured = ("epsilon", "activation")

    def __init__(self, epsilon: float = 1e-5, activation: str | None = None, name: str | None = None) -> None:
        super().__init__(name)
        self.epsilon, self.activation = epsilon, activation

    def expects(self, spec: Spec) -> str | None:
        if len(spec.dims) < 2 or not is_float(spec.dtype) or any(d < 0 for d in spec.dims[1:]):
            return "[rows, ...], a floating-point type, all dims but the first known"
        return None

    def build(self, x: Variable) -> Variable:
        return layer_norm(x, epsilon=self.epsilon, act=self.activation, name=self.name)
