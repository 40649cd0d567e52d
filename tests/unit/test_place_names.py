"""Names of places that devices bring: there while the plugin is, clashing with nothing, and missed with advice."""

from __future__ import annotations

import copy
import pickle
import re
from types import SimpleNamespace
from typing import Any

import pytest

import fluidlite as fluid
from fluidlite import core, plugin_loader
from fluidlite.base.errors import PluginWarning
from fluidlite.platform.device_registry import devices, place_name_of
from fluidlite.platform.place import FLUID_PLACES, Place
from fluidlite.plugin import DeviceBase, hookimpl


class Plugin:
    """Brings a device of the kind and the place name that it is given."""

    def __init__(self, kind: str, place_name: Any) -> None:
        self.device = SimpleNamespace(kind=kind, place_name=place_name)

    @hookimpl
    def register_devices(self, register: Any) -> None:
        register(self.device)


def refused(plugin: Plugin) -> str:
    with pytest.warns(PluginWarning):
        record = plugin_loader.load("named", plugin)
    plugin_loader.unload("named")
    assert record.state == "failed"
    return record.error


def test_a_name_is_there_as_long_as_its_plugin() -> None:
    assert not hasattr(fluid, "AcmePlace")
    record = plugin_loader.load("named", Plugin("acme", "AcmePlace"))
    try:
        assert record.state == "loaded"
        assert fluid.AcmePlace() == core.AcmePlace(0) == Place("acme")  # type: ignore[operator]
        place = fluid.AcmePlace(index=3)  # type: ignore[call-arg]
        assert str(place) == "acme:3"
        assert pickle.loads(pickle.dumps(place)) == copy.copy(place) == place
        assert fluid.AcmePlace.__name__ == "AcmePlace"
        assert "Place('acme', index)" in (fluid.AcmePlace.__doc__ or "")
    finally:
        plugin_loader.unload("named")
    assert not hasattr(fluid, "AcmePlace")


@pytest.mark.parametrize("module", [fluid, core])
def test_what_is_not_there_says_what_to_install(module: Any) -> None:
    with pytest.raises(AttributeError, match=rf"(?s)module '{module.__name__}' has no attribute 'ZetaPlace'.*"
                       "pip install fluidlite-zeta.*`fluidlite plugins` shows what was left out"):  # fmt: skip
        module.ZetaPlace  # noqa: B018
    with pytest.raises(AttributeError, match=re.escape(f"module {module.__name__!r} has no attribute 'nothing'") + "$"):
        module.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("kind", "name", "reason"),
    [
        ("acme", "CUDAPlace", "is the name of another place"),
        ("acme", "CPUPlace", "is the name of another place"),
        ("acme", "OpenCLPlace", "is registered twice: by plugin 'devices.opencl' (fluidlite.devices.opencl)"),
        ("acme", "Place", "expected a word such as 'AcmePlace'"),
        ("acme", "Acme", "expected a word such as 'AcmePlace'"),
        ("acme", "Acme-Place", "expected a word such as 'AcmePlace'"),
        ("acme", 7, "place_name of device 'acme' is 7"),
    ],
)
def test_clashes_and_wrong_names_leave_the_plugin_out(kind: str, name: Any, reason: str) -> None:
    assert reason in refused(Plugin(kind, name))
    assert "acme" not in devices.kinds()


def test_every_name_of_a_device_is_an_attribute_that_makes_its_places() -> None:
    """Over all devices that are registered here, installed plugins' too."""
    names = {
        **{name: kind for kind, device in registered() if (name := place_name_of(device))},
        **FLUID_PLACES,
    }
    assert {"CPUPlace", "CUDAPlace", "OpenCLPlace"} <= set(names)
    for name, kind in names.items():
        assert getattr(fluid, name)() == getattr(core, name)() == Place(kind)


def registered() -> list[tuple[str, DeviceBase]]:
    return [(kind, devices._entries[kind].device) for kind in devices.kinds()]
