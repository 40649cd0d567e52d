"""BatchNorm and LayerNorm: numbers of mean 0 and variance 1, then scaled and shifted."""

from __future__ import annotations

from fluidlite.base.dtypes import is_float
from fluidlite.layers import batch_norm, layer_norm
from fluidlite.nn.layer import Layer
from fluidlite.program.variable import Variable
from fluidlite.tensor.tensor_spec import Spec


class BatchNorm(Layer):
    """Each channel is normalised over the batch; at test by averages of the batches seen in training.

    Parameters
    ----------
    momentum : float
        What an average keeps of itself at each step.
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
    """Each row is normalised by itself.

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
