"""Random programs find faults: each is put in, and must be seen by some programs that find nothing otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fluidlite import expr
from fluidlite.base.dtypes import ALL
from fluidlite.base.errors import ProgramError
from fluidlite.codegen import domain
from fluidlite.codegen.lower import _cache as traces
from fluidlite.compiler.executable import executable as bound, executable_cache as replay
from fluidlite.compiler.graph_runner import GraphRunner
from fluidlite.compiler.memory import memory_plan, offset_allocator as offsets
from fluidlite.compiler.passes import view_simplify as shaping
from fluidlite.compiler.planning import placement as values
from fluidlite.compiler.selection.choice import Choice
from fluidlite.executor import executor as executors
from fluidlite.platform.context_pool import open_contexts
from fluidlite.platform.place import Place
from fluidlite.program.kernel_registry import kernels
from fluidlite.program.prepared import Prepared
from fluidlite.program.registry import ops
from fluidlite.testing.fuzz.generate import generate
from fluidlite.testing.fuzz.outcome import Finding
from fluidlite.testing.fuzz.printing import python
from fluidlite.testing.fuzz.run import check
from fluidlite.testing.fuzz.shrink import shrink

CPU = Place("cpu", 0)
SEED = 5
MOST = 40
"""Programs that are run for one fault."""


def findings(
    types: Sequence[str] = (), differences: bool = False, first: int = 0, place: Place = CPU
) -> Iterator[Finding]:
    """What the programs of the seed find, until something is found; of the named operators, if there are some."""
    for number in range(first, first + MOST):
        recipe = generate(SEED, number, ALL, types).recipe
        yield from check(replace(recipe, differences=differences), place).findings


def seen(types: Sequence[str] = (), differences: bool = False, first: int = 0, place: Place = CPU) -> Finding:
    """The first finding, of programs from the one of this number."""
    found = next(findings(types, differences, first, place), None)
    assert found is not None, f"{MOST} programs see nothing"
    return found


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    forget()
    yield
    forget()


def forget() -> None:
    """Drop what was chosen, derived, traced and prepared before: it would hide a fault, or keep one."""
    for op in ops:
        op.derived.clear()
    traces.clear()
    ops.generation += 1
    kernels.generation += 1
    for context in open_contexts():
        context.prepared.clear()


def test_memory_plans_are_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    def verify(self: memory_plan.MemoryPlan) -> None:
        raise ProgramError("lies over what is read")

    monkeypatch.setattr(memory_plan.MemoryPlan, "verify", verify)
    assert "lies over what is read" in str(seen())


def spoil_kernel(monkeypatch: pytest.MonkeyPatch, type: str, spoil: Callable[[Any], None]) -> None:
    """Let a function have the slots of an operator after each of its kernels has run."""
    usual = Choice.prepare

    def prepare(self: Choice, call: Any, context: Any) -> Any:
        run = usual(self, call, context)
        if call.op.type != type:
            return run

        def spoiled(context: Any, io: Any) -> None:
            run(context, io)
            spoil(io)

        return Prepared(spoiled, run.workspace)

    monkeypatch.setattr(Choice, "prepare", prepare)


def test_without_a_fault_nothing_is_seen() -> None:
    """Else the faults below would prove nothing."""
    for number in range(5):
        assert not check(generate(SEED, number, ALL).recipe, CPU).findings


def test_a_wrong_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both modes agree on it: only differences of the references know better."""
    op = ops.get("tanh_grad")
    assert op.scalar is not None
    monkeypatch.setattr(op, "scalar", replace(op.scalar, function=lambda out, dout: dout * (1 - out)))
    forget()
    found = seen(["tanh", "elementwise_mul"], differences=True, first=15)
    assert found.kind == "difference"


def test_a_gradient_that_cannot_be_appended(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not taken for an operator that has no derivative."""

    def infer(call: Any) -> Any:
        raise KeyError("Out")

    monkeypatch.setattr(ops.get("tanh_grad"), "infer", infer)
    forget()
    found = seen(["tanh", "elementwise_mul"])
    assert found.kind == "error"
    assert found.what.startswith("ProgramError: not built: operator tanh_grad")


def test_a_wrong_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """A primitive that is a little off, in both modes."""
    op = ops.get("softsign")
    assert op.scalar is not None
    monkeypatch.setattr(op, "scalar", replace(op.scalar, function=lambda x: x / (1.00001 + expr.abs_(x))))
    forget()
    assert seen(["softsign"]).kind == "value"


def test_a_kernel_that_writes_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """What others read of it is wrong then, or the feed is."""

    def write(io: Any) -> None:
        x = io.array("X")
        if x.flags.writeable and x.dtype == np.float32:
            x[...] = 0.5

    spoil_kernel(monkeypatch, "reduce_max", write)
    forget()
    assert seen(["reduce_max"]).kind in ("value", "foreign", "error")


def test_a_kernel_that_leaves_something_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last element of a sum."""

    def drop(io: Any) -> None:
        out = io.array("Out")
        if out.size and out.dtype.kind == "f":
            out.reshape(-1)[-1] *= 0.999

    spoil_kernel(monkeypatch, "reduce_mean", drop)
    forget()
    assert seen(["reduce_mean"]).kind == "value"


def test_a_wrong_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transposes that go as if they changed nothing: compiled alone."""
    usual = shaping.transpose_ends

    def inverse(op: Any) -> Any:
        found = usual(op)
        return None if found is None else (found[0], found[1], tuple(range(len(found[2]))))

    monkeypatch.setattr(shaping, "transpose_ends", inverse)
    found = seen(["transpose", "transpose2"], first=65)  # few programs end in one
    assert "compiled" in found.what


def test_a_wrong_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operand that Fluid's axis places is placed at the end."""
    usual = domain.aligned_dims

    def place(dims: Any, rank: int, axis: int) -> Any:
        found = usual(dims, rank, axis)
        moved = (1,) * (rank - len(dims)) + tuple(dims)
        return moved if found is not None and sorted(moved) == sorted(found) and rank == 3 else found

    monkeypatch.setattr(domain, "aligned_dims", place)
    forget()
    assert seen(["elementwise_add", "elementwise_mul"]).kind in ("value", "metadata", "error", "foreign")


def test_random_numbers_of_another_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modes and runs agree on them: the reference draws others."""
    usual = values.own_seed
    monkeypatch.setattr(values, "own_seed", lambda attrs: usual(attrs) + 1)
    forget()
    assert seen().kind == "value"


def test_memory_that_two_values_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan of the compiled mode gives two values that live at once one place."""
    usual = offsets.by_time

    def best(spans: Any, alignment: int) -> Any:
        at, size = usual(spans, alignment)
        return [0 if spans[i].nbytes == min(s.nbytes for s in spans) else a for i, a in enumerate(at)], size

    monkeypatch.setattr(offsets, "allocate_offsets", best)
    monkeypatch.setattr(memory_plan, "allocate_offsets", best)
    assert seen().kind in ("value", "modes", "foreign", "error")


def test_an_executable_of_another_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lookup that forgets the dims of what is fed."""
    usual = replay.ExecutableCache.run_cached

    def again(self: Any, key: Any, *rest: Any) -> Any:
        return usual(self, _without_dims(key), *rest)

    remember = replay.ExecutableCache.insert_key

    def kept(self: Any, key: Any, *rest: Any) -> Any:
        return remember(self, _without_dims(key), *rest)

    monkeypatch.setattr(replay.ExecutableCache, "run_cached", again)
    monkeypatch.setattr(replay.ExecutableCache, "insert_key", kept)
    assert seen().kind in ("value", "metadata", "error", "foreign")


def _without_dims(key: Any) -> Any:
    return tuple(
        tuple(item[0] for item in part) if isinstance(part, tuple) and part and isinstance(part[0], tuple) else part
        for part in key
    )


def test_an_entry_that_is_evicted_before_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache lets go of what a run has looked up, and found valid, but not begun."""
    usual = bound.Executable._call

    def call(self: Any, *arguments: Any) -> Any:
        if arguments[1] in seen_before:
            self.detach()
        seen_before.add(arguments[1])
        return usual(self, *arguments)

    seen_before: set[Any] = set()
    monkeypatch.setattr(bound.Executable, "_call", call)
    found = seen()
    assert found.kind in ("value", "modes", "metadata", "error", "foreign")


def test_state_that_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that forgets a write of state."""
    usual = executors.Executor._run

    def run(self: Any, program: Any, feeds: Any, names: Any, scope: Any) -> Any:
        tensors = {name: scope.find_var(name).get_tensor() for name in list(scope.local_var_names())[:1]}
        before = {name: np.array(tensor.numpy()) for name, tensor in tensors.items()}
        found = usual(self, program, feeds, names, scope)
        if self.mode == "compiled":
            for name, array in before.items():
                tensors[name].set(array, self.place)
        return found

    monkeypatch.setattr(executors.Executor, "_run", run)
    assert seen().kind in ("value", "modes")


def test_a_copy_of_an_older_value(monkeypatch: pytest.MonkeyPatch, require: Callable[..., None]) -> None:
    """What runs on the CPU reads state that was copied there before its last update, for an earlier stage."""
    require("fpga")
    usual = values.ValuePlacer._new_key
    monkeypatch.setattr(
        values.ValuePlacer, "_new_key", lambda self, key: key if key.endswith(f"@{CPU}") else usual(self, key)
    )
    assert seen(first=12, place=Place("fpga", 0)).kind in ("value", "modes")  # few programs have such stages


def test_a_foreign_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of Python's own is a finding, in one mode or in both."""

    def run(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if len(arguments) > 1:
            raise IndexError("list index out of range")
        return usual(self, *arguments, **keywords)

    usual = GraphRunner._plan
    monkeypatch.setattr(GraphRunner, "_plan", run)
    assert seen().kind == "foreign"


def test_a_finding_is_cut_down_to_a_few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the operator that is wrong, its feeds, and small numbers; the text is a program of its own."""
    op = ops.get("softsign")
    assert op.scalar is not None
    monkeypatch.setattr(op, "scalar", replace(op.scalar, function=lambda x: x / (1.001 + expr.abs_(x))))
    forget()
    found = shrink(seen(["softsign"]), CPU, seconds=250)  # it ends by itself
    assert [step.type for step in found.recipe.steps] == ["softsign"]
    text = python(found.recipe, "cpu")
    assert len(text.splitlines()) < 30
    exec(compile(text, "<finding>", "exec"), {})
