"""Saved variables and inference models: round trips, and files that are not what they claim to be."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors import deserialize
from safetensors.numpy import save_file

import fluidlite as fluid
from fluidlite import io
from fluidlite.base.errors import ProgramError, SavedModelError
from fluidlite.executor import Executor
from fluidlite.io.paths import file_of
from fluidlite.platform.device_registry import devices
from fluidlite.program.program import Program
from fluidlite.program.scope import Scope, global_scope, scope_guard

EXECUTOR: Any = SimpleNamespace(place="cpu")
VALUES = {
    "fc_0.w_0": np.arange(12, dtype="float32").reshape(3, 4),
    "step": np.asarray([7], "int64"),
    "half": np.asarray([[1.5, -2.25]], ml_dtypes.bfloat16),
    "wide": np.asarray([1e300], "float64"),
    "flag": np.asarray([True, False]),
    "none": np.zeros((0, 3), "float32"),
    "scalar": np.asarray(2.5, "float32"),
    "../evil/..name\0": np.asarray([1.0], "float32"),
}


def program_of(values: dict[str, np.ndarray[Any, Any]]) -> Program:
    program = Program()
    block = program.global_block()
    for name, value in values.items():
        if name.startswith("fc"):
            block.create_parameter(name, value.shape, value.dtype)
        else:
            block.create_var(name, value.shape, value.dtype, persistable=True)
    return program


def fill(values: dict[str, np.ndarray[Any, Any]]) -> None:
    for name, value in values.items():
        global_scope().var(name).get_tensor().set(value, "cpu")


def value_of(name: str) -> np.ndarray[Any, Any]:
    found = global_scope().find_var(name)
    assert found is not None
    return found.get_tensor().numpy()


@pytest.fixture(autouse=True)
def scope() -> Iterator[Scope]:
    with scope_guard(Scope()):
        yield global_scope()


@pytest.mark.parametrize("filename", [None, "all.safetensors"])
def test_persistables_come_back(tmp_path: Path, filename: str | None) -> None:
    program = program_of(VALUES)
    fill(VALUES)
    io.save_persistables(EXECUTOR, tmp_path / "model", program, filename)
    assert not (tmp_path / "evil").exists()
    assert len(list((tmp_path / "model").iterdir())) == (1 if filename else len(VALUES)) + 1  # the manifest
    with scope_guard(Scope()):
        io.load_persistables(EXECUTOR, tmp_path / "model", program, filename)
        for name, value in VALUES.items():
            assert value_of(name).dtype == value.dtype
            np.testing.assert_array_equal(value_of(name), value)


@pytest.mark.parametrize("names", [("score", "seen"), ("b", "a")])
def test_values_of_no_elements_lie_where_others_begin(tmp_path: Path, names: tuple[str, str]) -> None:
    values = dict(zip(names, (np.float32([1, 2]), np.zeros(0, "int64")), strict=True))
    program = program_of(values)
    fill(values)
    io.save_persistables(EXECUTOR, tmp_path, program, "all")
    fluid.save(program, str(tmp_path / "m"))
    for load in (
        lambda: io.load_persistables(EXECUTOR, tmp_path, program, "all"),
        lambda: fluid.load(program, str(tmp_path / "m")),
    ):
        with scope_guard(Scope()):
            load()
            for name, value in values.items():
                np.testing.assert_array_equal(value_of(name), value)


def test_a_saved_state_of_any_header_comes_back(tmp_path: Path) -> None:
    """A header is a multiple of 8 bytes, and its size is what the file begins with: some begin as pickles do."""
    begins = set()
    for length in range(8, 265, 8):
        name = "fc_" + "n" * length
        program = program_of({name: VALUES["half"]})
        fill({name: VALUES["half"]})
        fluid.save(program, tmp_path / "m")
        begins.add((tmp_path / "m.pdparams").read_bytes()[0])
        fill({name: np.zeros_like(VALUES["half"])})
        fluid.load(program, tmp_path / "m")
        np.testing.assert_array_equal(value_of(name), VALUES["half"])
        assert list(io.load_program_state(tmp_path / "m")) == [name]
    assert begins == set(range(0, 256, 8))


@pytest.mark.parametrize("place", [str(place) for place in devices.places()])
def test_values_go_to_the_executor_s_place(tmp_path: Path, place: str) -> None:
    program = program_of(VALUES)
    fill(VALUES)
    io.save_persistables(EXECUTOR, tmp_path / "host", program)
    with scope_guard(Scope()):
        io.load_persistables(Executor(place), tmp_path / "host", program)
        found = global_scope().find_var("half")
        assert found is not None
        assert str(found.get_tensor().place) == place
        io.save_persistables(EXECUTOR, tmp_path / "again", program)
    for path in (tmp_path / "host").iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


def test_the_lod_comes_back(tmp_path: Path) -> None:
    program = Program()
    program.global_block().create_var("rows", [-1, 2], "float32", lod_level=1, persistable=True)
    global_scope().var("rows").get_tensor().set(np.ones((5, 2), "float32"), "cpu", [[0, 2, 5]])
    io.save_persistables(EXECUTOR, tmp_path, program)
    with scope_guard(Scope()):
        io.load_persistables(EXECUTOR, tmp_path, program)
        found = global_scope().find_var("rows")
        assert found is not None
        assert found.get_tensor().lod() == [[0, 2, 5]]


def test_params_are_parameters_only(tmp_path: Path) -> None:
    fill(VALUES)
    io.save_params(EXECUTOR, tmp_path, program_of(VALUES))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["__manifest__", "fc_0.w_0.safetensors"]


def test_vars_are_chosen_by_name_and_by_predicate(tmp_path: Path) -> None:
    program = program_of(VALUES)
    fill(VALUES)
    io.save_vars(EXECUTOR, tmp_path / "named", program, vars=["step"])
    io.save_vars(EXECUTOR, tmp_path / "chosen", program, predicate=lambda v: v.dtype == "int64")
    assert [p.name for p in (tmp_path / "named").iterdir()] == [p.name for p in (tmp_path / "chosen").iterdir()]


def test_a_predicate_that_looks_for_files_is_told_their_names(tmp_path: Path) -> None:
    program = program_of(VALUES)
    fill(VALUES)
    io.save_persistables(EXECUTOR, tmp_path, program)
    with pytest.warns(UserWarning, match=r"(?s)loads nothing.*'fc_0.w_0' is 'fc_0.w_0.safetensors'.*format='paddle'"):
        io.load_vars(EXECUTOR, tmp_path, program, predicate=lambda v: (tmp_path / v.name).exists())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (tmp_path / "none").mkdir()
        io.load_vars(EXECUTOR, tmp_path / "none", program, predicate=lambda v: False)
        io.load_vars(EXECUTOR, tmp_path, program, predicate=lambda v: v.name == "fc_0.w_0")


def test_names_make_files_inside_the_folder() -> None:
    folder = Path("/models")
    for name in ("..", "../x", "/etc/passwd", "a\\b", "x" * 5000, "\ud800", "w@GRAD"):
        path = folder / file_of(name)
        assert path.parent == folder
        assert len(path.name) < 255
    assert file_of("x" * 5000) != file_of("x" * 5001)


def test_a_variable_without_a_value_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=r"'fc_0.w_0' has no value"):
        io.save_params(EXECUTOR, tmp_path / "model", program_of(VALUES))
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("keep", [0, 4, 8, 20, -1])
def test_a_truncated_file_is_refused_and_nothing_is_set(tmp_path: Path, keep: int) -> None:
    program = program_of(VALUES)
    fill(VALUES)
    io.save_persistables(EXECUTOR, tmp_path, program)
    path = tmp_path / "wide.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with scope_guard(Scope()):
        with pytest.raises(SavedModelError, match="truncated"):
            io.load_persistables(EXECUTOR, tmp_path, program)
        assert global_scope().local_var_names() == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.zeros((3, 5), "float32"), r"float32\[3, 4\] in the program, but float32\[3, 5\]"),
        (np.zeros((3, 4), "float64"), r"but float64\[3, 4\]"),
    ],
)
def test_other_dims_or_dtype_are_refused(tmp_path: Path, value: np.ndarray[Any, Any], expected: str) -> None:
    program = program_of(VALUES)
    fill(VALUES)
    io.save_persistables(EXECUTOR, tmp_path, program)
    save_file({"fc_0.w_0": value}, tmp_path / "fc_0.w_0.safetensors")
    with pytest.raises(SavedModelError, match=expected):
        io.load_persistables(EXECUTOR, tmp_path, program)


def rewrite(path: Path, metadata: str) -> None:
    """Give a file of one variable other metadata."""
    ((name, record),) = deserialize(path.read_bytes())
    array = np.frombuffer(record["data"], "float32").reshape(record["shape"])
    save_file({name: array}, path, {"fluidlite": metadata})


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ('{"version": 2}', "version 2"),
        ('{"version": "x"}', "malformed"),
        ("{}", "malformed"),
        ("[[[", "malformed"),
        ('{"version": 1, "lod": 3}', "malformed"),
        ('{"version": 1, "lod": {"fc_0.w_0": 3}}', "malformed"),
        ('{"version": 1, "lod": {"fc_0.w_0": [[0, 9]]}}', "covers 9 rows"),
    ],
)
def test_bad_metadata_is_refused(tmp_path: Path, metadata: str, expected: str) -> None:
    program = program_of({"fc_0.w_0": VALUES["fc_0.w_0"]})
    fill(VALUES)
    io.save_params(EXECUTOR, tmp_path, program)
    rewrite(tmp_path / "fc_0.w_0.safetensors", metadata)
    with pytest.raises(SavedModelError, match=expected):
        io.load_params(EXECUTOR, tmp_path, program)


def test_a_file_of_another_program_is_read(tmp_path: Path) -> None:
    """Metadata is fluidlite's own affair; a plain safetensors file is as good."""
    value = VALUES["fc_0.w_0"]
    save_file({"fc_0.w_0": value, "more": value}, tmp_path / "w.safetensors")
    io.load_params(EXECUTOR, tmp_path, program_of(VALUES), "w.safetensors")
    np.testing.assert_array_equal(value_of("fc_0.w_0"), value)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    program = program_of(VALUES)
    with pytest.raises(SavedModelError, match="no directory"):
        io.load_params(EXECUTOR, tmp_path / "nowhere", program)
    with pytest.raises(SavedModelError, match=r"no file .*fc_0\.w_0"):
        io.load_params(EXECUTOR, tmp_path, program)
    save_file({}, tmp_path / "all")
    with pytest.raises(SavedModelError, match=r"holds no variable 'fc_0\.w_0'"):
        io.load_params(EXECUTOR, tmp_path, program, "all")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = program_of({"fc_0.w_0": VALUES["fc_0.w_0"]})
    fill(VALUES)
    io.save_params(EXECUTOR, tmp_path, program)
    before = (tmp_path / "fc_0.w_0.safetensors").read_bytes()

    def fail(records: Any, path: str, metadata: Any) -> None:
        Path(path).write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr("safetensors.numpy.save_file", fail)
    with pytest.raises(SavedModelError, match=r"fc_0\.w_0\.safetensors cannot be written: disk full\n  Do: "):
        io.save_params(EXECUTOR, tmp_path, program)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["__manifest__", "fc_0.w_0.safetensors"]
    assert (tmp_path / "fc_0.w_0.safetensors").read_bytes() == before


# Inference models


def affine() -> tuple[Program, Any, Any]:
    """Out = x w, and a second branch that needs a label."""
    program = Program()
    block = program.global_block()
    x = block.create_var("x", [-1, 3], "float32", is_data=True)
    label = block.create_var("label", [-1, 4], "float32", is_data=True)
    w = block.create_parameter("fc_0.w_0", [3, 4], "float32")
    out, cost = block.create_var("out"), block.create_var("cost")
    block.append_op("mul", {"X": x, "Y": w}, {"Out": out})
    block.append_op("elementwise_sub", {"X": out, "Y": label}, {"Out": cost})
    return program, out, cost


@pytest.mark.parametrize("params", [None, "params"])
@pytest.mark.parametrize("model", [None, "model.json"])
def test_an_inference_model_gives_the_same_answers(tmp_path: Path, model: str | None, params: str | None) -> None:
    program, out, _ = affine()
    fill({"fc_0.w_0": VALUES["fc_0.w_0"]})
    executor = Executor("cpu")
    before = program.to_json()
    assert io.save_inference_model(tmp_path, ["x"], [out], executor, program, model, params) == ["out"]
    assert program.to_json() == before
    x = np.arange(6, dtype="float32").reshape(2, 3)
    with scope_guard(Scope()):
        loaded, feeds, fetches = io.load_inference_model(tmp_path, executor, model, params)
        assert feeds == ["x"]
        assert [op.type for op in loaded.global_block().ops] == ["mul"]
        (result,) = executor.run(loaded, feed={feeds[0]: x}, fetch_list=fetches)
    np.testing.assert_array_equal(result, x @ VALUES["fc_0.w_0"])


def test_targets_that_need_other_feeds_are_refused(tmp_path: Path) -> None:
    program, _, cost = affine()
    fill(VALUES)
    with pytest.raises(ProgramError, match="need 'label' to be fed"):
        io.save_inference_model(tmp_path, ["x"], [cost], EXECUTOR, program)
    with pytest.raises(ProgramError, match="no variable 'y'"):
        io.save_inference_model(tmp_path, ["y"], [cost], EXECUTOR, program)


def saved(folder: Path) -> Path:
    program, out, _ = affine()
    fill({"fc_0.w_0": VALUES["fc_0.w_0"]})
    io.save_inference_model(folder, ["x"], [out], EXECUTOR, program)
    return folder / "__model__"


@pytest.mark.parametrize(
    "change",
    [
        {"version": 99},
        {"format": "other"},
        {"fetch": []},
        {"fetch": ["gone"]},
        {"feed": ["../../x"]},
        {"blocks": []},
    ],
)
def test_a_hostile_model_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = saved(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with scope_guard(Scope()):
        with pytest.raises(SavedModelError):
            io.load_inference_model(tmp_path, EXECUTOR)
        assert global_scope().local_var_names() == []


def test_every_truncation_of_a_model_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path)
    content = path.read_bytes()
    for length in range(0, len(content) - 1, 97):
        path.write_bytes(content[:length])
        with pytest.raises(SavedModelError):
            io.load_inference_model(tmp_path, EXECUTOR)
