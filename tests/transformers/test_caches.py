"""Caches tell of themselves, stay bounded, and keep another batch size from compiling anything."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from networks import fed, network

import fluidlite as fluid
import fluidlite.graph as ng
from fluidlite import layers, memory
from fluidlite.base.lru_cache import CacheInfo, CacheReport, LRUCache, total
from fluidlite.compiler.executable.executable_cache import MAX_EXECUTABLES
from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.planning.planner import plan_graph
from fluidlite.compiler.policy import policy
from fluidlite.platform.context_pool import get_context
from fluidlite.program.op_call import Call, cached_in_call
from fluidlite.program.registry import ops
from fluidlite.tensor.tensor_spec import Spec
from fluidlite.transformers import Transformer, codegen_choices, make_transformer

llvm = pytest.mark.skipif("llvm" not in codegen_choices(), reason="llvmlite and pycparser are not installed")


# One cache


def test_a_bounded_cache_counts() -> None:
    cache: LRUCache[int] = LRUCache(2, "test")
    for key in (1, 2, 1, 3, 2, 1):
        assert cache.get(key, lambda key=key: 10 * key) == 10 * key  # type: ignore[misc]
    info = cache.info()
    assert (info.entries, info.most, info.hits, info.misses) == (2, 2, 1, 5)
    assert info.seconds >= 0
    cache.clear()
    assert (len(cache), cache.info().misses) == (0, 5)


def test_what_cannot_be_made_is_not_kept() -> None:
    cache: LRUCache[int] = LRUCache(2, "test")
    with pytest.raises(ZeroDivisionError):
        cache.get(1, lambda: 1 // 0)
    assert (len(cache), cache.misses) == (0, 0)
    assert cache.get(1, lambda: 5) == 5


def test_threads_share_a_bounded_cache() -> None:
    cache: LRUCache[int] = LRUCache(8, "test")

    def work() -> None:
        for turn in range(2000):
            assert cache.get(turn % 16, lambda turn=turn: turn % 16) == turn % 16  # type: ignore[misc]

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(cache) == 8
    assert cache.hits + cache.misses == 8000


def test_a_report_is_a_table() -> None:
    report = CacheReport(plans=CacheInfo(1, 64, 2, 3, 0.5), disk=CacheInfo(7, None, 0, 1, 0.25, 1234567, 2000000))
    lines = str(report).splitlines()
    assert lines[0].split() == ["cache", "entries", "of", "at", "most", "hits", "misses", "seconds"]
    assert lines[1].split() == ["plans", "1", "64", "2", "3", "0.500"]
    assert lines[2].split() == ["disk", "7,", "1,234,567", "bytes", "2,000,000", "bytes", "0", "1", "0.250"]
    assert total(report.values()).misses == 4
    assert total([]) == CacheInfo(0, 0, 0, 0)


# Those of executors and transformers


def test_an_executor_tells_of_its_caches(require: Callable[..., None]) -> None:
    x = layers.data("x", [7])
    y = layers.tanh(x)
    exe = fluid.Executor("cpu", mode="compiled")
    before = exe.cache_info()
    assert list(before)[:4] == ["executables", "plans", "graphs", "prepared kernels"]
    for rows in (3, 4, 3, 3):
        exe.run(feed={"x": np.ones((rows, 7), "float32")}, fetch_list=[y])
    info = exe.cache_info()
    graphs = info["graphs"]  # after passes; it says itself whether feeds are read
    assert (graphs.entries, graphs.misses, graphs.hits) == (1, 1, 1)
    assert (info["plans"].entries, info["plans"].misses) == (2, 2)
    assert (info["executables"].entries, info["executables"].misses) == (2, 2)
    assert info["prepared kernels"].misses - before["prepared kernels"].misses <= 2
    assert fluid.Executor("cpu", mode="interpreted").cache_info().keys() == before.keys() - {"executables"}


def test_a_transformer_tells_of_its_caches(transformer: Transformer) -> None:
    x = ng.placeholder((-1, 7))
    first, second = transformer.computation(ng.tanh(x), x), transformer.computation(ng.tanh(x) + 1.0, x)
    for rows in (3, 4):
        first(np.ones((rows, 7)))
        second(np.ones((rows, 7)))
    info = transformer.cache_info()
    assert (info["plans"].entries, info["plans"].misses) == (4, 4)
    assert (info["executables"].entries, info["executables"].misses) == (4, 4)
    assert ("compiled kernels" in info) == (get_context(transformer.place).language is not None)
    assert str(info).startswith("cache")


@pytest.mark.parametrize("place", ["cpu", pytest.param("opencl", marks=pytest.mark.opencl), "fpga"])
def test_another_batch_size_compiles_nothing(place: str, require: Callable[..., None]) -> None:
    require(place)
    main, startup, feed, wanted = network(depth=2, width=64, batch=64)
    exe, scope = fluid.Executor(place, fallback="allow", mode="compiled"), fluid.Scope()
    exe.run(startup, scope=scope)
    exe.run(main, feed, wanted, scope=scope)
    places = {exe.place, get_context("cpu").place}

    def compiled() -> dict[Any, int]:
        found = {each: get_context(each).cache_info() for each in places}
        return {each: info["compiled kernels"].misses for each, info in found.items() if "compiled kernels" in info}

    before = compiled()
    binds = exe.cache_info()["executables"].misses
    for rows in (48, 96, 33):
        exe.run(main, {"x": fed(rows, 64)}, wanted, scope=scope)
    assert compiled() == before
    assert exe.cache_info()["executables"].misses == binds + 3


@pytest.mark.parametrize("place", ["cpu", pytest.param("opencl", marks=pytest.mark.opencl), "fpga"])
def test_a_storm_of_shapes_stays_bounded(place: str, require: Callable[..., None]) -> None:
    require(place)
    main, startup, _, wanted = network(depth=1, width=16, batch=4)
    exe, scope = fluid.Executor(place, fallback="allow", mode="compiled"), fluid.Scope()
    exe.run(startup, scope=scope)
    exe.run(main, {"x": fed(400, 16)}, wanted, scope=scope)
    largest = exe._executables.last.memory.planned  # type: ignore[union-attr]
    gc.collect()
    used = memory.used(exe.place)
    for rows in range(1, 301):
        exe.run(main, {"x": fed(rows, 16)}, wanted, scope=scope)
    info = exe.cache_info()
    for name, each in info.items():
        assert each.most is None or each.entries <= each.most, name
    assert info["executables"].entries == MAX_EXECUTABLES
    assert info["plans"].entries == info["plans"].most == 64
    gc.collect()
    assert memory.used(exe.place) <= used + largest  # one arena, as large as the largest that is bound


@llvm
def test_contexts_share_compiled_kernels(tmp_path: Path) -> None:
    from fluidlite.base.disk_cache import DiskCache
    from fluidlite.devices.cpu.language import LLVMLanguage

    source = """void shared(char* x_bytes, const long x_offset, const long items) {
  float* x = (float*)(x_bytes + x_offset);
  for (long gid = fl_begin; gid < fl_end; ++gid) { x[gid] = 1.0f; }
}
"""
    language = LLVMLanguage(DiskCache(tmp_path))
    first = language.compile(None, source, "shared", ("buffer", "int64", "int64"))
    assert first.address and language.compile(None, source, "shared", ("buffer", "int64", "int64")) is first
    assert (language.compiler.compiled, language.compiler.cache.hits) == (1, 0)  # type: ignore[union-attr]
    del first  # it goes when no context has it
    gc.collect()
    language.compile(None, source, "shared", ("buffer", "int64", "int64"))
    assert (language.compiler.compiled, language.compiler.cache.hits) == (1, 1)  # type: ignore[union-attr]


def _sparse(file: Path) -> None:
    with file.open("wb") as stream:
        stream.truncate(1 << 40)


ODD: dict[str, Callable[[Path], object]] = {
    "a pipe that nobody writes": lambda file: os.mkfifo(file),
    "a folder": lambda file: file.mkdir(),
    "a device without an end": lambda file: file.symlink_to("/dev/zero"),
    "a link to nothing": lambda file: file.symlink_to("nowhere"),
    "a file of a terabyte": _sparse,
    "an empty file": lambda file: file.touch(),
}


@pytest.mark.skipif(os.name != "posix", reason="pipes and devices are files on posix")
@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_entry_of_the_disk_cache_is_as_good_as_none(odd: str, tmp_path: Path) -> None:
    """It neither hangs nor takes memory; what is kept next takes its place, unless that is a folder."""
    from fluidlite.base.disk_cache import DiskCache

    cache = DiskCache(tmp_path)
    cache.put(b"content", "key")
    assert cache.get("key") == b"content"
    (file,) = tmp_path.glob("*.bin")
    file.unlink()
    ODD[odd](file)
    assert cache.get("key") is None
    cache.put(b"content", "key")
    assert cache.get("key") == (None if odd == "a folder" else b"content")
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


@llvm
def test_the_disk_cache_tells_of_itself(tmp_path: Path) -> None:
    from fluidlite.base.disk_cache import MAX_BYTES, DiskCache
    from fluidlite.devices.cpu.language import LLVMLanguage

    source = """void told(char* x_bytes, const long x_offset, const long items) {
  float* x = (float*)(x_bytes + x_offset);
  for (long gid = fl_begin; gid < fl_end; ++gid) { x[gid] = 2.0f; }
}
"""
    for turn in range(2):
        language = LLVMLanguage(DiskCache(tmp_path))
        assert language.compile(None, source, "told", ("buffer", "int64", "int64")).address
        info = language.cache_info()["kernels on disk"]
        assert (info.entries, info.hits, info.misses, info.most_bytes) == (1, turn, 1 - turn, MAX_BYTES)
        assert info.nbytes is not None and 100 < info.nbytes < 100000
        assert (info.seconds > 0) == (turn == 0)
    (file,) = tmp_path.glob("*.bin")
    file.write_bytes(file.read_bytes()[:-7])
    language = LLVMLanguage(DiskCache(tmp_path))
    assert language.compile(None, source, "told", ("buffer", "int64", "int64")).address
    assert language.cache_info()["kernels on disk"].misses == 1  # a broken entry is rebuilt
    again = LLVMLanguage(DiskCache(tmp_path))
    again.compile(None, source, "told", ("buffer", "int64", "int64"))
    assert again.cache_info()["kernels on disk"].hits == 1


def test_numpys_generator_has_no_disk_cache() -> None:
    with make_transformer(codegen="numpy") as transformer:
        x = ng.placeholder((-1, 7))
        computation = transformer.computation(ng.tanh(x) * 2.0, x)
        before = transformer.cache_info()
        computation(np.ones((2000, 7)))
        after = transformer.cache_info()
    assert after.keys() == before.keys()
    if "compiled kernels" in after:
        assert after["compiled kernels"].misses == before["compiled kernels"].misses


# What planning keeps


def test_an_operator_with_the_same_inputs_has_the_same_call() -> None:
    out = layers.scale(layers.data("x", [-1], append_batch_size=False), 2.0)
    graph = Graph(fluid.default_main_program(), [out.name])
    cpu = get_context("cpu").place

    def call(dims: tuple[int, ...]) -> Any:
        feeds = {"x": (Spec.of(dims, "float32"), cpu)}
        (step,) = plan_graph(graph, cpu, feeds, {}, policy()).steps
        return step.call  # type: ignore[union-attr]

    first = call((4,))
    assert call((4,)) is first
    assert call((5,)).dims("Out") == (5,)
    again = call((4,))
    assert again is not first and again == first and hash(again) == hash(first)


def test_layers_that_are_alike_share_calls() -> None:
    """What one of them found is not asked again; others, and gradients, have their own."""
    x = layers.data("x", [-1, 4], append_batch_size=False)
    many = [
        layers.scale(x, 2.0),
        layers.scale(x, 2.0),
        layers.scale(x, 3.0),
        layers.scale(x, -0.0),
        layers.scale(x, 0.0),
    ]
    graph = Graph(fluid.default_main_program(), [out.name for out in (*many, layers.tanh(x))])
    cpu = get_context("cpu").place
    steps = plan_graph(graph, cpu, {"x": (Spec.of((3, 4), "float32"), cpu)}, {}, policy()).steps
    calls = [step.call for step in steps]  # type: ignore[union-attr]
    assert calls[0] is calls[1] and len({id(call) for call in calls}) == 5
    assert [call.attrs.get("scale") for call in calls] == [2.0, 2.0, 3.0, 0.0, 0.0, None]


def test_a_call_is_asked_once() -> None:
    definition = ops.get("relu")
    spec = Spec.of((2,), "float32")
    call = Call(definition, {"X": (spec,)}, {"Out": (spec,)}, {}, get_context("cpu").place)
    asked = []

    @cached_in_call
    def find(given: Call) -> str | None:
        asked.append(given)
        return None

    assert find(call) is None and find(call) is None
    assert asked == [call]
    assert call.at(get_context("cpu").place) is call
