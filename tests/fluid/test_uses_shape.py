"""Fluid's uses of operators that move, choose, order and make elements."""

from __future__ import annotations

from typing import Any

import numpy as np
from use_table import Numbers, Use, checks_of, f32

N = Numbers(3)
USES: list[Use] = []
NONE = np.zeros((0,), "float32")

# Shapes --------------------------------------------------------------------------------------------------------------

x = N.f(2, 3, 4)
for shape, dims in (([6, 4], (6, 4)), ([-1, 6], (4, 6)), ([0, -1], (2, 12)), ([0, 0, 2, -1], (2, 3, 2, 2))):
    USES.append(Use("reshape", {"X": x}, {"Out": x.reshape(dims)}, {"shape": shape}, "X"))
    USES.append(
        Use("reshape2", {"X": x}, {"Out": x.reshape(dims), "XShape": x}, {"shape": shape}, "X", skip=["XShape"])
    )
USES += [
    Use("reshape2", {"X": x, "Shape": np.array([1, 6, 4], "int32")}, {"Out": x.reshape(1, 6, 4)},
        {"shape": [0, -1, 4]}, "X"),
    Use("reshape2", {"X": x, "ShapeTensor": [("s0", np.array([4], "int32")), ("s1", np.array([6], "int32"))]},
        {"Out": x.reshape(4, 6)}, {"shape": [-1, -1]}),
]  # fmt: skip
x = N.f(2, 3, 4, 2)
for axis in (0, 1, 2, 4):
    out = x.reshape(int(np.prod(x.shape[:axis])), -1)
    for op in ("flatten", "flatten2"):
        USES.append(Use(op, {"X": x}, {"Out": out}, {"axis": axis}, "X"))
USES.append(Use("flatten2", {"X": x}, {"Out": x.reshape(2, 24)}, {}, "X"))
x = N.f(1, 3, 1, 5)
for axes, dims in (([0], (3, 1, 5)), ([0, -2], (3, 5)), ([], (3, 5)), ([2], (1, 3, 5))):
    for op in ("squeeze", "squeeze2"):
        USES.append(Use(op, {"X": x}, {"Out": x.reshape(dims)}, {"axes": axes}, "X"))
x = N.f(3, 5)
for axes, dims in (([0], (1, 3, 5)), ([-1], (3, 5, 1)), ([0, 2], (1, 3, 1, 5)), ([1, 1], (3, 1, 1, 5))):
    for op in ("unsqueeze", "unsqueeze2"):
        USES.append(Use(op, {"X": x}, {"Out": x.reshape(dims)}, {"axes": axes}, "X"))
x = N.f(2, 3, 4)
for axis in ([0, 2, 1], [2, 0, 1], [1, 0, 2]):
    for op in ("transpose", "transpose2"):
        USES.append(Use(op, {"X": x}, {"Out": x.transpose(axis)}, {"axis": axis}, "X"))
USES += [
    Use("shape", {"Input": x}, {"Out": np.array([2, 3, 4], "int32")}),
    Use("size", {"Input": x}, {"Out": np.array([24], "int64")}),
    Use("is_empty", {"X": x}, {"Out": np.array([False])}),
    Use("is_empty", {"X": NONE}, {"Out": np.array([True])}),
    Use("assign", {"X": x}, {"Out": x}, {}, "X"),
    Use("cast", {"X": x}, {"Out": x.astype("float64")}, {"in_dtype": 5, "out_dtype": 6}, "X"),
    Use("cast", {"X": x * 9}, {"Out": (x * 9).astype("int32")}, {"in_dtype": 5, "out_dtype": 2}),
    Use("cast", {"X": np.array([0, 7, -2])}, {"Out": f32([0, 7, -2])}, {"in_dtype": 3, "out_dtype": 5}),
]

# Together and apart ---------------------------------------------------------------------------------------------------

a, b, c = N.f(2, 3, 4), N.f(2, 1, 4), N.f(2, 2, 4)
three = [("x0", a), ("x1", b), ("x2", c)]
USES += [
    Use("concat", {"X": three}, {"Out": np.concatenate([a, b, c], 1)}, {"axis": 1}, "x0 x2"),
    Use("concat", {"X": three}, {"Out": np.concatenate([a, b, c], 1)}, {"axis": -2}, "x1"),
    Use("concat", {"X": [("x0", a), ("x1", a)]}, {"Out": np.concatenate([a, a])}, {}, "x0"),
    Use("concat", {"X": three, "AxisTensor": np.array([1], "int32")}, {"Out": np.concatenate([a, b, c], 1)}, {}, "x0"),
]
x = N.f(4, 5, 6)


def pieces(parts: list[Any]) -> list[tuple[str, Any]]:
    return [(f"out{i}", part) for i, part in enumerate(parts)]


USES += [
    Use("split", {"X": x}, {"Out": pieces(np.split(x, 3, 2))}, {"axis": 2, "num": 3}, "X", "out0 out1 out2"),
    Use("split", {"X": x}, {"Out": pieces(np.split(x, [1, 3], 1))}, {"axis": 1, "sections": [1, 2, 2]}, "X",
        "out0 out1 out2"),
    Use("split", {"X": x}, {"Out": pieces(np.split(x, [1, 3], 1))}, {"axis": -2, "sections": [1, 2, -1]}, "X", "out1"),
    Use("split", {"X": x}, {"Out": pieces(np.split(x, 2))}, {"num": 2}, "X", "out0 out1"),
]  # fmt: skip
same = [N.f(2, 3) for _ in range(3)]
for axis in (0, 1, -1):
    named = [(f"x{i}", part) for i, part in enumerate(same)]
    whole = np.stack(same, axis)
    USES.append(Use("stack", {"X": named}, {"Y": whole}, {"axis": axis}, "x0 x1 x2", "Y"))
    apart = [(f"y{i}", part) for i, part in enumerate(same)]
    USES.append(Use("unstack", {"X": whole}, {"Y": apart}, {"axis": axis, "num": 3}, "X", "y0 y1 y2"))
focus = f32([[[[0.8, 0.1], [0.4, 0.5]], [[0.9, 0.7], [0.9, 0.9]], [[0.8, 0.9], [0.1, 0.2]]],
             [[[0.2, 0.5], [0.3, 0.4]], [[0.9, 0.7], [0.8, 0.4]], [[0.0, 0.2], [0.4, 0.7]]]])  # fmt: skip
USES += [
    Use("unbind", {"X": whole}, {"Out": [("o0", whole[0]), ("o1", whole[1])]}, {"axis": 0}, "X", "o0 o1"),
    Use("similarity_focus", {"X": focus}, {"Out": f32([[[[1, 0], [0, 1]]] * 3, [[[0, 1], [1, 0]]] * 3])},
        {"axis": 1, "indexes": [0]}),
    Use("cvm", {"X": (shows := N.f(4, 5, low=0, high=9)), "CVM": N.f(4, 2, low=0, high=3)},
        {"Y": np.concatenate([np.log(shows[:, :1] + 1), np.log(shows[:, 1:2] + 1) - np.log(shows[:, :1] + 1),
                              shows[:, 2:]], 1)}, {"use_cvm": True}),
    Use("cvm", {"X": shows, "CVM": N.f(4, 2, low=0, high=3)}, {"Y": shows[:, 2:]}, {"use_cvm": False}),
    Use("gather_tree", {"Ids": np.array([[[2, 2], [6, 1]], [[3, 9], [6, 1]], [[0, 1], [9, 0]]]),
                        "Parents": np.array([[[0, 0], [1, 1]], [[1, 0], [0, 0]], [[0, 0], [0, 1]]])},
        {"Out": np.array([[[2, 2], [6, 6]], [[3, 3], [6, 1]], [[0, 1], [9, 0]]])}),
    Use("multiplex", {"Ids": np.array([[2], [0]], "int32"), "X": [(f"x{i}", part) for i, part in enumerate(same)]},
        {"Out": np.stack([same[2][0], same[0][1]])}, {}, "x0 x1 x2"),
    Use("meshgrid", {"X": [("x0", f32([1, 2])), ("x1", f32([3, 4, 5]))]},
        {"Out": [("o0", f32([[1, 1, 1], [2, 2, 2]])), ("o1", f32([[3, 4, 5], [3, 4, 5]]))]}, {}, "x0 x1", "o0 o1"),
]  # fmt: skip

# Regions -------------------------------------------------------------------------------------------------------------

x = N.f(3, 4, 5)
USES += [
    Use("slice", {"Input": x}, {"Out": x[1:3, 0:3]}, {"axes": [0, 1], "starts": [1, 0], "ends": [3, 3]}, "Input"),
    Use("slice", {"Input": x}, {"Out": x[:, 1:3, 2:]}, {"axes": [1, 2], "starts": [-3, 2], "ends": [3, 100]}, "Input"),
    Use("slice", {"Input": x}, {"Out": x[1, :, 1:4]},
        {"axes": [0, 2], "starts": [1, -4], "ends": [2, -1], "decrease_axis": [0]}, "Input"),
    Use("strided_slice", {"Input": x}, {"Out": x[::2, 3:0:-1]},
        {"axes": [0, 1], "starts": [0, 3], "ends": [3, 0], "strides": [2, -1]}, "Input"),
    Use("crop", {"X": x}, {"Out": x[1:3, 1:3, 2:5]}, {"offsets": [1, 1, 2], "shape": [2, 2, 3]}, "X"),
    Use("crop", {"X": x, "Y": N.f(2, 2, 3)}, {"Out": x[1:3, 1:3, 2:5]}, {"offsets": [1, 1, 2]}, "X"),
    Use("crop", {"X": x, "Offsets": np.array([0, 1, 2], "int32")}, {"Out": x[:2, 1:3, 2:5]}, {"shape": [2, 2, 3]}, "X"),
    Use("crop_tensor", {"X": x}, {"Out": x[1:, :2, 1:4]}, {"offsets": [1, 0, 1], "shape": [-1, 2, 3]}, "X"),
    Use("pad", {"X": x}, {"Out": np.pad(x, ((0, 1), (2, 0), (1, 1)), constant_values=0.5)},
        {"paddings": [0, 1, 2, 0, 1, 1], "pad_value": 0.5}, "X"),
    Use("pad_constant_like", {"X": N.f(4, 5, 5), "Y": x}, {"Out": np.pad(x, ((0, 1), (0, 1), (0, 0)))}, {}, "Y"),
    Use("reverse", {"X": x}, {"Out": x[:, ::-1]}, {"axis": [1]}, "X"),
    Use("reverse", {"X": x}, {"Out": x[::-1, :, ::-1]}, {"axis": [0, -1]}, "X"),
    Use("flip", {"X": x}, {"Out": x[::-1, :, ::-1]}, {"dims": [0, 2]}, "X"),
    Use("roll", {"X": x}, {"Out": np.roll(x, (1, -2), (0, 2))}, {"shifts": [1, -2], "dims": [0, 2]}, "X"),
    Use("expand", {"X": x}, {"Out": np.tile(x, (1, 2, 3))}, {"expand_times": [1, 2, 3]}, "X"),
    Use("expand", {"X": x[0, 0]}, {"Out": np.tile(x[0, 0], 2)}, {"expand_times": [2]}, "X"),
    Use("expand_as", {"X": x[:1], "target_tensor": N.f(2, 8, 5)}, {"Out": np.tile(x[:1], (2, 2, 1))}, {}, "X"),
    Use("tril_triu", {"X": x[0]}, {"Out": np.tril(x[0], 1)}, {"diagonal": 1, "lower": True}, "X"),
    Use("tril_triu", {"X": x[0]}, {"Out": np.triu(x[0])}, {"lower": False}, "X"),
]  # fmt: skip
image = N.f(2, 3, 4, 5)
sides = ((0, 0), (0, 0), (1, 2), (2, 1))
for mode, options in (("constant", {"constant_values": 0.7}), ("reflect", {}), ("edge", {})):
    attrs = {"paddings": [1, 2, 2, 1], "mode": mode, "pad_value": 0.7}
    out = np.pad(image, sides, mode=mode, **options)  # type: ignore[call-overload]
    last = image.transpose(0, 2, 3, 1).copy()
    USES.append(Use("pad2d", {"X": image}, {"Out": out}, {**attrs, "data_format": "NCHW"}, "X"))
    USES.append(Use("pad2d", {"X": last}, {"Out": out.transpose(0, 2, 3, 1)}, {**attrs, "data_format": "NHWC"}, "X"))

# By index, in order --------------------------------------------------------------------------------------------------

x = N.f(6, 3)
for kind in ("int32", "int64"):
    USES.append(Use("gather", {"X": x, "Index": np.array([4, 0, 4], kind)}, {"Out": x[[4, 0, 4]]}, {}, "X"))
USES.append(Use("gather", {"X": x, "Index": np.array([[1], [3]])}, {"Out": x[[1, 3]]}, {"overwrite": False}, "X"))
cube = N.f(2, 3, 4)
for index in ([[1], [0]], [[0, 2], [1, 1]], [[[1, 2, 3]]]):
    nd = np.array(index)
    USES.append(Use("gather_nd", {"X": cube, "Index": nd}, {"Out": cube[tuple(np.moveaxis(nd, -1, 0))]}, {}, "X"))
ids, updates = np.array([4, 1, 2]), N.f(3, 3)
over = x.copy()
over[ids] = updates
USES.append(Use("scatter", {"X": x, "Ids": ids, "Updates": updates}, {"Out": over}, {}, "Updates"))
added = x.copy()
added[[1, 2]] = 0
np.add.at(added, [1, 2, 1], updates)
USES += [
    Use("scatter", {"X": x, "Ids": np.array([1, 2, 1]), "Updates": updates}, {"Out": added}, {"overwrite": False}),
    Use("index_select", {"X": x, "Index": np.array([2, 0])}, {"Out": x[:, [2, 0]]}, {"dim": 1}, "X"),
    Use("index_sample", {"X": x[:2], "Index": np.array([[2, 0], [1, 1]])}, {"Out": np.stack([x[0, [2, 0]], x[1, [1,
        1]]])},
        {}, "X"),
]  # fmt: skip
total = cube.copy()
np.add.at(total, (np.array([1, 1]), np.array([2, 2])), f32([[1, 2, 3, 4]] * 2))
USES.append(
    Use("scatter_nd_add", {"X": cube, "Index": np.array([[1, 2], [1, 2]]), "Updates": f32([[1, 2, 3, 4]] * 2)},
        {"Out": total}, {}, "X Updates")
)  # fmt: skip
table = N.f(7, 3)
some = np.array([[4], [0], [4], [6]])
blank = table[some[:, 0]].copy()
blank[some[:, 0] == 4] = 0
USES += [
    Use("lookup_table", {"W": table, "Ids": some}, {"Out": table[some[:, 0]]}, {}, "W"),
    Use("lookup_table", {"W": table, "Ids": some}, {"Out": blank}, {"padding_idx": 4}),
    Use("lookup_table", {"W": table, "Ids": some.reshape(2, 2, 1)}, {"Out": table[some.reshape(2, 2)]}, {}, "W"),
    Use("lookup_table_v2", {"W": table, "Ids": some.reshape(2, 2)}, {"Out": table[some.reshape(2, 2)]}, {}, "W"),
]
classes = np.array([[2], [0], [1]])
eye = np.eye(4, dtype="float32")
USES += [
    Use("one_hot", {"X": classes}, {"Out": eye[classes[:, 0]]}, {"depth": 4, "dtype": 5}),
    Use("one_hot", {"X": classes.astype("int32")}, {"Out": eye[classes[:, 0]]}, {"depth": 4}),
    Use("one_hot", {"X": classes, "depth_tensor": np.array([4], "int32")}, {"Out": eye[classes[:, 0]]}),
    Use("one_hot", {"X": np.array([[1], [9]])}, {"Out": f32([[0, 1], [0, 0]])}, {"depth": 2,
        "allow_out_of_range": True}),
    Use("one_hot_v2", {"X": classes}, {"Out": eye[classes]}, {"depth": 4}),
]  # fmt: skip
x = N.distinct(4, 6)
rank = np.argsort(-x, 1)
up = np.argsort(x, 0)
USES += [
    Use("top_k", {"X": x}, {"Out": np.sort(-x, 1)[:, :2] * -1, "Indices": rank[:, :2]}, {"k": 2}, "X"),
    Use("top_k", {"X": x}, {"Out": x.max(1, keepdims=True), "Indices": rank[:, :1]}, {}, "X"),
    Use("top_k", {"X": x, "K": np.array([3], "int32")}, {"Out": np.sort(-x, 1)[:, :3] * -1, "Indices": rank[:, :3]}),
    Use("argsort", {"X": x}, {"Out": np.sort(x, 0), "Indices": up}, {"axis": 0}),
    Use("argsort", {"X": x}, {"Out": -np.sort(-x), "Indices": rank}, {"descending": True}, "X"),
    Use("arg_max", {"X": x}, {"Out": x.argmax(0)}, {"axis": 0}),
    Use("arg_min", {"X": x}, {"Out": x.argmin(-1)}, {"axis": -1}),
    Use("where_index", {"Condition": x > 0}, {"Out": np.argwhere(x > 0)}),
    Use("where", {"Condition": x > 0, "X": x, "Y": -x}, {"Out": np.abs(x)}, {}, "X Y"),
    Use("shard_index", {"X": np.array([[1], [6], [12], [19]])}, {"Out": np.array([[1], [6], [-1], [-1]])},
        {"index_num": 20, "nshards": 2, "shard_id": 0}),
    Use("unique", {"X": np.array([2, 3, 3, 1, 5, 3])}, {"Out": np.array([2, 3, 1, 5]), "Index": np.array([0, 1, 1, 2,
        3, 1], "int32")},
        {"dtype": 2}),
    Use("unique_with_counts", {"X": np.array([2, 3, 3, 1, 5, 3])},
        {"Out": np.array([2, 3, 1, 5]), "Index": np.array([0, 1, 1, 2, 3, 1]), "Count": np.array([1, 3, 1, 1])},
        {"dtype": 3}),
]  # fmt: skip

# Made of nothing -----------------------------------------------------------------------------------------------------

x = N.f(3, 4)
USES += [
    Use("fill_constant", {}, {"Out": np.full((2, 3), 3.5, "float32")}, {"shape": [2, 3], "value": 3.5}),
    Use("fill_constant", {}, {"Out": np.zeros((2, 3), "int64")}, {"shape": [2, 3], "dtype": 3, "force_cpu": True}),
    Use("fill_constant", {"ShapeTensor": np.array([1, 2], "int32")}, {"Out": f32([[2, 2]])}, {"value": 2.0}),
    Use("fill_constant_batch_size_like", {"Input": x}, {"Out": np.full((3, 7), 1.5, "float32")},
        {"shape": [-1, 7], "value": 1.5}),
    Use("fill_constant_batch_size_like", {"Input": x}, {"Out": np.full((7, 4), 2, "int32")},
        {"shape": [7, -1], "value": 2.0, "input_dim_idx": 1, "output_dim_idx": 1, "dtype": 2}),
    Use("fill_zeros_like", {"X": x}, {"Out": x * 0}),
    Use("fill_any_like", {"X": x}, {"Out": np.full((3, 4), 2.5, "float32")}, {"value": 2.5}),
    Use("fill", {}, {"Out": f32([[1, 2], [3, 4]])}, {"value": [1.0, 2.0, 3.0, 4.0], "shape": [2, 2], "dtype": 5}),
    Use("assign_value", {}, {"Out": f32([[1, 2]])}, {"shape": [1, 2], "dtype": 5, "fp32_values": [1.0, 2.0]}),
    Use("assign_value", {}, {"Out": np.array([7, 8], "int32")}, {"shape": [2], "dtype": 2, "int32_values": [7, 8]}),
    Use("increment", {"X": f32([3])}, {"Out": f32([5])}, {"step": 2.0}),
    Use("increment", {"X": np.array([3])}, {"Out": np.array([4])}),
    Use("range", {"Start": f32([0]), "End": f32([2]), "Step": f32([0.5])}, {"Out": f32([0, 0.5, 1, 1.5])}),
    Use("range", {"Start": np.array([5]), "End": np.array([0]), "Step": np.array([-2])}, {"Out": np.array([5, 3, 1])}),
    Use("linspace", {"Start": f32([0]), "Stop": f32([2]), "Num": np.array([5], "int32")}, {"Out": f32([0, 0.5, 1, 1.5,
        2])},
        {"dtype": 5}),
    Use("eye", {}, {"Out": np.eye(3, 2, dtype="int32")}, {"num_rows": 3, "num_columns": 2, "dtype": 2}),
    Use("diag", {"Diagonal": f32([1, 2])}, {"Out": f32([[1, 0], [0, 2]])}),
]  # fmt: skip

test_output, test_gradient = checks_of(USES)
