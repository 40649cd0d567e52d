"""Folders of saved models: kills, mixtures, links, names and what is no file; every failure is a SavedModelError."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fluidlite import io
from fluidlite.base.errors import SavedModelError
from fluidlite.io import tensor_file
from fluidlite.program.program import Program
from fluidlite.program.scope import Scope, global_scope, scope_guard

EXECUTOR: Any = SimpleNamespace(place="cpu")
NAMES = ("a", "b", "c")
KILLS = os.environ.get("FLUIDLITE_KILLS", "10")


@pytest.fixture(autouse=True)
def scope() -> Iterator[Scope]:
    with scope_guard(Scope()):
        yield global_scope()


def program_of(dims: tuple[int, ...] = (2, 3), names: tuple[str, ...] = NAMES) -> Program:
    program = Program()
    for name in names:
        program.global_block().create_parameter(name, dims, "float32")
    return program


def save(folder: Path, value: float, filename: str | None = None, names: tuple[str, ...] = NAMES) -> None:
    for name in names:
        global_scope().var(name).get_tensor().set(np.full((2, 3), value, "float32"), "cpu")
    io.save_params(EXECUTOR, folder, program_of(names=names), filename)


def load(folder: Path, filename: str | None = None, **options: Any) -> list[float]:
    """The values of the folder, each once."""
    with scope_guard(Scope()):
        io.load_params(EXECUTOR, folder, program_of(), filename, **options)
        return sorted({float(value) for name in NAMES for value in global_scope().var(name).get_tensor().numpy().flat})


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


ALL = ["__manifest__", "a.safetensors", "b.safetensors", "c.safetensors"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills child processes")
@pytest.mark.parametrize("filename", [None, "all"])
def test_a_kill_at_any_moment_leaves_the_old_model_or_the_new_one(filename: str | None) -> None:
    """In front of each action on files, and at random moments; FLUIDLITE_KILLS says how many of these."""
    seed = 1
    script = Path(__file__).with_name("kill_saves.py")
    made = subprocess.run(
        [sys.executable, str(script), KILLS, str(seed), *([filename] if filename else [])],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    print(made.stdout)
    assert made.returncode == 0, made.stderr
    assert "0 mixtures" in made.stdout


def test_loading_while_others_save_never_gives_a_mixture(tmp_path: Path) -> None:
    save(tmp_path, 0)
    failures: list[BaseException] = []
    saves, enough = [0, 0], threading.Event()

    def saver(which: int) -> None:
        try:
            with scope_guard(Scope()):
                while not enough.is_set():
                    save(tmp_path, 2 * saves[which] + which)
                    saves[which] += 1
        except BaseException as exc:
            failures.append(exc)
            enough.set()

    others = [threading.Thread(target=saver, args=(which,)) for which in (0, 1)]
    for other in others:
        other.start()
    loads, begun = 0, time.monotonic()
    try:
        while not enough.is_set() and (loads < 6 or min(saves) < 3 or time.monotonic() < begun + 1.5):
            assert len(load(tmp_path)) == 1
            loads += 1
    finally:
        enough.set()
        for other in others:
            other.join()
    assert not failures
    assert listing(tmp_path) == ALL


# What belongs together


def test_plain_names_hold_the_values_of_the_last_save(tmp_path: Path) -> None:
    """Readers that know nothing of manifests find each variable under its own name."""
    for value in (1, 2):
        save(tmp_path, value)
        for name in NAMES:
            np.testing.assert_array_equal(load_file(tmp_path / f"{name}.safetensors")[name], np.full((2, 3), value))


def test_saves_of_several_calls_stand_in_one_folder(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2, names=("c", "d"))
    assert load(tmp_path) == [1, 2]
    save(tmp_path, 3, "all")
    assert load(tmp_path, "all") == [3]
    assert load(tmp_path) == [1, 2]


def test_a_folder_without_a_manifest_is_loaded(tmp_path: Path) -> None:
    """Those that other programs, earlier versions or hands wrote."""
    for name in NAMES:
        save_file({name: np.ones((2, 3), "float32")}, tmp_path / f"{name}.safetensors")
    assert load(tmp_path) == [1]
    save(tmp_path, 2)
    assert load(tmp_path) == [2]


def test_a_file_beside_those_of_the_manifest_is_loaded(tmp_path: Path) -> None:
    save(tmp_path, 1, names=("a", "b"))
    save_file({"c": np.full((2, 3), 7, "float32")}, tmp_path / "c.safetensors")
    assert load(tmp_path) == [1, 7]


@pytest.mark.parametrize("same_size", [True, False])
def test_a_folder_that_others_mixed_is_refused(tmp_path: Path, same_size: bool) -> None:
    save(tmp_path / "one", 1)
    save(tmp_path / "two", 2)
    path = tmp_path / "one" / "b.safetensors"
    shutil.copy(tmp_path / "two" / "b.safetensors", path)
    if not same_size:
        save_file({"b": np.ones((2, 3), "float32"), "more": np.ones(1)}, path)
    with pytest.raises(SavedModelError, match=r"b\.safetensors was not saved together.*\n  Do: .*__manifest__"):
        load(tmp_path / "one")
    (tmp_path / "one" / "__manifest__").unlink()
    assert len(load(tmp_path / "one")) == 2 - (not same_size)


def test_a_program_of_another_save_is_refused(tmp_path: Path) -> None:
    program = program_of()
    block = program.global_block()
    for name in NAMES:
        global_scope().var(name).get_tensor().set(np.ones((2, 3), "float32"), "cpu")
    for folder, type in (("one", "relu"), ("two", "tanh")):
        block.append_op(type, {"X": "a"}, {"Out": block.create_var(folder)})
        io.save_inference_model(tmp_path / folder, [], [block.var(folder)], EXECUTOR, program)
    shutil.copy(tmp_path / "two" / "__model__", tmp_path / "one" / "__model__")
    with pytest.raises(SavedModelError, match="__model__ was not saved together"):
        io.load_inference_model(tmp_path / "one", EXECUTOR)


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"[" * 10**5, b"null", b"{}", b'{"format": "fluidlite.manifest", "version": true, "files": {}}',
        b'{"format": "fluidlite.manifest", "version": 2, "files": {}}',
        b'{"format": "fluidlite.manifest", "version": 1, "files": []}',
        b'{"format": "fluidlite.manifest", "version": 1, "files": {"a.safetensors": [1.0, "x"]}}',
        b'{"format": "fluidlite.manifest", "version": 1, "files": {"../a": [1, "x"]}}',
        b'{"format": "fluidlite.manifest", "version": 1, "files": {}, "pending": ".."}',
        b'{"format": "fluidlite.manifest", "version": 1, "files": {}, "pending": "/tmp"}',
        b" " * (5 << 20),
    ],
)  # fmt: skip
def test_a_malformed_manifest_is_refused(tmp_path: Path, text: bytes) -> None:
    save(tmp_path, 1)
    (tmp_path / "__manifest__").write_bytes(text)
    with pytest.raises(SavedModelError, match="__manifest__"):
        load(tmp_path)
    with pytest.raises(SavedModelError, match="__manifest__"):
        save(tmp_path, 2)


def test_a_pending_folder_that_is_a_link_moves_nothing(tmp_path: Path) -> None:
    save(tmp_path / "model", 1)
    save(tmp_path / "other", 2)
    path = tmp_path / "model" / "__manifest__"
    name = ".save-" + "0" * 16
    path.write_text(json.dumps({**json.loads(path.read_text()), "pending": name}))
    (tmp_path / "model" / name).symlink_to(tmp_path / "other")
    with pytest.raises(SavedModelError, match="outside"):
        load(tmp_path / "model")
    with pytest.raises(SavedModelError, match="outside"):
        save(tmp_path / "model", 3)
    assert load(tmp_path / "other") == [2]


def test_a_link_in_a_pending_folder_is_not_written_through(tmp_path: Path) -> None:
    save(tmp_path / "model", 1)
    save(tmp_path / "other", 2)
    path, name = tmp_path / "model" / "__manifest__", ".save-" + "0" * 16
    path.write_text(json.dumps({**json.loads(path.read_text()), "pending": name}))
    (tmp_path / "model" / name).mkdir()
    (tmp_path / "model" / name / "__manifest__").symlink_to(tmp_path / "other" / "__manifest__")
    before = (tmp_path / "other" / "__manifest__").read_bytes()
    save(tmp_path / "model", 3)
    assert (tmp_path / "other" / "__manifest__").read_bytes() == before
    assert load(tmp_path / "model") == [3]


def test_what_saves_that_were_cut_off_left_is_removed(tmp_path: Path) -> None:
    save(tmp_path, 1)
    for name in (".a.safetensors.abcd_123.tmp", ".b.safetensors.zzzzzzzz.tmp", ".mine.tmp"):
        (tmp_path / name).write_bytes(b"half")
    (tmp_path / ".save-0123456789abcdef" / "sub").mkdir(parents=True)
    (tmp_path / ".save-0123456789abcdef" / "sub" / "a").write_bytes(b"half")
    (tmp_path / ".save-mine").mkdir()
    save(tmp_path, 2)
    assert listing(tmp_path) == [".mine.tmp", *ALL]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [".save-mine"]


# Links, and what is no file


def outside(path: Path) -> Path:
    return path.with_name("outside.safetensors")


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link_to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def sparse(path: Path) -> None:
    """A header that promises 64 GiB, and a file that has them, as holes."""
    header = json.dumps({"b": {"dtype": "U8", "shape": [1 << 36], "data_offsets": [0, 1 << 36]}}).encode()
    with open(path, "wb") as stream:
        stream.write(struct.pack("<Q", len(header)) + header)
        stream.truncate(8 + len(header) + (1 << 36))


def unix_socket(path: Path) -> None:
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)


def directory(path: Path) -> None:
    path.mkdir()


def unreadable(path: Path) -> None:
    path.symlink_to("/proc/self/mem")


STRANGE = (fifo, link_to("/dev/zero"), link_to("/dev/stdin"), link_to("b.safetensors"), link_to("../.."), sparse,
           unix_socket, directory, unreadable, link_to("nowhere"))  # fmt: skip


@pytest.mark.parametrize("strange", STRANGE)
@pytest.mark.parametrize("follow_links", [False, True])
@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["b.safetensors", "__manifest__", "all", "__model__"])
def test_what_is_no_saved_file_is_refused_at_once(
    tmp_path: Path, strange: Callable[[Path], None], follow_links: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for each in NAMES:
        save_file({each: np.ones((2, 3), "float32")}, tmp_path / f"{each}.safetensors")
    (tmp_path / name).unlink(missing_ok=True)
    strange(tmp_path / name)
    began = time.process_time()  # who waits for a pipe is ended by the timeout of the test
    with pytest.raises(SavedModelError, match=r"(?s)" + name + r".*\n  Do: "):
        if name == "__model__":
            io.load_inference_model(tmp_path, EXECUTOR, follow_links=follow_links)
        else:
            load(tmp_path, "all" if name == "all" else None, follow_links=follow_links)
    assert time.process_time() - began < 2


def test_links_are_followed_inside_the_folder_and_outside_only_when_asked(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "sub").mkdir()
    for name, home in (("a", folder), ("b", folder / "sub"), ("c", tmp_path)):
        save_file({name: np.ones((2, 3), "float32")}, home / f"real_{name}")
        (folder / f"{name}.safetensors").symlink_to(os.path.relpath(home / f"real_{name}", folder))
    with pytest.raises(
        SavedModelError, match=r"c\.safetensors is a link to .*real_c, which is outside .*\n  Do: .*follow_l"
    ):
        load(folder)
    assert load(folder, follow_links=True) == [1]
    (tmp_path / "link").symlink_to(folder)  # the folder itself is the user's word
    assert load(tmp_path / "link", follow_links=True) == [1]
    save(tmp_path / "link", 2)  # replaces links, not what they lead to
    assert load(folder) == [2]
    np.testing.assert_array_equal(load_file(tmp_path / "real_c")["c"], np.ones((2, 3)))


# Names and paths


@pytest.mark.parametrize(
    "name",
    ["../x", "/tmp/x", "a/../../x", "..", ".", "", "a\0b", "\ud800x", "__manifest__", ".save-0123456789abcdef/x",
     "x" * 300, 7, b"bytes"],
)  # fmt: skip
def test_names_stay_inside_the_folder(tmp_path: Path, name: Any) -> None:
    folder = tmp_path / "model"
    for action in (lambda: save(folder, 1, name), lambda: load(folder, name)):
        with pytest.raises(SavedModelError, match=r"\n  Do: |expected|no file can be called|no directory"):
            action()
        assert listing(tmp_path) == []
    program = program_of()
    out = program.global_block().create_var("out")
    program.global_block().append_op("relu", {"X": "a"}, {"Out": out})
    save(tmp_path / "values", 1)
    with pytest.raises(SavedModelError):
        io.save_inference_model(folder, [], [out], EXECUTOR, program, params_filename=name)
    if name:  # "" is the default
        with pytest.raises(SavedModelError):
            io.save_inference_model(folder, [], [out], EXECUTOR, program, model_filename=name)
    assert listing(folder) == []


def test_folders_inside_the_folder_may_be_named(tmp_path: Path) -> None:
    save(tmp_path, 1, "sub/deep/all")
    assert load(tmp_path, "sub/deep/all") == [1]
    assert listing(tmp_path) == ["__manifest__", "sub/deep/all"]
    (tmp_path / "out").symlink_to(tmp_path.parent)
    with pytest.raises(SavedModelError, match="outside"):
        save(tmp_path, 1, "out/all")
    assert not (tmp_path.parent / "all").exists()


def test_program_and_parameters_do_not_take_one_name(tmp_path: Path) -> None:
    program = program_of()
    out = program.global_block().create_var("out")
    program.global_block().append_op("relu", {"X": "a"}, {"Out": out})
    save(tmp_path, 1)
    for model, params in ((None, "__model__"), ("x", "./x"), ("a.safetensors", None)):
        with pytest.raises(SavedModelError, match="both to be saved as"):
            io.save_inference_model(tmp_path, [], [out], EXECUTOR, program, model, params)


def test_paths_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "model" / "b.safetensors").mkdir(parents=True)
    for folder in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / ("x" * 300), "/proc/nothing", "a\0b", 7):
        with pytest.raises(SavedModelError, match=r"cannot be written|no file can be called|expected a path|no file"):
            save(folder, 1)  # type: ignore[arg-type]
        with pytest.raises(SavedModelError, match=r"no directory|no file can be called|expected a path"):
            load(folder)  # type: ignore[arg-type]
    with pytest.raises(SavedModelError, match="is a directory"):
        save(tmp_path / "model", 1)
    assert listing(tmp_path / "model") == []


def test_the_umask_holds_and_is_never_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = os.umask(0o027)
    try:
        monkeypatch.setattr(os, "umask", None)
        save(tmp_path / "model", 1)
        modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "model").iterdir()}
    finally:
        monkeypatch.undo()
        os.umask(old)
    assert modes == {0o640}


# Headers


def raw(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)


def entry(shape: Any, begin: Any, end: Any, dtype: Any = "F32", **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end], **more}


GOOD = entry([2, 3], 0, 24)


@pytest.mark.parametrize(
    "header",
    [
        {"b": entry([1] * 65, 0, 4)},
        {"b": entry([0, 2**62, 8], 0, 0)},
        {"b": entry([2**62, 2**62], 0, 24)},
        {"b": entry([2**70, 0], 0, 0)},
        {"b": entry([-2, -3], 0, 24)},
        {"b": entry([2.0, 3], 0, 24)},
        {"b": entry([True, 6], 0, 24)},
        {"b": entry("23", 0, 24)},
        {"b": entry([2, 3], 0, 24, dtype=["F32"])},
        {"b": entry([2, 3], 0, 24, dtype="F128")},
        {"b": entry([2, 3], 0, 24, more=1)},
        {"b": entry([2, 3], 0, 2**70)},
        {"b": entry([2, 3], -4, 20)},
        {"b": entry([2, 3], 24, 0)},
        {"b": {**GOOD, "data_offsets": [0, 24, 48]}},
        {"b": {**GOOD, "data_offsets": [float("inf"), 24]}},
        {"b": GOOD, "x": GOOD},
        {"b": entry([2, 2], 0, 16)},
        {"b": entry([2, 3], 0, 24), "x": entry([2], 16, 24)},
        {"b": GOOD, "__metadata__": 7},
        {"b": GOOD, "__metadata__": {"fluidlite": 7}},
        {"b": GOOD, "__metadata__": {"fluidlite": '{"version": Infinity}'}},
        {"b": GOOD, "__metadata__": {"fluidlite": '{"version": 1, "lod": {"b": [[0, Infinity]]}}'}},
        {"b": GOOD, "__metadata__": {"fluidlite": '{"version": 1, "lod": {"b": [[0, 1e400, 2]]}}'}},
        {"b": GOOD, "__metadata__": {"fluidlite": '{"version": 1, "lod": {"b": [[0, true, 2]]}}'}},
        {"b": GOOD, "__metadata__": {"fluidlite": "[" * 50_000}},
        {"b": GOOD, "__metadata__": {"fluidlite": "9" * 5_000}},
        {"b": [GOOD]},
        [],
        b'{"b": ' + json.dumps(GOOD).encode() + b', "b": ' + json.dumps(GOOD).encode() + b"}",
        b"[" * 100_000,
        b"\xff\xfe",
        b"",
    ],
)  # fmt: skip
@pytest.mark.parametrize("filename", [None, "b.safetensors"])
def test_hostile_headers_are_refused(tmp_path: Path, header: Any, filename: str | None) -> None:
    raw(tmp_path / "b.safetensors", header, bytes(24))
    with scope_guard(Scope()):
        with pytest.raises(SavedModelError, match=r"(?s)b\.safetensors.*\n  Do: |\n  Do: "):
            io.load_params(EXECUTOR, tmp_path, program_of(names=("b",)), filename)
        assert global_scope().local_var_names() == []


@pytest.mark.parametrize("length", [0, 1, 2**20, 2**40, 2**63, 2**64 - 1])
def test_lengths_of_headers_are_checked(tmp_path: Path, length: int) -> None:
    raw(tmp_path / "b.safetensors", {"b": GOOD}, bytes(24), length)
    with pytest.raises(SavedModelError, match="truncated or no safetensors file"):
        io.load_params(EXECUTOR, tmp_path, program_of(names=("b",)))


def test_values_of_other_dtypes_are_skipped(tmp_path: Path) -> None:
    """Values that no one asks for may be of kinds that are unknown here."""
    raw(tmp_path / "all", {"x": entry([3], 0, 3, "F8_E4M3"), "b": entry([2, 3], 3, 27)}, bytes(3) + b"\0\0\x80?" * 6)
    with scope_guard(Scope()):
        io.load_params(EXECUTOR, tmp_path, program_of(names=("b",)), "all")
        np.testing.assert_array_equal(global_scope().var("b").get_tensor().numpy(), np.ones((2, 3)))


def test_headers_that_would_not_be_read_again_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1, "all")
    monkeypatch.setattr(tensor_file, "MAX_HEADER_BYTES", 100)
    with pytest.raises(SavedModelError, match="at most 100"):
        save(tmp_path, 2, "all")
    monkeypatch.undo()
    assert load(tmp_path, "all") == [1]
