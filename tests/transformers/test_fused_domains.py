"""The index domain of fused operators: small random programs in which one operand alone may give a dim.

All numbers are small whole ones, so that sums are exact in any order: compiled, interpreted and float64 NumPy must
agree to the last bit, on every place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import fluidlite as fluid
import fluidlite.graph as ng
from fluidlite import layers
from fluidlite.program.registry import ops

Array = Any
Evaluate = Callable[[dict[str, Array]], Array]

EXTENTS = (0, 1, 2, 3, 5, 1030, 1400)
WEIGHTS = (0.04, 0.1, 0.26, 0.26, 0.18, 0.1, 0.06)
MAX_ELEMENTS = 6000
MAX_VALUE = 128.0
"""Bound of an element: sums of MAX_ELEMENTS of them are exact in float32."""

UNARY: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0), "abs": np.abs, "sign": np.sign, "floor": np.floor, "zeros_like": np.zeros_like,
    "assign": np.array,
}  # fmt: skip
BINARY: dict[str, tuple[Callable[[Array, Array], Array], Callable[[float, float], float]]] = {
    "elementwise_add": (np.add, lambda a, b: a + b),
    "elementwise_sub": (np.subtract, lambda a, b: a + b),
    "elementwise_mul": (np.multiply, lambda a, b: a * b),
    "elementwise_max": (np.maximum, max),
    "elementwise_min": (np.minimum, max),
}


class Value(NamedTuple):
    """A value of the program: its variable, the axes of the domain that it has, a bound, and how NumPy computes it."""

    variable: Any
    axes: tuple[bool, ...]
    bound: float
    evaluate: Evaluate


class DomainProgram:
    """A program made by chance from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        rank = int(rng.integers(1, 4))
        while True:
            self.dims = tuple(int(d) for d in rng.choice(EXTENTS, rank, p=WEIGHTS))
            if np.prod(self.dims) <= MAX_ELEMENTS:
                break
        self.batch = rng.random() < 0.4  # the first dim is unknown till the run
        self.differentiated = rng.random() < 0.35
        self.dtype = "float64" if self.differentiated or rng.random() < 0.2 else "float32"
        self.gradients: list[Any] = []
        self.feeds: dict[str, tuple[bool, ...]] = {}
        self.randoms: list[str] = []
        self.values: list[Value] = []
        self.results: list[Value] = []
        self.main, self.startup = fluid.Program(), fluid.Program()
        self.main.random_seed = seed + 1
        with fluid.unique_name.guard(), fluid.program_guard(self.main, self.startup):
            self._build()

    def _build(self) -> None:
        for _ in range(int(self.rng.integers(1, 4))):
            self.values.append(self._operand())
        makers = [self._operand, self._unary, self._binary, self._binary, self._binary, self._dropout, self._sum]
        if len(self.dims) == 2 and 1 < self.dims[1] < 6:
            makers += [self._product, self._product]
        for _ in range(int(self.rng.integers(3, 11))):
            self.values.append(makers[int(self.rng.integers(len(makers)))]())
        self.values.append(self._binary())
        self.results = [self._sum() for _ in range(int(self.rng.integers(1, 3)))]
        if self.rng.random() < 0.4:
            self.results.append(self._pick())
        if self.differentiated and self.feeds:
            inputs = [self.main.global_block().var(name) for name in self.feeds]
            targets = [layers.reduce_sum(value.variable) for value in self.results]
            found = fluid.gradients(layers.sums(targets), inputs)
            self.gradients = [each for each in found if each is not None]

    def _pick(self) -> Value:
        recent = self.values[-4:] if self.rng.random() < 0.7 else self.values
        return recent[int(self.rng.integers(len(recent)))]

    def _shape(self, axes: tuple[bool, ...]) -> list[int]:
        shape = [d if has else 1 for d, has in zip(self.dims, axes, strict=True)]
        if self.batch and axes[0]:
            shape[0] = -1
        return shape

    def _operand(self) -> Value:
        axes = tuple(bool(has) for has in self.rng.random(len(self.dims)) < 0.6)
        kind = self.rng.random()
        if kind < 0.55 or (self.batch and axes[0]):
            name = f"x{len(self.feeds)}"
            self.feeds[name] = axes
            x = layers.data(name, self._shape(axes), dtype=self.dtype, append_batch_size=False)
            x.stop_gradient = False
            return Value(x, axes, 3.0, lambda env: env[name])
        shape = self._shape(axes)
        if kind < 0.85:
            number = float(self.rng.integers(-2, 4))
            made = layers.fill_constant(shape, self.dtype, number)
            if kind > 0.8:  # what a variable of the state holds, which is written in the same run
                held = layers.create_global_var(shape, 0.0, self.dtype, persistable=True)
                layers.assign(made, held)
                made = held
            return Value(made, axes, 3.0, lambda env: np.full(shape, number))
        drawn = layers.floor(layers.uniform_random(shape, self.dtype, 0.0, 4.0))
        return self._random(drawn, axes, 3.0)

    def _random(self, variable: Any, axes: tuple[bool, ...], bound: float) -> Value:
        self.randoms.append(variable.name)
        return Value(variable, axes, bound, lambda env: env[variable.name])

    def _unary(self) -> Value:
        x = self._pick()
        name = str(self.rng.choice(list(UNARY)))
        made = getattr(layers, name)(x.variable)
        return Value(made, x.axes, x.bound, lambda env: UNARY[name](x.evaluate(env)))

    def _binary(self) -> Value:
        x, y = self._pick(), self._pick()
        names = [name for name, (_, grow) in BINARY.items() if grow(x.bound, y.bound) <= MAX_VALUE]
        name = str(self.rng.choice(names))
        function, grow = BINARY[name]
        made = getattr(layers, name)(x.variable, y.variable)
        axes = tuple(a or b for a, b in zip(x.axes, y.axes, strict=True))
        return Value(made, axes, grow(x.bound, y.bound), lambda env: function(x.evaluate(env), y.evaluate(env)))

    def _dropout(self) -> Value:
        x = self._pick()
        return self._random(layers.dropout(x.variable, 0.5), x.axes, x.bound)

    def _product(self) -> Value:
        """A product of matrices, which may take what follows it as its epilogue."""
        width = self.dims[1]
        able = [each for each in self.values if each.axes[1] and each.bound * width <= MAX_VALUE]
        if not able:
            return self._unary()
        x = able[int(self.rng.integers(len(able)))]
        weights = self.rng.integers(-1, 2, (width, width)).astype(self.dtype)
        made = layers.matmul(x.variable, layers.assign(weights))
        return Value(made, x.axes, x.bound * width, lambda env: x.evaluate(env) @ weights.astype("float64"))

    def _sum(self) -> Value:
        x = self._pick()
        rank = len(self.dims)
        chosen = tuple(k for k in range(rank) if self.rng.random() < 0.6) or (0,)
        count = float(np.prod([self.dims[k] for k in chosen if x.axes[k]], dtype=float))
        limit = count * x.bound > MAX_VALUE
        total = layers.reduce_sum(x.variable, dim=list(chosen), keep_dim=True)
        axes = tuple(has and k not in chosen for k, has in enumerate(x.axes))
        if limit:  # later operators get a small number; the sum itself is a result
            self.results.append(Value(total, axes, 0.0, lambda env: x.evaluate(env).sum(chosen, keepdims=True)))
            return Value(layers.sign(total), axes, 1.0, lambda env: np.sign(x.evaluate(env).sum(chosen, keepdims=True)))
        return Value(total, axes, count * x.bound, lambda env: x.evaluate(env).sum(chosen, keepdims=True))

    def inputs(self, batch: int) -> dict[str, Array]:
        """What to feed, the unknown dim being ``batch``."""
        rng = np.random.default_rng(batch)
        found = {}
        for name, axes in self.feeds.items():
            shape = [d if has else 1 for d, has in zip(self.dims, axes, strict=True)]
            if self.batch and axes[0]:
                shape[0] = batch
            found[name] = rng.integers(-2, 4, shape).astype(self.dtype)
        return found

    def run(self, executor: Any, batches: list[int], also: list[str]) -> list[list[Array]]:
        """The results of a run for each batch, from the same beginning, and the values of ``also``."""
        scope = fluid.Scope()
        executor.run(self.startup, scope=scope)
        fetches = [*(value.variable for value in self.results), *self.gradients, *also]
        return [executor.run(self.main, feed=self.inputs(b), fetch_list=fetches, scope=scope) for b in batches]


def check(seed: int, place: str, codegen: str | None = None) -> None:
    """Run one program compiled, interpreted and in NumPy."""
    program = DomainProgram(seed)
    first = program.dims[0]
    batches = [first, 1, 4] if program.batch else [first]
    compiled = program.run(fluid.Executor(place, mode="compiled", codegen=codegen), batches, [])
    interpreted = program.run(fluid.Executor(place, mode="interpreted", codegen=codegen), batches, program.randoms)
    count = len(program.results) + len(program.gradients)
    for batch, left, right in zip(batches, compiled, interpreted, strict=True):
        env = {**program.inputs(batch), **dict(zip(program.randoms, right[count:], strict=True))}
        for a, b in zip(left, right[:count], strict=True):
            assert a.shape == b.shape
            np.testing.assert_array_equal(a, b, err_msg=f"compiled: seed {seed}, batch {batch}\n{program.main}")
        for value, b in zip(program.results, right, strict=False):
            what = f"seed {seed}, batch {batch}, {value.variable.name}\n{program.main}"
            expected = value.evaluate(env)
            assert b.shape == expected.shape, what
            np.testing.assert_array_equal(b, expected, err_msg=what)


COUNTS = {"cpu": 150, "opencl": 4, "fpga": 25, "strict": 60}
"""Programs for each place: about as many as run in five seconds."""


def test_random_programs(any_place: str) -> None:
    """Broadcasts, constants, state, random numbers, reductions and gradients."""
    for seed in range(COUNTS[any_place]):
        check(seed, any_place)


def test_random_programs_of_array_calls() -> None:
    for seed in range(60):
        check(1000 + seed, "cpu", "numpy")


# One by one

ROW = np.array([[1, 2, 3]], "float32")
COLUMN = np.array([[2], [-1]], "float32")


def _both(build: Callable[[], Any], feed: dict[str, Array], place: str, codegen: str | None = None) -> list[Array]:
    """What a program of one result gives compiled and interpreted."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = 7
    with fluid.program_guard(main, startup):
        result = build()
    found = []
    for mode in ("compiled", "interpreted"):
        scope = fluid.Scope()
        executor = fluid.Executor(place, mode=mode, codegen=codegen)
        executor.run(startup, scope=scope)
        found.append(executor.run(main, feed=feed, fetch_list=[result], scope=scope)[0])
    return found


def _data(name: str, dims: list[int]) -> Any:
    made = layers.data(name, dims, append_batch_size=False)
    made.stop_gradient = False
    return made


@pytest.mark.parametrize("codegen", [None, "numpy"])
@pytest.mark.parametrize("dim", [None, 0, 1, [0, 1]])
@pytest.mark.parametrize("keep", [False, True])
def test_a_dim_that_a_constant_alone_gives(dim: Any, keep: bool, codegen: str | None) -> None:
    axes = (0, 1) if dim is None else tuple(dim) if isinstance(dim, list) else dim
    found = _both(
        lambda: layers.reduce_sum(layers.exp(layers.ones([2, 3], "float32") * _data("y", [1, 3])), dim, keep),
        {"y": ROW}, "cpu", codegen,
    )  # fmt: skip
    expected = np.exp(np.broadcast_to(ROW, (2, 3))).sum(axes, keepdims=keep)
    for each in found:
        np.testing.assert_allclose(each.reshape(expected.shape), expected, rtol=1e-6)


def test_the_elements_of_a_constant_are_added_up(any_place: str) -> None:
    """Nothing is loaded at all; the state is written by the run that reads it."""

    def build() -> Any:
        held = layers.create_global_var([4, 3], 0.0, "float32", persistable=True)
        layers.fill_constant([4, 3], "float32", 2.0, out=held)
        return layers.reduce_sum(layers.square(held))

    assert [float(each.reshape(())) for each in _both(build, {}, any_place)] == [48.0, 48.0]


def test_squared_l2_norm_of_a_broadcast(any_place: str) -> None:
    def build() -> Any:
        x = layers.ones([2, 3], "float32") * _data("y", [1, 3])
        out = x.block.create_var(dtype="float32", shape=[1])
        x.block.append_op("squared_l2_norm", {"X": [x]}, {"Out": [out]})
        return out

    assert [float(each.reshape(())) for each in _both(build, {"y": ROW}, any_place)] == [28.0, 28.0]


def test_squared_l2_distance_of_a_constant(any_place: str) -> None:
    """The constant alone has the rows."""

    def build() -> Any:
        x, y = layers.fill_constant([2, 3], "float32", 4.0), _data("y", [1, 3])
        out, apart = (x.block.create_var(dtype="float32") for _ in range(2))
        x.block.append_op("squared_l2_distance", {"X": [x], "Y": [y]}, {"Out": [out], "sub_result": [apart]})
        return layers.reduce_sum(out)

    assert [float(each.reshape(())) for each in _both(build, {"y": ROW}, any_place)] == [28.0, 28.0]


def test_a_gradient_that_is_zero_everywhere(any_place: str) -> None:
    """The derivative of sign is a constant: it has the dims of what it is the derivative of."""

    def build() -> Any:
        x, y, m = _data("x", [2, 1]), _data("y", [1, 3]), _data("m", [2, 3])
        (grad,) = fluid.gradients(layers.reduce_sum(layers.sign(x * y) * m), [x])
        return grad

    feed = {"x": COLUMN, "y": ROW, "m": np.ones((2, 3), "float32")}
    for each in _both(build, feed, any_place):
        np.testing.assert_array_equal(each, np.zeros((2, 1)))


@pytest.mark.parametrize("dims", [((2, 1), (1, 3)), ((2, 3), (1, 3)), ((2, 1), (2, 3)), ((4, 1, 2), (1, 3, 1))])
@pytest.mark.parametrize("name", ["elementwise_add", "elementwise_sub", "elementwise_mul", "elementwise_max"])
def test_the_gradient_of_a_broadcast_whose_gradient_is_a_constant(any_place: str, name: str, dims: Any) -> None:
    """What comes from behind is ones, which nobody stores: each input's gradient is a sum over its broadcast dims."""
    if any_place == "opencl" and len(dims[0]) < 3:
        pytest.skip("the same on every kernel language, whose compiler takes a second")
    a, b = (np.arange(1, 1 + np.prod(each), dtype="float32").reshape(each) for each in dims)
    for wanted in range(2):

        def build(wanted: int = wanted) -> Any:
            pair = _data("a", list(dims[0])), _data("b", list(dims[1]))
            return fluid.gradients(layers.reduce_sum(getattr(layers, name)(*pair)), [pair[wanted]])[0]

        ones = np.ones(np.broadcast_shapes(*dims))
        wide = {
            "elementwise_add": (ones, ones), "elementwise_sub": (ones, -ones), "elementwise_mul": (ones * b, ones * a),
            "elementwise_max": (ones * (a > b), ones * (a <= b)),
        }[name][wanted]  # fmt: skip
        axes = tuple(k for k, d in enumerate(dims[wanted]) if d == 1 != ones.shape[k])
        expected = wide.sum(axes, keepdims=True)
        for each in _both(build, {"a": a, "b": b}, any_place):
            np.testing.assert_array_equal(each, expected)


def test_a_weight_whose_norm_is_learned(any_place: str) -> None:
    """Its norm is made of state that the startup program fills with one number."""

    def build() -> Any:
        attr = fluid.WeightNormParamAttr(dim=None, initializer=fluid.initializer.Constant(1.0))
        return layers.fc(_data("x", [2, 3]), 4, param_attr=attr, bias_attr=False)

    x = np.arange(6, dtype="float32").reshape(2, 3)
    for each in _both(build, {"x": x}, any_place):
        np.testing.assert_allclose(each, x @ np.ones((3, 4)), rtol=1e-6)


def test_nodes_of_the_graph_front() -> None:
    from fluidlite.transformers import make_transformer

    x, y = ng.placeholder((2, 1)), ng.placeholder((1, 3))
    m = ng.placeholder((2, 3))
    total = ng.sum(ng.broadcast(2.0, (2, 3)) * y)
    squares = ng.squared_L2(ng.broadcast(2.0, (2, 3)) * y)
    grad = ng.deriv(ng.sum(ng.sign(x * y) * m), x)
    with make_transformer() as transformer:
        run = transformer.computation([total, grad, squares], x, y, m)
        found = run(COLUMN, ROW, np.ones((2, 3), "float32"))
    assert float(found[0]) == 24.0
    np.testing.assert_array_equal(found[1], np.zeros((2, 1)))
    assert float(found[2]) == 112.0


# Random operators

SIZES = ((3, 5), (700, 3), (3, 700), (40, 1100))


def _attributes(definition: Any, dims: tuple[int, ...]) -> dict[str, Any]:
    known = {"shape": list(dims), "dtype": "float32", "low": 0, "high": 9, "seed": 3}
    return {attr.name: known[attr.name] for attr in definition.attrs if attr.name in known}


@pytest.mark.parametrize("type", sorted(op.type for op in ops if op.random and op.scalar is not None))
def test_every_random_operator_before_a_sum(any_place: str, type: str) -> None:
    """The numbers that are added up are those that a run without fusion draws."""
    definition = ops.get(type)
    compiles = any_place == "opencl"  # for each program a second
    for dims in SIZES[1:2] if compiles else SIZES:
        for axis in (1,) if compiles else (0, 1, None):

            def build(dims: tuple[int, ...] = dims, axis: int | None = axis) -> Any:
                x = _data("x", list(dims))
                block = x.block
                out = block.create_var(dtype="float32")
                inputs = {slot.name: [x] for slot in definition.inputs if slot.name in ("X", "Input")}
                attrs = _attributes(definition, dims)
                if type == "randint":
                    attrs["dtype"] = "int64"
                block.append_op(type, inputs, {"Out": [out]}, attrs)
                return layers.reduce_sum(layers.floor(layers.cast(out, "float32") * 8.0), axis)

            compiled, interpreted = _both(build, {"x": np.ones(dims, "float32")}, any_place)
            np.testing.assert_array_equal(compiled, interpreted, err_msg=f"{dims}, axis {axis}")
