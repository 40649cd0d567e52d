"""Calls of tensor expressions: attributes, dtypes, indices, errors, and what is updated in place."""

from __future__ import annotations

import operator
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expr_harness import DTYPES, NAMESPACES, Function, X, llvm, operands, run, traced  # noqa: F401

import fluidlite as fluid
from fluidlite import expr as e
from fluidlite.base.dtypes import ALL_FLOATS, NUMPY
from fluidlite.base.errors import OutOfRangeError, ProgramError
from fluidlite.codegen import functions
from fluidlite.codegen.primitives import PRIMITIVES
from fluidlite.compiler.policy import Policy
from fluidlite.compiler.selection.kernel_selection import select_kernel
from fluidlite.expr.declare import operator as declare
from fluidlite.expr.derivative_rules import RULES
from fluidlite.expr.primitives import TENSOR_PRIMITIVES
from fluidlite.expr.tensor import tensor, topological_order
from fluidlite.expr.traced import trace, values_of
from fluidlite.platform.device_registry import devices
from fluidlite.plugin import Aliasing
from fluidlite.program.decompose import decompose as parts_of
from fluidlite.program.op_call import Call
from fluidlite.program.registry import ops
from fluidlite.render import array_functions
from fluidlite.render.arrays import array_code
from fluidlite.tensor.tensor_spec import Spec


def test_float_attributes_are_arguments() -> None:
    for scale in (2.0, 3.5):
        found = run(lambda x, scale: e.exp(x * scale) / (scale + 1), {"X": X}, scale=scale)
        np.testing.assert_allclose(found, np.exp(X * scale) / (scale + 1))


def test_all_that_a_namespace_is_asked_for_is_listed() -> None:
    """Beside what NumPy alone is asked for, and names of other versions."""
    rendered = Path(str(array_functions.__file__)).parent.glob("*.py")
    said = {name for path in (functions.__file__, *rendered)
            for name in re.findall(r"\bxp\.([a-z_]\w*)", Path(str(path)).read_text())}  # fmt: skip
    called = {name for each in PRIMITIVES.values() for name in (each.xp, each.xp_int) if name and name[0] != "@"}
    optional = {name.split(".")[0] for name in array_functions.OPTIONAL}
    host = {"clip", "concatenate", "empty", "empty_like", "errstate", "nonzero", "transpose"}
    assert said | called <= {*array_functions.REQUIRED, *optional, *host, *DTYPES}


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_sizes_may_be_computed_of_attributes(namespace: str) -> None:
    def repeated(x: Any, scale: float) -> Any:
        count = e.whole(e.single(e.single(x.dims[0]) * e.single(scale)))
        return e.take(x, e.clamped(e.iota((count,), 0) // 2, x.dims[0]), 0, "clamp")

    for scale in (2.0, 2.4):
        found = run(repeated, {"X": X}, namespace, scale=scale)
        np.testing.assert_array_equal(found, X[np.minimum(np.arange(int(3 * scale)) // 2, 2)])


def test_indices_that_were_clamped_are_not_looked_at_again() -> None:
    def read(x: Any, index: Any) -> Any:
        return e.take(x, e.clamped(index, x.dims[0]), 0, "clamp")

    made = traced(read, {"X": X, "Index": np.array([-7, 1, 9])})
    assert "checked" not in array_code(made).source
    assert "checked" in array_code(traced(e.take, {"X": X, "Index": np.array([1])})).source


BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "lt", "le", "gt", "ge", "eq", "ne")


@pytest.mark.parametrize("name", BINARY)
def test_numbers_stand_on_either_side_of_a_tensor(name: str) -> None:
    """Of Python's, attributes and sizes alike."""
    operate = getattr(operator, name)
    for function in (lambda x, a: operate(a, x), lambda x, a: operate(x, a)):
        for value, found in (
            (0.25, run(function, {"X": X}, a=0.25)),
            (0.25, run(lambda x, f=function: f(x, 0.25), {"X": X})),
            (5, run(lambda x, f=function: f(x, x.dims[1]), {"X": X})),
        ):
            np.testing.assert_allclose(found, function(X, value))


def test_an_error_shows_the_sizes_of_its_own_call() -> None:
    """A trace serves many calls: what it expects is said with the numbers of each."""

    def function(given: Any, numbers: Any) -> dict[str, Any]:
        x, y = given["X"][0], given["Y"][0]
        e.vector(y, x.dims[1], "as X has columns")
        return {"Out": x + e.reshape(y, (1, x.dims[1]))}

    def call(columns: int, length: int) -> Any:
        return {"X": [((2, columns), "float32")], "Y": [((length,), "float32")]}

    made = trace(function, call(-1, -1))
    assert made.failed_requirement(values_of(call(3, 3))) is None
    for columns, length in ((3, 4), (7, 1)):
        values = values_of(call(columns, length))
        failed = made.failed_requirement(values)
        assert failed is not None
        assert failed.expected.format(*(n.evaluate(values) for n in failed.numbers)) == f"[{columns}], as X has columns"


def test_half_types_widen_where_they_compute_and_stay_where_they_move() -> None:
    given = {"X": [((3, 4), "bfloat16")]}
    made = trace(lambda g, n: {"Out": e.transpose(g["X"][0]), "Sum": e.reduce_sum(g["X"][0], 0)}, given)
    assert made.outputs["Out"][0].dtype == "bfloat16"
    assert made.outputs["Sum"][0].dtype == "float32"
    back = trace(lambda g, n: {"Out": e.cast(e.transpose(g["X"][0] * 1), "bfloat16")}, given)
    assert back.outputs["Out"][0].dtype == "bfloat16"


@pytest.mark.parametrize("op", sorted(op for op in RULES if not TENSOR_PRIMITIVES[op].moves))
def test_what_computes_has_no_half_types_as_operands(op: str) -> None:
    with pytest.raises(ProgramError, match=f"{op} of half types"):
        trace(lambda g, n: {"Out": tensor(op, g["X"], (), (3, 4), "float32")}, {"X": [((3, 4), "bfloat16")]})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["argmax", "argmin"])
def test_the_index_of_a_maximum_is_found_in_float32(kind: str, dtype: str) -> None:
    made = trace(lambda g, n: {"Out": getattr(e, kind)(g["X"][0], 1)}, {"X": [((3, 4), dtype)]})
    (arg,) = (x for x in topological_order(made.outputs["Out"]) if x.op == "arg")
    assert arg.args[0].dtype == "float32"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: 1 if x > 0 else 2, "no truth value"),
        (lambda x: e.reshape(x, (4, 4)), "changes the number of elements"),
        (lambda x: e.transpose(x, (0, 0)), "by (0, 0)"),
        (lambda x: e.take(x, x, 0), "indices are float64"),
        (lambda x: e.reduce_sum(x, 2), "axis 2 is none of 2 dims"),
        (lambda x: e.cast(x, "int32") + 0.5, "is a fraction beside int32"),
        (lambda x: e.contract(x, x, "ij,jk->ik"), "j is"),
        (lambda x: x.nothing, "AttributeError"),
        (lambda x: range(x.dims[0]), "is not known while an operator is traced"),
        (lambda x: 3, "no tensor"),
    ],
)
def test_errors_name_the_line(function: Function, said: str) -> None:
    with pytest.raises(ProgramError) as caught:
        traced(function, {"X": X})
    assert said in str(caught.value)
    assert "test_expr_calls.py:" in str(caught.value) or said == "no tensor"


def _affine(rows: int, place: fluid.Place) -> Call:
    """A call of an operator that no kernel computes whole."""
    line = (Spec.of((64,), "float32"),)
    ins = {"X": (Spec.of((rows, 64), "float32"),), "Scale": line, "Bias": line}
    return Call(ops.get("affine_channel"), ins, {"Out": (ins["X"][0],)}, {"data_layout": "NHWC"}, place, False)


def test_a_kernel_language_comes_before_array_calls() -> None:
    """Loops compute an expression without a kernel, unless the user asks for arrays."""
    for place in fluid.places():
        unit, call = devices.unit(place), _affine(4096, place)
        found = select_kernel(call, place, Policy())
        if unit.language is not None:
            assert (found.how, found.capability) == ("generated", "language")
        if unit.array is not None:
            policy = Policy(codegen=((place.kind, "array"),))
            arrays = select_kernel(_affine(8, place), place, policy)
            assert (arrays.how, arrays.capability) == ("generated", "array")
            large = select_kernel(call, place, policy)
            if unit.array.out and unit.array.eager:
                assert (large.how, large.capability) == ("generated", "array"), "it is computed in blocks"
            else:
                assert large.how == "decomposed", "its elementwise part is computed in blocks"
                assert all(part.capability in ("array", "memory") for part in large.part_choices)
        if unit.array is not None and getattr(unit.language, "least", 0):
            assert select_kernel(_affine(1, place), place, Policy()).capability == "array", "it starts sooner"
            assert select_kernel(_affine(1, place), place, Policy(repeated=True)).capability == "language"


def test_a_sum_of_an_elementwise_part_is_one_operator() -> None:
    """Nothing as large as its operands is stored on the way to scale_w@GRAD."""
    x, line = Spec.of((8, 64), "float32"), Spec.of((64,), "float32")
    ins = {"X": (x,), "scale_w": (line,), "bias": (line,), "Means": (line,), "Scales": (line,), "Y@GRAD": (x,)}
    op = ops.get("data_norm_grad")
    attrs = {a.name: a.default for a in op.attrs} | {"enable_scale_and_shift": True}
    parts = parts_of(Call(op, ins, {"scale_w@GRAD": (line,)}, attrs, None, False))
    assert [part.call.op.type for part in parts] == ["elementwise_part", "reshape"]
    assert parts[0].outs[0].dims == (1, 64)
    assert [value.dims for value in parts[0].ins].count((64,)) == 2, "a line of X is read as it lies"


def test_what_an_expression_updates_is_written_in_place_by_parts_that_others_follow() -> None:
    """Moments are made of the old ones by one operator, and all else of the new ones, which no part stores again."""
    large, one = Spec.of((8, 64), "float32"), Spec.of((1,), "float32")
    ins = {slot: (large,) for slot in ("Param", "Grad", "Moment1", "Moment2")}
    ins |= {slot: (one,) for slot in ("LearningRate", "Beta1Pow", "Beta2Pow")}
    outs = {slot: (large,) for slot in ("ParamOut", "Moment1Out", "Moment2Out")}
    attrs = {"weight_decay": 0.1, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-6}
    parts = parts_of(Call(ops.get("lamb"), ins, outs, attrs, None, False))
    assert [[value.slot for value in part.outs if value.role == "out"] for part in parts] == [
        ["Moment1Out", "Moment2Out"], [], [], ["ParamOut"],
    ]  # fmt: skip
    assert all(part.outs[0].dims == (1, 1) for part in parts[1:3])
    for i, part in enumerate(parts):
        position = {slot: k for k, slot in enumerate(part.call.ins)}
        for slot, given in part.call.op.must_alias.items():
            old, new = part.ins[position[given]], part.outs[list(part.call.outs).index(slot)]
            assert ops.get("lamb").must_alias[new.slot] == old.slot
            assert not any((v.role, v.slot) == ("in", old.slot) for later in parts[i + 1 :] for v in later.ins)
    assert [len(part.call.op.must_alias) for part in parts] == [2, 0, 0, 1]


@pytest.mark.parametrize("mode", ["interpreted", "compiled"])
@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
def test_an_expression_that_finds_a_wrong_index_updates_nothing(place: str, mode: str) -> None:
    """Though what it updates comes first among its outputs, and large enough to be computed in parts."""

    @declare("taken", Aliasing(must={"TotalOut": "Total"}), inputs=("X", "Total", "Ids"), outputs=("TotalOut", "Out"))
    def taken(x: Any, total: Any, ids: Any) -> Any:
        return total + 1, e.take(x, ids, 0) * 2

    try:
        fluid.set_fallback("allow")
        x = fluid.layers.data("x", [8], append_batch_size=False)
        ids = fluid.layers.data("ids", [4], dtype="int64", append_batch_size=False)
        total = fluid.layers.create_global_var([1 << 16], 0.0, "float32", persistable=True)
        block = fluid.default_main_program().global_block()
        out = block.create_var("out")
        block.append_op("taken", {"X": x, "Total": total, "Ids": ids}, {"TotalOut": total, "Out": out})
        exe = fluid.Executor(place, mode=mode)
        exe.run(fluid.default_startup_program())

        def run(*ids: int) -> Any:
            feed = {"x": np.arange(8, dtype="float32"), "ids": np.array(ids)}
            return exe.run(feed=feed, fetch_list=[out, total])

        for _ in range(4):
            last = run(1, 2, 3, 7)[1]
        with pytest.raises(OutOfRangeError):
            run(1, 2, 3, 8)
        found, after = run(1, 2, 3, 0)
        np.testing.assert_array_equal(found, [2, 4, 6, 0])
        np.testing.assert_array_equal(after, last + 1)
    finally:
        ops.remove(ops.get("taken"))


@pytest.mark.parametrize("mode", ["interpreted", "compiled"])
def test_an_expression_does_not_write_over_what_it_still_reads(mode: str) -> None:
    """Its definition allows Out the memory of X; array calls write the parts of a concatenation one by one."""

    @declare("turned", Aliasing(may={"Out": "X"}))
    def turned(x: Any) -> Any:
        half = x.dims[0] // 2
        return e.concat([e.slice_axis(x, 0, half, x.dims[0] - half), e.slice_axis(x, 0, 0, half)], 0)

    try:
        x = fluid.layers.data("x", [4096], append_batch_size=False)
        block, given = fluid.default_main_program().global_block(), fluid.layers.scale(x, 2.0)
        out = block.create_var("out")
        block.append_op("turned", {"X": given}, {"Out": out})
        numbers = np.arange(4096, dtype="float32")
        (found,) = fluid.Executor("cpu", mode=mode, codegen="numpy").run(feed={"x": numbers}, fetch_list=[out])
        np.testing.assert_array_equal(found, 2 * np.roll(numbers, 2048))
    finally:
        ops.remove(ops.get("turned"))


@pytest.mark.parametrize("dtype", ALL_FLOATS)
def test_operators_make_numbers_alone_in_every_dtype(dtype: str) -> None:
    """A fraction stays one where no operand takes part."""
    x = np.zeros((2, 3), "float32")
    found = run(lambda x: e.cast(e.full(x.dims, 0.5, "float32"), dtype), {"X": x}, "operators")
    assert found.dtype == NUMPY[dtype]
    np.testing.assert_array_equal(found.astype("float64"), np.full((2, 3), 0.5))


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_no_derivative_flows_through_a_number(namespace: str) -> None:
    """It stays the number that it is."""
    x = np.arange(4.0)
    for function, expected in (
        (lambda x: e.where(x > 1, x, e.stop_gradient(e.full((), 2.0, "float64"))), [2, 2, 2, 3]),
        (lambda x: x * e.stop_gradient(e.full((), 2.0, "float64")), [0, 2, 4, 6]),
    ):
        np.testing.assert_array_equal(run(function, {"X": x}, namespace), expected)
