"""What unary operators, reductions and products refuse: where dims are known when the program is built, else later."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.errors import AttributeValueError, DtypeError, FluidError, ShapeError

Dims = tuple[int, ...]

BAD: list[tuple[str, dict[str, Dims], dict[str, Any], type[FluidError], str]] = [
    ("cos_sim", {"X": (3,), "Y": (3,)}, {}, ShapeError, "X"),
    ("cos_sim", {"X": (3, 4), "Y": (3, 5)}, {}, ShapeError, "rows of the dims"),
    ("cos_sim", {"X": (3, 4), "Y": (2, 4)}, {}, ShapeError, "one row, or as many"),
    ("cos_sim", {"X": (3, 2, 4), "Y": (3, 8)}, {}, ShapeError, "Y"),
    ("dot", {"X": (2, 3, 4), "Y": (2, 3, 4)}, {}, ShapeError, "rows, width"),
    ("dot", {"X": (2, 3), "Y": (2, 4)}, {}, ShapeError, "the dims of X"),
    ("bilinear_tensor_product", {"X": (3,), "Y": (3, 2), "Weight": (4, 3, 2)}, {}, ShapeError, "X"),
    ("bilinear_tensor_product", {"X": (3, 5), "Y": (2, 4), "Weight": (6, 5, 4)}, {}, ShapeError, "as many rows"),
    ("bilinear_tensor_product", {"X": (3, 5), "Y": (3, 4), "Weight": (6, 4, 5)}, {}, ShapeError, "widths of X and Y"),
    ("bilinear_tensor_product", {"X": (3, 5), "Y": (3, 4), "Weight": (5, 4)}, {}, ShapeError, "Weight"),
    ("bilinear_tensor_product", {"X": (3, 5), "Y": (3, 4), "Weight": (6, 5, 4), "Bias": (6,)}, {}, ShapeError, "Bias"),
    ("conv_shift", {"X": (3, 5), "Y": (3, 2)}, {}, ShapeError, "odd"),
    ("conv_shift", {"X": (3, 5), "Y": (3, 7)}, {}, ShapeError, "at most the 5"),
    ("conv_shift", {"X": (3, 5), "Y": (2, 3)}, {}, ShapeError, "as many rows"),
    ("conv_shift", {"X": (5,), "Y": (3,)}, {}, ShapeError, "X"),
    ("squared_l2_distance", {"X": (3, 4), "Y": (2, 4)}, {}, ShapeError, "one row, or as many"),
    ("squared_l2_distance", {"X": (3, 4), "Y": (3, 5)}, {}, ShapeError, "rows of 4"),
    ("squared_l2_distance", {"X": (3, 4), "Y": (3, 2, 2)}, {}, ShapeError, "rank 2"),
    ("squared_l2_distance", {"X": (3,), "Y": (3,)}, {}, ShapeError, "X"),
    ("prelu", {"X": (2, 3, 4), "Alpha": (2,)}, {}, ShapeError, "one element"),
    ("prelu", {"X": (2, 3, 4), "Alpha": (4,)}, {"mode": "channel"}, ShapeError, "each channel"),
    ("prelu", {"X": (3,), "Alpha": (3,)}, {"mode": "channel"}, ShapeError, "channel"),
    ("prelu", {"X": (2, 3, 4), "Alpha": (3,)}, {"mode": "element"}, ShapeError, "for each of X"),
    ("prelu", {"X": (2, 3), "Alpha": (1,)}, {"mode": "row"}, AttributeValueError, "one of"),
    ("cumsum", {"X": (2, 3)}, {"axis": 2}, AttributeValueError, "axis"),
    ("cumsum", {"X": (2, 3)}, {"axis": -3}, AttributeValueError, "axis"),
    ("cumsum", {"X": ()}, {"axis": 1}, AttributeValueError, "no dims"),
    ("clip_by_norm", {"X": (2, 3)}, {"max_norm": -1.0}, AttributeValueError, "max_norm"),
    ("clip_by_norm", {"X": (2, 3)}, {}, AttributeValueError, "max_norm"),
    ("pow", {"X": (2, 3), "FactorTensor": (2,)}, {}, ShapeError, "FactorTensor"),
    ("reduce_prod", {"X": (2, 3)}, {"dim": [2]}, AttributeValueError, "dim"),
    ("reduce_sum", {"X": (2, 3)}, {"dim": [0, -2]}, AttributeValueError, "different"),
    ("reduce_sum", {"X": (2, 3)}, {"dim": []}, AttributeValueError, "one or more"),
    ("reduce_all", {"X": (2, 3)}, {}, DtypeError, "X"),
    ("matmul", {"X": (2, 3), "Y": (4, 5)}, {}, ShapeError, "Y"),
    ("matmul", {"X": (2, 3, 4), "Y": (3, 4, 5)}, {}, ShapeError, "leading dims"),
    ("matmul", {"X": (), "Y": (2, 3)}, {}, ShapeError, "rank 1"),
    ("matmul", {"X": (2, 3), "Y": (2, 3)}, {"alpha": "two"}, AttributeValueError, "a float"),
    ("mul", {"X": (2, 3), "Y": (4, 5)}, {}, ShapeError, "rows"),
    ("mul", {"X": (2, 3), "Y": (3, 5)}, {"x_num_col_dims": 2}, ShapeError, "x_num_col_dims"),
    ("mul", {"X": (2, 3), "Y": (3, 5)}, {"y_num_col_dims": 0}, AttributeValueError, "1 or more"),
    ("elementwise_add", {"X": (2, 3), "Y": (2,)}, {}, ShapeError, "set axis"),
    ("elementwise_add", {"X": (2,), "Y": (2, 3)}, {}, ShapeError, "X"),
    ("elementwise_add", {"X": (2, 3), "Y": (3,)}, {"axis": 2}, ShapeError, "Y"),
    ("elementwise_add", {"X": (2, 3), "Y": (3,)}, {"axis": -2}, AttributeValueError, "axis"),
    ("logical_and", {"X": (2,), "Y": (2,)}, {}, DtypeError, "X"),
    # attributes that are no plain values
    ("softshrink", {"X": (2,)}, {"lambda": np.ones(2)}, AttributeValueError, "a float"),
    ("leaky_relu", {"X": (2,)}, {"alpha": [0.1]}, AttributeValueError, "a float"),
    ("leaky_relu", {"X": (2,)}, {"alpha": {"value": 0.1}}, AttributeValueError, "a float"),
    ("cumsum", {"X": (2,)}, {"axis": np.zeros(1, "int64")}, AttributeValueError, "an int"),
    ("cumsum", {"X": (2,)}, {"reverse": np.zeros(2, "bool")}, AttributeValueError, "a bool"),
    ("reduce_sum", {"X": (2,)}, {"dim": np.zeros((1, 1), "int64")}, AttributeValueError, "list of int"),
    ("reduce_sum", {"X": (2,)}, {"dim": {0}}, AttributeValueError, "list of int"),
    ("cast", {"X": (2,)}, {"in_dtype": "float32", "out_dtype": np.ones(2)}, FluidError, "out_dtype"),
    ("prelu", {"X": (2,), "Alpha": (1,)}, {"mode": ["all"]}, AttributeValueError, "a str"),
]
LATE = [row for row in BAD if row[3] is ShapeError and all(row[1].values())]


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
    assert type in str(info.value) and "test_bad_products.py" in str(info.value)


@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
@pytest.mark.parametrize(("type", "inputs", "attrs", "error", "word"), LATE)
def test_it_is_refused_before_it_runs(type: str, inputs: Any, attrs: Any, error: Any, word: str, place: str) -> None:
    program = fluid.Program()
    feed = {slot.lower(): np.ones(dims, "float32") for slot, dims in inputs.items()}
    with pytest.raises(error) as info, fluid.program_guard(program):
        outs = build(type, inputs, attrs, known=False)  # ranks are known even then
        fluid.Executor(place, fallback="allow").run(program, feed=feed, fetch_list=outs)
    assert type in str(info.value)


@pytest.mark.parametrize(
    ("type", "inputs"),
    [
        ("cos_sim", {"X": "float32", "Y": "float64"}),
        ("conv_shift", {"X": "float32", "Y": "float64"}),
        ("prelu", {"X": "float32", "Alpha": "float64"}),
        ("squared_l2_distance", {"X": "float64", "Y": "float32"}),
        ("dot", {"X": "float32", "Y": "int64"}),
        ("erf", {"X": "int64"}),
        ("isnan", {"X": "bool"}),
        ("reduce_any", {"X": "int64"}),
        ("l1_norm", {"X": "int32"}),
    ],
)
def test_dtypes_that_do_not_fit_are_refused(type: str, inputs: dict[str, str]) -> None:
    with fluid.program_guard(fluid.Program()), pytest.raises(DtypeError, match=type):
        block = fluid.default_main_program().global_block()
        given = {
            slot: fluid.layers.data(slot, [1, 1], dtype=dtype, append_batch_size=False)
            for slot, dtype in inputs.items()
        }
        outs = {slot.name: block.create_var(f"{slot.name}.made") for slot in fluid.op_proto(type).outputs}
        block.append_op(type=type, inputs=given, outputs=outs, attrs={})
