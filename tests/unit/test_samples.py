"""Samples stand beside the operators: found by type, imported late, refused twice, gone with their plugin."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fluidlite as fluid
from fluidlite import plugin_loader
from fluidlite.base.errors import FluidError, PluginWarning, RegistryError
from fluidlite.conformance import operators as folder
from fluidlite.conformance.cases import cases
from fluidlite.conformance.reference import Oracle
from fluidlite.conformance.samples import Sample, reference_of, register_samples, samples_of
from fluidlite.plugin import Inference, register_op
from fluidlite.program.registry import ops
from fluidlite.testing import check_gradient, check_sample

MODULE = """
from fluidlite.plugin import Inference, hookimpl, register_op, register_samples

OP = register_op("{type}", Inference(lambda call: {{"Out": call.spec("X")}}), inputs=("X",), outputs=("Out",))
{inline}


@hookimpl
def register_operators(register):
    register(OP)
    {named}
"""
SAMPLES = """
import numpy as np
from fluidlite.plugin import Sample, register_samples

register_samples("{type}", samples=[Sample({{"X": np.ones(3, "float32")}})], reference=lambda inputs, attrs: inputs)
"""
ONE_RUN = """
import sys
import numpy as np
import fluidlite as fluid
x = fluid.layers.data("x", [3], stop_gradient=False)
loss = fluid.layers.mean(fluid.layers.softmax(fluid.layers.fc(x, 4)))
fluid.optimizer.SGD(0.1).minimize(loss)
exe = fluid.Executor("cpu")
exe.run(fluid.default_startup_program())
exe.run(feed={"x": np.ones((2, 3), "float32")}, fetch_list=[loss])
import fluidlite.plugin
print(sorted(name for name in sys.modules if name.startswith(("fluidlite.conformance", "fluidlite.testing"))))
"""


def test_a_program_that_runs_imports_no_samples() -> None:
    done = subprocess.run([sys.executable, "-c", ONE_RUN], capture_output=True, text=True, check=True, timeout=280)
    assert done.stdout.strip() == "[]"


THREADS = """
import importlib, sys, threading
from fluidlite.conformance.samples import samples_of
sys.setswitchinterval(1e-5)
names = [f"fluidlite.conformance.operators.{name}" for name in ("vision", "where", "unpool", "sorting")]
threads = [threading.Thread(target=importlib.import_module, args=(name,), daemon=True) for name in names]
threads += [threading.Thread(target=samples_of, args=("relu",), daemon=True) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(60)
print([thread.is_alive() for thread in threads].count(True), len(samples_of("relu")), len(samples_of("where")))
"""


def test_threads_that_ask_and_import_at_once_do_not_wait_for_each_other() -> None:
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=True, timeout=280)
    assert done.stdout.split() == ["0", "8", "3"]


def test_each_module_of_samples_is_called_as_one_of_operators() -> None:
    for path in Path(next(iter(folder.__path__))).glob("[!_]*.py"):
        assert (Path(next(iter(fluid.operators.__path__))) / path.name).is_file(), path.name


@pytest.fixture
def declare() -> Iterator[Any]:
    """Declare operators of some types, which are forgotten afterwards."""
    made: list[Any] = []

    def declared(*types: str) -> None:
        made.extend(register_op(type, Inference(lambda call: {"Out": call.spec("X")}), inputs=("X",)) for type in types)

    yield declared
    for op in made:
        ops.remove(op)


def test_samples_are_of_an_operator() -> None:
    said = rf"samples are registered at {__file__}:\d+, but no operator is called 'rleu'; did you mean 'relu'"
    with pytest.raises(RegistryError, match=said):
        register_samples("rleu", samples=[Sample({})])


def test_a_type_is_registered_once(declare: Any) -> None:
    declare("test_samples_once")
    mine = f"{__file__}:"
    with pytest.raises(RegistryError, match=r"'relu' are registered twice: at .*operators/activations\.py:\d+ and at "):
        register_samples("relu", samples=[Sample({})])
    register_samples("test_samples_once", samples=[Sample({}, name="first")])
    with pytest.raises(RegistryError) as refused:
        register_samples("test_samples_once", samples=[Sample({}, name="second")])
    assert str(refused.value).count(mine) == 2
    assert [sample.name for sample in samples_of("test_samples_once")] == ["first"]
    register_samples("test_samples_once", samples=lambda: [Sample({}, name="third")], override=True)
    assert [sample.name for sample in samples_of("test_samples_once")] == ["third"]
    assert samples_of("nobody_knows_this") == []
    assert reference_of("nobody_knows_this") is None
    with pytest.raises(RegistryError, match="expected the types of operators"):
        register_samples(samples=[])


def test_a_reference_is_decorated(declare: Any) -> None:
    declare("test_samples_decorated", "test_samples_too")

    @register_samples("test_samples_decorated", "test_samples_too", samples=[Sample({})])
    def reference(inputs: Any, attrs: Any) -> dict[str, Any]:
        return dict(inputs)

    assert reference_of("test_samples_decorated") is reference_of("test_samples_too") is reference


def test_nothing_to_check_is_no_success() -> None:
    """A type whose samples were forgotten, or left out, does not pass."""
    for check in (check_sample, check_gradient):
        with pytest.raises(FluidError, match="operator 'uniform_random' has no samples with a reference"):
            check("uniform_random", "cpu")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An importable folder for a plugin's package, which is forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "sampled_plugin"
    path.mkdir()
    yield path
    if any(record.name == "sampled" for record in plugin_loader.plugins()):
        plugin_loader.unload("sampled")
    for name in [name for name in sys.modules if name.partition(".")[0] == "sampled_plugin"]:
        del sys.modules[name]


def write(package: Path, type: str, samples: str | None = None, inline: str = "", name: str = "samples") -> None:
    named = f'register("sampled_plugin.{name}")' if samples is not None else ""
    (package / "__init__.py").write_text(MODULE.format(type=type, inline=inline, named=named))
    if samples is not None:
        (package / f"{name.replace('.', '/')}.py").write_text(samples)


def test_a_plugins_samples_are_imported_when_they_are_asked_for_and_go_with_it(package: Path) -> None:
    write(package, "sampled_op", SAMPLES.format(type="sampled_op"))
    for _ in range(2):  # loaded a second time, its modules are imported already
        record = plugin_loader.load("sampled", "sampled_plugin")
        assert record.state == "loaded", record.traceback
        assert record.brought["samples"] == ["sampled_plugin.samples"]
        assert len(samples_of("sampled_op")) == 1
        assert reference_of("sampled_op") is not None
        assert not record.notes
        plugin_loader.unload("sampled")
        assert samples_of("sampled_op") == []
        assert reference_of("sampled_op") is None


def test_loading_a_plugin_imports_no_samples(package: Path) -> None:
    write(package, "sampled_op", "raise SystemExit('imported')")
    assert plugin_loader.load("sampled", "sampled_plugin").state == "loaded"
    assert "sampled_plugin.samples" not in sys.modules
    with pytest.warns(PluginWarning, match=r"plugin 'sampled': its samples were left out: SystemExit: imported"):
        assert samples_of("sampled_op") == []


def test_samples_in_the_operators_own_module(package: Path, declare: Any) -> None:
    declare("test_samples_beside")
    write(package, "inline_op", inline='register_samples("inline_op", samples=lambda: [])\n')
    for _ in range(2):
        assert plugin_loader.load("sampled", "sampled_plugin").state == "loaded"
        register_samples("test_samples_beside", override=True)  # what else is registered changes nothing
        with pytest.raises(RegistryError, match=r"'inline_op' are registered twice: at .*sampled_plugin"):
            register_samples("inline_op", samples=[Sample({})])
        plugin_loader.unload("sampled")
    declare("inline_op")
    register_samples("inline_op", samples=[Sample({}, name="free again")])
    assert [sample.name for sample in samples_of("inline_op")] == ["free again"]


def test_a_plugin_that_is_dropped_leaves_no_samples(package: Path) -> None:
    write(package, "relu", inline='register_samples("dropped_op", samples=lambda: [1])\n')  # there is a relu
    with pytest.warns(PluginWarning, match="was left out"):
        assert plugin_loader.load("sampled", "sampled_plugin").state == "failed"
    assert samples_of("dropped_op") == []
    assert len(samples_of("relu")) == 8


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        (
            SAMPLES.format(type="relu"),
            r"the samples of operator 'relu' are registered twice: at .*activ",
        ),
        (SAMPLES.format(type="sampled_op"), "the samples of operator 'sampled_op' are registered twice"),
        (
            SAMPLES.format(type="half_op") + "import no_such_module",
            "No module named 'no_such_module'",
        ),
        (SAMPLES.format(type="half_op"), "samples are registered at .*, but no operator is called 'half_op'"),
    ],
)
def test_samples_that_are_wrong_are_left_out_whole(package: Path, samples: str, reason: str) -> None:
    write(package, "sampled_op", SAMPLES.format(type="sampled_op") + samples)
    record = plugin_loader.load("sampled", "sampled_plugin")
    with pytest.warns(PluginWarning, match=reason):
        assert samples_of("sampled_op") == []
    assert samples_of("half_op") == []
    assert len(samples_of("relu")) == 8
    assert [note for note in record.notes if "its samples were left out" in note]
    assert samples_of("sampled_op") == []  # and says so once


@pytest.mark.parametrize("name", ["no_package.samples", "sampled_plugin.tests.samples", "fluidlite.layers"])
def test_a_module_of_samples_is_of_the_plugins_own_package(package: Path, name: str) -> None:
    write(package, "sampled_op")
    (package / "__init__.py").write_text(MODULE.format(type="sampled_op", inline="", named=f'register("{name}")'))
    with pytest.warns(PluginWarning, match="as a module of samples; expected one of the plugin's own package"):
        assert plugin_loader.load("sampled", "sampled_plugin").state == "failed"


def test_places_have_their_central_differences_in_common() -> None:
    """They are a reference's alone; other weights of its outputs give others."""
    case = next(case for case in cases(["elementwise_mul"]) if case.sample.grads and case.dtype == "float64")
    first, again = Oracle(case).gradients(), Oracle(case).gradients()
    assert all(a is b for slot in first for a, b in zip(first[slot], again[slot], strict=True))
    assert not any(array.flags.writeable for arrays in first.values() for array in arrays)
    other = Oracle(next(case for case in cases(["elementwise_sub"]) if case.sample.grads and case.dtype == "float64"))
    assert other.gradients() is not first
    named = Oracle(case)
    del named.weights["Out"]
    assert not any(array.any() for arrays in named.gradients().values() for array in arrays)
