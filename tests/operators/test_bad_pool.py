"""What poolings and operators on images refuse: a clear error when the program is built, or else when it runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.errors import AttributeValueError, DtypeError, FluidError, OutOfRangeError, ShapeError

PLACES = [place for place in map(str, fluid.places()) if not place.startswith("fpga")]
IMAGE, VOLUME, LINE = (2, 4, 6, 5), (1, 2, 4, 4, 4), (2, 3, 8)
POOL = {"pooling_type": "max", "ksize": [2, 2]}
INDEX = {"ksize": [2, 2]}
BACK = {"ksize": [2, 2], "strides": [2, 2], "unpooling_type": "max"}
SIZE = {"out_h": 3, "out_w": 3}

BAD: list[tuple[str, str, dict[str, Any], dict[str, Any], type[FluidError], str]] = [
    ("rank", "pool2d", {"X": (4, 5)}, POOL, ShapeError, "X is .*expected .*channels"),
    ("rank of a volume", "pool3d", {"X": IMAGE}, {**POOL, "ksize": [2, 2, 2]}, ShapeError, "depth"),
    ("dtype", "pool2d", {"X": ("int64", *IMAGE)}, POOL, DtypeError, "X"),
    ("type", "pool2d", {"X": IMAGE}, {"pooling_type": "sum", "ksize": [2, 2]}, AttributeValueError, "'max', 'avg'"),
    ("no type", "pool2d", {"X": IMAGE}, {"ksize": [2, 2]}, AttributeValueError, "pooling_type"),
    ("no ksize", "pool2d", {"X": IMAGE}, {"pooling_type": "max"}, AttributeValueError, "ksize"),
    ("ksize of three", "pool2d", {"X": IMAGE}, {**POOL, "ksize": [2, 2, 2]}, AttributeValueError, "ksize.*2 numbers"),
    ("ksize of zero", "pool2d", {"X": IMAGE}, {**POOL, "ksize": [0, 2]}, AttributeValueError, "ksize"),
    ("strides of one", "pool2d", {"X": IMAGE}, {**POOL, "strides": [2]}, AttributeValueError, "strides"),
    ("stride of zero", "pool2d", {"X": IMAGE}, {**POOL, "strides": [0, 1]}, AttributeValueError, "strides"),
    ("negative stride", "pool2d", {"X": IMAGE}, {**POOL, "strides": [1, -1]}, AttributeValueError, "strides"),
    ("negative padding", "pool2d", {"X": IMAGE}, {**POOL, "paddings": [-1, 0]}, AttributeValueError, "paddings"),
    (
        "negative padding that VALID does not use", "pool2d", {"X": IMAGE},
        {**POOL, "paddings": [-1, 0], "padding_algorithm": "VALID"}, AttributeValueError, "paddings",
    ),
    (
        "three paddings that SAME does not use", "pool2d", {"X": IMAGE},
        {**POOL, "paddings": [1, 1, 1], "padding_algorithm": "SAME"}, AttributeValueError, "paddings",
    ),
    ("three paddings", "pool2d", {"X": IMAGE}, {**POOL, "paddings": [1, 1, 1]}, AttributeValueError, "paddings"),
    ("large windows", "pool2d", {"X": IMAGE}, {**POOL, "ksize": [7, 2]}, AttributeValueError, "ksize.*fit in X"),
    ("large windows of channels last", "pool2d", {"X": (2, 3, 6, 5)}, {**POOL, "ksize": [4, 2], "data_format": "NHWC"},
     AttributeValueError, "ksize.*fit in X"),
    ("layout", "pool2d", {"X": IMAGE}, {**POOL, "data_format": "HWCN"}, AttributeValueError, "data_format"),
    ("algorithm", "pool2d", {"X": IMAGE}, {**POOL, "padding_algorithm": "FULL"}, AttributeValueError, "SAME"),
    ("no rows", "pool2d", {"X": (2, 3, 0, 4)}, {**POOL, "global_pooling": True}, ShapeError, "spatial dims of 1"),
    ("adaptive to nothing", "pool2d", {"X": IMAGE}, {**POOL, "ksize": [0, 1], "adaptive": True}, AttributeValueError,
     "ksize"),
    ("attribute", "pool2d", {"X": IMAGE}, {**POOL, "kernel": [2, 2]}, AttributeValueError, "kernel"),
    ("large windows of a volume", "pool3d", {"X": VOLUME}, {**POOL, "ksize": [2, 5, 2]}, AttributeValueError, "ksize"),
    ("rank with places", "max_pool2d_with_index", {"X": VOLUME}, INDEX, ShapeError, "channels, height"),
    ("windows with places", "max_pool2d_with_index", {"X": IMAGE}, {"ksize": [9, 9]}, AttributeValueError, "ksize"),
    ("two sizes of a volume", "max_pool3d_with_index", {"X": VOLUME}, INDEX, AttributeValueError, "3 numbers"),
    ("rank to unpool", "unpool", {"X": (3, 4), "Indices": ("int32", 3, 4)}, BACK, ShapeError, "channels"),
    ("fewer indices", "unpool", {"X": (1, 1, 2, 2), "Indices": ("int32", 1, 1, 2, 1)}, BACK, ShapeError, "Indices"),
    ("floating indices", "unpool", {"X": (1, 1, 2, 2), "Indices": (1, 1, 2, 2)}, BACK, DtypeError, "Indices"),
    ("unpooled to nothing", "unpool", {"X": (1, 1, 1, 1), "Indices": ("int32", 1, 1, 1, 1)},
     {**BACK, "paddings": [1, 1]}, AttributeValueError, "paddings"),
    ("unpool means", "unpool", {"X": (1, 1, 2, 2), "Indices": ("int32", 1, 1, 2, 2)}, {**BACK, "unpooling_type": "avg"},
     AttributeValueError, "'max'"),
    ("rank of a pyramid", "spp", {"X": LINE}, {"pyramid_height": 2, "pooling_type": "max"}, ShapeError, "height"),
    ("no level", "spp", {"X": IMAGE}, {"pyramid_height": 0, "pooling_type": "max"}, AttributeValueError, "1 or more"),
    ("rank to resize", "bilinear_interp", {"X": (4, 5)}, SIZE, ShapeError, "rank 3"),
    ("method of another rank", "bilinear_interp", {"X": LINE}, SIZE, AttributeValueError, "linear for X of rank 3"),
    ("no size", "bilinear_interp", {"X": IMAGE}, {"out_h": 3}, AttributeValueError, "out_w.*1 or more"),
    ("negative size", "nearest_interp", {"X": IMAGE}, {"out_h": -3, "out_w": 1}, AttributeValueError, "out_h"),
    ("scaled to nothing", "nearest_interp", {"X": IMAGE}, {"scale": 0.1}, AttributeValueError, "out_h|out_w"),
    ("mode", "bilinear_interp", {"X": IMAGE}, {**SIZE, "align_mode": 2}, AttributeValueError, "align_mode"),
    ("method", "bilinear_interp", {"X": IMAGE}, {**SIZE, "interp_method": "area"}, AttributeValueError,
     "interp_method"),
    ("size of one number", "bilinear_interp", {"X": IMAGE, "OutSize": ("int32", 1)}, SIZE, ShapeError, "OutSize"),
    ("image without pixels", "bilinear_interp", {"X": (1, 2, 0, 3)}, SIZE, ShapeError, "spatial dims of 1"),
    ("rank as a sequence", "im2sequence", {"X": LINE}, {"kernels": [1, 1]}, ShapeError, "channels, height"),
    ("no windows", "im2sequence", {"X": IMAGE}, {}, AttributeValueError, "kernels"),
    ("large windows of a sequence", "im2sequence", {"X": IMAGE}, {"kernels": [7, 1]}, AttributeValueError, "fit"),
    ("two paddings of a sequence", "im2sequence", {"X": IMAGE}, {"kernels": [1, 1], "paddings": [1, 1]},
     AttributeValueError, "4 numbers"),
    ("sizes of fewer images", "im2sequence", {"X": IMAGE, "Y": (1, 2)}, {"kernels": [1, 1]}, ShapeError, "Y"),
    ("rows without sequences", "row_conv", {"X": (5, 3), "Filter": (2, 3)}, {}, ShapeError, "LoD"),
    ("width of the filter", "row_conv", {"X": LINE, "Filter": (2, 3)}, {}, ShapeError, "Filter"),
    ("rank of the filter", "row_conv", {"X": LINE, "Filter": (8,)}, {}, ShapeError, "Filter"),
    ("dtype of the filter", "row_conv", {"X": LINE, "Filter": ("float64", 2, 8)}, {}, DtypeError, "Filter"),
    ("channels of pixels", "pixel_shuffle", {"X": (1, 6, 2, 2)}, {"upscale_factor": 2}, AttributeValueError,
     "divides 6"),
    ("factor", "pixel_shuffle", {"X": IMAGE}, {"upscale_factor": 0}, AttributeValueError, "1 or more"),
    ("channels of blocks", "space_to_depth", {"X": (1, 6, 2, 2)}, {}, AttributeValueError, "divides 6"),
    ("height of blocks", "space_to_depth", {"X": (1, 4, 3, 2)}, {}, AttributeValueError, "height"),
    ("block", "space_to_depth", {"X": IMAGE}, {"blocksize": 1}, AttributeValueError, "2 or more"),
    ("groups", "shuffle_channel", {"X": IMAGE}, {"group": 3}, AttributeValueError, "divides 4"),
    ("images of a sequence", "temporal_shift", {"X": IMAGE}, {"seg_num": 3}, AttributeValueError, "seg_num"),
    ("part of the channels", "temporal_shift", {"X": IMAGE}, {"seg_num": 2, "shift_ratio": 0.5}, AttributeValueError,
     "between 0 and 0.5"),
    ("rank to shift", "temporal_shift", {"X": LINE}, {"seg_num": 2}, ShapeError, "channels"),
]  # fmt: skip


def outputs(type: str, block: Any) -> dict[str, Any]:
    return {slot.name: block.create_var(f"out_{slot.name}") for slot in fluid.op_proto(type).outputs}


@pytest.mark.parametrize(
    ("type", "inputs", "attrs", "error", "words"), [pytest.param(*row[1:], id=row[0]) for row in BAD]
)
def test_refused_when_built(type: str, inputs: Any, attrs: Any, error: Any, words: str) -> None:
    block = fluid.Program().global_block()
    given = {}
    for slot, dims in inputs.items():
        dtype, dims = (dims[0], dims[1:]) if isinstance(dims[0], str) else ("float32", dims)
        given[slot] = block.create_var(slot, dims, dtype, is_data=True)
    with pytest.raises(error, match=words):
        block.append_op(type=type, inputs=given, outputs=outputs(type, block), attrs=attrs)


LATE: list[tuple[str, str, dict[str, Any], dict[str, Any], type[FluidError], str]] = [
    ("large windows", "pool2d", {"X": (np.ones((1, 2, 3, 1), "float32"), (-1, 2, -1, -1))}, POOL, AttributeValueError,
     "fit in X"),
    ("channels", "pixel_shuffle", {"X": (np.ones((1, 3, 2, 2), "float32"), (-1, -1, 2, 2))}, {"upscale_factor": 2},
     AttributeValueError, "divides 3"),
    ("images of a sequence", "temporal_shift", {"X": (np.ones((3, 2, 1, 1), "float32"), (-1, 2, 1, 1))}, {"seg_num": 2},
     AttributeValueError, "divides 3|2 divides"),
    ("no size", "bilinear_interp", {"X": (np.ones((1, 1, 3, 3), "float32"), (-1, 1, 3, 3)),
     "OutSize": (np.array([0, 4], "int32"), (2,))}, {}, AttributeValueError, "out_h"),
    ("sizes too small", "im2sequence", {"X": (np.ones((2, 1, 3, 3), "float32"), (-1, 1, 3, 3)),
     "Y": (np.array([[3, 3], [1, 1]], "float32"), (-1, 2))}, {"kernels": [2, 2]}, AttributeValueError, "image 1"),
    ("width of the filter", "row_conv", {"X": (np.ones((1, 2, 4), "float32"), (-1, -1, -1)),
     "Filter": (np.ones((2, 3), "float32"), (2, 3))}, {}, ShapeError, "Filter"),
    ("index beyond the plane", "unpool", {"X": (np.ones((1, 1, 1, 2), "float32"), (-1, 1, 1, 2)),
     "Indices": (np.array([[[[0, 8]]]], "int32"), (-1, 1, 1, 2))}, BACK, OutOfRangeError, "index 8.*0 to 7"),
    ("negative index", "unpool", {"X": (np.ones((1, 1, 1, 2), "float32"), (-1, 1, 1, 2)),
     "Indices": (np.array([[[[-1, 0]]]], "int64"), (-1, 1, 1, 2))}, BACK, OutOfRangeError, "index -1.*0 to 7"),
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("type", "inputs", "attrs", "error", "words"), [pytest.param(*row[1:], id=row[0]) for row in LATE]
)
def test_refused_when_run(type: str, inputs: Any, attrs: Any, error: Any, words: str, place: str) -> None:
    program = fluid.Program()
    block = program.global_block()
    given = {
        slot: block.create_var(slot, dims, array.dtype.name, is_data=True) for slot, (array, dims) in inputs.items()
    }
    made = outputs(type, block)
    block.append_op(type=type, inputs=given, outputs=made, attrs=attrs)
    exe = fluid.Executor(place)
    feed = {slot: array for slot, (array, _) in inputs.items()}
    with pytest.raises(error, match=words):
        exe.run(program, feed=feed, fetch_list=list(made.values()), return_numpy=False)


@pytest.mark.parametrize("place", PLACES)
def test_the_greatest_of_nothing_is_the_lowest_number(place: str) -> None:
    """As in Fluid: a window that lies in the padding has no element; a mean of none is not a number."""
    x = np.float32([[[[3.0, 1.0]]]])
    found = {}
    for kind in ("max", "avg"):
        program = fluid.Program()
        block = program.global_block()
        given, out = block.create_var("x", x.shape, "float32", is_data=True), block.create_var("out")
        attrs = {"pooling_type": kind, "ksize": [1, 1], "strides": [1, 2], "ceil_mode": True, "paddings": [0, 0, 0, 1]}
        block.append_op(type="pool2d", inputs={"X": given}, outputs={"Out": out}, attrs=attrs)
        found[kind] = fluid.Executor(place).run(program, feed={"x": x}, fetch_list=[out])[0]
    np.testing.assert_array_equal(found["max"], np.float32([[[[3.0, np.finfo("float32").min]]]]))
    np.testing.assert_array_equal(found["avg"], np.float32([[[[3.0, np.nan]]]]))


@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_number_stays_where_it_is(place: str) -> None:
    """NaN and infinities reach only the windows and the neighbours that they lie in."""
    x = np.arange(2 * 70, dtype="float32").reshape(1, 1, 2, 70)
    x[0, 0, 0, 3], x[0, 0, 1, 40] = np.nan, np.inf
    for type, attrs in (
        ("pool2d", {"pooling_type": "max", "ksize": [1, 2], "strides": [1, 2]}),
        ("pool2d", {"pooling_type": "avg", "ksize": [1, 2], "strides": [1, 2]}),
        ("bilinear_interp", {"out_h": 2, "out_w": 35, "align_corners": False}),
        ("nearest_interp", {"out_h": 2, "out_w": 140, "align_corners": False, "interp_method": "nearest"}),
    ):
        program = fluid.Program()
        block = program.global_block()
        given, out = block.create_var("x", x.shape, "float32", is_data=True), block.create_var("out")
        block.append_op(type=type, inputs={"X": given}, outputs={"Out": out}, attrs=attrs)
        result = fluid.Executor(place).run(program, feed={"x": x}, fetch_list=[out])[0]
        assert (~np.isfinite(result)).sum() in (1, 2, 4), (type, attrs)
