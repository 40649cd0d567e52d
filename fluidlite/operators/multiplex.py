"""Rows chosen from several tensors: multiplex."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL, INTS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import GradRule, Sample, Slot
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Spec
from fluidlite.operators.inference import Inferred, agree, all_agree, like, merged
from fluidlite.operators.samples import EVERY, WIDE, ints, rand


def _infer_multiplex(call: Call) -> Inferred:
    specs, ids = call.specs("X"), call.dims("Ids")
    call.need(len(specs) >= 2, "X", "two tensors or more")
    call.need(len(ids) == 2 and agree(ids[1], 1), "Ids", "[rows, 1]")
    known = specs[0].dims
    call.need(len(known) >= 2, "X", "tensors of rank 2 or more")
    for spec in specs:
        if spec.dtype != specs[0].dtype:
            call.fail_dtype("X", f"{specs[0].dtype} in all of them")
        if not all_agree(known, spec.dims):
            call.fail("X", "tensors of equal dims")
        known = merged(known, spec.dims)
    call.need(agree(ids[0], known[0]), "Ids", f"{known[0]} rows, as X")
    return {"Out": Spec.of(known, specs[0].dtype)}


def _samples() -> list[Sample]:
    def x(count: int, *dims: int) -> list[Any]:
        return [rand(*dims, seed=i) for i in range(count)]

    return [
        Sample({"Ids": np.asarray([[1], [0], [1]], "int32"), "X": x(2, 3, 4)}, {}, ("X",), name="two", dtypes=EVERY),
        Sample({"Ids": ints(5, 1, high=4, dtype="int32"), "X": x(4, 5, 2, 3)}, {}, ("X",), name="four", dtypes=WIDE),
        Sample({"Ids": ints(40, 1, high=3), "X": x(3, 40, 2100)}, {}, name="long_int64"),
        Sample({"Ids": ints(4, 1, high=2), "X": [ints(4, 2), ints(4, 2, seed=1)]}, {}, name="int64",
               dtypes=("int64",)),
        Sample({"Ids": ints(0, 1, dtype="int32"), "X": x(2, 0, 4)}, {}, name="empty"),
        Sample({"Ids": ints(3, 1, high=2, dtype="int32"), "X": x(2, 3, 0)}, {}, name="empty_rows"),
    ]  # fmt: skip


register_op(
    "multiplex",
    inputs=(Slot("Ids", doc="for each row, which X it comes from"), Slot("X", duplicable=True)),
    outputs=("Out",),
    infer=_infer_multiplex,
    grad=GradRule("multiplex_grad", ("Ids", "X", "Out@GRAD"), ("X",)),
    kernel_dtype="X",
    dtypes={"Ids": INTS, "X": ALL},
    reference=lambda inputs, attrs: {"Out": np.reshape(
        [inputs["X"][k][i] for i, k in enumerate(inputs["Ids"].reshape(-1))], inputs["X"][0].shape
    ).astype(inputs["X"][0].dtype)},
    samples=_samples,
    doc="Out[i] = X[Ids[i]][i]; an id outside 0 <= id < number of X is an OutOfRangeError",
    source="Fluid multiplex_op.cc",
)  # fmt: skip

register_op(
    "multiplex_grad",
    inputs=(Slot("Ids"), Slot("X", duplicable=True, metadata_only=True), Slot("Out@GRAD")),
    outputs=(Slot("X@GRAD", duplicable=True, dispensable=True),),
    infer=lambda call: {"X@GRAD": [like(spec) for spec in call.specs("X")]},
    kernel_dtype="Out@GRAD",
    doc="X@GRAD[k][i] = Out@GRAD[i] where Ids[i] is k, else 0",
)
