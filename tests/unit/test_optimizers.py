"""Optimisers, weight decay, clipping and schedules against the same steps in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil, cos, exp, floor, pi
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import clip, layers, optimizer, regularizer
from fluidlite.base.errors import ProgramError

STEPS = 5
X = np.random.default_rng(0).normal(size=(6, 3)).astype("float32")
START = np.array([[0.5], [-1.0], [2.0]], "float32")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Give every test new programs, names and scope."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup), fluid.scope_guard(fluid.Scope()):
        yield


def model(name: str = "w", dtype: str = "float32", **options: Any) -> fluid.Variable:
    """mean((x w)^2): its gradient is 2 x^T x w / rows."""
    x = layers.data("x", [3], dtype=dtype)
    initial = layers.create_parameter(
        [3, 1], dtype, attr=fluid.ParamAttr(name, fluid.initializer.Constant(0.0), **options)
    )
    return layers.mean(layers.square(layers.mul(x, initial)))


def train(
    optimiser: optimizer.Optimizer, steps: int = STEPS, dtype: str = "float32", **options: Any
) -> list[np.ndarray]:
    """The parameter after each step from START."""
    loss = model(dtype=dtype, **options)
    optimiser.minimize(loss)
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    scope = fluid.global_scope()
    scope.find_var("w").get_tensor().set(START.astype(dtype), exe.place)
    found = []
    for _ in range(steps):
        exe.run(feed={"x": X.astype(dtype)}, fetch_list=[loss])
        found.append(np.array(scope.find_var("w").get_tensor()))
    return found


def gradient(w: np.ndarray) -> np.ndarray:
    return 2 * X.T.astype("float64") @ (X @ w) / len(X)


def descend(step: Callable[[np.ndarray, np.ndarray, int], np.ndarray], steps: int = STEPS) -> list[np.ndarray]:
    w = START.astype("float64")
    found = []
    for i in range(steps):
        w = step(w, gradient(w), i)
        found.append(w)
    return found


def check(got: list[np.ndarray], want: list[np.ndarray], rtol: float = 1e-4) -> None:
    np.testing.assert_allclose(np.stack(got), np.stack(want), rtol=rtol, atol=1e-6)


# Optimisers --------------------------------------------------------------------------------------------------------


def test_sgd() -> None:
    check(train(optimizer.SGD(0.1)), descend(lambda w, g, i: w - 0.1 * g))


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum(nesterov: bool) -> None:
    speed = np.zeros_like(START, "float64")

    def step(w: np.ndarray, g: np.ndarray, i: int) -> np.ndarray:
        nonlocal speed
        speed = 0.8 * speed + g
        return w - 0.1 * (g + 0.8 * speed if nesterov else speed)

    check(train(optimizer.Momentum(0.1, 0.8, use_nesterov=nesterov)), descend(step))
    assert fluid.global_scope().find_var("w_velocity_0") is not None


def test_adam() -> None:
    m = v = np.zeros_like(START, "float64")

    def step(w: np.ndarray, g: np.ndarray, i: int) -> np.ndarray:
        nonlocal m, v
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g * g
        rate = 0.1 * np.sqrt(1 - 0.9 ** (i + 1)) / (1 - 0.8 ** (i + 1))
        return w - rate * m / (np.sqrt(v) + 1e-3)

    check(train(optimizer.Adam(0.1, beta1=0.8, beta2=0.9, epsilon=1e-3)), descend(step))
    names = {v.name for v in fluid.default_main_program().list_vars() if v.persistable}
    assert names == {
        "w", "learning_rate_0", "w_moment1_0", "w_moment2_0", "w_beta1_pow_acc_0", "w_beta2_pow_acc_0",
    }  # fmt: skip
    roles = {op.role for op in fluid.default_main_program().global_block().ops if op.type in ("adam", "scale")}
    assert roles == {"optimize"}


def test_double_precision_parameters() -> None:
    got = train(optimizer.SGD(0.1), dtype="float64", learning_rate=0.3)
    np.testing.assert_allclose(np.stack(got), np.stack(descend(lambda w, g, i: w - 0.1 * 0.3 * g)), rtol=1e-13)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_beta_that_is_a_variable_has_the_dtype_of_the_update(dtype: str) -> None:
    beta = layers.create_global_var([1], 0.9, "float32", persistable=True, name="beta")
    variable = train(optimizer.Adam(0.125, beta1=beta), dtype=dtype)
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope()):
        check(variable, train(optimizer.Adam(0.125, beta1=float(np.float32(0.9))), dtype=dtype), rtol=1e-6)


def test_a_parameters_own_learning_rate() -> None:
    check(train(optimizer.SGD(0.1), learning_rate=0.5), descend(lambda w, g, i: w - 0.05 * g))


def test_names_carry_the_optimizers() -> None:
    optimizer.Momentum(0.1, 0.9, name="fast").minimize(model())
    assert fluid.default_main_program().global_block().has_var("w_fast_velocity_0")


def test_the_test_program_has_no_updates() -> None:
    optimizer.Adam(layers.exponential_decay(0.1, 10, 0.5)).minimize(model())
    kept = {op.type for op in fluid.default_main_program().clone(for_test=True).global_block().ops}
    assert kept == {"mul", "square", "mean"}


def test_minimize_in_parts() -> None:
    loss, sgd = model(), optimizer.SGD(0.1)
    pairs = sgd.backward(loss)
    assert [(p.name, g.name) for p, g in pairs if g is not None] == [("w", "w@GRAD")]
    assert [op.type for op in sgd.apply_gradients(pairs)] == ["sgd"]


def test_parameter_list_and_no_grad_set() -> None:
    loss = layers.elementwise_add(model("a"), model("b"))
    _, pairs = optimizer.SGD(0.1, parameter_list=["b"]).minimize(loss)
    assert [p.name for p, _ in pairs] == ["b"]
    _, pairs = optimizer.SGD(0.1).minimize(loss, no_grad_set={"b"})
    assert [p.name for p, _ in pairs] == ["a"]


def test_programs_apart_from_the_defaults() -> None:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        loss = model()
    optimizer.Momentum(0.1, 0.9).minimize(loss, startup)
    assert "momentum" in [op.type for op in main.global_block().ops]
    assert startup.global_block().has_var("w_velocity_0") and not fluid.default_main_program().global_block().ops


# Weight decay ------------------------------------------------------------------------------------------------------


def test_l2_decay() -> None:
    got = train(optimizer.SGD(0.1, regularization=regularizer.L2Decay(0.3)))
    check(got, descend(lambda w, g, i: w - 0.1 * (g + 0.3 * w)))


def test_a_parameters_own_decay_wins() -> None:
    got = train(optimizer.SGD(0.1, regularization=regularizer.L2Decay(9.0)), regularizer=regularizer.L1Decay(0.2))
    check(got, descend(lambda w, g, i: w - 0.1 * (g + 0.2 * np.sign(w))))


# Clipping ----------------------------------------------------------------------------------------------------------


def clipped_by_norm(g: np.ndarray, most: float) -> np.ndarray:
    norm = np.linalg.norm(g)
    return g * most / norm if norm > most else g


def test_clip_by_value() -> None:
    got = train(optimizer.SGD(0.1), gradient_clip=clip.GradientClipByValue(0.4, -0.2))
    check(got, descend(lambda w, g, i: w - 0.1 * np.clip(g, -0.2, 0.4)))


@pytest.mark.parametrize("most", [0.7, 1e3])
def test_clip_by_norm(most: float) -> None:
    got = train(optimizer.SGD(0.1, grad_clip=clip.GradientClipByNorm(most)))
    check(got, descend(lambda w, g, i: w - 0.1 * clipped_by_norm(g, most)))


def test_clip_comes_before_decay() -> None:
    got = train(optimizer.SGD(0.1, regularizer.L2Decay(0.3)), gradient_clip=clip.GradientClipByValue(0.1))
    check(got, descend(lambda w, g, i: w - 0.1 * (np.clip(g, -0.1, 0.1) + 0.3 * w)))


def test_the_optimizers_clip_takes_the_place_of_the_parameters() -> None:
    made = optimizer.SGD(0.1, grad_clip=clip.GradientClipByNorm(0.7))
    got = train(made, gradient_clip=clip.GradientClipByValue(0.1))
    check(got, descend(lambda w, g, i: w - 0.1 * clipped_by_norm(g, 0.7)))


def test_clip_by_global_norm_uses_all_gradients() -> None:
    loss = layers.elementwise_add(model("a"), layers.scale(model("b"), 3.0))
    clip.set_gradient_clip(clip.GradientClipByGlobalNorm(0.5))
    updates, _ = optimizer.SGD(1.0).minimize(loss)
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    for name in ("a", "b"):
        fluid.global_scope().find_var(name).get_tensor().set(START, exe.place)
    used = [op.input("Grad")[0] for op in updates]
    a, b = exe.run(feed={"x": X}, fetch_list=used)
    whole = np.concatenate([gradient(START), 3 * gradient(START)])
    np.testing.assert_allclose(np.concatenate([a, b]), whole * 0.5 / np.linalg.norm(whole), rtol=1e-4)


@pytest.mark.parametrize("place", list(map(str, fluid.places())))
@pytest.mark.parametrize(
    "dtypes", [("float16", "float16"), ("bfloat16",), ("float16", "float32"), ("float32", "float64")]
)
def test_a_global_norm_is_as_wide_as_its_gradients_compute(dtypes: tuple[str, ...], place: str) -> None:
    """Squares beyond a half type would be an infinite norm, and gradients of 0."""
    slope, terms = np.array([300.0, 400.0, 0.0]), []
    for index, dtype in enumerate(dtypes):
        one = fluid.initializer.Constant(1.0)
        w = layers.create_parameter([3], dtype, name=f"w{index}", default_initializer=one)
        x = layers.cast(layers.assign(slope.astype("float32")), dtype)
        terms.append(layers.cast(layers.reduce_sum(w * x), "float32"))
    optimizer.SGD(1.0, grad_clip=clip.GradientClipByGlobalNorm(0.5)).minimize(layers.sums(terms))
    exe = fluid.Executor(place)
    exe.run(fluid.default_startup_program())
    exe.run()
    for index, dtype in enumerate(dtypes):
        found = fluid.global_scope().find_var(f"w{index}").get_tensor().numpy()
        assert found.dtype == dtype
        wanted = 1 - 0.5 * slope / 500 / np.sqrt(len(dtypes))
        np.testing.assert_allclose(found.astype("float64"), wanted, 1e-2 if dtype == "bfloat16" else 1e-3)


@pytest.mark.parametrize("place", list(map(str, fluid.places())))
@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_bounds_at_both_ends(mode: str, place: str) -> None:
    """A bound of infinity clips nothing, not even what has an infinite norm in the dtype; one of 0 leaves zeros."""
    slopes = {"one": [3.0, 4.0], "none": [0.0, 0.0], "huge": [1e30, -1e30]}
    for make in (clip.GradientClipByGlobalNorm, clip.GradientClipByNorm, clip.GradientClipByValue):
        for bound in (float("inf"), 0.0):
            main, startup = fluid.Program(), fluid.Program()
            with fluid.program_guard(main, startup), fluid.unique_name.guard():
                terms, params = [], []
                for name, slope in slopes.items():
                    params.append(layers.create_parameter([2], "float32", name=name))
                    terms.append(layers.reduce_sum(params[-1] * layers.assign(np.array(slope, "float32"))))
                    # each in a group of its own
                    group = (name,) if make is clip.GradientClipByGlobalNorm else ()
                    clip.set_gradient_clip(make(bound, *group), [params[-1]])
                updates, _ = optimizer.SGD(1.0).minimize(layers.sums(terms))
            exe, scope = fluid.Executor(place, mode=mode, fallback="allow"), fluid.Scope()
            exe.run(startup, scope=scope)
            found = exe.run(main, fetch_list=[op.input("Grad")[0] for op in updates], scope=scope)
            for op, grad in zip(updates, found, strict=True):
                wanted = np.array(slopes[op.input("Param")[0]] if bound else [0, 0], "float32")
                np.testing.assert_array_equal(grad, wanted, f"{make.__name__}({bound})")


def test_groups_of_one_name_have_one_norm() -> None:
    loss = layers.elementwise_add(model("a"), model("b"))
    clip.set_gradient_clip(clip.GradientClipByGlobalNorm(0.5), ["a"])
    clip.set_gradient_clip(clip.GradientClipByGlobalNorm(0.6), [fluid.default_main_program().global_block().var("b")])
    with pytest.raises(ProgramError, match=r"clip_norm 0.5 and, for 'b', 0.6"):
        optimizer.SGD(1.0).minimize(loss)


def test_error_clip_is_applied_to_the_complete_gradient() -> None:
    x = layers.data("x", [3])
    hidden = layers.fc(x, 3, bias_attr=False)
    hidden._set_error_clip(fluid.ErrorClipByValue(max=0.05, min=-0.01))
    loss = layers.mean(layers.elementwise_sub(layers.scale(hidden, 3.0), layers.scale(hidden, 2.0)))
    optimizer.SGD(0.0).minimize(loss)
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    # Parts of 3 / 18 and -2 / 18 sum to 1 / 18, above 0.05; clipped apart they would give 0.04.
    error, weight = exe.run(feed={"x": X}, fetch_list=[hidden.name + "@GRAD", "fc_0.w_0@GRAD"])
    np.testing.assert_allclose(error, np.full((6, 3), 0.05), rtol=1e-6)
    np.testing.assert_allclose(weight, X.T @ error, rtol=1e-4, atol=1e-6)


# Schedules ---------------------------------------------------------------------------------------------------------

SCHEDULES: dict[str, tuple[Callable[[], Any], Callable[[int], float]]] = {
    "exponential": (lambda: layers.exponential_decay(0.5, 4, 0.3), lambda i: 0.5 * 0.3 ** (i / 4)),
    "exponential_stairs": (lambda: layers.exponential_decay(0.5, 3, 0.3, True), lambda i: 0.5 * 0.3 ** (i // 3)),
    "natural_exp": (lambda: layers.natural_exp_decay(0.5, 4, 0.3), lambda i: 0.5 * exp(-0.3 * i / 4)),
    "natural_exp_stairs": (lambda: layers.natural_exp_decay(0.5, 3, 0.3, True), lambda i: 0.5 * exp(-0.3 * (i // 3))),
    "inverse_time": (lambda: layers.inverse_time_decay(0.5, 4, 0.3), lambda i: 0.5 / (1 + 0.3 * i / 4)),
    "inverse_time_stairs": (lambda: layers.inverse_time_decay(0.5, 3, 0.3, True), lambda i: 0.5 / (1 + 0.3 * (i // 3))),
    "polynomial": (
        lambda: layers.polynomial_decay(0.5, 4, 0.1, power=2.0),
        lambda i: 0.4 * (1 - min(i, 4) / 4) ** 2 + 0.1,
    ),
    "polynomial_cycle": (
        lambda: layers.polynomial_decay(0.5, 4, 0.1, cycle=True),
        lambda i: 0.4 * (1 - i / (4 * max(1, ceil(i / 4)))) + 0.1,
    ),
    "piecewise": (
        lambda: layers.piecewise_decay([2, 3, 6], [0.5, 0.3, 0.7, 0.1]),
        lambda i: 0.5 if i < 2 else 0.3 if i < 3 else 0.7 if i < 6 else 0.1,
    ),
    "noam": (lambda: layers.noam_decay(64, 4), lambda i: 64**-0.5 * min((i + 1) ** -0.5, (i + 1) * 4**-1.5)),
    "cosine": (lambda: layers.cosine_decay(0.5, 2, 4), lambda i: 0.25 * (cos(floor(i / 2) * pi / 4) + 1)),
    "warmup": (lambda: layers.linear_lr_warmup(0.5, 4, 0.1, 0.3), lambda i: 0.1 + 0.2 * i / 4 if i < 4 else 0.5),
    "warmup_of_schedule": (
        lambda: layers.linear_lr_warmup(layers.piecewise_decay([6], [0.5, 0.25]), 4, 0.1, 0.3),
        lambda i: 0.1 + 0.2 * i / 4 if i < 4 else 0.5 if i < 6 else 0.25,
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name: str) -> None:
    make, want = SCHEDULES[name]
    rate = make()
    assert rate.dtype == "float32" and rate.shape == (1,)
    assert {op.role for op in fluid.default_main_program().global_block().ops} == {"lr_sched"}
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    got = [float(exe.run(fetch_list=[rate])[0][0]) for _ in range(9)]
    np.testing.assert_allclose(got, [want(i) for i in range(9)], rtol=1e-5, atol=1e-7)


def test_piecewise_is_exact() -> None:
    values = [0.1, 0.01, 0.001]
    rate = layers.piecewise_decay([1, 2], values)
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    assert [exe.run(fetch_list=[rate])[0][0] for _ in values] == [np.float32(v) for v in values]


def test_an_optimizer_follows_a_schedule() -> None:
    got = train(optimizer.SGD(layers.piecewise_decay([2], [0.1, 0.01])))
    check(got, descend(lambda w, g, i: w - (0.1 if i < 2 else 0.01) * g))


# Messages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: optimizer.SGD("fast"), ["optimizer.SGDOptimizer", "'learning_rate' is str 'fast'"]),
        (lambda: optimizer.SGD(0.1, regularization=0.3), ["'regularization'", "L2Decay"]),
        (lambda: optimizer.SGD(0.1, grad_clip=1.0), ["'grad_clip'", "GradientClipByGlobalNorm"]),
        (lambda: optimizer.Momentum(0.1, None), ["'momentum' is NoneType"]),
        (lambda: optimizer.Adam(beta1=1.0), ["'beta1'", "[0, 1)"]),
        (lambda: optimizer.SGD(0.1).minimize(3.0), ["'loss' is float 3.0"]),
        (lambda: optimizer.SGD(0.1).minimize(model(trainable=False)), ["no trainable parameter has a gradient"]),
        (lambda: clip.GradientClipByValue(-1.0), ["min <= max"]),
        (lambda: clip.set_gradient_clip(1.0), ["one of clip.GradientClipBy"]),
        (lambda: regularizer.L2Decay("much"), ["regularization_coeff is str 'much'"]),
        (lambda: layers.piecewise_decay([1], [0.1]), ["layers.piecewise_decay (test_optimizers.py", "2 numbers"]),
        (lambda: layers.piecewise_decay([2, 1], [1, 2, 3]), ["rising numbers"]),
        (lambda: layers.exponential_decay(0.1, 0, 0.5), ["'decay_steps' is int 0", "above 0"]),
    ],
)  # fmt: skip
def test_messages(make: Callable[[], Any], words: list[str]) -> None:
    with pytest.raises(ProgramError) as caught:
        make()
    for word in words:
        assert word in str(caught.value), str(caught.value)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "make", [lambda: optimizer.SGD(0.05), lambda: optimizer.Momentum(0.02, 0.9), lambda: optimizer.Adam(0.1)]
)
def test_half_parameters_train_as_float32_ones(make: Callable[[], optimizer.Optimizer], dtype: str) -> None:
    programs = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(*programs), fluid.scope_guard(fluid.Scope()):
        exact = train(make())
    found = train(make(), dtype=dtype)
    np.testing.assert_allclose(np.asarray(found[-1], "float32"), exact[-1], atol=0.03)
    assert np.abs(exact[-1] - START).max() > 0.1


def test_adam_keeps_the_state_of_half_parameters_in_float32() -> None:
    optimizer.Adam(0.1).minimize(model(dtype="bfloat16"))
    block = fluid.default_main_program().global_block()
    state = {name: var.dtype for name, var in block.vars.items() if "moment" in name or "beta" in name}
    assert len(state) == 4
    assert set(state.values()) == {"float32"}


def test_state_is_not_made_twice() -> None:
    momentum, loss = optimizer.Momentum(0.1, 0.9), model()
    momentum.minimize(loss)
    with pytest.raises(ProgramError, match="trains parameter 'w' already"):
        momentum.minimize(loss)
