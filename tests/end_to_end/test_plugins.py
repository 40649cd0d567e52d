"""Plugins as installed packages: real distributions on the path of a fresh process."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import fluidlite

ROOT = Path(fluidlite.__file__).parents[1]
PLUGINS = Path(__file__).parents[1] / "plugins"
V1 = "fluidlite.v1"
BROKEN = {
    "absent": (V1, "broken.raises_on_import"),
    "hooked": (V1, "broken.raises_in_hook"),
    "newer": ("fluidlite.v2", "broken.other_api"),
    "twice": (V1, "broken.duplicate_kernel"),
    "lies": (V1, "broken.lies"),
}


def install(site: Path, name: str, points: Mapping[str, tuple[str, str]], version: str = "1.2.3") -> None:
    """Write what an installer leaves of a distribution's metadata."""
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    groups: dict[str, list[str]] = {}
    for point, (group, target) in points.items():
        groups.setdefault(group, []).append(f"{point} = {target}")
    lines = [line for group, entries in groups.items() for line in (f"[{group}]", *entries, "")]
    (folder / "entry_points.txt").write_text("\n".join(lines))


def without_fpga(folder: Path) -> Path:
    """A folder with all that is installed here but the fpga's package, for an interpreter without site-packages."""
    folder.mkdir()
    for site in map(Path, sys.path):
        if site.name not in ("site-packages", "dist-packages") or not site.is_dir():
            continue
        for entry in site.iterdir():
            mine = entry.name.startswith(("fluidlite", "fpga_simulator", "_editable_impl"))
            if not mine and not (folder / entry.name).exists():
                (folder / entry.name).symlink_to(entry)
    return folder


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., Any]:
    """``python(code, *paths)``: the last line that the code prints in a fresh process without the fpga."""
    site = without_fpga(tmp_path / "others")

    def run(code: str, *paths: Path) -> Any:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment["PYTHONPATH"] = os.pathsep.join(map(str, [*paths, ROOT, site]))
        command = [sys.executable, "-S", "-c", textwrap.dedent(code)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


# --- importing fluidlite ---------------------------------------------------------------------------------------------


def test_import_reads_no_entry_point_and_imports_no_driver(tmp_path: Path, python: Callable[..., Any]) -> None:
    site = tmp_path / "site"
    install(site, "broken-plugins", BROKEN)
    found = python(
        """
        import importlib.metadata, json, sys
        def refuse(*args, **kwargs):
            raise AssertionError("entry points were read")
        importlib.metadata.entry_points = importlib.metadata.distributions = refuse
        import fluidlite
        print(json.dumps(sorted({name.split(".")[0] for name in sys.modules})))
        """,
        site, PLUGINS,
    )  # fmt: skip
    optional = {
        "pyopencl",
        "cupy",
        "torch",
        "rich",
        "typer",
        "click",
        "safetensors",
        "sklearn",
        "scipy",
        "pytest",
        "llvmlite",
    }
    assert optional & set(found) == set()
    assert {"broken", "fluidlite_fpga"} & set(found) == set()
    assert {"fluidlite", "numpy"} <= set(found)


# --- broken ones -----------------------------------------------------------------------------------------------------

REPORT = """
import json, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import fluidlite as fluid
    fields = ("state", "error", "traceback", "brought", "api", "version", "built_in")
    records = {p.name: {field: getattr(p, field) for field in fields} for p in fluid.plugins()}
def attempt(function):
    try:
        return str(function())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
"""


@pytest.fixture
def broken(tmp_path: Path, python: Callable[..., Any]) -> Callable[[str], Any]:
    site = tmp_path / "site"
    install(site, "broken-plugins", BROKEN)
    return lambda code: python(REPORT + textwrap.dedent(code), site, PLUGINS)


def test_each_broken_plugin_is_reported_with_its_root_cause(broken: Callable[[str], Any]) -> None:
    found = broken(
        'print(json.dumps([records, [str(w.message) for w in caught if w.category.__name__ == "PluginWarning"]]))'
    )
    records, warned = found
    assert {name: record["state"] for name, record in records.items() if not record["built_in"]} == {
        "absent": "failed", "hooked": "failed", "newer": "mismatch", "twice": "failed", "lies": "loaded",
    }  # fmt: skip
    assert all(record["state"] == "loaded" for record in records.values() if record["built_in"])
    assert {record["version"] for record in records.values() if not record["built_in"]} == {"1.2.3"}
    assert records["absent"]["error"] == "ModuleNotFoundError: No module named 'acme_driver_that_nobody_has'"
    assert "raises_on_import.py" in records["absent"]["traceback"]
    assert records["hooked"]["error"] == "KeyError: 'calibration'"
    assert "the board is not calibrated" in records["hooked"]["traceback"]
    assert "raises_in_hook.py" in records["hooked"]["traceback"]
    assert records["newer"]["api"] == 2
    assert "API 2" in records["newer"]["error"]
    assert "not imported" in records["newer"]["error"]
    twice = records["twice"]["error"]
    assert "softmax" in twice
    assert "registered twice" in twice
    assert "duplicate_kernel.py" in twice  # both origins
    assert twice.count(".py:") == 2
    assert records["lies"]["brought"]["devices"] == ["short", "three"]
    for name in ("absent", "hooked", "newer", "twice"):
        assert records[name]["brought"] == {}
        assert any(f"plugin {name!r} was left out" in message for message in warned)
    assert len(warned) == 4


def test_a_dropped_plugin_leaves_nothing_behind(broken: Callable[[str], Any]) -> None:
    found = broken(
        """
        from fluidlite.framework.kernels import kernels
        print(json.dumps({
            "half": attempt(lambda: fluid.Place("half") and fluid.memory.used("half:0")),
            "twice": attempt(lambda: fluid.memory.used("twice:0")),
            "operator": attempt(lambda: fluid.op_proto("half_made")),
            "kernels": [k.origin for k in kernels if k.op in ("relu", "softmax") and "broken" in k.origin],
        }))
        """
    )
    assert found["half"].startswith("PlaceError: no device serves place 'half:0'")
    assert found["twice"].startswith("PlaceError: no device serves place 'twice:0'")
    assert found["operator"].startswith("OperatorNotFoundError: no operator is called 'half_made'")
    assert found["kernels"] == []


def test_devices_that_lie_are_found_out(broken: Callable[[str], Any]) -> None:
    found = broken(
        """
        print(json.dumps({
            "short": attempt(lambda: fluid.memory.alloc("short", 10)),
            "again": attempt(lambda: fluid.Executor("short:0")),
            "places": [str(p) for p in fluid.places()],
            "first": attempt(lambda: fluid.Tensor().set([1.0, 2.0], "three:0").numpy().tolist()),
            "second": attempt(lambda: fluid.Executor("three:1")),
        }))
        """
    )
    assert found["short"].startswith("DeviceError: short:0 is not usable: copy_out brought back other bytes")
    assert found["again"] == found["short"]
    assert [place for place in found["places"] if place.startswith("three")] == ["three:0"]
    assert found["first"] == "[1.0, 2.0]"
    assert found["second"].startswith("PlaceError: place three:1 does not exist: kind 'three' has 1 device")
    assert "probe() said 3, but device 1 raised IndexError" in found["second"]


def test_everything_else_works_beside_them(broken: Callable[[str], Any]) -> None:
    found = broken(
        """
        import numpy as np
        x = fluid.layers.data("x", [3])
        y = fluid.layers.softmax(fluid.layers.fc(x, 4, act="relu"))
        exe = fluid.Executor("cpu")
        exe.run(fluid.default_startup_program())
        (out,) = exe.run(feed={"x": np.ones((2, 3), "float32")}, fetch_list=[y])
        print(json.dumps(out.sum(axis=1).tolist()))
        """
    )
    assert found == pytest.approx([1.0, 1.0])


def test_the_command_line_shows_what_was_left_out(tmp_path: Path, python: Callable[..., Any]) -> None:
    pytest.importorskip("typer")
    pytest.importorskip("rich")
    site = tmp_path / "site"
    install(site, "broken-plugins", BROKEN)
    text = python(
        """
        import contextlib, io, json, sys, warnings
        warnings.simplefilter("ignore")
        from fluidlite.tools.cli import main
        sys.argv = ["fluidlite", "plugins"]
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            main()
        print(json.dumps(out.getvalue()))
        """,
        site, PLUGINS,
    )  # fmt: skip
    assert "absent" in text
    assert "acme_driver_that_nobody_has" in text.replace("\n", "")
    assert "mismatch" in text


# --- installing and removing -----------------------------------------------------------------------------------------

FPGA = """
import json
import fluidlite as fluid
def attempt(function):
    try:
        return function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
print(json.dumps({
    "places": [str(place) for place in fluid.places()],
    "plugins": [p.name for p in fluid.plugins() if not p.built_in],
    "values": attempt(lambda: fluid.Tensor().set([1, 2, 3], "fpga:0").numpy().tolist()),
}))
"""


def test_installing_the_package_is_all_that_makes_the_fpga_appear(
    tmp_path: Path, python: Callable[..., Any], require: Callable[..., None]
) -> None:
    require("fpga")
    import fluidlite_fpga
    import fpga_simulator

    before = python(FPGA)
    assert [place for place in before["places"] if place.startswith("fpga")] == []
    assert before["plugins"] == []
    assert before["values"].startswith("PlaceError: no device serves place 'fpga:0'")
    site = tmp_path / "installed"
    points = importlib.metadata.distribution("fluidlite-fpga").entry_points
    install(site, "fluidlite-fpga", {point.name: (point.group, point.value) for point in points})
    for package in (fluidlite_fpga, fpga_simulator):
        folder = Path(str(package.__file__)).parent
        (site / folder.name).symlink_to(folder)
    after = python(FPGA, site)
    assert "fpga:0" in after["places"]
    assert after["plugins"] == ["fpga"]
    assert after["values"] == [1, 2, 3]
    assert [place for place in after["places"] if not place.startswith("fpga")] == before["places"]


def test_a_plugin_of_one_module_adds_a_kernel(tmp_path: Path, python: Callable[..., Any]) -> None:
    site = tmp_path / "site"
    install(site, "fast-relu", {"fastrelu": (V1, "fast_relu:plugin")})
    (site / "fast_relu.py").write_text(
        textwrap.dedent(
            """
            from types import SimpleNamespace
            from fluidlite.plugin import Library, hookimpl, register_kernel
            @register_kernel("relu", "cpu", library="fast")
            def relu(call, context):
                def run(context, io):
                    context.xp.maximum(io.array("X"), 0, out=io.array("Out"))
                return run
            class Plugin:
                @hookimpl
                def register_libraries(self, register):
                    register(Library("fast", ("cpu",), 20))
                @hookimpl
                def register_kernels(self, register):
                    register(relu)
            plugin = Plugin()
            """
        )
    )
    found = python(
        """
        import json
        import numpy as np
        import fluidlite as fluid
        x = fluid.layers.data("x", [3])
        y = fluid.layers.relu(x)
        exe = fluid.Executor("cpu")
        (out,) = exe.run(feed={"x": np.asarray([[-1, 0, 2]], "float32")}, fetch_list=[y])
        rows = [(row["how"], row["library"]) for row in exe.explain_last().data()]
        print(json.dumps([out.tolist(), rows, [p.brought for p in fluid.plugins() if not p.built_in]]))
        """,
        site,
    )
    assert found[0] == [[0, 0, 2]]
    assert found[1] == [["native", "fast"]]
    assert found[2][0]["kernels"] == ["relu"]
    assert found[2][0]["libraries"] == ["fast"]
