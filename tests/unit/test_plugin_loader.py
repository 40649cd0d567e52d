"""The guarded loader: staged, kept whole or dropped whole. Installed packages are tested in tests/end_to_end."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import fluidlite as fluid
from fluidlite import plugin_loader
from fluidlite.base.errors import PluginWarning, RegistryError
from fluidlite.plugin import hookimpl
from fluidlite.program.kernel_registry import Kernel, Library, kernels, register_kernel
from fluidlite.program.registry import ops, register_op

sys.path.append(str(Path(__file__).parents[1] / "plugins"))
from fake_device import FakeDevice

from fluidlite.plugin import Inference


class Plugin:
    """Registers what it is given, hook by hook, and notes the order."""

    def __init__(self, **things: list[Any]) -> None:
        self.things = things
        self.order: list[str] = []

    def _register(self, what: str, register: Any) -> None:
        self.order.append(what)
        for thing in self.things.get(what, ()):
            register(thing() if callable(thing) and not isinstance(thing, (Kernel, ModuleType)) else thing)

    @hookimpl
    def register_passes(self, register: Any) -> None:
        self._register("passes", register)

    @hookimpl
    def register_kernels(self, register: Any) -> None:
        self._register("kernels", register)

    @hookimpl
    def register_operators(self, register: Any) -> None:
        self._register("operators", register)

    @hookimpl
    def register_libraries(self, register: Any) -> None:
        self._register("libraries", register)

    @hookimpl
    def register_devices(self, register: Any) -> None:
        self._register("devices", register)


def operator(type: str = "test_loaded") -> Any:
    return register_op(type, Inference(lambda call: {"Out": call.spec("X")}), inputs=("X",), outputs=("Out",))


def kernel(op: str = "test_loaded", *places: str, **options: Any) -> Any:
    return register_kernel(op, *(places or ("cpu",)), **options)(lambda call, context: lambda context, io: None)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    fluid.places()
    yield
    plugin_loader.unload("test plugin")


def load(plugin: Any) -> Any:
    return plugin_loader.load("test plugin", plugin)


def test_hooks_are_called_once_in_order_and_all_is_kept() -> None:
    device = FakeDevice()
    plugin = Plugin(
        devices=[device], libraries=[Library("test_lib", ("cpu",), 3)], operators=[operator],
        kernels=[lambda: kernel(library="test_lib")],
        passes=[lambda: SimpleNamespace(name="test_pass", phase="fuse", do_pass=print)],
    )  # fmt: skip
    record = load(plugin)
    assert record.state == "loaded", record.traceback
    assert plugin.order == ["devices", "libraries", "operators", "kernels", "passes"]
    assert record.brought == {
        "devices": [device.kind], "libraries": ["test_lib"], "operators": ["test_loaded"],
        "kernels": ["test_loaded"], "passes": ["test_pass"], "samples": [], "strategies": [],
    }  # fmt: skip
    assert fluid.Place(device.kind) in fluid.places()
    assert "test_loaded" in ops
    assert [k.library for k in kernels.of("test_loaded")] == ["test_lib"]
    assert record in fluid.plugins()


def test_unloading_takes_all_back() -> None:
    device = FakeDevice()
    load(
        Plugin(
            devices=[device], libraries=[Library("test_lib", ("cpu",), 3)], operators=[operator], kernels=[kernel_later]
        )
    )
    generation = kernels.generation
    plugin_loader.unload("test plugin")
    assert fluid.Place(device.kind) not in fluid.places()
    assert "test_loaded" not in ops
    assert kernels.of("test_loaded") == ()
    assert "test_lib" not in {library.name for library in kernels.libraries()}
    assert kernels.generation > generation
    assert "test plugin" not in {record.name for record in fluid.plugins()}
    plugin_loader.unload("test plugin")  # twice is fine


def kernel_later() -> Any:
    return kernel()


@pytest.mark.parametrize("hook", ["devices", "libraries", "operators", "kernels", "passes"])
def test_a_hook_that_raises_drops_everything(hook: str) -> None:
    device = FakeDevice()

    def fail() -> Any:
        raise LookupError("no firmware")

    things: dict[str, list[Any]] = {
        "devices": [device],
        "libraries": [Library("test_lib", ("cpu",), 3)],
        "operators": [operator],
        "kernels": [kernel_later],
    }
    things[hook] = [*things.get(hook, []), fail]
    with pytest.warns(PluginWarning, match="plugin 'test plugin' was left out: LookupError: no firmware"):
        record = load(Plugin(**things))
    assert (record.state, record.error, record.brought) == ("failed", "LookupError: no firmware", {})
    assert "test_plugin_loader.py" in record.traceback
    assert fluid.Place(device.kind) not in fluid.places()
    assert "test_loaded" not in ops
    assert kernels.of("test_loaded") == ()


def test_a_clash_drops_everything_and_names_both() -> None:
    device = FakeDevice()
    with pytest.warns(PluginWarning):
        record = load(Plugin(devices=[device], operators=[lambda: operator("relu")]))
    assert record.state == "failed"
    assert "operator 'relu' is registered twice" in record.error
    assert record.error.count(".py:") == 2
    assert fluid.Place(device.kind) not in fluid.places()
    with pytest.raises(RegistryError, match="loaded already"):
        load(Plugin())
    plugin_loader.unload("test plugin")
    with pytest.warns(PluginWarning):
        record = load(Plugin(devices=[device, SimpleNamespace(kind="cpu")]))
    assert "device kind 'cpu' is registered twice" in record.error
    assert fluid.Place("cpu") in fluid.places()


@pytest.mark.parametrize(
    ("things", "message"),
    [
        ({"operators": [3]}, "register_operators got 3; expected what register_op returns"),
        ({"kernels": ["relu"]}, "register_kernels got 'relu'; expected what @register_kernel returns"),
        ({"devices": [object()]}, "kind"),
        ({"devices": [SimpleNamespace(kind="Bad Kind")]}, "'Bad Kind' is not a place kind"),
    ],
)
def test_what_is_no_operator_kernel_or_device(things: dict[str, Any], message: str) -> None:
    with pytest.warns(PluginWarning):
        record = load(Plugin(**things))
    assert record.state == "failed"
    assert message in record.error


def test_a_module_is_taken_whole() -> None:
    module = ModuleType("test_family")

    def fill() -> Any:
        module.one = kernel(library="test_a")  # type: ignore[attr-defined]
        module.two = kernel(library="test_b")  # type: ignore[attr-defined]
        module.again = module.one  # type: ignore[attr-defined]
        return module

    record = load(Plugin(operators=[operator], kernels=[fill]))
    assert record.state == "loaded", record.traceback
    assert [k.library for k in kernels.of("test_loaded")] == ["test_a", "test_b"]


def test_what_a_module_imports_from_others_is_not_its_own() -> None:
    mean, theirs = ops.get("mean"), next(iter(kernels.of("conv2d")))
    module = ModuleType("test_module_plugin")
    module.__file__ = __file__
    module.mean, module.theirs = mean, theirs  # type: ignore[attr-defined]
    module.mine = operator("test_beside")  # type: ignore[attr-defined]
    record = load(Plugin(operators=[module], kernels=[module]))
    assert (record.brought["operators"], record.brought["kernels"]) == (["test_beside"], [])
    plugin_loader.unload("test plugin")
    assert ops.get("mean") is mean
    assert theirs in kernels.of("conv2d")
    assert ops.find("test_beside") is None


def test_a_kernel_of_an_unknown_operator_is_noted() -> None:
    record = load(Plugin(kernels=[lambda: kernel("test_nobodys")]))
    assert record.state == "loaded"
    assert len(record.notes) == 1
    assert "the kernel for 'test_nobodys' at " in record.notes[0]
    assert "no such operator is declared" in record.notes[0]


@pytest.mark.parametrize("target", ["no_such_module_here", "json:no_such_attribute", "json:loads.no.way", ""])
def test_a_target_that_is_not_there(target: str) -> None:
    with pytest.warns(PluginWarning, match="was left out"):
        record = load(target)
    assert record.state == "failed"
    assert record.origin == target


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Outcome(BaseException):
    """As test frameworks have them: no Exception."""


def circular() -> Exception:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    return one


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (Unspeakable(), "Unspeakable: (its text raises RuntimeError)"),
        (Outcome("skipped"), "Outcome: skipped"),
        (circular(), "ValueError: other"),
        (SystemExit("bye"), "SystemExit: bye"),
    ],
)
def test_whatever_a_plugin_raises_is_its_own_affair(raised: BaseException, error: str) -> None:
    def hook() -> Any:
        raise raised

    with pytest.warns(PluginWarning, match="was left out"):
        record = load(Plugin(kernels=[hook]))
    assert (record.state, record.error) == ("failed", error)
    assert type(raised).__name__ in record.traceback


def test_decorators_count_at_once_outside_a_load() -> None:
    definition = operator("test_at_once")
    found = kernel("test_at_once")
    try:
        assert "test_at_once" in ops
        assert kernels.of("test_at_once") == (found,)
    finally:
        kernels.remove(found)
        ops.remove(definition)


def test_built_in_plugins_come_first_and_all_loaded() -> None:
    records = fluid.plugins()
    built_in = [record.built_in for record in records]
    assert built_in == sorted(built_in, reverse=True)
    assert {record.state for record in records if record.built_in} == {"loaded"}
    by_name = {record.name: record for record in records}
    assert by_name["devices.cpu"].brought["devices"] == ["cpu"]
    assert by_name["devices.opencl"].brought["devices"] == ["opencl"]
    assert {record.api for record in records if record.built_in} == {plugin_loader.API}


def test_a_kernel_needs_places_and_one_or_two_arguments() -> None:
    with pytest.raises(RegistryError, match="name at least one place kind"):
        register_kernel("relu")
    with pytest.raises(RegistryError, match="takes 3 arguments; give it two"):
        register_kernel("relu", "cpu", library="test_x")(lambda a, b, c: None)


@pytest.mark.parametrize(
    "package", ["fluidlite.operators", *(name for name in plugin_loader.BUILT_IN if ".kernels." in name)]
)
def test_modules_are_found_without_lists(package: str) -> None:
    fluid.plugins()  # they are loaded
    found = [f"{package}.{each.name}" for each in pkgutil.iter_modules(importlib.import_module(package).__path__)]
    assert found and not [name for name in found if name not in sys.modules]
