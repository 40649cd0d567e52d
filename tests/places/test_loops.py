"""Expressions, and gradients that are some, by the nests of their loops, compiled for this processor.

Here are those that other kernels compute elsewhere; ``test_llvm.py`` has the others.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from loop_texts import OTHERWISE, record_texts
from operator_checks import CHECKS as ALL_CHECKS, by_operator, pairwise, run_checks
from unoptimised import most_unoptimised

import fluidlite as fluid
from fluidlite import expr as e, layers
from fluidlite.expr.declare import operator as declare
from fluidlite.platform.device_registry import devices
from fluidlite.plugin import Aliasing
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import OpDef
from fluidlite.program.registry import ops
from fluidlite.render.loops import kernels
from fluidlite.tensor.tensor_spec import Spec
from fluidlite.testing import Check

pytest.importorskip("llvmlite")
PLACE = fluid.Place("loops")
EXPRESSIONS = [each for each in ALL_CHECKS if each.operator in ops and ops.get(each.operator).expression is not None]
CHECKS = pairwise(check for check in EXPRESSIONS if not check.id.endswith((":float64]", ":bfloat16]")))
"""The text of these differs from that of float32 and float16 in the names of types and functions."""


@pytest.fixture(autouse=True)
def texts(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    return record_texts(monkeypatch)


@pytest.fixture(scope="module", autouse=True)
def loops(load_plugin: Callable[[str, str], None]) -> None:
    load_plugin("loops", "loop_kernels")


@pytest.mark.parametrize("group", by_operator(most_unoptimised(c for c in CHECKS if c.operator in OTHERWISE)))
def test_conforms(group: list[Check], no_fallback: None) -> None:
    assert run_checks(group, PLACE)


EACH_PRIMITIVE = (
    "arg_max", "bilinear_interp", "concat", "conv2d_transpose", "cross_entropy2", "cumsum", "gather", "layer_norm",
    "matmul", "max_pool2d_with_index", "pad2d", "pool2d", "range", "row_conv", "scatter", "softmax", "strided_slice",
)  # fmt: skip


@pytest.mark.opencl
@pytest.mark.parametrize("operator", EACH_PRIMITIVE)
def test_opencl_conforms(operator: str) -> None:
    mine = [check for check in CHECKS if check.operator == operator]
    values, *gradients = (
        next((check for check in mine if (".grad[" in check.id) is wanted), None) for wanted in (False, True)
    )
    assert values is not None
    for check in filter(None, (values, *gradients)):
        check("opencl")


def test_nests_are_what_runs() -> None:
    x = layers.data("x", [4, 6], append_batch_size=False)
    y = layers.layer_norm(layers.softmax(x))
    exe = fluid.Executor(PLACE, mode="interpreted")
    exe.run(fluid.default_startup_program())
    exe.run(feed={"x": np.ones((4, 6), "float32")}, fetch_list=[y])
    hows = {line.op.type: line.choice.how for line in exe.explain_last().plan.lines}
    assert hows["softmax"] == hows["layer_norm"] == "native", str(exe.explain_last())


def _random_dims(random: np.random.Generator, rank: int) -> list[int]:
    return [int(d) for d in random.choice([1, 2, 3, 4, 8, 15, 16, 17, 32, 48], rank)]


OF_ALL_SIZES: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "softmax": (2, layers.softmax),
    "softmax of channels": (3, lambda x: layers.softmax(x, axis=1)),
    "layer_norm": (3, layers.layer_norm),
    "batch_norm": (4, layers.batch_norm),
    "instance_norm": (4, layers.instance_norm),
    "reduce_sum": (3, lambda x: layers.reduce_sum(x, dim=[0, 2])),
    "reduce_max": (3, lambda x: layers.reduce_max(x, dim=1)),
    "argmax": (3, lambda x: layers.argmax(x, axis=1)),
    "cumsum": (2, lambda x: layers.cumsum(x, axis=0)),
    "transpose": (3, lambda x: layers.transpose(x, [2, 0, 1])),
    "concat": (3, lambda x: layers.concat([x, x, x], axis=1)),
    "pad": (3, lambda x: layers.pad(x, [1, 0, 0, 2, 1, 1])),
    "pool2d": (4, lambda x: layers.pool2d(x, pool_size=1, pool_stride=2)),
    "reshape and mean": (4, lambda x: layers.reduce_mean(layers.reshape(x, [0, -1]), dim=1)),
    "resize by a factor": (4, lambda x: layers.resize_nearest(x, scale=1.2, align_corners=False)),
    "expand": (3, lambda x: layers.expand(x, [2, 1, 3])),
}


@pytest.mark.parametrize("name", OF_ALL_SIZES)
def test_what_was_written_for_some_sizes_is_right_for_others(name: str) -> None:
    """Sizes note what was asked of them: text is used again only where all answers are the same."""
    rank, layer = OF_ALL_SIZES[name]
    random = np.random.default_rng(zlib.crc32(name.encode()))
    for _ in range(12):
        dims = _random_dims(random, rank)
        given = random.standard_normal(dims).astype("float32")
        found = []
        for place in (PLACE, fluid.CPUPlace()):
            main, startup = fluid.Program(), fluid.Program()
            with fluid.program_guard(main, startup), fluid.unique_name.guard():
                x = layers.data("x", dims, append_batch_size=False)
                x.stop_gradient = False
                y = layer(x)
                fluid.backward.append_backward(layers.reduce_sum(layers.cast(y, "float32") * 0.5))
                written = {name for op in main.global_block().ops for name in op.output_arg_names}
                fetch = [y, "x@GRAD"] if "x@GRAD" in written else [y]
                exe, scope = fluid.Executor(place, mode="interpreted"), fluid.Scope()
                exe.run(startup, scope=scope)
                found.append(exe.run(main, feed={"x": given}, fetch_list=fetch, scope=scope))
        for one, other in zip(*found, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-4, err_msg=f"{name} of {dims}")


def test_programs_of_any_batch_are_explained() -> None:
    """Which kernels will run is known before the batch is."""
    x = layers.data("x", [6])
    layers.softmax(layers.reduce_sum(x, dim=1, keep_dim=True) + x)
    for place in fluid.places():
        if devices.unit(place).language is not None:
            assert "fallback" not in str(fluid.explain(fluid.default_main_program(), place)), place


def _call(op: OpDef, **dtypes: str) -> Call:
    """A call of [4, 60] in each slot, and as many out."""
    ins = {slot.name: (Spec.of((4, 60), dtypes.get(slot.name, "float32")),) for slot in op.inputs}
    return Call(op, ins, {slot.name: (Spec.of((4, 60), "float32"),) for slot in op.outputs}, {}, None, False)


def test_all_is_read_before_outputs_write_over_it() -> None:
    """One output lies on X, which only another one reads."""

    @declare("handed_on", Aliasing(must={"XOut": "X", "YOut": "Y"}), inputs=("X", "Y", "Z"), outputs=("XOut", "YOut"))
    def handed_on(x: Any, y: Any, z: Any) -> Any:
        return z * 2 + e.reduce_sum(z, 1, keep=True) * 0, x + z

    try:
        assert kernels.refusal(_call(ops.get("handed_on"))) is None
        for place in (fluid.Place("loops"), fluid.CPUPlace()):
            main, startup = fluid.Program(), fluid.Program()
            with fluid.program_guard(main, startup), fluid.unique_name.guard():
                z = layers.data("z", [4, 60], append_batch_size=False)
                x, y = (layers.create_global_var([4, 60], v, "float32", persistable=True) for v in (3.0, 5.0))
                main.global_block().append_op("handed_on", {"X": x, "Y": y, "Z": z}, {"XOut": x, "YOut": y})
            exe, scope = fluid.Executor(place, mode="interpreted"), fluid.Scope()
            exe.run(startup, scope=scope)
            found = exe.run(main, feed={"z": np.ones((4, 60), "float32")}, fetch_list=[x, y], scope=scope)
            np.testing.assert_array_equal(found[0], np.full((4, 60), 2.0))
            np.testing.assert_array_equal(found[1], np.full((4, 60), 4.0))
    finally:
        ops.remove(ops.get("handed_on"))


def test_what_no_nest_computes_is_refused() -> None:
    @declare("turned", Aliasing(must={"Out": "X"}))
    def turned(x: Any) -> Any:
        return e.flip(x, 0)

    @declare("normal", Aliasing(must={"Out": "X"}))
    def normal(x: Any) -> Any:
        return x / e.reduce_sum(x, 1, keep=True)

    @declare("looked_up", Aliasing(must={"Out": "X"}), inputs=("X", "Ids"))
    def looked_up(x: Any, ids: Any) -> Any:
        return x + e.pick(x, ids, 1)

    try:
        assert kernels.refusal(_call(ops.get("normal"))) is None
        assert "writes over an operand" in str(kernels.refusal(_call(ops.get("turned"))))
        assert "checks indices" in str(kernels.refusal(_call(ops.get("looked_up"), Ids="int64")))
    finally:
        for name in ("turned", "normal", "looked_up"):
            ops.remove(ops.get(name))
