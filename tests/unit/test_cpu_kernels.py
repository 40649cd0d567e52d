"""Compiled kernels of the CPU: kept on disk, shared by threads, and left aside where they do not pay."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.program.registry import ops

pytest.importorskip("llvmlite")
pytest.importorskip("pycparser")

from fluidlite.base.disk_cache import DiskCache
from fluidlite.devices.cpu.language import MIN_UNTIMED_SHARED_ITEMS, CompiledKernel, LLVMLanguage
from fluidlite.devices.cpu.thread_pool import ENTRY_SLOTS, SERIAL_SOURCE, thread_pool
from fluidlite.platform.context_pool import get_context

SOURCE = """
void count(long* restrict out, const long add, const long items) {
  for (long gid = fl_begin; gid < fl_end; ++gid) { out[gid] += gid + add; }
}
"""
PARAMETERS = ("buffer", "int64", "int64")


class Context:
    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads


def compiled(language: LLVMLanguage, source: str = SOURCE) -> CompiledKernel:
    """A kernel whose machine code is there, as somebody asked where it is."""
    kernel = language.compile(None, source, "count", PARAMETERS)
    assert kernel.address
    return kernel


def test_machine_code_is_found_on_disk(tmp_path: Path) -> None:
    first = LLVMLanguage(DiskCache(tmp_path))
    kernel = first.compile(None, SOURCE, "count", PARAMETERS)
    assert first.compiler.compiled == 0 and not [*tmp_path.iterdir()]  # nobody ran it yet
    assert kernel.address and kernel.call and not hasattr(kernel, "another")
    assert first.compiler.compiled == 1
    second = LLVMLanguage(DiskCache(tmp_path))
    found = compiled(second)
    assert second.compiler.compiled == 0
    assert second.compiler.cache.hits == 1
    out = np.zeros(10, "int64")
    second.launch(Context(), found, 10, (out, 5, 10))
    assert (out == np.arange(10) + 5).all()
    compiled(second, SOURCE.replace("+ add", "- add"))
    assert second.compiler.compiled == 1


@pytest.mark.parametrize("damage", ["empty", "short", "changed", "rubbish", "another header"])
def test_a_broken_entry_is_made_again(tmp_path: Path, damage: str) -> None:
    compiled(LLVMLanguage(DiskCache(tmp_path)))
    (file,) = tmp_path.glob("*.bin")
    content = file.read_bytes()
    file.write_bytes({
        "empty": b"", "short": content[:-9], "changed": content[:200] + bytes([content[200] ^ 1]) + content[201:],
        "rubbish": b"\xa5" * 4096, "another header": b"x" + content[1:],
    }[damage])  # fmt: skip
    language = LLVMLanguage(DiskCache(tmp_path))
    made = compiled(language)
    assert language.compiler.compiled == 1
    out = np.zeros(3, "int64")
    language.launch(Context(), made, 3, (out, 1, 3))
    assert out.tolist() == [1, 2, 3]
    assert file.read_bytes() == content


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    language = LLVMLanguage(DiskCache(blocked / "kernels"))
    with caplog.at_level(logging.WARNING, "fluidlite"):
        compiled(language)
        compiled(language, SOURCE + "\n")
    assert len(caplog.records) == 1
    assert "cannot be kept on disk" in caplog.text


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="needs to give a file away")
def test_code_of_another_user_is_not_run(tmp_path: Path) -> None:
    compiled(LLVMLanguage(DiskCache(tmp_path)))
    (file,) = tmp_path.glob("*.bin")
    os.chown(file, 12345, -1)
    language = LLVMLanguage(DiskCache(tmp_path))
    compiled(language)
    assert language.compiler.compiled == 1


def test_the_folder_stays_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though each process writes one file; and few of them look through the folder."""
    monkeypatch.setattr("fluidlite.base.disk_cache.MAX_BYTES", 50_000)
    monkeypatch.setattr("fluidlite.base.disk_cache.TRIM_BELOW", "10")
    looked = []
    trim = DiskCache._trim
    monkeypatch.setattr(DiskCache, "_trim", lambda cache: (looked.append(cache), trim(cache)))
    for number in range(600):
        DiskCache(tmp_path).put(bytes(1000), str(number))
    assert 10 < len(looked) < 80  # one in 16
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 50_000 + 160 * 1100
    assert DiskCache(tmp_path).get("599") == bytes(1000)
    assert DiskCache(tmp_path).get("0") is None


def test_files_of_processes_that_ended_while_they_wrote_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import os, sys; from pathlib import Path; from fluidlite.base import disk_cache\n"
        "os.replace = lambda *names: os._exit(9)\n"
        "disk_cache.DiskCache(Path(sys.argv[1])).put(bytes(9000), 'key')"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=120).returncode == 9
    (unfinished,) = tmp_path.iterdir()
    assert DiskCache(tmp_path).size() == (1, 12288)
    os.utime(unfinished, (0, 0))
    monkeypatch.setattr("fluidlite.base.disk_cache.MAX_BYTES", 10_000)
    monkeypatch.setattr("fluidlite.base.disk_cache.TRIM_BELOW", "g")  # at each write
    cache = DiskCache(tmp_path)
    cache.put(b"code", "key")
    assert cache.get("key") == b"code"
    assert not unfinished.exists()


def test_a_cache_that_is_only_read_has_hits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    DiskCache(tmp_path).put(b"code", "key")

    def refuse(*args: object) -> None:
        raise PermissionError("a file system that is only read")

    monkeypatch.setattr("os.utime", refuse)
    cache = DiskCache(tmp_path)
    assert cache.get("key") == b"code"
    assert (cache.hits, cache.misses) == (1, 0)


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> LLVMLanguage:
    return LLVMLanguage(DiskCache(tmp_path_factory.mktemp("kernels")))


@pytest.mark.parametrize("threads", [None, 1, 2, 3])
@pytest.mark.parametrize(
    "items",
    [1, 2, 255, MIN_UNTIMED_SHARED_ITEMS - 1, MIN_UNTIMED_SHARED_ITEMS, MIN_UNTIMED_SHARED_ITEMS + 1, 1_000_003],
)
@pytest.mark.parametrize("group", [None, 1])
def test_each_item_is_computed_once(language: LLVMLanguage, threads: int | None, items: int, group: int | None) -> None:
    kernel = language.compile(None, SOURCE, "count", PARAMETERS)
    out = np.zeros(items + 64, "int64")
    for _ in range(3):
        language.launch(Context(threads), kernel, items, (out, 7, items), group)
    expected = np.zeros_like(out)
    expected[:items] = 3 * (np.arange(items) + 7)
    assert (out == expected).all()


def test_a_chain_does_launches_in_their_order(language: LLVMLanguage) -> None:
    add = language.compile(None, SOURCE, "count", PARAMETERS)
    double = language.compile(None, SOURCE.replace("+= gid + add", "*= add"), "count", PARAMETERS)
    small, large = np.zeros(3, "int64"), np.zeros(MIN_UNTIMED_SHARED_ITEMS * 5 + 1, "int64")
    launches = [(add, a.size, (a, 1, a.size), group) for a in (small, large) for group in (None, 1)]
    launches += [(double, a.size, (a, 3, a.size), None) for a in (small, large)] + [(add, 0, (small, 9, 0), None)]
    chain = language.chain(Context(), launches)
    for a in (small, large):
        assert not a.any()
    chain.run()
    for a in (small, large):
        assert (a == 6 * (np.arange(a.size) + 1)).all()
    chain.run()
    assert small.tolist() == [3 * (6 + 2), 3 * (12 + 4), 3 * (18 + 6)]


@pytest.mark.parametrize("threads", [None, 1, 2])
@pytest.mark.parametrize("sizes", [(3,), (3, 5, 511), (4096,), (3, MIN_UNTIMED_SHARED_ITEMS * 2)])
def test_a_chain_does_the_same_at_every_call(
    language: LLVMLanguage, threads: int | None, sizes: tuple[int, ...]
) -> None:
    """The first calls measure, and another way is taken after them."""
    kernel = language.compile(None, SOURCE, "count", PARAMETERS)
    outs = [np.zeros(size, "int64") for size in sizes]
    chain = language.chain(Context(threads), [(kernel, out.size, (out, 2, out.size), None) for out in outs])
    for number in range(1, 6):
        chain.run()
        for out in outs:
            assert (out == number * (np.arange(out.size) + 2)).all()


def test_a_chain_follows_the_threads_of_its_context(language: LLVMLanguage) -> None:
    kernel = language.compile(None, SOURCE, "count", PARAMETERS)
    out, context = np.zeros(MIN_UNTIMED_SHARED_ITEMS * 2, "int64"), Context(1)
    chain = language.chain(context, [(kernel, out.size, (out, 0, out.size), None)])
    for number, threads in enumerate((1, 1, 1, 2, None, 1), 1):
        context.threads = threads
        chain.run()
        assert (out == number * np.arange(out.size)).all()


def test_short_chains_have_entries_which_are_given_back(
    language: LLVMLanguage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "fluidlite.devices.cpu.command_buffer.MAX_LOCKED_SECONDS", 60.0
    )  # whatever else the processor does
    crew = thread_pool(language.compiler.load)
    kernel = language.compile(None, SOURCE, "count", PARAMETERS)
    gc.collect()
    free, outs = len(crew._free), [np.zeros(2, "int64") for _ in range(ENTRY_SLOTS + 5)]
    chains = [language.chain(Context(), [(kernel, 2, (out, 1, 2), None)]) for out in outs]
    for number in range(1, 5):
        for chain, out in zip(chains, outs, strict=True):
            chain.run()
            assert out.tolist() == [number, 2 * number]
    assert len(crew._free) == 0  # and those that found none are right all the same
    kept, out = chains[0], outs[0]
    del chains, chain
    gc.collect()
    assert len(crew._free) >= free - 1
    others = [language.chain(Context(), [(kernel, 2, (np.zeros(2, "int64"), 9, 2), None)]) for _ in range(5)]
    for other in others:
        for _ in range(3):
            other.run()
    kept.run()
    assert out.tolist() == [5, 10]


def test_where_there_are_no_threads_the_caller_computes(
    language: LLVMLanguage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fluidlite.devices.cpu.thread_pool.POSIX_SOURCE", SERIAL_SOURCE)
    monkeypatch.setattr("fluidlite.devices.cpu.thread_pool._pools", [])
    kernel = language.compile(None, SOURCE, "count", PARAMETERS)
    out = np.zeros(MIN_UNTIMED_SHARED_ITEMS * 3, "int64")
    language.launch(Context(), kernel, out.size, (out, 2, out.size))
    language.chain(Context(), [(kernel, out.size, (out, 0, out.size), None)]).run()
    assert (out == 2 * np.arange(out.size) + 2).all()
    assert thread_pool(language.compiler.load).workers == 0


def test_threads_share_the_items(language: LLVMLanguage) -> None:
    """Where there is more than one processor, another thread takes part in a long job."""
    crew = thread_pool(language.compiler.load)
    if crew.workers < 1:
        pytest.skip("one processor")
    source = """
    void who(long* restrict out, const long items) {
      long here = 0;
      for (long gid = fl_begin; gid < fl_end; ++gid) {
        unsigned long v = 1;
        for (int k = 0; k < 20000; ++k) v = v * 6364136223846793005u + gid;
        out[gid] = fl_begin + (v == 7);
      }
    }"""
    kernel = language.compile(None, source, "who", ("buffer", "int64"))
    out = np.zeros(64, "int64")
    language.launch(Context(), kernel, 64, (out, 64), 1)  # alone, to see how long it takes
    assert set(out.tolist()) == {0}
    for _ in range(50):
        language.launch(Context(), kernel, 64, (out, 64), 1)
        assert sorted(set(out.tolist())) == list(range(0, 64, -(-64 // ((crew.workers + 1) * 4))))


def test_short_jobs_are_left_to_one_thread(language: LLVMLanguage) -> None:
    kernel = language.compile(None, SOURCE.replace("count", "few"), "few", PARAMETERS)
    out = np.zeros(64, "int64")
    for _ in range(10_000):  # till none of the other programs takes the processor meanwhile
        language.launch(Context(), kernel, 8, (out, 1, 8), 1)
        if not kernel.is_shared[8]:
            break
    assert kernel.is_shared == {8: False}
    assert not kernel.should_share(8, 1)
    assert kernel.should_share(MIN_UNTIMED_SHARED_ITEMS, None)
    assert not kernel.should_share(MIN_UNTIMED_SHARED_ITEMS, 1)


def test_jobs_of_several_threads_do_not_mix(language: LLVMLanguage) -> None:
    kernel = language.compile(None, SOURCE, "count", PARAMETERS)
    results: list[bool] = []

    def work(number: int) -> None:
        out = np.zeros(50_000 + number, "int64")
        for _ in range(200):
            language.launch(Context(), kernel, out.size, (out, number, out.size))
        results.append(bool((out == 200 * (np.arange(out.size) + number)).all()))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [True] * 5


def test_a_process_that_was_forked_computes_and_ends(tmp_path: Path) -> None:
    script = tmp_path / "forks.py"
    script.write_text("""
import os, sys
import numpy as np
import fluidlite as fluid
x = fluid.layers.data("x", [100_000], append_batch_size=False)
y = fluid.layers.exp(x) * 2.0
def run():
    (out,) = fluid.Executor("cpu").run(feed={"x": np.ones(100_000, "float32")}, fetch_list=[y])
    return abs(out - 2 * np.e).max() < 1e-5
assert run()
exe, feed = fluid.Executor("cpu"), {"x": np.ones(100_000, "float32")}
m = fluid.layers.reshape(x, [200, 500])
twice = fluid.layers.matmul(fluid.layers.matmul(m, m, transpose_y=True), m)  # what is between has storage
for _ in range(3):
    exe.run(feed=feed, fetch_list=[twice])
assert any(storage.allocation is not None for storage in exe._executables._storages.values())
child = os.fork()
if child == 0:
    kept = [storage for storage in exe._executables._storages.values() if storage.allocation is not None]
    os._exit(4 if kept or list(exe._executables._executables) else 0 if run() else 3)  # executables are dropped
_, status = os.waitpid(child, 0)
assert run() and os.waitstatus_to_exitcode(status) == 0
print("done")
""")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=280)
    assert done.stdout == "done\n", done.stderr
    assert done.returncode == 0


@pytest.mark.skipif(os.name != "posix", reason="no fork")
def test_a_fork_while_a_thread_holds_the_teams_mutex_hangs_no_child(tmp_path: Path) -> None:
    """Its worker waits for the mutex, or has just been woken: the child has a copy that nobody lets go."""
    script = tmp_path / "held.py"
    script.write_text(f"""
import ctypes, os
from pathlib import Path
import numpy as np
from fluidlite.devices.cpu.language import LLVMLanguage
from fluidlite.base.disk_cache import DiskCache
from fluidlite.devices.cpu import thread_pool as teams
from fluidlite.devices.cpu.llvm import Code

language = LLVMLanguage(DiskCache(Path({str(tmp_path / "cache")!r})))
found, keep = [], Code.keep
Code.keep = lambda code: (found.append(code.address("team_mutex")), keep(code))
load = lambda text, names, *key: language.compiler.load(text, [*names, "team_mutex"], *key)
crew = teams.thread_pool(load)
kernel = language.compile(None, {SOURCE!r}, "count", {PARAMETERS!r})
out = np.zeros({MIN_UNTIMED_SHARED_ITEMS * 3}, "int64")
packed = kernel.packed((out, 0, out.size))
share = lambda with_crew: with_crew.run(kernel.address, packed, out.size, 1024, 1)
share(crew)
if crew.workers:
    mutex = ctypes.c_void_p(found[0])
    ctypes.PyDLL(None).pthread_mutex_lock(mutex)
child = os.fork()
if child == 0:
    share(crew)
    if not (out == 2 * np.arange(out.size)).all():
        os._exit(3)
    anew = teams.thread_pool(load)
    share(anew)
    os._exit(0 if (out == 3 * np.arange(out.size)).all() and anew is not crew else 4)
_, status = os.waitpid(child, 0)
if crew.workers:
    ctypes.PyDLL(None).pthread_mutex_unlock(mutex)
share(crew)
assert (out == 2 * np.arange(out.size)).all() and os.waitstatus_to_exitcode(status) == 0, status
print("done")
""")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=280)
    assert done.stdout == "done\n", done.stderr


def chosen(dims: list[int], **policy: Any) -> str:
    program = fluid.Program()
    with fluid.program_guard(program):
        x = fluid.layers.data("x", dims, append_batch_size=False)
        fluid.layers.reduce_max(fluid.layers.exp(x))
    return str(fluid.explain(program, fluid.CPUPlace()))


def test_small_tensors_are_left_to_the_arrays() -> None:
    assert "(language)" in chosen([1024])
    assert "(array)" in chosen([16])
    assert "under 1024 elements" in chosen([16]) or "expression (array)" in chosen([16])


def _line(type: str, inputs: dict[str, tuple[int, ...]], dtype: str = "float32", **attrs: Any) -> str:
    """What explain says of an operator, and of its gradient if it has one, and that it is right."""
    program = fluid.Program()
    with fluid.program_guard(program):
        block, given = program.global_block(), {}
        feed, rng = {}, np.random.default_rng(0)
        for slot, dims in inputs.items():
            feed[slot] = rng.uniform(0.5, 1.5, dims).astype(dtype)  # equal numbers cancel in gradients
            given[slot] = fluid.layers.data(slot, list(dims), append_batch_size=False, dtype=dtype, stop_gradient=False)
        made = {slot.name: block.create_temporary() for slot in ops.get(type).outputs if not slot.dispensable}
        block.append_op(type, given, made, attrs)
        fetched = list(made.values())
        if dtype != "bool":
            (grad,) = fluid.gradients(fetched[:1], [next(iter(given.values()))])
            fetched.append(grad)
    found = {}
    for mode in ("interpreted", "compiled"):
        exe = fluid.Executor("cpu", mode=mode)
        found[mode] = exe.run(program, feed, fetched)
    for a, b in zip(*found.values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6 * np.abs(b).max())
    return str(fluid.explain(program, fluid.CPUPlace()))


def test_loops_compute_large_expressions_and_array_calls_small_ones() -> None:
    """Either is one launch."""
    for rows, kind in ((2, "expression (array)"), (512, "expression (language)")):
        sums = {slot: (256,) for slot in ("BatchSize", "BatchSum", "BatchSquareSum")}
        (line,) = [each for each in _line("data_norm", {"X": (rows, 256), **sums}).splitlines()
                   if each.startswith("  data_norm ")]  # fmt: skip
        assert kind in line


def test_what_a_library_computes_is_said_of_an_operator_and_of_its_gradient() -> None:
    assert "expression (array)" in _line("reduce_any", {"X": (512, 512)}, "bool", dim=[1])
    shown = _line("spectral_norm", {"Weight": (256, 512), "U": (256,), "V": (512,)}).splitlines()
    of = {line.split()[0]: line for line in shown if line.startswith("  spectral_norm")}
    assert "expression (array)" in of["spectral_norm"] and "expression (language)" in of["spectral_norm_grad"]


def test_without_llvmlite_the_arrays_compute(tmp_path: Path) -> None:
    script = tmp_path / "without.py"
    script.write_text("""
import sys
sys.modules["llvmlite"] = None
import numpy as np
import fluidlite as fluid
x = fluid.layers.data("x", [100_000], append_batch_size=False)
y = fluid.layers.exp(x)
exe = fluid.Executor("cpu")
(out,) = exe.run(feed={"x": np.zeros(100_000, "float32")}, fetch_list=[y])
assert (out == 1).all() and "(array)" in str(exe.explain_last())
print("done")
""")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=280)
    assert done.stdout == "done\n", done.stderr


def test_numpy_s_state_in_a_run_is_restored() -> None:
    activate = get_context("cpu").raw.activate
    with np.errstate(over="raise", divide="warn"):
        np.setbufsize(4096)
        before = np.geterr()
        with activate():
            assert set(np.geterr().values()) == {"ignore"}
            assert np.getbufsize() < 4096
            with np.errstate(over="raise"), pytest.raises(FloatingPointError), activate():
                np.float32(3e38) * np.float32(3e38)
                raise FloatingPointError
            assert set(np.geterr().values()) == {"ignore"}
        assert (np.geterr(), np.getbufsize()) == (before, 4096)


def test_small_files_count_as_blocks_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many files of a few bytes take more than these; one that another process took away is no reason to stop."""
    monkeypatch.setattr("fluidlite.base.disk_cache.MAX_BYTES", 5 * 4096)
    monkeypatch.setattr("fluidlite.base.disk_cache.TRIM_BELOW", "")
    cache = DiskCache(tmp_path)
    for k in range(9):
        cache.put(b"few", str(k))
    assert cache.size() == (9, 9 * 4096)
    there = list(cache._files())
    monkeypatch.setattr(DiskCache, "_files", lambda cache: [(0.0, 4096, str(tmp_path / "gone.bin")), *there])
    cache._trim()
    assert len(list(tmp_path.iterdir())) == 5


ADDS = "define i64 @f(i64 %%x) { %%y = add i64 %%x, %d\n ret i64 %%y }"


def test_libraries_go_one_by_one_and_linkers_with_their_last(monkeypatch: pytest.MonkeyPatch) -> None:
    from fluidlite.devices.cpu import llvm

    monkeypatch.setattr(llvm, "_LIBRARIES_PER_LINKER", 2)
    compiler, made = llvm.Compiler(None), []
    linkers = []
    for i in range(6):
        made.append(compiler.load(ADDS % i, ["f"]).function("f", "int64", ("int64",)))
        linkers.append(weakref.ref(compiler._linker))
    assert len({id(linker()) for linker in linkers if linker() is not None}) < 4  # the first are known to LLVM alone
    for gone in (4, 0, 1):
        del made[gone]
    compiler.load(ADDS % 9, ["f"])  # frees what nobody holds
    assert [call(10) for call in made] == [11, 13, 15]


@pytest.mark.skipif(os.name != "posix", reason="no fork")
def test_a_fork_while_a_thread_lets_code_go_hangs_no_child(tmp_path: Path) -> None:
    script = tmp_path / "drops.py"
    script.write_text(f"""
import os, signal, threading
from fluidlite.devices.cpu.llvm import Compiler

compiler = Compiler(None)
load = lambda i: compiler.load({ADDS!r} % i, ["f"]).function("f", "int64", ("int64",))
held = [load(i) for i in range(1200)]
dropping = threading.Thread(target=lambda: [held.pop() for _ in range(len(held))])
dropping.start()
for _ in range(4):
    child = os.fork()
    if not child:
        signal.alarm(60)
        os._exit(load(7)(1) != 8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
dropping.join()
""")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
