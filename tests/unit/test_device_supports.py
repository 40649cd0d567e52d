"""``Device.supports``: a device refuses kernels that its namespace or language cannot run, and explain says why."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.errors import SupportsError
from fluidlite.devices.cpu import CPUDevice
from fluidlite.plugin import Call
from fluidlite.program.kernel_registry import kernels, register_kernel
from fluidlite.program.registry import ops, register_op

sys.path.append(str(Path(__file__).parents[1] / "plugins"))
from fake_device import installed

from fluidlite.plugin import Inference, Lowering

MODES = ("interpreted", "compiled")
CAPABILITIES = ("array", "language")


class Choosy(CPUDevice):
    """Host memory with an array namespace, or with a kernel language, which refuses some operators."""

    kind = "choosy"

    def __init__(self, capability: str, answer: Callable[[Call], Any]) -> None:
        super().__init__()
        self.capability = capability
        self.answer = answer
        self.asked: list[Call] = []

    def info(self, index: int) -> Any:
        return dataclasses.replace(super().info(index), host=False, dlpack=None)

    def array(self, index: int) -> Any:
        return super().array(index) if self.capability == "array" else None

    def language(self, index: int) -> Any:
        return super().language(index) if self.capability == "language" else None

    def supports(self, call: Call) -> str | None:
        self.asked.append(call)
        answer: str | None = self.answer(call)
        return answer


def refusing(*types: str) -> Callable[[Call], str | None]:
    return lambda call: f"the board has no {call.op.type}" if call.op.type in types else None


@pytest.fixture(params=CAPABILITIES)
def choosy(request: pytest.FixtureRequest, require: Callable[..., None]) -> Iterator[Choosy]:
    if request.param == "language":
        require("llvmlite")
    with installed(Choosy(request.param, lambda call: None)) as device:
        yield device


def chain(rows: int = -1) -> tuple[fluid.Program, Any]:
    program = fluid.Program()
    with fluid.program_guard(program):
        x = fluid.layers.data("x", [rows, 700], append_batch_size=False)
        out = fluid.layers.scale(fluid.layers.tanh(fluid.layers.relu(x)), 2.0)
    return program, out


@pytest.mark.parametrize("mode", MODES)
def test_what_it_refuses_runs_elsewhere_and_explain_says_why(choosy: Choosy, mode: str) -> None:
    choosy.answer = refusing("tanh")
    program, out = chain()
    exe = fluid.Executor("choosy", mode=mode, fallback="allow")
    values = np.linspace(-2, 2, 2100, dtype="float32").reshape(3, 700)
    (found,) = exe.run(program, {"x": values}, [out])
    np.testing.assert_allclose(found, np.tanh(np.maximum(values, 0)) * 2, rtol=1e-6)
    report = exe.explain_last()
    rows = [row for row in report.data() if "tanh" in (row["op"], *row["made_of"])]
    assert [(row["op"], row["how"], row["place"]) for row in rows] == [("tanh", "fallback", "cpu:0")]
    assert "because" in report.text()
    assert "the board has no tanh" in report.text()
    others = {row["place"] for row in report.data() if row["op"] != "tanh"}
    assert others == {"choosy:0"}
    assert {call.place for call in choosy.asked} == {fluid.Place("choosy")}


@pytest.mark.parametrize("mode", MODES)
def test_a_fused_operator_holds_nothing_that_it_refuses(choosy: Choosy, mode: str) -> None:
    choosy.answer = refusing("relu")
    program, out = chain(3)
    exe = fluid.Executor("choosy", mode=mode, fallback="allow")
    exe.run(program, {"x": np.ones((3, 700), "float32")}, [out])
    on_device = [row for row in exe.explain_last().data() if row["place"] == "choosy:0"]
    assert on_device
    assert not any("relu" in text for row in on_device for text in (row["op"], *row["made_of"]))


def _two_parts(call: Call, build: Any) -> None:
    first = build("relu", {"X": build.input("X")}, {"Out": None})
    build("tanh", {"X": first}, {"Out": build.output("Out")})


@pytest.mark.parametrize("mode", MODES)
def test_a_decomposition_is_refused_with_its_part(choosy: Choosy, mode: str) -> None:
    whole = register_op(
        "two_parts",
        Inference(lambda call: {"Out": call.spec("X")}),
        Lowering(decompose=_two_parts),
        inputs=("X",),
        outputs=("Out",),
    )
    try:
        program = fluid.Program()
        with fluid.program_guard(program):
            x = fluid.layers.data("x", [3, 700], append_batch_size=False)
            out = program.global_block().create_var(name="out")
            program.global_block().append_op("two_parts", {"X": x}, {"Out": out})
        assert [row["how"] for row in fluid.explain(program, "choosy").data()] == ["decomposed"]
        choosy.answer = refusing("tanh")
        kernels.generation += 1  # answers are kept while nothing is registered
        exe = fluid.Executor("choosy", mode=mode, fallback="allow")
        values = np.linspace(-2, 2, 2100, dtype="float32").reshape(3, 700)
        (found,) = exe.run(program, {"x": values}, [out])
        np.testing.assert_allclose(found, np.tanh(np.maximum(values, 0)), rtol=1e-6)
        text = exe.explain_last().text(refused=True)
    finally:
        ops.remove(whole)
    assert "its tanh cannot run on choosy:0 either" in text
    assert "the board has no tanh" in text


def test_kernels_of_its_own_and_copies_are_not_asked_about(choosy: Choosy) -> None:
    choosy.answer = lambda call: "nothing at all"

    @register_kernel("tanh", "choosy", library="board")
    def tanh(call: Call, context: Any) -> Any:
        raise AssertionError("only planned")

    try:
        program = fluid.Program()
        with fluid.program_guard(program):
            x = fluid.layers.data("x", [3, 4], append_batch_size=False)
            fluid.layers.reshape(fluid.layers.tanh(x), [4, 3])
        rows = fluid.explain(program, "choosy").data()
    finally:
        kernels.remove(tanh)
    assert [(row["how"], row["place"]) for row in rows] == [("native", "choosy:0"), ("generic", "choosy:0")]


@pytest.mark.parametrize("mode", MODES)
def test_an_error_of_supports_is_the_devices(choosy: Choosy, mode: str) -> None:
    choosy.answer = lambda call: call.no_such_thing  # type: ignore[attr-defined]
    program, out = chain()
    exe = fluid.Executor("choosy", mode=mode, fallback="allow")
    with pytest.raises(SupportsError, match=r"device kind 'choosy' raised AttributeError for operator \w+") as error:
        exe.run(program, {"x": np.ones((3, 700), "float32")}, [out])
    assert "pass " not in str(error.value)
    assert "\n  At: test_device_supports.py:" in str(error.value)
    for answer in (False, ""):
        choosy.answer = lambda call, answer=answer: answer
        with pytest.raises(SupportsError, match=rf"returned {answer!r} for operator \w+\n  Do: let it return None, or"):
            fluid.explain(program, "choosy")


def test_a_lost_place_is_no_place_any_more(choosy: Choosy) -> None:
    from fluidlite.cli.reports import places_report
    from fluidlite.platform.device_registry import devices

    assert fluid.Place("choosy") in fluid.places()
    devices.unit("choosy").lost = "someone pulled the plug"
    assert fluid.Place("choosy") not in fluid.places()
    assert {"place": "choosy:0", "usable": False, "reason": "it was lost: someone pulled the plug"} in places_report()
