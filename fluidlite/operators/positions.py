"""add_position_encoding: waves of growing length tell the steps of a sequence apart."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample
from fluidlite.framework.registry import register_op
from fluidlite.operators.inference import Inferred, grad_inputs, grad_outputs, like
from fluidlite.operators.samples import EVERY, WIDE, rand

_ATTRS = (
    Attr("alpha", "float", 1.0, minimum=0.0, doc="factor of X"),
    Attr("beta", "float", 1.0, minimum=0.0, doc="factor of the waves"),
)


def _infer(call: Call) -> Inferred:
    x = call.spec("X")
    if x.lod_level:
        call.need(x.rank == 2 and x.lod_level == 1, "X", "[steps, width] with one level of LoD")
    else:
        call.need(x.rank == 3, "X", "[batch, steps, width], or sequences as [steps, width] with LoD")
    call.need(x.dims[-1] < 0 or x.dims[-1] % 2 == 0, "X", "an even width: half of it sines, half cosines")
    return {"Out": like(x)}


def _waves(steps: int, width: int) -> Any:
    """Return the encoding of each step, [steps, width], in float64."""
    half = width // 2
    lengths = 10000.0 ** (np.arange(half) / (half - 1)) if half > 1 else np.full(half, 10000.0)
    angles = np.arange(steps)[:, None] / lengths
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def _decompose(call: Call, build: Any) -> None:
    x, dims, dtype = build.input("X"), call.dims("X"), call.dtype("X")
    if 0 in dims:
        build("assign", {"X": x}, {"Out": build.output("Out")})
        return
    offsets = call.lod("X")[0] if call.lod("X") else ()
    lengths = [b - a for a, b in pairwise(offsets)] if offsets else [dims[-2]]  # not known yet: one sequence
    table = call.attr("beta") * _waves(max(lengths), dims[-1])
    values = {"shape": list(table.shape), "dtype": dtype, "fp32_values": table.ravel().tolist()}
    waves = build("assign_value", {}, {"Out": build.temp()}, values)
    if offsets:
        steps = [step for length in lengths for step in range(length)]
        where = {"shape": [len(steps)], "dtype": "int64", "int64_values": steps}
        index = build("assign_value", {}, {"Out": build.temp()}, where)
        waves = build("gather", {"X": waves, "Index": index}, {"Out": build.temp()})
    scaled = build("scale", {"X": x}, {"Out": build.temp()}, {"scale": call.attr("alpha")})
    build("elementwise_add", {"X": scaled, "Y": waves}, {"Out": build.output("Out")})


def _decompose_grad(call: Call, build: Any) -> None:
    inputs, attrs = {"X": build.input("Out@GRAD")}, {"scale": call.attr("alpha")}
    build("scale", inputs, {"Out": build.output("X@GRAD")}, attrs)


def _reference(inputs: Mapping[str, Any], attrs: Mapping[str, Any], lod: Mapping[str, Any]) -> dict[str, Any]:
    out = inputs["X"] * attrs["alpha"]
    starts = lod["X"][0] if "X" in lod else ()
    sequences = [out[a:b] for a, b in pairwise(starts)] if starts else list(out)
    half = out.shape[-1] // 2
    for sequence in sequences:  # views of out
        for j, row in enumerate(sequence):
            for k in range(half):
                angle = j / 10000.0 ** (k / (half - 1)) if half > 1 else j / 10000.0
                row[k] += np.sin(angle) * attrs["beta"]
                row[half + k] += np.cos(angle) * attrs["beta"]
    return {"Out": out}


register_op(
    "add_position_encoding",
    inputs=("X",),
    outputs=("Out",),
    attrs=_ATTRS,
    infer=_infer,
    grad=GradRule("add_position_encoding_grad", ("Out@GRAD",), ("X",)),
    decompose=_decompose,
    dtypes={"X": ALL_FLOATS},
    reference=_reference,
    samples=lambda: [
        Sample({"X": rand(2, 4, 6)}, {}, ("X",), name="batch", dtypes=EVERY),
        Sample({"X": rand(2, 3, 4)}, {"alpha": 0.5}, ("X",), name="alpha", dtypes=WIDE),
        Sample({"X": rand(2, 3, 4)}, {"beta": 2.5}, ("X",), name="beta"),
        Sample({"X": rand(1, 5, 2)}, {}, ("X",), name="narrow"),
        Sample({"X": rand(6, 4)}, {"alpha": 2.0}, ("X",), lod={"X": ((0, 2, 2, 6),)}, name="sequences", dtypes=WIDE),
        Sample({"X": rand(0, 4, 6)}, {}, name="empty"),
    ],
    doc="Out = alpha X + beta P; P[j] = sin(j / 10000 ^ (k / (half - 1))) for k < half = width / 2, then the cosines",
    source="Fluid add_position_encoding_op.cc",
)

register_op(
    "add_position_encoding_grad",
    inputs=grad_inputs("Out@GRAD"),
    outputs=grad_outputs("X"),
    attrs=_ATTRS,
    infer=lambda call: {"X@GRAD": like(call.spec("Out@GRAD"))},
    decompose=_decompose_grad,
    doc="X@GRAD = alpha Out@GRAD",
)
