from __future__ import annotations

import numpy as np

from fluidlite.base.dtypes import ALL_INTS
from fluidlite.conformance.sample_helpers import COPIED, NUMBERS, Attrs, Inputs, Outputs, bools, ints, rand
from fluidlite.conformance.samples import Sample, register_samples

register_samples(
    "assign",
    "device_view",
    "device_transfer",
    reference=lambda inputs, attrs: {"Out": inputs["X"].copy()},
    samples=lambda: [
        Sample({"X": rand(5, 7)}, {}, ("X",), name="matrix", dtypes=COPIED),
        Sample({"X": rand()}, {}, name="rank0"),
        Sample({"X": rand(5, 7)}, {}, lod={"X": ((0, 2, 5),)}, name="sequences"),
        Sample({"X": rand(0, 7)}, {}, name="empty"),
    ],
)


register_samples(
    "rnn_memory_helper",
    reference=lambda inputs, attrs: {"Out": inputs["X"].copy()},
    samples=lambda: [Sample({"X": rand(5, 7)}, {"dtype": "float32"}, ("X",), name="state")],
)


register_samples(
    "assign_like",
    reference=lambda inputs, attrs: {"Out": inputs["X"].copy()},
    samples=lambda: [
        Sample({"X": rand(5, 7), "Like": rand(5, 7)}, {}, ("X",), name="matrix", dtypes=NUMBERS),
        Sample({"X": rand(0, 7), "Like": rand(0, 7)}, {}, name="empty"),
    ],
)


def _cast_samples() -> list[Sample]:
    x = rand(5, 7, low=-9, high=9)
    special = np.asarray([np.nan, np.inf, -np.inf, 1e20, -1e20, -0.9, 0.0, 300.0], "float32")
    samples = [
        Sample({"X": x}, {"in_dtype": "float32", "out_dtype": "float64"}, ("X",), name="widen"),
        Sample({"X": x.astype("float64")}, {"out_dtype": "float32"}, ("X",), name="narrow", dtypes=("float64",)),
        Sample({"X": x}, {"out_dtype": "float16"}, name="to_float16"),
        Sample({"X": x}, {"out_dtype": "bfloat16"}, name="to_bfloat16"),
        Sample({"X": x}, {"out_dtype": "float32"}, name="from_half", dtypes=("float16", "bfloat16")),
        Sample({"X": np.asarray([0.0, 0.5, -2.0, np.nan], "float32")}, {"out_dtype": "bool"}, name="to_bool"),
        Sample({"X": bools(5)}, {"out_dtype": "float32"}, name="from_bool", dtypes=("bool",)),
        Sample({"X": ints(5, low=-9)}, {"out_dtype": "float32"}, name="from_int64", dtypes=("int64",)),
        Sample({"X": ints(5, low=-300, high=300)}, {"out_dtype": "uint8"}, name="wrapped", dtypes=("int64",)),
        Sample({"X": rand(0, 3)}, {"out_dtype": "int64"}, name="empty"),
    ]
    return samples + [Sample({"X": special}, {"out_dtype": kind}, name="special_" + kind) for kind in ALL_INTS]


@register_samples("cast", samples=_cast_samples)
def _reference_cast(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, kind = inputs["X"], attrs["out_dtype"]
    if "float" in kind:
        return {"Out": np.asarray(x, "float64")}
    if kind == "bool":
        return {"Out": x != 0}
    if x.dtype.kind != "f":
        return {"Out": x.astype(kind)}
    limits = np.iinfo(kind)
    whole = [0 if v != v else max(limits.min, min(limits.max, int(np.clip(v, -1e30, 1e30)))) for v in x.reshape(-1)]
    return {"Out": np.asarray(whole, kind).reshape(x.shape)}
