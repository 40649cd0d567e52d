"""A training that goes on from saved files draws the random numbers that it would have drawn."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from forks import Forks
from resumed_training import build, load, save, train

import fluidlite as fluid
from fluidlite import layers
from fluidlite.base.errors import SavedModelError

WAYS = ("save", "paddle save", "one file a variable", "one file", "members")


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
@pytest.mark.parametrize("place", ["cpu", pytest.param("opencl", marks=pytest.mark.opencl), "fpga"])
def test_three_steps_and_three_are_six(place: str, mode: str, tmp_path: Path) -> None:
    for way in WAYS if place == "cpu" else WAYS[:1]:
        folder = str(tmp_path / way)
        whole = train(folder, way, place, mode, 0, 6)
        parts = train(folder, way, place, mode, 0, 3) + train(folder, way, place, mode, 3, 6)
        assert parts == whole, way
        assert len(set(whole[1::4])) == 6


def test_in_another_process(forks: Forks, tmp_path: Path) -> None:
    script = Path(__file__).with_name("resumed_training.py")
    found = [forks(script, tmp_path, "save", "cpu", "compiled", a, b) for a, b in (("0", "6"), ("0", "3"), ("3", "6"))]
    assert not any(each.returncode for each in found), found
    assert found[1].stdout + found[2].stdout == found[0].stdout


def test_old_files_load_and_begin_anew(tmp_path: Path) -> None:
    """A file without the numbers: a new scope draws as at its first run."""
    folder = str(tmp_path)
    first = train(folder, "save", "cpu", "compiled", 0, 3)
    (tmp_path / "model.random").unlink()
    again = train(folder, "save", "cpu", "compiled", 3, 4)
    assert again[1] == first[1]


def test_programs_that_draw_nothing_again_save_no_file(tmp_path: Path) -> None:
    """Without a seed each process draws others; nothing is to be kept then."""
    exe = fluid.Executor("cpu")
    for seed, random in ((0, True), (5, False)):
        main = fluid.Program()
        main.random_seed = seed
        with fluid.program_guard(main, fluid.Program()):
            layers.create_global_var([1], 1.0, "float32", persistable=True, name="one")
            out = layers.uniform_random([3]) if random else layers.fill_constant([3], "float32", 0.0)
        fluid.global_scope().var("one").get_tensor().set(np.ones(1, "float32"))
        exe.run(main, fetch_list=[out])
        for way in ("save", "one file", "one file a variable"):
            save(way, exe, str(tmp_path / way), main)
        assert not [path for path in tmp_path.rglob("*") if "random" in path.name]


def test_two_programs_in_one_folder_both_go_on(tmp_path: Path) -> None:
    exe, programs = fluid.Executor("cpu"), []
    for seed in (3, 4):
        main = fluid.Program()
        main.random_seed = seed
        with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard(f"p{seed}"):
            layers.create_global_var([1], 1.0, "float32", persistable=True, name=f"one{seed}")
            programs.append((main, layers.uniform_random([3])))
        fluid.global_scope().var(f"one{seed}").get_tensor().set(np.ones(1, "float32"))

    def draw() -> list[bytes]:
        return [exe.run(main, fetch_list=[out])[0].tobytes() for main, out in programs]

    draw()
    for main, _ in programs:
        save("one file a variable", exe, str(tmp_path), main)
    second = draw()
    with fluid.scope_guard(fluid.Scope()):
        for main, _ in programs:
            load("one file a variable", exe, str(tmp_path), main)
        assert draw() == second


def test_a_variable_is_not_overwritten(tmp_path: Path) -> None:
    """In Paddle's format a file has the variable's name."""
    main = fluid.Program()
    main.random_seed = 3
    with fluid.program_guard(main, fluid.Program()):
        layers.create_global_var([1], 1.0, "float32", persistable=True, name="__random__")
        layers.uniform_random([3])
    fluid.global_scope().var("__random__").get_tensor().set(np.ones(1, "float32"))
    exe = fluid.Executor("cpu")
    save("one file a variable", exe, str(tmp_path / "ours"), main)
    with pytest.raises(SavedModelError, match=r"'__random__', a name that saved models use\n  Do: "):
        fluid.io.save_persistables(exe, str(tmp_path / "theirs"), main, format="paddle")
    assert not (tmp_path / "theirs").exists()


BAD = {
    "truncated": b'{"format": "fluidlite.random", "version": 1, "runs": [[1, 5',
    "no JSON": b"\x00\xff",
    "deep": b"[" * 100_000,
    "another": b'{"format": "other"}',
    "newer": b'{"format": "fluidlite.random", "version": 9, "runs": []}',
    "no runs": b'{"format": "fluidlite.random", "version": 1}',
    "not three": b'{"format": "fluidlite.random", "version": 1, "runs": [[1, 5]]}',
    "no ints": b'{"format": "fluidlite.random", "version": 1, "runs": [[1, 5, true]]}',
    "negative": b'{"format": "fluidlite.random", "version": 1, "runs": [[1, 5, -1]]}',
    "huge": b'{"format": "fluidlite.random", "version": 1, "runs": [[1, 5, 1e999]]}',
    "too large": b'{"format": "fluidlite.random", "version": 1, "runs": [[1, 5, 99999999999999999999999]]}',
    "too long": bytes((16 << 20) + 1),
    "digits": b'{"format": "fluidlite.random", "version": 1, "runs": [[1, 5, ' + b"9" * 10_000 + b"]]}",
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_file_is_refused_and_nothing_is_loaded(bad: str, tmp_path: Path) -> None:
    train(str(tmp_path), "save", "cpu", "compiled", 0, 3)
    (tmp_path / "__manifest__").unlink()
    (tmp_path / "model.random").write_bytes(BAD[bad])
    main, startup, _ = build()
    exe, scope = fluid.Executor("cpu"), fluid.Scope()
    with fluid.scope_guard(scope):
        exe.run(startup)
        before = {name: scope.var(name).get_tensor().numpy().copy() for name in scope.local_var_names()}
        runs = scope.random_runs()
        with pytest.raises(SavedModelError, match=r"model\.random (is|has|says)(?s:.*)Do: ") as error:
            load("save", exe, str(tmp_path), main)
        assert str(error.value).count("model.random") == 1
        for name, value in before.items():
            np.testing.assert_array_equal(scope.var(name).get_tensor().numpy(), value)
        assert scope.random_runs() == runs


def test_counts_are_kept_as_they_are(tmp_path: Path) -> None:
    train(str(tmp_path), "save", "cpu", "compiled", 0, 3)
    runs = json.loads((tmp_path / "model.random").read_text())["runs"]
    assert {(seed, count) for _, seed, count in runs if seed == 5} == {(5, 3), (5, 6)}  # the loop draws twice a run
