"""Sparse rows as values: layers of them against the dense ones, scopes, copies and files of programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import io, layers, optimizer
from fluidlite.errors import OutOfRangeError, ProgramError, SavedModelError

HEIGHT, WIDTH = 12, 3
PLACES = [str(place) for place in fluid.places()]
IDS = np.array([[3], [7], [3], [0], [11], [3]])
ROWS = fluid.core.VarDesc.VarType.SELECTED_ROWS


def gradient(height: int = HEIGHT, name: str = "table") -> Any:
    """Append a lookup and return the gradient of its table, [-1.5, ...] times how often a row comes."""
    ids = layers.data("ids", [1], dtype="int64")
    table = fluid.ParamAttr(name=name, initializer=fluid.initializer.Constant(1.0))
    found = layers.embedding(ids, [height, WIDTH], is_sparse=True, param_attr=table)
    weights = layers.assign(np.array([0.5, -1.5, 2.0], "float32"))
    pairs = optimizer.SGD(0.1).backward(layers.reduce_sum(layers.elementwise_mul(found, weights)))
    return next(grad for param, grad in pairs if param.name == name)


def whole(values: np.ndarray, rows: np.ndarray, height: int = HEIGHT) -> np.ndarray:
    """The dense tensor in float64."""
    found = np.zeros((height, WIDTH))
    np.add.at(found, rows, values.astype("float64"))
    return found


DENSE = whole(np.tile([0.5, -1.5, 2.0], (6, 1)), IDS[:, 0])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_layers_are_those_of_the_dense_gradient(place: str, mode: str) -> None:
    grad = gradient()
    norm = np.sqrt((DENSE**2).sum())
    cases: list[tuple[Any, np.ndarray]] = [
        (layers.scale(grad, -3.0), -3.0 * DENSE),
        (layers.clip(grad, -2.0, 1.0), np.clip(DENSE, -2.0, 1.0)),
        (layers.clip_by_norm(grad, 1.5), DENSE * (1.5 / norm)),
        (layers.clip_by_norm(grad, 100.0), DENSE),
        (layers.sum([grad, layers.scale(grad, 2.0), grad]), 4 * DENSE),
        (layers.sums([grad]), DENSE),
        (-(grad * 2.0) / 4.0, -0.5 * DENSE),
    ]
    dense = layers.sums([grad, layers.ones([HEIGHT, WIDTH], "float32"), grad])
    assert dense.selected is None
    fetches = [dense]
    for case, _ in cases:
        assert case.type == ROWS and case.selected.height == HEIGHT
        fetches += [layers.get_tensor_from_selected_rows(case), case.selected.rows]
    exe = fluid.Executor(place, mode=mode, fallback="allow")
    exe.run(fluid.default_startup_program())
    for _ in range(2):
        got, *parts = exe.run(feed={"ids": IDS}, fetch_list=fetches)
        np.testing.assert_allclose(got, 2 * DENSE + 1, rtol=1e-6)
        for (_, wanted), values, rows in zip(cases, parts[::2], parts[1::2], strict=True):
            np.testing.assert_allclose(whole(values, rows), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda g: layers.scale(g, 2.0, bias=1.0), "scale: x, .* is sparse rows .* bias 1.0"),
        (lambda g: layers.scale(g, 2.0, act="relu"), "act 'relu'"),
        (lambda g: layers.clip(g, 0.5, 1.0), r"0.5 to 1.0 leaves out 0"),
        (lambda g: layers.sums([g], out=layers.ones([2], "float32")), "and so is their sum"),
        (lambda g: layers.sum([g, gradient(5, "other")]), "different heights: .*of 12.*of 5"),
    ],
)
def test_what_would_change_other_rows_is_refused(use: Callable[[Any], Any], text: str) -> None:
    grad = gradient()
    with pytest.raises(ProgramError, match=text):
        use(grad)


@pytest.mark.parametrize("place", PLACES)
def test_a_scope_holds_them(place: str) -> None:
    grad = gradient()
    grad.persistable = True
    exe = fluid.Executor(place, fallback="allow")
    exe.run(fluid.default_startup_program())
    with pytest.raises(ProgramError, match="holds no value"):
        grad.get_value()
    for ids in (IDS, IDS[:2]):
        exe.run(feed={"ids": ids})
        for found in (grad.get_value(), fluid.global_scope().var(grad.name).get_selected_rows()):
            assert found.rows() == ids[:, 0].tolist() and found.height() == HEIGHT
            np.testing.assert_allclose(found.to_dense(), whole(np.tile([0.5, -1.5, 2.0], (len(ids), 1)), ids[:, 0]))
    with pytest.raises(ProgramError, match="holds a tensor, no SelectedRows"):
        fluid.global_scope().find_var("table").get_selected_rows()
    table = fluid.default_main_program().global_block().var("table")
    np.testing.assert_array_equal(np.array(table.get_value()), np.ones((HEIGHT, WIDTH)))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_programs_read_what_a_scope_is_given(place: str, mode: str) -> None:
    block = fluid.default_main_program().global_block()
    given = block.create_var("given", [HEIGHT, WIDTH], "float32", persistable=True, type=ROWS)
    merged = layers.merge_selected_rows(given)
    values = layers.get_tensor_from_selected_rows(merged)
    dense = layers.sums([given, layers.zeros([HEIGHT, WIDTH], "float32")])
    exe = fluid.Executor(place, mode=mode, fallback="allow")
    for rows in ([4, 1, 4], [11, 11], []):
        held = fluid.global_scope().var("given").get_selected_rows()
        held.set_height(HEIGHT)
        held.set_rows(rows)
        array = np.arange(len(rows) * WIDTH, dtype="float32").reshape(-1, WIDTH)
        held.get_tensor().set(array, exe.place)
        numbers, sums, found = exe.run(fetch_list=[merged.selected.rows, values, dense])
        np.testing.assert_array_equal(found, whole(array, np.array(rows, int)))
        np.testing.assert_array_equal(whole(sums, numbers), found)
        np.testing.assert_array_equal(held.to_dense(), found)
    held.set_rows([HEIGHT])
    held.get_tensor().set(np.ones((1, WIDTH), "float32"), exe.place)
    with pytest.raises(OutOfRangeError):
        exe.run(fetch_list=[dense])
    with pytest.raises(OutOfRangeError, match="row 12"):
        held.to_dense()
    held.set_rows([2])
    assert exe.run(fetch_list=[dense])[0][2].tolist() == [1, 1, 1]


def test_selected_rows_of_the_core() -> None:
    rows = fluid.core.SelectedRows([1, 3, 1], 5)
    assert rows.rows() == [1, 3, 1] and rows.height() == 5
    rows.get_tensor().set(np.ones((3, 2), "float32"), fluid.CPUPlace())
    np.testing.assert_array_equal(rows.to_dense()[:, 0], [0, 2, 0, 1, 0])
    rows.set_rows([0])
    with pytest.raises(ProgramError, match="1 rows hold"):
        rows.to_dense()
    for bad in ([-1], [1.5], ["a"]):
        with pytest.raises(ProgramError, match=r"[Rr]ow"):
            rows.set_rows(bad)  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="height"):
        rows.set_height(-3)
    with pytest.raises(ProgramError, match=r"expected those of the whole tensor"):
        fluid.default_main_program().global_block().create_var("bad", [-1, 3], "float32", type=ROWS)


@pytest.mark.parametrize("copy", [lambda p: p.clone(), lambda p: fluid.Program.from_json(p.to_json())])
def test_copies_of_a_program_keep_them(copy: Callable[[Any], Any]) -> None:
    grad = layers.scale(gradient(), 2.0)
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    program = copy(fluid.default_main_program())
    found = program.global_block().var(grad.name)
    assert found.selected == grad.selected and found.type == ROWS
    with fluid.program_guard(program, fluid.Program()):
        merged = layers.merge_selected_rows(found)
    values, rows = exe.run(program, feed={"ids": IDS}, fetch_list=[merged, merged.selected.rows])
    np.testing.assert_allclose(whole(values, rows), 2 * DENSE)


@pytest.mark.parametrize(
    "change",
    [{"height": 0}, {"height": "x"}, {"rows": "nobody"}, {"rows": 3}, {"merged": 1}, None],
    ids=str,
)
def test_files_of_programs_are_not_trusted(change: dict[str, Any] | None) -> None:
    grad = gradient()
    record = json.loads(fluid.default_main_program().to_json())
    (one,) = [each for each in record["blocks"][0]["vars"] if each["name"] == grad.name]
    one["selected"] = {**one["selected"], **change} if change is not None else []
    with pytest.raises(SavedModelError, match="not a program"):
        fluid.Program.from_json(json.dumps(record))


@pytest.mark.parametrize("filename", [None, "all"])
def test_saved_and_loaded(tmp_path: Path, filename: str | None) -> None:
    grad = gradient()
    grad.persistable = True
    main = fluid.default_main_program()
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    exe.run(feed={"ids": IDS})
    for vars in (None, [grad]):
        io.save_vars(exe, tmp_path / str(vars), main, vars, io.is_persistable, filename)
        with fluid.scope_guard(fluid.Scope()):
            io.load_vars(exe, tmp_path / str(vars), main, vars, io.is_persistable, filename)
            found = fluid.global_scope().find_var(grad.name).get_selected_rows()
            assert found.rows() == IDS[:, 0].tolist() and found.height() == HEIGHT
            np.testing.assert_allclose(found.to_dense(), DENSE)


def test_a_list_of_variables_to_load_includes_their_rows(tmp_path: Path) -> None:
    grad = gradient()
    grad.persistable = True
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    exe.run(feed={"ids": IDS})
    fluid.save(fluid.default_main_program(), str(tmp_path / "m"))
    fluid.global_scope().find_var(grad.name).get_selected_rows().set_rows([7] * len(IDS))
    fluid.load(fluid.default_main_program(), str(tmp_path / "m"), exe, var_list=[grad])
    np.testing.assert_allclose(grad.get_value().to_dense(), DENSE)


@pytest.mark.parametrize(
    ("rows", "text"),
    [([0, 1, 2, 3, 4, HEIGHT], "row 12"), ([0, 1, -1, 3, 4, 5], "row -1"), ([0, 1], "2.* numbers of rows")],
)
def test_files_of_rows_are_not_trusted(tmp_path: Path, rows: list[int], text: str) -> None:
    grad = gradient()
    grad.persistable = True
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    exe.run(feed={"ids": IDS})
    scope = fluid.global_scope()
    scope.find_var(grad.selected.rows).get_tensor().set(np.array(rows, "int64"), fluid.CPUPlace())
    io.save_vars(exe, tmp_path, vars=[grad])
    scope.find_var(grad.name).get_selected_rows().set_rows(IDS[:, 0])
    with pytest.raises(SavedModelError, match=text):
        io.load_vars(exe, tmp_path, vars=[grad])
    np.testing.assert_allclose(grad.get_value().to_dense(), DENSE)  # nothing was set
