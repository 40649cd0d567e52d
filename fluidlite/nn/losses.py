"""Losses: the functions that training minimizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fluidlite import layers
from fluidlite.base.errors import NetworkError
from fluidlite.program.variable import Variable

Cost = Callable[[Variable, Variable], Variable]


class Loss:
    """A loss function of predictions and labels.

    Parameters
    ----------
    cost : callable
        ``cost(prediction, label) -> Variable``, a cost for each row or element; the network takes the mean.
    label_shape : sequence of int, optional
        Dims of one row's label; None: those of the prediction.
    label_dtype : str
    name : str, optional
    """

    def __init__(
        self, cost: Cost, label_shape: Sequence[int] | None = None, label_dtype: str = "float32", name: str = ""
    ) -> None:
        if not callable(cost):
            raise NetworkError(f"the cost of a loss is {cost!r:.80}; expected a function of prediction and label")
        self.cost = cost
        self.label_shape = None if label_shape is None else list(label_shape)
        self.label_dtype = label_dtype
        self.name = name or getattr(cost, "__name__", "loss")

    def label(self, prediction: Variable) -> tuple[list[int], str]:
        """Dims of one row's label, and its dtype."""
        return (list(prediction.shape[1:]) if self.label_shape is None else self.label_shape), self.label_dtype

    def __call__(self, prediction: Variable, label: Variable) -> Variable:
        """Append the cost and its mean over the batch."""
        return layers.mean(self.cost(prediction, label))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class CrossEntropy(Loss):
    """-log of the probability of the label's class; the last layer returns probabilities (softmax)."""

    def __init__(self) -> None:
        super().__init__(layers.cross_entropy, [1], "int64")


class SoftmaxCrossEntropy(Loss):
    """Cross entropy of the softmax of the last layer's scores."""

    def __init__(self) -> None:
        def softmax_cross_entropy(prediction: Variable, label: Variable) -> Variable:
            cost = layers.softmax_with_cross_entropy(prediction, label)
            assert isinstance(cost, Variable)  # a pair only if the softmax is requested
            return cost

        super().__init__(softmax_cross_entropy, [1], "int64")


class SigmoidCrossEntropy(Loss):
    """Cross entropy of the sigmoid of each score, with labels from 0 to 1."""

    def __init__(self) -> None:
        super().__init__(layers.sigmoid_cross_entropy_with_logits)


class SquaredError(Loss):
    """The square of prediction - label."""

    def __init__(self) -> None:
        super().__init__(layers.square_error_cost)


class Huber(Loss):
    """The Huber loss: half the squared error up to ``delta``, linear beyond.

    Parameters
    ----------
    delta : float
    """

    def __init__(self, delta: float = 1.0) -> None:
        super().__init__(lambda prediction, label: layers.huber_loss(prediction, label, delta), name="huber")


BY_NAME: dict[str, Callable[[], Loss]] = {
    "cross_entropy": CrossEntropy,
    "softmax_cross_entropy": SoftmaxCrossEntropy,
    "sigmoid_cross_entropy": SigmoidCrossEntropy,
    "squared_error": SquaredError,
    "huber": Huber,
}


def loss_of(loss: Any) -> Loss:
    """Convert a name, a Loss object or a function to a loss."""
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, str) and loss in BY_NAME:
        return BY_NAME[loss]()
    if callable(loss) and not isinstance(loss, type):
        return Loss(loss)
    raise NetworkError(
        f"the loss is {loss!r:.80}; expected one of {', '.join(BY_NAME)}, an object of fluid.nn.losses, or a "
        "function of prediction and label"
    )
