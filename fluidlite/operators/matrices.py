"""Products that are said with others: bmm, addmm, kron and fsp."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS, INTS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample
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

_PAIR = {"X": ALL_FLOATS, "Y": ALL_FLOATS}
_READS = ("X", "Y", "Out@GRAD")


def _pair(x: Dims, y: Dims) -> dict[str, Any]:
    return {"X": rand(*x), "Y": rand(*y, seed=1)}


def _zeros(call: Call, build: Any, slot: str) -> None:
    """Write zeros; for what has no elements to compute from."""
    attrs = {"shape": list(call.dims(slot)), "dtype": call.dtype(slot)}
    build("fill_constant", {}, {"Out": build.output(slot)}, attrs)


def _product(build: Any, x: Any, y: Any, out: Any, tx: bool, ty: bool, alpha: float = 1.0) -> Any:
    attrs = {"transpose_X": tx, "transpose_Y": ty, "alpha": alpha}
    return build("matmul", {"X": x, "Y": y}, {"Out": out}, attrs)


# bmm ---------------------------------------------------------------------------------------------------------------


def _infer_bmm(call: Call) -> Inferred:
    x, y = call.dims("X"), call.dims("Y")
    call.need(len(x) == 3, "X", "[batch, rows, width]")
    call.need(len(y) == 3, "Y", "[batch, width, columns]")
    same_dtype(call, "Y", "X")
    if not (agree(x[0], y[0]) and agree(x[2], y[1])):
        call.fail("Y", f"[{x[0]}, {x[2]}, columns]: the batch and the width of X")
    return {"Out": like(call.spec("X"), (x[0] if x[0] >= 0 else y[0], x[1], y[2]))}


def _decompose_bmm(call: Call, build: Any) -> None:
    _product(build, build.input("X"), build.input("Y"), build.output("Out"), False, False)


def _decompose_bmm_grad(call: Call, build: Any) -> None:
    x, y, dout = (build.input(slot) for slot in _READS)
    if call.has("X@GRAD"):
        _product(build, dout, y, build.output("X@GRAD"), False, True)
    if call.has("Y@GRAD"):
        _product(build, x, dout, build.output("Y@GRAD"), True, False)


register_op(
    "bmm",
    inputs=("X", "Y"),
    outputs=("Out",),
    infer=_infer_bmm,
    grad=GradRule("bmm_grad", _READS, ("X", "Y")),
    decompose=_decompose_bmm,
    dtypes=_PAIR,
    reference=lambda inputs, attrs: {"Out": np.einsum("bij,bjk->bik", inputs["X"], inputs["Y"])},
    samples=lambda: [
        Sample(_pair((2, 3, 4), (2, 4, 5)), {}, ("X", "Y"), name="batches", dtypes=EVERY),
        Sample(_pair((1, 1, 1), (1, 1, 1)), {}, ("X", "Y"), name="one"),
        Sample(_pair((3, 17, 20), (3, 20, 18)), {}, name="tiles", dtypes=WIDE),
        Sample(_pair((0, 3, 4), (0, 4, 2)), {}, name="no_batch"),
    ],
    doc="Out[b] = X[b] . Y[b]",
    source="Fluid bmm_op.cc",
)

register_op(
    "bmm_grad",
    inputs=grad_inputs(*_READS),
    outputs=grad_outputs("X", "Y"),
    infer=grad_like("X", "Y"),
    decompose=_decompose_bmm_grad,
    doc="X@GRAD = Out@GRAD . Y^T, Y@GRAD = X^T . Out@GRAD, batch by batch",
)

# addmm -------------------------------------------------------------------------------------------------------------

_ADDMM = (
    Attr("Alpha", "float", 1.0, doc="factor of the product"),
    Attr("Beta", "float", 1.0, doc="factor of Input"),
)
_ADDMM_IN = ("Input", "X", "Y")


def _infer_addmm(call: Call) -> Inferred:
    given, x, y = (call.dims(slot) for slot in _ADDMM_IN)
    for slot in _ADDMM_IN:
        call.need(len(call.dims(slot)) == 2, slot, "a matrix")
        same_dtype(call, slot, "Input")
    if not agree(x[1], y[0]):
        call.fail("Y", f"{x[1]} rows, the width of X")
    if not all(a == 1 or agree(a, b) for a, b in zip(given, (x[0], y[1]), strict=True)):
        call.fail("Input", f"[{x[0]}, {y[1]}], or 1 instead of either")
    return {"Out": Spec.of((x[0], y[1]), call.dtype("Input"))}


def _decompose_addmm(call: Call, build: Any) -> None:
    given, beta = build.input("Input"), call.attr("Beta")
    product = _product(build, build.input("X"), build.input("Y"), build.temp(), False, False, call.attr("Alpha"))
    if beta != 1:
        given = build("scale", {"X": given}, {"Out": build.temp()}, {"scale": beta})
    build("elementwise_add", {"X": product, "Y": given}, {"Out": build.output("Out")})


def _decompose_addmm_grad(call: Call, build: Any) -> None:
    dout, alpha, beta = build.input("Out@GRAD"), call.attr("Alpha"), call.attr("Beta")
    if call.has("X@GRAD"):
        _product(build, dout, build.input("Y"), build.output("X@GRAD"), False, True, alpha)
    if call.has("Y@GRAD"):
        _product(build, build.input("X"), dout, build.output("Y@GRAD"), True, False, alpha)
    if call.has("Input@GRAD"):
        pairs = zip(call.dims("Input"), call.dims("Out@GRAD"), strict=True)
        axes = [i for i, (size, of) in enumerate(pairs) if size != of]
        if axes:
            dout = build("reduce_sum", {"X": dout}, {"Out": build.temp()}, {"dim": axes, "keep_dim": True})
        build("scale", {"X": dout}, {"Out": build.output("Input@GRAD")}, {"scale": beta})


def _samples_addmm() -> list[Sample]:
    def case(name: str, given: Dims, dtypes: tuple[str, ...] = ("float32",), **attrs: float) -> Sample:
        return Sample({"Input": rand(*given, seed=2), **_pair((4, 3), (3, 5))}, attrs, _ADDMM_IN, name=name,
                      dtypes=dtypes)  # fmt: skip

    return [
        case("plain", (4, 5), EVERY),
        case("factors", (4, 5), WIDE, Alpha=2.0, Beta=-0.5),
        case("row", (1, 5), Alpha=0.5),
        case("column", (4, 1), Beta=3.0),
        case("number", (1, 1)),
        Sample({"Input": rand(0, 5), **_pair((0, 3), (3, 5))}, {"Beta": 2.0}, name="no_rows"),
    ]


register_op(
    "addmm",
    inputs=_ADDMM_IN,
    outputs=("Out",),
    attrs=_ADDMM,
    infer=_infer_addmm,
    grad=GradRule("addmm_grad", (*_ADDMM_IN, "Out@GRAD"), _ADDMM_IN),
    decompose=_decompose_addmm,
    dtypes=dict.fromkeys(_ADDMM_IN, ALL_FLOATS),
    reference=lambda inputs, attrs: {
        "Out": attrs["Beta"] * inputs["Input"] + attrs["Alpha"] * np.einsum("ij,jk->ik", inputs["X"], inputs["Y"])
    },
    samples=_samples_addmm,
    doc="Out = Beta Input + Alpha X . Y; a dim 1 of Input is broadcast",
    source="Fluid addmm_op.cc",
)

register_op(
    "addmm_grad",
    inputs=grad_inputs(*_ADDMM_IN, "Out@GRAD", meta=("Input",)),
    outputs=grad_outputs(*_ADDMM_IN),
    attrs=_ADDMM,
    infer=grad_like(*_ADDMM_IN),
    kernel_dtype="Out@GRAD",
    decompose=_decompose_addmm_grad,
    doc="Input@GRAD = Beta Out@GRAD, summed where Input was broadcast; X@GRAD = Alpha Out@GRAD . Y^T, "
    "Y@GRAD = Alpha X^T . Out@GRAD",
)

# kron --------------------------------------------------------------------------------------------------------------


def _ranked(dims: Dims, rank: int) -> Dims:
    return (1,) * (rank - len(dims)) + dims


def _infer_kron(call: Call) -> Inferred:
    x, y = call.dims("X"), call.dims("Y")
    same_dtype(call, "Y", "X")
    call.need(len(x) >= 1, "X", "rank 1 or more")
    call.need(len(y) >= 1, "Y", "rank 1 or more")
    rank = max(len(x), len(y))
    pairs = zip(_ranked(x, rank), _ranked(y, rank), strict=True)
    return {"Out": Spec.of([-1 if -1 in (a, b) else a * b for a, b in pairs], call.dtype("X"))}


def _interleaved(x: Dims, y: Dims) -> tuple[Dims, Dims, Dims]:
    """Return dims under which X and Y broadcast to all pairs of elements, and those of the pairs."""
    rank = max(len(x), len(y))
    pairs = list(zip(_ranked(x, rank), _ranked(y, rank), strict=True))
    return (
        tuple(d for a, _ in pairs for d in (a, 1)), tuple(d for _, b in pairs for d in (1, b)),
        tuple(d for pair in pairs for d in pair),
    )  # fmt: skip


def _reshaped(build: Any, value: Any, dims: Dims, out: Any = None) -> Any:
    return build("reshape2", {"X": value}, {"Out": out if out is not None else build.temp()}, {"shape": list(dims)})


def _decompose_kron(call: Call, build: Any) -> None:
    if 0 in call.dims("Out"):
        _zeros(call, build, "Out")
        return
    x, y, _ = _interleaved(call.dims("X"), call.dims("Y"))
    inputs = {"X": _reshaped(build, build.input("X"), x), "Y": _reshaped(build, build.input("Y"), y)}
    pairs = build("elementwise_mul", inputs, {"Out": build.temp()})
    _reshaped(build, pairs, call.dims("Out"), build.output("Out"))


def _decompose_kron_grad(call: Call, build: Any) -> None:
    wanted = [slot for slot in ("X", "Y") if call.has(f"{slot}@GRAD")]
    if 0 in call.dims("Out@GRAD"):
        for slot in wanted:
            _zeros(call, build, f"{slot}@GRAD")
        return
    x, y, dims = _interleaved(call.dims("X"), call.dims("Y"))
    inputs = {
        "X": _reshaped(build, build.input("X"), x), "Y": _reshaped(build, build.input("Y"), y),
        "Out@GRAD": _reshaped(build, build.input("Out@GRAD"), dims),
    }  # fmt: skip
    made = {f"{slot}@GRAD": build.temp() for slot in wanted}
    build("elementwise_mul_grad", inputs, made)
    for slot in wanted:
        _reshaped(build, made[f"{slot}@GRAD"], call.dims(slot), build.output(f"{slot}@GRAD"))


register_op(
    "kron",
    inputs=("X", "Y"),
    outputs=("Out",),
    infer=_infer_kron,
    grad=GradRule("kron_grad", _READS, ("X", "Y")),
    decompose=_decompose_kron,
    dtypes={slot: (*ALL_FLOATS, *INTS) for slot in "XY"},
    reference=lambda inputs, attrs: {"Out": np.kron(inputs["X"], inputs["Y"])},
    samples=lambda: [
        Sample(_pair((2, 3), (4, 2)), {}, ("X", "Y"), name="matrices", dtypes=EVERY),
        Sample(_pair((3,), (4,)), {}, ("X", "Y"), name="vectors", dtypes=WIDE),
        Sample(_pair((2, 1, 3), (2, 2)), {}, ("X", "Y"), name="ranks"),
        Sample(_pair((2,), (3, 2, 2)), {}, ("X", "Y"), name="small_x"),
        Sample({"X": ints(2, 2), "Y": ints(3, 1, seed=1)}, {}, name="int64", dtypes=("int64",)),
        Sample(_pair((2, 0), (3, 2)), {}, name="empty"),
    ],
    doc="Out[i n + k, j m + l] = X[i, j] Y[k, l], n and m the dims of Y; so in every dim",
    source="Fluid kron_op.cc",
)

register_op(
    "kron_grad",
    inputs=grad_inputs(*_READS),
    outputs=grad_outputs("X", "Y"),
    infer=grad_like("X", "Y"),
    decompose=_decompose_kron_grad,
    doc="X@GRAD = the sums of Out@GRAD Y over the elements of Y, Y@GRAD = those of Out@GRAD X over the elements of X",
    memory="the products before their sums: on a dialect as much as Out, where arrays compute three times",
)

# fsp ---------------------------------------------------------------------------------------------------------------


def _infer_fsp(call: Call) -> Inferred:
    x, y = call.spec("X"), call.dims("Y")
    same_dtype(call, "Y", "X")
    for slot in ("X", "Y"):
        call.need(len(call.dims(slot)) == 4, slot, "[images, channels, height, width]")
    if not (agree(x.dims[0], y[0]) and all_agree(x.dims[2:], y[2:])):
        call.fail("Y", f"images of X's size, [{x.dims[0]}, channels, {x.dims[2]}, {x.dims[3]}]")
    call.need(0 not in x.dims[2:], "X", "images with a pixel or more")
    return {"Out": like(x, (*merged(x.dims[:1], y[:1]), x.dims[1], y[1]))}


def _pixels(call: Call, build: Any) -> tuple[Any, Any, float]:
    """Return X and Y as [images, channels, pixels], and 1 / pixels."""
    flat = {slot: (*call.dims(slot)[:2], prod(call.dims(slot)[2:])) for slot in "XY"}
    x, y = (_reshaped(build, build.input(slot), flat[slot]) for slot in "XY")
    return x, y, 1 / flat["X"][2]


def _decompose_fsp(call: Call, build: Any) -> None:
    if 0 in call.dims("Out"):
        _zeros(call, build, "Out")
        return
    x, y, part = _pixels(call, build)
    _product(build, x, y, build.output("Out"), False, True, part)


def _decompose_fsp_grad(call: Call, build: Any) -> None:
    wanted = [slot for slot in ("X", "Y") if call.has(f"{slot}@GRAD")]
    if 0 in call.dims("Out@GRAD"):
        for slot in wanted:
            _zeros(call, build, f"{slot}@GRAD")
        return
    x, y, part = _pixels(call, build)
    for slot in wanted:
        flat = _product(build, build.input("Out@GRAD"), y if slot == "X" else x, build.temp(), slot == "Y", False, part)
        _reshaped(build, flat, call.dims(slot), build.output(f"{slot}@GRAD"))


register_op(
    "fsp",
    inputs=("X", "Y"),
    outputs=("Out",),
    infer=_infer_fsp,
    grad=GradRule("fsp_grad", _READS, ("X", "Y")),
    decompose=_decompose_fsp,
    dtypes=_PAIR,
    reference=lambda inputs, attrs: {
        "Out": np.einsum("nahw,nbhw->nab", inputs["X"], inputs["Y"]) / prod(inputs["X"].shape[2:])
    },
    samples=lambda: [
        Sample(_pair((2, 3, 4, 5), (2, 4, 4, 5)), {}, ("X", "Y"), name="images", dtypes=EVERY),
        Sample(_pair((1, 1, 1, 1), (1, 2, 1, 1)), {}, ("X", "Y"), name="pixel"),
        Sample(_pair((0, 3, 4, 5), (0, 4, 4, 5)), {}, name="no_images"),
    ],
    doc="Out[n, i, j] = the mean over pixels of X[n, i] Y[n, j]",
    memory="X and Y as matrices of pixels, where the product wants copies of them: up to three times X",
    source="Fluid fsp_op.cc",
)

register_op(
    "fsp_grad",
    inputs=grad_inputs(*_READS),
    outputs=grad_outputs("X", "Y"),
    infer=grad_like("X", "Y"),
    decompose=_decompose_fsp_grad,
    doc="X@GRAD = Out@GRAD . Y / pixels, Y@GRAD = Out@GRAD^T . X / pixels, image by image",
)
