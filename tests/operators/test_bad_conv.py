"""What convolutions refuse: at build time where dims are known, else before the kernel runs, on every place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.errors import AttributeValueError, DtypeError, GradientError, ShapeError

Dims = tuple[int, ...]

BAD = [
    ("conv2d", (2, 3, 5), (4, 3, 3, 3), {}, ShapeError, "rank 4"),
    ("conv2d", (2, 3, 5, 5), (4, 3, 3), {}, ShapeError, "Filter"),
    ("conv2d", (2, 3, 5, 5), (4, 2, 3, 3), {}, ShapeError, "channels of Input, 3"),
    ("conv2d", (2, 5, 5, 3), (4, 5, 3, 3), {"data_format": "NHWC"}, ShapeError, "channels of Input, 3"),
    ("conv2d", (2, 3, 5, 5), (4, 3, 6, 3), {}, ShapeError, "spatial dim 0"),
    ("conv2d", (2, 3, 5, 5), (4, 3, 3, 3), {"dilations": [1, 3]}, ShapeError, "spatial dim 1"),
    ("conv2d", (2, 3, 0, 5), (4, 3, 3, 3), {"paddings": [2, 2]}, ShapeError, "1 or more"),
    ("conv2d", (2, 3, 5, 5), (4, 3, 0, 3), {}, ShapeError, "1 or more"),
    ("conv2d", (2, 4, 5, 5), (4, 1, 3, 3), {"groups": 3}, AttributeValueError, "divisor of the channels of Input"),
    ("conv2d", (2, 4, 5, 5), (3, 2, 3, 3), {"groups": 2}, AttributeValueError, "divisor of the channels of Output"),
    ("conv2d", (2, 3, 5, 5), (4, 3, 3, 3), {"groups": 0}, AttributeValueError, "groups"),
    ("conv2d", (2, 3, 5, 5), (4, 3, 3, 3), {"strides": [0, 1]}, AttributeValueError, "strides"),
    ("conv2d", (2, 3, 5, 5), (4, 3, 3, 3), {"strides": [-1, 1]}, AttributeValueError, "strides"),
    ("conv2d", (2, 3, 5, 5), (4, 3, 3, 3), {"strides": [1]}, AttributeValueError, "2 numbers"),
    ("conv2d", (2, 3, 5, 5), (4, 3, 3, 3), {"dilations": [0, 1]}, AttributeValueError, "dilations"),
    ("conv2d", (2, 3, 5, 5), (4, 3, 3, 3), {"paddings": [-1, 0]}, AttributeValueError, "paddings"),
    ("conv2d", (2, 3, 5, 5), (4, 3, 3, 3), {"paddings": [1, 1, 1]}, AttributeValueError, "2 numbers, or 4"),
    ("conv2d", (2, 3, 5, 5), (4, 3, 3, 3), {"padding_algorithm": "FULL"}, AttributeValueError, "SAME"),
    ("conv2d", (2, 3, 5, 5), (4, 3, 3, 3), {"data_format": "CHWN"}, AttributeValueError, "data_format"),
    ("conv3d", (2, 3, 5, 5), (4, 3, 3, 3), {}, ShapeError, "rank 5"),
    ("conv3d", (2, 3, 2, 5, 5), (4, 3, 3, 3, 3), {}, ShapeError, "spatial dim 0"),
    ("conv3d", (2, 3, 5, 5, 5), (4, 3, 3, 3, 3), {"strides": [1, 1]}, AttributeValueError, "3 numbers"),
    ("depthwise_conv2d", (2, 4, 5, 5), (4, 2, 3, 3), {"groups": 2}, AttributeValueError, "use conv2d"),
    ("conv2d_transpose", (2, 3, 5), (3, 4, 3, 3), {}, ShapeError, "rank 4"),
    ("conv2d_transpose", (2, 3, 5, 5), (4, 3, 3, 3), {}, ShapeError, "dim 0"),
    ("conv2d_transpose", (2, 3, 5, 5), (3, 4, 3, 3), {"groups": 2}, AttributeValueError, "divisor"),
    ("conv2d_transpose", (2, 3, 5, 5), (3, 4, 3, 3), {"output_size": [8, 7]}, AttributeValueError, "output_size"),
    ("conv2d_transpose", (2, 3, 5, 5), (3, 4, 3, 3), {"output_size": [6, 7]}, AttributeValueError, "output_size"),
    ("conv2d_transpose", (2, 3, 5, 5), (3, 4, 3, 3), {"output_size": [7]}, AttributeValueError, "2 numbers"),
    ("conv2d_transpose", (2, 3, 5, 5), (3, 4, 3, 3), {"output_padding": [1, 0]}, AttributeValueError, "output_padding"),
    ("conv2d_transpose", (2, 3, 5, 5), (3, 4, 3, 3), {"output_padding": [0]}, AttributeValueError, "2 numbers"),
    ("conv2d_transpose", (2, 3, 2, 5), (3, 4, 1, 3), {"paddings": [1, 0]}, ShapeError, "pad less"),
    ("conv2d_transpose", (2, 3, 2, 5), (3, 4, 1, 3), {"paddings": [3, 0]}, ShapeError, "pad less"),
    ("conv3d_transpose", (2, 3, 5, 5), (3, 4, 3, 3), {}, ShapeError, "rank 5"),
    ("depthwise_conv2d_transpose", (2, 4, 5, 5), (4, 1, 3, 3), {"groups": 2}, AttributeValueError, "groups"),
]


def build(type: str, x: Dims, w: Dims, attrs: dict[str, Any], dtypes: tuple[str, str] = ("float32",) * 2,
          **more: Dims) -> Any:  # fmt: skip
    """Append the operator to the default program; return its output."""
    block = fluid.default_main_program().global_block()
    inputs = {
        "Input": fluid.layers.data("x", list(x), dtype=dtypes[0], append_batch_size=False),
        "Filter": fluid.layers.data("w", list(w), dtype=dtypes[1], append_batch_size=False),
        **{slot: fluid.layers.data(slot, list(dims), append_batch_size=False) for slot, dims in more.items()},
    }
    for variable in inputs.values():
        variable.stop_gradient = False
    out = block.create_var("out")
    block.append_op(type, inputs, {"Output": out}, attrs)
    return out


@pytest.mark.parametrize(("type", "x", "w", "attrs", "error", "word"), BAD)
def test_refused_when_built(type: str, x: Dims, w: Dims, attrs: Any, error: type[Exception], word: str) -> None:
    with fluid.program_guard(fluid.Program()), pytest.raises(error, match=word):
        build(type, x, w, attrs)


@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
@pytest.mark.parametrize(("type", "x", "w", "attrs", "error", "word"), [
    case for case in BAD if case[4] is ShapeError and len(case[1]) == len(case[2]) == (5 if "3d" in case[0] else 4)
])  # fmt: skip
def test_refused_when_run(
    type: str, x: Dims, w: Dims, attrs: Any, error: type[Exception], word: str, place: str
) -> None:
    with fluid.program_guard(fluid.Program()):
        out = build(type, (-1,) * len(x), (-1,) * len(w), attrs)
        feed = {"x": np.ones(x, "float32"), "w": np.ones(w, "float32")}
        with pytest.raises(error, match=word):
            fluid.Executor(place).run(fluid.default_main_program(), feed=feed, fetch_list=[out])


@pytest.mark.parametrize(("more", "word"), [
    ({"Bias": (3,)}, "Bias"), ({"Bias": (1, 4)}, "Bias"), ({"ResidualData": (2, 4, 5, 5)}, "ResidualData"),
])  # fmt: skip
def test_what_is_added_has_the_dims_of_the_output(more: Any, word: str) -> None:
    with fluid.program_guard(fluid.Program()), pytest.raises(ShapeError, match=word):
        build("conv2d", (2, 3, 5, 5), (4, 3, 3, 3), {}, **more)


def test_dtypes() -> None:
    with fluid.program_guard(fluid.Program()), pytest.raises(DtypeError, match="Filter"):
        build("conv2d", (2, 3, 5, 5), (4, 3, 3, 3), {}, ("float32", "float64"))
    with fluid.program_guard(fluid.Program()), pytest.raises(DtypeError, match="Input"):
        build("conv2d", (2, 3, 5, 5), (4, 3, 3, 3), {}, ("int32", "int32"))


def test_a_fused_activation_has_no_gradient() -> None:
    with fluid.program_guard(fluid.Program()):
        out = build("conv2d", (2, 3, 5, 5), (4, 3, 3, 3), {"fuse_relu": True})
        with pytest.raises(GradientError, match="append the activation"):
            fluid.gradients([out], [fluid.default_main_program().global_block().var("w")])


def test_unknown_dims_stay_unknown() -> None:
    with fluid.program_guard(fluid.Program()):
        out = build("conv2d", (-1, 3, -1, 8), (4, 3, 3, 3), {"strides": [2, 2]})
        assert out.shape == (-1, 4, -1, 3)
    with fluid.program_guard(fluid.Program()):
        out = build("conv2d_transpose", (-1, 3, -1, 8), (3, 4, 3, 3), {"strides": [2, 2], "output_padding": [1, 1]})
        assert out.shape == (-1, 4, -1, 18)
    with fluid.program_guard(fluid.Program()):
        out = build("conv2d", (-1, -1, 8, 3), (4, 3, 3, 3), {"padding_algorithm": "SAME", "data_format": "NHWC"})
        assert out.shape == (-1, -1, 8, 4)
