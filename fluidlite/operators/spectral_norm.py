"""spectral_norm: a weight divided by its largest singular value, which a few power iterations estimate."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from fluidlite.base.dtypes import FLOATS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample
from fluidlite.framework.registry import register_op
from fluidlite.operators.inference import Inferred, agree, all_agree, grad_inputs, grad_outputs, like, same_dtype, size
from fluidlite.operators.samples import WIDE, rand

_ATTRS = (
    Attr("dim", "int", 0, choices=(0, 1), doc="the dim of Weight that is the rows of the matrix; the others are its "
         "columns"),
    Attr("power_iters", "int", 1, minimum=0, maximum=1000, doc="how often U and V are brought nearer to the singular "
         "vectors; 0: they are taken as they are"),
    Attr("eps", "float", 1e-12, doc="is added to the lengths that divide U and V"),
)  # fmt: skip


def _infer(call: Call) -> Inferred:
    weight = call.spec("Weight")
    call.need(2 <= weight.rank <= 5, "Weight", "a rank of 2 to 5")
    call.need(0 not in weight.dims, "Weight", "at least one element: an empty matrix has no singular value")
    rows = weight.dims[call.attr("dim")]
    columns = size([d for i, d in enumerate(weight.dims) if i != call.attr("dim")])
    for slot, count, what in (("U", rows, "rows"), ("V", columns, "columns")):
        same_dtype(call, slot, "Weight")
        if not agree(size(call.dims(slot)), count):
            call.fail(slot, f"{count} numbers, as many as the matrix has {what} (Weight is {call.shown('Weight')})")
    return {"Out": like(weight)}


def _estimate(call: Call, build: Any) -> tuple[Any, Any, Any]:
    """The singular value as [1], and its vectors as [1, rows] and [1, columns].

    Weight is taken as [before, rows, after]: where ``before`` is not 1 its matrix is a transposed copy.
    """
    dims, dim = call.dims("Weight"), call.attr("dim")
    before, rows, after = prod(dims[:dim]), dims[dim], prod(dims[dim + 1 :])
    columns = before * after

    def shaped(value: Any, *to: int) -> Any:
        return value if value.dims == to else build("reshape2", {"X": value}, {"Out": None}, {"shape": to})

    matrix = build.input("Weight")
    if before != 1:
        matrix = build("transpose2", {"X": shaped(matrix, before, rows, after)}, {"Out": None}, {"axis": [1, 0, 2]})
    matrix = shaped(matrix, rows, columns)
    u, v = shaped(build.input("U"), 1, rows), shaped(build.input("V"), 1, columns)

    def product(line: Any, transposed: bool) -> Any:
        return build("matmul", {"X": line, "Y": matrix}, {"Out": None}, {"transpose_Y": transposed})

    def unit(line: Any) -> Any:
        length = build("sqrt", {"X": build("squared_l2_norm", {"X": line}, {"Out": None})}, {"Out": None})
        length = build("scale", {"X": length}, {"Out": None}, {"scale": 1.0, "bias": call.attr("eps")})
        return build("elementwise_div", {"X": line, "Y": length}, {"Out": None})

    for _ in range(call.attr("power_iters")):
        v = unit(product(u, False))
        u = unit(product(v, True))
    sigma = build("matmul", {"X": product(v, True), "Y": u}, {"Out": None}, {"transpose_Y": True})
    return shaped(sigma, 1), u, v


def _decompose(call: Call, build: Any) -> None:
    sigma, _, _ = _estimate(call, build)
    build("elementwise_div", {"X": build.input("Weight"), "Y": sigma}, {"Out": build.output("Out")})


def _decompose_grad(call: Call, build: Any) -> None:
    dims, dim = call.dims("Weight"), call.attr("dim")
    before, rows, after = prod(dims[:dim]), dims[dim], prod(dims[dim + 1 :])
    sigma, u, v = _estimate(call, build)

    def shaped(value: Any, *to: int) -> Any:
        return value if value.dims == to else build("reshape2", {"X": value}, {"Out": None}, {"shape": to})

    given = build.input("Out@GRAD")
    rows_of = (dims[0], prod(dims[1:]))
    share = build("dot", {"X": shaped(given, *rows_of), "Y": shaped(build.input("Weight"), *rows_of)}, {"Out": None})
    share = build("reduce_sum", {"X": share}, {"Out": None}, {"reduce_all": True})
    share = build("elementwise_div", {"X": share, "Y": sigma}, {"Out": None})
    u = build("elementwise_mul", {"X": u, "Y": share}, {"Out": None})
    lines = {"X": shaped(u, 1, rows, 1), "Y": shaped(v, before, 1, after)}
    outer = shaped(build("elementwise_mul", lines, {"Out": None}), *dims)
    rest = build("elementwise_sub", {"X": given, "Y": outer}, {"Out": None})
    build("elementwise_div", {"X": rest, "Y": sigma}, {"Out": build.output("Weight@GRAD")})


def _iterated(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> tuple[Any, Any, Any, Any]:
    """The matrix, its singular value and vectors, in NumPy."""
    matrix = np.moveaxis(inputs["Weight"], attrs["dim"], 0)
    matrix = matrix.reshape(len(matrix), -1)
    u, v = inputs["U"].reshape(-1), inputs["V"].reshape(-1)
    for _ in range(attrs["power_iters"]):
        v = matrix.T @ u
        v = v / (np.sqrt(v @ v) + attrs["eps"])
        u = matrix @ v
        u = u / (np.sqrt(u @ u) + attrs["eps"])
    return matrix, u @ matrix @ v, u, v


def _reference(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {"Out": inputs["Weight"] / _iterated(inputs, attrs)[1]}


def _reference_grad(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    _, sigma, u, v = _iterated(inputs, attrs)
    weight, given = inputs["Weight"], inputs["Out@GRAD"]
    others = [d for i, d in enumerate(weight.shape) if i != attrs["dim"]]
    of_sigma = np.moveaxis(np.outer(u, v).reshape(len(u), *others), 0, attrs["dim"])
    return {"Weight@GRAD": given / sigma - np.sum(given * weight) / sigma**2 * of_sigma}


def _inputs(dims: tuple[int, ...], dim: int, *, columns: bool = False) -> dict[str, Any]:
    """Vectors near the weight's own, so that the singular value is not small."""
    weight = rand(*dims, low=0.2)
    rows, tail = dims[dim], (1,) * columns
    u, v = rand(rows, *tail, low=0.2, seed=1), rand(prod(dims) // rows, *tail, low=0.2, seed=2)
    return {"Weight": weight, "U": u, "V": v}


_GRAD = ("Weight",)
_AS_GIVEN: dict[str, Any] = {"power_iters": 0}

register_op(
    "spectral_norm",
    inputs=("Weight", "U", "V"),
    outputs=("Out",),
    attrs=_ATTRS,
    infer=_infer,
    grad=GradRule("spectral_norm_grad", ("Weight", "U", "V", "Out@GRAD"), ("Weight",)),
    decompose=_decompose,
    dtypes={"Weight": FLOATS},
    reference=_reference,
    samples=lambda: [
        Sample(_inputs((5, 7), 0), {}, name="rows", dtypes=WIDE),
        Sample(_inputs((5, 7), 1), {"dim": 1}, name="columns", dtypes=WIDE),
        Sample(_inputs((5, 7), 0), _AS_GIVEN, _GRAD, name="as_given", dtypes=WIDE),
        Sample(_inputs((4, 3, 2, 3), 1), {"dim": 1, **_AS_GIVEN}, _GRAD, name="filter_as_given"),
        Sample(_inputs((4, 3, 2, 3), 1), {"dim": 1, "power_iters": 3}, name="filter"),
        Sample(_inputs((2, 3, 4), 0), {"power_iters": 2, "eps": 0.5}, name="eps"),
        Sample(_inputs((2, 3, 2, 1, 2), 1), {"dim": 1}, name="rank5"),
        Sample(_inputs((5, 7), 0, columns=True), {}, name="vectors_as_columns"),
        Sample(_inputs((1, 1), 0), {}, name="one"),
    ],
    doc="Out = Weight / s with s = U^T W V, W being Weight as a matrix, after power_iters times V = W^T U / |W^T U| "
    "and U = W V / |W V|",
    source="Fluid spectral_norm_op.cc",
)


def _infer_grad(call: Call) -> Inferred:
    made = _infer(call)["Out"]
    same_dtype(call, "Out@GRAD", "Weight")
    if not all_agree(call.dims("Out@GRAD"), call.dims("Weight")):
        call.fail("Out@GRAD", f"{list(call.dims('Weight'))}, the dims of Weight")
    return {"Weight@GRAD": made}


register_op(
    "spectral_norm_grad",
    inputs=grad_inputs("Weight", "U", "V", "Out@GRAD"),
    outputs=grad_outputs("Weight"),
    attrs=_ATTRS,
    infer=_infer_grad,
    decompose=_decompose_grad,
    dtypes={"Weight": FLOATS},
    memory="the product of U and V, and Out@GRAD less it: twice as much as Weight",
    reference=_reference_grad,
    samples=lambda: [
        Sample({**_inputs((5, 7), 0), "Out@GRAD": rand(5, 7, seed=3)}, {}, name="rows", dtypes=WIDE),
        Sample({**_inputs((5, 7), 1), "Out@GRAD": rand(5, 7, seed=3)}, {"dim": 1}, name="columns"),
        Sample({**_inputs((4, 3, 2), 1), "Out@GRAD": rand(4, 3, 2, seed=3)}, {"dim": 1, "power_iters": 3}, name="more"),
        Sample({**_inputs((4, 3, 2), 0), "Out@GRAD": rand(4, 3, 2, seed=3)}, {"eps": 0.5}, name="eps"),
    ],
    doc="Weight@GRAD = (Out@GRAD - sum(Out@GRAD Weight) / s U V^T) / s, U and V being constants. Fluid's kernel gives "
    "this where all of Out@GRAD is one number, and is wrong elsewhere",
    source="Fluid spectral_norm_op.cc",
)
