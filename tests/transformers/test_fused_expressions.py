"""Fusion of expressions: which operators become one kernel, that it computes what they do, and what errors say.

Each program is run compiled and interpreted, operator by operator: what sums nothing, and sums of rows, are equal bit
for bit; sums of columns may be taken in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.base.dtypes import NUMPY
from fluidlite.base.opt_level import VARIABLE
from fluidlite.compiler.passes import fuse_expressions
from fluidlite.devices.cpu.language import LLVMLanguage
from fluidlite.platform.place import Place
from fluidlite.testing.fuzz.campaign import describe, fuzz

PLACES = ("cpu", pytest.param("opencl", marks=pytest.mark.opencl))
WIDTH = 96


class Case(NamedTuple):
    """A program: its result, and how many kernels its forward and its gradient are."""

    build: Callable[..., Any]
    inputs: dict[str, tuple[tuple[int, ...], str]]
    forward: int
    backward: int


def _residual(x: Any, h: Any) -> Any:
    dropped = layers.dropout(h, 0.25, dropout_implementation="upscale_in_train")
    return layers.layer_norm(layers.elementwise_add(x, dropped), begin_norm_axis=2)


def _attention(x: Any, mask: Any) -> Any:
    seen = layers.softmax(layers.elementwise_add(layers.scale(x, 0.125), mask))
    return layers.dropout(seen, 0.25, dropout_implementation="upscale_in_train")


def _statistics(x: Any) -> Any:
    return layers.batch_norm(x, act="relu")


def _bias(x: Any) -> Any:
    return layers.gelu(layers.elementwise_add(x, layers.create_parameter([WIDTH], "float32", name="bias")))


def _lookup(ids: Any, x: Any) -> Any:
    return layers.elementwise_add(layers.embedding(ids, size=[50, WIDTH]), x)


def _classes(x: Any, label: Any) -> Any:
    return layers.cross_entropy(layers.softmax(x), label)


FLOAT = "float32"
CASES = {
    "residual + dropout + layer_norm": Case(_residual, {"x": ((24, WIDTH), FLOAT), "h": ((24, WIDTH), FLOAT)}, 1, 2),
    "scale + mask + softmax + dropout": Case(
        _attention, {"x": ((4, 24, 32), FLOAT), "mask": ((1, 24, 32), FLOAT)}, 1, 0
    ),
    "batch statistics + normalisation + relu": Case(_statistics, {"x": ((WIDTH, 6, 6), FLOAT)}, 1, 0),
    "bias + gelu": Case(_bias, {"x": ((WIDTH,), FLOAT)}, 1, 0),
    "embedding + sum": Case(_lookup, {"ids": ((24, 1), "int64"), "x": ((24, WIDTH), FLOAT)}, 1, 1),
    "softmax + cross entropy": Case(_classes, {"x": ((200,), FLOAT), "label": ((1,), "int64")}, 1, 1),
}
BATCHES = (96, 131)
"""Rows: the programs are built for any number of them."""


def _program(case: Case, training: bool) -> tuple[fluid.Program, fluid.Program, list[Any]]:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 11
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        given = [layers.data(name, list(dims), dtype=dtype) for name, (dims, dtype) in case.inputs.items()]
        for each in given:
            each.stop_gradient = each.dtype != FLOAT or each.name == "mask"
        out = case.build(*given)
        fetched = [out]
        if training:
            target = layers.data("target", list(out.shape[1:]))
            sources = [v for v in main.list_vars() if not v.stop_gradient and (v.name in case.inputs or v.persistable)]
            fetched += [g for g in fluid.gradients([out], sources, target_gradients=[target]) if g is not None]
    return main, startup, fetched


def _feed(case: Case, rows: int, out: Any, training: bool) -> dict[str, Any]:
    rng = np.random.default_rng(rows)
    feed = {
        name: rng.integers(0, 50, (rows, *dims)) if dtype == "int64" else rng.standard_normal((rows, *dims), np.float32)
        for name, (dims, dtype) in case.inputs.items()
    }
    if training:
        feed["target"] = rng.standard_normal((rows, *out.shape[1:]), np.float32)
    return feed


def _kernels(executor: fluid.Executor) -> list[str]:
    """The operators that launch a kernel, but for what only hands the wanted gradient on."""
    lines = executor.explain_last().data()
    return [line["op"] for line in lines if line["op"] not in ("assign_like", "reshape", "reshape2", "fill_constant")]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("training", [False, True], ids=["forward", "training"])
@pytest.mark.parametrize("name", CASES)
def test_what_is_one_kernel(name: str, training: bool, place: str, require: Callable[..., None]) -> None:
    require(place)
    case = CASES[name]
    main, startup, fetched = _program(case, training)
    found: dict[str, list[list[np.ndarray[Any, Any]]]] = {}
    for mode in ("interpreted", "compiled"):
        with fluid.scope_guard(fluid.Scope()):
            executor = fluid.Executor(place, mode=mode)
            executor.run(startup)
            found[mode] = [
                [np.asarray(x) for x in executor.run(main, _feed(case, rows, fetched[0], training), fetched)]
                for rows in BATCHES
            ]
    kernels = _kernels(executor)
    assert len(kernels) == case.forward + (case.backward if training else 0), kernels
    for wanted, got in zip(found["interpreted"], found["compiled"], strict=True):
        assert np.array_equal(wanted[0], got[0])  # drawn numbers, sums of rows, and state of the run before
        for a, b in zip(wanted[1:], got[1:], strict=True):
            assert np.abs(a - b).max() <= 4e-6 * np.abs(a).max() * (1 + a.ndim)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_are_rounded_between_operators(dtype: str) -> None:
    x = layers.data("x", [40, 128], dtype=dtype)
    y = layers.scale(layers.softmax(layers.elementwise_add(x, layers.scale(x, 0.3))), 1.7)
    values = np.random.default_rng(1).standard_normal((8, 40, 128)).astype(NUMPY[dtype])
    found = [
        fluid.Executor("cpu", mode=mode).run(feed={"x": values}, fetch_list=[y])[0]
        for mode in ("interpreted", "compiled")
    ]
    assert found[0].dtype == values.dtype and np.array_equal(found[0].view(np.uint16), found[1].view(np.uint16))


def test_an_error_names_the_operator_that_checks_the_index() -> None:
    ids, x = layers.data("ids", [64, 1], dtype="int64"), layers.data("x", [64, 128])
    out = layers.layer_norm(layers.elementwise_add(layers.embedding(ids, size=[9, 128]), x), begin_norm_axis=2)
    executor = fluid.Executor("cpu")
    executor.run(fluid.default_startup_program())
    good = {"ids": np.zeros((4, 64, 1), np.int64), "x": np.zeros((4, 64, 128), np.float32)}
    before = executor.run(feed=good, fetch_list=[out])[0]
    assert any("lookup_table" in name and "fused" in name for name in _kernels(executor))
    with pytest.raises(
        fluid.errors.OutOfRangeError, match=r"operator lookup_table \(.*: index 9 is out of range; .*0 to 8"
    ):
        executor.run(feed={**good, "ids": np.full((4, 64, 1), 9)}, fetch_list=[out])
    assert np.array_equal(executor.run(feed=good, fetch_list=[out])[0], before)


def test_explain_says_why_a_neighbour_is_not_fused() -> None:
    x = layers.data("x", [64, 128])
    out = layers.softmax(layers.transpose(layers.softmax(x), [0, 2, 1]))
    executor = fluid.Executor("cpu")
    executor.run(feed={"x": np.zeros((64, 64, 128), np.float32)}, fetch_list=[out])
    text = executor.explain_last().text(refused=True)
    assert "not fused with operator transpose2 (" in text and "one kernel is estimated at" in text, text


def test_random_numbers_are_those_of_the_operator_in_any_loop(everything_is_fused: dict[str, int]) -> None:
    """A tile of the kernel begins before the first number that it draws, and ends behind the last."""
    x = layers.data("x", [17, 17])
    helper = fluid.layer_helper.LayerHelper("dropout")
    out, mask = (helper.create_variable_for_type_inference(dtype) for dtype in ("float32", "uint8"))
    helper.append_op(
        "dropout", {"X": x}, {"Out": out, "Mask": mask}, {"dropout_prob": 0.3, "fix_seed": True, "seed": 5}
    )
    both = layers.concat([mask, mask], axis=2)
    feed = {"x": np.ones((64, 17, 17), np.float32)}
    found = [fluid.Executor("cpu", mode=m).run(feed=feed, fetch_list=[both])[0] for m in ("interpreted", "compiled")]
    assert everything_is_fused["groups"] == 1
    assert np.array_equal(*found) and 0 < found[0].mean() < 1


@pytest.mark.parametrize("place", ["cpu", "opencl:0"])
@pytest.mark.parametrize("order", [1, -1])
def test_what_waits_in_an_output_is_read_before_that_is_written(
    place: str, order: int, require: Callable[..., None], everything_is_fused: dict[str, int]
) -> None:
    """A costly value waits in the output of a row; two results of the last pass are computed of it."""
    require(place.partition(":")[0], "to run the kernel")
    x, y = layers.data("x", [1000]), layers.data("y", [1000])
    costly = layers.sin(x)
    weights = layers.softmax(layers.abs(costly))
    results = [layers.relu(layers.mish(layers.abs(costly))), weights, layers.elementwise_add(weights, y)][::order]
    rng = np.random.default_rng(2)
    feed = {name: rng.standard_normal((40, 1000)).astype("float32") for name in "xy"}
    found = [
        fluid.Executor(place, mode=mode).run(feed=feed, fetch_list=results) for mode in ("interpreted", "compiled")
    ]
    assert everything_is_fused["groups"] == 1
    for wanted, got in zip(*found, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-7)


def test_small_calls_are_computed_by_the_operators_themselves() -> None:
    x, h = layers.data("x", [128]), layers.data("h", [128])
    out = layers.layer_norm(layers.elementwise_add(x, h))
    executor = fluid.Executor("cpu")
    executor.run(fluid.default_startup_program())
    for rows, how in ((256, "generated"), (2, "decomposed")):
        feed = {name: np.random.default_rng(rows).standard_normal((rows, 128), np.float32) for name in "xh"}
        (found,) = executor.run(feed=feed, fetch_list=[out])
        total = np.float64(feed["x"]) + feed["h"]
        centred = total - total.mean(1, keepdims=True)
        assert np.allclose(found, centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5), atol=1e-5)
        assert [line["how"] for line in executor.explain_last().data()] == [how]


@pytest.fixture
def everything_is_fused() -> Iterator[dict[str, int]]:
    """Whatever could be one kernel is, whether it gains or not; how many operators were fused."""
    counts = {"groups": 0}
    operator = fuse_expressions.ExpressionFusion.operator

    def counted(self: Any, group: frozenset[int]) -> Any:
        counts["groups"] += 1
        return operator(self, group)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fuse_expressions, "MAX_TIME_RATIO", 1e9)
        patch.setattr(fuse_expressions, "MIN_SHARED_ELEMENTS", 0)
        patch.setattr(LLVMLanguage, "least", 0)
        patch.setattr(fuse_expressions.ExpressionFusion, "operator", counted)
        patch.delenv(VARIABLE, raising=False)  # what the optimiser takes for granted of fused loops holds
        yield counts


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("place", "count"), [("cpu", 12), pytest.param("opencl", 4, marks=pytest.mark.opencl)])
def test_random_programs_fused_as_far_as_can_be(
    place: str, count: int, everything_is_fused: dict[str, int], require: Callable[..., None]
) -> None:
    require(place)
    summary = fuzz(place, 41001, 0, count, shrinking=5)
    assert not summary.findings, "\n".join(describe(*found, Place.parse(place)) for found in summary.findings)
    assert everything_is_fused["groups"] > count


@pytest.mark.parametrize("count", [3, 12])
def test_large_parts_are_copied_one_by_one(count: int) -> None:
    """Of a concatenation along neighbours: its kernel chooses no element, and no reader of it does."""
    from fluidlite.program.op_call import Call
    from fluidlite.program.registry import ops
    from fluidlite.render.loops.kernels import tiled_nests
    from fluidlite.render.loops.merging import elements_of
    from fluidlite.tensor.tensor_spec import Spec

    lengths = [20_000 + k for k in range(count)]
    total = sum(lengths)
    xs = tuple(Spec.of((n,), "float32") for n in lengths)
    op = ops.get("concat")
    call = Call(op, {"X": xs}, {"Out": (Spec.of((total,), "float32"),)}, {a.name: a.default for a in op.attrs})
    read = [sum(x.op == "load" for x in elements_of(nest)) for nest in tiled_nests(call.at(Place.parse("cpu")))]
    assert read == [1] * count

    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.scope_guard(fluid.Scope()):
        parts = [layers.data(f"x{k}", [n], append_batch_size=False) for k, n in enumerate(lengths)]
        weight = layers.create_parameter([total], "float32", default_initializer=fluid.initializer.Constant(1.0))
        rate = layers.fill_constant([1], "float32", 0.5)
        inputs = {"Param": weight, "Grad": layers.concat(parts, 0), "LearningRate": rate}
        main.global_block().append_op("sgd", inputs, {"ParamOut": weight})
        executor = fluid.Executor("cpu")
        executor.run(startup)
        feed = {f"x{k}": np.arange(n, dtype="float32") for k, n in enumerate(lengths)}
        (found,) = executor.run(main, feed=feed, fetch_list=[weight])
        assert "concat_sgd" not in str(executor.explain_last())
    np.testing.assert_array_equal(found, 1 - 0.5 * np.concatenate([*feed.values()]))
