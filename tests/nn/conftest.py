"""Real digits, a loader by the protocol, and networks, for all tests of networks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import nn

ON_DEVICE = ("opencl", "cuda")
PLACES = [
    pytest.param(str(place), marks=[getattr(pytest.mark, place.kind)] if place.kind in ON_DEVICE else [])
    for place in fluid.places()
]


class Batches:
    """Shuffled batches of arrays, whose position can be saved: the protocol of loaders, and no more."""

    def __init__(self, x: np.ndarray, y: np.ndarray, size: int) -> None:
        self.x, self.y, self.size = x, y, size
        self.epoch = self.done = 0

    def __len__(self) -> int:
        return -(-len(self.x) // self.size)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        order = np.random.default_rng(self.epoch).permutation(len(self.x))
        first = self.done * self.size
        for begin in range(first, len(order), self.size):
            rows = order[begin : begin + self.size]
            self.done += 1
            yield {"input": self.x[rows], "label": self.y[rows]}
        self.epoch, self.done = self.epoch + 1, 0

    def state(self) -> dict[str, int]:
        return {"epoch": self.epoch, "done": self.done}

    def load_state(self, state: dict[str, int]) -> None:
        self.epoch, self.done = state["epoch"], state["done"]


@pytest.fixture(scope="session")
def digits() -> tuple[np.ndarray, np.ndarray]:
    """1797 images of 64 pixels from 0 to 1, and what they show."""
    datasets = pytest.importorskip("sklearn.datasets", reason="the digits come from scikit-learn")
    x, y = datasets.load_digits(return_X_y=True)
    return np.float32(x / 16), y.reshape(-1, 1)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    """Each place that is there."""
    return str(request.param)


@pytest.fixture
def network() -> Iterator[Callable[..., nn.Network]]:
    """``network(layers, input_shape, **options)``: one that is closed when the test ends."""
    made: list[nn.Network] = []

    def make(layers: list[nn.Layer], input_shape: tuple[int, ...] = (64,), **options: Any) -> nn.Network:
        options = {"optimizer": fluid.optimizer.Adam(0.01), "loss": "softmax_cross_entropy", "seed": 3,
                   "fallback": "allow", **options}  # fmt: skip
        found = nn.Network(input_shape, **options)
        made.append(found)
        for layer in layers:
            found.add_layer(layer)
        return found

    yield make
    for each in made:
        each.close()


@pytest.fixture
def batches() -> type[Batches]:
    """The loader."""
    return Batches
