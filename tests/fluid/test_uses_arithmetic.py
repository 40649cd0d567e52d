"""Fluid's uses of elementwise, comparing, logical, reducing and linear-algebra operators."""

from __future__ import annotations

from typing import Any

import numpy as np
from use_table import Numbers, Use, checks_of, f32

N = Numbers(2)
USES: list[Use] = []

# Two tensors, Y broadcast against X from axis on ---------------------------------------------------------------------

BROADCASTS: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], tuple[int, ...]], ...] = (
    ((3, 4), (3, 4), {}, (3, 4)),
    ((4,), (4,), {}, (4,)),
    ((2, 3, 4), (4,), {}, (4,)),
    ((2, 3, 4), (3, 4), {}, (3, 4)),
    ((2, 3, 4), (2,), {"axis": 0}, (2, 1, 1)),
    ((2, 3, 4), (3,), {"axis": 1}, (3, 1)),
    ((2, 3, 4, 2), (3, 4), {"axis": 1}, (3, 4, 1)),
    ((2, 3, 4), (1,), {}, (1,)),
    ((2, 3, 4), (3, 1), {"axis": 1}, (3, 1)),  # trailing ones of Y are dropped
    ((2, 3, 4), (2, 1, 1), {"axis": 0}, (2, 1, 1)),
)
FUNCTIONS = {
    "elementwise_add": np.add, "elementwise_sub": np.subtract, "elementwise_mul": np.multiply,
    "elementwise_div": np.divide, "elementwise_max": np.maximum, "elementwise_min": np.minimum,
    "elementwise_pow": np.power,
}  # fmt: skip
for op, function in FUNCTIONS.items():
    for xs, ys, attrs, shape in BROADCASTS:
        low, high = (0.5, 2.0) if op in ("elementwise_div", "elementwise_pow") else (-1.0, 1.0)
        x, y = N.f(*xs, low=low, high=high), N.f(*ys, low=low, high=high)
        if op in ("elementwise_max", "elementwise_min"):  # no ties, and none near
            x, y = N.distinct(*xs), N.distinct(*ys) + np.float32(0.013)
        USES.append(Use(op, {"X": x, "Y": y}, {"Out": f32(function(x, y.reshape(shape)))}, attrs, "X Y"))
for kind in ("int32", "int64"):
    a, b = N.i(3, 4, low=1, high=20, dtype=kind), N.i(4, low=1, high=6, dtype=kind)
    for op, function in (("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("max", np.maximum),
                         ("floordiv", np.floor_divide), ("mod", np.mod)):  # fmt: skip
        USES.append(Use(f"elementwise_{op}", {"X": a, "Y": b}, {"Out": function(a, b)}))
    a, b = N.i(3, 4, low=-20, high=20, dtype=kind), 2 * N.i(4, low=-3, high=3, dtype=kind) - 1
    USES.append(Use("elementwise_mod", {"X": a, "Y": b}, {"Out": np.fmod(a, b)}))  # since Paddle 2.0 of the sign of Y
    USES.append(Use("elementwise_floordiv", {"X": a, "Y": b}, {"Out": np.trunc(a / b).astype(kind)}))
x, y = N.f(3, 4), N.f(3, 4)
USES.append(Use("minus", {"X": x, "Y": y}, {"Out": x - y}, {}, "X Y"))
for op, function in (("less_than", np.less), ("less_equal", np.less_equal), ("greater_than", np.greater),
                     ("greater_equal", np.greater_equal), ("equal", np.equal), ("not_equal",
                     np.not_equal)):  # fmt: skip
    for kind in ("float32", "int64", "int32"):
        a, b = N.i(4, 5, high=3, dtype=kind), N.i(4, 5, high=3, dtype=kind)
        USES.append(Use(op, {"X": a, "Y": b}, {"Out": function(a, b)}))
    USES.append(Use(op, {"X": a, "Y": b[:, 0]}, {"Out": function(a, b[:, :1])}, {"axis": 0, "force_cpu": False}))
a, b = N.i(4, 5, high=2).astype(bool), N.i(4, 5, high=2).astype(bool)
for op, function in (("and", np.logical_and), ("or", np.logical_or), ("xor", np.logical_xor)):
    USES.append(Use(f"logical_{op}", {"X": a, "Y": b}, {"Out": function(a, b)}))
USES.append(Use("logical_not", {"X": a}, {"Out": ~a}))
parts = [N.f(3, 4) for _ in range(3)]
named = [(f"x{i}", part) for i, part in enumerate(parts)]
USES += [
    Use("sum", {"X": named}, {"Out": parts[0] + parts[1] + parts[2]}, {"use_mkldnn": False}, "x0 x2"),
    Use("sum", {"X": named[:1]}, {"Out": parts[0]}, {}, "x0"),
]

# Reductions: one element gives [1], never a rank of 0 -----------------------------------------------------------------

REDUCTIONS: tuple[tuple[tuple[int, ...], dict[str, Any], Any, bool], ...] = (
    ((4, 5), {}, 0, False),
    ((3, 4, 5), {"dim": [0]}, 0, False),
    ((3, 4, 5), {"dim": [1, 2]}, (1, 2), False),
    ((3, 4, 5), {"dim": [-2], "keep_dim": True}, 1, True),
    ((3, 4, 5), {"reduce_all": True}, None, False),
    ((3, 4, 5), {"reduce_all": True, "keep_dim": True}, None, True),
    ((2, 3, 4), {"dim": [0, 1, 2]}, None, False),
    ((6,), {"dim": [0]}, None, False),
    ((2, 3, 2, 3), {"dim": [-1, 1], "keep_dim": True}, (1, 3), True),
)
for op, function in (("sum", np.sum), ("mean", np.mean), ("max", np.max), ("min", np.min), ("prod", np.prod)):
    for dims, attrs, axis, keep in REDUCTIONS:
        x = N.distinct(*dims) if op in ("max", "min") else N.f(*dims, low=0.5, high=1.5)
        out = np.atleast_1d(function(np.float64(x), axis=axis, keepdims=keep))
        USES.append(Use(f"reduce_{op}", {"X": x}, {"Out": f32(out)}, attrs, "X", atol=2e-5))
for kind in ("int32", "int64"):
    x = N.i(3, 4, high=9, dtype=kind)
    USES.append(Use("reduce_sum", {"X": x}, {"Out": x.sum(1, dtype=kind)}, {"dim": [1]}))
    USES.append(Use("reduce_max", {"X": x}, {"Out": x.max(0)}, {"dim": [0]}))
flags = N.i(4, 5, high=2).astype(bool)
for op, function in (("all", np.all), ("any", np.any)):
    USES.append(Use(f"reduce_{op}", {"X": flags}, {"Out": np.atleast_1d(function(flags))}, {"reduce_all": True}))
    USES.append(Use(f"reduce_{op}", {"X": flags}, {"Out": function(flags, 1)}, {"dim": [-1]}))
    USES.append(Use(f"reduce_{op}", {"X": flags}, {"Out": function(flags, 0, keepdims=True)}, {"keep_dim": True}))
x = N.far(4, 6)
USES += [
    Use("mean", {"X": x}, {"Out": f32([x.mean()])}, {}, "X"),
    Use("l1_norm", {"X": x}, {"Out": f32([np.abs(x).sum()])}, {}, "X"),
    Use("squared_l2_norm", {"X": x}, {"Out": f32([np.square(x).sum()])}, {}, "X"),
]
for rows in (4, 1):
    y = N.f(rows, 6)
    diff = x - y
    USES.append(
        Use("squared_l2_distance", {"X": x, "Y": y},
            {"sub_result": diff, "Out": f32(np.square(diff).sum(1, keepdims=True))}, {}, "X Y")
    )  # fmt: skip
x = N.f(2, 3, 4)
for axis, epsilon in ((1, 1e-8), (-1, 1e-10), (0, 0.1)):
    norm = np.sqrt(np.square(x).sum(axis, keepdims=True) + epsilon)
    USES.append(Use("norm", {"X": x}, {"Norm": norm, "Out": x / norm}, {"axis": axis, "epsilon": epsilon}, "X"))

# Linear algebra ------------------------------------------------------------------------------------------------------

x, y = N.f(3, 4), N.f(4, 5)
x4, y4 = N.f(2, 3, 2, 2), N.f(2, 2, 3)
USES += [
    Use("mul", {"X": x, "Y": y}, {"Out": x @ y}, {}, "X Y"),
    Use("mul", {"X": x4, "Y": y4}, {"Out": (x4.reshape(6, 4) @ y4.reshape(4, 3)).reshape(2, 3, 3)},
        {"x_num_col_dims": 2, "y_num_col_dims": 2}, "X Y"),
    Use("mul", {"X": N.f(2, 3, 4)[:0], "Y": N.f(12, 5)}, {"Out": np.zeros((0, 5), "float32")}),
]  # fmt: skip
MATRICES: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    ((3, 4), (4, 5), {}),
    ((4, 3), (4, 5), {"transpose_X": True}),
    ((3, 4), (5, 4), {"transpose_Y": True, "alpha": 0.5}),
    ((2, 3, 4), (2, 4, 5), {}),
    ((2, 4, 3), (2, 5, 4), {"transpose_X": True, "transpose_Y": True}),
    ((2, 3, 4), (4, 5), {}),
    ((2, 2, 3, 4), (2, 2, 5, 4), {"transpose_Y": True, "alpha": 2.0}),
)
for xs, ys, attrs in MATRICES:
    x, y = N.f(*xs), N.f(*ys)
    left = x.swapaxes(-1, -2) if attrs.get("transpose_X") else x
    right = y.swapaxes(-1, -2) if attrs.get("transpose_Y") else y
    out = np.matmul(left, right) * np.float32(attrs.get("alpha", 1.0))
    USES.append(Use("matmul", {"X": x, "Y": y}, {"Out": out}, attrs, "X Y"))
x, y, m = N.f(4), N.f(4), N.f(4, 3)
USES += [
    Use("matmul", {"X": x, "Y": y}, {"Out": f32([x @ y])}, {}, "X Y"),
    Use("matmul", {"X": x, "Y": m}, {"Out": x @ m}, {}, "X Y"),
    Use("matmul", {"X": m, "Y": N.f(3)}, {"Out": np.zeros(4, "float32")}, {"alpha": 0.0}),
    Use("matmul", {"X": x, "Y": f32([1, 2, 3])}, {"Out": f32(np.outer(x, [1, 2, 3]))},
        {"transpose_X": True, "transpose_Y": True}),
]  # fmt: skip
x, y = N.f(3, 4), N.f(3, 4)
USES.append(Use("dot", {"X": x, "Y": y}, {"Out": (x * y).sum(-1, keepdims=True)}, {}, "X Y"))
x = N.f(4, 5)
for y in (N.f(4, 5), N.f(1, 5)):
    xn, yn = (np.sqrt(np.square(v).sum(1, keepdims=True)) for v in (x, y))
    cos = (x * y).sum(1, keepdims=True) / (xn * yn)
    USES.append(Use("cos_sim", {"X": x, "Y": y}, {"Out": cos, "XNorm": xn, "YNorm": yn}, {}, "X Y"))
x, y, w, b = N.f(3, 2), N.f(3, 4), N.f(5, 2, 4), N.f(1, 5)
out = np.einsum("ni,kij,nj->nk", x, w, y).astype("float32")
USES += [
    Use("bilinear_tensor_product", {"X": x, "Y": y, "Weight": w, "Bias": b}, {"Out": out + b}, {}, "X Y Weight Bias"),
    Use("bilinear_tensor_product", {"X": x, "Y": y, "Weight": w}, {"Out": out}, {}, "X Y Weight"),
]
x, y = N.f(3, 7), N.f(3, 3)
out = np.zeros_like(x)
for i in range(7):
    for j in range(3):
        out[:, i] += x[:, (i + j - 1) % 7] * y[:, j]
USES.append(Use("conv_shift", {"X": x, "Y": y}, {"Out": out}, {}, "X Y"))

test_output, test_gradient = checks_of(USES)
