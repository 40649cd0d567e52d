"""The cache version: who changes what calls depend on makes another, and who only runs does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.base.invalidation import cache_version
from fluidlite.compiler import instrumentation as observe
from fluidlite.platform.context_pool import new_context
from fluidlite.platform.device_registry import devices
from fluidlite.program.kernel_registry import Kernel, Library, kernels
from fluidlite.program.registry import ops
from fluidlite.transformers import DeviceBufferStorage


def invalidates(change: Callable[[], Any]) -> bool:
    before = cache_version.current
    change()
    return cache_version.current is not before


def observer(seen: Any) -> None:
    pass


def test_registries_invalidate() -> None:
    fluid.places()
    library = Library("for_this_test", ("*",), 1, "nothing")
    kernel = Kernel("relu", ("cpu",), lambda call, context: None, library="for_this_test")
    op = ops.get("relu")
    for change in (
        lambda: kernels.add_library(library), lambda: kernels.add(kernel), lambda: kernels.remove(kernel),
        lambda: kernels.remove_library(library), lambda: ops.add(op),
    ):  # fmt: skip
        assert invalidates(change)


def test_policies_invalidate() -> None:
    before = fluid.get_fallback()
    assert invalidates(lambda: fluid.set_fallback("allow"))
    assert invalidates(lambda: fluid.set_fallback(before))
    assert invalidates(lambda: fluid.set_libraries("cpu", ["plain"]))
    assert invalidates(lambda: fluid.set_libraries("cpu", []))


def test_observers_invalidate() -> None:
    assert invalidates(lambda: observe.set_process_observer(observer, True))
    assert invalidates(lambda: observe.set_process_observer(observer, False))
    before = cache_version.current
    with observe.observing(observer):
        assert cache_version.current is not before


def test_scopes_invalidate() -> None:
    scope = fluid.Scope()
    assert invalidates(lambda: scope.var("x"))
    assert not invalidates(lambda: scope.var("x"))
    assert not invalidates(lambda: scope.find_var("y"))
    assert invalidates(lambda: scope.erase(["x"]))


def test_devices_and_contexts_invalidate() -> None:
    context = new_context("cpu")
    assert invalidates(context.close)
    assert not invalidates(context.close)
    unit = devices.unit("cpu")
    assert invalidates(lambda: setattr(unit, "lost", "gone"))
    assert invalidates(lambda: setattr(unit, "lost", None))


def test_storages_invalidate() -> None:
    context = new_context("cpu")
    storage = DeviceBufferStorage(context)
    assert invalidates(lambda: storage.fit(64))
    assert not invalidates(lambda: storage.fit(32))
    assert invalidates(storage.release)
    context.close()


@pytest.mark.parametrize("mode", ["interpreted", "compiled"])
def test_runs_begin_none(mode: str) -> None:
    """Otherwise every call would look at everything."""
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.program_guard(main, startup):
        x = layers.data("x", [3])
        loss = layers.mean(layers.fc(x, 4))
        fluid.optimizer.Adam(0.1).minimize(loss)
    exe = fluid.Executor("cpu", mode=mode)
    exe.run(startup, scope=scope)

    def step() -> None:
        exe.run(main, {"x": np.ones((2, 3), "float32")}, [loss], scope=scope)

    step()
    assert not invalidates(step)
    tensor = scope.find_var("fc_0.w_0") or next(iter(scope._vars.values()))
    assert not invalidates(lambda: tensor.get_tensor().numpy())
    assert not invalidates(lambda: tensor.get_tensor().set(tensor.get_tensor().numpy().copy()))
