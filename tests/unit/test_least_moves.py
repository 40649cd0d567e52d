"""A choice counts the moves that it makes its neighbours need: of layouts, and of places."""

from __future__ import annotations

import dataclasses
import itertools
import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.compiler.ir.graph import Graph
from fluidlite.compiler.planning.min_cut import End, TransferredValue, minimum_transfers
from fluidlite.compiler.planning.move_minimization import moved_bytes
from fluidlite.compiler.planning.planner import _Planner
from fluidlite.compiler.policy import Policy
from fluidlite.devices.cpu import CPUDevice
from fluidlite.plugin import Call, register_kernel
from fluidlite.program.kernel_registry import Kernel, Library, kernels
from fluidlite.program.registry import ops, register_op
from fluidlite.tensor.layout import layout_named
from fluidlite.tensor.tensor_spec import Spec

sys.path.append(str(Path(__file__).parents[1] / "plugins"))
from fake_device import installed

from fluidlite.plugin import Inference

MODES = ("interpreted", "compiled")
KINDS = [kind for kind in ("cpu", "opencl", "fpga") if any(place.kind == kind for place in fluid.places())]
NHWC = {"X": "NHWC", "Out": "NHWC"}
LAYOUTS: dict[str, tuple[dict[str, str], ...]] = {
    "tied": (NHWC, {}), "plainly": ({},), "lastly": (NHWC,), "mixed": ({"Out": "NHWC"}, {"X": "NHWC"}),
}  # fmt: skip
"""Operators of the tests, with the layouts of their kernels in the order in which they are registered."""


@pytest.fixture(autouse=True)
def operators() -> Iterator[None]:
    """``tied`` and its like: Out = ``times`` copies of 2 X along the channels."""

    def infer(call: Call) -> Any:
        n, c, h, w = call.dims("X")
        return {"Out": call.spec("X").with_(dims=(n, c * call.attr("times"), h, w))}

    def prepare(call: Call, context: Any) -> Any:
        def run(context: Any, io: Any) -> None:
            given, made = call.spec("X"), call.spec("Out")
            before, after = (layout_named(spec.layout.name).permutation or (0, 1, 2, 3) for spec in (given, made))
            x = np.empty([given.dims[axis] for axis in before], "float32")
            context.copy_out(x.data.cast("B"), io.span("X"))
            context.wait()
            plain = np.concatenate([2 * x.transpose(np.argsort(before))] * call.attr("times"), 1)
            context.copy_in(io.span("Out"), np.ascontiguousarray(plain.transpose(after)).data.cast("B"))

        return run

    with ExitStack() as stack:
        library = Library("tie", ("*",), 7)
        kernels.add_library(library)
        stack.callback(kernels.remove_library, library)
        for type, layouts in LAYOUTS.items():
            attrs = [fluid.plugin.Attr("times", "int", default=1)]
            op = register_op(type, Inference(infer), inputs=("X",), outputs=("Out",), attrs=attrs)
            stack.callback(ops.remove, op)
            for each in layouts:
                kernel = Kernel(type, tuple(KINDS), prepare, "tie", layouts=each)
                kernels.add(kernel)
                stack.callback(kernels.remove, kernel)
        yield


def append(type: str, x: Any, times: int = 1) -> Any:
    out = x.block.create_var(fluid.unique_name.generate(type))
    x.block.append_op(type, {"X": x}, {"Out": out}, {"times": times})
    return out


X = np.random.default_rng(0).standard_normal((2, 3, 4, 5), np.float32)


def moves(report: Any) -> list[int]:
    return [move["bytes"] for row in report.data() for move in row["moves"] if move["why"] == "layout"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_kernel_that_needs_no_move_is_taken(kind: str, mode: str) -> None:
    made = fluid.Program()
    with fluid.program_guard(made):
        x = fluid.layers.data("x", [2, 3, 4, 5], append_batch_size=False)
        out = append("tied", append("tied", x))
    exe = fluid.Executor(kind, mode=mode)
    np.testing.assert_array_equal(exe.run(made, {"x": X}, [out])[0], 4 * X)
    report = exe.explain_last()
    assert moves(report) == []
    assert [row["library"] for row in report.data()] == ["tie", "tie"]
    assert (
        "not native tie: it ranks equally, and with its layouts (X NHWC, Out NHWC) no fewer bytes are rearranged"
        in (report.text(refused=True))
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_choice_looks_ahead(kind: str, mode: str) -> None:
    """The first makes twice as many bytes as it reads: it is cheaper to rearrange those that it reads."""
    made = fluid.Program()
    with fluid.program_guard(made):
        x = fluid.layers.data("x", [2, 3, 4, 5], append_batch_size=False)
        wide = append("tied", x, times=2)
        out = fluid.layers.reduce_sum(append("lastly", append("tied", wide)), dim=[1])
    exe = fluid.Executor(kind, mode=mode, fallback="allow")
    np.testing.assert_allclose(exe.run(made, {"x": X}, [out])[0], 16 * X.sum(1), rtol=1e-5)
    first, *_ = found = moves(exe.explain_last())
    assert first == X.nbytes
    assert len(found) == 2  # in front of the first, and behind the last


def planner(graph: Graph, place: str = "cpu", **given: Any) -> _Planner:
    feeds = {"x": (Spec.of((2, 3, 4, 5), "float32"), fluid.Place("cpu"))}
    return _Planner(graph, fluid.Place(place), feeds, {}, Policy("allow"), False, True, **given)


@pytest.mark.parametrize("seed", range(40))
def test_no_other_choice_moves_fewer_bytes(seed: int) -> None:
    draw = random.Random(seed)
    program = fluid.Program()
    with fluid.program_guard(program):
        made = [fluid.layers.data("x", [2, 3, 4, 5], append_batch_size=False)]
        for _ in range(draw.randint(3, 7)):
            type = draw.choice(["tied", "plainly", "lastly", "tied", "tied"])
            made.append(append(type, draw.choice(made[-2:]), draw.choice([1, 1, 2])))
    graph = Graph(program, [made[-1].name])
    best = planner(graph)
    plan = best.plan()
    again = planner(graph)
    again.plan()
    options = {op: several for op, several in again.tied_choices.items() if len(several) > 1}
    costs = []
    for several in itertools.product(*options.values()):
        trial = planner(graph)
        trial.overrides, trial.tied_choices = dict(zip(options, several, strict=True)), {}
        costs.append(moved_bytes(trial._plan_from(graph.operators, 0), fluid.Place("cpu"), fluid.Place("cpu")))
    assert moved_bytes(plan, fluid.Place("cpu"), fluid.Place("cpu")) == min(costs)


def test_where_no_kernel_is_plain_a_plan_is_still_right() -> None:
    """Choices between two kernels neither of which takes plain memory are made one by one."""
    program = fluid.Program()
    with fluid.program_guard(program):
        x = fluid.layers.data("x", [2, 3, 4, 5], append_batch_size=False)
        out = append("mixed", append("lastly", append("mixed", x)))
    exe = fluid.Executor("cpu")
    np.testing.assert_array_equal(exe.run(program, {"x": X}, [out])[0], 8 * X)
    assert len(moves(exe.explain_last())) == 0  # the first leaves channels last, and the last takes them so


def test_preferences_and_ranks_go_before_moves() -> None:
    program = fluid.Program()
    with fluid.program_guard(program):
        out = append("plainly", fluid.layers.data("x", [2, 3, 4, 5], append_batch_size=False))
    better = Library("better", ("cpu",), 8)
    kernels.add_library(better)
    kernel = Kernel("plainly", ("cpu",), lambda call, context: None, "better", layouts=NHWC)
    kernels.add(kernel)
    try:
        (line,) = planner(Graph(program, [out.name])).plan().lines
        assert line.choice is not None
        assert line.choice.library == "better"  # it ranks higher, whatever has to be rearranged
    finally:
        kernels.remove(kernel)
        kernels.remove_library(better)


def test_what_an_override_hides_is_no_choice() -> None:
    program = fluid.Program()
    with fluid.program_guard(program):
        out = append("tied", fluid.layers.data("x", [2, 3, 4, 5], append_batch_size=False))
    kernel = Kernel("tied", ("cpu",), lambda call, context: None, "tie", override=True, origin="mine")
    kernels.add(kernel)
    try:
        (line,) = planner(Graph(program, [out.name])).plan().lines
        assert line.choice is not None
        assert line.choice.kernel is kernel
    finally:
        kernels.remove(kernel)


@pytest.mark.parametrize("seed", range(30))
def test_fewest_moves_is_exact(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randint(1, 7)
    stay, go = ([draw.choice([0.0, 0.0, 1.0, 5.0]) for _ in range(count)] for _ in range(2))

    def end() -> End:
        return (
            End(draw.randrange(count), draw.random() < 0.8) if draw.random() < 0.8 else End(None, draw.random() < 0.5)
        )

    values = [
        TransferredValue(float(draw.randint(1, 9)), end(), [end() for _ in range(draw.randint(1, 3))]) for _ in range(9)
    ]

    def cost(gone: set[int]) -> float:
        def lies(each: End) -> bool:
            return each.side if each.node is None else each.side and each.node in gone

        total = sum(go[node] if node in gone else stay[node] for node in range(count))
        return total + sum(v.cost for v in values if len({lies(each) for each in (v.maker, *v.readers)}) > 1)

    several = [{n for n in range(count) if bits >> n & 1} for bits in range(1 << count)]
    assert cost(minimum_transfers(stay, go, values)) == min(map(cost, several))


# --- places ----------------------------------------------------------------------------------------------------------


class Lacking(CPUDevice):
    """An array namespace on host memory of its own, which lacks square roots and reciprocals."""

    kind = "lacking"

    def info(self, index: int) -> Any:
        return dataclasses.replace(super().info(index), host=False, dlpack=None)

    def language(self, index: int) -> Any:
        return None

    def supports(self, call: Call) -> str | None:
        return "the board has none" if call.op.type in ("sqrt", "reciprocal") else None


@pytest.fixture
def lacking() -> Iterator[Any]:
    with installed(Lacking()) as device:
        yield device


def between(program: fluid.Program) -> list[Any]:
    """Two that fall back with one between them; and one behind, whose reader computes on the board."""
    layers = fluid.layers
    with fluid.program_guard(program):
        x = layers.data("x", [-1, 50], append_batch_size=False)
        middle = layers.square(layers.sqrt(layers.exp(x)))
        root = layers.reciprocal(middle)
        return [layers.softmax(layers.tanh(root))]


@pytest.mark.parametrize("mode", MODES)
def test_what_lies_between_two_that_fall_back_goes_with_them(lacking: Any, mode: str) -> None:
    program = fluid.Program()
    fetches = between(program)
    values = np.linspace(-1, 1, 200, dtype="float32").reshape(4, 50)
    found = fluid.Executor("cpu", mode=mode).run(program, {"x": values}, fetches)[0]
    exe = fluid.Executor("lacking", mode=mode, fallback="warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        np.testing.assert_allclose(exe.run(program, {"x": values}, fetches)[0], found, rtol=1e-6)
    rows = {name: row for row in exe.explain_last().data() for name in (row["op"], *row["made_of"])}
    square = next(row for name, row in rows.items() if name.startswith("square"))
    softmax = rows["softmax"]
    assert (square["how"], square["place"], softmax["place"]) == ("fallback", "cpu:0", "lacking:0")
    told = next(row for row in square["refused"] if "fewer bytes are copied" in row[1])
    assert told[0].startswith("generated")
    transfers = [move for row in exe.explain_last().data() for move in row["moves"] if move["why"] == "transfer"]
    assert len(transfers) == 2  # in front of the first, and behind the last
    (message,) = [str(w.message) for w in caught if "have no kernel" in str(w.message)]
    assert "square" not in message


def test_what_the_place_shall_compute_stays(lacking: Any) -> None:
    """A kernel of the place's own, state, what the user put there, and whatever feeds a costly operator."""
    layers = fluid.layers

    def how(build: Any) -> list[str]:
        program = fluid.Program()
        with fluid.program_guard(program):
            x = layers.data("x", [4, 50], append_batch_size=False)
            build(program, x)
        return [
            row["place"] for row in fluid.explain(program, "lacking").data() if row["op"] in ("square", "mul", "matmul")
        ]

    def plain(program: Any, x: Any) -> None:
        layers.reciprocal(layers.square(layers.sqrt(x)))

    def state(program: Any, x: Any) -> None:
        kept = program.global_block().create_var(name="kept", shape=[4, 50], dtype="float32", persistable=True)
        program.global_block().append_op("square", {"X": layers.sqrt(x)}, {"Out": kept})
        layers.reciprocal(kept)

    def put(program: Any, x: Any) -> None:
        root = layers.sqrt(x)
        with fluid.device_guard("lacking"):
            middle = layers.square(root)
        layers.reciprocal(middle)

    def product(program: Any, x: Any) -> None:
        root = layers.sqrt(x)
        layers.reciprocal(layers.matmul(root, root, transpose_y=True))

    assert how(plain) == ["cpu:0"]
    for build in (state, put, product):
        assert how(build) == ["lacking:0"], build.__name__
    kernel = register_kernel("square", "lacking", library="board")(lambda call, context: None)
    try:
        assert how(plain) == ["lacking:0"]
    finally:
        kernels.remove(kernel)


def test_without_fallback_nothing_is_moved(lacking: Any) -> None:
    program = fluid.Program()
    with fluid.program_guard(program):
        x = fluid.layers.data("x", [4, 50], append_batch_size=False)
        fluid.layers.tanh(fluid.layers.square(x))
    assert {row["place"] for row in fluid.explain(program, "lacking").data()} == {"lacking:0"}
