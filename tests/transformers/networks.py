"""Programs that tests of binding and of memory plans run: random ones, and a small network."""

from __future__ import annotations

from typing import Any

import numpy as np

import fluidlite as fluid
from fluidlite import layers

Net = tuple[fluid.Program, fluid.Program, dict[str, Any], list[Any]]


def random_program(seed: int) -> Net:
    """Operators drawn at random over a few shapes and dtypes, half of the programs with training behind them."""
    rng = np.random.default_rng(seed)
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 7
    rows, columns = int(rng.integers(1, 9)), int(rng.integers(1, 40))
    train = bool(rng.integers(2))
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = layers.data("x", [rows, columns], append_batch_size=False)
        values = [x]

        def pick() -> Any:
            return values[int(rng.integers(len(values)))]

        def matrix() -> Any:
            return layers.reshape(pick(), [rows, columns])

        made = {
            "add": lambda: layers.elementwise_add(matrix(), matrix()),
            "mul": lambda: layers.elementwise_mul(matrix(), matrix()),
            "relu": lambda: layers.relu(pick()),
            "tanh": lambda: layers.tanh(pick()),
            "scale": lambda: layers.scale(pick(), float(rng.normal()), 0.1),
            "turned": lambda: layers.reshape(layers.transpose(matrix(), [1, 0]), [rows, columns]),
            "view": lambda: layers.reshape(pick(), [columns, rows]),
            "flat": lambda: layers.reshape(pick(), [-1]),
            "softmax": lambda: layers.softmax(matrix()),
            "fc": lambda: layers.reshape(layers.fc(matrix(), columns, act="tanh"), [columns, rows]),
            "mean": lambda: layers.elementwise_add(matrix(), layers.mean(pick())),
            "cast": lambda: layers.cast(layers.cast(layers.scale(pick(), 9.0), "int16"), "float32"),
            "half": lambda: layers.cast(layers.cast(pick(), "float16"), "float32"),
            "split": lambda: layers.concat(layers.split(matrix(), [columns - columns // 2, columns // 2], 1), 1)
            if columns > 1 else matrix(),
            "dropout": lambda: layers.dropout(pick(), 0.3),
        }  # fmt: skip
        for _ in range(int(rng.integers(5, 25))):
            values.append(made[str(rng.choice(list(made)))]())
        loss = layers.mean(layers.square(matrix()))
        for value in values[-3:]:
            loss = layers.elementwise_add(loss, layers.mean(value))
        if train:
            loss = layers.elementwise_add(loss, layers.mean(layers.fc(x, 3)))
        wanted = [loss, pick(), values[-1]]
        if train:
            fluid.optimizer.Momentum(0.01, 0.9).minimize(loss)
    return main, startup, {"x": rng.normal(size=(rows, columns)).astype("float32")}, wanted


def network(depth: int = 4, width: int = 64, batch: int = 16) -> Net:
    """Layers of equal width, trained with momentum."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 5
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = hidden = layers.data("x", [width])
        for _ in range(depth):
            hidden = layers.fc(hidden, width, act="relu")
        loss = layers.mean(layers.square_error_cost(hidden, x))
        fluid.optimizer.Momentum(0.01, 0.9).minimize(loss)
    return main, startup, {"x": fed(batch, width)}, [loss]


def lenet(batch: int = 4) -> Net:
    """Two convolutions, two layers, trained."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 5
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        image, label = layers.data("image", [1, 28, 28]), layers.data("label", [1], dtype="int64")
        hidden = layers.pool2d(layers.conv2d(image, 6, 5, act="relu"), 2, pool_stride=2)
        hidden = layers.pool2d(layers.conv2d(hidden, 12, 5, act="relu"), 2, pool_stride=2)
        logits = layers.fc(layers.fc(hidden, 40, act="relu"), 10)
        loss = layers.mean(layers.softmax_with_cross_entropy(logits, label))
        fluid.optimizer.Momentum(0.01, 0.9).minimize(loss)
    feed = {"image": fed(batch, 784).reshape(batch, 1, 28, 28), "label": np.arange(batch)[:, None] % 10}
    return main, startup, feed, [loss]


def fed(batch: int, width: int) -> np.ndarray[Any, Any]:
    """Numbers to feed."""
    return np.random.default_rng(1).normal(size=(batch, width)).astype("float32")


def runs(net: Net, place: str, mode: str, times: int = 3) -> tuple[list[list[Any]], fluid.Executor, fluid.Scope]:
    """What a program gives, run several times from its startup on."""
    main, startup, feed, wanted = net
    exe, scope = fluid.Executor(place, mode=mode), fluid.Scope()
    exe.run(startup, scope=scope)
    return [exe.run(main, feed, wanted, scope=scope) for _ in range(times)], exe, scope
