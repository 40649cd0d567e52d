"""Initialisers: spreads by their formulas, the same numbers on every place, one draw a weight."""

from __future__ import annotations

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import nodes
from fluidlite.base.errors import DtypeError, NodeError
from fluidlite.nodes import Prealloc, Tensor, cpu, initialisers as init
from fluidlite.nodes.leaves import Weight

SPREADS = [
    (init.Uniform(-0.5, 0.25), -0.125, 0.75 / np.sqrt(12), 0.25),
    (init.Normal(1.0, 0.5), 1.0, 0.5, None),
    (init.Xavier(), 0.0, np.sqrt(2 / 180), np.sqrt(6 / 180)),
    (init.Xavier(uniform=False), 0.0, np.sqrt(2 / 180), None),
    (init.Msra(), 0.0, np.sqrt(2 / 100), np.sqrt(6 / 100)),
    (init.Msra(uniform=False), 0.0, np.sqrt(2 / 100), None),
    (init.Constant(0.75), 0.75, 0.0, 0.75),
    (init.Zero(), 0.0, 0.0, 0.0),
]


@pytest.mark.parametrize("initialiser, mean, std, most", SPREADS, ids=lambda item: getattr(type(item), "__name__", ""))
def test_spreads(place: str, initialiser: init.Initialiser, mean: float, std: float, most: float | None) -> None:
    dev = Prealloc(place, 1 << 16)
    weight = Weight(dev, [80, 100])
    nodes.seed(5)
    for _ in range(2):
        before = weight.value().numpy()
        initialiser.init(weight)
        found = weight.value().numpy()
        assert weight.value().dev is dev
        assert abs(found.mean() - mean) < 0.05 * (std + abs(mean)) + 1e-7
        assert abs(found.std() - std) < 0.03 * std + 1e-7
        assert most is None or most * 0.97 <= found.max() <= most * 1.0001
        assert (found != before).mean() > 0.99 or (std == 0 and (found == mean).all())  # each time other numbers


@pytest.mark.parametrize("make", [init.Uniform, init.Normal, init.Xavier, init.Msra])
def test_one_seed_gives_one_draw(place: str, make: type[init.Initialiser]) -> None:
    found = []
    for where in (cpu(), place):
        nodes.seed(3)
        weights = [Weight(where, [20, 30]) for _ in range(2)]
        make().init([weights[0], weights[0].tied(), weights[1]])
        found += [weight.value().numpy() for weight in weights]
    np.testing.assert_allclose(found[0], found[2], rtol=1e-6)
    np.testing.assert_allclose(found[1], found[3], rtol=1e-6)
    assert (found[0] != found[1]).all()
    own = [Weight(place, [20, 30], init=make(seed=9)).value().numpy() for _ in range(2)]  # type: ignore[call-arg]
    assert (own[0] == own[1]).all()


def test_half_types(place: str) -> None:
    weight = Weight(place, [50, 50], init=init.Xavier(seed=1), dtype="float16")
    assert weight.value().dtype == "float16" and 0.1 < weight.value().numpy().std() < 0.2


def test_what_an_initialiser_refuses() -> None:
    with pytest.raises(NodeError, match=r"expected one of fluid\.initializer"):
        init.Initialiser(3)  # type: ignore[arg-type]
    with pytest.raises(DtypeError, match="makes floating-point numbers"):
        init.Xavier()(Tensor(cpu(), [2, 2], "int64"))
    init.Initialiser(fluid.initializer.NumpyArrayInitializer(np.arange(4).reshape(2, 2)))(
        tensor := Tensor(cpu(), [2, 2])
    )
    assert tensor.numpy().tolist() == [[0, 1], [2, 3]]
