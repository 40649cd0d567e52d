"""``layers.distributions``: distributions with numbers or variables as parameters; their results are variables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fluidlite.layer_helper import check_variable, refuse
from fluidlite.layers import ops
from fluidlite.layers.creation import gaussian_random, uniform_random
from fluidlite.layers.reduce import reduce_max, reduce_prod, reduce_sum
from fluidlite.layers.tensor import assign, cast, zeros_like
from fluidlite.program.variable import Variable


def _parameter(name: str, value: Any) -> Variable:
    """A parameter of a distribution as a variable; a number becomes [1]."""
    if isinstance(value, Variable):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float, list, tuple, np.ndarray, np.generic)):
        refuse(name, value, "a number, an array, or a Variable")
    array = np.atleast_1d(np.asarray(value, "float32"))
    return assign(array)


class _Distribution:
    def __init__(self, **parameters: Any) -> None:
        self.batch = [_parameter(name, value) for name, value in parameters.items()]
        self._of_numbers = all(isinstance(value, (int, float, np.number)) for value in parameters.values())

    def _dims(self, shape: Any) -> list[int]:
        """``shape``, followed by the dims of the parameters unless these are numbers."""
        if not isinstance(shape, (list, tuple)):
            refuse("shape", shape, "a list of ints")
        shapes = [[] if self._of_numbers else list(variable.shape) for variable in self.batch]
        try:
            dims = [*shape, *np.broadcast_shapes(*map(tuple, shapes))]
        except ValueError:
            refuse("the parameters", shapes, "dims that broadcast")
        if any(dim < 0 for dim in dims):
            refuse("shape", shape, "parameters whose dims are known, to draw samples")
        return dims


class Uniform(_Distribution):
    """The uniform distribution over [low, high).

    Parameters
    ----------
    low, high : float, array or Variable
        Of dims that broadcast.
    """

    def __init__(self, low: Any, high: Any) -> None:
        super().__init__(low=low, high=high)
        self.low, self.high = self.batch

    def sample(self, shape: Sequence[int], seed: int = 0) -> Any:
        """Draws of dims ``shape`` followed by those of the parameters, if these are no numbers."""
        samples = uniform_random(self._dims(shape), min=0.0, max=1.0, seed=seed)
        return samples * (self.high - self.low) + self.low

    def log_prob(self, value: Variable) -> Any:
        """The logarithm of the density; minus infinity outside."""
        check_variable("value", value)
        inside = ops.logical_and(ops.greater_than(value, self.low), ops.less_than(value, self.high))
        return ops.log(cast(inside, value.dtype)) - ops.log(self.high - self.low)

    def entropy(self) -> Any:
        """log(high - low)."""
        return ops.log(self.high - self.low)


class Normal(_Distribution):
    """The normal distribution.

    Parameters
    ----------
    loc, scale : float, array or Variable
        Mean and standard deviation, of dims that broadcast.
    """

    def __init__(self, loc: Any, scale: Any) -> None:
        super().__init__(loc=loc, scale=scale)
        self.loc, self.scale = self.batch

    def sample(self, shape: Sequence[int], seed: int = 0) -> Any:
        """Draws of dims ``shape`` followed by those of the parameters, if these are no numbers."""
        return gaussian_random(self._dims(shape), mean=0.0, std=1.0, seed=seed) * self.scale + self.loc

    def entropy(self) -> Any:
        """0.5 + 0.5 log(2 pi) + log(scale), of the dims of ``loc + scale``."""
        zeros = zeros_like(self.loc + self.scale)
        return ops.log(self.scale + zeros) + (0.5 + 0.5 * math.log(2 * math.pi))

    def log_prob(self, value: Variable) -> Any:
        """The logarithm of the density."""
        check_variable("value", value)
        distance = value - self.loc
        variance = self.scale * self.scale
        return distance * distance * -0.5 / variance - ops.log(self.scale) - math.log(math.sqrt(2 * math.pi))

    def kl_divergence(self, other: Normal) -> Any:
        """The Kullback-Leibler divergence of ``other`` from this."""
        if not isinstance(other, Normal):
            refuse("other", other, "a Normal")
        ratio = self.scale / other.scale
        distance = (self.loc - other.loc) / other.scale
        return (ratio * ratio + distance * distance - 1.0 - ops.log(ratio * ratio)) * 0.5


class Categorical:
    """The distribution over classes whose probabilities are the softmax of ``logits``.

    Parameters
    ----------
    logits : Variable
        [..., classes].
    """

    def __init__(self, logits: Variable) -> None:
        check_variable("logits", logits)
        self.logits = logits

    def _parts(self) -> tuple[Any, Any, Any]:
        logits: Any = self.logits - reduce_max(self.logits, dim=-1, keep_dim=True)
        exps = ops.exp(logits)
        return logits, exps, reduce_sum(exps, dim=-1, keep_dim=True)

    def entropy(self) -> Any:
        """- sum p log p, [..., 1]."""
        logits, exps, total = self._parts()
        probabilities = exps / total
        return reduce_sum(probabilities * (logits - ops.log(total)), dim=-1, keep_dim=True) * -1.0

    def kl_divergence(self, other: Categorical) -> Any:
        """The Kullback-Leibler divergence of ``other`` from this, [..., 1]."""
        if not isinstance(other, Categorical):
            refuse("other", other, "a Categorical")
        logits, exps, total = self._parts()
        their_logits, _, their_total = other._parts()
        difference = logits - ops.log(total) - their_logits + ops.log(their_total)
        return reduce_sum(exps / total * difference, dim=-1, keep_dim=True)


class MultivariateNormalDiag:
    """The normal distribution of several dims with a diagonal covariance.

    Parameters
    ----------
    loc : Variable or array
        [k], the mean.
    scale : Variable or array
        [k, k], a diagonal matrix of standard deviations' squares, as Fluid takes it.
    """

    def __init__(self, loc: Any, scale: Any) -> None:
        self.loc, self.scale = _parameter("loc", loc), _parameter("scale", scale)
        size = self.scale.shape[0]
        if len(self.scale.shape) != 2 or size != self.scale.shape[1] or size < 1:
            refuse("scale", list(self.scale.shape), "a square matrix")

    def _diagonal(self, matrix: Variable) -> Any:
        return reduce_sum(matrix * assign(np.eye(self.scale.shape[0], dtype="float32")), dim=1)

    def entropy(self) -> Any:
        """0.5 (k (1 + log(2 pi)) + log det(scale)), [1]."""
        size = self.scale.shape[0]
        return (ops.log(reduce_prod(self._diagonal(self.scale))) + size * (1.0 + math.log(2 * math.pi))) * 0.5

    def kl_divergence(self, other: MultivariateNormalDiag) -> Any:
        """The Kullback-Leibler divergence of ``other`` from this, [1]."""
        if not isinstance(other, MultivariateNormalDiag):
            refuse("other", other, "a MultivariateNormalDiag")
        own_scale, other_scale = self._diagonal(self.scale), self._diagonal(other.scale)
        distance = other.loc - self.loc
        logs = ops.log(reduce_prod(other_scale)) - ops.log(reduce_prod(own_scale))
        total: Any = reduce_sum(own_scale / other_scale) + reduce_sum(distance * distance / other_scale)
        return (total + logs - float(self.scale.shape[0])) * 0.5
