"""Answers about nests that lie on disk: the same as those that are found anew, and none where anything is another."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loop_texts import forget_nests

import fluidlite as fluid
from fluidlite import layers
from fluidlite.base.disk_cache import DiskCache
from fluidlite.expr.number import Number, apply, attribute, number, offsets_leaf, size, value_leaf
from fluidlite.expr.number_table import NumberTable, condition_of, numbers_of
from fluidlite.platform.context_pool import get_context
from fluidlite.render.loops import kept_answers, kernels


@pytest.fixture
def laid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A folder of its own; the types of operators whose loops are laid out."""
    types: list[str] = []
    init = kernels._Laid.__init__

    def noted(self: Any, call: Any) -> None:
        types.append(call.op.type)
        init(self, call)

    monkeypatch.setattr(kernels._Laid, "__init__", noted)
    monkeypatch.setattr(kept_answers, "_disk", DiskCache(tmp_path))
    another_process()
    yield types
    another_process()


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
    long = run(64, layers.softmax, width=4000)
    another_process()
    short = run(64, layers.softmax, width=5)
    laid.clear()
    another_process()
    assert np.array_equal(run(64, layers.softmax, width=5), short)
    assert np.array_equal(run(64, layers.softmax, width=4000), long)
    assert not laid


def test_other_source_files_have_other_answers(laid: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    run(64, several)
    another_process()
    laid.clear()
    monkeypatch.setattr(kept_answers, "_SOURCES", "others")
    run(64, several)
    assert laid


def test_without_source_files_nothing_is_kept(laid: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_answers, "_SOURCES", "")
    run(64, several)
    assert laid and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{",
        b"[[], [[[], 3]]]",
        b'[[["os.system", [], 1, true]], []]',
        b'[[], [[[["less", 0, 1, true]], null]]]',
    ],
)
def test_what_is_no_answer_is_as_good_as_none(laid: list[str], content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run(64, several)
    another_process()
    laid.clear()
    monkeypatch.setattr(kept_answers._disk, "get", lambda *key: content)
    assert np.array_equal(run(64, several), expected)
    assert laid


def test_a_folder_that_cannot_be_written(
    laid: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setattr(kept_answers, "_disk", DiskCache(tmp_path / "file", "loops"))
    expected = run(64, several)
    assert laid and "loops cannot be kept on disk" in caplog.text
    assert np.isfinite(expected).all()


def test_an_object_that_is_no_plain_value_is_not_said() -> None:
    for plain in (1, 1.5, "a", None, (True, (2, "b")), size("n") + 1):
        kept_answers._plain(plain)
    assert kept_answers._plain(number(1)) != kept_answers._plain(1)
    for other in (object(), [1], (1, object()), np.float32(1)):
        with pytest.raises(TypeError, match="plain value"):
            kept_answers._plain(other)


def test_every_language_has_answers_of_its_own() -> None:
    """Words, groups and tables of functions are part of what is asked."""
    language = get_context("cpu").language
    words = kernels._words(language)

    class Other:
        types, math, keywords = language.types, {**language.math, "exp": "my_exp"}, language.keywords
        group = None

    assert kernels._words(Other()) != words


# The table of numbers -------------------------------------------------------------------------------------------------

LEAVES = [size("a"), size("b"), attribute("f"), value_leaf("v", False), number(3), number(2.5), number(True)]
VALUES = {"a": 7, "b": 12, "f": 0.25, "v": -2.0, "X.0.lod0.offsets": (0, 3, 5)}
TWO = ["add", "sub", "mul", "div", "floordiv", "mod", "minimum", "maximum", "less", "equal"]


def through_a_file(n: Number) -> Number:
    table = NumberTable()
    at = table.place(n)
    return numbers_of(json.loads(json.dumps(table.rows)))[at]


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


@pytest.mark.parametrize(
    "row",
    [
        ["eval", [], "1", True],
        ["const", [], "1", True],
        ["size", [], 1, True],
        ["size", [0], "a", True],
        ["x", [], 1, 1],
    ],
)
def test_a_row_that_is_no_number_is_refused(row: list[Any]) -> None:
    with pytest.raises(ValueError, match="is no number"):
        numbers_of([["const", [], 1, True], row])
    with pytest.raises(ValueError, match="compares nothing"):
        condition_of([number(1)], "add", 0, 0)
