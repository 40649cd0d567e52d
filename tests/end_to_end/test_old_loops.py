"""Training loops as users of Fluid 1.x wrote them: two programs, a test program, feeders, saved models, metrics."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid

PLACES = [str(place) for place in fluid.places()]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Give every test new programs, names and scope; a place with few kernels runs them too."""
    fluid.set_fallback("allow")
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 90
    with (
        fluid.unique_name.guard(),
        fluid.program_guard(main, startup),
        fluid.scope_guard(fluid.Scope()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", fluid.FallbackWarning)
        yield


def sees_what_the_cpu_saw(name: str, place: str, values: Any, known: dict[str, Any] = {}) -> None:  # noqa: B006
    """Compare with what the first place gave in the test of this name."""
    values = np.asarray(values, "float64")
    assert np.isfinite(values).all()
    np.testing.assert_allclose(values, known.setdefault(name, values), rtol=1e-4, atol=1e-6)


# Two programs that share parameters ----------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
def test_gan(place: str) -> None:
    def bn(x: Any, name: str, act: str | None = None) -> Any:
        return fluid.layers.batch_norm(
            x, param_attr=name + "1", bias_attr=name + "2", moving_mean_name=name + "3",
            moving_variance_name=name + "4", act=act,
        )  # fmt: skip

    def generator(z: Any) -> Any:
        x = bn(fluid.layers.fc(z, 4 * 4 * 4, param_attr="g_fc_w", bias_attr="g_fc_b"), "g_bn", act="relu")
        x = fluid.layers.reshape(x, [-1, 4, 4, 4])
        x = fluid.layers.conv2d_transpose(
            x, 1, filter_size=4, stride=2, padding=1, param_attr="g_deconv_w", bias_attr="g_deconv_b", act="tanh"
        )
        return fluid.layers.reshape(x, shape=[-1, 64])

    def discriminator(x: Any) -> Any:
        x = fluid.layers.reshape(x, shape=[-1, 1, 8, 8])
        x = fluid.layers.conv2d(x, 4, 3, stride=2, param_attr="d_conv_w", bias_attr="d_conv_b")
        return fluid.layers.fc(fluid.layers.leaky_relu(x, 0.2), 1, param_attr="d_fc_w", bias_attr="d_fc_b")

    def loss(logits: Any, value: float) -> Any:
        label = fluid.layers.fill_constant_batch_size_like(logits, [-1, 1], "float32", value)
        return fluid.layers.mean(fluid.layers.sigmoid_cross_entropy_with_logits(x=logits, label=label))

    startup = fluid.default_startup_program()
    d_program, dg_program = fluid.Program(), fluid.Program()
    d_program.random_seed = dg_program.random_seed = 90
    with fluid.program_guard(d_program, startup):
        img = fluid.layers.data(name="img", shape=[64], dtype="float32")
        fake = fluid.layers.data(name="fake", shape=[64], dtype="float32")
        d_loss = loss(discriminator(img), 1.0) + loss(discriminator(fake), 0.0)
    with fluid.program_guard(dg_program, startup):
        noise = fluid.layers.data(name="noise", shape=[6], dtype="float32")
        g_img = generator(noise)
        g_program = dg_program.clone()
        g_program_test = dg_program.clone(for_test=True)
        dg_loss = loss(discriminator(g_img), 1.0)
    optimizer = fluid.optimizer.Adam(learning_rate=2e-3, beta1=0.5)
    optimizer.minimize(loss=d_loss, startup_program=startup, parameter_list=[
        p.name for p in d_program.global_block().all_parameters() if p.name.startswith("d_")
    ])  # fmt: skip
    fluid.optimizer.Adam(2e-3, beta1=0.5).minimize(dg_loss, startup, [
        p.name for p in g_program.global_block().all_parameters() if p.trainable
    ])  # fmt: skip
    exe = fluid.Executor(place)
    exe.run(startup)
    rng = np.random.RandomState(0)
    found = []
    for _ in range(3):
        z, real = rng.uniform(-1, 1, (5, 6)).astype("float32"), rng.randn(5, 64).astype("float32")
        generated = exe.run(g_program, feed={"noise": z}, fetch_list=[g_img])[0]
        d = exe.run(d_program, feed={"img": real, "fake": generated}, fetch_list=[d_loss])[0]
        g = exe.run(dg_program, feed={"noise": z}, fetch_list={dg_loss})[0]
        found.append([float(d[0]), float(g[0])])
    shown = exe.run(g_program_test, feed={"noise": z}, fetch_list=[g_img.name])[0]
    assert shown.shape == (5, 64)
    sees_what_the_cpu_saw("gan", place, found)


# Training and testing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
def test_train_test_infer(place: str, tmp_path: Any) -> None:
    """The loop of the Fluid book: feeder, passes, a test program, an inference model saved and loaded elsewhere."""
    image = fluid.layers.data(name="image", shape=[2, 6, 6], dtype="float32")
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    conv = fluid.layers.conv2d(input=image, num_filters=4, filter_size=3, act=None, bias_attr=False)
    hidden = fluid.layers.dropout(fluid.layers.batch_norm(conv, act="relu", momentum=0.7), dropout_prob=0.3)
    predict = fluid.layers.fc(input=hidden, size=3, act="softmax")
    avg_cost = fluid.layers.mean(fluid.layers.cross_entropy(input=predict, label=label))
    acc = fluid.layers.accuracy(input=predict, label=label)
    test_program = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.Adam(learning_rate=0.02).minimize(avg_cost)

    def reader() -> Iterator[Any]:
        rng = np.random.RandomState(1)
        for _ in range(22):
            y = int(rng.randint(3))
            yield (rng.randn(72) + y).astype("float32"), y

    place_ = fluid.CPUPlace() if place == "cpu:0" else place
    train_reader = fluid.io.batch(fluid.io.shuffle(reader, buf_size=1), batch_size=8)
    feeder = fluid.DataFeeder(place=place_, feed_list=[image, label])
    exe = fluid.Executor(place_)
    exe.run(fluid.default_startup_program())
    found = []
    for _ in range(2):
        average, counted = fluid.average.WeightedAverage(), fluid.metrics.Accuracy()
        for data in train_reader():
            cost, rate = exe.run(feed=feeder.feed(data), fetch_list=[avg_cost, acc])
            average.add(value=cost, weight=len(data))
            counted.update(value=rate, weight=len(data))
        test = [
            exe.run(program=test_program, feed=feeder.feed(data), fetch_list=[avg_cost.name, acc.name])
            for data in train_reader()
        ]
        again = exe.run(test_program, feeder.feed(data), [avg_cost])
        np.testing.assert_array_equal(again[0], test[-1][0])  # a test changes nothing, and nothing in it is random
        found.append([float(average.eval()[0]), float(counted.eval()), float(np.mean([cost for cost, _ in test]))])
    sees_what_the_cpu_saw("train_test_infer", place, found)

    params = str(tmp_path / "persistables")
    fluid.io.save_persistables(exe, params, fluid.default_main_program())
    model = str(tmp_path / "model")
    fluid.io.save_inference_model(model, ["image"], [predict], exe)
    one = np.random.RandomState(2).randn(2, 2, 6, 6).astype("float32")
    expected = exe.run(test_program, {"image": one, "label": np.zeros((2, 1), "int64")}, [predict])[0]
    with fluid.scope_guard(fluid.Scope()):
        [inference_program, feed_names, targets] = fluid.io.load_inference_model(model, exe)
        assert feed_names == ["image"]
        results = exe.run(inference_program, feed={feed_names[0]: one}, fetch_list=targets)
    np.testing.assert_allclose(results[0], expected, rtol=1e-5, atol=1e-6)
    with fluid.scope_guard(fluid.Scope()):
        exe.run(fluid.default_startup_program())
        fluid.io.load_persistables(executor=exe, dirname=params, main_program=fluid.default_main_program())
        results = exe.run(test_program, {"image": one, "label": np.zeros((2, 1), "int64")}, [predict])
    np.testing.assert_allclose(results[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("place", PLACES)
def test_batch_norm_trains_and_tests_as_fluid_does(place: str) -> None:
    x = fluid.layers.data("x", shape=[2, 2, 2])
    y = fluid.layers.batch_norm(x, momentum=0.5, moving_mean_name="mean", moving_variance_name="variance")
    test = fluid.default_main_program().clone(for_test=True)
    loss = fluid.layers.reduce_sum(fluid.layers.square(y))
    fluid.optimizer.SGD(0.0).minimize(loss)
    exe = fluid.Executor(place)
    exe.run(fluid.default_startup_program())
    data = np.random.RandomState(0).randn(3, 2, 2, 2).astype("float32")
    mean, variance = np.zeros(2), np.ones(2)
    for _ in range(3):
        out = exe.run(feed={"x": data}, fetch_list=[y])[0]
        over = data.astype("float64")
        m, v = over.mean((0, 2, 3)), over.var((0, 2, 3))
        mean, variance = mean * 0.5 + m * 0.5, variance * 0.5 + v * 0.5
        wide = (slice(None), None, None)
        np.testing.assert_allclose(out, (over - m[wide]) / np.sqrt(v[wide] + 1e-5), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(fluid.global_scope().find_var("mean").get_tensor(), mean, rtol=1e-5)
    np.testing.assert_allclose(np.array(fluid.global_scope().find_var("variance").get_tensor()), variance, rtol=1e-5)
    out = exe.run(test, feed={"x": data}, fetch_list=[y])[0]
    np.testing.assert_allclose(out, (over - mean[wide]) / np.sqrt(variance[wide] + 1e-5), rtol=1e-4, atol=1e-5)


# Rates ---------------------------------------------------------------------------------------------------------------

RATES: dict[str, Any] = {
    "exponential": (lambda: fluid.layers.exponential_decay(0.1, 2, 0.5), lambda i: 0.1 * 0.5 ** (i / 2)),
    "staircase": (
        lambda: fluid.layers.exponential_decay(learning_rate=0.1, decay_steps=2, decay_rate=0.5, staircase=True),
        lambda i: 0.1 * 0.5 ** (i // 2),
    ),
    "natural_exp": (lambda: fluid.layers.natural_exp_decay(0.1, 2, 0.5), lambda i: 0.1 * np.exp(-0.5 * i / 2)),
    "inverse_time": (lambda: fluid.layers.inverse_time_decay(0.1, 2, 0.5), lambda i: 0.1 / (1 + 0.5 * i / 2)),
    "polynomial": (
        lambda: fluid.layers.polynomial_decay(0.1, 3, 0.01, power=2.0),
        lambda i: (0.1 - 0.01) * (1 - min(i, 3) / 3) ** 2 + 0.01,
    ),
    "cycle": (
        lambda: fluid.layers.polynomial_decay(0.1, 3, 0.01, power=1.0, cycle=True),
        lambda i: (0.1 - 0.01) * (1 - i / (3 * max(1, np.ceil(i / 3)))) + 0.01,
    ),
    "piecewise": (
        lambda: fluid.layers.piecewise_decay([2, 4], [0.1, 0.02, 0.003]), lambda i: [0.1, 0.1, 0.02, 0.02, 0.003][i],
    ),
    "noam": (
        lambda: fluid.layers.noam_decay(16, 3),
        lambda i: 16**-0.5 * min((i + 1) ** -0.5, (i + 1) * 3**-1.5),
    ),
    "cosine": (
        lambda: fluid.layers.cosine_decay(0.1, step_each_epoch=2, epochs=4),
        lambda i: 0.1 / 2 * (np.cos(i // 2 * np.pi / 4) + 1),
    ),
    "warmup": (
        lambda: fluid.layers.linear_lr_warmup(learning_rate=0.5, warmup_steps=3, start_lr=0.1, end_lr=0.4),
        lambda i: 0.1 + (0.4 - 0.1) * i / 3 if i < 3 else 0.5,
    ),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", RATES)
def test_learning_rates(name: str, place: str) -> None:
    make, expected = RATES[name]
    x = fluid.layers.data("x", [1])
    w = fluid.layers.create_parameter([1, 1], "float32", default_initializer=fluid.initializer.Constant(0.0))
    rate = make()
    fluid.optimizer.SGD(learning_rate=rate).minimize(fluid.layers.mean(fluid.layers.mul(x, w)))
    exe = fluid.Executor(place)
    exe.run(fluid.default_startup_program())
    found, moved = [], [0.0]
    for _ in range(5):
        now, _weight = exe.run(feed={"x": np.ones((1, 1), "float32")}, fetch_list=[rate, w])
        found.append(float(np.ravel(now)[0]))
        moved.append(-float(np.array(fluid.global_scope().find_var(w.name).get_tensor())[0, 0]))
    np.testing.assert_allclose(found, [expected(i) for i in range(5)], rtol=1e-5)
    np.testing.assert_allclose(np.diff(moved), found, rtol=1e-4)  # it is the rate that the step took


# Python in the middle ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
def test_print_and_py_func(place: str, capsys: Any) -> None:
    seen: list[Any] = []

    def forward(x: Any) -> Any:
        return np.tanh(x)

    def backward(x: Any, y: Any, dy: Any) -> Any:
        return np.array(dy) * (1 - np.square(y))

    def debug(x: Any) -> None:
        seen.append(np.array(x).shape)

    x = fluid.layers.data("x", [4])
    label = fluid.layers.data("label", [1], dtype="int64")
    hidden = fluid.layers.fc(x, 5)
    new = fluid.default_main_program().current_block().create_var(name="hidden_tanh", dtype="float32", shape=[-1, 5])
    fluid.layers.py_func(func=forward, x=hidden, out=new, backward_func=backward)
    fluid.layers.py_func(func=debug, x=new, out=None)
    new = fluid.layers.Print(new, message="hidden", summarize=3, first_n=1)
    prediction = fluid.layers.fc(new, size=3, act="softmax")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(prediction, label))
    fluid.optimizer.SGD(0.5).minimize(loss)
    exe = fluid.Executor(place)
    exe.run(fluid.default_startup_program())
    rng = np.random.RandomState(0)
    feed = {"x": rng.randn(6, 4).astype("float32"), "label": rng.randint(0, 3, (6, 1)).astype("int64")}
    losses = [exe.run(feed=feed, fetch_list=[loss])[0] for _ in range(3)]
    assert losses[0] > losses[1] > losses[2]
    assert seen == [(6, 5)] * 3
    assert "hidden" in capsys.readouterr().out
    sees_what_the_cpu_saw("py_func", place, losses)


@pytest.mark.parametrize("place", PLACES)
def test_counters_metrics_and_weights_by_name(place: str) -> None:
    """What evaluation scripts do: fetch by name, set a weight by hand, count with fluid.metrics."""
    x = fluid.layers.data("x", [3])
    label = fluid.layers.data("label", [1], dtype="int64")
    score = fluid.layers.fc(x, 2, act="softmax", param_attr=fluid.ParamAttr(name="fc_w"), bias_attr=False)
    correct = fluid.layers.create_tensor(dtype="int64")
    total = fluid.layers.create_tensor(dtype="int64")
    acc = fluid.layers.accuracy(score, label, k=1, correct=correct, total=total)
    _values, indices = fluid.layers.topk(score, k=2)
    seen = fluid.layers.create_global_var(shape=[1], value=0.0, dtype="float32", persistable=True, name="seen")
    batch = fluid.layers.cast(fluid.layers.reduce_sum(fluid.layers.ones_like(label)), "float32")
    fluid.layers.assign(fluid.layers.elementwise_add(seen, batch), seen)
    exe = fluid.Executor(place)
    exe.run(fluid.default_startup_program())
    weight = np.array([[1, -1], [0.5, 0], [-2, 2]], "float32")
    fluid.global_scope().find_var("fc_w").get_tensor().set(weight, exe.place)
    auc, precision = fluid.metrics.Auc("auc", num_thresholds=100), fluid.metrics.Precision()
    rng = np.random.RandomState(3)
    for i in range(2):
        data = rng.randn(7, 3).astype("float32")
        truth = rng.randint(0, 2, (7, 1)).astype("int64")
        p, a, right, n, order, count = exe.run(
            fluid.default_main_program(), feed={"x": data, "label": truth},
            fetch_list=[score.name, acc, correct, total, indices, "seen"],
        )  # fmt: skip
        e = np.exp((data @ weight).astype("float64"))
        expected = e / e.sum(1, keepdims=True)
        np.testing.assert_allclose(p, expected, rtol=1e-5)
        hits = int((expected.argmax(1) == truth[:, 0]).sum())
        assert (int(right[0]), int(n[0])) == (hits, 7)
        np.testing.assert_allclose(a, [hits / 7], rtol=1e-6)
        np.testing.assert_array_equal(order, np.argsort(-expected, axis=1))
        assert count.tolist() == [7.0 * (i + 1)]
        auc.update(preds=p, labels=truth)
        precision.update(preds=np.rint(p[:, 1]).astype("int32"), labels=truth)
    assert 0 <= auc.eval() <= 1
    assert 0 <= precision.eval() <= 1
