"""The programs of a network: prediction, evaluation, training, and initialisation of the optimizer's state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from fluidlite import layers, unique_name
from fluidlite.base.dtypes import ITEMSIZE, is_float
from fluidlite.base.errors import NetworkError
from fluidlite.nn.set_up import building
from fluidlite.optimizer.base import Optimizer
from fluidlite.program.program import Program
from fluidlite.program.undo import undone_on_error
from fluidlite.program.variable import Parameter, Variable

if TYPE_CHECKING:
    from fluidlite.nn.network import Network


@dataclass
class Programs:
    """The programs of a network.

    ``predict``: forward in evaluation mode; ``predicted`` are its fetches.
    ``test``: forward, loss and metrics in evaluation mode; None without a loss.
    ``train``: one training step; None without a loss and an optimizer.
    ``startup``: initialises the optimizer's state.
    ``fetches``: names of the loss and the metrics.
    ``state_bytes``: bytes of the optimizer's state.
    """

    predict: Program
    predicted: list[str]
    startup: Program
    test: Program | None = None
    train: Program | None = None
    label: Variable | None = None
    fetches: list[str] = field(default_factory=list)
    state_bytes: int = 0

    def seed(self, seed: int) -> None:
        for program in (self.predict, self.startup, self.test):
            if program is not None:
                program.random_seed = seed


def build_programs(network: Network, names: unique_name.Generator) -> Programs:
    """Build all programs of a network; on an error the network's own program is unchanged.

    Raises NetworkError, GradientError, ShapeError or DtypeError if the loss or a metric does not fit the last layer, or
    the optimizer cannot train it.
    """
    main = network.program
    prediction = network.layers[-1].output
    built = Programs(main.clone(for_test=True), [prediction.name], Program())
    if network.loss is not None:
        with undone_on_error(main.global_block()), building(main, built.startup, names):
            _add_loss(network, built, prediction)
            built.test = main.clone(for_test=True)
            if network.optimizer is not None:
                _add_training(network, built)
    return built


def _add_loss(network: Network, built: Programs, prediction: Variable) -> None:
    assert network.loss is not None
    shape, dtype = network.loss.label(prediction)
    built.label = layers.data(network.label_name, [-1, *shape], dtype=dtype)
    loss = network.loss(prediction, built.label)
    if not isinstance(loss, Variable) or prod(loss.shape) != 1 or not is_float(loss.dtype):
        raise NetworkError(f"the loss {network.loss!r} made {loss!r:.80}; expected one floating-point number")
    metrics = [metric.build(prediction, built.label) for metric in network.metrics]
    for variable in metrics:
        variable.stop_gradient = True
    built.fetches = [loss.name, *(variable.name for variable in metrics)]


def _add_training(network: Network, built: Programs) -> None:
    main = network.program
    optimizer: Any = network.optimizer
    if not hasattr(optimizer, "minimize"):
        optimizer = optimizer() if isinstance(optimizer, Callable) else None  # type: ignore[arg-type]
    if not isinstance(optimizer, Optimizer) and not hasattr(optimizer, "minimize"):
        raise NetworkError(
            f"the optimizer is {network.optimizer!r:.80}; expected one of fluid.optimizer, or a function that makes one"
        )
    names_before = set(main.global_block().vars)
    optimizer.minimize(main.global_block().var(built.fetches[0]), built.startup)
    if network.distributed:
        from fluidlite.distributed.transform import insert_collectives

        members = network.group.size
        insert_collectives(main, built.fetches[0], "rows", members, rows_of=network.input.name)
    added = [v for name, v in main.global_block().vars.items() if name not in names_before]
    state = [v for v in added if v.persistable and not isinstance(v, Parameter)]
    built.state_bytes = sum(prod(v.shape) * ITEMSIZE[v.dtype] for v in state)
    built.train = main
