"""Checkpoints: a resumed training gives the bits of one that never stopped; a killed save loses nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forks import Forks

import fluidlite as fluid
from fluidlite import layers, nn
from fluidlite.errors import NetworkError, SavedModelError

Make = Callable[..., nn.Network]

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adam": lambda: fluid.optimizer.Adam(0.01),
    "momentum": lambda: fluid.optimizer.Momentum(0.05, 0.9, regularization=fluid.regularizer.L2Decay(1e-3)),
    "schedule": lambda: fluid.optimizer.SGD(layers.exponential_decay(0.1, 5, 0.5)),
}


def stack() -> list[nn.Layer]:
    return [nn.Dense(24, "relu"), nn.BatchNorm(), nn.Dropout(0.3), nn.Dense(10)]


class StopAfter(nn.Callback):
    """End the process's training in the middle: raises after so many batches."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def on_batch_end(self, network: nn.Network, logs: Any) -> None:
        if network.state.step == self.batches:
            raise KeyboardInterrupt


def equal(a: nn.Network, b: nn.Network) -> None:
    assert a.history == b.history
    for name, value in a.parameters().items():
        np.testing.assert_array_equal(value, b.parameters()[name])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("stop", [3, 5, 7])
def test_a_resumed_training_gives_the_numbers_of_one_that_never_stopped(
    network: Make, batches: Any, digits: Any, tmp_path: Path, optimizer: str, stop: int
) -> None:
    """Stopped within an epoch (3, 7) and at its end (5); 5 batches are an epoch."""
    x, y = digits[0][:230], digits[1][:230]
    make = OPTIMIZERS[optimizer]
    whole = network(stack(), optimizer=make, seed=11)
    whole.batched_train(batches(x, y, 50), epochs=4)
    first = network(stack(), optimizer=make, seed=11)
    with pytest.raises(KeyboardInterrupt):
        first.batched_train(
            batches(x, y, 50), epochs=4, callbacks=[nn.Checkpoint(tmp_path, 0, every_batches=stop), StopAfter(stop)]
        )
    second = network(stack(), optimizer=make, seed=999)
    second.load(tmp_path)
    assert second.seed == 11
    second.batched_train(batches(x, y, 50), epochs=4, resume=True)
    equal(whole, second)


def test_on_every_place(network: Make, batches: Any, digits: Any, tmp_path: Path, place: str) -> None:
    x, y = digits[0][:120], digits[1][:120]
    whole = network(stack(), place=place)
    whole.batched_train(batches(x, y, 40), epochs=3)
    first = network(stack(), place=place)
    first.batched_train(batches(x, y, 40), epochs=1)
    first.save(tmp_path)
    second = network(stack(), place=place, seed=4)
    second.load(tmp_path)
    loader = batches(x, y, 40)
    loader.epoch = 1
    second.batched_train(loader, epochs=2)
    equal(whole, second)
    other = network(stack(), place="cpu")
    other.load(tmp_path)
    np.testing.assert_allclose(other(x), first(x), rtol=1e-4, atol=1e-5)


def test_in_another_process(digits: Any, tmp_path: Path, forks: Forks) -> None:
    """Nothing that a process drew or numbered for itself is part of the numbers."""
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, json, numpy as np, fluidlite as fluid\n"
        "from fluidlite import nn\n"
        "from sklearn.datasets import load_digits\n"
        "if sys.argv[1] != 'whole': fluid.layers.fc(fluid.layers.data('other', [3]), 2)  # other names and programs\n"
        "x, y = load_digits(return_X_y=True)\n"
        "data = [(np.float32(x[i:i + 50] / 16), y[i:i + 50]) for i in range(0, 200, 50)]\n"
        "net = nn.Network([64], optimizer=fluid.optimizer.Adam(0.01), loss='softmax_cross_entropy', seed=21)\n"
        "for layer in (nn.Dense(16, 'relu'), nn.Dropout(0.5), nn.Dense(10)): net.add_layer(layer)\n"
        "if sys.argv[1] == 'second': net.load(sys.argv[2])\n"
        "class Stop(nn.Callback):\n"
        "    def on_batch_end(self, network, logs):\n"
        "        if network.state.step == 6: network.save(sys.argv[2]); sys.exit()\n"
        "calls = [Stop()] if sys.argv[1] == 'first' else []\n"
        "net.batched_train(data, epochs=3, callbacks=calls, resume=True)\n"
        "print(json.dumps([net.history, float(np.abs(net.parameters()['dense_0.w_0']).sum())]))\n"
    )
    folder = str(tmp_path / "saved")
    found = [forks(script, name, folder) for name in ("whole", "first", "second")]
    assert [done.returncode for done in found] == [0, 0, 0], [done.stderr for done in found]
    assert found[0].stdout == found[2].stdout != ""
    assert found[1].stdout == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills child processes")
def test_a_kill_in_the_middle_of_a_save_leaves_the_old_network_whole(tmp_path: Path, forks: Forks) -> None:
    script = Path(__file__).with_name("kill_checkpoints.py")
    done = forks(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "left the old network whole" in done.stdout


def test_early_stop_goes_on_counting(network: Make, digits: Any, tmp_path: Path) -> None:
    x, y = digits[0][:40], digits[1][:40]

    def calls() -> list[nn.Callback]:
        return [nn.EarlyStop("loss", patience=3), nn.Checkpoint(tmp_path)]

    still = {"optimizer": fluid.optimizer.SGD(0.0)}
    whole = network([*stack()[:1], nn.Dense(10)], **still)
    assert len(whole.batched_train([(x, y)], epochs=10, callbacks=calls())) == 4
    first = network([*stack()[:1], nn.Dense(10)], optimizer=fluid.optimizer.SGD(0.0))
    first.batched_train([(x, y)], epochs=2, callbacks=calls())
    second = network([*stack()[:1], nn.Dense(10)], optimizer=fluid.optimizer.SGD(0.0))
    second.load(tmp_path)
    assert len(second.batched_train([(x, y)], epochs=10, callbacks=calls(), resume=True)) == 2


@pytest.mark.parametrize("every", [0, 3])
def test_a_network_saved_after_its_training_goes_on_with_the_next_epoch(
    network: Make, batches: Any, digits: Any, tmp_path: Path, every: int
) -> None:
    """Not where a checkpoint was saved in the middle of an epoch, and not with the first epoch's order."""
    x, y = digits[0][:230], digits[1][:230]
    whole = network(stack(), seed=11)
    whole.batched_train(batches(x, y, 50), epochs=4)
    first = network(stack(), seed=11)
    callbacks = [nn.Checkpoint(tmp_path / "in", 0, every_batches=every)] if every else []
    first.batched_train(batches(x, y, 50), epochs=2, callbacks=callbacks)
    first.save(tmp_path / "after")
    second = network(stack(), seed=999)
    second.load(tmp_path / "after")
    second.batched_train(batches(x, y, 50), epochs=4, resume=True)
    assert second.state.step == whole.state.step
    equal(whole, second)


def test_slow_weights_begin_at_the_parameters_of_the_layers(network: Make, batches: Any, digits: Any) -> None:
    x, y = digits[0][:100], digits[1][:100]
    found = []
    for alpha in (None, 1.0, 0.0):  # 1: the slow weights are the fast ones; 0: the fast ones go back to the first
        optimizer: Any = fluid.optimizer.SGD(0.1)
        if alpha is not None:
            optimizer = fluid.optimizer.LookaheadOptimizer(optimizer, alpha=alpha, k=2)
        made = network([nn.Dense(10)], optimizer=optimizer, seed=11)
        made.set_up()
        first = made.parameters()
        made.batched_train(batches(x, y, 50), epochs=2)
        found.append((first, made.parameters()))
    for name, value in found[0][1].items():
        np.testing.assert_allclose(found[1][1][name], value, rtol=1e-6)
        np.testing.assert_array_equal(found[2][1][name], found[2][0][name])


class CountBatches(nn.Callback):
    """A callback that has counted more than at the last epoch's end."""

    def __init__(self) -> None:
        self.count = 0

    def on_batch_end(self, network: nn.Network, logs: Any) -> None:
        self.count += 1

    def state(self) -> int:
        return self.count

    def load_state(self, state: int) -> None:
        self.count = state


@pytest.mark.parametrize("stop", [7, 10])
def test_checkpoints_hold_what_callbacks_have_counted(
    network: Make, batches: Any, digits: Any, tmp_path: Path, stop: int
) -> None:
    x, y = digits[0][:230], digits[1][:230]
    first = network(stack(), seed=11)
    every: dict[str, int] = {"every_epochs": 0, "every_batches": stop} if stop % 5 else {}
    calls = [CountBatches(), nn.Checkpoint(tmp_path, **every), StopAfter(stop + 1)]
    if stop % 5 == 0:  # at the end of an epoch it saves last
        calls[:2] = calls[1::-1]
    with pytest.raises(KeyboardInterrupt):
        first.batched_train(batches(x, y, 50), epochs=4, callbacks=calls)
    second, counts = network(stack(), seed=11), CountBatches()
    second.load(tmp_path)
    second.batched_train(batches(x, y, 50), epochs=4, callbacks=[counts], resume=True)
    assert counts.count == 20


def test_a_training_that_early_stop_has_ended_is_over(network: Make, digits: Any, tmp_path: Path) -> None:
    data = [(digits[0][:40], digits[1][:40])]

    def callbacks() -> list[nn.Callback]:
        return [nn.Checkpoint(tmp_path), nn.EarlyStop("loss", patience=3, min_delta=10.0)]

    whole = network(stack())
    whole.batched_train(data, epochs=10, callbacks=callbacks())
    again = network(stack())
    again.load(tmp_path)
    again.batched_train(data, epochs=10, callbacks=callbacks(), resume=True)
    assert len(whole.history) == 4
    equal(whole, again)


def test_early_stop_looks_at_what_there_is(network: Make, digits: Any) -> None:
    data = [(digits[0][:20], digits[1][:20])]
    made = network([nn.Dense(10)], metrics="accuracy")
    with pytest.raises(NetworkError, match="EarlyStop looks at 'validation_loss'; the training has epoch, loss"):
        made.batched_train(data, callbacks=[nn.EarlyStop("validation_loss")])
    with pytest.raises(NetworkError, match="patience is 0"):
        nn.EarlyStop(patience=0)
    rising = nn.EarlyStop("accuracy", patience=1)
    assert rising.highest
    history = made.batched_train(data, epochs=30, callbacks=[rising])
    values = [entry["accuracy"] for entry in history]
    assert values[-1] <= max(values[:-1])
    assert all(b > a for a, b in pairwise(values[:-1]))


def test_a_checkpoint_keeps_the_best(network: Make, digits: Any, tmp_path: Path) -> None:
    x, y = digits[0][:60], digits[1][:60]
    made = network([nn.Dense(10)], optimizer=lambda: fluid.optimizer.SGD(layers.piecewise_decay([3], [0.5, -0.5])))
    history = made.batched_train([(x, y)], epochs=8, callbacks=[nn.Checkpoint(tmp_path, monitor="loss")])
    losses = [entry["loss"] for entry in history]
    best = losses.index(min(losses))
    assert 0 < best < 7
    other = network([nn.Dense(10)])
    with pytest.raises(SavedModelError):
        other.load(tmp_path / "nothing")
    same = network([nn.Dense(10)], optimizer=lambda: fluid.optimizer.SGD(layers.piecewise_decay([3], [0.5, -0.5])))
    same.load(tmp_path)
    assert same.state.epoch == best + 1
    with pytest.raises(NetworkError, match="expected one > 0"):
        nn.Checkpoint(tmp_path, 0, 0)


# What is no checkpoint of it ---------------------------------------------------------------------------------------


@pytest.fixture
def saved(network: Make, digits: Any, tmp_path: Path) -> Path:
    made = network(stack())
    made.batched_train([(digits[0][:20], digits[1][:20])])
    made.save(tmp_path)
    (tmp_path / "__manifest__").unlink()
    return tmp_path


def change(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / "network.json"
    record = json.loads(path.read_text())
    edit(record)
    path.write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda r: r.update(format="x"), "is no saved network"),
        (lambda r: r.update(version=7), "of version 7; this fluidlite reads 1"),
        (lambda r: r.pop("random"), "says nothing of 'random'"),
        (lambda r: r["layers"].pop(), "it has 3 layers; here there are 4"),
        (lambda r: r["layers"][0].update(units=7), "layer 0 is"),
        (lambda r: r.update(layers=3), "layers is int"),
        (lambda r: r["training"].update(step=-1), "step is -1"),
        (lambda r: r["training"].update(sums=["a"]), "sums are no numbers"),
        (lambda r: r.update(training=[]), "it is no mapping"),
        (lambda r: r.update(seed=0), "seed is 0"),
        (lambda r: r.update(seed=2**64), "seed is 18446744073709551616"),
        (lambda r: r.update(random=[[1, 2]]), "malformed"),
        (lambda r: r.update(random=[[0, 1, float("inf")]]), "malformed"),
        (lambda r: r.update(random=[[0, 1, -1]]), "no stream, seed and count"),
        (lambda r: r.update(random=[[0, 1, "8"]]), "expected .stream, seed, count"),
        (lambda r: r["training"].update(sums=[10**400]), "too large"),
    ],
)
def test_a_malformed_state_changes_nothing(
    network: Make, saved: Path, edit: Callable[[dict[str, Any]], Any], message: str
) -> None:
    change(saved, edit)
    made = network(stack(), seed=8)
    before = made.parameters()
    with pytest.raises(SavedModelError, match=message):
        made.load(saved)
    for name, value in made.parameters().items():
        np.testing.assert_array_equal(value, before[name])
    assert made.seed == 8


@pytest.mark.parametrize("name", ["network.json", "network.safetensors"])
def test_truncated_files_are_refused(network: Make, saved: Path, name: str) -> None:
    content = (saved / name).read_bytes()
    (saved / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(SavedModelError):
        network(stack()).load(saved)
    (saved / name).unlink()
    with pytest.raises(SavedModelError):
        network(stack()).load(saved)


def test_a_checkpoint_of_other_dims_or_another_optimizer_is_refused(network: Make, saved: Path) -> None:
    with pytest.raises(SavedModelError):
        network(stack(), optimizer=fluid.optimizer.Momentum(0.1, 0.9)).load(saved)
    with pytest.raises(SavedModelError):
        network([nn.Dense(25, "relu"), *stack()[1:]]).load(saved)


def test_a_loader_that_takes_no_state_is_refused(network: Make, batches: Any, digits: Any, tmp_path: Path) -> None:
    x, y = digits[0][:40], digits[1][:40]
    made = network(stack())
    made.batched_train(batches(x, y, 20), callbacks=[nn.Checkpoint(tmp_path, 0, every_batches=1)])
    made.load(tmp_path)
    with pytest.raises(NetworkError, match="list takes none"):
        made.batched_train([(x, y)], resume=True)


def test_a_state_that_is_no_json_is_refused(network: Make, digits: Any, tmp_path: Path) -> None:
    class Loader(list):  # type: ignore[type-arg]
        def state(self) -> Any:
            return object()

    made = network(stack())
    with pytest.raises(SavedModelError, match="no JSON"):
        made.batched_train(
            Loader([(digits[0][:20], digits[1][:20])]), callbacks=[nn.Checkpoint(tmp_path, 0, every_batches=1)]
        )
    assert not list(tmp_path.iterdir())
