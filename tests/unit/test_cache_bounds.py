"""Every cache is bounded, in entries and in bytes, and sizes or LoD that were seen once cost nothing later."""

from __future__ import annotations

import ast
import copy
import gc
import pickle
import sys
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.base.lru_cache import LRUCache, _named, all_caches, weight_of
from fluidlite.platform.context_pool import get_context
from fluidlite.tensor.tensor_cache import _MAX_SPECS
from fluidlite.tensor.tensor_spec import Spec, _interned

PACKAGE = Path(fluid.__file__).parent

WEAK = {"specs in use"}
"""Caches without a bound of their own: what they hold goes when nobody uses it."""

MODULE_STATE = {
    "devices/cpu/llvm.py": {"_released": "till the next kernel is loaded"},
    "base/collection.py": {"_phases": "start and stop"},
    "base/lru_cache.py": {"_named": "one a name of a cache", "_external": "one a name of a cache"},
    "base/fork.py": {"_child_callbacks": "one a module that asks", "_lock_providers": "one a module that asks"},
    "codegen/epilogue.py": {"_fused_operators": "weak"},
    "codegen/elementwise_form.py": {"_forms": "weak; of each operator as many as terms"},
    "codegen/language_kernel.py": {"_sources": "weak; of each kernel language a LRUCache"},
    "codegen/lower.py": {"_cache": "weak; of each operator a LRUCache"},
    "expr/derivative_rules.py": {"MULTI_RESULT_RULES": "one a primitive that has several results"},
    "compiler/selection/step_choices.py": {"_calls": "weak; of each operator a LRUCache"},
    "expr/calls.py": {"_traces": "weak; of each operator a LRUCache"},
    "program/op_call.py": {"_operand_functions": "one a question"},
    "program/operator_options.py": {"_defaults": "one a kind of option"},
    "render/loops/collapse.py": {"_cache": "weak; one of each trace"},
    "render/loops/kernels.py": {"_cache": "weak; 16 of each trace at most"},
    "render/loops/guarded_cache.py": {"_texts": "weak; one of each trace"},
    "compiler/body_executors.py": {"_default": "one"},
    "compiler/executable/packed_state.py": {"_copies": "weak; MAX_PACKED_BYTES of each context"},
    "initializer.py": {"_global": "two"},
    "paddle/dataset/conll05.py": {"_folders": "one"},
    "paddle/dataset/movielens.py": {"_tables_of_file": "one"},
    "paddle/dataset/sentiment.py": {"_reviews_of_file": "one"},
    "paddle/dataset/files.py": {"_chosen_folder": "one", "_reported": "one a data set and its substitute"},
    "program/codegen_registry.py": {"generators": "one a capability"},
    "program/json_form.py": {"KINDS": "one a kind of variable"},
    "compiler/instrumentation.py": {"_process_observers": "one a switch that is on"},
    "executor/default_place.py": {"_substitutes": "one a block that is open"},
    "program/saved_options.py": {"_FIELDS": "one a class of regularizers or clips"},
    "program/op_guards.py": {"_namescopes": "one an open block", "_devices": "one an open block"},
    "platform/place.py": {"_places": "one a kind and index"},
    "tensor/tensor_spec.py": {"_interned": "weak"},
    "nodes/devices.py": {"_singletons": "one a place"},
    "nodes/fallback.py": {"_warned": "one a place and operator type"},
    "nodes/node.py": {"_own_files": "MAX_FILES at most"},
    "compiler/ir/fused.py": {"_definitions": "weak", "_fused_ops": "weak"},
    "loaders/ring.py": {
        "_copy_queues": "one a device",
        "_pending_staging": "copies under way, of which each wait lets some go",
    },
    "distributed/shared_memory.py": {"_heaps": "weak"},
    "distributed/groups.py": {"_rings": "one a ring that programs name"},
    "plugin_loader.py": {"_records": "one a plugin", "_undo": "one a plugin"},
    "memory/__init__.py": {"_memories": "one a device"},
    "control_flow/bodies.py": {"_bodies": "weak; of each operator one a block and context"},
    "operators/printing.py": {"_print_counts": "weak"},
    "operators/py_func.py": {"_functions": "one a Python function that programs call"},
    "devices/cpu/thread_pool.py": {"_pools": "one"},
    "platform/context_pool.py": {"_queues": "one a place"},
}
"""What modules keep beside :class:`LRUCache` caches, and why that does not grow with runs."""

FUNCTIONS = {
    "kernels/blas/cblas.py": {"_threads", "cblas_routine"},
    "kernels/blas/batches.py": {"batched"},
    "layers/ops.py": {"layer"},
    "render/loops/guarded_cache.py": {"_sources"},
    "devices/cpu/language.py": {"_translator"},
    "devices/cpu/object_code.py": {"machine"},
    "render/contractions.py": {"_exclusive_axes"},
    "testing/fuzz/from_samples.py": {"samples_by_type"},
    "testing/fuzz/error_bounds.py": {"by_hand"},
    "cli/op_docs.py": {"_forwards"},
    "program/protobuf/messages.py": {"message_classes"},
}
"""Functions that keep what they returned, by dtype, operator or once: they take nothing that varies from run to run."""


def test_every_cache_has_a_bound() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        y = layers.softmax(layers.data("x", [4]))
        fluid.Executor("cpu").run(feed={"x": np.ones((2, 4), "float32")}, fetch_list=[y])
    found = all_caches()
    assert {"executables", "plans", "graphs", "choices", "prepared kernels", "specs in use"} <= set(found)
    for name, info in found.items():
        if name not in WEAK:
            assert info.most is not None or info.most_bytes is not None, name
            assert info.most is None or info.entries <= info.most, name
    assert "prepared kernels" in str(found)


def _module_state(tree: ast.Module) -> set[str]:
    """Names of a module's own mutable containers that begin empty."""
    found = set()
    for node in tree.body:
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
        value = getattr(node, "value", None)
        called = getattr(value, "func", None)
        empty = isinstance(value, ast.Dict) and not value.keys
        empty |= isinstance(value, ast.List) and not value.elts
        name = getattr(called, "id", getattr(called, "attr", ""))
        empty |= name in ("dict", "list", "set", "OrderedDict", "defaultdict", "deque") and not value.args  # type: ignore[union-attr]
        empty |= name in ("WeakKeyDictionary", "WeakValueDictionary")
        if isinstance(target, ast.Name) and empty and target.id != "__all__":
            found.add(target.id)
    return found


def _caching_functions(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        for decorator in getattr(node, "decorator_list", ()):
            call = decorator.func if isinstance(decorator, ast.Call) else decorator
            if getattr(call, "id", getattr(call, "attr", "")) in ("cache", "lru_cache"):
                found.add(node.name)  # type: ignore[attr-defined]
    return found


def test_nothing_else_in_a_module_grows() -> None:
    """A new module-level container or cached function is a LRUCache, or is written down here with its bound."""
    state: dict[str, set[str]] = {}
    functions: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        tree = ast.parse(path.read_text("utf-8"))
        for found, into in ((_module_state(tree), state), (_caching_functions(tree), functions)):
            if found:
                into[name] = found
    assert {name: found - set(MODULE_STATE.get(name, ())) for name, found in state.items()} == {n: set() for n in state}
    assert {name: found - FUNCTIONS.get(name, set()) for name, found in functions.items()} == {
        n: set() for n in functions
    }


# One cache


def test_a_cache_is_bounded_in_bytes() -> None:
    cache: LRUCache[bytes] = LRUCache(100, "test of bytes", 10_000)
    for key in range(50):
        cache.get(key, lambda: bytes(1000))
        info = cache.info()
        assert info.nbytes is not None
        assert info.nbytes <= 10_000
    assert 5 <= len(cache) < 10
    assert len(cache.get("large", lambda: bytes(20_000))) == 20_000
    assert len(cache) == 1  # the newest stays, or a large program would be planned at each run
    cache.clear()
    assert cache.info().nbytes == 0


def test_what_goes_is_told() -> None:
    gone: list[int] = []
    cache: LRUCache[int] = LRUCache(2, "test of eviction", evicted=gone.append)
    for key in (1, 2, 1, 3):
        cache.get(key, lambda key=key: 10 * key)  # type: ignore[misc]
    assert gone == [20]
    inner = cache.get(5, lambda: cache.get(5, lambda: 50) + 1)
    assert (inner, cache.get(5, lambda: 0), gone) == (50, 50, [20, 10, 51])


def test_weights() -> None:
    assert weight_of("abc" * 100) > 300
    assert weight_of(np.zeros(1000)) > 8000
    assert weight_of({"a": (np.zeros(1000), b"x" * 500)}) > 8500
    assert weight_of(tuple(range(1000))) > 36_000
    assert weight_of((1, "x" * 5000)) > 5000
    assert Spec.of((400, 8), "float32", (tuple(range(401)),)).weight > 14_000
    assert weight_of(Spec.of((4, 8), "float32")) < 1000


# Specs


def test_a_spec_goes_when_nobody_uses_it() -> None:
    gc.collect()
    before = len(_interned)
    lod = (tuple(range(0, 4001, 2)),)
    spec = Spec.of((4000, 8), "float32", lod)
    assert Spec.of([4000, 8], "float32", lod) is spec
    assert Spec.of((np.int64(4000), 8), "float32", lod) is spec
    gone = ref(spec)
    del spec
    assert gone() is None
    assert len(_interned) == before
    assert Spec.of((4000, 8), "float32", lod) == Spec.of((4000, 8), "float32", lod)


def test_equal_specs_are_one() -> None:
    lod = ((0, 2, 4),)
    spec = Spec.of((4, 8), "float32", lod)
    assert Spec.of([np.int64(4), 8], np.dtype("float32"), lod) is spec  # type: ignore[arg-type]
    assert copy.copy(spec) is spec and copy.deepcopy(spec) is spec and pickle.loads(pickle.dumps(spec)) is spec
    made: list[list[Spec]] = []

    def make() -> None:
        made.append([Spec.of((size, 3), "float32") for size in range(2000) if Spec.of((size, 5), "float32").rank])

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=make) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert all(len({*map(id, same)}) == 1 for same in zip(*made, strict=True))


# Runs


def trained() -> tuple[fluid.Program, fluid.Program, Any, Any]:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = layers.data("x", [8], lod_level=1)
        out = layers.scale(layers.relu(layers.fc(x, 4)), 2.0)
        loss = layers.mean(layers.square(out))
        fluid.optimizer.SGD(0.01).minimize(loss)
    return main, startup, loss, out


def sequences(rng: np.random.Generator) -> fluid.Tensor:
    """A batch of another size, of several hundred sequences of other lengths each time."""
    rows = int(rng.integers(500, 900))
    cuts = np.sort(rng.choice(np.arange(1, rows), 399, replace=False))
    tensor = fluid.Tensor().set(rng.standard_normal((rows, 8)).astype("float32"), "cpu")
    tensor.set_lod([[0, *map(int, cuts), rows]])
    return tensor


@pytest.mark.parametrize(("kind", "mode"), [("cpu", "compiled"), ("cpu", "interpreted"), ("opencl", "compiled")])
def test_steps_of_varying_batch_and_lod(kind: str, mode: str, require: Callable[..., None]) -> None:
    """The 20,000 steps of the documentation, in small: caches are full after 60, and nothing grows from there on."""
    require(kind)
    main, startup, loss, out = trained()
    exe, scope, rng = fluid.Executor(kind, mode=mode, fallback="allow"), fluid.Scope(), np.random.default_rng(1)
    exe.run(startup, scope=scope)

    def steps(count: int) -> int:
        for _ in range(count):
            exe.run(main, {"x": sequences(rng)}, [loss, out], scope=scope, return_numpy=False)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    for caches in list(_named.values()):  # what takes the place of what was there before would count as growth
        for cache in list(caches):
            cache.clear()
    tracemalloc.start(1)
    try:
        first = steps(60)
        specs = len(_interned)
        second = steps(40)
        third = steps(40)
    finally:
        tracemalloc.stop()
    assert min(second - first, third - second) < 200_000  # with specs that are kept for ever each is 600 kB
    assert len(_interned) < specs + 100
    exe.close()


def test_tensors_that_runs_keep_are_of_few_specs() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        y = layers.exp(layers.cumsum(layers.data("x", [-1], append_batch_size=False)))
        exe = fluid.Executor("cpu", mode="interpreted")
        for size in range(1, _MAX_SPECS + 200):
            exe.run(feed={"x": np.zeros(size, "float32")}, fetch_list=[y])
            assert len(get_context("cpu").idle_tensors) <= _MAX_SPECS


def test_a_child_scope_goes_when_nobody_uses_it() -> None:
    scope = fluid.Scope()
    children = [ref(scope.new_scope()) for _ in range(10)]
    kept = scope.new_scope()
    gc.collect()
    assert [child() for child in children] == [None] * 10
    scope.drop_kids()
    assert kept.parent is scope
