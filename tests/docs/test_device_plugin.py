"""The plugin of docs/write_a_device_plugin.md, as it stands there: samples of every kind of kernel are right on it."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from operator_checks import CHECKS, by_operator, first_of_each, pairwise, run_checks

import fluidlite as fluid
from fluidlite.cli.kernel_matrix import kernel_matrix
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.device_registry import devices
from fluidlite.plugin import DeviceInfo, hookimpl
from fluidlite.testing import Check, checks

PAGE = Path(__file__).resolve().parents[2] / "docs" / "write_a_device_plugin.md"
LINES = 150
"""At most so many lines, as the page promises."""
FAMILIES = (
    "relu", "gelu", "tanh", "elementwise_add", "elementwise_pow", "elementwise_mod", "cast", "dropout", "sum",
    "adam", "momentum", "mean", "reduce_sum", "reduce_max", "matmul", "mul", "transpose2", "concat", "split", "slice",
    "gather", "lookup_table", "one_hot", "top_k", "softmax", "cross_entropy", "softmax_with_cross_entropy", "accuracy",
    "crop", "maxout", "reshape2", "fill_constant",
)  # fmt: skip
OF_PLUGIN = [c for c in CHECKS if c.operator == "device" or (c.operator in FAMILIES and "float16" not in c.id)]


def source() -> str:
    found = re.search(r"^```python file=fluidlite_cc\.py\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.S | re.M)
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    file = tmp_path_factory.mktemp("plugin") / "fluidlite_cc.py"
    file.write_text(source(), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("fluidlite_cc", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    record = fluid.plugin_loader.load("cc", module)
    assert record.state == "loaded", record.traceback
    yield module
    fluid.plugin_loader.unload("cc")


@pytest.fixture
def place(plugin: ModuleType, require: Callable[..., None]) -> str:
    require("cc", "to run the plugin of the documentation")
    return "cc:0"


def test_it_is_short() -> None:
    assert len(source().splitlines()) <= LINES


def test_it_appears_and_disappears(place: str) -> None:
    assert fluid.Place("cc") in fluid.places()


@pytest.mark.parametrize("group", by_operator(first_of_each(pairwise(OF_PLUGIN))))
def test_conforms(group: list[Check], place: str) -> None:
    assert run_checks(group, place)


def test_nothing_falls_back(place: str) -> None:
    rows = kernel_matrix([place])
    hows = {how for row in rows for how in row.cells[fluid.Place("cc")].hows}
    assert hows == {"generated", "generic", "decomposed", "pinned", "control"}


def test_a_device_without_doubles_falls_back(plugin: ModuleType, require: Callable[..., None]) -> None:
    require("cc", "to run the plugin of the documentation")

    class Single(plugin.Device):  # type: ignore[name-defined, misc]
        kind = "ccsingle"

        def info(self, index: int) -> DeviceInfo:
            dtypes = tuple(dtype for dtype in DeviceInfo.dtypes if dtype != "float64")
            return DeviceInfo(name="C without doubles", dtypes=dtypes)

        def language(self, index: int) -> Any:
            self.c.types = {dtype: name for dtype, name in self.c.types.items() if dtype != "float64"}
            return self.c

    module = ModuleType("single")
    module.register_devices = hookimpl(lambda register: register(Single()))  # type: ignore[attr-defined]
    record = fluid.plugin_loader.load("ccsingle", module)
    try:
        assert record.state == "loaded", record.traceback
        single = checks(["relu", "elementwise_add", "matmul", "softmax", "reduce_sum", "fill_constant"])
        for check in first_of_each(pairwise(single), dtypes=True):
            check("ccsingle:0")
        with fluid.program_guard(fluid.Program()):
            dtypes = ("float32", "float64")
            for dtype in dtypes:
                fluid.layers.softmax(fluid.layers.data(dtype, shape=[2, 2], dtype=dtype))
            single, double = fluid.explain(place="ccsingle", feed=dict.fromkeys(dtypes, (3, 2, 2))).data()
        assert (single["how"], double["how"]) == ("generated", "fallback")
        assert any("ccsingle does not compute float64" in reason for _, reason in double["refused"])
    finally:
        fluid.plugin_loader.unload("ccsingle")


def test_sizes_are_arguments(plugin: ModuleType, place: str) -> None:
    """Another batch size compiles nothing, but for what packs an operand that many rows read, once."""
    weight = [[0.5] * 10] * 8
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        x = fluid.layers.data("x", shape=[8])
        w = fluid.layers.data("w", shape=[8, 10], append_batch_size=False)
        out = fluid.layers.softmax(fluid.layers.matmul(fluid.layers.relu(x), w))
    executor = fluid.Executor(place)
    compiled = []
    for rows in (3, 7, 65, 130):
        executor.run(program, feed={"x": [[1.0] * 8] * rows, "w": weight}, fetch_list=[out])
        compiled.append(len(list(plugin_folder(plugin).glob("*.c"))))
    assert compiled[0] == compiled[1] == compiled[2] - 1 == compiled[3] - 1


def plugin_folder(plugin: ModuleType) -> Path:
    language = devices.unit("cc:0").language
    folder: Path = language.folder
    return folder


def test_a_refused_source_is_one_clear_error(place: str) -> None:
    context = get_context(place)
    with pytest.raises(fluid.FluidError, match="cc:0 refused the generated kernel nonsense"):
        context.compile("void nonsense(", "nonsense", ())
