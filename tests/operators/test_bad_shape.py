"""Bad input to the operators on shapes: one clear error each, when the program is built, else on every place."""

# ruff: noqa: E501  the tables hold whole cases, a line each

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.errors import AttributeValueError, DtypeError, FluidError, OutOfRangeError, ShapeError
from fluidlite.program.registry import ops

A, S, D = AttributeValueError, ShapeError, DtypeError
Case = tuple[str, dict[str, Any], dict[str, Any], type[FluidError], str]


def f(*dims: int) -> tuple[tuple[int, ...], str]:
    return dims, "float32"


def i(*dims: int) -> tuple[tuple[int, ...], str]:
    return dims, "int32"


BUILDING: list[Case] = [
    ("reshape2", {"X": f(4, 6)}, {"shape": [5, 5]}, A, "24 elements"),
    ("reshape2", {"X": f(4, 6)}, {"shape": [5, -1]}, A, "a divisor of the size"),
    ("reshape2", {"X": f(4, 6)}, {"shape": [-1, -1]}, A, "at most one -1"),
    ("reshape2", {"X": f(4, 6)}, {"shape": [4, 6, 0]}, A, "0 only where X has a dim"),
    ("reshape2", {"X": f(4, 6)}, {"shape": [4, -6]}, A, "-1 or more"),
    ("reshape2", {"X": f(4, 6), "Shape": i(-1)}, {}, S, "known dims"),
    ("reshape2", {"X": f(4, 6), "Shape": f(2)}, {}, D, "Shape"),
    ("reshape2", {"X": f(4, 6), "Shape": i(2, 1)}, {}, S, "one row of numbers"),
    ("reshape2", {"X": f(4, 6), "ShapeTensor": [i(1), i(2)]}, {}, S, "tensors of one number"),
    ("reshape", {"X": f(4, 6)}, {"shape": [5, 5]}, A, "24 elements"),
    ("transpose2", {"X": f(4, 6)}, {"axis": [0]}, A, "permutation"),
    ("transpose2", {"X": f(4, 6)}, {"axis": [-1, 0]}, A, "permutation"),
    ("transpose", {"X": f(4, 6)}, {"axis": [1, 1]}, A, "permutation"),
    ("squeeze2", {"X": f(4, 1)}, {"axes": [0]}, A, "dims of 1"),
    ("squeeze2", {"X": f(4, 1)}, {"axes": [2]}, A, "an axis in"),
    ("squeeze", {"X": f(4, 1)}, {"axes": [-3]}, A, "an axis in"),
    ("unsqueeze2", {"X": f(4)}, {}, A, "one axis or more"),
    ("unsqueeze2", {"X": f(4)}, {"axes": [3]}, A, "places in"),
    ("unsqueeze", {"X": f(4)}, {"axes": [-3]}, A, "places in"),
    ("unsqueeze2", {"X": f(4), "AxesTensor": i(-1)}, {}, S, "known dims"),
    ("flatten2", {"X": f(4, 3)}, {"axis": 3}, A, "0 to 2"),
    ("flatten", {"X": f(4, 3)}, {"axis": -1}, A, "0 or more"),
    ("stack", {"X": [f(2), f(3)]}, {}, S, "equal dims"),
    ("stack", {"X": [f(2), i(2)]}, {}, D, "float32 in all"),
    ("stack", {"X": [f(2), f(2)]}, {"axis": 2}, A, "an axis in"),
    ("unstack", {"X": f(2, 3)}, {"num": 3}, A, "'num' is 3; expected 2"),
    ("unstack", {"X": f(2, 3)}, {"num": 2, "axis": 2}, A, "an axis in"),
    ("unbind", {"X": f(2, 3)}, {"axis": -3}, A, "an axis in"),
    ("concat", {"X": [f(2, 3), f(2)]}, {}, S, "one rank"),
    ("concat", {"X": [f(2, 3), f(2, 4)]}, {}, S, "but for axis 0"),
    ("concat", {"X": [f(2, 3)]}, {"axis": 2}, A, "an axis in"),
    ("split", {"X": f(5)}, {"num": 2}, A, "a divisor of 5"),
    ("split", {"X": f(5)}, {}, A, "1 or more, since sections is empty"),
    ("split", {"X": f(5)}, {"sections": [2, 2]}, A, "sum to 5"),
    ("split", {"X": f(5)}, {"sections": [-1, 2, -1]}, A, "at most one"),
    ("split", {"X": f(5), "SectionsTensorList": [i(2)]}, {}, S, "tensors of one number"),
    ("split", {"X": f(5)}, {"sections": [7, -1]}, A, "sum to 5"),
    ("slice", {"Input": f(5)}, {"axes": [1], "starts": [0], "ends": [1]}, A, "an axis in"),
    ("slice", {"Input": f(5, 4)}, {"axes": [0, -2], "starts": [0, 0], "ends": [1, 1]}, A, "different dims"),
    ("slice", {"Input": f(5)}, {"axes": [0], "starts": [0, 1], "ends": [1]}, A, "1 numbers"),
    ("slice", {"Input": f(5)}, {"axes": [0], "starts": [0]}, A, "'ends'"),
    ("slice", {"Input": f(5), "StartsTensor": i(2)}, {"axes": [0], "ends": [1]}, S, "StartsTensor"),
    ("slice", {"Input": f(5)}, {"axes": [0], "starts": [0], "ends": [2], "decrease_axis": [0]}, A, "dims of 1"),
    ("strided_slice", {"Input": f(5)}, {"axes": [0], "starts": [0], "ends": [2], "strides": [0]}, A, "other than 0"),
    ("strided_slice", {"Input": f(5)}, {"axes": [0], "starts": [0], "ends": [2]}, A, "'strides'"),
    ("strided_slice", {"Input": f(5)}, {"axes": [0], "starts": [3], "ends": [2], "strides": [1]}, A, "with an element"),
    ("strided_slice", {"Input": f(5)}, {"axes": [0], "starts": [1], "ends": [3], "strides": [-1]}, A, "with an element"),
    ("crop", {"X": f(5, 6)}, {"offsets": [0, 0]}, A, "'shape'"),
    ("crop", {"X": f(5, 6)}, {"shape": [2, 2]}, A, "'offsets'"),
    ("crop", {"X": f(5, 6)}, {"shape": [2, 7], "offsets": [0, 0]}, S, "7 elements or more in dim 1"),
    ("crop", {"X": f(5, 6)}, {"shape": [2, 2], "offsets": [0, 5]}, S, "from 5 on"),
    ("crop", {"X": f(5, 6), "Offsets": i(3)}, {"shape": [2, 2]}, S, "2 numbers"),
    ("crop", {"X": f(5, 6), "Y": f(2)}, {"offsets": [0, 0]}, S, "rank 2"),
    ("crop_tensor", {"X": f(5, 6)}, {"shape": [2, 0], "offsets": [0, 0]}, A, "1 or more, for dim 1"),
    ("crop_tensor", {"X": f(5, 6)}, {"shape": [2, 3], "offsets": [4, 0]}, S, "from 4 on"),
    ("crop_tensor", {"X": f(5, 6), "Shape": i(1)}, {"offsets": [4, 0]}, S, "2 numbers"),
    ("crop_tensor", {"X": f(5, 6)}, {"shape": [2, 2], "offsets": [-1, 0]}, S, "from -1 on"),
    ("pad", {"X": f(2, 3)}, {"paddings": [1, 1]}, A, "4 numbers"),
    ("pad", {"X": f(2)}, {"paddings": [1, -1]}, A, "0 or more"),
    ("pad", {"X": i(2)}, {"paddings": [1, 1], "pad_value": float("nan")}, A, "a number from"),
    ("pad2d", {"X": f(2, 3)}, {"paddings": [1, 1, 1, 1]}, S, "rank 4"),
    ("pad2d", {"X": f(1, 1, 2, 3)}, {"paddings": [1, 1, 1]}, A, "4 numbers"),
    ("pad2d", {"X": f(1, 1, 2, 3)}, {"paddings": [2, 0, 0, 0], "mode": "reflect"}, S, "more than 2 elements in dim 2"),
    ("pad2d", {"X": f(1, 2, 3, 1)}, {"paddings": [0, 0, 0, 3], "mode": "reflect", "data_format": "NHWC"}, S, "in dim 2"),
    ("pad2d", {"X": f(1, 1, 0, 3)}, {"paddings": [1, 0, 0, 0], "mode": "edge"}, S, "1 element or more"),
    ("pad2d", {"X": f(1, 1, 2, 3)}, {"paddings": [0] * 4, "mode": "wrap"}, A, "'wrap'"),
    ("pad2d", {"X": f(1, 1, 2, 3)}, {"paddings": [0] * 4, "data_format": "CHWN"}, A, "'CHWN'"),
    ("pad2d", {"X": f(1, 1, 2, 3), "Paddings": i(3)}, {"paddings": []}, S, "4 numbers"),
    ("pad_constant_like", {"X": f(2, 3), "Y": f(2)}, {}, S, "rank 2"),
    ("pad_constant_like", {"X": f(2, 3), "Y": f(2, 4)}, {}, S, "3 elements or fewer"),
    ("expand", {"X": f(2, 3)}, {"expand_times": [2]}, A, "2 numbers"),
    ("expand", {"X": f(2, 3)}, {"expand_times": [2, 0]}, A, "1 or more"),
    ("expand", {"X": f(2, 3)}, {"expand_times": [2, -1]}, A, "1 or more"),
    ("expand", {"X": f(2, 3)}, {}, A, "2 numbers"),
    ("expand", {"X": f(2, 3), "ExpandTimes": i(3)}, {}, S, "2 numbers"),
    ("expand_as", {"X": f(2, 3), "target_tensor": f(4, 4)}, {}, S, "a multiple of 3"),
    ("expand_as", {"X": f(2, 3), "target_tensor": f(4)}, {}, S, "rank 2"),
    ("meshgrid", {"X": [f(2), f(2, 3)]}, {}, S, "vectors"),
    ("meshgrid", {"X": [f(2), i(3)]}, {}, D, "float32 in all"),
    ("reverse", {"X": f(2)}, {"axis": []}, A, "one axis or more"),
    ("reverse", {"X": f(2)}, {"axis": [1]}, A, "an axis in"),
    ("flip", {"X": f(2)}, {"dims": [-2]}, A, "an axis in"),
    ("roll", {"X": f(2)}, {"dims": [1], "shifts": [1]}, A, "an axis in"),
    ("roll", {"X": f(2)}, {"dims": [0], "shifts": [1, 2]}, A, "1 numbers"),
    ("roll", {"X": f(2)}, {"shifts": [1, 2]}, A, "1 numbers"),
    ("tril_triu", {"X": f(2)}, {"lower": True}, S, "rank 2 or more"),
    ("tril_triu", {"X": f(2, 2)}, {}, A, "lower"),
    ("similarity_focus", {"X": f(2, 3, 4)}, {"axis": 1, "indexes": [0]}, S, "a rank of 4"),
    ("similarity_focus", {"X": f(2, 3, 4, 5)}, {"axis": 0, "indexes": [0]}, A, "one of 1, 2, 3"),
    ("similarity_focus", {"X": f(2, 3, 4, 5)}, {"axis": 1, "indexes": [3]}, A, "less than 3, the size of dim 1"),
    ("similarity_focus", {"X": f(2, 3, 4, 5)}, {"axis": 1, "indexes": [0, -1]}, A, "one index or more"),
    ("similarity_focus", {"X": f(2, 3, 4, 5)}, {"axis": 1, "indexes": []}, A, "one index or more"),
    ("cvm", {"X": f(3, 1), "CVM": f(3, 2)}, {}, S, "2 features or more"),
    ("cvm", {"X": f(3, 4), "CVM": f(2, 2)}, {}, S, r"CVM .* expected \[3, 2\]"),
    ("cvm", {"X": f(3, 4), "CVM": f(3, 3)}, {}, S, "a show and a click"),
    ("gather_tree", {"Ids": i(2, 3), "Parents": i(2, 3)}, {}, S, "steps, batch and beams"),
    ("gather_tree", {"Ids": i(2, 3, 4), "Parents": i(2, 3, 5)}, {}, S, r"Parents .* expected \[2, 3, 4\]"),
    ("multiplex", {"X": [f(2, 3)], "Ids": i(2, 1)}, {}, S, "two tensors"),
    ("multiplex", {"X": [f(2, 3), f(2, 4)], "Ids": i(2, 1)}, {}, S, "equal dims"),
    ("multiplex", {"X": [f(2, 3), f(2, 3)], "Ids": i(3, 1)}, {}, S, "2 rows"),
    ("multiplex", {"X": [f(2, 3), f(2, 3)], "Ids": i(2)}, {}, S, r"\[rows, 1\]"),
    ("multiplex", {"X": [f(2), f(2)], "Ids": i(2, 1)}, {}, S, "rank 2 or more"),
    ("multiplex", {"X": [f(2, 3), f(2, 3)], "Ids": f(2, 1)}, {}, D, "Ids"),
]  # fmt: skip


def append(type: str, inputs: dict[str, Any], attrs: dict[str, Any]) -> tuple[fluid.Program, list[Any]]:
    """Append the operator to a new program; return that with what the operator writes."""
    program = fluid.Program()
    block = program.global_block()
    made = {}
    for slot, given in inputs.items():
        many = given if isinstance(given, list) else [given]
        made[slot] = [block.create_var(f"{slot}{n}", dims, dtype, is_data=True) for n, (dims, dtype) in enumerate(many)]
    count = max(attrs.get("num", 0), len(attrs.get("sections", ())), len(made.get("X", ())), 2)
    outs = {
        slot.name: [block.create_var() for _ in range(count if slot.duplicable else 1)]
        for slot in ops.get(type).outputs
    }
    block.append_op(type, made, outs, attrs)
    return program, next(iter(outs.values()))


@pytest.mark.parametrize(("type", "inputs", "attrs", "error", "word"), BUILDING)
def test_building(type: str, inputs: dict[str, Any], attrs: dict[str, Any], error: type[FluidError], word: str) -> None:
    with pytest.raises(error, match=word) as caught:
        append(type, inputs, attrs)
    assert caught.type is error
    assert f"operator {type} (test_bad_shape.py:" in str(caught.value)


def v(*numbers: int, dtype: str = "int32") -> Any:
    return np.asarray(numbers, dtype)


X = np.arange(24, dtype="float32").reshape(4, 6)
RUNNING: list[Case] = [
    ("reshape2", {"X": X, "Shape": v(5, 5)}, {}, S, "24 elements"),
    ("reshape2", {"X": X, "Shape": v(-1, -1)}, {}, S, "at most one -1"),
    ("reshape2", {"X": X, "ShapeTensor": [v(4), v(-2)]}, {}, S, "-1 or more"),
    ("reshape2", {"X": X}, {"shape": [5, 5]}, A, "24 elements"),
    ("squeeze2", {"X": X}, {"axes": [0]}, A, "dims of 1"),
    ("unsqueeze2", {"X": X, "AxesTensor": v(0, 9)}, {}, S, "places in"),
    ("stack", {"X": [X, X[:2]]}, {}, S, "equal dims"),
    ("unstack", {"X": X}, {"num": 3}, A, "expected 4"),
    ("concat", {"X": [X, X[:, :2]]}, {}, S, "but for axis 0"),
    ("concat", {"X": [X, X], "AxisTensor": v(2)}, {}, S, "an axis in"),
    ("split", {"X": X, "AxisTensor": v(1)}, {"num": 4}, A, "a divisor of 6"),
    ("split", {"X": X, "SectionsTensorList": [v(1), v(2)]}, {}, S, "sum to 4"),
    ("slice", {"Input": X, "StartsTensor": v(1), "EndsTensor": v(3)}, {"axes": [0], "decrease_axis": [0]}, A, "dims of 1"),
    ("strided_slice", {"Input": X, "StridesTensor": v(0)}, {"axes": [0], "starts": [0], "ends": [3]}, S, "other than 0"),
    ("strided_slice", {"Input": X, "EndsTensor": v(0)}, {"axes": [0], "starts": [1], "strides": [1]}, S, "with an element"),
    ("crop", {"X": X, "Offsets": v(0, 5)}, {"shape": [3, 2]}, S, "0 to 4, so that 2 of 6"),
    ("crop", {"X": X, "Offsets": v(-1, 0)}, {"shape": [3, 2]}, S, "0 to 4 for dim 0"),
    ("crop_tensor", {"X": X, "Shape": v(4, 7)}, {"offsets": [0, 0]}, S, "7 elements or more"),
    ("crop_tensor", {"X": X, "OffsetsTensor": [v(3), v(0)]}, {"shape": [2, 2]}, S, "so that 2 of 4"),
    ("crop_tensor", {"X": X, "ShapeTensor": [v(0), v(1)]}, {"offsets": [0, 0]}, S, "1 or more, for dim 0"),
    ("pad2d", {"X": X[None, None], "Paddings": v(4, 0, 0, 0)}, {"paddings": [], "mode": "reflect"}, S, "more than 4"),
    ("pad2d", {"X": X[None, None], "Paddings": v(0, 0, -1, 0)}, {"paddings": []}, S, "0 or more"),
    ("pad_constant_like", {"X": X[:2], "Y": X}, {}, S, "2 elements or fewer"),
    ("expand", {"X": X, "ExpandTimes": v(0, 1)}, {}, S, "1 or more"),
    ("expand_as", {"X": X, "target_tensor": X[:3]}, {}, S, "a multiple of 4"),
    ("multiplex", {"X": [X, X], "Ids": v(0, 2, 1, 0).reshape(4, 1)}, {}, OutOfRangeError, "2.*0 to 1"),
    ("multiplex", {"X": [X, X], "Ids": v(0, 1, -1, 0).reshape(4, 1)}, {}, OutOfRangeError, "-1.*0 to 1"),
]  # fmt: skip


MARKED = ("opencl", "cuda")
PLACES = [
    pytest.param(str(place), marks=[getattr(pytest.mark, place.kind)] if place.kind in MARKED else [])
    for place in fluid.places()
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("type", "inputs", "attrs", "error", "word"), RUNNING)
def test_running(
    place: str, type: str, inputs: dict[str, Any], attrs: dict[str, Any], error: type[FluidError], word: str
) -> None:
    """Dims that are known when it runs, and numbers that tensors say."""

    def unknown(slot: str, array: Any) -> tuple[tuple[int, ...], str]:
        declared = ops.get(type).input(slot)
        keep = declared is not None and declared.value
        return array.shape if keep else (-1,) * array.ndim, str(array.dtype)

    described = {
        slot: [unknown(slot, a) for a in given] if isinstance(given, list) else unknown(slot, given)
        for slot, given in inputs.items()
    }
    program, outs = append(type, described, attrs)
    feed = {
        f"{slot}{n}": array
        for slot, given in inputs.items()
        for n, array in enumerate(given if isinstance(given, list) else [given])
    }
    with pytest.raises(error, match=word) as caught:
        fluid.Executor(place, fallback="allow").run(program, feed=feed, fetch_list=outs[:1])
    assert type in str(caught.value)
    assert "test_bad_shape.py:" in str(caught.value)
