"""Plugins as installed packages: real distributions on the path of a fresh process."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
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
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, cwd=tmp_path)
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
    assert "argsort" in twice
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
        from fluidlite.program.kernel_registry import kernels
        print(json.dumps({
            "half": attempt(lambda: fluid.Place("half") and fluid.memory.used("half:0")),
            "twice": attempt(lambda: fluid.memory.used("twice:0")),
            "operator": attempt(lambda: fluid.op_proto("half_made")),
            "kernels": [k.origin for k in kernels if k.op in ("relu", "argsort") and "broken" in k.origin],
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
        from fluidlite.cli.main import main
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


# --- imported before or after fluidlite loads plugins ----------------------------------------------------------------

ONE_OF_EACH = """
from fluidlite.plugin import (
    AllocatorBase, ContextBase, DeviceBase, GraphPass, Inference, Library, Registration, hookimpl, register_kernel,
    register_op,
)
@register_kernel("relu", "cpu", library="early")
def relu(call, context):
    return lambda context, io: context.xp.maximum(io.array("X"), 0, out=io.array("Out"))
early = register_op("early_made", Inference(lambda call: {"Out": call.spec("X")}), inputs=("X",), outputs=("Out",))
@register_kernel("tanh", "cpu", library="early")
def left(call, context):
    raise AssertionError("no hook hands it over")
class Bytes(AllocatorBase):
    def allocate(self, nbytes):
        return bytearray(nbytes)
    def release(self, handle):
        pass
class Copies(ContextBase):
    def copy_in(self, dst, src):
        dst.handle[dst.offset : dst.offset + dst.nbytes] = src
    def copy_out(self, dst, src):
        dst[:] = src.handle[src.offset : src.offset + src.nbytes]
    def wait(self):
        pass
class Board(DeviceBase):
    kind = "early"
    def probe(self):
        return 1
    def allocator(self, index):
        return Bytes()
    def context(self, index, queue):
        return Copies(self.place(index))
class Nothing(GraphPass):
    def do_pass(self, graph):
        pass
"""
HOOKS = """
from fluidlite.plugin import Library, hookimpl
@hookimpl
def register_devices(register):
    register(Board())
@hookimpl
def register_libraries(register):
    register(Library("early", ("cpu",), 20))
@hookimpl
def register_kernels(register):
    register(relu)
@hookimpl
def register_passes(register):
    register(Nothing())
"""
FORMS = {
    "one module": ("early_plugin", {"early_plugin.py": ONE_OF_EACH + HOOKS}),
    "a package": (
        "early_plugin.hooks",
        {
            "early_plugin/__init__.py": "",
            "early_plugin/parts.py": ONE_OF_EACH,
            "early_plugin/hooks.py": "from early_plugin.parts import Board, Nothing, relu\n" + HOOKS,
        },
    ),
    "a package of a namespace": (
        "acme.early_plugin.hooks",
        {
            "acme/early_plugin/__init__.py": "",
            "acme/early_plugin/parts.py": ONE_OF_EACH,
            "acme/early_plugin/hooks.py": "from acme.early_plugin.parts import Board, Nothing, relu\n" + HOOKS,
        },
    ),
}


def write(site: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)


STATE = """
import importlib, json, sys, warnings
import fluidlite as fluid
from fluidlite.program.kernel_registry import kernels
from fluidlite.program.pass_registry import passes
def state():
    records = [(r.name, r.state, r.brought, r.error, r.notes) for r in fluid.plugins() if not r.built_in]
    return {
        "records": records,
        "kernels": sorted((k.op, k.library, k.plugin) for k in kernels if "early" in k.library),
        "library": [library.rank for library in kernels.libraries() if library.name == "early"],
        "places": [str(place) for place in fluid.places()],
        "operator": attempt(lambda: fluid.op_proto("early_made") is not None),
        "passes": [plugin for item, plugin in passes.all() if type(item).__name__ == "Nothing"],
    }
def attempt(function):
    try:
        return str(function())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
"""


@pytest.mark.parametrize("form", FORMS)
def test_a_plugin_that_is_imported_before_it_is_loaded_is_whole(
    tmp_path: Path, python: Callable[..., Any], form: str
) -> None:
    target, files = FORMS[form]
    site = tmp_path / "site"
    install(site, "early", {"early": (V1, target)})
    write(site, files)
    package = target.rpartition(".")[0]
    alone = python(STATE + "print(json.dumps(state()))", site)
    for first in [target] if form == "one module" else [f"{package}.parts", f"{package}.hooks"]:
        before = python(STATE + f"importlib.import_module({first!r}); print(json.dumps(state()))", site)
        after = python(STATE + f"state(); importlib.import_module({first!r}); print(json.dumps(state()))", site)
        assert before == after == alone, first
    ((name, state, brought, error, notes),) = before["records"]
    assert (name, state, error) == ("early", "loaded", "")
    assert brought == {
        "devices": ["early"], "libraries": ["early"], "operators": ["early_made"], "kernels": ["relu"],
        "passes": ["Nothing"], "samples": [], "strategies": [],
    }  # fmt: skip
    assert before["kernels"] == [["relu", "early", "early"]]
    assert before["library"] == [20]
    assert "early:0" in before["places"]
    assert before["operator"] == "True"
    assert before["passes"] == ["early"]
    assert any("'tanh'" in note and "registered by none of its hooks" in note for note in notes)
    assert any("no kernels for relu_grad" in note for note in notes)


def test_one_that_fails_is_dropped_whole_though_it_was_imported(tmp_path: Path, python: Callable[..., Any]) -> None:
    site = tmp_path / "site"
    install(site, "early", {"early": (V1, "early_plugin")})
    write(site, {"early_plugin.py": ONE_OF_EACH + HOOKS.replace("register(Nothing())", "register('text')")})
    found = python(
        STATE + "import early_plugin; warnings.simplefilter('ignore'); print(json.dumps(state()))", site
    )  # fmt: skip
    ((_, state, brought, error, _),) = found["records"]
    assert (state, brought) == ("failed", {})
    assert "'text' is no pass" in error
    assert found["kernels"] == found["library"] == found["passes"] == []
    assert "early:0" not in found["places"]
    assert found["operator"].startswith("OperatorNotFoundError")


def test_what_a_plugin_uses_while_it_is_imported_does_not_load_it_half(
    tmp_path: Path, python: Callable[..., Any]
) -> None:
    site = tmp_path / "site"
    install(site, "early", {"early": (V1, "early_plugin")})
    asks = "import fluidlite\nHERE = [str(place) for place in fluidlite.places()]\n"
    write(site, {"early_plugin.py": asks + ONE_OF_EACH + HOOKS})
    before = python(STATE + "import early_plugin; print(json.dumps(state()))", site)
    assert before == python(STATE + "print(json.dumps(state()))", site)
    assert before["kernels"] == [["relu", "early", "early"]]


def test_a_built_in_module_may_be_imported_first(tmp_path: Path, python: Callable[..., Any]) -> None:
    code = STATE + "print(json.dumps([(r.name, r.state, r.brought) for r in fluid.plugins()]))"
    alone = python(code)
    for module in ("fluidlite.kernels.blas", "fluidlite.kernels.opaque", "fluidlite.devices.cpu"):
        assert python(f"import {module}\n" + code) == alone


def test_a_kernel_that_a_loaded_plugins_module_makes_later_is_told(tmp_path: Path, python: Callable[..., Any]) -> None:
    site = tmp_path / "site"
    target, files = FORMS["a package"]
    install(site, "early", {"early": (V1, target)})
    write(site, {
        **files,
        "early_plugin/parts.py": ONE_OF_EACH.replace('"early_made", ', '"early_made", Registration(override=True), '),
        "early_plugin/more.py": "from fluidlite.plugin import register_kernel\n"
        "@register_kernel('exp', 'cpu', library='early')\ndef exp(call, context):\n    raise AssertionError\n",
        "early_plugin/tests/__init__.py": "", "early_plugin/tests/test_it.py": "from fluidlite.plugin import *\n"
        "@register_kernel('sin', 'cpu', library='early')\ndef sin(call, context):\n    raise AssertionError\n",
    })  # fmt: skip
    found = python(
        STATE
        + """
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    state()
    import early_plugin.more, early_plugin.tests.test_it
    importlib.reload(early_plugin.parts)
print(json.dumps([[str(w.message) for w in caught], state()["kernels"]]))
""",
        site,
    )
    told = [message for message in found[0] if "left out" in message]
    assert any("'exp'" in message and "plugin 'early'" in message for message in told)
    assert not any("'sin'" in message or "'relu'" in message for message in told)
    assert ["relu", "early", "early"] in found[1]  # run again: it replaces what the hooks handed over
    assert ["sin", "early", ""] in found[1]
    assert len(found[1]) == 2


def test_odd_plugins_are_told_why(tmp_path: Path, python: Callable[..., Any]) -> None:
    site = tmp_path / "site"
    library = "from fluidlite.plugin import Library, hookimpl\n@hookimpl\ndef register_libraries(register):\n"
    install(site, "odd", {
        "one": (V1, "odd_one"), "two": (V1, "odd_two"), "unmarked": (V1, "odd_unmarked"), "kind": (V1, "odd_kind"),
        "text": (V1, "odd_text"), "words": (V1, "odd_words"),
    })  # fmt: skip
    kernel = "@register_kernel('relu', 'nowhere', library='odd')\ndef relu(call, context):\n    pass\n"
    write(site, {
        "odd_one.py": library + "    register(Library('same', ('cpu',), 1))\n",
        "odd_two.py": library + "    register(Library('same', ('cpu',), 1))\n",
        "odd_unmarked.py": library.replace("@hookimpl\n", "") + "    register(Library('never', ('cpu',), 1))\n",
        "odd_kind.py": "from fluidlite.plugin import hookimpl, register_kernel\n" + kernel + kernel.replace(
            "'odd'", "'odder'"
        ).replace("relu(", "again(") + "@hookimpl\ndef register_kernels(register):\n"
        "    register(relu)\n    register(again)\n",
        "odd_text.py": library.replace("libraries", "devices") + "    register('text')\n",
        "odd_words.py": library + "    register('text')\n",
    })  # fmt: skip
    found = python(
        STATE
        + """
warnings.simplefilter("ignore")
print(json.dumps({r.name: [r.state, r.error, r.notes, r.brought] for r in fluid.plugins() if not r.built_in}))
""",
        site,
    )
    assert found["one"][0] == "loaded"
    assert "'same' is registered twice: by plugin 'one' and by plugin 'two'" in found["two"][1]
    assert found["unmarked"][2] == ["register_libraries is defined without @hookimpl, so it was not called"]
    assert any("no device is of kind nowhere" in note for note in found["kind"][2])
    assert found["kind"][3]["kernels"] == ["relu", "relu"]  # one for each registration
    assert "register_devices got 'text'; expected a device" in found["text"][1]
    assert "register_libraries got 'text'; expected a Library" in found["words"][1]


# --- whose line, whose kernel ----------------------------------------------------------------------------------------


def test_lines_are_the_users_and_kernels_say_whose_they_are(tmp_path: Path, python: Callable[..., Any]) -> None:
    site = tmp_path / "site"
    install(site, "lines", {"lines": (V1, "lines_plugin.hooks")})
    write(site, {
        "lines_plugin/__init__.py": "from lines_plugin.layers import twice\n",
        "lines_plugin/layers.py": "import fluidlite as fluid\ndef twice(x):\n"
        "    return fluid.layers.relu(fluid.layers.scale(x, 2.0))\n",
        "lines_plugin/hooks.py": textwrap.dedent(
            """
            from fluidlite.plugin import Library, hookimpl, register_kernel
            @register_kernel("relu", "cpu", library="lines")
            def relu(call, context):
                def run(context, io):
                    raise ZeroDivisionError("of the kernel")
                return run
            @register_kernel("tanh", "cpu", library="lines", supports=lambda call: call.no_such_thing)
            def tanh(call, context):
                raise AssertionError
            @hookimpl
            def register_libraries(register):
                register(Library("lines", ("cpu",), 20))
            @hookimpl
            def register_kernels(register):
                register(relu)
                register(tanh)
            """
        ),
    })  # fmt: skip
    (tmp_path / "user.py").write_text(
        textwrap.dedent(
            """
            import numpy as np
            import fluidlite as fluid
            import lines_plugin
            x = fluid.layers.data("x", [3])
            y = lines_plugin.twice(x)
            def run(mode):
                out = y if mode != "supports" else fluid.layers.tanh(y)
                exe = fluid.Executor("cpu", mode="interpreted" if mode == "interpreted" else "compiled")
                exe.run(feed={"x": np.ones((1, 3), "float32")}, fetch_list=[out])
            """
        )
    )
    found = python(
        STATE + """
import user
lines = [str(op.line) for op in fluid.default_main_program().global_block().ops]
print(json.dumps([lines, *(attempt(lambda: user.run(mode)) for mode in ("interpreted", "compiled", "supports"))]))
""",
        site, tmp_path,
    )  # fmt: skip
    assert found[0] == ["user.py:6, lines_plugin.twice"] * 2
    for text in found[1:3]:
        assert "user.py:6" in text
        assert "ZeroDivisionError: of the kernel" in text
        assert re.search(r"kernel for 'relu' at .*hooks.py:3 \(library 'lines', plugin 'lines'\)", text)
    assert found[3].startswith("SupportsError: supports(call) of the kernel for 'tanh' at ")
    assert "plugin 'lines'" in found[3]
    assert "AttributeError" in found[3]
    assert "pass " not in found[3]
