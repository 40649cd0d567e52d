"""CUDA graphs without a GPU: launches are captured at the second call and started as one; what may not be, is not.

The CUDA plugin runs over a CuPy of host memory. Kernels are C that LLVM compiles; whether one runs or is captured is
up to the stream, as it is with CUDA.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from weakref import ref

import numpy as np
import pytest
from cuda_on_host import HostLanguage, host_cupy, loaded

import fluidlite as fluid
import fluidlite.graph as ng
from fluidlite.devices.cuda import CUDADevice
from fluidlite.devices.cuda.graph import GraphChain
from fluidlite.plugin import hookimpl
from fluidlite.program.kernel_registry import kernels
from fluidlite.transformers import Transformer, make_transformer_factory

KIND = "capturing"


class CapturingDevice(CUDADevice):
    """CUDA's device under a name of its own."""

    kind = KIND

    def __init__(self) -> None:
        super().__init__()
        self._language = HostLanguage()

    def array(self, index: int) -> None:
        return None


class Plugin:
    """Brings the device."""

    @hookimpl
    def register_devices(self, register: Any) -> None:
        register(CapturingDevice())


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A CuPy of host memory, which the device finds when it is probed."""
    fake = host_cupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    return fake


@pytest.fixture
def transformer(cupy: Any, require: Callable[..., None], no_fallback: None) -> Iterator[Transformer]:
    require("llvmlite")
    guard = fluid.program_guard(fluid.Program(), fluid.Program())
    with loaded("capturing", Plugin()), guard, make_transformer_factory(KIND)() as made:
        yield made


def shown(computation: Any) -> list[tuple[tuple[str, ...], str]]:
    return [(piece.steps, piece.how) for piece in computation.executor.pieces]


def unfused(transformer: Transformer) -> None:
    transformer.graph_passes = [p for p in transformer.graph_passes if p.phase != "fuse"]


def test_a_computation_is_one_graph_from_the_second_call_on(cupy: Any, transformer: Transformer) -> None:
    unfused(transformer)
    x, v = ng.placeholder((6,)), ng.variable((6,), 1.0)
    y = ng.tanh(ng.exp(x) - 1)
    step = transformer.computation([y, ng.assign(v, v + y)], x)  # storing is a copy, which is no launch
    total = np.ones(6)
    for call in range(5):
        given = np.linspace(0, call, 6)
        wanted = np.tanh(np.exp(given) - 1)
        total += wanted
        np.testing.assert_allclose(step(given)[0], wanted, rtol=1e-5)
        assert cupy.Graph.started == call
        how = "a CUDA graph from the second run on" if not call else "one CUDA graph"
        copied, piece, stored = step.executor.pieces
        assert copied.how == "unbatched: it copies between places"
        assert str(piece) == f"exp, fill_constant, elementwise_sub, tanh, elementwise_add: 5 launches, {how}"
        assert stored.steps == ("assign",)
    np.testing.assert_allclose(transformer.computation(v)(), total, rtol=1e-5)


def test_each_size_has_its_own(cupy: Any, transformer: Transformer) -> None:
    unfused(transformer)
    x = ng.placeholder((-1,))
    step = transformer.computation(ng.tanh(ng.exp(x)) * 2, x)
    for rows in (3, 4, 3, 4, 3, 4):
        given = np.arange(rows, dtype="float32") / 10
        np.testing.assert_allclose(step(given), np.tanh(np.exp(given)) * 2, rtol=1e-5)
    assert cupy.Graph.started == 4


def test_state_that_moves_is_captured_anew(cupy: Any, transformer: Transformer) -> None:
    """The old graph would write where the old tensor was."""
    unfused(transformer)
    v = ng.variable((4,), 1.0)
    step = transformer.computation([ng.assign(v, ng.exp(v) * 0 + v * 2), v])
    for _ in range(3):
        step()
    other = fluid.Tensor()
    other.set(np.full(4, 10, "float32"), transformer.place)
    transformer.scope.find_var(v.name).get_tensor().share_data_with(other)
    for wanted in (20, 40, 80):
        np.testing.assert_array_equal(step()[1], np.full(4, wanted))
    np.testing.assert_array_equal(other.numpy(), np.full(4, 80))
    assert cupy.Graph.started == 4


def test_what_may_be_another_at_each_call_is_not_captured(cupy: Any, transformer: Transformer) -> None:
    """Random numbers, and what Python computes; they part the graphs."""
    unfused(transformer)
    x = ng.placeholder((5,))
    noise = ng.uniform((5,))
    out = fluid.default_main_program().global_block().create_var("made", [5], "float32")
    fluid.layers.py_func(lambda array: np.asarray(array) + 1, ng.tanh(ng.exp(x)), out)
    results = [ng.tanh(ng.exp(ng.value_of(out))), noise + 0]
    step = transformer.computation(results, x)
    given = np.linspace(0, 1, 5)
    draws = []
    for _ in range(4):
        found, draw = step(given)
        np.testing.assert_allclose(found, np.tanh(np.exp(np.tanh(np.exp(given)) + 1)), rtol=1e-5)
        draws.append(draw)
    assert len({draw.tobytes() for draw in draws}) == 4
    found = shown(step)
    assert (("uniform_random",), "unbatched: its random numbers change at each call") in found
    assert (("py_func",), "unbatched: it runs a sub-block or calls the host") in found
    assert [steps[:2] for steps, how in found if how == "one CUDA graph"] == [("exp", "tanh"), ("exp", "tanh")]
    assert cupy.Graph.started == 3 * 2


def test_a_kernel_that_does_more_than_launch_is_not_captured(cupy: Any, transformer: Transformer) -> None:
    """A library's: CuPy's own calls may take memory, or copy from the host."""
    seen = []

    def wave(call: Any, context: Any) -> Any:
        def run(context: Any, io: Any) -> None:
            assert context.raw.stream.captured is None
            seen.append(1)
            context.wait()
            context.copy_within(io.span("Out"), io.span("X"))

        return run

    kernel = fluid.register_kernel("tanh", KIND, library="plain")(wave)
    try:
        unfused(transformer)
        x = ng.placeholder((5,))
        step = transformer.computation(ng.exp(ng.sqrt(ng.tanh(ng.exp(ng.exp(x))))), x)
        given = np.linspace(0, 1, 5)
        for _ in range(4):
            np.testing.assert_allclose(step(given), np.exp(np.sqrt(np.exp(np.exp(given)))), rtol=1e-5)
    finally:
        kernels.remove(kernel)
    assert len(seen) >= 4
    assert shown(step)[1:] == [
        (("exp", "exp"), "one CUDA graph"),
        (("tanh",), "unbatched: its kernel, plain, may do more than launch"),
        (("sqrt", "exp"), "one CUDA graph"),
    ]
    assert cupy.Graph.started == 2 * 3


def test_where_cuda_refuses_launches_go_on_one_by_one(cupy: Any, transformer: Transformer) -> None:
    cupy.Stream.refusal = cupy.cuda.runtime.CUDARuntimeError(901)
    unfused(transformer)
    x, v = ng.placeholder((5,)), ng.variable((5,), 0.0)
    step = transformer.computation([ng.tanh(ng.exp(x)), ng.assign(v, v + 1)], x)
    for _ in range(4):
        np.testing.assert_allclose(step(np.ones(5))[0], np.full(5, np.tanh(np.e)), rtol=1e-6)
    _, piece, _ = step.executor.pieces
    assert piece.how == "one by one, for CUDA made no graph: CUDARuntimeError: cudaError 901"
    np.testing.assert_array_equal(transformer.computation(v)(), np.full(5, 4))
    assert cupy.Graph.started == 0


def test_a_late_error_is_seen_when_a_graph_runs(cupy: Any, transformer: Transformer) -> None:
    """What writes state sees the status word inside the graph."""
    unfused(transformer)
    table, count, i = ng.variable((3, 2), 1.0), ng.variable((2, 2), 0.0), ng.placeholder((2,), "int64")
    rows = ng.lookup_table(table, i)
    step = transformer.computation([rows, ng.assign(count, count + rows)], i)
    for index in (0, 1, 2, 7, 1, -1, 0):
        if 0 <= index < 3:
            np.testing.assert_array_equal(step([index, 0])[0], np.ones((2, 2)))
        else:
            with pytest.raises(fluid.errors.OutOfRangeError, match=f"index {index} is out of range"):
                step([0, index])
    _, piece, *_ = step.executor.pieces
    assert piece.steps == ("lookup_table_v2", "elementwise_add")
    assert piece.how == "one CUDA graph"
    np.testing.assert_array_equal(transformer.computation(count)(), np.full((2, 2), 5))


def test_training_in_graphs(cupy: Any, transformer: Transformer) -> None:
    """A network, as on the CPU."""
    x = fluid.layers.data("x", [8])
    hidden = fluid.layers.fc(x, 16, act="tanh", param_attr=fluid.initializer.Constant(0.1))
    loss = fluid.layers.mean(
        fluid.layers.square(fluid.layers.fc(hidden, 1, param_attr=fluid.initializer.Constant(0.2)))
    )
    updates, _ = fluid.optimizer.Adam(0.01).minimize(loss)
    step = transformer.computation([loss, *updates], x)
    given = np.random.default_rng(0).random((32, 8), dtype="float32")
    found = [step(given)[0].item() for _ in range(6)]
    with make_transformer_factory("cpu")() as cpu:
        there = cpu.computation([loss, *updates], x)
        np.testing.assert_allclose(found, [there(given)[0].item() for _ in range(6)], rtol=1e-4)
    assert cupy.Graph.started >= 5
    _, piece = step.executor.pieces
    assert piece.how == "one CUDA graph"


def test_executors_capture_too(cupy: Any, transformer: Transformer) -> None:
    x = fluid.layers.data("x", [8])
    loss = fluid.layers.mean(fluid.layers.square(fluid.layers.fc(x, 4, act="tanh")))
    fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    exe, scope = fluid.Executor(transformer.place, mode="compiled"), fluid.Scope()
    exe.run(fluid.default_startup_program(), scope=scope)
    given = np.random.default_rng(0).random((32, 8), dtype="float32")
    losses = [exe.run(feed={"x": given}, fetch_list=[loss], scope=scope)[0].item() for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
    assert cupy.Graph.started == 4


def test_a_closed_transformer_lets_go_of_its_graphs(cupy: Any, transformer: Transformer) -> None:
    x = ng.placeholder((6,))
    unfused(transformer)
    step = transformer.computation(ng.tanh(ng.exp(x)), x)
    for _ in range(3):
        step(np.zeros(6))
    graph = ref(step.executor.executables.last.actions[-1].chain)
    assert graph() is not None
    transformer.close()
    assert graph() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # the child computes nothing
def test_a_forked_child_frees_no_graph(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver has no state in the child: to free a graph there is an error, which CuPy prints."""
    monkeypatch.setattr(cupy.Graph, "__del__", lambda graph: os.write(writing, b"freed"), raising=False)
    context = SimpleNamespace(stream=None, place=SimpleNamespace(index=0), cupy=cupy)
    with cupy.cuda.Device(0):
        context.stream = cupy.cuda.Stream(non_blocking=True)
    chain = GraphChain(context, [("kernel", 3, (), None)] * 2, lambda *given: None)
    for _ in range(2):
        chain.run()
    assert chain.how == "one CUDA graph"
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        del chain
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    del chain
    gc.collect()
    os.close(writing)
    with os.fdopen(reading, "rb") as said:
        assert said.read() == b"freed", "once, by the parent"


def test_one_launch_needs_no_graph(cupy: Any) -> None:
    calls: list[Any] = []
    chain = GraphChain(SimpleNamespace(), [("kernel", 3, (), None)], lambda *given: calls.append(given[1:]))
    for _ in range(3):
        chain.run()
    assert calls == [("kernel", 3, (), None)] * 3
    assert chain.how == "by itself"


@pytest.mark.cuda
def test_on_a_gpu() -> None:
    """The same with CUDA itself: equal to what the launches give one by one, and to the CPU."""
    with fluid.program_guard(fluid.Program(), fluid.Program()), make_transformer_factory("gpu")() as made:
        unfused(made)
        x, v = ng.placeholder((1000,)), ng.variable((1000,), 1.0)
        y = ng.tanh(ng.exp(x) - 1)
        step = made.computation([y, ng.assign(v, v + y)], x)
        total = np.ones(1000)
        first = None
        for call in range(5):
            given = np.linspace(-1, 1, 1000) * (call or 1)
            wanted = np.tanh(np.exp(given) - 1)
            total += wanted
            found = step(given)[0]
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
            if call == 1:
                np.testing.assert_array_equal(found, first)
                assert any(piece.how == "one CUDA graph" for piece in step.executor.pieces), step.executor.pieces
            first = found if first is None else first
        np.testing.assert_allclose(made.computation(v)(), total, rtol=1e-4)
