"""Answers about nests that lie on disk: the same as those that are found anew, and none where anything is another."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from loop_texts import forget_nests

import fluidlite as fluid
from fluidlite import expr, layers
from fluidlite.base.disk_cache import DiskCache
from fluidlite.expr.number import Number, apply, attribute, number, offsets_leaf, size, value_leaf
from fluidlite.expr.number_table import NumberTable
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.device_registry import devices
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import OpDef, Slot
from fluidlite.program.rules import ExpressionRule
from fluidlite.render.loops import cost, guarded_cache, kernels
from fluidlite.tensor.tensor_spec import Spec


@pytest.fixture
def laid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A folder of its own; the types of operators whose loops are laid out."""
    types: list[str] = []
    init = kernels.CallNests.__init__

    def noted(self: Any, call: Any) -> None:
        types.append(call.op.type)
        init(self, call)

    monkeypatch.setattr(kernels.CallNests, "__init__", noted)
    monkeypatch.setattr(guarded_cache, "_disk", DiskCache(tmp_path))
    another_process()
    yield types
    another_process()


def estimated(call: Call) -> cost.Estimate:
    found = cost.estimate(call, devices.unit(devices.host()))
    assert found is not None
    return found


def another_process() -> None:
    """Forget what is known of nests, as a process does that begins."""
    forget_nests()
    get_context("cpu").prepared.clear()


def run(rows: int, build: Callable[[Any], Any], width: int = 40) -> Any:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        x = layers.data("x", [width])
        array = np.random.default_rng(rows).normal(size=(rows, width)).astype("float32")
        executor = fluid.Executor("cpu")
        found = executor.run(feed={"x": array}, fetch_list=[build(x)])[0]
        executor.close()
        return found


def several(x: Any) -> Any:
    return layers.softmax(layers.l2_normalize(layers.scale(x, 2.0), 1) + layers.reduce_sum(x, 1, keep_dim=True))


def test_another_process_lays_nothing_out(laid: list[str]) -> None:
    first = run(64, several)
    assert laid
    another_process()
    laid.clear()
    assert np.array_equal(run(64, several), first)
    assert not laid


def test_other_sizes_use_it_where_the_same_holds(laid: list[str]) -> None:
    run(640, layers.softmax)
    fresh = run(1001, layers.softmax)
    another_process()
    run(640, layers.softmax)
    laid.clear()
    assert np.array_equal(run(1001, layers.softmax), fresh)
    assert not laid


def test_what_is_asked_otherwise_is_laid_out_again(laid: list[str]) -> None:
    """Short rows have another text than long ones: an answer for these serves no others."""
    run(640, layers.softmax, width=4000)
    another_process()
    laid.clear()
    run(640, layers.softmax, width=5)
    assert laid
    for width in (4000, 5):
        another_process()
        laid.clear()
        assert np.allclose(run(640, layers.softmax, width=width).sum(1), 1)
        assert not laid


def test_other_source_files_have_other_answers(laid: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    run(64, several)
    another_process()
    laid.clear()
    monkeypatch.setattr(guarded_cache, "_sources", lambda: "others")
    run(64, several)
    assert laid


def test_without_source_files_nothing_is_kept(laid: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_cache, "_sources", lambda: "")
    run(64, several)
    assert laid and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{",
        b"[[], [[[], 3]]]",
        b"[" * 10**5,
        b"[[], [[[], [1" + b"0" * 400 + b", []]]]]",
        b'[[["os.system", [], 1, true]], []]',
        b'[[], [[[["less", 0, 1, true]], null]]]',
    ],
)
def test_what_is_no_answer_is_as_good_as_none(laid: list[str], content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, cost_of_it = run(64, several), estimated(call_of())
    another_process()
    laid.clear()
    monkeypatch.setattr(guarded_cache._disk, "get", lambda *key: content)
    assert estimated(call_of()) == cost_of_it
    assert np.array_equal(run(64, several), expected)
    assert laid


def test_a_folder_that_cannot_be_written(
    laid: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setattr(guarded_cache, "_disk", DiskCache(tmp_path / "file", "loops"))
    expected = run(64, several)
    assert laid and "loops cannot be kept on disk" in caplog.text
    assert np.isfinite(expected).all()


def test_an_object_that_is_no_plain_value_is_not_said() -> None:
    for plain in (1, 1.5, "a", None, (True, (2, "b")), size("n") + 1):
        guarded_cache._plain_value(plain)
    assert guarded_cache._plain_value(number(1)) != guarded_cache._plain_value(1)
    for other in (object(), [1], (1, object()), np.float32(1)):
        with pytest.raises(TypeError, match="plain value"):
            guarded_cache._plain_value(other)


# What answers depend on ----------------------------------------------------------------------------------------------


def call_of(dtype: str = "float32", alias: bool = False, rows: int = 64) -> Call:
    """A call of one expression: the row's elements less their mean, over the operand if ``alias``."""
    spec = Spec.of((rows, 300), dtype)
    return Call(TESTED[alias], {"X": (spec,)}, {"Out": (spec,)}, {}, fluid.CPUPlace())


def less_mean(given: Any, attrs: Any) -> Any:
    (x,) = given["X"]
    return {"Out": x - expr.reduce_mean(x, 1, keep=True)}


TESTED = {
    alias: OpDef("tested_kept", (Slot("X"),), (Slot("Out"),), (), lambda call: {"Out": call.spec("X")},
                 expression=ExpressionRule(less_mean), must_alias={"Out": "X"} if alias else {})
    for alias in (False, True)
}  # fmt: skip


def texts(call: Call, language: Any) -> list[str]:
    return [piece.text.body for piece in kernels.nest_codes(call, SimpleNamespace(language=language))]


def other(name: str, value: Any) -> Any:
    """The cpu's language, but for one attribute, or one keyword."""
    language = get_context("cpu").language
    said = {each: getattr(language, each) for each in ("types", "math", "keywords")} | {"group": None}
    said |= {name: value} if name in said else {"keywords": {**language.keywords, name: value}}
    return SimpleNamespace(**said)


LANGUAGE = [("math", {}), ("unroll", "UNROLL"), ("independent", "INDEPENDENT"), ("apart", "APART"), ("stream", "S"),
            ("types", {name: f"my_{name}" for name in ("float32", "int32", "int64", "uint32")})]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), LANGUAGE, ids=[name for name, _ in LANGUAGE])
def test_every_language_has_texts_of_its_own(laid: list[str], name: str, value: Any) -> None:
    call, mine, theirs = call_of(), get_context("cpu").language, other(name, value)
    for language in (mine, theirs, mine, theirs):
        another_process()
        fresh = kernels.write(call, language, kernels.CallNests(call))
        assert texts(call, language) == [piece.text.body for piece in fresh]
    laid.clear()
    another_process()
    assert texts(call, theirs) and not laid


def test_dtypes_and_aliases_have_texts_of_their_own(laid: list[str]) -> None:
    language = get_context("cpu").language
    calls = [call_of(dtype, alias) for dtype in ("float32", "float64", "float16") for alias in (False, True)]
    first = [texts(call, language) for call in calls]
    assert len({str(each) for each in first}) >= 4  # over the operand, or half: all of the row is read before
    for call, known in reversed(list(zip(calls, first, strict=True))):
        another_process()
        laid.clear()
        assert texts(call, language) == known
        assert not laid


def test_guards_are_asked(laid: list[str]) -> None:
    """Each size has the text that is written for it alone, whoever came before."""
    language, sizes = get_context("cpu").language, (1, 3, 64, 5000)
    for before in sizes:
        for mine in sizes:
            another_process()
            texts(call_of(rows=before), language)
            another_process()
            call = call_of(rows=mine)
            fresh = kernels.write(call, language, kernels.CallNests(call))
            assert texts(call, language) == [piece.text.body for piece in fresh], (before, mine)


def test_estimates_are_of_their_own_sizes(laid: list[str]) -> None:
    alone = {}
    for rows in (64, 640, 6400):
        forget_nests()
        alone[rows] = estimated(call_of(rows=rows))
    assert len({total for total, _ in alone.values()}) == 3
    laid.clear()
    for rows in (6400, 64, 640):
        another_process()
        assert estimated(call_of(rows=rows)) == alone[rows]
    assert not laid


def test_what_one_device_cannot_compute_is_no_answer_for_another(laid: list[str]) -> None:
    """An estimate says, too, that loops cannot compute a call: that is of the device."""
    able = devices.unit(devices.host())
    info = SimpleNamespace(dtypes=frozenset(able.info.dtypes) - {"float32"})
    words = SimpleNamespace(types={name: text for name, text in able.language.types.items() if name != "float32"})
    unable = (SimpleNamespace(info=info, language=able.language), SimpleNamespace(info=able.info, language=words))
    for _ in range(2):
        assert [cost.estimate(call_of(), unit) for unit in unable] == [None, None]
        estimated(call_of())
        another_process()


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with one source file, as the module that asks lies in it."""
    for package in guarded_cache._PACKAGES:
        (tmp_path / package).mkdir()
    monkeypatch.setattr(guarded_cache, "__file__", str(tmp_path / "render" / "loops" / "guarded_cache.py"))
    monkeypatch.setattr(guarded_cache, "_IMPORTED", time.time() + 100)
    guarded_cache._sources.cache_clear()
    yield tmp_path
    guarded_cache._sources.cache_clear()


def sources() -> str:
    guarded_cache._sources.cache_clear()
    return guarded_cache._sources()


def test_source_files_are_told_from_others_by_what_they_say(tree: Path) -> None:
    file = tree / "expr" / "within" / "a.py"
    file.parent.mkdir()
    file.write_text("LINE = 512")
    before, facts = sources(), file.stat()
    assert before
    file.write_text("LINE = 256")
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert sources() not in ("", before)
    (tree / "base" / "b.py").write_text("")
    assert sources() not in ("", before)


def test_without_text_of_what_runs_nothing_is_said(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sources() == ""  # bytecode alone
    (tree / "expr" / "a.py").write_text("")
    assert sources() != ""
    monkeypatch.setattr(guarded_cache, "_IMPORTED", time.time() - 100)
    assert sources() == ""  # it was written since
    monkeypatch.setattr(guarded_cache, "__file__", str(tree / "archive.zip" / "render" / "loops" / "a.py"))
    assert sources() == ""


def test_threads_may_ask_at_once(laid: list[str]) -> None:
    calls = [call_of(rows=rows) for rows in range(1, 60)]
    expected = [estimated(call) for call in calls]
    forget_nests()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for found in pool.map(lambda _: [estimated(call_of(rows=rows)) for rows in range(1, 60)], range(4)):
                assert found == expected
    finally:
        sys.setswitchinterval(interval)


# The table of numbers -------------------------------------------------------------------------------------------------

LEAVES = [size("a"), size("b"), attribute("f"), value_leaf("v", False), number(3), number(2.5), number(True)]
VALUES = {"a": 7, "b": 12, "f": 0.25, "v": -2.0, "X.0.lod0.offsets": (0, 3, 5)}
TWO = ["add", "sub", "mul", "div", "floordiv", "mod", "minimum", "maximum", "less", "equal"]


def through_a_file(n: Number) -> Number:
    table = NumberTable()
    at = table.place(n)
    read = NumberTable(json.loads(json.dumps(table.rows)))
    read.check(VALUES)
    assert repr(read.evaluate(VALUES)[at]) == repr(n.evaluate(VALUES))
    return read.number(at)


@pytest.mark.parametrize("seed", range(20))
def test_numbers_are_the_same_behind_a_file(seed: int) -> None:
    rng = np.random.default_rng(seed)
    numbers = [*LEAVES, Number("longest", (offsets_leaf("X", 0, 0),))]
    for _ in range(30):
        a, b = (numbers[k] for k in rng.integers(len(numbers), size=2))
        numbers.append(apply(str(rng.choice(TWO)), a, b))
    for n in numbers:
        found = through_a_file(n)
        assert (found.key, found.whole) == (n.key, n.whole)
        assert repr(found.evaluate(VALUES)) == repr(n.evaluate(VALUES))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.0, 1e-320, 2**70])
def test_constants_are_the_same_behind_a_file(value: float) -> None:
    assert repr(through_a_file(number(value)).value) == repr(value)


NONE = [
    ["eval", [], "1", True],
    ["const", [], "1", True],
    ["size", [], 1, True],
    ["size", [], "other", True],
    ["size", [0], "a", True],
    ["const", [0], 5, True],
    ["size", [], "X.0.lod0.offsets", True],
    ["offsets", [], "a", True],
    ["add", [0, 1], None, True],
    ["add", [0, 2], None, True],
    ["add", [0, -1], None, True],
    ["add", [0, "a"], None, True],
]


@pytest.mark.parametrize("row", NONE)
def test_a_row_that_is_no_number_is_refused(row: list[Any]) -> None:
    before = [["const", [], 1, True], ["offsets", [], "X.0.lod0.offsets", True]]
    with pytest.raises(ValueError, match="is no number"):
        NumberTable([*before, row]).check(VALUES)


def test_functions_take_as_many_operands_as_they_do() -> None:
    with pytest.raises(TypeError):
        NumberTable([["const", [], 1, True], ["add", [0], None, True]]).check(VALUES)


def test_what_compares_nothing_is_refused() -> None:
    table = NumberTable([["const", [], 1, True], ["offsets", [], "X.0.lod0.offsets", True]])
    for op, b in (("add", 0), ("less", 1), ("less", 2), ("less", -1), ("less", "0")):
        with pytest.raises(ValueError, match="compares nothing"):
            table.check_comparisons([(op, 0, b, True)])
