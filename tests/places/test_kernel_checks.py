"""A kernel that leaves an output unwritten, or writes anything else, is caught: in both modes, on every place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.errors import KernelError
from fluidlite.conformance.tolerances import ConformanceError
from fluidlite.plugin import Call, Library, Prepared
from fluidlite.program.kernel_registry import Kernel, kernels
from fluidlite.testing import check_gradient, check_sample

MODES = ("interpreted", "compiled")
ROWS, COLUMNS = 30, 100


@contextmanager
def kernel(
    kind: str, run: Callable[[Any, Any], Any], op: str = "tanh", prepares: bool = False, **options: Any
) -> Iterator[Kernel]:
    """A kernel for one kind of places, that goes before all others: its ``run``, or what prepares that."""

    def prepare(call: Call, context: Any) -> Any:
        return run(call, context) if prepares else run

    library = Library("careless", places=(kind,), rank=1000)
    made = Kernel(op, (kind,), prepare, "careless", origin="careless.py:7", **options)
    kernels.add_library(library)
    kernels.add(made)
    try:
        yield made
    finally:
        kernels.remove(made)
        kernels.remove_library(library)


def put(context: Any, io: Any, slot: str, share: float = 1.0, value: float = 0.5) -> None:
    """Fill the first elements of a slot."""
    span = io.span(slot)
    nbytes = int(span.nbytes * share) // 4 * 4
    context.copy_in(span._replace(nbytes=nbytes), np.full(nbytes // 4, value, "float32").data.cast("B"))


def whole(context: Any, io: Any) -> None:
    put(context, io, "Out")


def nothing(context: Any, io: Any) -> None:
    io.span("Out")


def touches_nothing(context: Any, io: Any) -> None:
    return None


def half(context: Any, io: Any) -> None:
    put(context, io, "Out", 0.5)


def its_input(context: Any, io: Any) -> None:
    put(context, io, "Out")
    put(context, io, "X", 0.1, 7.0)


def beside_it(context: Any, io: Any) -> None:
    put(context, io, "Out")
    span = io.span("Out")
    context.copy_in(span._replace(offset=span.offset + span.nbytes, nbytes=4), memoryview(b"here"))


WRONG = [
    (nothing, "wrote nothing to output Out [30, 100]"),
    (touches_nothing, "wrote nothing to output Out [30, 100]"),
    (half, "wrote 1,500 of 3,000 elements to output Out [30, 100]"),
    (its_input, "changed 300 elements of input X [30, 100]"),
    (beside_it, " bytes behind the 12,000 of output Out [30, 100]"),  # one may be what it was
]


def program(feeds_it: bool) -> tuple[fluid.Program, Any]:
    """The tanh of a feed, or of what another operator made of it."""
    made = fluid.Program()
    with fluid.program_guard(made):
        x = fluid.layers.data("x", [-1, COLUMNS], append_batch_size=False)
        given = x if feeds_it else fluid.layers.softmax(x)
        return made, fluid.layers.softmax(fluid.layers.tanh(given))


FEED = {"x": np.linspace(-1, 1, ROWS * COLUMNS, dtype="float32").reshape(ROWS, COLUMNS)}
HOW: list[dict[str, Any]] = [{"check_kernels": True}, {"interpret": True}, {"check_nan": True}]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("feeds_it", [True, False])
@pytest.mark.parametrize(("run", "message"), WRONG)
def test_debug_names_the_kernel(kind: str, run: Any, message: str, feeds_it: bool, mode: str) -> None:
    made, out = program(feeds_it)
    exe = fluid.Executor(kind, mode=mode, fallback="allow")
    with kernel(kind, run):
        for options in HOW:
            with pytest.raises(KernelError) as error, fluid.debug(**options):
                exe.run(made, FEED, [out])
            assert message in str(error.value)
            assert "operator tanh (test_kernel_checks.py" in str(error.value)
            assert "kernel for 'tanh' at careless.py:7 (library 'careless'" in str(error.value)
    np.testing.assert_array_equal(FEED["x"], np.linspace(-1, 1, ROWS * COLUMNS, dtype="float32").reshape(ROWS, COLUMNS))


@pytest.mark.parametrize("mode", MODES)
def test_debug_lets_a_right_one_pass(kind: str, mode: str) -> None:
    made, out = program(False)
    exe = fluid.Executor(kind, mode=mode, fallback="allow")
    with kernel(kind, whole):
        expected = exe.run(made, FEED, [out])[0]
        for options in HOW:
            with fluid.debug(**options):
                np.testing.assert_array_equal(exe.run(made, FEED, [out])[0], expected)
    with kernel(kind, nothing), fluid.debug(check_nan=True, check_kernels=False):
        exe.run(made, FEED, [out])  # nobody asked


def test_a_kernel_may_return_arrays(kind: str) -> None:
    if kind == "fpga":
        pytest.skip("it has no arrays")
    made, out = program(False)
    with kernel(kind, lambda context, io: context.xp.tanh(io.array("X"))) if kind != "opencl" else kernel(kind, whole):
        for mode in MODES:
            with fluid.debug(check_kernels=True):
                fluid.Executor(kind, mode=mode).run(made, FEED, [out])


@pytest.mark.parametrize("mode", MODES)
def test_state_is_updated_once(kind: str, mode: str) -> None:
    """One that is updated in place is not filled; where its kernel has to run again, it is put back first."""
    made, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(made, startup):
        step = fluid.layers.create_global_var([1], 0.0, "float32", persistable=True, name="step")
        w = fluid.layers.create_parameter(
            [700], "float32", name="w", default_initializer=fluid.initializer.Constant(1.0)
        )
        loss = fluid.layers.mean(fluid.layers.square(w))
        fluid.layers.increment(step, 1.0)
        fluid.optimizer.AdamOptimizer(0.1).minimize(loss, startup)
    found = []
    for options in ({}, {"check_kernels": True}):
        scope = fluid.Scope()
        with fluid.scope_guard(scope):
            exe = fluid.Executor(kind, mode=mode, fallback="allow")
            exe.run(startup)
            with fluid.debug(**options):
                for _ in range(3):
                    exe.run(made, fetch_list=[loss])
            found.append([np.array(scope.find_var(name).get_tensor().numpy()) for name in ("step", "w")])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("mode", MODES)
def test_values_that_look_unwritten_are_not(kind: str, mode: str) -> None:
    """Of one-byte elements one in 256 is what it was filled with by chance."""
    made = fluid.Program()
    with fluid.program_guard(made):
        x = fluid.layers.data("x", [-1, COLUMNS], append_batch_size=False)
        out = fluid.layers.cast(fluid.layers.scale(x, 100.0, 100.0), "uint8")
        more = fluid.layers.less_than(x, fluid.layers.scale(x, 2.0))
    exe = fluid.Executor(kind, mode=mode, fallback="allow")
    expected = exe.run(made, FEED, [out, more])
    with fluid.debug(check_kernels=True):
        for _ in range(3):
            for one, other in zip(exe.run(made, FEED, [out, more]), expected, strict=True):
                np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("wrong", ["output", "input"])
def test_the_certificate_sees_it(kind: str, wrong: str) -> None:
    """Though the values that are compared are right."""
    runs: list[Any] = []  # the first is checked, by the second if it leaves elements unwritten

    def careless(context: Any, io: Any) -> None:
        values = np.empty(io.tensor("X").dims, "float32")
        context.copy_out(values.data.cast("B"), io.span("X"))
        context.wait()
        put(context, io, "Out", share=0.5)
        if wrong == "input" or len(runs) > 1:
            context.copy_in(io.span("Out"), np.tanh(values).data.cast("B"))
        if wrong == "input" and not runs:
            context.copy_in(io.span("X"), (values + 1).data.cast("B"))
        runs.append(io)

    with kernel(kind, careless, dtypes=("float32",)), pytest.raises(KernelError, match=f"{wrong} (Out|X)"):
        check_sample("tanh", kind)


def given(context: Any, io: Any, slot: str) -> np.ndarray[Any, Any]:
    """The numbers of a slot."""
    values = np.empty(io.tensor(slot).dims, "float32")
    context.copy_out(values.data.cast("B"), io.span(slot))
    context.wait()
    return values


def writes_before_it_reads(context: Any, io: Any) -> None:
    """Right, as long as its output has other memory than its input."""
    put(context, io, "Out", value=0.25)
    context.copy_in(io.span("Out"), np.tanh(given(context, io, "X")).data.cast("B"))


def derives_before_it_reads(context: Any, io: Any) -> None:
    put(context, io, "X@GRAD", value=0.25)
    found = given(context, io, "Out@GRAD") * (1 - given(context, io, "Out") ** 2)
    context.copy_in(io.span("X@GRAD"), found.data.cast("B"))


def test_the_certificate_tries_kernels_in_place(kind: str) -> None:
    inplace = {"dtypes": ("float32",), "inplace": True}
    with kernel(kind, writes_before_it_reads, dtypes=("float32",)):
        check_sample("tanh", kind)
    with (
        kernel(kind, writes_before_it_reads, **inplace),
        pytest.raises(ConformanceError, match="compiled, X computed: Out"),
    ):
        check_sample("tanh", kind)
    with (
        kernel(kind, derives_before_it_reads, "tanh_grad", **inplace),
        pytest.raises(ConformanceError, match="compiled, all computed: gradient of X"),
    ):
        check_gradient("tanh", kind)


@pytest.mark.parametrize("right", [True, False])
def test_the_certificate_tries_packed_inputs(kind: str, right: bool) -> None:
    """The form is what a kernel reads wherever a program reads a parameter, and nowhere else."""
    packs: list[int] = []

    def pack(context: Any, source: Any, target: Any) -> None:
        packs.append(1)
        context.copy_within(target, source)
        if not right:
            context.copy_in(target._replace(nbytes=4), np.float32([7]).data.cast("B"))

    def run(context: Any, io: Any) -> None:
        span = io.packed("X") or io.span("X")
        values = np.empty(io.tensor("X").dims, "float32")
        context.copy_out(values.data.cast("B"), span)
        context.wait()
        context.copy_in(io.span("Out"), np.tanh(values).data.cast("B"))

    def prepare(call: Call, context: Any) -> Any:
        return Prepared(run, packed={"X": (call.spec("X").nbytes, pack, "mine")})

    found = nullcontext() if right else pytest.raises(ConformanceError, match="compiled, X persistent: Out")
    with kernel(kind, prepare, prepares=True, dtypes=("float32",)), found:
        check_sample("tanh", kind)
    assert packs


def test_every_kernel_writes_all_and_no_input(kind: str) -> None:
    """The samples of some operators with awkward outputs; the certificates check all of them."""
    for op in ("dropout", "softmax_with_cross_entropy", "adam", "unique"):
        check_sample(op, kind)
        check_gradient(op, kind)
