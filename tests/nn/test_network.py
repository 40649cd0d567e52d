"""Networks train, evaluate and predict on every place, as the same layers do through an Executor."""

from __future__ import annotations

import gc
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers, nn
from fluidlite.errors import NetworkError, OutOfMemoryError, ShapeError

Make = Callable[..., nn.Network]


def stack() -> list[nn.Layer]:
    return [nn.Dense(32, "relu"), nn.Dense(10)]


def through_an_executor(x: np.ndarray, y: np.ndarray, size: int, epochs: int, mode: str) -> tuple[list[float], dict]:
    """Losses of each epoch, and the parameters, of the same layers written as a program."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        image = layers.data("input", [64])
        label = layers.data("label", [1], dtype="int64")
        hidden = layers.fc(image, 32, act="relu", name="dense_0")
        scores = layers.fc(hidden, 10, name="dense_1")
        loss = layers.mean(layers.softmax_with_cross_entropy(scores, label))
        fluid.optimizer.Adam(0.01).minimize(loss)
    executor, found = fluid.Executor("cpu", mode=mode), []
    executor.run(startup)
    for _ in range(epochs):
        total = 0.0
        for first in range(0, len(x), size):
            feed = {"input": x[first : first + size], "label": y[first : first + size]}
            total += executor.run(main, feed, [loss])[0].item() * len(feed["label"])
        found.append(total / len(x))
    scope = fluid.global_scope()
    return found, {p.name: scope.find_var(p.name).get_tensor().numpy().copy() for p in main.all_parameters()}


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_a_network_gives_the_numbers_of_its_program(network: Make, digits: Any, mode: str) -> None:
    x, y = digits[0][:350], digits[1][:350]
    made = network(stack(), mode=mode)
    history = made.batched_train([(x[i : i + 100], y[i : i + 100]) for i in range(0, 350, 100)], epochs=3)
    losses, parameters = through_an_executor(x, y, 100, 3, mode)
    assert [entry["loss"] for entry in history] == losses
    for name, value in made.parameters().items():
        np.testing.assert_array_equal(value, parameters[name])


def test_digits_are_learnt_on_every_place(network: Make, batches: Any, digits: Any, place: str) -> None:
    x, y = digits
    made = network(stack(), place=place, metrics="accuracy")
    history = made.batched_train(batches(x[:1500], y[:1500], 100), epochs=3, validation=(x[1500:], y[1500:]))
    assert history[-1]["loss"] < 0.5 * history[0]["loss"]
    assert history[-1]["validation_accuracy"] > 0.8
    assert [entry["epoch"] for entry in history] == [1, 2, 3]
    found = made.evaluate((x[1500:], y[1500:]))
    scores = made.predict(x[1500:], batch_size=97)
    assert scores.shape == (297, 10)
    assert np.mean(scores.argmax(1) == y[1500:, 0]) == pytest.approx(found["accuracy"], abs=1e-6)
    np.testing.assert_allclose(made(x[1500:]), scores, rtol=1e-5, atol=1e-5)
    tensor = fluid.Tensor().set(x[1500:], place)
    for size in (None, 100):
        np.testing.assert_allclose(made.predict(tensor, batch_size=size), scores, rtol=1e-5, atol=1e-5)
    shifted = np.float64(scores) - scores.max(1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    assert found["loss"] == pytest.approx(-logs[np.arange(297), y[1500:, 0]].mean(), rel=1e-5)


def test_places_learn_alike(network: Make, digits: Any) -> None:
    x, y = digits[0][:200], digits[1][:200]
    found = [
        [e["loss"] for e in network(stack(), place=str(place)).batched_train([(x, y)] * 5, epochs=2)]
        for place in fluid.places()
    ]
    np.testing.assert_allclose(found, [found[0]] * len(found), rtol=1e-4)


def test_train_takes_the_whole_dataset(network: Make, digits: Any, place: str) -> None:
    x, y = digits[0][:300], digits[1][:300]
    whole = network(stack(), place=place)
    history = whole.train((x, y), epochs=4)
    one = network(stack(), place=place).batched_train([(x, y)], epochs=4)
    assert [entry["loss"] for entry in history] == [entry["loss"] for entry in one]
    assert whole.state.step == 4


def test_the_strategies_of_the_network_are_used(network: Make, batches: Any, digits: Any) -> None:
    def halved() -> fluid.optimizer.SGD:
        return fluid.optimizer.SGD(layers.piecewise_decay([2], [0.5, 0.0]))

    def cost(prediction: fluid.Variable, label: fluid.Variable) -> fluid.Variable:
        return layers.softmax_with_cross_entropy(prediction, label)

    x, y = digits[0][:200], digits[1][:200]
    made = network(stack(), optimizer=halved, loss=nn.losses.Loss(cost, [1], "int64"), loader=batches(x, y, 100))
    made.batched_train(epochs=1)
    before = made.parameters()
    made.batched_train(epochs=1)  # the schedule says 0 from the third step on
    for name, value in made.parameters().items():
        np.testing.assert_array_equal(value, before[name])


@pytest.mark.parametrize(
    ("loss", "labels"), [("squared_error", "real"), ("huber", "real"), ("sigmoid_cross_entropy", "unit")]
)
def test_losses_of_numbers(network: Make, loss: str, labels: str) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(60, 5)).astype("float32")
    y = x @ random.normal(size=(5, 2)).astype("float32")
    y = np.float32(y > 0) if labels == "unit" else y
    made = network([nn.Dense(2)], (5,), loss=loss, metrics="absolute_error", optimizer=fluid.optimizer.Adam(0.1))
    history = made.batched_train([(x, y)], epochs=60)
    assert history[-1]["loss"] < 0.3 * history[0]["loss"]
    error = np.abs(np.float64(made(x)) - y).mean()
    assert made.evaluate((x, y))["absolute_error"] == pytest.approx(error, rel=1e-4)


def test_first_values_depend_on_the_seed_alone(network: Make) -> None:
    values = [network(stack(), seed=seed).parameters()["dense_0.w_0"] for seed in (3, 3, 4)]
    np.testing.assert_array_equal(values[0], values[1])
    assert np.abs(values[0] - values[2]).max() > 0.01
    limit = (6 / (64 + 32)) ** 0.5
    assert np.abs(values[0]).max() < limit
    assert np.abs(values[0]).std() == pytest.approx(limit / 12**0.5, rel=0.1)


def test_a_summary_counts(network: Make, place: str) -> None:
    made = network([nn.Dense(32, "relu"), nn.BatchNorm(), nn.Dense(10)], place=place)
    found = made.summary(rows=16)
    assert [layer.parameters for layer in found.layers] == [64 * 32 + 32, 64, 330]
    assert [layer.nbytes for layer in found.layers] == [4 * (64 * 32 + 32), 4 * 128, 4 * 330]
    assert found.parameters == sum(value.size for value in made.parameters().values())
    assert found.layers[0].output_bytes == 16 * 32 * 4
    assert found.state_bytes >= 2 * 4 * found.parameters
    assert found.layers[0].kernels
    text = str(found)
    for word in ("dense_0 (dense)", "Nx32", "2,080", place.partition(":")[0]):
        assert word in text


# Errors ------------------------------------------------------------------------------------------------------------


def test_layers_that_do_not_fit_are_refused(network: Make) -> None:
    made = network([nn.Dense(8, name="first")])
    with pytest.raises(NetworkError, match=r"layer 1, conv2d.*the output of layer 0, dense 'first', \[-1, 8\]") as exc:
        made.add_layer(nn.Conv2D(4, 3))
    assert "expected images" in str(exc.value)
    assert len(made.layers) == 1
    made.add_layer(nn.Dense(10))
    assert made(np.zeros((2, 64), "float32")).shape == (2, 10)


def test_what_a_layer_refuses_is_said_with_its_name(network: Make) -> None:
    made = network([], (1, 8, 8))
    with pytest.raises(ShapeError, match=r"layer 0, conv2d 'conv2d_0'"):
        made.add_layer(nn.Conv2D(4, 9))
    assert not made.program.global_block().ops
    made.add_layer(nn.Conv2D(4, 3))
    assert made.layers[0].output.shape == (-1, 4, 6, 6)


def test_a_layer_is_in_one_network(network: Make) -> None:
    layer = nn.Dense(4)
    made = network([layer])
    with pytest.raises(NetworkError, match="is in this network already"):
        made.add_layer(layer)
    with pytest.raises(NetworkError, match="is in another network already"):
        network([layer])
    with pytest.raises(NetworkError, match="expected a layer"):
        made.add_layer("dense")  # type: ignore[arg-type]
    with pytest.raises(NetworkError, match="called 'x', as one before"):
        network([nn.Dense(4, name="x"), nn.Dense(4, name="x")])


def test_layers_that_the_place_has_no_memory_for_are_refused(network: Make, place: str) -> None:
    made = network([], (1_000_000,), place=place)
    with pytest.raises(OutOfMemoryError, match="the network takes 8,000,012,000,000") as exc:  # gradients, too
        made.add_layer(nn.Dense(1_000_000, name="wide"))
    for part in (place.partition(":")[0], "dense 'wide'", "4,000,004,000,000 of parameters", "of gradients"):
        assert part in str(exc.value)
    assert not made.layers
    made.add_layer(nn.Dense(3))
    assert made(np.zeros((1, 1_000_000), "float32")).shape == (1, 3)


def test_a_limit_counts_the_optimizers_state_too(network: Make) -> None:
    parameters = 4 * (64 * 100 + 100)
    gc.collect()
    fluid.memory.set_limit("cpu", fluid.memory.used("cpu") + 3 * parameters)
    try:
        made = network([nn.Dense(100)], loss="squared_error")
        with pytest.raises(OutOfMemoryError, match=f"{parameters:,} of parameters.*of optimizer state"):
            made.set_up()
    finally:
        fluid.memory.set_limit("cpu", None)
    made.set_up()


def test_a_layer_that_comes_too_late_is_refused(network: Make) -> None:
    made = network(stack())
    made.compile()
    with pytest.raises(NetworkError, match="too late"):
        made.add_layer(nn.Dense(2))


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda n, x, y: n.batched_train((x, y)), "expected an iterable of batches"),
        (lambda n, x, y: n.batched_train([{"input": x}]), "has no 'label'"),
        (lambda n, x, y: n.batched_train([(x, y, y)]), "has 3 fields; expected 2: input, label"),
        (lambda n, x, y: n.batched_train([(x, y[:-1])]), "60 rows of 'input', 59 rows of 'label'"),
        (lambda n, x, y: n.batched_train(iter([(x, y)]), epochs=2), "no batches in epoch 2"),
        (lambda n, x, y: n.batched_train([]), "no batches in epoch 1"),
        (lambda n, x, y: n.batched_train("abc"), "expected an iterable"),
        (lambda n, x, y: n.batched_train(), "needs a loader"),
        (lambda n, x, y: n.batched_train([(x, y)], epochs=-1), "expected an int of 0 or more"),
        (lambda n, x, y: n.batched_train([(x, y)], callbacks=[print]), "a callback is"),
        (lambda n, x, y: n.train([(x, y), (x, y)]), "several batches"),
        (lambda n, x, y: n.train([]), "no batches"),
        (lambda n, x, y: n.evaluate([]), "no batches"),
        (lambda n, x, y: n.predict(x, batch_size=0), "batch_size is 0"),
        (lambda n, x, y: n.predict([]), "no rows"),
        (lambda n, x, y: n.predict(np.float32(3)), "got the number .*the rows"),
        (lambda n, x, y: n.predict(np.array(3.0), batch_size=2), "no rows"),
        (lambda n, x, y: n(3.0), "got the number .*the rows"),
        (lambda n, x, y: n.predict([x], batch_size=2), "is for arrays"),
    ],
)
def test_bad_batches_are_refused_and_the_next_run_works(
    network: Make, digits: Any, use: Callable[..., Any], message: str
) -> None:
    x, y = digits[0][:60], digits[1][:60]
    made = network(stack())
    with pytest.raises(NetworkError, match=message):
        use(made, x, y)
    assert made.batched_train([(x, y)])[0]["loss"] > 0


def test_feeds_of_other_dims_name_the_batch(network: Make, digits: Any) -> None:
    made = network(stack())
    with pytest.raises(fluid.errors.FeedError) as exc:
        made.batched_train([(digits[0][:5], digits[1][:5]), (digits[0][:5, :7], digits[1][:5])])
    assert "In batch 1 of epoch 1" in exc.value.__notes__


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "nothing"}, "the loss is 'nothing'; expected one of cross_entropy"),
        ({"metrics": ["nothing"]}, "a metric is 'nothing'"),
        ({"metrics": ["accuracy", "accuracy"]}, "two metrics are called 'accuracy'"),
        ({"seed": 0}, "seed is 0"),
        ({"label_name": "input"}, "both called 'input'"),
    ],
)
def test_bad_strategies_are_refused(network: Make, options: dict[str, Any], message: str) -> None:
    with pytest.raises(NetworkError, match=message):
        network(stack(), **options)


@pytest.mark.parametrize("shape", [None, 64, "64"])
def test_an_input_shape_that_is_no_list_is_refused(shape: Any) -> None:
    with pytest.raises(NetworkError, match="input_shape is"):
        nn.Network(shape, "cpu")


def test_what_was_not_given_is_asked_for(network: Make, digits: Any) -> None:
    x, y = digits[0][:8], digits[1][:8]
    forward = network(stack(), loss=None, optimizer=None)
    assert forward(x).shape == (8, 10)
    for use in (lambda: forward.batched_train([(x, y)]), lambda: forward.evaluate((x, y)), forward.stepwise):
        with pytest.raises(NetworkError, match="needs a loss"):
            use()
    with pytest.raises(NetworkError, match="has no optimizer"):
        network(stack(), optimizer=None).batched_train([(x, y)])
    with pytest.raises(NetworkError, match="the optimizer is 5"):
        network(stack(), optimizer=5).compile()
    with pytest.raises(NetworkError, match="no layers"):
        network([])(x)
    with pytest.raises(fluid.errors.DtypeError, match="operator mean"):
        network(stack(), loss=lambda p, label: layers.argmax(p, axis=1)).compile()


def test_a_closed_network_says_so_and_holds_nothing(network: Make, digits: Any, place: str) -> None:
    made = network(stack(), place=place)
    made.batched_train([(digits[0][:8], digits[1][:8])])
    contexts = [layer.context for layer in made.layers]
    assert fluid.memory.used(place) > 4 * (64 * 32 + 320)
    made.close()
    made.close()
    assert all(context is not None and context.closed for context in contexts)
    assert [layer.context for layer in made.layers] == [None, None]
    with pytest.raises(NetworkError, match="closed"):
        made(digits[0][:8])
    gc.collect()
    assert not made.scope.local_var_names()


def test_progress_writes_plain_lines_where_there_is_no_terminal(network: Make, digits: Any) -> None:
    x, y, file = digits[0][:60], digits[1][:60], io.StringIO()
    network(stack(), metrics="accuracy").batched_train([(x, y)], epochs=2, callbacks=[nn.Progress(file)])
    first, second = file.getvalue().splitlines()
    assert first.startswith("epoch 1/2: loss 2.")
    assert second.startswith("epoch 2/2: loss ")
    assert "accuracy 0." in second
    assert "rows/s" in second


def test_progress_shows_a_bar_on_a_terminal(network: Make, digits: Any) -> None:
    pytest.importorskip("rich")
    x, y, file = digits[0][:60], digits[1][:60], io.StringIO()
    network(stack()).batched_train([(x, y)] * 3, epochs=2, callbacks=[nn.Progress(file, bar=True)])
    assert "epoch 2/2: loss" in file.getvalue()
    assert "\x1b[" in file.getvalue()
