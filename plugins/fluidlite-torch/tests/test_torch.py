"""PyTorch's tensors as a place: the device, training compared with the CPU, and zero-copy exchange."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import fluidlite as fluid  # noqa: E402
from fluidlite.conformance import load_plugin_modules  # noqa: E402
from fluidlite.testing import conformance, device_checks  # noqa: E402

load_plugin_modules(["fluidlite_torch"])
PLACE = "torch:0"

test_operators = conformance(PLACE, operators=["relu", "elementwise_mul", "softmax", "conv2d", "strided_slice"])


@pytest.fixture(autouse=True)
def no_warning() -> Iterator[None]:
    previous = fluid.get_fallback()
    fluid.set_fallback("allow")
    yield
    fluid.set_fallback(previous)


@pytest.mark.parametrize("name", list(device_checks()))
def test_device(name: str) -> None:
    device_checks()[name](fluid.Place.parse(PLACE))


def train(place: Any) -> list[float]:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x, label = fluid.layers.data("x", [1, 8, 8]), fluid.layers.data("label", [1], dtype="int64")
        hidden = fluid.layers.batch_norm(fluid.layers.conv2d(x, 4, 3, padding=1), act="relu")
        prediction = fluid.layers.fc(fluid.layers.dropout(hidden, 0.25), 10, act="softmax")
        loss = fluid.layers.mean(fluid.layers.cross_entropy(prediction, label))
        fluid.optimizer.Adam(0.01).minimize(loss)
    rng = np.random.default_rng(0)
    feed = {"x": rng.standard_normal((16, 1, 8, 8)).astype("float32"), "label": rng.integers(0, 10, (16, 1))}
    executor, scope = fluid.Executor(place), fluid.Scope()
    executor.run(startup, scope=scope)
    losses = [executor.run(main, feed, [loss], scope=scope)[0].item() for _ in range(5)]
    if place == PLACE:
        assert not [row["op"] for row in executor.explain_last().data() if row["how"] == "fallback"]
    return losses


def test_training_is_that_of_the_cpu_with_no_operator_on_the_host() -> None:
    np.testing.assert_allclose(train(PLACE), train("cpu"), rtol=1e-4)


def test_what_pytorch_lacks_runs_on_the_host_with_the_reason() -> None:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        x = fluid.layers.data("x", [6], append_batch_size=False)
        forwards = fluid.layers.strided_slice(x, axes=[0], starts=[0], ends=[6], strides=[2])
        backwards = fluid.layers.strided_slice(x, axes=[0], starts=[5], ends=[0], strides=[-2])
    rows = fluid.explain(program, PLACE).data()
    assert [row["how"] == "fallback" for row in rows] == [False, True]
    assert "PyTorch's tensors have no negative steps" in str(rows[1]["refused"])
    results = fluid.Executor(PLACE).run(program, {"x": np.arange(6, dtype="float32")}, [forwards, backwards])
    np.testing.assert_array_equal(results[0], [0, 2, 4])
    np.testing.assert_array_equal(results[1], [5, 3, 1])


def test_tensors_are_exchanged_without_a_copy() -> None:
    torch_tensor = torch.arange(6, dtype=torch.float32)
    tensor = fluid.from_dlpack(torch_tensor, place=PLACE)
    assert str(tensor.place) == PLACE
    torch_tensor[0] = 9
    np.testing.assert_array_equal(tensor.numpy(), [9, 1, 2, 3, 4, 5])
    shared = torch.from_dlpack(tensor)
    shared[1] = 8
    np.testing.assert_array_equal(tensor.numpy(), [9, 8, 2, 3, 4, 5])
