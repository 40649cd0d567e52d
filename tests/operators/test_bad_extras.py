"""What optional inputs and the rarer operators refuse: where dims are known when the program is built, else later."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.errors import AttributeValueError, DtypeError, FluidError, ShapeError

Dims = tuple[int, ...]
_UNFOLD = {"kernel_sizes": [2, 2], "strides": [1, 1], "paddings": [0, 0, 0, 0], "dilations": [1, 1]}
_IMAGES = {"X": (2, 3, 4, 5)}

BAD: list[tuple[str, dict[str, Dims], dict[str, Any], type[FluidError], str]] = [
    ("clip", {"X": (2, 3), "Min": (2,)}, {"min": 0.0, "max": 1.0}, ShapeError, "Min"),
    ("clip", {"X": (2, 3), "Max": (1, 3)}, {"min": 0.0, "max": 1.0}, ShapeError, "Max"),
    ("clip", {"X": (2, 3), "Max": (1,)}, {"max": 1.0}, AttributeValueError, "min"),
    ("scale", {"X": (2, 3), "ScaleTensor": (3,)}, {}, ShapeError, "ScaleTensor"),
    ("unfold", {"X": (3, 4, 5)}, _UNFOLD, ShapeError, "images, channels"),
    ("unfold", _IMAGES, {**_UNFOLD, "kernel_sizes": [5, 2]}, AttributeValueError, "fits in X"),
    ("unfold", _IMAGES, {**_UNFOLD, "dilations": [1, 5]}, AttributeValueError, "fits in X"),
    ("unfold", _IMAGES, {**_UNFOLD, "kernel_sizes": [2]}, AttributeValueError, "2 numbers"),
    ("unfold", _IMAGES, {**_UNFOLD, "strides": [0, 1]}, AttributeValueError, "1 or more"),
    ("unfold", _IMAGES, {**_UNFOLD, "paddings": [1, 1]}, AttributeValueError, "4 numbers"),
    ("unfold", _IMAGES, {**_UNFOLD, "paddings": [1, 1, -1, 1]}, AttributeValueError, "4 numbers"),
    ("bmm", {"X": (2, 3), "Y": (3, 4)}, {}, ShapeError, "batch"),
    ("bmm", {"X": (2, 3, 4), "Y": (1, 4, 5)}, {}, ShapeError, "the batch and the width"),
    ("bmm", {"X": (2, 3, 4), "Y": (2, 3, 4)}, {}, ShapeError, "the batch and the width"),
    ("addmm", {"Input": (3,), "X": (2, 4), "Y": (4, 3)}, {}, ShapeError, "a matrix"),
    ("addmm", {"Input": (2, 3), "X": (2, 4), "Y": (3, 4)}, {}, ShapeError, "the width of X"),
    ("addmm", {"Input": (3, 2), "X": (2, 4), "Y": (4, 3)}, {}, ShapeError, "or 1 instead"),
    ("kron", {"X": (), "Y": (2,)}, {}, ShapeError, "rank 1"),
    ("fsp", {"X": (2, 3, 4, 5), "Y": (2, 3, 4, 4)}, {}, ShapeError, "images of X's size"),
    ("fsp", {"X": (2, 3, 4), "Y": (2, 3, 4)}, {}, ShapeError, "images, channels"),
    ("cross", {"X": (2, 4), "Y": (2, 4)}, {}, ShapeError, "size 3"),
    ("cross", {"X": (2, 3), "Y": (3, 3)}, {}, ShapeError, "the dims of X"),
    ("cross", {"X": (2, 3), "Y": (2, 3)}, {"dim": 0}, ShapeError, "3 elements along dim 0"),
    ("cross", {"X": (2, 3), "Y": (2, 3)}, {"dim": 2}, AttributeValueError, "an axis"),
    ("dist", {"X": (2, 3), "Y": (2,)}, {}, ShapeError, "broadcast"),
    ("dist", {"X": (), "Y": (2,)}, {}, ShapeError, "rank 1"),
    ("dist", {"X": (0, 3), "Y": (3,)}, {}, ShapeError, "1 element or more"),
    ("logsumexp", {"X": (2, 0)}, {"dim": [1]}, ShapeError, "1 element or more"),
    ("logsumexp", {"X": (2, 3)}, {"dim": [2]}, AttributeValueError, "dim"),
    ("add_position_encoding", {"X": (2, 3, 5)}, {}, ShapeError, "even width"),
    ("add_position_encoding", {"X": (3, 4)}, {}, ShapeError, "batch, steps, width"),
    ("add_position_encoding", {"X": (2, 3, 4)}, {"alpha": -1.0}, AttributeValueError, "alpha"),
    ("affine_grid", {"Theta": (2, 2, 3)}, {"output_shape": [2, 1, 4, 2**31 - 1]}, AttributeValueError, "1 to 65536"),
    ("affine_grid", {"Theta": (2, 3, 2)}, {"output_shape": [2, 1, 4, 4]}, ShapeError, "a map for each image"),
    ("affine_grid", {"Theta": (2, 2, 3)}, {"output_shape": [3, 1, 4, 4]}, ShapeError, "one for each image"),
    ("affine_grid", {"Theta": (2, 2, 3)}, {"output_shape": [2, 4, 4]}, AttributeValueError, "output_shape"),
    ("affine_grid", {"Theta": (2, 2, 3)}, {"output_shape": [2, 1, 0, 4]}, AttributeValueError, "1 to 65536"),
    ("affine_grid", {"Theta": (2, 2, 3)}, {}, AttributeValueError, "output_shape"),
    ("grid_sampler", {"X": (2, 3, 4), "Grid": (2, 4, 4, 2)}, {}, ShapeError, "images, channels"),
    ("grid_sampler", {"X": (2, 3, 4, 4), "Grid": (1, 4, 4, 2)}, {}, ShapeError, "2 images"),
    ("grid_sampler", {"X": (2, 3, 4, 4), "Grid": (2, 4, 4, 3)}, {}, ShapeError, "x and y of each place"),
    ("grid_sampler", {"X": (2, 3, 0, 4), "Grid": (2, 4, 4, 2)}, {}, ShapeError, "a pixel or more"),
    ("matmul", {"X": (2, 4), "Y": (4, 2)}, {"head_number": 2}, AttributeValueError, "head_number"),
    ("uniform_random", {}, {"shape": [2, 3], "diag_num": 3, "diag_step": 3}, AttributeValueError, "diag_num"),
    ("uniform_random", {}, {"shape": [2, 3], "diag_num": -1}, AttributeValueError, "diag_num"),
    ("assign_value", {}, {"shape": [1], "dtype": "int32", "int64_values": [1]}, AttributeValueError, "int64_values"),
    ("assign_value", {}, {"shape": [1], "dtype": "int64", "int64_values": [1], "int32_values": [1]},
     AttributeValueError, "int32_values"),
    ("assign_value", {}, {"shape": [2], "dtype": "bool", "bool_values": [True]}, AttributeValueError, "2 values"),
    ("assign_value", {}, {"shape": [1], "dtype": "bool", "bool_values": [2]}, AttributeValueError, "list of bool"),
    ("assign_value", {}, {"shape": [1], "bool_values": [True]}, AttributeValueError, "bool_values"),
]  # fmt: skip
LATE = [row for row in BAD if row[3] is ShapeError and row[1] and all(row[1].values()) and 0 not in row[1].get("X", ())]


def build(type: str, inputs: dict[str, Dims], attrs: dict[str, Any], known: bool) -> list[Any]:
    block = fluid.default_main_program().global_block()
    given = {
        slot: fluid.layers.data(slot.lower(), list(dims) if known else [-1] * len(dims), append_batch_size=False)
        for slot, dims in inputs.items()
    }
    outs = {
        slot.name: block.create_var(f"{slot.name}.made")
        for slot in fluid.op_proto(type).outputs
        if not slot.dispensable
    }
    block.append_op(type=type, inputs=given, outputs=outs, attrs=attrs)
    return list(outs.values())


@pytest.mark.parametrize(("type", "inputs", "attrs", "error", "word"), BAD)
def test_it_is_refused_when_the_program_is_built(type: str, inputs: Any, attrs: Any, error: Any, word: str) -> None:
    with fluid.program_guard(fluid.Program()), pytest.raises(error, match=word) as info:
        build(type, inputs, attrs, known=True)
    assert type in str(info.value) and "test_bad_extras.py" in str(info.value)


@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
@pytest.mark.parametrize(("type", "inputs", "attrs", "error", "word"), LATE)
def test_it_is_refused_before_it_runs(type: str, inputs: Any, attrs: Any, error: Any, word: str, place: str) -> None:
    program = fluid.Program()
    feed = {slot.lower(): np.ones(dims, "float32") for slot, dims in inputs.items()}
    with pytest.raises(error) as info, fluid.program_guard(program):
        outs = build(type, inputs, attrs, known=False)  # ranks are known even then
        fluid.Executor(place, fallback="allow").run(program, feed=feed, fetch_list=outs)
    assert type in str(info.value)


@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
def test_windows_that_do_not_fit_are_refused_before_they_run(place: str) -> None:
    program = fluid.Program()
    with fluid.program_guard(program), pytest.raises(AttributeValueError, match="fits in X"):
        outs = build("unfold", _IMAGES, {**_UNFOLD, "kernel_sizes": [5, 2]}, known=False)
        feed = {"x": np.ones(_IMAGES["X"], "float32")}
        fluid.Executor(place, fallback="allow").run(program, feed=feed, fetch_list=outs)


@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
def test_a_shape_without_pixels_is_refused_before_it_runs(place: str) -> None:
    program = fluid.Program()
    with fluid.program_guard(program):
        theta = fluid.layers.data("theta", [2, 3])
        shape = fluid.layers.data("shape", [4], dtype="int32", append_batch_size=False)
        grid = fluid.layers.affine_grid(theta, shape)
    feed = {"theta": np.ones((1, 2, 3), "float32"), "shape": np.array([1, 1, 0, 4], "int32")}
    with pytest.raises(ShapeError, match="OutputShape"):
        fluid.Executor(place, fallback="allow").run(program, feed=feed, fetch_list=[grid])


@pytest.mark.parametrize(
    ("type", "inputs", "attrs"),
    [
        ("clip", {"X": "float32", "Min": "float64"}, {"min": 0.0, "max": 1.0}),
        ("scale", {"X": "float32", "ScaleTensor": "int64"}, {}),
        ("dropout", {"X": "float32", "Seed": "float32"}, {}),
        ("elementwise_floordiv", {"X": "float32", "Y": "float32"}, {}),
        ("bmm", {"X": "float32", "Y": "float64"}, {}),
        ("kron", {"X": "bool", "Y": "bool"}, {}),
        ("dist", {"X": "int64", "Y": "int64"}, {}),
        ("cross", {"X": "float32", "Y": "int64"}, {}),
    ],
)
def test_dtypes_that_do_not_fit_are_refused(type: str, inputs: dict[str, str], attrs: dict[str, Any]) -> None:
    with fluid.program_guard(fluid.Program()), pytest.raises(DtypeError, match=type):
        block = fluid.default_main_program().global_block()
        rank = 3 if type == "bmm" else 1
        given = {
            slot: fluid.layers.data(slot, [1] * rank, dtype=dtype, append_batch_size=False)
            for slot, dtype in inputs.items()
        }
        outs = {slot.name: block.create_var(f"{slot.name}.made") for slot in fluid.op_proto(type).outputs}
        block.append_op(type=type, inputs=given, outputs=outs, attrs=attrs)
