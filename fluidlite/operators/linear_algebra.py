"""Products of matrices: mul, which flattens to matrices, and matmul, which batches over leading dims."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Spec
from fluidlite.operators.inference import (
    Inferred,
    agree,
    all_agree,
    grad_inputs,
    grad_like,
    grad_outputs,
    like,
    merged,
    same_dtype,
    size,
)
from fluidlite.operators.samples import EVERY, WIDE, rand

_TYPES = {"X": ALL_FLOATS, "Y": ALL_FLOATS}

# mul ---------------------------------------------------------------------------------------------------------------

_PLAIN = Attr("force_fp32_output", "bool", False, doc="of Fluid's int8 kernels; of no effect")

_MUL_ATTRS = (
    Attr("x_num_col_dims", "int", 1, minimum=1, doc="how many leading dims of X are the matrix's rows"),
    Attr("y_num_col_dims", "int", 1, minimum=1, doc="how many leading dims of Y are the matrix's rows"),
    Attr("scale_x", "float", 1.0, doc="of Fluid's int8 kernels; of no effect"),
    Attr("scale_y", "floats", (1.0,), doc="of Fluid's int8 kernels; of no effect"),
    Attr("scale_out", "float", 1.0, doc="of Fluid's int8 kernels; of no effect"),
    _PLAIN,
)


def _infer_mul(call: Call) -> Inferred:
    x, y = call.dims("X"), call.dims("Y")
    rows, inner = call.attr("x_num_col_dims"), call.attr("y_num_col_dims")
    if len(x) <= rows:
        call.fail("X", f"a rank above x_num_col_dims = {rows}", do="flatten less of X, or reshape it")
    if len(y) <= inner:
        call.fail("Y", f"a rank above y_num_col_dims = {inner}", do="flatten less of Y, or reshape it")
    same_dtype(call, "Y", "X")
    if not agree(size(x[rows:]), size(y[:inner])):
        call.fail("Y", f"{size(x[rows:])} rows when its first {inner} dims are flattened, the width of X ({list(x)})")
    return {"Out": like(call.spec("X"), x[:rows] + y[inner:])}


def _decompose_mul(call: Call, build: Any) -> str | None:
    x, y = call.dims("X"), call.dims("Y")
    rows, inner = call.attr("x_num_col_dims"), call.attr("y_num_col_dims")
    if len(x) == rows + 1 == 2 and len(y) == inner + 1 == 2:
        build("matmul", {"X": build.input("X"), "Y": build.input("Y")}, {"Out": build.output("Out")}, {})
        return None
    if not call.known:
        return "dims are not known yet"
    matrices = {}
    for slot, dims, split in (("X", x, rows), ("Y", y, inner)):
        matrices[slot] = build.input(slot)
        if not (len(dims) == 2 and split == 1):
            flat = build.temp()
            shape = (size(dims[:split]), size(dims[split:]))
            if 0 in shape:
                return "reshape2 reads a 0 as 'this dim of X'"
            build("reshape2", {"X": build.input(slot)}, {"Out": flat}, {"shape": shape})
            matrices[slot] = flat
    product = build.temp()
    build("matmul", matrices, {"Out": product}, {})
    build("reshape2", {"X": product}, {"Out": build.output("Out")}, {"shape": x[:rows] + y[inner:]})
    return None


def _reference_mul(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, y = inputs["X"], inputs["Y"]
    n = y.ndim - attrs["y_num_col_dims"]
    left = x.shape[: attrs["x_num_col_dims"]]
    flat = np.zeros((int(np.prod(left)), int(np.prod(y.shape[y.ndim - n :]))))
    a = x.reshape(flat.shape[0], -1) if x.size else np.zeros((flat.shape[0], 0))
    b = y.reshape(-1, flat.shape[1]) if y.size else np.zeros((0, flat.shape[1]))
    for k in range(a.shape[1]):
        flat += np.outer(a[:, k], b[k])
    return {"Out": flat.reshape(left + y.shape[y.ndim - n :])}


register_op(
    "mul",
    inputs=("X", "Y"),
    outputs=("Out",),
    attrs=_MUL_ATTRS,
    infer=_infer_mul,
    grad=GradRule("mul_grad", ("X", "Y", "Out@GRAD"), ("X", "Y")),
    decompose=_decompose_mul,
    dtypes=_TYPES,
    reference=_reference_mul,
    samples=lambda: [
        Sample({"X": rand(5, 7), "Y": rand(7, 3, seed=1)}, {}, ("X", "Y"), name="matrices", dtypes=EVERY),
        Sample({"X": rand(32, 65), "Y": rand(65, 33, seed=1)}, {}, name="tiles", dtypes=WIDE),
        Sample({"X": rand(9, 17), "Y": rand(17, 35, seed=1)}, {}, ("X", "Y"), name="odd_tiles", dtypes=WIDE),
        Sample(
            {"X": rand(2, 3, 4), "Y": rand(2, 2, 5, seed=1)},
            {"x_num_col_dims": 2, "y_num_col_dims": 2},
            ("X", "Y"),
            name="flattened",
        ),
        Sample({"X": rand(2, 3, 4), "Y": rand(12, 5, seed=1)}, {}, ("X", "Y"), name="flatten_x"),
        Sample({"X": rand(1, 1), "Y": rand(1, 1, seed=1)}, {}, ("X", "Y"), name="one"),
        Sample({"X": rand(0, 4), "Y": rand(4, 3, seed=1)}, {}, name="no_rows"),
        Sample({"X": rand(3, 0), "Y": rand(0, 2)}, {}, name="no_columns"),
    ],
    doc="Out = flatten(X, x_num_col_dims) . flatten(Y, y_num_col_dims), unflattened",
    source="Fluid mul_op.cc",
)


def _decompose_mul_grad(call: Call, build: Any) -> str | None:
    if len(call.dims("X")) != 2 or len(call.dims("Y")) != 2:
        return "only matrices are decomposed; X and Y have " + f"ranks {len(call.dims('X'))}, {len(call.dims('Y'))}"
    out_grad = build.input("Out@GRAD")
    if call.has("X@GRAD"):
        build("matmul", {"X": out_grad, "Y": build.input("Y")}, {"Out": build.output("X@GRAD")}, {"transpose_Y": True})
    if call.has("Y@GRAD"):
        build("matmul", {"X": build.input("X"), "Y": out_grad}, {"Out": build.output("Y@GRAD")}, {"transpose_X": True})
    return None


register_op(
    "mul_grad",
    inputs=grad_inputs("X", "Y", "Out@GRAD"),
    outputs=grad_outputs("X", "Y"),
    attrs=_MUL_ATTRS,
    infer=grad_like("X", "Y"),
    decompose=_decompose_mul_grad,
    doc="X@GRAD = Out@GRAD . Y^T, Y@GRAD = X^T . Out@GRAD, as matrices",
)

# matmul ------------------------------------------------------------------------------------------------------------

_MATMUL_ATTRS = (
    Attr("transpose_X", "bool", False, doc="exchange the last two dims of X"),
    Attr("transpose_Y", "bool", False, doc="exchange the last two dims of Y"),
    Attr("alpha", "float", 1.0, doc="factor of the product"),
    Attr("head_number", "int", 1, minimum=1, maximum=1, doc="products of several heads are not known; of no effect"),
    *(Attr(f"Scale_{name}", "float", 1.0, doc="of Fluid's int8 kernels; of no effect") for name in ("x", "y", "out")),
    _PLAIN,
)


def _infer_matmul(call: Call) -> Inferred:
    x, y = call.dims("X"), call.dims("Y")
    call.need(len(x) >= 1, "X", "rank 1 or more")
    call.need(len(y) >= 1, "Y", "rank 1 or more")
    same_dtype(call, "Y", "X")
    a = (1, *x) if len(x) == 1 else x  # a vector is a row on the left, a column on the right
    b = (*y, 1) if len(y) == 1 else y
    m, k = (a[-1], a[-2]) if call.attr("transpose_X") else (a[-2], a[-1])
    k_of_y, n = (b[-1], b[-2]) if call.attr("transpose_Y") else (b[-2], b[-1])
    if not agree(k, k_of_y):
        call.fail("Y", f"{k} where it is multiplied with X ({call.shown('X')}; transpose_X="
                  f"{call.attr('transpose_X')}, transpose_Y={call.attr('transpose_Y')})")  # fmt: skip
    if len(a) > 2 and len(b) > 2 and not all_agree(a[:-2], b[:-2]):
        call.fail("Y", f"the leading dims of X, {list(a[:-2])}, or none", do="expand one of the two")
    batch = merged(a[:-2], b[:-2]) if len(a) > 2 and len(b) > 2 else a[:-2] or b[:-2]
    dims = [*batch, m, n]
    if len(x) == 1 and m == 1:
        del dims[-2]
    if len(y) == 1 and n == 1:
        del dims[-1]
    return {"Out": like(call.spec("X"), dims or (1,)) if len(a) >= len(b) else Spec.of(dims or (1,), call.dtype("X"))}


def _reference_matmul(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, y = inputs["X"], inputs["Y"]
    a = x[None, :] if x.ndim == 1 else x
    b = y[:, None] if y.ndim == 1 else y
    a = np.swapaxes(a, -1, -2) if attrs["transpose_X"] else a
    b = np.swapaxes(b, -1, -2) if attrs["transpose_Y"] else b
    out = attrs["alpha"] * np.sum(a[..., :, :, None] * b[..., None, :, :], axis=-2)
    if x.ndim == 1 and out.shape[-2] == 1:
        out = out[..., 0, :]
    if y.ndim == 1 and out.shape[-1] == 1:
        out = out[..., 0]
    return {"Out": out.reshape(out.shape or (1,))}


def _samples_matmul() -> list[Sample]:
    def case(name: str, x: tuple[int, ...], y: tuple[int, ...], check: bool = True, **attrs: Any) -> Sample:
        dtypes = EVERY if len(x) == len(y) == 2 else WIDE
        inputs = {"X": rand(*x), "Y": rand(*y, seed=1)}
        return Sample(inputs, attrs, ("X", "Y") if check else (), name=name, dtypes=dtypes)

    return [
        case("matrices", (5, 7), (7, 3)),
        case("tiles", (33, 65), (65, 34), check=False),
        case("tiles_alpha", (9, 17), (17, 35), alpha=2.0),
        case("tiles_transposed", (17, 9), (35, 17), transpose_X=True, transpose_Y=True, alpha=2.0),
        case("transpose_x", (7, 5), (7, 3), transpose_X=True),
        case("transpose_y", (5, 7), (3, 7), transpose_Y=True),
        case("transpose_both", (7, 5), (3, 7), transpose_X=True, transpose_Y=True, alpha=-0.5),
        case("transpose_x_alpha", (7, 5), (7, 3), transpose_X=True, alpha=2.0),
        case("transpose_y_alpha", (5, 7), (3, 7), transpose_Y=True, alpha=2.0),
        case("alpha", (2, 3), (3, 2), alpha=2.5),
        case("vectors", (4,), (4,)),
        case("vector_matrix", (4,), (4, 3)),
        case("matrix_vector", (3, 4), (4,)),
        case("vector_row", (4,), (1, 3), transpose_X=True),
        case("column_vector", (3, 1), (4,), transpose_Y=True),
        case("vector_batch", (4,), (2, 4, 3)),
        case("batch_vector", (2, 3, 4), (4,)),
        case("batches", (2, 3, 4), (2, 4, 5)),
        case("batches_transposed", (2, 4, 3), (2, 5, 4), transpose_X=True, transpose_Y=True),
        case("batches_transpose_x", (2, 4, 3), (2, 4, 5), transpose_X=True, alpha=3.0),
        case("batches_transpose_y", (2, 3, 4), (2, 5, 4), transpose_Y=True),
        case("rank4", (2, 3, 4, 2), (2, 3, 2, 3)),
        case("batch_matrix", (2, 3, 4), (4, 5)),
        case("matrix_batch", (3, 4), (2, 4, 5)),
        case("batch_matrix_alpha", (2, 3, 4), (4, 5), alpha=2.0),
        case("matrix_batch_alpha", (3, 4), (2, 4, 5), alpha=2.0),
        case("batch_matrix_transposed", (2, 4, 3), (5, 4), transpose_X=True, transpose_Y=True),
        case("matrix_batch_transposed", (4, 3), (2, 5, 4), transpose_X=True, transpose_Y=True),
        case("one", (1, 1), (1, 1)),
        case("no_inner", (3, 0), (0, 2), check=False),
        case("no_batch", (0, 3, 4), (0, 4, 2), check=False),
    ]


register_op(
    "matmul",
    inputs=("X", "Y"),
    outputs=("Out",),
    attrs=_MATMUL_ATTRS,
    infer=_infer_matmul,
    grad=GradRule("matmul_grad", ("X", "Y", "Out@GRAD"), ("X", "Y")),
    dtypes=_TYPES,
    reference=_reference_matmul,
    samples=_samples_matmul,
    doc="Out = alpha op(X) . op(Y), batch by batch; a vector is a row on the left and a column on the right",
    source="Fluid matmul_op.cc",
)


def _decompose_matmul_grad(call: Call, build: Any) -> str | None:
    x, y = call.dims("X"), call.dims("Y")
    if not {len(x), len(y)} <= {2, 3}:
        return f"only ranks 2 and 3 are decomposed; X and Y have ranks {len(x)}, {len(y)}"
    tx, ty, alpha = call.attr("transpose_X"), call.attr("transpose_Y"), call.attr("alpha")
    a, b, out_grad = build.input("X"), build.input("Y"), build.input("Out@GRAD")

    def product(slot: str, left: Any, right: Any, t_left: bool, t_right: bool, rank: int) -> None:
        batched = rank == 2 and 3 in (len(x), len(y))
        result = build.temp() if batched else build.output(slot)
        attrs = {"transpose_X": t_left, "transpose_Y": t_right, "alpha": alpha}
        build("matmul", {"X": left, "Y": right}, {"Out": result}, attrs)
        if batched:  # the operand was used by every batch: its gradient is their sum
            build("reduce_sum", {"X": result}, {"Out": build.output(slot)}, {"dim": (0,)})

    if call.has("X@GRAD"):
        if tx:
            product("X@GRAD", b, out_grad, ty, True, len(x))
        else:
            product("X@GRAD", out_grad, b, False, not ty, len(x))
    if call.has("Y@GRAD"):
        if ty:
            product("Y@GRAD", out_grad, a, True, tx, len(y))
        else:
            product("Y@GRAD", a, out_grad, not tx, False, len(y))
    return None


register_op(
    "matmul_grad",
    inputs=grad_inputs("X", "Y", "Out@GRAD"),
    outputs=grad_outputs("X", "Y"),
    attrs=_MATMUL_ATTRS,
    infer=grad_like("X", "Y"),
    decompose=_decompose_matmul_grad,
    doc="X@GRAD = alpha Out@GRAD . op(Y)^T, Y@GRAD = alpha op(X)^T . Out@GRAD, transposed as X and Y are",
)
