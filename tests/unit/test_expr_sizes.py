"""Sizes in tensor expressions: what is known, assumed, required and refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from expr_harness import NAMESPACES, Function, X, llvm, run, traced  # noqa: F401

import fluidlite as fluid
from fluidlite import expr as e
from fluidlite.base.errors import AttributeValueError, ProgramError
from fluidlite.expr.calls import infer
from fluidlite.expr.traced import trace, values_of
from fluidlite.platform.context_pool import get_context
from fluidlite.plugin import Inference, Lowering
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr
from fluidlite.program.registry import ops, register_op
from fluidlite.program.rules import ExpressionRule
from fluidlite.tensor.tensor_spec import Spec


def sizes() -> Iterator[Any]:
    yield (-1, 5), (-1, 5), (-1, 5)
    yield (-1, 1), (-1, 4), (-1, 4)
    yield (4, -1), (4, 7), (4, 7)
    yield (2, 3), (3,), (2, 3)
    yield (), (3,), (3,)


@pytest.mark.parametrize(("x", "y", "out"), list(sizes()))
def test_dims_that_are_not_known(x: Any, y: Any, out: Any) -> None:
    given = {"X": [(x, "float32")], "Y": [(y, "float32")]}
    made = trace(lambda g, n: {"Out": g["X"][0] + g["Y"][0]}, given)
    found = made.dims("Out", values_of(given))
    assert len(found) == len(out)
    assert all(a in (-1, b) for a, b in zip(found, out, strict=True))


def test_a_trace_serves_calls_that_answer_alike() -> None:
    def function(given: Any, numbers: Any) -> dict[str, Any]:
        return {"Out": given["X"][0] * given["Y"][0]}

    def call(x: tuple[int, ...], y: tuple[int, ...]) -> dict[str, Any]:
        return {"X": [(x, "float32")], "Y": [(y, "float32")]}

    made = trace(function, call((4, 3), (4, 3)))
    assert made.serves(values_of(call((7, 9), (7, 9))))
    assert not made.serves(values_of(call((7, 9), (7, 1))))
    assert not made.serves(values_of(call((7, 9), (8, 9))))
    with pytest.raises(ProgramError, match=r"dims .* do not broadcast"):
        trace(function, call((7, 9), (8, 9)))


def test_requirements_are_looked_at_once_sizes_are_known() -> None:
    def function(given: Any, numbers: Any) -> dict[str, Any]:
        x = given["X"][0]
        e.need(x.dims[1] % 2 == 0, "X", "an even number of columns")
        return {"Out": e.reshape(x, (x.dims[0], 2, -1))}

    def call(columns: int) -> dict[str, Any]:
        return {"X": [((3, columns), "float32")]}

    made = trace(function, call(-1))
    assert made.failed_requirement(values_of(call(-1))) is None
    assert made.failed_requirement(values_of(call(8))) is None
    failed = made.failed_requirement(values_of(call(5)))
    assert failed is not None
    assert failed.expected == "an even number of columns"
    assert made.dims("Out", values_of(call(8))) == (3, 2, 4)


def test_an_attribute_that_does_not_suit_is_named_with_the_sizes_at_hand() -> None:
    """Also where what follows from it cannot be traced, and where the trace was made for other sizes."""

    def function(given: Any, attrs: Any) -> dict[str, Any]:
        (x,) = given["X"]
        e.need_attr(x.dims[1] % attrs["groups"] == 0, "groups", "a divisor of {0}, as X is {X}", x.dims[1])
        return {"Out": e.reshape(x, (x.dims[0], attrs["groups"], x.dims[1] // attrs["groups"]))}

    op = register_op(
        "case",
        Inference(infer),
        Lowering(expression=ExpressionRule(function)),
        inputs=("X",),
        outputs=("Out",),
        attrs=[Attr("groups", "int")],
    )
    try:
        for dims in ((3, 5), (3, -1), (3, 7)):
            call = Call(op, {"X": [Spec.of(dims, "float32")]}, {}, {"groups": 2})
            if dims[1] < 0:
                assert infer(call)["Out"] == Spec.of((3, 2, -1), "float32")
                continue
            with pytest.raises(AttributeValueError) as raised:
                infer(call)
            said = f"attribute 'groups' is 2; expected a divisor of {dims[1]}, as X is float32[3, {dims[1]}]."
            assert str(raised.value) == said
    finally:
        ops.remove(op)


def test_sizes_that_are_not_known_are_those_that_they_must_equal() -> None:
    """A concatenation knows of each dim what one of its parts says."""
    given = {"X": [((-1, 2, -1), "float32"), ((3, 4, -1), "float32"), ((-1, 1, 5), "float32")]}
    made = trace(lambda g, n: {"Out": e.concat(g["X"], 1)}, given)
    assert made.dims("Out", values_of(given)) == (-1, 7, -1)
    assert made.dims("Out", made.completed_values(values_of(given))) == (3, 7, 5)


def test_sizes_that_were_found_equal_are_not_taken_for_a_broadcast_1() -> None:
    given = {"X": [((-1, 4), "float32"), ((3, 4), "float32")]}

    def added(g: Any, n: Any) -> Any:
        a, b = g["X"]
        assert e.all_agree(a.dims, b.dims)
        return {"Out": a + b}

    made = trace(added, given)
    assert made.dims("Out", made.completed_values(values_of(given))) == (3, 4)


@pytest.mark.parametrize("namespace", NAMESPACES)
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_the_index_of_the_first_maximum_along_each_axis(dtype: str, namespace: str) -> None:
    """Along a strided axis, along the last one, and with NaN in some lines."""
    x = np.random.default_rng(3).integers(0, 9, (40, 30, 20)).astype(dtype)
    if dtype == "float32":
        x[7, :, 3], x[20, 5, :] = np.nan, np.nan
    for axis in range(3):
        found = run(lambda x, axis=axis: e.argmax(x, axis), {"X": x}, namespace)
        np.testing.assert_array_equal(found, np.argmax(x, axis))


def test_what_was_taken_away_and_put_back_is_the_same_size() -> None:
    """Rows that changed places are as many, under the same name: so they share the sequences of X."""
    made = trace(lambda g, n: {"Out": e.concat([e.slice_axis(g["X"][0], 0, 2, g["X"][0].dims[0] - 2),
                                                e.slice_axis(g["X"][0], 0, 0, 2)], 0)},
                 {"X": [((-1, 3), "float32")]})  # fmt: skip
    assert made.outputs["Out"][0].dims[0].key == made.inputs["X"][0].dims[0].key


def test_an_exact_number_serves_calls_of_that_number() -> None:
    def function(given: Any, numbers: Any) -> dict[str, Any]:
        x = given["X"][0]
        return {"Out": e.concat([x] * e.exactly(x.dims[0]), 0)}

    def call(rows: int) -> dict[str, Any]:
        return {"X": [((rows,), "float32")]}

    made = trace(function, call(3))
    assert made.dims("Out", values_of(call(3))) == (9,)
    assert made.serves(values_of(call(3)))
    assert not made.serves(values_of(call(4)))
    with pytest.raises(ProgramError, match="not known"):
        trace(function, call(-1))


def test_an_open_dim_must_come_out_whole() -> None:
    """6 elements are no rows of 4; a compiled reshape would refuse, or read beyond them."""
    made = trace(lambda given, numbers: {"Out": e.reshape(given["X"][0], (-1, 4))}, {"X": [((-1,), "float32")]})
    assert made.failed_requirement(values_of({"X": [((8,), "float32")]})) is None
    failed = made.failed_requirement(values_of({"X": [((6,), "float32")]}))
    assert failed is not None
    assert "multiple of 4" in failed.expected


def test_a_condition_decided_and_assumed_has_two_answers() -> None:
    """Dims that are not known differ when they are decided, and are equal when that is assumed."""

    def function(given: Any, numbers: Any) -> dict[str, Any]:
        x, y = given["X"][0], given["Y"][0]
        branch = x if bool(x.dims[0] == y.dims[0]) else x * 2
        return {"Out": e.concat([branch, y], 1)}

    made = trace(function, {"X": [((-1, 3), "float32")], "Y": [((-1, 2), "float32")]})
    assert made.dims("Out", values_of({"X": [((4, 3), "float32")], "Y": [((4, 2), "float32")]})) == (4, 5)


@pytest.mark.parametrize(
    "function", [e.reduce_max, e.reduce_min, lambda x, axes: e.argmax(x, axes[0]), lambda x, axes: e.argmin(x, axes[0])]
)
def test_nothing_has_no_maximum(function: Function) -> None:
    def call(*dims: int) -> dict[str, Any]:
        return {"X": [(dims, "float32")]}

    made = trace(lambda given, numbers: {"Out": function(given["X"][0], (1,))}, call(-1, -1))
    assert made.failed_requirement(values_of(call(3, 0))) is not None
    assert made.failed_requirement(values_of(call(3, 1))) is None
    assert made.failed_requirement(values_of(call(0, 0))) is None  # there are no results either
    assert made.failed_requirement(values_of(call(0, 3))) is None
    assert run(lambda x: function(x, (1,)), {"X": np.zeros((0, 3))}).shape == (0,)
    assert run(lambda x: function(x, (1,)), {"X": np.zeros((0, 0))}).shape == (0,)


@pytest.mark.parametrize("divide", [lambda a, b: a // b, lambda a, b: a % b, lambda a, b: a / b])
def test_attributes_that_are_zero_divide_as_floats_do(divide: Function) -> None:
    for value in (3.0, -3.0, 0.0):
        found = run(lambda x, zero, a: x * 0 + divide(a, zero), {"X": X}, zero=0.0, a=value)
        with np.errstate(all="ignore"):
            wanted = divide(np.float64(value), np.float64(0.0))
        np.testing.assert_array_equal(found, np.full_like(X, wanted))


def test_whole_numbers_stand_beside_integers() -> None:
    x = np.arange(4)
    assert run(lambda x: x + 0.0, {"X": x}).dtype == x.dtype
    assert list(run(lambda x: x * 2.0, {"X": x})) == [0, 2, 4, 6]
    with pytest.raises(ProgramError, match="fraction beside int64"):
        run(lambda x, scale: x * scale, {"X": x}, scale=2.0)


@pytest.mark.parametrize("place", fluid.places(), ids=str)
def test_decomposed_operators_compile_nothing_for_another_size(place: fluid.Place) -> None:
    context = get_context(place)
    if context.language is None:
        pytest.skip(f"{place} compiles no kernels")
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard(), fluid.scope_guard(fluid.Scope()):
        out = fluid.layers.sequence_conv(fluid.layers.data("x", [3], lod_level=1), 2, 3, bias_attr=False)
        exe, compiled = fluid.Executor(place), []
        exe.run(startup)
        for rows in (500, 600, 700):
            x = fluid.create_lod_tensor(np.ones((rows, 3), "float32"), [[rows - 100, 100]], place)
            (found,) = exe.run(main, feed={"x": x}, fetch_list=[out], return_numpy=False)
            assert np.array(found).shape == (rows, 2)
            compiled.append(context.cache_info()["compiled kernels"].misses)
    assert compiled[0] == compiled[1] == compiled[2]
