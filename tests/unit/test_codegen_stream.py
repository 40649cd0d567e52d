"""Outputs larger than the caches are written past them; the values are those of the other kernels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from codegen_harness import DeviceContext, call_of, execute
from loop_texts import keep_nothing

from fluidlite import expr
from fluidlite.base.dtypes import NUMPY
from fluidlite.codegen.llvm import c_to_llvm
from fluidlite.platform.device_memory import Span
from fluidlite.program.codegen_registry import generators
from fluidlite.program.opdef import OpDef, Slot
from fluidlite.program.rules import ExpressionRule, ScalarRule
from fluidlite.render.loops import nontemporal
from fluidlite.render.loops.nontemporal import TILE_LANES as LANES
from fluidlite.tensor.tensor_spec import Spec

pytest.importorskip("llvmlite")
pytest.importorskip("pycparser")


@pytest.fixture(scope="module")
def context() -> DeviceContext:
    return DeviceContext("cpu:0")


def operator(function: Any, inputs: str, **outputs: str) -> OpDef:
    """An operator whose outputs have the dims of X, and the dtypes given."""

    def infer(call: Any) -> dict[str, Spec]:
        return {slot: Spec.of(call.dims("X"), dtype or call.dtype("X")) for slot, dtype in outputs.items()}

    names = tuple(inputs)
    return OpDef("tested", tuple(map(Slot, names)), tuple(map(Slot, outputs)), (), infer,
                 scalar=ScalarRule(function, tuple(outputs)), may_alias={next(iter(outputs)): "X"})  # fmt: skip


OPERATORS = {
    "one": operator(lambda x, y: expr.tanh(x) * y + x, "XY", Out=""),
    "two": operator(lambda x, y: (x + y, x * y), "XY", Out="", Second=""),
    "narrow": operator(lambda x, y: (x < y, x), "XY", Less="bool", Same=""),
}


def source_of(context: Any, op: OpDef, inputs: Any) -> str:
    source: str = generators["language"].prepare(call_of(op, inputs, {}), context).source
    return source


@pytest.mark.parametrize("name", list(OPERATORS))
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("size", [LANES - 1, LANES, 5 * LANES, 300 * LANES + 77])
def test_values_are_the_same(
    context: Any, monkeypatch: pytest.MonkeyPatch, name: str, dtype: str, size: int
) -> None:  # fmt: skip
    op, rng = OPERATORS[name], np.random.default_rng(1)
    inputs = {slot: rng.standard_normal(size).astype(NUMPY[dtype]) for slot in "XY"}
    keep_nothing(monkeypatch)
    plain = execute(context, op, inputs)
    assert "stream" not in source_of(context, op, inputs)
    monkeypatch.setattr(nontemporal, "MIN_NONTEMPORAL_BYTES", 1)
    assert "llvm_stream(" in source_of(context, op, inputs)
    large = execute(context, op, inputs)
    for slot, expected in plain.items():
        np.testing.assert_array_equal(large[slot].view("u1"), expected.view("u1"))
    if name == "one":  # and where the output lies on an input
        shared = execute(context, op, inputs, share={"Out": "X"})
        np.testing.assert_array_equal(shared["Out"].view("u1"), plain["Out"].view("u1"))


@pytest.mark.parametrize("offset", [0, 4, 60, 64])
def test_outputs_may_begin_anywhere(context: Any, monkeypatch: pytest.MonkeyPatch, offset: int) -> None:
    op, rng = OPERATORS["one"], np.random.default_rng(2)
    inputs = {slot: rng.standard_normal(10 * LANES + 3, "f4") for slot in "XY"}
    expected = execute(context, op, inputs)["Out"]
    monkeypatch.setattr(nontemporal, "MIN_NONTEMPORAL_BYTES", 1)
    run = generators["language"].prepare(call_of(op, inputs, {}), context)
    raw = np.zeros(expected.nbytes + 256, "u1")
    begin = -raw.ctypes.data % 64 + offset

    spans = {slot: Span(value.view("u1"), 0, value.nbytes) for slot, value in inputs.items()}
    spans["Out"] = Span(raw, begin, expected.nbytes)
    run(context.real, SimpleNamespace(span=lambda slot, _: spans[slot]))
    np.testing.assert_array_equal(raw[begin : begin + expected.nbytes].view("f4"), expected)
    assert not raw[:begin].any() and not raw[begin + expected.nbytes :].any()


def test_only_large_outputs_are(context: Any) -> None:
    """What a cache holds stays there for its next reader."""
    op, bound = OPERATORS["one"], nontemporal.MIN_NONTEMPORAL_BYTES
    below, from_it = ({slot: np.broadcast_to(np.float32(1), (n,)) for slot in "XY"}
                      for n in (bound // 4 - 1, bound // 4))  # fmt: skip
    assert "stream" not in source_of(context, op, below)
    assert "llvm_stream(" in source_of(context, op, from_it)
    half = operator(lambda x, y: (x < y, x), "XY", Less="bool", Same="")
    assert "stream" not in source_of(context, half, from_it)  # its smaller output is none


def test_other_languages_keep_their_kernels(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops compute elementwise operators for the sake of these stores alone."""
    words = {name: word for name, word in context.language.keywords.items() if name != "stream"}
    monkeypatch.setattr(context.language, "keywords", words)
    monkeypatch.setattr(nontemporal, "MIN_NONTEMPORAL_BYTES", 1)
    assert " fl_tested(" in source_of(context, OPERATORS["one"], {slot: np.ones(8 * LANES, "f4") for slot in "XY"})


def test_lines_are_stored_past_the_caches(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_nothing(monkeypatch)
    monkeypatch.setattr(nontemporal, "MIN_NONTEMPORAL_BYTES", 1)
    inputs = {slot: np.ones(8 * LANES, "f4") for slot in "XY"}
    text, _ = c_to_llvm(source_of(context, OPERATORS["one"], inputs), "loops_tested_0")
    assert text.count("store <16 x float>") == text.count("align 64, !nontemporal !7") == LANES // 16
    assert "!7 = !{i32 1}" in text


def _tensors(given: Any, attrs: Any) -> Any:
    (x,), (y,) = given["X"], given["Y"]
    return {"Out": expr.tanh(x) * y + x}


def loops_of(may_alias: dict[str, str]) -> OpDef:
    rule = ExpressionRule(_tensors)
    return OpDef("tested_loops", (Slot("X"), Slot("Y")), (Slot("Out"),), (), lambda call: {"Out": call.spec("X")},
                 expression=rule, may_alias=may_alias)  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("size", [LANES - 1, LANES, 5 * LANES, 300 * LANES + 77])
def test_loops_store_past_the_caches_too(
    context: Any, monkeypatch: pytest.MonkeyPatch, dtype: str, size: int
) -> None:  # fmt: skip
    rng = np.random.default_rng(3)
    inputs = {slot: rng.standard_normal(size).astype(NUMPY[dtype]) for slot in "XY"}
    keep_nothing(monkeypatch)
    plain = execute(context, loops_of({}), inputs)["Out"]
    assert "stream" not in source_of(context, loops_of({}), inputs)
    monkeypatch.setattr(nontemporal, "MIN_NONTEMPORAL_BYTES", 1)
    assert "llvm_stream(" in source_of(context, loops_of({}), inputs)
    large = execute(context, loops_of({}), inputs)["Out"]
    np.testing.assert_array_equal(large.view("u1"), plain.view("u1"))
    shared = execute(context, loops_of({"Out": "X"}), inputs, share={"Out": "X"})["Out"]  # and over an input
    np.testing.assert_array_equal(shared.view("u1"), plain.view("u1"))


def test_what_loops_may_write_over(context: Any) -> None:
    """An operand each element of which is read where it is written; nothing that a sum goes through again."""
    inputs = {slot: np.ones((64, 64), "f4") for slot in "XY"}
    language = generators["language"]
    call = call_of(loops_of({"Out": "X"}), inputs, {}).at(context.place)
    assert language.aliasable_slots(call) == {"Out": "X"}

    def turned(given: Any, attrs: Any) -> Any:
        return {"Out": expr.transpose(given["X"][0], (1, 0)) + given["Y"][0]}

    def summed(given: Any, attrs: Any) -> Any:
        (x,), (y,) = given["X"], given["Y"]
        return {"Out": x - expr.reduce_sum(x * y, 1, keep=True)}

    for function, expected in ((turned, {}), (summed, {})):
        op = OpDef("tested_over", (Slot("X"), Slot("Y")), (Slot("Out"),), (), lambda call: {"Out": call.spec("X")},
                   expression=ExpressionRule(function), may_alias={"Out": "X"})  # fmt: skip
        assert language.aliasable_slots(call_of(op, inputs, {}).at(context.place)) == expected
