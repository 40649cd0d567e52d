"""What random programs found, as small as can be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.testing.fuzz.blocks import append_all
from fluidlite.testing.fuzz.recipe import OperatorStep


@pytest.mark.parametrize("epilogue", [False, True])
def test_products_of_unknown_dims_are_no_sizes(epilogue: bool) -> None:
    """Passes infer with made-up numbers for unknown dims: [batch, batch] of them is more than any memory."""
    x = layers.data("x", [3])
    out: Any = layers.matmul(x, x, transpose_y=True)
    if epilogue:
        out = layers.relu(out + out)
    other = layers.exp(layers.reduce_sum(out, 1)) + 1.0
    fed = np.full((2, 3), 0.5, "float32")
    for mode in ("interpreted", "compiled"):
        got = fluid.Executor("cpu", mode=mode).run(feed={"x": fed}, fetch_list=[out, other])
        expected = np.full((2, 2), 1.5 if epilogue else 0.75)
        np.testing.assert_allclose(got[0], expected, rtol=1e-6)
        np.testing.assert_allclose(got[1], np.exp(expected.sum(1)) + 1, rtol=1e-6)


@pytest.mark.parametrize("type", ["squeeze", "squeeze2"])
def test_a_batch_of_1_is_squeezed_in_both_modes(type: str) -> None:
    """Without axes every dim of 1 goes, and of a batch nobody knows before the run whether it is one."""
    block = fluid.default_main_program().global_block()
    x = layers.data("x", [2])
    names = {"Out": ["out"], **({"XShape": ["xshape"]} if type == "squeeze2" else {})}
    for (name,) in names.values():
        block.create_var(name)
    block.append_op(type, {"X": x}, names, {})
    for batch, dims in ((1, (2,)), (3, (3, 2)), (1, (2,))):
        for mode in ("interpreted", "compiled"):
            (got,) = fluid.Executor("cpu", mode=mode).run(
                feed={"x": np.ones((batch, 2), "float32")}, fetch_list=["out"]
            )
            assert got.shape == dims


def test_what_has_no_elements_is_fetched_behind_a_stage_that_is_interpreted() -> None:
    """The second run binds the second stage, and the interpreter runs the third, which gives XShape no memory."""
    block = fluid.default_main_program().global_block()
    feed: dict[str, Any] = {
        "Start": np.zeros(1, "float32"), "Stop": np.full(1, 10, "float32"), "Num": np.full(1, 5, "int32"),
        "X": np.full((1, 1, 1), 0.25, "float32"), "OutSize": np.full(1, 4, "int32"),
        "P": np.full((1, 2), 0.75, "float32"), "Label": np.ones((1, 1), "int64"),
    }  # fmt: skip
    for name, value in feed.items():
        block.create_var(name, value.shape, str(value.dtype), is_data=True)
    for name in ("line", "resized", "loss", "shape", "match"):
        block.create_var(name)
    block.append_op("linspace", {name: [name] for name in ("Start", "Stop", "Num")}, {"Out": ["line"]}, {})
    block.append_op(
        "linear_interp", {"X": ["X"], "OutSize": ["OutSize"]}, {"Out": ["resized"]}, {"interp_method": "linear"}
    )
    outputs = {"Y": ["loss"], "XShape": ["shape"], "MatchX": ["match"]}
    block.append_op("cross_entropy2", {"X": ["P"], "Label": ["Label"]}, outputs, {})
    exe = fluid.Executor("cpu")
    for _ in range(4):
        found = exe.run(feed=feed, fetch_list=["line", "resized", "shape", "loss"])
        assert [value.shape for value in found] == [(5,), (1, 1, 4), (1, 2, 0), (1, 1)]
        np.testing.assert_allclose(found[0], np.linspace(0, 10, 5))


def test_data_norm_of_no_channels_is_refused_where_it_is_appended() -> None:
    block = fluid.default_main_program().global_block()
    for name, dims in (("X", [1, 0]), ("Means", [0]), ("Scales", [0]), ("Y@GRAD", [1, 0])):
        block.create_var(name, dims, "float32", is_data=True)
    block.create_var("out")
    inputs = {name: [name] for name in ("X", "Means", "Scales", "Y@GRAD")}
    with pytest.raises(fluid.errors.ShapeError, match=r"X is .*expected one channel or more"):
        block.append_op("data_norm_grad", inputs, {"X@GRAD": ["out"]}, {})


@pytest.mark.parametrize("mode", ["interpreted", "compiled"])
@pytest.mark.parametrize("more", [2, 3, 5])
def test_sections_that_leave_less_than_nothing_are_refused(mode: str, more: int) -> None:
    """What remains was -1 then, which also means that it is not known."""
    x = layers.data("x", [1, 2], append_batch_size=False)
    block = fluid.default_main_program().global_block()
    sizes = [block.create_var(name, [1], "int32", is_data=True) for name in ("one", "rest", "more")]
    parts = [block.create_var(f"part{k}") for k in range(3)]
    block.append_op("split", {"X": x, "SectionsTensorList": sizes}, {"Out": parts}, {"axis": 1, "sections": [-1, 3, 2]})
    feed = {"x": np.ones((1, 2), "float32")}
    feed |= {name: np.full(1, n, "int32") for name, n in (("one", 1), ("rest", -1), ("more", more))}
    with pytest.raises(fluid.errors.ShapeError, match="sizes that sum to 2"):
        fluid.Executor("cpu", mode=mode).run(feed=feed, fetch_list=[parts[2]])
    with pytest.raises(fluid.FluidError, match="sizes that sum to 2"):
        layers.split(x, [1, -1, more], dim=1)


def test_what_sections_say_of_tensors_counts_if_it_can_be() -> None:
    """A gradient has the dims of what was split, whatever the attribute says of sizes that tensors hold."""
    x = layers.data("x", [1, 6], append_batch_size=False)
    x.stop_gradient = False
    block = fluid.default_main_program().global_block()
    sizes = [block.create_var(name, [1], "int32", is_data=True) for name in ("a", "b", "c")]

    def split(*stated: int) -> list[Any]:
        parts = [block.create_var(fluid.unique_name.generate("part")) for _ in sizes]
        inputs = {"X": x * 2.0, "SectionsTensorList": sizes}
        block.append_op("split", inputs, {"Out": parts}, {"axis": 1, "sections": list(stated)})
        return parts

    assert [part.shape[1] for part in split(1, 2, 3)] == [1, 2, 3]
    assert [part.shape[1] for part in split(1, -1, 3)] == [1, -1, 3]
    parts = split(0, 3, 2)
    assert [part.shape[1] for part in parts] == [-1, -1, -1]
    (gradient,) = fluid.gradients([layers.reduce_sum(parts[1] * parts[1])], [x])
    feed = {"x": np.arange(6, dtype="float32").reshape(1, 6)}
    feed |= {name: np.full(1, n, "int32") for name, n in (("a", 1), ("b", -1), ("c", 2))}
    for mode in ("interpreted", "compiled"):
        (found,) = fluid.Executor("cpu", mode=mode).run(feed=feed, fetch_list=[gradient])
        np.testing.assert_array_equal(found, [[0, 8, 16, 24, 0, 0]])


PLACES = ["cpu", pytest.param("opencl:0", marks=pytest.mark.opencl)]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("spread", [False, True])
def test_sums_along_few_rows(place: str, rows: int, spread: bool, exclusive: bool, reverse: bool) -> None:
    """Along one row, and along rows that are all the same element: what is added up there needs no index of the row."""
    values = np.random.default_rng(rows).random((1 if spread else rows, 3000)).astype("float32")
    x = layers.data("x", list(values.shape), append_batch_size=False)
    along = layers.expand(x, [rows, 1]) if spread else x
    y = layers.cumsum(along, axis=-2, exclusive=exclusive, reverse=reverse)
    full = np.broadcast_to(values, (rows, 3000)).astype("float64")
    turned = full[::-1] if reverse else full
    sums = np.cumsum(turned, 0) - (turned if exclusive else 0)
    for mode in ("interpreted", "compiled"):
        (found,) = fluid.Executor(place, mode=mode).run(feed={"x": values}, fetch_list=[y])
        np.testing.assert_allclose(found, sums[::-1] if reverse else sums, rtol=1e-6)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_costly_values_wait_in_one_of_several_parts(place: str, count: int, dtype: str) -> None:
    """A long row whose exponentials are stored several times in one output: each part is a store of its own."""
    values = np.random.default_rng(0).random((1, 8192)).astype(dtype)
    x = layers.data("x", [1, 8192], dtype=dtype, append_batch_size=False)
    y = layers.softmax(x)
    joined = layers.concat([y] * count, axis=1)
    expected = np.exp(values - values.max()) / np.exp(values - values.max()).sum()
    for mode in ("interpreted", "compiled"):
        (found,) = fluid.Executor(place, mode=mode).run(feed={"x": values}, fetch_list=[joined])
        np.testing.assert_allclose(found, np.concatenate([expected] * count, 1), rtol=1e-5)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dims", [(5, 7), (5, 40)])
def test_state_that_is_read_and_written_anew_beside_a_sum_is_read_first(place: str, dims: tuple[int, ...]) -> None:
    """A kernel that goes over its elements twice may not write over an operand, and is not given its memory."""
    block = fluid.default_main_program().global_block()
    block.create_var("state", dims, "float64", persistable=True)
    for name in ("x", "y"):
        block.create_var(name, dims, "float64", is_data=True)
    for name in ("scaled", "loss", "sum", "total"):
        block.create_var(name)
    block.append_op("scale", {"X": ["x"]}, {"Out": ["scaled"]}, {"scale": 0.5, "bias": 0.25})
    attrs = {"ignore_index": -1, "normalize": True}
    block.append_op("sigmoid_cross_entropy_with_logits", {"X": ["y"], "Label": ["scaled"]}, {"Out": ["loss"]}, attrs)
    block.append_op("elementwise_add", {"X": ["scaled"], "Y": ["state"]}, {"Out": ["sum"]}, {})
    block.append_op("assign", {"X": ["scaled"]}, {"Out": ["state"]}, {})
    block.append_op("cast", {"X": ["sum"]}, {"Out": ["total"]}, {"in_dtype": "float64", "out_dtype": "float32"})
    values = np.random.default_rng(0).random(dims)
    for mode in ("interpreted", "compiled"):
        exe, scope, before = fluid.Executor(place, mode=mode), fluid.Scope(), np.ones(dims)
        scope.var("state").get_tensor().set(before)
        for factor in (1, 2, 3, 4):
            feed = {"x": factor * values, "y": values}
            (found,) = exe.run(feed=feed, fetch_list=["loss", "total"], scope=scope)[1:]
            after = 0.5 * factor * values + 0.25
            np.testing.assert_allclose(found, after + before, rtol=1e-5)
            np.testing.assert_allclose(np.asarray(scope.find_var("state").get_tensor().numpy()), after, rtol=1e-5)
            before = after


COLUMNS_THAT_ROWS_ARE_NOT = [
    OperatorStep(
        "strided_slice",
        {"Input": ("x4",), "StartsTensorList": ("x5",), "StridesTensorList": ("x6",)},
        {"Out": ("v7",)},
        {"axes": [1], "ends": [5], "infer_flags": [-1]},
        "",
    ),
    OperatorStep("cast", {"X": ("v7",)}, {"Out": ("v8",)}, {"in_dtype": "float32", "out_dtype": "float64"}, ""),
    OperatorStep("expand", {"X": ("v8",)}, {"Out": ("v9",)}, {"expand_times": [1, 102]}, "array 3 #0"),
    OperatorStep("reshape", {"X": ("v9",)}, {"Out": ("v10",)}, {"shape": [-1, 3, 4, 17]}, "array 3 #0"),
    OperatorStep("reshape", {"X": ("v13",)}, {"Out": ("v14",)}, {"shape": [1, 5]}, "array 3 #0"),
    OperatorStep("cast", {"X": ("v10",)}, {"Out": ("v19",)}, {"in_dtype": "float64", "out_dtype": "float32"}, ""),
    OperatorStep("reshape", {"X": ("v19",)}, {"Out": ("v20",)}, {"shape": [-1, 204]}, ""),
    OperatorStep("slice", {"Input": ("v20",)}, {"Out": ("v21",)}, {"axes": [1], "starts": [0], "ends": [3]}, ""),
    OperatorStep("expand", {"X": ("v14",)}, {"Out": ("v31",)}, {"expand_times": [1, 5]}, ""),
    OperatorStep("reshape", {"X": ("v31",)}, {"Out": ("v32",)}, {"shape": [1, 5, 1, 5]}, ""),
    OperatorStep("sigmoid", {"X": ("v32",)}, {"Out": ("v33",)}, {}, ""),
    OperatorStep("cast", {"X": ("v21",)}, {"Out": ("v36",)}, {"in_dtype": "float32", "out_dtype": "float64"}, ""),
    OperatorStep("slice", {"Input": ("v36",)}, {"Out": ("v37",)}, {"axes": [1], "starts": [0], "ends": [1]}, ""),
    OperatorStep("reshape", {"X": ("v37",)}, {"Out": ("v38",)}, {"shape": [-1]}, ""),
    OperatorStep(
        "clip", {"X": ("v38",)}, {"Out": ("v39",)}, {"min": 0.2739233672618866, "max": 0.2739233672618866}, ""
    ),
    OperatorStep("reshape", {"X": ("v33",)}, {"Out": ("v41",)}, {"shape": [1, 25]}, ""),
    OperatorStep(
        "slice", {"Input": ("v41",)}, {"Out": ("v42",)}, {"axes": [1], "starts": [0], "ends": [7]}, "array 1 #2"
    ),
    OperatorStep("sin", {"X": ("v42",)}, {"Out": ("v43",)}, {}, "array 1 #2"),
    OperatorStep(
        "scale",
        {"X": ("v43",)},
        {"Out": ("v44",)},
        {"scale": 0.8693411171436309, "bias": -0.07071679830551147},
        "array 1 #2",
    ),
    OperatorStep(
        "squared_l2_distance",
        {"X": ("v44",), "Y": ("x45",)},
        {"sub_result": ("v46",), "Out": ("v47",)},
        {},
        "while 3 #1",
    ),
]


@pytest.mark.parametrize("place", PLACES)
def test_columns_are_no_rows_because_an_operator_takes_both(place: str) -> None:
    """Sums in loops take dims that nobody knows: those at one place are equal, and not all of them."""
    program = fluid.Program()
    block = program.global_block()
    block.create_var("x4", [-1, 7], "float32", is_data=True, stop_gradient=False)
    for name, dims, dtype in (("x5", [1], "int32"), ("x6", [1], "int32"), ("x45", [1, 7], "float32")):
        block.create_var(name, dims, dtype, is_data=True)
    block.create_var("v13", [5], "float32", is_data=True)
    append_all(program, COLUMNS_THAT_ROWS_ARE_NOT)
    (gradient,) = fluid.backward.gradients([block.var(name) for name in ("v46", "v47")], [block.var("x4")])
    feed = {name: np.ones((1, 7), "float32") for name in ("x4", "x45")}
    feed |= {"x5": np.array([1], "int32"), "x6": np.array([2], "int32"), "v13": np.ones(5, "float32")}
    for mode in ("interpreted", "compiled"):
        found = fluid.Executor(place, mode=mode).run(program, feed, ["v39", gradient.name], scope=fluid.Scope())
        np.testing.assert_array_equal(found[1], np.zeros((1, 7)))
