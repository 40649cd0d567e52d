"""Random programs: with all exact passes they give the same bits as without any, on every place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
import fluidlite.graph as ng
from fluidlite.graph.value import emit
from fluidlite.transformers import PassList, Transformer, default_passes

SPECIAL = np.float32([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -2.5, 1e-42, -1e-42, 3e38, 0.1, -7.0])
NUMBERS = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 0.1, 4.0, -0.25)
DIMS = ((12,), (3, 4), (4, 3), (2, 2, 3), (12, 1))
WRITES = 3


class Programs:
    """Makes values from values, by chance."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.x = ng.placeholder((12,))
        self.state = [ng.variable((12,), SPECIAL[::-1].copy()), ng.variable((12,), 2.0)]
        self.values: list[Any] = [self.x, ng.constant(SPECIAL)]
        self.effects: list[Any] = []

    def any(self, items: Any) -> Any:
        """One of some."""
        return items[int(self.rng.integers(len(items)))]

    def number(self) -> Any:
        """A scalar, or one of the dims of a value."""
        dims = self.any(((), (1,), (12,)))
        return emit("fill_constant", {}, {"shape": list(dims), "value": self.any(NUMBERS), "dtype": "float32"})

    def step(self) -> None:
        """One more operator, or a few."""
        x = self.any(self.values[-6:])
        flat = emit("reshape2", {"X": x}, {"shape": [12]})
        kind = self.rng.integers(11)
        made = x
        if kind == 0:
            made = emit(
                self.any(("elementwise_add", "elementwise_sub", "elementwise_mul")), {"X": flat, "Y": self.number()}
            )
        elif kind == 1:
            made = emit("scale", {"X": x}, {"scale": self.any(NUMBERS), "bias": self.any((0.0, -0.0, -0.0))})
        elif kind == 2:
            made = emit("reshape2", {"X": x}, {"shape": list(self.any(DIMS))})
        elif kind == 3:
            made = emit("transpose2", {"X": x}, {"axis": self.rng.permutation(len(x.shape)).tolist()})
        elif kind == 4:
            made = emit("assign", {"X": x})
        elif kind == 5:
            middle = self.any(("float64", "float16", "float32", "float64"))
            made = emit("cast", {"X": emit("cast", {"X": x}, {"out_dtype": middle})}, {"out_dtype": "float32"})
        elif kind == 6:
            made = emit(self.any(("relu", "abs", "floor", "ceil", "square")), {"X": x})
        elif kind == 7:
            made = self.any(self.state) * 1 - 0
        elif kind == 8:
            made = ng.maximum(flat, emit("reshape2", {"X": self.any(self.values[-6:])}, {"shape": [12]}))
        elif kind == 9 and len(self.effects) < WRITES:
            self.effects.append(ng.assign(self.any(self.state), flat))
        else:
            made = emit(self.any(("concat", "sum")), {"X": [flat]})
        self.values.append(made)


def exact() -> PassList:
    """The default list up to its phase of simplification."""
    found = default_passes()
    return PassList(item for item in found if found.phase(item) in ("prune", "simplify"))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("seed", range(25))
def test_the_bits_stay(seed: int, transformer: Transformer) -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        made = Programs(seed)
        for _ in range(30):
            made.step()
        results = [*made.values[2::3], *made.effects, *made.state]
        runs = []
        sizes = []
        for passes in (exact(), PassList()):
            transformer.graph_passes = passes
            computation = transformer.computation([*results, *made.effects], made.x)
            for variable, start in zip(made.state, (SPECIAL[::-1], np.full(12, 2.0, "float32")), strict=True):
                transformer.set_state(variable, start.astype("float32"))
            runs.append([computation(SPECIAL), computation(SPECIAL[::-1])])
            sizes.append(len(computation.transformed.operators))
        assert sizes[0] < sizes[1]
        for with_passes, without in zip(*runs, strict=True):
            for found, wanted in zip(with_passes, without, strict=True):
                if wanted is None:
                    assert found is None
                    continue
                np.testing.assert_array_equal(found, wanted)
                number = ~np.isnan(wanted)
                np.testing.assert_array_equal(np.signbit(found)[number], np.signbit(wanted)[number])


def step(images: Any, labels: Any) -> tuple[Any, list[Any]]:
    """A small network with a bit of everything, and its updates."""
    hidden = fluid.layers.conv2d(images, 4, 3, act="relu")
    hidden = fluid.layers.batch_norm(fluid.layers.pool2d(hidden, 2, pool_stride=2))
    flat = fluid.layers.reshape(fluid.layers.reshape(hidden, [-1, 4, 9]), [-1, 36])
    turned = fluid.layers.transpose(fluid.layers.transpose(flat, [1, 0]), [1, 0])
    kept = fluid.layers.dropout(turned, 0.3, dropout_implementation="upscale_in_train") * 1.0
    score = fluid.layers.fc(fluid.layers.scale(fluid.layers.scale(kept, 2.0), 4.0), 3)
    loss = fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(score, labels))
    updates, _ = fluid.optimizer.Adam(0.01, regularization=fluid.regularizer.L2Decay(0.01)).minimize(loss)
    return loss, updates


def test_a_training_step_has_the_same_bits(transformer: Transformer) -> None:
    fluid.default_main_program().random_seed = fluid.default_startup_program().random_seed = 7
    images = fluid.layers.data("images", [1, 8, 8])
    labels = fluid.layers.data("labels", [1], dtype="int64")
    loss, updates = step(images, labels)
    rng = np.random.default_rng(0)
    given = rng.normal(size=(6, 1, 8, 8)).astype("float32"), rng.integers(3, size=(6, 1))
    losses = []
    sizes = []
    for passes in (exact(), PassList()):
        with Transformer(transformer.place) as mine:
            mine.graph_passes = passes
            computation = mine.computation([loss, *updates], images, labels)
            losses.append([computation(*given)[0].tobytes() for _ in range(4)])
            types = [op.type for op in computation.transformed.operators]
            sizes.append(len(types))
            assert ("transpose2_grad" in types) == (not passes)
    assert losses[0] == losses[1]
    assert len(set(losses[0])) == 4
    assert sizes[0] <= sizes[1] - 8, sizes
