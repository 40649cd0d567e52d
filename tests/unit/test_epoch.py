"""The epoch: who changes what calls depend on begins another, and who only runs does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.base.invalidation import epoch
from fluidlite.compiler import instrumentation as observe
from fluidlite.platform.context_pool import new_context
from fluidlite.platform.device_registry import devices
from fluidlite.program.kernel_registry import Kernel, Library, kernels
from fluidlite.program.registry import ops
from fluidlite.transformers import DeviceBufferStorage


def begins(change: Callable[[], Any]) -> bool:
    before = epoch.now
    change()
    return epoch.now is not before


def observer(seen: Any) -> None:
    pass


def test_registries_begin_another() -> None:
    fluid.places()
    library = Library("for_this_test", ("*",), 1, "nothing")
    kernel = Kernel("relu", ("cpu",), lambda call, context: None, library="for_this_test")
    op = ops.get("relu")
    for change in (
        lambda: kernels.add_library(library), lambda: kernels.add(kernel), lambda: kernels.remove(kernel),
        lambda: kernels.remove_library(library), lambda: ops.add(op),
    ):  # fmt: skip
        assert begins(change)


def test_policies_begin_another() -> None:
    before = fluid.get_fallback()
    assert begins(lambda: fluid.set_fallback("allow"))
    assert begins(lambda: fluid.set_fallback(before))
    assert begins(lambda: fluid.set_libraries("cpu", ["plain"]))
    assert begins(lambda: fluid.set_libraries("cpu", []))


def test_observers_begin_another() -> None:
    assert begins(lambda: observe.everywhere(observer, True))
    assert begins(lambda: observe.everywhere(observer, False))
    before = epoch.now
    with observe.observing(observer):
        assert epoch.now is not before


def test_scopes_begin_another() -> None:
    scope = fluid.Scope()
    assert begins(lambda: scope.var("x"))
    assert not begins(lambda: scope.var("x"))
    assert not begins(lambda: scope.find_var("y"))
    assert begins(lambda: scope.erase(["x"]))


def test_devices_and_contexts_begin_another() -> None:
    context = new_context("cpu")
    assert begins(context.close)
    assert not begins(context.close)
    unit = devices.unit("cpu")
    assert begins(lambda: setattr(unit, "lost", "gone"))
    assert begins(lambda: setattr(unit, "lost", None))


def test_storages_begin_another() -> None:
    context = new_context("cpu")
    storage = DeviceBufferStorage(context)
    assert begins(lambda: storage.fit(64))
    assert not begins(lambda: storage.fit(32))
    assert begins(storage.release)
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
    assert not begins(step)
    tensor = scope.find_var("fc_0.w_0") or next(iter(scope._vars.values()))
    assert not begins(lambda: tensor.get_tensor().numpy())
    assert not begins(lambda: tensor.get_tensor().set(tensor.get_tensor().numpy().copy()))
