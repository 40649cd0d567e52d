"""Second gradients through layers: what an operator keeps for its gradient is a function of its inputs, too."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.base.errors import AttributeValueError

Layer = Callable[[fluid.Variable], fluid.Variable]


def ones(dims: list[int], value: float = 1.0, dtype: str = "float64") -> fluid.Variable:
    return layers.fill_constant(dims, dtype, value)


def chosen() -> fluid.Variable:
    return layers.assign(np.array([[1], [0], [2]], np.int32))


KEPT: dict[str, tuple[tuple[int, ...], Layer]] = {
    "layer_norm": ((3, 5), layers.layer_norm),
    "batch_norm": ((4, 3, 2, 2), layers.batch_norm),
    "group_norm": ((2, 4, 2, 2), lambda x: layers.group_norm(x, 2)),
    "instance_norm": ((2, 3, 3, 3), layers.instance_norm),
    "lrn": ((2, 4, 2, 2), lambda x: layers.lrn(x, n=3)),
    "l2_normalize": ((3, 4), lambda x: layers.l2_normalize(x, 1)),
    "cos_sim": ((3, 4), lambda x: layers.cos_sim(x, x * x)),
    "smooth_l1": ((3, 4), lambda x: layers.smooth_l1(x, x * x)),
    "huber_loss": ((3, 4), lambda x: layers.huber_loss(x, x * x, 1.0)),
    "hsigmoid": ((3, 4), lambda x: layers.hsigmoid(x, ones([3, 1], 1, "int64"), 4)),
    "softmax_with_cross_entropy": (
        (3, 4), lambda x: layers.softmax_with_cross_entropy(x, layers.softmax(x * x), soft_label=True)
    ),
    "dropout": ((3, 4), lambda x: layers.dropout(x, 0.5, seed=7)),
    "margin_rank_loss": ((3, 1), lambda x: layers.margin_rank_loss(ones([3, 1]), x, x * x)),
    "gru_unit": ((3, 6), lambda x: layers.gru_unit(x, layers.slice(x, [1], [0], [2]), 6)[0]),
    "concat": ((3, 4), lambda x: layers.concat([ones([3, 2], 0.5), x, x * x, ones([3, 1])], axis=1)),
    "stack": ((3, 4), lambda x: layers.stack([ones([3, 4], 0.5), x, layers.exp(x)], axis=1)),
    "split": ((3, 4), lambda x: layers.concat(layers.split(x * x, 2, dim=1)[:1] * 2, axis=0)),
    "unstack": ((3, 4), lambda x: layers.unstack(x * x)[1] * layers.unstack(x)[2]),
    "multiplex": ((3, 4), lambda x: layers.multiplex([ones([3, 4], 2.0), x, x * x], chosen())),
    "expand": ((3, 4), lambda x: layers.elementwise_mul(layers.expand(x, [2, 1]), layers.concat([ones([3, 4]), x]))),
    "reshape": ((3, 4), lambda x: layers.reshape(x, [12])),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_second_gradients_are_those_of_differences(name: str) -> None:
    """The layers mark as ``stop_gradient`` what the gradient operators read."""
    dims, layer = KEPT[name]
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.program_guard(main, startup):
        x, direction = (layers.data(n, list(dims), append_batch_size=False, dtype="float64") for n in ("x", "d"))
        x.stop_gradient = False
        y = layer(x)
        (first,) = fluid.gradients(layers.reduce_sum(y * y * y), x)
        along = layers.reduce_sum(first * direction)
        (second,) = fluid.gradients(along, x)
    exe, scope = fluid.Executor("cpu"), fluid.Scope()
    exe.run(startup, scope=scope)
    rng = np.random.default_rng(5)
    start, d = rng.standard_normal(dims), rng.standard_normal(dims)

    def slope(values: np.ndarray, fetch: fluid.Variable) -> np.ndarray:
        return np.asarray(exe.run(main, {"x": values, "d": d}, [fetch], scope=scope)[0])

    found, step = slope(start, second), 1e-5
    expected = np.zeros(dims)
    for at in np.ndindex(*dims):
        moved = np.zeros(dims)
        moved[at] = step
        expected[at] = (slope(start + moved, along).item() - slope(start - moved, along).item()) / (2 * step)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())


def test_what_a_user_stops_stays_stopped() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = layers.data("x", [3], append_batch_size=False, dtype="float64")
        x.stop_gradient = False
        square = x * x
        square.stop_gradient = True
        (first,) = fluid.gradients(layers.reduce_sum(square * x), x)
        (found,) = fluid.Executor("cpu").run(feed={"x": np.array([1.0, 2.0, 3.0])}, fetch_list=[first])
    np.testing.assert_array_equal(found, [1, 4, 9])


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_dims_that_a_gradient_must_divide_may_be_open(mode: str) -> None:
    """Dims that stand for open ones do not divide by the group, and what says so names a gradient's slot."""
    x = fluid.data("x", [None, None, None, None])
    x.stop_gradient = False
    y = layers.shuffle_channel(layers.scale(x, 1.5), 2)
    y = layers.elementwise_mul(y, layers.tanh(y))
    weight = fluid.data("weight", [1, 4, 2, 2])
    (first,) = fluid.gradients([y], [x], [weight])
    (second,) = fluid.gradients([first], [x], [weight])
    given = np.random.default_rng(0).standard_normal((1, 4, 2, 2), np.float32)
    weights = np.random.default_rng(1).standard_normal((1, 4, 2, 2), np.float32)
    exe = fluid.Executor("cpu", mode=mode)  # type: ignore[arg-type]
    found, _ = exe.run(feed={"x": given, "weight": weights}, fetch_list=[second, y])
    moved = np.float64(1.5 * given).reshape(1, 2, 2, 2, 2).swapaxes(1, 2).reshape(1, 4, 2, 2)
    curved = 2 * (1 - np.tanh(moved) ** 2) * (1 - moved * np.tanh(moved))
    seed = weights.reshape(1, 2, 2, 2, 2).swapaxes(1, 2).reshape(1, 4, 2, 2)
    back = (weights * curved * seed).reshape(1, 2, 2, 2, 2).swapaxes(1, 2).reshape(1, 4, 2, 2)
    np.testing.assert_allclose(found, 1.5**2 * back, 1e-4, 1e-5)


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_channels_that_a_gradient_must_count_may_be_open(mode: str) -> None:
    """How many channels move is not known while the program is built: the gradient of moving back is moving."""
    given = np.random.default_rng(0).standard_normal((4, 8, 2, 2))
    found = []
    for dims in ([None, None, None, None], [4, 8, 2, 2]):
        with fluid.program_guard(fluid.Program(), fluid.Program()):
            x = fluid.data("x", dims, "float64")
            x.stop_gradient = False
            y = layers.square(layers.temporal_shift(layers.square(x), 2, 0.25))
            wanted = [y]
            for _ in range(3):
                wanted += fluid.gradients([layers.reduce_sum(layers.square(wanted[-1]))], [x])
            found.append(fluid.Executor("cpu", mode=mode).run(feed={"x": given}, fetch_list=wanted))  # type: ignore[arg-type]
    for opened, known in zip(*found, strict=True):
        np.testing.assert_allclose(opened, known, rtol=1e-12)
    steps = given.reshape(2, 2, 8, 2, 2) ** 2
    moved = steps.copy()
    moved[:, :, :4] = 0
    moved[:, 1, :2], moved[:, 0, 2:4] = steps[:, 0, :2], steps[:, 1, 2:4]
    lasting = np.ones(moved.shape)
    lasting[:, 1, :2], lasting[:, 0, 2:4] = 0, 0  # what is moved out
    np.testing.assert_allclose(found[0][0], (moved**2).reshape(given.shape), rtol=1e-12)
    np.testing.assert_allclose(found[0][1], 8 * given**7 * lasting.reshape(given.shape), rtol=1e-12)


def test_a_refusal_names_the_slot_of_a_gradient() -> None:
    given = fluid.data("given", [1, 3, 2, 2])
    block = fluid.default_main_program().global_block()
    made = block.create_var(name="made", dtype="float32")
    with pytest.raises(
        AttributeValueError, match=r"'group' is 2; expected .* 2 divides 3, the channels of Out@GRAD \("
    ):
        block.append_op("shuffle_channel_grad", {"Out@GRAD": given}, {"X@GRAD": made}, {"group": 2})


@pytest.mark.parametrize(("type", "gates"), [("lstm", 4), ("gru", 3)])
def test_a_bias_of_open_dims_is_one_row(type: str, gates: int) -> None:
    """It is not taken to have as many rows as there are steps."""
    x, w = fluid.data("x", [7, gates * 2], "float64", lod_level=1), fluid.data("w", [2, gates * 2], "float64")
    bias = fluid.data("bias", [None, None], "float64")
    bias.stop_gradient = False
    block = fluid.default_main_program().global_block()
    outs = {
        "lstm": ["Hidden", "Cell", "BatchGate", "BatchCellPreAct"],
        "gru": ["Hidden", "BatchGate", "BatchResetHiddenPrev", "BatchHidden"],
    }[type]
    made = {slot: block.create_var(name=slot, dtype="float64") for slot in outs}
    attrs = {"use_peepholes": False} if type == "lstm" else {}
    block.append_op(type, {"Input": x, "Weight": w, "Bias": bias}, made, attrs)
    (first,) = fluid.gradients([made["Hidden"]], [bias])
    weight = fluid.data("weight", [1, gates * 2], "float64")
    (second,) = fluid.gradients([first], [bias], [weight])
    rng = np.random.default_rng(0)
    feed = {name: rng.standard_normal(dims) for name, dims in (("w", (2, gates * 2)), ("weight", (1, gates * 2)))}
    feed["x"] = fluid.create_lod_tensor(rng.standard_normal((7, gates * 2)), [[3, 4]], fluid.CPUPlace())

    exe, at, step = fluid.Executor("cpu"), rng.standard_normal((1, gates * 2)), 1e-5 * feed["weight"]
    (found,) = exe.run(feed={**feed, "bias": at}, fetch_list=[second])
    above, below = (exe.run(feed={**feed, "bias": at + by}, fetch_list=[first])[0] for by in (step, -step))
    np.testing.assert_allclose(found, (above - below) / 2e-5, 1e-5, 1e-7)
