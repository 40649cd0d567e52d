"""Programs of layers, made by chance: networks with state, losses and optimisers, and what to feed them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import fluidlite as fluid
from fluidlite import layers

FLOATS = ("float32", "float32", "float64", "float16")
UNARY = (
    "relu", "tanh", "sigmoid", "leaky_relu", "elu", "gelu", "swish", "softplus", "softsign", "abs", "sin", "relu6",
    "hard_swish", "logsigmoid", "erf", "selu", "atan",
)  # fmt: skip
BINARY = ("add", "sub", "mul", "max", "min", "div")
MOST_ELEMENTS = 400


class RandomProgram:
    """A program made by chance, and its startup program.

    Attributes
    ----------
    main, startup : Program
    test : Program or None
        A clone for tests, made before the optimiser.
    fetches : list of str
    feeds : dict of name to (dims less the batch, dtype, the end of its range if it is an index)
    """

    def __init__(self, seed: int, other: str | None = None) -> None:
        self.rng = np.random.default_rng(seed)
        self.other = other
        self.main, self.startup = fluid.Program(), fluid.Program()
        self.main.random_seed = self.startup.random_seed = seed + 1
        self.values: list[Any] = []
        self.parameters: list[Any] = []
        self.feeds: dict[str, tuple[tuple[int, ...], str, int | None]] = {}
        self.test: Any = None
        with fluid.unique_name.guard(), fluid.program_guard(self.main, self.startup):
            self._build()

    def _build(self) -> None:
        self.values += [self._feed((8,)), self._feed((4, 3), self._any(FLOATS)), self._feed((4, 4, 2))]
        makers: list[Callable[[], Any]] = [
            self._unary, self._unary, self._binary, self._binary, self._binary, self._numbers, self._cast,
            self._compare, self._reduce, self._rejoin, self._dense, self._dense, self._shared, self._product,
            self._image, self._norm, self._shape, self._shape, self._classes, self._rows, self._random, self._state,
            self._twice,
        ]  # fmt: skip
        if self.other is not None:
            makers += [self._elsewhere] * 3
        for _ in range(int(self.rng.integers(4, 20))):
            made = self._any(makers)()
            for value in made if isinstance(made, list) else [made]:
                if value is not None:
                    self.values.append(value)
        middle = self.values[3:] or self.values
        self.fetches = [self._any(middle).name for _ in range(3)]
        if self.rng.random() < 0.75:
            self._train(middle)

    def _train(self, middle: list[Any]) -> None:
        parts = [layers.mean(layers.square(layers.tanh(value))) for value in self.values[-3:]]
        loss = layers.sums([layers.cast(layers.reshape(part, [1]), "float32") for part in parts])
        self.test = self.main.clone(for_test=True)
        found = fluid.backward.append_backward(loss)
        optimizers = fluid.optimizer
        decay = self._any((None, fluid.regularizer.L2Decay(0.01)))
        made = self._any((
            optimizers.SGD(0.1, regularization=decay), optimizers.Momentum(0.1, 0.9, regularization=decay),
            optimizers.Momentum(0.1, 0.9), optimizers.Momentum(0.1, 0.9, use_nesterov=True),
            optimizers.Adam(0.01, epsilon=0.05, regularization=decay),
        ))  # fmt: skip
        if found:
            if self.rng.random() < 0.3 and len({parameter.dtype for parameter, _ in found}) == 1:
                fluid.clip.set_gradient_clip(fluid.clip.GradientClipByGlobalNorm(0.5))
            made.apply_gradients(found)
        self.fetches.append(loss.name)
        gradients = [gradient.name for _, gradient in found] + [
            f"{value.name}@GRAD" for value in middle if self.main.global_block().has_var(f"{value.name}@GRAD")
        ]
        if gradients and self.rng.random() < 0.4:
            self.fetches.append(self._any(gradients))

    def data(self, batch: int, rng: np.random.Generator) -> dict[str, Any]:
        """Feeds of a batch."""
        return {
            name: rng.normal(size=(batch, *dims)).astype(dtype) if end is None
            else rng.integers(end, size=(batch, *dims)).astype(dtype)
            for name, (dims, dtype, end) in self.feeds.items()
        }  # fmt: skip

    def bad_data(self, good: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Feeds with one fault each, by what is wrong."""
        found = {}
        for name, (_, _, end) in self.feeds.items():
            if end is not None:
                found[f"index of {name}"] = {**good, name: good[name] + end}
        last = list(good)[-1]
        found[f"batch of {last}"] = {**good, last: np.concatenate([good[last], good[last][:1]])}
        found[f"dims of {last}"] = {**good, last: np.concatenate([good[last]] * 2, axis=-1)}
        return found

    # What operators work on

    def _any(self, items: Any) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def _feed(self, dims: tuple[int, ...], dtype: str = "float32", end: int | None = None) -> Any:
        name = f"x{len(self.feeds)}"
        self.feeds[name] = dims, dtype, end
        return layers.data(name, list(dims), dtype=dtype)

    def _value(self, *ranks: int, dtype: str | None = None) -> Any:
        """One of the last values that has the batch in front; a new feed if none fits."""
        fits = [
            value for value in self.values[-12:]
            if value.shape[0] == -1 and (not ranks or len(value.shape) in ranks) and dtype in (None, value.dtype)
            and -1 not in value.shape[1:] and abs(np.prod(value.shape)) < MOST_ELEMENTS
        ]  # fmt: skip
        return self._any(fits) if fits else self._feed((4, 3, 2)[: (ranks or (3,))[0] - 1])

    def _alike(self, x: Any) -> Any:
        return self._any([v for v in self.values if v.dtype == x.dtype and v.shape == x.shape] or [x])

    def _parameter(self, dims: Any, dtype: str = "float32") -> Any:
        """A new parameter, or an old one of these dims."""
        same = [p for p in self.parameters if tuple(p.shape) == tuple(dims) and p.dtype == dtype]
        if same and self.rng.random() < 0.5:
            return self._any(same)
        made = layers.create_parameter(
            list(dims), dtype, f"p{len(self.parameters)}", default_initializer=fluid.initializer.Uniform(-1.0, 1.0)
        )
        self.parameters.append(made)
        return made

    # Operators

    def _unary(self) -> Any:
        return getattr(layers, self._any(UNARY))(self._value())

    def _binary(self) -> Any:
        x, kind, axis = self._value(2, 3, 4), self._any(BINARY), -1
        form = self.rng.integers(4)
        if form == 0:
            y = self._alike(x)
        elif form == 1:
            axis = int(self.rng.integers(1, len(x.shape)))
            y = self._parameter(x.shape[axis : int(self.rng.integers(axis + 1, len(x.shape) + 1))], x.dtype)
        elif form == 2:
            y = self._parameter((1,), x.dtype)
        else:
            y = self._parameter([1 if d < 0 or self.rng.random() < 0.4 else d for d in x.shape], x.dtype)
        if kind == "div":
            y = layers.abs(y) + 1.0
        return getattr(layers, f"elementwise_{kind}")(x, y, axis=axis, act=self._any((None, None, "relu", "tanh")))

    def _numbers(self) -> Any:
        x = self._value()
        return self._any((x * 2.0, 1.5 - x, x / 3.0, layers.scale(x, -0.5, 0.25), layers.clip(x, -0.8, 0.7)))

    def _cast(self) -> Any:
        x, to = self._value(), self._any((*FLOATS, "int32"))
        return layers.cast(layers.cast(x, to), x.dtype) if to == "int32" else layers.cast(x, to)

    def _compare(self) -> Any:
        x = self._value()
        return x * layers.cast(layers.less_than(x, self._alike(x)), x.dtype)

    def _reduce(self) -> Any:
        x = self._value(2, 3, 4)
        dim = sorted({int(d) for d in self.rng.integers(1, len(x.shape), size=2)})
        return getattr(layers, f"reduce_{self._any(('sum', 'mean', 'max', 'min'))}")(
            x, dim=dim, keep_dim=len(dim) == len(x.shape) - 1 or bool(self.rng.random() < 0.5)
        )

    def _rejoin(self) -> Any:
        x = self._value(2, 3, 4)
        return x - layers.reduce_mean(x, dim=int(self.rng.integers(1, len(x.shape))), keep_dim=True)

    def _dense(self) -> Any:
        x = self._value(2, 3, dtype="float32")
        size = self._any((1, 3, 8, 48))
        return layers.fc(x, size, bias_attr=self._any((None, False)), act=self._any((None, "relu", "tanh")))

    def _shared(self) -> Any:
        x = self._value(2, dtype="float32")
        w = self._parameter((x.shape[1], x.shape[1]))
        found = layers.mul(layers.tanh(layers.mul(x, w)), w)
        return found + self._any((x, layers.matmul(x, w, transpose_y=True)))

    def _product(self) -> Any:
        x = self._value(3, dtype="float32")
        first = bool(self.rng.random() < 0.5)
        found = layers.matmul(x, x, transpose_x=first, transpose_y=not first, alpha=self._any((1.0, 0.5)))
        return layers.tanh(layers.mul(found, self._parameter((found.shape[-1], 3)), x_num_col_dims=2))

    def _image(self) -> Any:
        x = self._value(4, dtype="float32")
        found = layers.conv2d(x, self._any((2, 4)), 3, padding=1, bias_attr=self._any((None, False)), act="relu")
        if self.rng.random() < 0.5:
            found = layers.batch_norm(found, is_test=bool(self.rng.random() < 0.3))
        return layers.pool2d(found, 2, self._any(("max", "avg")), pool_padding=1)

    def _norm(self) -> Any:
        return layers.layer_norm(self._value(2, 3, dtype="float32"))

    def _shape(self) -> Any:
        x = self._value(2, 3)
        rank, last = len(x.shape), x.shape[-1]
        kinds: tuple[Callable[[], Any], ...] = (
            lambda: layers.transpose(x, [0, *(1 + self.rng.permutation(rank - 1)).tolist()]),
            lambda: layers.reshape(x, [0, -1]),
            lambda: layers.slice(x, [rank - 1], [last // 2], [last]),
            lambda: layers.concat([x, self._alike(x)], axis=rank - 1),
            lambda: layers.stack([x, self._alike(x)], axis=1),
            lambda: layers.expand(x, [1] * (rank - 1) + [2]),
            lambda: layers.split(x, [1, last - 1], dim=-1) if last > 1 else layers.reverse(x, [rank - 1]),
            lambda: layers.unsqueeze(x, [1]),
        )
        return self._any(kinds)()

    def _classes(self) -> Any:
        x = self._value(2, dtype="float32")
        label = self._feed((1,), "int64", x.shape[1])
        if self.rng.random() < 0.5:
            return layers.softmax_with_cross_entropy(x, label)
        return layers.cross_entropy(layers.softmax(x), label)

    def _rows(self) -> Any:
        size = [int(self._any((7, 30))), int(self._any((3, 64)))]
        index = self._feed((1,), "int64", size[0])
        return layers.reshape(layers.embedding(index, size, is_sparse=bool(self.rng.random() < 0.4)), [-1, size[1]])

    def _random(self) -> Any:
        x = self._value(dtype="float32")
        noise = layers.uniform_random_batch_size_like(x, list(x.shape), seed=self._any((0, 4)))
        return self._any((layers.dropout(x, 0.3), layers.dropout(x, 0.3, seed=3), x + noise))

    def _state(self) -> Any:
        x = self._value(dtype="float32")
        kept = layers.create_global_var([1], 0.5, "float32", persistable=True)
        if self.rng.random() < 0.3:
            layers.increment(kept, 0.25)
            return x * kept
        old = layers.assign(kept)
        layers.assign(layers.reshape(layers.mean(layers.tanh(x)), [1]) * 0.5 + kept * 0.5, kept)
        return x * old + kept

    def _twice(self) -> Any:
        found = layers.assign(self._value(dtype="float32"))
        found.stop_gradient = True
        first = layers.tanh(found)
        layers.assign(first * 2.0, found)
        return first + found

    def _elsewhere(self) -> Any:
        with fluid.device_guard(self.other):
            return layers.tanh(self._value() * 1.25) - 0.5
