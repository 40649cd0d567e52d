"""The optimisers' classes: arguments in both orders, averages of parameters, Lookahead, subclasses of one's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import clip, layers, optimizer, regularizer
from fluidlite.base.errors import ProgramError

ROWS = np.random.default_rng(0).normal(size=(6, 3)).astype("float32")
START = np.array([[0.5], [-1.0], [2.0]], "float32")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Give every test new programs, names and scope."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup), fluid.scope_guard(fluid.Scope()):
        yield


def model(name: str = "w", dtype: str = "float32", **options: Any) -> fluid.Variable:
    x = layers.data("x", [3], dtype=dtype)
    attr = fluid.ParamAttr(name, fluid.initializer.NumpyArray(START), **options)
    return layers.mean(layers.square(layers.mul(x, layers.create_parameter([3, 1], dtype, attr=attr))))


def slope(w: np.ndarray) -> np.ndarray:
    return 2 * ROWS.T.astype("float64") @ (ROWS @ w) / len(ROWS)


def value(name: str = "w") -> np.ndarray:
    return np.array(fluid.global_scope().find_var(name).get_tensor())


def started() -> fluid.Executor:
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    return exe


def descent(steps: int, rate: float = 0.1) -> list[np.ndarray]:
    """The parameter after each step of SGD."""
    found = [START.astype("float64")]
    for _ in range(steps):
        found.append(found[-1] - rate * slope(found[-1]))
    return found[1:]


# Arguments ---------------------------------------------------------------------------------------------------------

SIGNATURES = {
    "SGD": "learning_rate parameter_list regularization grad_clip name",
    "Momentum": "learning_rate momentum parameter_list use_nesterov regularization grad_clip name",
    "LarsMomentum": "learning_rate momentum lars_coeff=0.001 lars_weight_decay=0.0005 parameter_list regularization "
    "grad_clip name exclude_from_weight_decay epsilon=0",
    "Dpsgd": "learning_rate=0.001 clip=0.9 batch_size=0.999 sigma=1e-08 parameter_list",
    "Adam": "learning_rate=0.001 beta1=0.9 beta2=0.999 epsilon=1e-08 parameter_list regularization grad_clip name "
    "lazy_mode",
    "Adamax": "learning_rate=0.001 beta1=0.9 beta2=0.999 epsilon=1e-08 parameter_list regularization grad_clip name",
    "Adagrad": "learning_rate epsilon=1e-06 parameter_list regularization grad_clip name initial_accumulator_value=0.0",
    "DecayedAdagrad": "learning_rate decay=0.95 epsilon=1e-06 parameter_list regularization grad_clip name",
    "Adadelta": "learning_rate epsilon=1e-06 rho=0.95 parameter_list regularization grad_clip name",
    "RMSProp": "learning_rate rho=0.95 epsilon=1e-06 momentum=0.0 centered parameter_list regularization grad_clip "
    "name",
    "Ftrl": "learning_rate l1=0.0 l2=0.0 lr_power=-0.5 parameter_list regularization grad_clip name",
    "Lamb": "learning_rate=0.001 lamb_weight_decay=0.01 beta1=0.9 beta2=0.999 epsilon=1e-06 parameter_list "
    "regularization grad_clip exclude_from_weight_decay_fn name",
    "ModelAverage": "average_window_rate min_average_window=10000 max_average_window=10000 regularization name",
    "ExponentialMovingAverage": "decay=0.999 thres_steps name",
    "LookaheadOptimizer": "inner_optimizer alpha=0.5 k=5",
    "RecomputeOptimizer": "optimizer",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str) -> None:
    kind = getattr(optimizer, name)
    shown = []
    for parameter in list(inspect.signature(kind.__init__).parameters.values())[1:]:
        plain = any(parameter.default is default for default in (None, False, inspect.Parameter.empty))
        shown.append(parameter.name if plain else f"{parameter.name}={parameter.default!r}")
    assert " ".join(shown) == SIGNATURES[name]
    assert getattr(optimizer, name.removesuffix("Optimizer") + "Optimizer", kind) is kind


def test_both_orders_of_positional_arguments() -> None:
    decay, params = (
        regularizer.L2Decay(0.1),
        [fluid.default_main_program().global_block().create_parameter("p", [2], "float32")],
    )
    old = optimizer.Momentum(0.1, 0.9, True, decay, "fast")
    new = optimizer.Momentum(0.1, 0.9, params, True, decay, None, "fast")
    for made in (old, new):
        assert made._use_nesterov and made.regularization is decay and made._name == "fast"
    assert old._parameter_list is None and new._parameter_list == params
    assert optimizer.SGD(0.1, decay).regularization is decay
    assert optimizer.SGD(0.1, None, decay).regularization is decay
    lamb = optimizer.Lamb(0.1, 0.01, 0.9, 0.99, 1e-6, decay, lambda param: True, "big")
    assert lamb._name == "big" and lamb.regularization is decay
    with pytest.raises(TypeError, match="'regularization' is given twice"):
        optimizer.SGD(0.1, decay, regularization=decay)
    with pytest.raises(TypeError):
        optimizer.SGD(0.1, decay, "a", "b", "c", "d")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: optimizer.Adamax(beta2=1.0), ["optimizer.AdamaxOptimizer", "'beta2'", "[0, 1)"]),
        (lambda: optimizer.Lamb(beta1="x"), ["'beta1'"]),
        (lambda: optimizer.Ftrl(0.1, l1=None), ["FtrlOptimizer", "'l1'", "a number"]),
        (lambda: optimizer.RMSProp(0.1, rho="x"), ["'rho' is str 'x'"]),
        (lambda: optimizer.LookaheadOptimizer(3), ["'inner_optimizer'", "SGD"]),
        (lambda: optimizer.LookaheadOptimizer(optimizer.SGD(0.1), alpha=2), ["'alpha' is 2"]),
        (lambda: optimizer.LookaheadOptimizer(optimizer.SGD(0.1), k=0), ["'k'"]),
        (lambda: optimizer.RecomputeOptimizer("sgd"), ["'optimizer' is 'sgd'"]),
        (lambda: optimizer.ModelAverage("x"), ["'average_window_rate'"]),
        (lambda: optimizer.ModelAverage(0.1).minimize(model("other")), ["make this one after it"]),
        (lambda: optimizer.Optimizer(0.1).minimize(model()), ["does not say how it updates"]),
    ],
)
def test_messages(make: Callable[[], Any], words: list[str]) -> None:
    with pytest.raises((ProgramError, NotImplementedError)) as caught:
        make()
    for word in words:
        assert word in str(caught.value), str(caught.value)


# State and hooks ---------------------------------------------------------------------------------------------------


def test_the_states_names_are_listed_with_the_optimizers() -> None:
    adam = optimizer.Adam(0.1, name="a")
    adam.minimize(model())
    names = [f"w_a_{part}_0" for part in ("moment1", "moment2", "beta1_pow_acc", "beta2_pow_acc")]
    assert adam.get_opti_var_name_list() == names
    assert all(fluid.default_startup_program().global_block().has_var(name) for name in names)


def test_betas_may_be_variables() -> None:
    beta = layers.fill_constant([1], "float32", 0.5)
    optimizer.Adam(0.1, beta1=beta).minimize(model())
    exe = started()
    for _ in range(2):
        exe.run(feed={"x": ROWS})
    np.testing.assert_allclose(value("w_beta1_pow_acc_0"), 0.9 * 0.25, rtol=1e-6)
    np.testing.assert_allclose(value("w_beta2_pow_acc_0"), 0.999**3, rtol=1e-6)


def test_parameters_may_be_left_out_of_weight_decay() -> None:
    def attrs(make: Callable[[], Any]) -> dict[str, Any]:
        with fluid.program_guard(fluid.Program(), fluid.Program()):
            loss = layers.elementwise_add(model("w"), model("bias"))
            make().minimize(loss)
            ops = fluid.default_main_program().global_block().ops
            names = ("lars_weight_decay", "weight_decay")
            return {op.input("Param")[0]: op.attr(n) for op in ops for n in names if op.has_attr(n)}

    lars = attrs(lambda: optimizer.LarsMomentum(0.1, 0.9, exclude_from_weight_decay=["bias"]))
    lamb = attrs(lambda: optimizer.Lamb(0.1, exclude_from_weight_decay_fn=lambda param: param.name == "bias"))
    assert lars == {"w": 0.0005, "bias": 0.0} and lamb == {"w": 0.01, "bias": 0.0}


def test_an_optimizer_of_ones_own_in_fluids_words() -> None:
    class Signed(optimizer.Optimizer):
        """Param = Param - learning_rate sign(Grad), counting its steps."""

        def _create_accumulators(self, block: Any, parameters: Any) -> None:
            for param in parameters:
                self._add_accumulator("count", param, fill_value=2.0, shape=[1])

        def _append_optimize_op(self, block: Any, param_and_grad: Any) -> Any:
            sign = layers.sign(param_and_grad[1])
            inputs = {"Param": param_and_grad[0], "Grad": sign, "LearningRate": self._create_param_lr(param_and_grad)}
            return block.append_op("sgd", inputs, {"ParamOut": param_and_grad[0]}, stop_gradient=True)

        def _finish_update(self, block: Any, parameters_and_grads: Any) -> None:
            for param, _ in parameters_and_grads:
                layers.increment(self._get_accumulator("count", param))

    Signed(learning_rate=0.25, regularization=None, name="s").minimize(model(learning_rate=2.0))
    started().run(feed={"x": ROWS})
    np.testing.assert_allclose(value(), START - 0.5 * np.sign(slope(START)), rtol=1e-6)
    assert value("w_s_count_0") == [3.0]
    assert not fluid.default_main_program().global_block().var("w").stop_gradient


def test_minimize_in_three_parts() -> None:
    loss, made = model(), optimizer.Momentum(0.1, 0.9)
    pairs = made.backward(loss)
    startup = fluid.Program()
    assert [op.type for op in made.apply_optimize(loss, startup, pairs)] == ["momentum"]
    assert startup.global_block().has_var("w_velocity_0")


# Averages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exponential_moving_average(dtype: str) -> None:
    optimizer.SGD(0.1).minimize(model(dtype=dtype))
    average = optimizer.ExponentialMovingAverage(0.8)
    average.update()
    exe = started()
    with average.apply(exe):
        np.testing.assert_array_equal(value(), np.zeros_like(START))  # nothing is averaged yet
    np.testing.assert_array_equal(value(), START)
    want = np.zeros_like(START, "float64")
    for step, w in enumerate(descent(4), 1):
        exe.run(feed={"x": ROWS.astype(dtype)})
        want = 0.8 * want + 0.2 * w
        with average.apply(exe):
            np.testing.assert_allclose(value(), want / (1 - 0.8**step), rtol=1e-5)
        np.testing.assert_allclose(value(), w, rtol=1e-5)
    with average.apply(exe, need_restore=False):
        pass
    np.testing.assert_allclose(value(), want / (1 - 0.8**4), rtol=1e-5)
    average.restore(exe)
    np.testing.assert_allclose(value(), w, rtol=1e-5)
    assert any(name.startswith("w_ema") for name in fluid.default_main_program().global_block().vars)


@pytest.mark.parametrize("place", list(map(str, fluid.places())))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_averages_of_half_types_lose_no_small_addition(dtype: str, place: str) -> None:
    """They are what the dtype that the parameter computes in gives: float32."""
    w = layers.create_parameter([2], dtype, name="w", default_initializer=fluid.initializer.Constant(1.0))
    optimizer.SGD(0.0).minimize(layers.reduce_sum(layers.cast(w, "float32")))
    moving, mean = optimizer.ExponentialMovingAverage(0.999), optimizer.ModelAverage(0.5)
    moving.update()
    exe = fluid.Executor(place)
    exe.run(fluid.default_startup_program())
    fluid.global_scope().find_var("w_sum_1_0").get_tensor().set(np.full(2, 5000, "float32"), place)
    fluid.global_scope().find_var("w_num_accumulates_0").get_tensor().set(np.array([5000]), place)
    for _ in range(5):
        exe.run()
    for average in (moving, mean):
        with average.apply(exe):
            found = fluid.global_scope().find_var("w").get_tensor()
            assert found.numpy().dtype == dtype and found.numpy().astype("float32").tolist() == [1, 1]
    assert value("w_sum_1_0").tolist() == [5005, 5005]


@pytest.mark.parametrize("place", list(map(str, fluid.places())))
@pytest.mark.parametrize("decay", [0.999, 0.9999, 0.999999])
def test_averages_of_a_constant_are_it(decay: float, place: str) -> None:
    """1 - decay^updates loses no digits, however near the decay is to 1."""
    w = layers.create_parameter([2], "float32", name="w", default_initializer=fluid.initializer.Constant(3.0))
    optimizer.SGD(0.0).minimize(layers.reduce_sum(w))
    average = optimizer.ExponentialMovingAverage(decay)
    average.update()
    exe = fluid.Executor(place)
    exe.run(fluid.default_startup_program())
    for _ in range(4):
        exe.run()
        with average.apply(exe):
            np.testing.assert_allclose(value(), [3, 3], rtol=5e-7)


def test_moving_averages_count_their_own_updates() -> None:
    """Of programs that share a scope, and of one program."""
    exe, scope, averages = fluid.Executor("cpu"), fluid.global_scope(), []
    for name in ("a", "b"):
        program, startup = fluid.Program(), fluid.Program()
        with fluid.program_guard(program, startup):
            optimizer.SGD(0.1).minimize(model(name))
            made = [optimizer.ExponentialMovingAverage(decay) for decay in (0.8, 0.5)]
            for each in made:
                each.update()
        exe.run(startup)
        averages.append((name, program, made))
    for count, (_, program, _) in zip((4, 2), averages, strict=True):
        for _ in range(count):
            exe.run(program, feed={"x": ROWS})
    for count, (name, _, made) in zip((4, 2), averages, strict=True):
        for decay, average in zip((0.8, 0.5), made, strict=True):
            want = np.zeros_like(START, "float64")
            for w in descent(count):
                want = decay * want + (1 - decay) * w
            with average.apply(exe):
                found = np.array(scope.find_var(name).get_tensor())
            np.testing.assert_allclose(found, want / (1 - decay**count), rtol=1e-5)


def test_the_decay_of_a_moving_average_may_follow_the_steps() -> None:
    optimizer.SGD(0.1).minimize(model())
    steps = layers.autoincreased_step_counter(begin=0)
    average = optimizer.ExponentialMovingAverage(0.2, thres_steps=steps, name="slow_")
    average.update()
    exe, want = started(), np.zeros_like(START, "float64")
    for i, w in enumerate(descent(4)):
        exe.run(feed={"x": ROWS})
        decay = min(0.2, (i + 1) / (i + 10))
        want = decay * want + (1 - decay) * w
    np.testing.assert_allclose(value("slow_w_ema_0"), want, rtol=1e-5)
    assert average._decay == 0.2


def test_model_average() -> None:
    loss = layers.elementwise_add(model("w"), layers.scale(model("left", do_model_average=False), 0.0))
    optimizer.SGD(0.1).minimize(loss)
    average = optimizer.ModelAverage(1.0, min_average_window=2, max_average_window=100)
    exe = started()
    path = descent(3)
    for i, w in enumerate(path):
        exe.run(feed={"x": ROWS})
        with average.apply(exe):  # the second update fills a window, and no update is left out of the mean
            np.testing.assert_allclose(value(), np.mean(path[: i + 1], 0), rtol=1e-5)
        np.testing.assert_allclose(value(), w, rtol=1e-5)
    block = fluid.default_main_program().global_block()
    assert not any(name.startswith("left_sum") for name in block.vars)
    counts = [int(value(f"w_{n}_0")[0]) for n in ("num_accumulates", "old_num_accumulates", "num_updates")]
    assert counts == [1, 2, 3]  # the second update filled the window, the third began the next


def test_model_average_over_all_steps() -> None:
    optimizer.SGD(0.1).minimize(model())
    average = optimizer.ModelAverage(0.15)
    exe, path = started(), descent(5)
    for _ in path:
        exe.run(feed={"x": ROWS})
    with average.apply(exe):
        np.testing.assert_allclose(value(), np.mean(path, 0), rtol=1e-5)
    np.testing.assert_allclose(value(), path[-1], rtol=1e-5)
    kept = {op.type for op in fluid.default_main_program().clone(for_test=True).global_block().ops}
    assert "average_accumulates" not in kept


def test_lookahead() -> None:
    made = optimizer.LookaheadOptimizer(optimizer.SGD(0.1), alpha=0.3, k=2)
    updates, pairs = made.minimize(model())
    assert [op.type for op in updates] == ["sgd"] and [p.name for p, _ in pairs] == ["w"]
    exe = started()
    np.testing.assert_array_equal(value("w@SLOW"), START)
    fast = slow = START.astype("float64")
    for step in range(1, 6):
        exe.run(feed={"x": ROWS})
        fast = fast - 0.1 * slope(fast)
        if step % 2 == 0:
            fast = slow = 0.3 * fast + 0.7 * slow
        np.testing.assert_allclose(value(), fast, rtol=1e-5)
        np.testing.assert_allclose(value("w@SLOW"), slow, rtol=1e-5)


# Updates in branches ------------------------------------------------------------------------------------------------

IN_BRANCHES: dict[str, Callable[[], Any]] = {
    "sgd": lambda: optimizer.SGD(0.1),
    "momentum": lambda: optimizer.Momentum(0.1, 0.9, regularization=regularizer.L2Decay(0.3)),
    "adam": lambda: optimizer.Adam(0.1, grad_clip=clip.GradientClipByGlobalNorm(0.5)),
    "lookahead": lambda: optimizer.LookaheadOptimizer(optimizer.SGD(0.1), alpha=0.3, k=2),
}


@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
@pytest.mark.parametrize("way", ["switch", "block", "cond"])
@pytest.mark.parametrize("name", IN_BRANCHES)
def test_updates_in_a_branch_are_made_where_it_runs(name: str, way: str, mode: str, place: str) -> None:
    """What an optimiser appends inside of a branch is part of it: in the other runs nothing is updated."""

    def updated(program: fluid.Program, build: Callable[[fluid.Variable], None], turns: list[bool]) -> list[np.ndarray]:
        exe, found = fluid.Executor(place, mode=mode), []
        with fluid.program_guard(program, fluid.Program()), fluid.unique_name.guard(), fluid.scope_guard(fluid.Scope()):
            due = layers.data("due", [1], append_batch_size=False, dtype="bool")
            build(due)
            exe.run(fluid.default_startup_program())
            for turn in turns:
                exe.run(feed={"x": ROWS, "due": np.array([turn])}, fetch_list=[due])
                found.append(value())
        return found

    def everywhere(due: fluid.Variable) -> None:
        IN_BRANCHES[name]().minimize(model())
        optimizer.ModelAverage(1.0, 2, 4)

    def inside(due: fluid.Variable) -> None:
        loss = model()

        def update() -> None:
            IN_BRANCHES[name]().minimize(loss)
            optimizer.ModelAverage(1.0, 2, 4)

        if way == "cond":
            layers.cond(due, update)
        elif way == "switch":
            with layers.Switch() as switch, switch.case(due):
                update()
        else:
            with layers.ConditionalBlock([due], is_scalar_condition=True).block():
                update()

    main = fluid.Program()
    want = updated(fluid.Program(), everywhere, [True] * 3)
    found = updated(main, inside, [False, True, False, True, True, False])
    for turn, step in enumerate((-1, 0, 0, 1, 2, 2)):
        np.testing.assert_allclose(found[turn], START if step < 0 else want[step], rtol=1e-5)
    kept = [op for block in main.clone(for_test=True).blocks for op in block.ops]
    assert not [op for op in kept if op.role == "optimize" or op.type == "conditional_block"]
    outside = {op.type for op in main.global_block().ops if op.role == "optimize"}
    assert not outside & {"sgd", "momentum", "adam", "lookahead_update", "average_accumulates"}


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Ftrl", "AdamOptimizer", "Momentum"])
@pytest.mark.parametrize("options", [{}, {"clip": 0.05}, {"decay": 0.3}], ids=str)
def test_rows_are_updated_in_a_branch(name: str, options: dict[str, float]) -> None:
    """What merges, clips, takes and puts back rows of a table is in the branch, too."""

    def trained(branch: bool, turns: list[bool]) -> np.ndarray:
        arguments: dict[str, Any] = {"momentum": 0.9} if name == "Momentum" else {}
        arguments |= {"lazy_mode": True} if name == "AdamOptimizer" else {}
        arguments |= {"grad_clip": clip.GradientClipByGlobalNorm(options["clip"])} if "clip" in options else {}
        arguments |= {"regularization": regularizer.L2Decay(options["decay"])} if "decay" in options else {}
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope()):
            index, due = layers.data("index", [1], dtype="int64"), layers.data("due", [1], False, "bool")
            attr = fluid.ParamAttr("table", fluid.initializer.Constant(0.5))
            loss = layers.mean(layers.square(layers.embedding(index, [6, 2], is_sparse=True, param_attr=attr) - 1.0))
            made = getattr(optimizer, name)(0.1, **arguments)
            if branch:
                with layers.Switch() as switch, switch.case(due):
                    made.minimize(loss)
            else:
                made.minimize(loss)
            exe = started()
            for turn in turns:
                exe.run(feed={"index": [[1], [1], [4]], "due": np.array([turn])}, fetch_list=[due])
            return value("table")

    np.testing.assert_array_equal(trained(True, [False]), np.full((6, 2), 0.5, "float32"))
    np.testing.assert_allclose(trained(True, [False, True, False, True]), trained(False, [True, True]), rtol=1e-6)


def test_gradients_that_are_accumulated_decay_where_the_branch_runs() -> None:
    ((w, gradient),) = fluid.append_backward(model())
    held = layers.create_global_var([3, 1], 0.0, "float32", persistable=True, name="held")
    layers.assign(held + gradient, held)
    due = layers.data("due", [1], append_batch_size=False, dtype="bool")
    with layers.ConditionalBlock([due], is_scalar_condition=True).block():
        optimizer.SGD(0.1, regularization=regularizer.L2Decay(0.3)).apply_gradients([(w, held)])
        layers.assign(held * 0.0, held)
    exe, want = started(), START.astype("float64")
    for _ in range(2):
        for turn in (False, False, True):
            exe.run(feed={"x": ROWS, "due": np.array([turn])}, fetch_list=[due])
        want = want - 0.1 * (3 * slope(want) + 0.3 * want)
        np.testing.assert_allclose(value(), want, rtol=1e-5)


def test_moving_averages_are_updated_in_each_run() -> None:
    optimizer.SGD(0.1).minimize(model())
    average = optimizer.ExponentialMovingAverage(0.8)
    due = layers.fill_constant([1], "bool", True)
    with layers.ConditionalBlock([due], is_scalar_condition=True).block():
        with pytest.raises(ProgramError, match=r"it counts runs.*\n  Do: call it outside of branches and loops"):
            average.update()
        layers.assign(due, output=due)


def test_every_class_clips_and_decays() -> None:
    made = optimizer.Adagrad(0.1, 1e-3, None, regularizer.L2Decay(0.3), clip.GradientClipByNorm(0.5))
    made.minimize(model())
    started().run(feed={"x": ROWS})
    g = slope(START)
    g = g * 0.5 / np.linalg.norm(g) + 0.3 * START
    np.testing.assert_allclose(value(), START - 0.1 * g / (np.abs(g) + 1e-3), rtol=1e-4)


def test_recomputing_changes_nothing() -> None:
    made = optimizer.RecomputeOptimizer(optimizer.SGD(0.1))
    loss = model()
    with pytest.warns(UserWarning, match="recomputes nothing"):
        made._set_checkpoints([loss])
    updates, pairs = made.minimize(loss)
    assert [op.type for op in updates] == ["sgd"] and [p.name for p, _ in pairs] == ["w"]
    started().run(feed={"x": ROWS})
    np.testing.assert_allclose(value(), START - 0.1 * slope(START), rtol=1e-5)


# Clipping and rates by layer ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda need: clip.GradientClipByValue(0.1, need_clip=need),
        lambda need: clip.GradientClipByNorm(0.1, need),
        lambda need: clip.GradientClipByGlobalNorm(0.1, need_clip=need),
    ],
)
def test_parameters_may_be_left_out_of_clipping(make: Callable[[Any], Any]) -> None:
    loss = layers.elementwise_add(model("w"), model("free"))
    clipping = make(lambda param: param.name != "free")
    assert isinstance(clipping, clip.GradientClipBase)
    optimizer.SGD(1.0, grad_clip=clipping).minimize(loss)
    started().run(feed={"x": ROWS})
    g = slope(START)
    np.testing.assert_allclose(value("free"), START - g, rtol=1e-5)
    want = np.clip(g, -0.1, 0.1) if isinstance(clipping, clip.GradientClipByValue) else g * 0.1 / np.linalg.norm(g)
    np.testing.assert_allclose(value("w"), START - want, rtol=1e-5)


def test_a_clip_may_be_called() -> None:
    sgd = optimizer.SGD(1.0)
    pairs = sgd.backward(model())
    clipped = clip.GradientClipByNorm(0.1)(pairs)
    assert [param.name for param, _ in clipped] == ["w"] and clipped[0][1] is not pairs[0][1]
    sgd.apply_gradients(clipped)
    started().run(feed={"x": ROWS})
    np.testing.assert_allclose(np.linalg.norm(value() - START), 0.1, rtol=1e-4)
    with pytest.raises(ProgramError, match="need_clip is 3"):
        clip.GradientClipByNorm(0.1, 3)  # type: ignore[arg-type]


@pytest.mark.parametrize("factor", [1.0, 0.5])
@pytest.mark.parametrize("schedule", [False, True])
def test_rates_by_layer(factor: float, schedule: bool) -> None:
    sgd = optimizer.SGD(9.0)
    pairs = sgd.backward(model(learning_rate=factor))
    rate = layers.piecewise_decay([5], [0.2, 0.1]) if schedule else 0.2
    layers.append_LARS(pairs, rate, 0.3)
    sgd.apply_gradients(pairs)
    started().run(feed={"x": ROWS})
    g = slope(START)
    own = 0.2 * factor * np.linalg.norm(START) / (np.linalg.norm(g) + 0.3 * np.linalg.norm(START))
    np.testing.assert_allclose(value(), START - own * g, rtol=1e-5)


def test_a_rate_by_layer_of_a_half_type() -> None:
    """The squares of its elements have a sum beyond it."""
    attr = fluid.ParamAttr(name="w", initializer=fluid.initializer.Constant(300.0))
    w = layers.create_parameter([4], "float16", attr=attr)
    sgd = optimizer.SGD(9.0)
    pairs = sgd.backward(layers.reduce_sum(layers.cast(w, "float32")))
    layers.append_LARS(pairs, 0.1, 0.0)
    sgd.apply_gradients(pairs)
    started().run()
    np.testing.assert_allclose(value(), 300 - 0.1 * 600 / 2, rtol=1e-3)


@pytest.mark.parametrize("as_variable", [False, True])
def test_decay_beside_the_gradient(as_variable: bool) -> None:
    """AdamW: chosen parameters lose a part of themselves before the update, and what Adam accumulates knows nothing."""
    decay: Any = layers.create_global_var([1], 0.1, "float32", persistable=True) if as_variable else 0.1
    loss = model() + model("w_free")
    adamw = fluid.contrib.extend_with_decoupled_weight_decay(optimizer.Adam)
    adamw(decay, lambda name: "free" not in name, learning_rate=0.5).minimize(loss)
    exe = started()
    wanted, moments = {"w": START.astype("float64"), "w_free": START.astype("float64")}, {}
    for step in (1, 2, 3):
        exe.run(feed={"x": ROWS})
        for name, w in wanted.items():
            first, second = moments.get(name, (0.0, 0.0))
            g = slope(w)
            moments[name] = first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g * g
            rate = 0.5 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
            kept = w if name == "w_free" else 0.9 * w
            wanted[name] = kept - rate * first / (np.sqrt(second) + 1e-8)
    for name, w in wanted.items():
        np.testing.assert_allclose(value(name), w, rtol=1e-4)
    with pytest.raises(ProgramError, match="a class of optimisers"):
        fluid.contrib.extend_with_decoupled_weight_decay(optimizer.Adam(0.1))  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="argument 'weight_decay'"):
        adamw("much")
