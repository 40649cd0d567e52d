"""Products of rows: cos_sim, dot, bilinear_tensor_product and conv_shift."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS, INTS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import GradRule, Sample, Slot
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Dims, Spec
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
)
from fluidlite.operators.samples import EVERY, WIDE, ints, rand
from fluidlite.operators.scalar_op import scalar_op

_PAIR = {"X": ALL_FLOATS, "Y": ALL_FLOATS}


def _pair(x: tuple[int, ...], y: tuple[int, ...]) -> dict[str, Any]:
    return {"X": rand(*x), "Y": rand(*y, seed=1)}


# cos_sim -----------------------------------------------------------------------------------------------------------


def _infer_cos(call: Call) -> Inferred:
    x, y = call.spec("X"), call.dims("Y")
    same_dtype(call, "Y", "X")
    call.need(x.rank >= 2, "X", "[rows, width], or more dims")
    if len(y) != x.rank or not all_agree(x.dims[1:], y[1:]):
        call.fail("Y", f"rows of the dims that those of X have, {list(x.dims[1:])}")
    if y[0] != 1 and not agree(x.dims[0], y[0]):
        call.fail("Y", f"one row, or as many as X ({x.dims[0]})")
    rows = x.dims[0]
    return {
        "Out": like(x, (rows, 1)),
        "XNorm": Spec.of((rows, 1), x.dtype),
        "YNorm": Spec.of((y[0], 1), x.dtype),
    }


def _reference_cos(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, y = (inputs[slot].reshape(inputs[slot].shape[0], int(np.prod(inputs[slot].shape[1:]))) for slot in "XY")
    norms = [np.linalg.norm(a, axis=1, keepdims=True) for a in (x, y)]
    cosine = [[a @ y[i % len(y)] / norms[0][i, 0] / norms[1][i % len(y), 0]] for i, a in enumerate(x)]
    return {"Out": np.asarray(cosine).reshape(-1, 1), "XNorm": norms[0], "YNorm": norms[1]}


_COS_READS = ("X", "Y", "Out", "XNorm", "YNorm", "Out@GRAD")

register_op(
    "cos_sim",
    inputs=("X", "Y"),
    outputs=(
        "Out",
        Slot("XNorm", intermediate=True, content="the L2 norms of the rows of X, [rows, 1]"),
        Slot("YNorm", intermediate=True, content="the L2 norms of the rows of Y"),
    ),
    infer=_infer_cos,
    grad=GradRule("cos_sim_grad", _COS_READS, ("X", "Y")),
    dtypes=_PAIR,
    reference=_reference_cos,
    samples=lambda: [
        Sample(_pair((5, 7), (5, 7)), {}, ("X", "Y"), name="rows", dtypes=EVERY),
        Sample(_pair((5, 7), (1, 7)), {}, ("X", "Y"), name="one_row", dtypes=EVERY),
        Sample(_pair((3, 2, 4), (3, 2, 4)), {}, ("X", "Y"), name="rank3"),
        Sample(_pair((3, 2, 4), (1, 2, 4)), {}, ("X", "Y"), name="rank3_one_row"),
        Sample(_pair((1, 3), (1, 3)), {}, ("X", "Y"), name="one"),
        Sample(_pair((70, 1200), (70, 1200)), {}, name="large", dtypes=WIDE),
        Sample(_pair((70, 1200), (1, 1200)), {}, name="large_one_row", dtypes=WIDE),
        Sample(_pair((0, 3), (1, 3)), {}, name="empty"),
    ],
    doc="Out = the cosine of the angle between the rows of X and Y, X . Y / (|X| |Y|); one row of Y serves all of X",
    source="Fluid cos_sim_op.cc",
)

register_op(
    "cos_sim_grad",
    inputs=grad_inputs(*_COS_READS),
    outputs=grad_outputs("X", "Y"),
    infer=grad_like("X", "Y"),
    kernel_dtype="Out@GRAD",
    doc="X@GRAD = Out@GRAD (Y / (|X| |Y|) - Out X / |X|^2), and so of Y, summed where one row serves all",
)

# dot ---------------------------------------------------------------------------------------------------------------


def _infer_dot(call: Call) -> Inferred:
    x, y = call.spec("X"), call.dims("Y")
    same_dtype(call, "Y", "X")
    call.need(x.rank in (1, 2), "X", "[width] or [rows, width]")
    call.need(all_agree(x.dims, y), "Y", f"the dims of X, {list(x.dims)}")
    return {"Out": like(x, (*merged(x.dims, y)[:-1], 1))}


def _placed_dot(call: Call) -> Mapping[str, Dims]:
    dims = call.dims("X")
    out = (*dims[:-1], 1)
    return {"Out": out, "Out@GRAD": out}


scalar_op(
    "dot", lambda x, y: x * y, grad=lambda x, y, dout: (dout * y, dout * x), infer=_infer_dot, placed=_placed_dot,
    dtypes={slot: (*ALL_FLOATS, *INTS) for slot in "XY"}, differentiable=("X", "Y"), broadcasts=True,
    reference=lambda inputs, attrs: {"Out": np.einsum("...i,...i->...", inputs["X"], inputs["Y"])[..., None]},
    samples=lambda: [
        Sample(_pair((5, 7), (5, 7)), {}, ("X", "Y"), name="rows", dtypes=EVERY),
        Sample(_pair((6,), (6,)), {}, ("X", "Y"), name="vectors"),
        Sample(_pair((1,), (1,)), {}, ("X", "Y"), name="one"),
        Sample({"X": ints(3, 4), "Y": ints(3, 4, seed=1)}, {}, name="int64", dtypes=("int64",)),
        Sample(_pair((0, 3), (0, 3)), {}, name="empty"),
    ],
    doc="Out = X . Y of each row", memory="where arrays compute, the products before their sum: as much as X",
    source="Fluid dot_op.cc",
)  # fmt: skip

# bilinear_tensor_product -------------------------------------------------------------------------------------------


def _infer_bilinear(call: Call) -> Inferred:
    x, y, weight = call.dims("X"), call.dims("Y"), call.dims("Weight")
    call.need(len(x) == 2, "X", "[rows, width]")
    call.need(len(y) == 2, "Y", "[rows, width]")
    call.need(len(weight) == 3, "Weight", "[size, width of X, width of Y]")
    for slot in ("Y", "Weight", *(("Bias",) if call.has("Bias") else ())):
        same_dtype(call, slot, "X")
    if not agree(x[0], y[0]):
        call.fail("Y", f"as many rows as X, {x[0]}")
    if not all_agree(weight[1:], (x[1], y[1])):
        call.fail("Weight", f"[size, {x[1]}, {y[1]}]: the widths of X and Y")
    if call.has("Bias") and not all_agree(call.dims("Bias"), (1, weight[0])):
        call.fail("Bias", f"[1, {weight[0]}]")
    return {"Out": like(call.spec("X"), (x[0] if x[0] >= 0 else y[0], weight[0]))}


def _reference_bilinear(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    out = np.einsum("bm,imn,bn->bi", inputs["X"], inputs["Weight"], inputs["Y"])
    return {"Out": out + inputs["Bias"] if "Bias" in inputs else out}


def _samples_bilinear() -> list[Sample]:
    def case(name: str, rows: int, m: int, n: int, size: int, bias: bool, dtypes: Any, check: bool = True) -> Sample:
        inputs = {**_pair((rows, m), (rows, n)), "Weight": rand(size, m, n, seed=2)}
        if bias:
            inputs["Bias"] = rand(1, size, seed=3)
        return Sample(inputs, {}, tuple(inputs) if check else (), name=name, dtypes=dtypes)

    return [
        case("bias", 5, 4, 3, 2, True, EVERY), case("plain", 3, 2, 5, 4, False, WIDE),
        case("one", 1, 1, 1, 1, True, WIDE), case("tiles", 9, 21, 35, 3, True, WIDE, check=False),
        case("no_rows", 0, 2, 3, 4, True, WIDE, check=False),
    ]  # fmt: skip


_BILINEAR = ("X", "Y", "Weight")

register_op(
    "bilinear_tensor_product",
    inputs=(*_BILINEAR, Slot("Bias", dispensable=True)),
    outputs=("Out",),
    infer=_infer_bilinear,
    grad=GradRule("bilinear_tensor_product_grad", (*_BILINEAR, "Bias", "Out@GRAD"), (*_BILINEAR, "Bias")),
    dtypes=dict.fromkeys((*_BILINEAR, "Bias"), ALL_FLOATS),
    reference=_reference_bilinear,
    samples=_samples_bilinear,
    doc="Out[:, i] = X Weight[i] Y^T of each row, + Bias; on arrays it takes memory for X Weight[i]",
    source="Fluid bilinear_tensor_product_op.cc",
)

register_op(
    "bilinear_tensor_product_grad",
    inputs=(
        *grad_inputs(*_BILINEAR),
        Slot("Bias", dispensable=True, metadata_only=True),
        *grad_inputs("Out@GRAD"),
    ),
    outputs=grad_outputs(*_BILINEAR, "Bias"),
    infer=lambda call: {
        f"{slot}@GRAD": like(call.spec(slot)) for slot in (*_BILINEAR, *(("Bias",) if call.has("Bias") else ()))
    },
    kernel_dtype="Out@GRAD",
    doc="the sums over i: X@GRAD = Out@GRAD[:, i] Y Weight[i]^T, Y@GRAD = Out@GRAD[:, i] X Weight[i]; "
    "Weight@GRAD[i] = X^T Out@GRAD[:, i] Y; Bias@GRAD = the sum of Out@GRAD over rows",
)

# conv_shift --------------------------------------------------------------------------------------------------------


def _infer_shift(call: Call) -> Inferred:
    x, y = call.dims("X"), call.dims("Y")
    same_dtype(call, "Y", "X")
    call.need(len(x) == 2, "X", "[rows, width]")
    call.need(len(y) == 2, "Y", "[rows, filter width]")
    if not agree(x[0], y[0]):
        call.fail("Y", f"as many rows as X, {x[0]}")
    if y[1] >= 0 and y[1] % 2 == 0:
        call.fail("Y", "an odd number of columns: the filter has a middle")
    if 0 <= x[1] < y[1]:
        call.fail("Y", f"at most the {x[1]} columns of X")
    return {"Out": like(call.spec("X"))}


def _reference_shift(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, y = inputs["X"], inputs["Y"]
    out, half = np.zeros_like(x), y.shape[1] // 2
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[i, j] = sum(x[i, (j + k - half) % x.shape[1]] * y[i, k] for k in range(y.shape[1]))
    return {"Out": out}


register_op(
    "conv_shift",
    inputs=("X", "Y"),
    outputs=("Out",),
    infer=_infer_shift,
    grad=GradRule("conv_shift_grad", ("X", "Y", "Out@GRAD"), ("X", "Y")),
    dtypes=_PAIR,
    reference=_reference_shift,
    samples=lambda: [
        Sample(_pair((4, 7), (4, 3)), {}, ("X", "Y"), name="three", dtypes=EVERY),
        Sample(_pair((2, 5), (2, 5)), {}, ("X", "Y"), name="whole"),
        Sample(_pair((3, 4), (3, 1)), {}, ("X", "Y"), name="single"),
        Sample(_pair((1, 1), (1, 1)), {}, ("X", "Y"), name="one"),
        Sample(_pair((3, 50), (3, 19)), {}, ("X", "Y"), name="wide"),
        Sample(_pair((0, 4), (0, 3)), {}, name="no_rows"),
    ],
    doc="Out[i, j] = the sum over k of X[i, j + k - half] Y[i, k], half the filter's width // 2; X goes round",
    source="Fluid conv_shift_op.cc",
)

register_op(
    "conv_shift_grad",
    inputs=grad_inputs("X", "Y", "Out@GRAD"),
    outputs=grad_outputs("X", "Y"),
    infer=grad_like("X", "Y"),
    kernel_dtype="Out@GRAD",
    doc="X@GRAD = Out@GRAD shifted the other way; Y@GRAD[i, k] = the sum over j of X[i, j + k - half] Out@GRAD[i, j]",
)
