"""Expressions computed in blocks along an axis: which are, and that they give what they give at once."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import expr as e
from fluidlite.codegen import functions
from fluidlite.compiler.sources.running import host_context
from fluidlite.expr.calls import infer
from fluidlite.expr.traced import trace, values_of
from fluidlite.plugin import Inference, Lowering
from fluidlite.program.opdef import Attr
from fluidlite.program.registry import ops, register_op
from fluidlite.program.rules import ExpressionRule
from fluidlite.render import array_functions, blocks
from fluidlite.render.arrays import array_code
from fluidlite.render.blocks import Part, Sum, blocks_of, makes_large

Function = Callable[..., Any]

CUT: dict[str, tuple[int, Function]] = {
    "softmax": (0, lambda x, y: e.exp(x - e.reduce_max(x, (1, 2), keep=True))),
    "two operands": (0, lambda x, y: x * y + 1.0),
    "windows": (0, lambda x, y: e.reduce_max(e.window(e.pad(x, (0, 1, 0), (0, 0, 2)), 2, 3, 2), 3)),
    "filled": (0, lambda x, y: e.concat([e.full(x.dims, 2, "float32"), x], 1)),
    "counted": (0, lambda x, y: x * e.cast(e.iota(x.dims, 1), "float32")),
    "rows kept": (0, lambda x, y: e.transpose(e.reshape(x, (x.dims[0], -1, 2)), (0, 2, 1))),
    "mean of rows": (0, lambda x, y: e.reduce_mean(x, (1, 2))),
    "rows joined": (0, lambda x, y: e.reshape(x * 2, (x.dims[0] * x.dims[1], x.dims[2]))),
    "rows of joined": (0, lambda x, y: y + e.reshape(e.reshape(x * 2, (x.dims[0] * x.dims[1], x.dims[2])) + 1, x.dims)),
    "rows as columns": (0, lambda x, y: e.transpose(x, (1, 0, 2)) + 1),
    "sum over rows": (1, lambda x, y: x - e.reduce_sum(x, 0, keep=True)),
    "number of rows": (1, lambda x, y: x / x.dims[0]),
    "rows counted": (1, lambda x, y: x * e.cast(e.iota(x.dims, 0), "float32")),
    "rows turned": (1, lambda x, y: e.flip(x, 0)),
    "rows shifted": (1, lambda x, y: e.pad(x, (1, 0, 0), (-1, 0, 0))),
    "running sum": (1, lambda x, y: e.scan("sum", x, 0)),
    "windows of rows": (1, lambda x, y: e.reduce_sum(e.window(x, 0, 2), 1)),
    "channels": (1, lambda x, y: x + y - e.reshape(e.reduce_max(y, (0, 2)), (1, x.dims[1], 1))),
    "columns": (2, lambda x, y: x - e.reduce_max(x, (0, 1), keep=True)),
}
"""The axis of X along which each is computed in blocks."""
SUMMED: dict[str, Function] = {
    "sum": lambda x, y: e.reduce_sum(x * y),
    "maximum": lambda x, y: e.reduce_max(x * y, (0, 1)),
    "sum of channels": lambda x, y: e.reshape(e.reduce_sum(e.exp(x) - y, (0, 2)), (1, x.dims[1])),
    "product": lambda x, y: e.reduce_prod(x + y, (0, 2), keep=True),
}
"""Results that blocks give parts of, which are put together."""
DEPENDENT: dict[str, Function] = {
    "sum of all": lambda x, y: x - e.reduce_sum(x, keep=True),
    "computed of a sum": lambda x, y: e.exp(e.reduce_sum(x, (0, 1, 2))),
    "all turned": lambda x, y: e.flip(e.flip(e.flip(x, 0), 1), 2),
    "rows folded": lambda x, y: e.flip(e.reshape(e.reshape(x, (-1, 2)) * 2, x.dims), 2),
    "rows beside each other": lambda x, y: e.take(x, e.reshape(e.argmax(x, 2), (-1,)), 0, "clamp") - e.reduce_sum(x),
    "matrices": lambda x, y: e.contract(x, y, "nij,nkj->nik"),
}
X = np.random.default_rng(0).standard_normal((7, 3, 4)).astype("float32")


def _blocks(function: Function) -> Any:
    given = {name: [((7, 3, 4), "float32")] for name in ("X", "Y")}
    made = trace(lambda found, _: {"Out": function(found["X"][0], found["Y"][0])}, given)
    return blocks_of(made, ("Out",), values_of(given))


@pytest.mark.parametrize("name", CUT)
def test_parts_that_do_not_depend_on_each_other_are_cut(name: str) -> None:
    axis, function = CUT[name]
    found = _blocks(function)
    assert found is not None
    assert found.operands["X", 0] == Part(axis)
    assert isinstance(found.results["Out", 0], Part)


@pytest.mark.parametrize("name", SUMMED)
def test_results_that_are_reduced_are_put_together(name: str) -> None:
    found = _blocks(SUMMED[name])
    assert found is not None
    assert found.operands == {("X", 0): Part(0), ("Y", 0): Part(0)}
    assert isinstance(found.results["Out", 0], Sum)


@pytest.mark.parametrize("name", DEPENDENT)
def test_parts_that_depend_on_each_other_are_not_cut(name: str) -> None:
    assert _blocks(DEPENDENT[name]) is None


REDUCED_AGAIN: dict[str, Function] = {
    "maximum": lambda s: e.reduce_max(s, 0, keep=True),
    "maximum of one": lambda s: e.reduce_max(e.reshape(s, (1, -1)), 1),
    "sum": lambda s: e.reshape(e.reduce_sum(e.reshape(s, (-1, 1)), 0), (1, 1)),
}


@pytest.mark.parametrize("name", REDUCED_AGAIN)
def test_what_is_reduced_of_a_sum_is_not_put_together(name: str) -> None:
    """A block has a part of the sum."""

    def function(found: Any, _: Any) -> dict[str, e.Tensor]:
        s = e.reduce_sum(e.exp(found["X"][0]), keep=True)
        return {"S": s, "Out": REDUCED_AGAIN[name](s)}

    given = {name: [((7, 3, 4), "float32")] for name in ("X", "Y")}
    assert blocks_of(trace(function, given), ("S", "Out"), values_of(given)) is None


WRITTEN: dict[str, Function] = {
    "repeated": lambda x, y: e.reshape(e.broadcast(e.reshape(x, (1, *x.dims)), (3, *x.dims)), (-1, *x.dims[1:])),
    "joined": lambda x, y: e.concat([x, y], 1),
    "stacked": lambda x, y: e.concat([e.unsqueeze(x, 1), e.unsqueeze(y, 1)], 1),
    "scaled to a norm": lambda x, y: x / e.sqrt(e.reduce_sum(x * y)),
    "running sum": lambda x, y: e.scan("sum", x, 0),
    "lines taken": lambda x, y: e.take(x, e.iota((x.dims[0],), 0), 0, "clamp"),
    "lines added": lambda x, y: e.add_at(y, e.iota((y.dims[0],), 0) // 2, 0, y.dims[0], x),
    "padded": lambda x, y: e.pad(x, (1, 0, 0), (0, 0, 2)),
    "part": lambda x, y: e.slices(x, (1, 1, 0), (4, 2, 4)),
    "product": lambda x, y: x * y,
    "mask": lambda x, y: e.where(x > 0.5, y, 0),
}
"""What array calls write to results alone, but for small tensors."""
MADE: dict[str, Function] = {
    "window": lambda x, y: e.reduce_max(e.window(x, 2, 2), 3) + 1,
    "chosen": lambda x, y: e.where(x > 0.5, x, 0) + y,
    "elementwise": lambda x, y: (x * y + 1) / y,
    "two at once": lambda x, y: (x * y) / (x - y),
    "sum of columns": lambda x, y: e.reduce_sum(x * y, 0),
    "order of axes": lambda x, y: e.reshape(e.transpose(x, (2, 0, 1)), (-1,)) * 2,
    "rounded": lambda x, y: e.cast(e.cast(x * y, "int32"), "float32") * y,
}
"""What they write several times, or elsewhere too."""


@pytest.mark.parametrize("name", [*WRITTEN, *MADE, *CUT, *SUMMED, *DEPENDENT])
def test_what_array_calls_write_to_new_memory_is_known(name: str) -> None:
    """Where nothing large of it is known, they take no large memory."""
    function = {**{key: each for key, (_, each) in CUT.items()}, **SUMMED, **DEPENDENT, **WRITTEN, **MADE}[name]
    given = {name: [((70, 30, 40), "float32")] for name in ("X", "Y")}
    values = values_of(given)
    made = trace(lambda found, _: {"Out": function(found["X"][0], found["Y"][0])}, given)
    code = array_code(made, None, True)
    large = makes_large(made, ("Out",), code.temporaries, values)
    arrays = {slot: np.random.default_rng(0).random((70, 30, 40), "float32") for slot in ("X", "Y")}
    out = np.empty([d.evaluate(values) for d in made.outputs["Out"][0].dims], made.outputs["Out"][0].dtype)
    context, given_arrays = host_context(), [*(arrays[slot] for slot, _ in code.operands), out]
    compute, numbers = code.function(), code.values(values)
    for _ in range(2):  # what is computed once is there then
        tracemalloc.start()
        try:
            with np.errstate(all="ignore"):
                compute(np, functions, array_functions, context, None, numbers, [], *given_arrays)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    if name in {**WRITTEN, **MADE}:
        assert large is (name in MADE)
    assert large or peak < max(arrays["X"].nbytes, out.nbytes) // 2


def test_a_block_does_not_write_what_another_reads() -> None:
    def function(found: Any, _: Any) -> dict[str, e.Tensor]:
        x, y = found["X"][0], found["Y"][0]
        return {"Out": y + e.reduce_max(x, keep=True)}

    given = {name: [((7, 3, 4), "float32")] for name in ("X", "Y")}
    made = trace(function, given)
    for slot, cut in (("Y", True), ("X", False)):
        assert (blocks_of(made, ("Out",), values_of(given), {"Out": slot}) is not None) is cut


def _run(function: Function) -> Any:
    op = register_op(
        "case",
        Inference(infer),
        Lowering(expression=ExpressionRule(lambda found, attrs: {"Out": function(found["X"][0], found["Y"][0])})),
        inputs=("X", "Y"),
        outputs=("Out",),
        attrs=[Attr("scale", "float", 1.0)],
    )
    try:
        with fluid.program_guard(fluid.Program(), fluid.Program()):
            block = fluid.default_main_program().global_block()
            given = {slot: block.create_var(slot.lower(), X.shape, "float32", is_data=True) for slot in ("X", "Y")}
            out = block.create_var("out")
            block.append_op("case", given, {"Out": out}, {})
            feed = {"x": X, "y": X[::-1].copy()}
            return fluid.Executor("cpu", mode="interpreted", codegen="numpy").run(
                fluid.default_main_program(), feed, [out]
            )[0]
    finally:
        ops.remove(op)


@pytest.mark.parametrize("most", [1, 12, 30, 40])
@pytest.mark.parametrize("name", [*CUT, *SUMMED, *DEPENDENT])
def test_blocks_give_what_the_whole_gives(name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of one row, of some, and with a rest; bit for bit, but for sums of sums."""
    function = SUMMED[name] if name in SUMMED else DEPENDENT[name] if name in DEPENDENT else CUT[name][1]
    whole = _run(function)
    monkeypatch.setattr(blocks, "MOST", most)
    monkeypatch.setattr(blocks, "NARROW", 1 << 20)
    np.testing.assert_allclose(_run(function), whole, rtol=2e-5 if name in SUMMED else 0, atol=1e-5 * (name in SUMMED))
