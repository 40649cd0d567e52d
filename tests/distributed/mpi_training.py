"""A process of several, or one alone: learns to tell classes apart, and prints its losses as a line of JSON."""

from __future__ import annotations

import hashlib
import json
import sys

import numpy as np

import fluidlite as fluid
from fluidlite import layers, loaders, nn
from fluidlite.distributed.groups import world


def data() -> tuple[np.ndarray, np.ndarray]:
    """Points around ten others, and around which."""
    rng = np.random.default_rng(1)
    y = rng.integers(10, size=(1800, 1))
    x = rng.uniform(0, 1, (10, 64))[y[:, 0]] + rng.normal(0, 0.3, (1800, 64))
    return np.float32(x), y


def by_network(place: str, folder: str) -> list[float]:
    """A network; 98 rows a batch, which 3 processes do not share equally."""
    x, y = data()
    network = nn.Network(
        [64], place, optimizer=fluid.optimizer.Adam(0.01), loss="softmax_cross_entropy", metrics="accuracy", seed=3,
        fallback="allow", distributed=True,
    )  # fmt: skip
    for layer in (nn.Dense(48, "relu"), nn.Dense(10)):
        network.add_layer(layer)
    batches = loaders.BatchedLoader((x[:980], y[:980]), 98, shuffle=True)
    callbacks = [nn.Checkpoint(folder), nn.EarlyStop("validation_loss", patience=2)] if folder else []
    history = network.batched_train(batches, epochs=4, validation=(x[1500:], y[1500:]), callbacks=callbacks)
    digest = hashlib.sha256(b"".join(value.tobytes() for value in network.parameters().values())).hexdigest()
    digests = world().all_gather(np.frombuffer(digest.encode(), np.uint8))
    assert all(np.array_equal(digests[0], other) for other in digests), "the processes hold other parameters"
    found = [value for entry in history for value in (entry["loss"], entry["accuracy"], entry["validation_loss"])]
    if folder:  # all go on from what the first saved
        other = nn.Network(
            [64], place, optimizer=fluid.optimizer.Adam(0.01), loss="softmax_cross_entropy", metrics="accuracy", seed=8,
            fallback="allow", distributed=True,
        )  # fmt: skip
        for layer in (nn.Dense(48, "relu"), nn.Dense(10)):
            other.add_layer(layer)
        world().barrier()
        other.load(folder)
        epoch = batches.epoch
        mine = network.batched_train(batches, epochs=1)[-1]["loss"]
        batches.epoch = epoch  # the same order once more
        assert other.batched_train(batches, epochs=1)[-1]["loss"] == mine
    return found


def by_program(place: str) -> list[float]:
    """A program by CompiledProgram: the mean of the processes' losses of each step."""
    x, y = data()
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 7
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        image, label = layers.data("x", [64]), layers.data("y", [1], dtype="int64")
        hidden = layers.fc(image, 48, act="tanh")
        loss = layers.mean(layers.softmax_with_cross_entropy(layers.fc(hidden, 10), label))
        clip = fluid.clip.GradientClipByGlobalNorm(1.0)
        fluid.optimizer.Momentum(0.2, 0.9, grad_clip=clip).minimize(loss)
    group, executor = world(), fluid.Executor(place, fallback="allow")
    executor.run(startup)
    program = fluid.CompiledProgram(main).with_data_parallel(loss_name=loss.name)
    rows = slice(402 * group.rank // group.size, 402 * (group.rank + 1) // group.size)
    found = []
    for _ in range(12):
        (value,) = executor.run(program, {"x": x[:402][rows], "y": y[:402][rows]}, [loss])
        found.append(float(group.all_reduce(np.float64(value)).item() / group.size))
    return found


def by_rows(place: str) -> list[float]:
    """A program whose gradients are rows of a table, of which each process meets others."""
    rng = np.random.default_rng(5)
    ids, wanted = rng.integers(0, 40, (96, 3)), rng.standard_normal((96, 4)).astype("float32")
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 7
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        given = layers.data("ids", [3], dtype="int64")
        rows = layers.embedding(layers.unsqueeze(given, [2]), [40, 4], is_sparse=True)
        loss = layers.mean(layers.square_error_cost(layers.reduce_sum(rows, dim=1), layers.data("y", [4])))
        fluid.optimizer.Adagrad(0.3).minimize(loss)
    group, executor = world(), fluid.Executor(place, fallback="allow")
    executor.run(startup)
    program = fluid.CompiledProgram(main).with_data_parallel(loss_name=loss.name)
    mine, found = slice(96 * group.rank // group.size, 96 * (group.rank + 1) // group.size), []
    for _ in range(12):
        (value,) = executor.run(program, {"ids": ids[mine], "y": wanted[mine]}, [loss])
        found.append(float(group.all_reduce(np.float64(value)).item() / group.size))
    return found


if __name__ == "__main__":
    place, folder = sys.argv[1:3]
    result = [by_network(place, folder), by_program(place), by_rows(place)]
    if world().rank == 0:
        print(json.dumps(result), flush=True)
