"""gather_tree: what a beam search has chosen, read back from the last step to the first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import INTS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Sample, Slot
from fluidlite.framework.registry import register_op
from fluidlite.operators.inference import Inferred, all_agree, like, merged, same_dtype
from fluidlite.operators.samples import ints


def _infer(call: Call) -> Inferred:
    ids, parents = call.spec("Ids"), call.dims("Parents")
    call.need(ids.rank == 3, "Ids", "a rank of 3: steps, batch and beams")
    same_dtype(call, "Parents", "Ids")
    if not all_agree(ids.dims, parents):
        call.fail("Parents", f"{list(ids.dims)}, the dims of Ids")
    return {"Out": like(ids, merged(ids.dims, parents))}


def _reference(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    ids, parents = inputs["Ids"], inputs["Parents"]
    out = np.zeros_like(ids)
    for sample, beam in np.ndindex(*ids.shape[1:]):
        at = beam
        for step in reversed(range(ids.shape[0])):
            out[step, sample, beam] = ids[step, sample, at]
            at = parents[step, sample, at]
    return {"Out": out}


def _tree(*dims: int, dtype: str = "int64") -> dict[str, Any]:
    return {"Ids": ints(*dims, high=100, dtype=dtype), "Parents": ints(*dims, high=dims[2] or 1, seed=1, dtype=dtype)}


register_op(
    "gather_tree",
    inputs=(
        Slot("Ids", doc="what each beam chose at each step, [steps, batch, beams]"),
        Slot("Parents", doc="the beam of the step before that each beam goes on from; those of the first are not read"),
    ),
    outputs=("Out",),
    infer=_infer,
    dtypes={"Ids": INTS, "Parents": INTS},
    reference=_reference,
    samples=lambda: [
        Sample(_tree(5, 2, 3), {}, name="int64", dtypes=("int64",)),
        Sample(_tree(3, 4, 2, dtype="int32"), {}, name="int32", dtypes=("int32",)),
        Sample(_tree(1, 2, 3), {}, name="one_step", dtypes=("int64",)),
        Sample(_tree(4, 3, 1), {}, name="one_beam", dtypes=("int64",)),
        Sample(_tree(20, 7, 30), {}, name="many", dtypes=("int64",)),
        Sample(_tree(0, 2, 3), {}, name="no_steps", dtypes=("int64",)),
        Sample(_tree(3, 0, 3), {}, name="no_samples", dtypes=("int64",)),
    ],
    doc="Out[t, n, k] = Ids[t, n, b(t)], where b is k at the last step, and b(t) = Parents[t + 1, n, b(t + 1)] before; "
    "a parent outside 0 <= parent < beams is an OutOfRangeError",
    source="Fluid gather_tree_op.cc",
)
