"""Writing at indices: scatter, scatter_nd_add, and gather_nd, which reads where they write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL, ALL_FLOATS, INTS
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
    same_dtype,
    size,
)
from fluidlite.operators.samples import EVERY, WIDE, ints, rand

NUMBERS = (*ALL_FLOATS, *INTS)

# scatter -----------------------------------------------------------------------------------------------------------

_OVERWRITE = (
    Attr(
        "overwrite", "bool", True, doc="rows are replaced, of several the last counts; False: they are set to the sum"
    ),
)


def _infer_scatter(call: Call) -> Inferred:
    x, ids, updates = call.spec("X"), call.dims("Ids"), call.dims("Updates")
    call.need(x.rank >= 1, "X", "rank 1 or more")
    if len(ids) != 1 and not (len(ids) == 2 and agree(ids[1], 1)):
        call.fail("Ids", "[count] or [count, 1]")
    wanted = (ids[0], *x.dims[1:])
    call.need(all_agree(updates, wanted), "Updates", f"{list(wanted)}: a row of X for each of Ids")
    same_dtype(call, "Updates", "X")
    call.need(x.dims[0] != 0 or ids[0] <= 0, "Ids", "no entries, since X has no rows")
    return {"Out": like(x)}


def _reference_scatter(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    out, ids = inputs["X"].copy(), inputs["Ids"].reshape(-1).tolist()
    if not attrs["overwrite"]:
        for row in ids:
            out[row] = 0
    for row, update in zip(ids, inputs["Updates"], strict=True):
        out[row] = update if attrs["overwrite"] else out[row] + update
    return {"Out": out}


def _scatter_samples() -> list[Sample]:
    every = np.array([4, 0, 4, 5])
    add = {"overwrite": False}

    def given(ids: Any, *dims: int) -> dict[str, Any]:
        ids = np.asarray(ids)
        return {"X": rand(*dims), "Ids": ids, "Updates": rand(ids.shape[0], *dims[1:], seed=3)}

    both = ("X", "Updates")
    return [
        Sample(given([4, 0, 5], 6, 3), {}, both, name="rows", dtypes=EVERY),
        Sample(given(every, 6, 3), {}, both, name="last_wins", dtypes=EVERY),
        Sample(given(every, 6, 3), add, both, name="added", dtypes=EVERY),
        Sample(given([[2], [1], [2]], 4), add, both, name="column", dtypes=WIDE),
        Sample(given(np.array([1, 0, 1], "int32"), 3, 2, 20), {}, both, name="rank3_int32"),
        Sample({"X": ints(4, 2), "Ids": np.array([1, 1]), "Updates": ints(2, 2, seed=2)}, add, name="int64",
               dtypes=("int64",)),
        Sample(given(ints(0), 4, 2), {}, name="none"),
        Sample(given(ints(0), 4, 2), add, name="none_added"),
        Sample(given([1, 2], 4, 0), {}, name="empty_rows"),
    ]  # fmt: skip


register_op(
    "scatter",
    inputs=("X", "Ids", "Updates"),
    outputs=("Out",),
    attrs=_OVERWRITE,
    infer=_infer_scatter,
    grad=GradRule("scatter_grad", ("Ids", "Updates", "Out@GRAD"), ("X", "Updates")),
    kernel_dtype="X",
    dtypes={"X": NUMBERS, "Ids": INTS},
    reference=_reference_scatter,
    samples=_scatter_samples,
    doc="Out = X with Out[Ids[i]] = Updates[i], of equal Ids the last; overwrite=False: the sum of those of equal Ids; "
    "an id out of range is an OutOfRangeError",
    source="Fluid scatter_op.cc",
)


def _infer_scatter_grad(call: Call) -> Inferred:
    return {"X@GRAD": like(call.spec("Out@GRAD")), "Updates@GRAD": like(call.spec("Updates"))}


register_op(
    "scatter_grad",
    inputs=grad_inputs("Ids", "Updates", "Out@GRAD", meta=("Updates",)),
    outputs=grad_outputs("X", "Updates"),
    attrs=_OVERWRITE,
    infer=_infer_scatter_grad,
    kernel_dtype="Out@GRAD",
    doc="X@GRAD = Out@GRAD, 0 in the rows of Ids; Updates@GRAD[i] = Out@GRAD[Ids[i]], 0 where a later one overwrote "
    "it; takes 4 bytes of temporary memory a row of X, also where only Updates@GRAD is wanted",
)

# gather_nd ---------------------------------------------------------------------------------------------------------


def _depth(call: Call) -> int:
    """How many dims of X an entry of Index names: -1 where that is unknown."""
    x, index = call.dims("X"), call.dims("Index")
    call.need(len(index) >= 1, "Index", "[..., depth]")
    call.need(index[-1] <= len(x), "Index", f"at most {len(x)} as its last dim: an index for each dim of X")
    return index[-1]


def _infer_gather_nd(call: Call) -> Inferred:
    depth, x, index = _depth(call), call.dims("X"), call.dims("Index")
    if depth < 0:
        call.fail("Index", "a known last dim: the rank of Out depends on it")
    return {"Out": Spec.of((*index[:-1], *x[depth:]), call.dtype("X"))}


def _reference_gather_nd(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, index = inputs["X"], inputs["Index"]
    out = np.zeros((*index.shape[:-1], *x.shape[index.shape[-1] :]), x.dtype)
    for where in np.ndindex(index.shape[:-1]):
        out[where] = x[tuple(index[where])]
    return {"Out": out}


register_op(
    "gather_nd",
    inputs=("X", "Index"),
    outputs=("Out",),
    infer=_infer_gather_nd,
    grad=GradRule("gather_nd_grad", ("X", "Index", "Out@GRAD"), ("X",)),
    kernel_dtype="X",
    dtypes={"X": ALL, "Index": INTS},
    reference=_reference_gather_nd,
    samples=lambda: [
        Sample({"X": rand(5, 4), "Index": np.array([[1, 2], [0, 3], [1, 2]])}, {}, ("X",), name="elements",
               dtypes=EVERY),
        Sample({"X": rand(5, 3), "Index": np.array([[4], [0], [4]])}, {}, ("X",), name="rows", dtypes=EVERY),
        Sample({"X": rand(2, 3, 4), "Index": np.array([[[1, 2]], [[0, 1]]], "int32")}, {}, ("X",), name="rank3_int32"),
        Sample({"X": rand(3, 2), "Index": np.array([2])}, {}, ("X",), name="one_entry"),
        Sample({"X": rand(3, 2), "Index": ints(2, 0)}, {}, ("X",), name="depth0"),
        Sample({"X": ints(3, 2), "Index": np.array([[2, 1]])}, {}, name="int64", dtypes=("int64",)),
        Sample({"X": rand(3, 2), "Index": ints(0, 2)}, {}, name="none"),
    ],
    doc="Out[i] = X[Index[i, 0], Index[i, 1], ...]; an index out of range is an OutOfRangeError",
    memory="where arrays compute, the place of each row that is read, and a dim of Index: 16 bytes a row",
    source="Fluid gather_nd_op.cc",
)  # fmt: skip

register_op(
    "gather_nd_grad",
    inputs=grad_inputs("X", "Index", "Out@GRAD", meta=("X",)),
    outputs=grad_outputs("X"),
    infer=grad_like("X"),
    kernel_dtype="Out@GRAD",
    doc="X@GRAD = 0; X@GRAD[Index[i, 0], Index[i, 1], ...] += Out@GRAD[i]",
)

# scatter_nd_add ----------------------------------------------------------------------------------------------------


def _infer_scatter_nd_add(call: Call) -> Inferred:
    depth, x, index, updates = _depth(call), call.spec("X"), call.dims("Index"), call.dims("Updates")
    call.need(len(index) >= 2, "Index", "[..., depth] of rank 2 or more")
    if depth >= 0:
        wanted = (*index[:-1], *x.dims[depth:])
        call.need(all_agree(updates, wanted), "Updates", f"{list(wanted)}: a part of X for each entry of Index")
    same_dtype(call, "Updates", "X")
    if depth >= 0 and 0 in x.dims[:depth]:
        call.need(size(index[:-1]) <= 0, "Index", f"no entries, since X ({call.shown('X')}) has none of what they name")
    return {"Out": Spec.of(x.dims, x.dtype)}


def _reference_scatter_nd_add(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    out, index = inputs["X"].copy(), inputs["Index"]
    for where in np.ndindex(index.shape[:-1]):
        out[tuple(index[where])] += inputs["Updates"][where]
    return {"Out": out}


def _scatter_nd_samples() -> list[Sample]:
    elements = {"X": rand(5, 4), "Index": np.array([[1, 2], [0, 3], [1, 2]]), "Updates": rand(3, seed=3)}
    rows = {"X": rand(5, 3), "Index": np.array([[4], [0], [4]]), "Updates": rand(3, 3, seed=3)}
    inner = {"X": rand(2, 3, 4), "Index": np.array([[[1, 2]], [[0, 1]]], "int32"), "Updates": rand(2, 1, 4, seed=3)}
    both = ("X", "Updates")
    return [
        Sample(elements, {}, both, name="elements", dtypes=EVERY),
        Sample(rows, {}, both, name="rows", dtypes=EVERY),
        Sample(inner, {}, both, name="rank3_int32"),
        Sample({"X": rand(2, 2), "Index": ints(2, 0), "Updates": rand(2, 2, 2, seed=3)}, {}, both, name="depth0"),
        Sample({"X": ints(4), "Index": np.array([[2], [2]]), "Updates": ints(2, seed=2)}, {}, name="int64",
               dtypes=("int64",)),
        Sample({"X": rand(3), "Index": ints(0, 1), "Updates": rand(0)}, {}, name="none"),
    ]  # fmt: skip


register_op(
    "scatter_nd_add",
    inputs=("X", "Index", "Updates"),
    outputs=("Out",),
    infer=_infer_scatter_nd_add,
    grad=GradRule("scatter_nd_add_grad", ("Index", "Updates", "Out@GRAD"), ("X", "Updates")),
    kernel_dtype="X",
    dtypes={"X": NUMBERS, "Index": INTS},
    reference=_reference_scatter_nd_add,
    samples=_scatter_nd_samples,
    doc="Out = X; Out[Index[i, 0], Index[i, 1], ...] += Updates[i], in this order; "
    "an index out of range is an OutOfRangeError",
    source="Fluid scatter_nd_add_op.cc",
)


def _decompose_scatter_nd_add_grad(call: Call, build: Any) -> None:
    dout = build.input("Out@GRAD")
    if call.has("X@GRAD"):
        build("assign", {"X": dout}, {"Out": build.output("X@GRAD")})
    if call.has("Updates@GRAD"):
        build("gather_nd", {"X": dout, "Index": build.input("Index")}, {"Out": build.output("Updates@GRAD")})


register_op(
    "scatter_nd_add_grad",
    inputs=grad_inputs("Index", "Updates", "Out@GRAD", meta=("Updates",)),
    outputs=grad_outputs("X", "Updates"),
    infer=_infer_scatter_grad,
    decompose=_decompose_scatter_nd_add_grad,
    kernel_dtype="Out@GRAD",
    doc="X@GRAD = Out@GRAD; Updates@GRAD[i] = Out@GRAD[Index[i, 0], Index[i, 1], ...]",
)
