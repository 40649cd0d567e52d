"""Scans of a step: values against a loop in NumPy, derivatives of first and second order against differences."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import expr as e, layers as L
from fluidlite.base.errors import ProgramError
from fluidlite.expr.declare import operator
from fluidlite.expr.steps import step_table
from fluidlite.expr.traced import trace
from fluidlite.plugin import Differentiation
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.registry import ops
from fluidlite.render.arrays import array_code

RNG = np.random.default_rng(0)
F64 = dict.fromkeys(("Input", "H0", "Weight"), ("float64",))


def _step(states: Any, inputs: Any, parameters: Any, *, gain: float) -> Any:
    """Two states, one of which feeds a product; what a step begins with is kept as well."""
    (h, c), (x,), (w,) = states, inputs, parameters
    new = e.tanh(x + e.matmul(h, w)) * gain
    return (new, c * 0.5 + new * x), (new * c, h)


def _declare(type_: str, ragged: bool) -> Any:
    @operator(
        type_,
        Differentiation(reads=("Input", "H0", "Weight")),
        inputs=["Input", Slot("H0"), Slot("Weight")],
        outputs=("H", "C", "Kept", "Before"),
        attrs=[Attr("backward", "bool", False)],
        dtypes=F64,
    )
    def scanned(input: Any, h0: Any, weight: Any, *, backward: bool) -> Any:
        at = e.offsets(input) if ragged else None
        x = e.arrange(input, at) if at is not None else input
        first = e.arrange(h0, at, "sequences") if at is not None else h0
        made = e.steps(_step, [first, first * 2], [x], [weight], at, backward, gain=0.9)
        return tuple(e.arrange(y, at, inverse=True) for y in made) if at is not None else tuple(made)

    return scanned


@pytest.fixture(scope="module", autouse=True)
def _operators() -> Any:
    for name, ragged in (("test.ragged_scan", True), ("test.even_scan", False)):
        if name not in {op.type for op in ops}:
            _declare(name, ragged)


def _reference(x: Any, h0: Any, w: Any, sequences: Sequence[Sequence[int]], backward: bool) -> tuple[Any, Any, Any]:
    h, c, kept = (np.zeros((len(x), h0.shape[1])) for _ in range(3))
    for k, rows in enumerate(sequences):
        state, cell = h0[k], 2 * h0[k]
        for row in reversed(rows) if backward else rows:
            state = np.tanh(x[row] + state @ w) * 0.9
            kept[row] = state * cell
            cell = cell * 0.5 + state * x[row]
            h[row], c[row] = state, cell
    return h, c, kept


def _sequences(offsets: Sequence[int] | None, rows: int, batch: int) -> list[range]:
    if offsets is None:
        return [range(k, rows, batch) for k in range(batch)]
    return [range(a, b) for a, b in pairwise(offsets)]


def _program(kind: str, rows: int, batch: int, backward: bool) -> tuple[list[Any], list[Any]]:
    ragged = kind == "test.ragged_scan"
    x = L.data("x", [2], dtype="float64", lod_level=1) if ragged else L.data("x", [rows, 2], dtype="float64",
                                                                              append_batch_size=False)  # fmt: skip
    h = L.data("h", [batch, 2], dtype="float64", append_batch_size=False)
    w = L.data("w", [2, 2], dtype="float64", append_batch_size=False)
    for each in (x, h, w):
        each.stop_gradient = False
    block = fluid.default_main_program().global_block()
    outs = [block.create_var(name, dtype="float64") for name in ("out_h", "out_c", "out_k", "out_b")]
    made = dict(zip(("H", "C", "Kept", "Before"), outs, strict=True))
    block.append_op(kind, {"Input": x, "H0": h, "Weight": w}, made, {"backward": backward})
    return outs, [x, h, w]


def _feed(x: Any, h: Any, w: Any, offsets: Sequence[int] | None) -> dict[str, Any]:
    if offsets is not None:
        x = fluid.create_lod_tensor(x, [list(np.diff(offsets))], fluid.CPUPlace())
    return {"x": x, "h": h, "w": w}


CASES = [
    ("test.ragged_scan", (0, 2, 2, 5, 9), False),
    ("test.ragged_scan", (0, 1, 1, 4), True),
    ("test.ragged_scan", (0, 0), False),
    ("test.even_scan", None, False),
    ("test.even_scan", None, True),
]


@pytest.mark.parametrize(("kind", "offsets", "backward"), CASES)
def test_values_and_derivatives(kind: str, offsets: Sequence[int] | None, backward: bool) -> None:
    rows, batch = (offsets[-1], len(offsets) - 1) if offsets is not None else (6, 2)
    x, h, w = RNG.normal(size=(rows, 2)), RNG.normal(size=(batch, 2)), RNG.normal(size=(2, 2))
    outs, sources = _program(kind, rows, batch, backward)
    loss = L.reduce_sum(outs[0] * outs[0]) + L.reduce_sum(outs[1] * outs[2] + outs[3])
    first = fluid.gradients([loss], sources)
    total = L.reduce_sum(first[0] * first[0]) + L.reduce_sum(first[1] * first[2][:1])
    second = fluid.gradients([total], sources)
    expected = _reference(x, h, w, _sequences(offsets, rows, batch), backward)
    for mode in ("compiled",) if backward else ("interpreted", "compiled"):
        exe = fluid.Executor("cpu", mode=mode)
        wanted = [*outs, loss, total, *first, *second]
        found = [np.asarray(t) for t in exe.run(feed=_feed(x, h, w, offsets), fetch_list=wanted, return_numpy=False)]
        for a, b in zip(found, expected, strict=False):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
        way = [RNG.normal(size=each.shape) for each in (x, h, w)]
        ends = [exe.run(feed=_feed(*(a + s * b for a, b in zip((x, h, w), way, strict=True)), offsets),
                        fetch_list=[loss, total]) for s in (1e-6, -1e-6)]  # fmt: skip
        for k, grads in ((0, found[6:9]), (1, found[9:12])):
            slope = float(np.squeeze(ends[0][k] - ends[1][k])) / 2e-6
            moved = sum(float((g * b).sum()) for g, b in zip(grads, way, strict=True))
            np.testing.assert_allclose(moved, slope, rtol=2e-6, atol=1e-7)


def test_tables_by_array_calls() -> None:
    """``arrange`` and tables stand in expressions of array calls, too."""
    offsets = (0, 1, 4)
    leaves = {"X.0.0": 4, "X.0.1": 1, "X.0.lod0": 3, "X.0.lod0.offsets": offsets}

    def function(given: Any, _: Any) -> Any:
        (x,) = given["X"]
        at = e.offsets(x)
        return {"A": e.arrange(x, at), "B": e.arrange(e.arrange(x, at, reverse=True), at, inverse=True, reverse=True),
                "C": step_table("before", False, at, 4, 4)}  # fmt: skip

    code = array_code(trace(function, {"X": [((4, 1), "float64")]}, values=leaves))
    x, a, b, c = np.arange(4.0)[:, None], np.zeros((4, 1)), np.zeros((4, 1)), np.zeros(4, "int64")
    from fluidlite.codegen import functions
    from fluidlite.render import array_functions

    code.function()(np, functions, array_functions, None, None, code.values(leaves), [], x, a, b, c)
    assert a[:, 0].tolist() == [1, 0, 2, 3]  # the longest sequence first
    assert b.tolist() == x.tolist()
    assert c.tolist() == [0, 1, 2, 4]  # two first states, then rows


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda s, i, p: ((e.cast(s[0], "float32"),), ()), "makes the state"),
        (lambda s, i, p: ((e.concat([s[0], s[0]], 1),), ()), "makes the state"),
        (lambda s, i, p: ((s[0] - e.reduce_mean(s[0], 0, keep=True),), ()), "joins rows"),
    ],
)
def test_refuses_a_step_that_changes_its_state(step: Any, message: str) -> None:
    operands = {"X": [((4, 2), "float64")], "H": [((2, 2), "float64")]}
    with pytest.raises(ProgramError, match=message):
        trace(lambda given, _: {"O": e.steps(step, given["H"], given["X"])[0]}, operands)


def test_refuses_operands_that_do_not_fit() -> None:
    operands = {"X": [((4, 2), "float64"), ((5, 2), "float64")], "H": [((2, 2), "float64")]}

    def keep(states: Any, inputs: Any, parameters: Any) -> Any:
        return states, ()

    for function, message in (
        (lambda g, _: {"O": e.steps(keep, g["H"], g["X"])[0]}, "different rows"),
        (lambda g, _: {"O": e.steps(keep, g["H"], ())[0]}, "a state and an input"),
        (lambda g, _: {"O": e.steps(keep, g["H"], g["X"][:1], rate=g["H"][0].dims[0])[0]}, "make the attribute static"),
        (lambda g, _: {"O": e.steps(keep, g["H"], g["X"][:1], offsets=e.iota((3,), 0))[0]}, "offsets of an operand"),
    ):
        with pytest.raises(ProgramError, match=message):
            trace(function, operands)


def test_what_products_multiply_is_kept() -> None:
    """The derivative of a scan has its products' factors as a result, and derives no gate a second time."""
    x = L.data("x", [8], lod_level=1)
    x.stop_gradient = False
    hidden, _ = L.dynamic_lstm(x, 8, use_peepholes=False)
    fluid.gradients([L.reduce_sum(hidden)], [x, *fluid.default_main_program().all_parameters()])
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    feed = {"x": fluid.create_lod_tensor(np.ones((5, 8), "float32"), [[2, 3]], fluid.CPUPlace())}
    grads = [f"{name}@GRAD" for name in ("x", *(p.name for p in fluid.default_main_program().all_parameters()))]
    exe.run(feed=feed, fetch_list=grads, return_numpy=False)
    assert exe._executables is not None and exe._executables.last is not None
    calls = [step.call for step in exe._executables.last.plan.steps if hasattr(step, "call")]
    back = next(call for call in calls if call.op.type == "steps" and call.op.steps.backward)
    assert [spec.dims for spec in back.outs["O"]] == [(5, 2), (5, 2), (5, 8)]
    later = calls[calls.index(back) :]
    assert not [call for call in later if call.op.type.startswith("elementwise_part") and call.count("A0") > 2]


def test_kernels_of_steps_are_those_that_were_chosen() -> None:
    """A program that is run again and again has others, and those of one that is not are prepared on its queue."""
    rng = np.random.default_rng(3)
    dims = {"Input": (3, 2, 3), "W": (240,), "InitH": (4, 2, 2), "InitC": (4, 2, 2)}
    feed = {slot: rng.uniform(-1, 1, shape).astype("float32") for slot, shape in dims.items()}

    def run(repeated: bool) -> list[bytes]:
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
            block = fluid.default_main_program().global_block()
            inputs = {slot: block.create_var(slot, shape, "float32", is_data=True) for slot, shape in dims.items()}
            outputs = {slot: block.create_var(slot) for slot in ("Out", "last_h", "last_c")}
            attrs = {"hidden_size": 2, "num_layers": 2, "is_bidirec": True, "is_test": True}
            block.append_op("cudnn_lstm", inputs, outputs, attrs)
            if repeated:
                L.increment(L.create_global_var([1], 0.0, "float32", persistable=True, name="count"))
            scope, exe = fluid.Scope(), fluid.Executor("cpu")
            exe.run(fluid.default_startup_program(), scope=scope)
            return [array.tobytes() for array in exe.run(feed=feed, fetch_list=list(outputs), scope=scope)]

    run(False)
    here, elsewhere = run(True), list[list[bytes]]()
    thread = threading.Thread(target=lambda: elsewhere.append(run(True)))
    thread.start()
    thread.join()
    assert elsewhere == [here]
