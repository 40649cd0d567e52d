from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import INTS
from fluidlite.conformance.sample_helpers import (
    EVERY,
    NUMBERS,
    WIDE,
    Array,
    Attrs,
    Inputs,
    Outputs,
    bools,
    distinct,
    ints,
    rand,
)
from fluidlite.conformance.samples import Sample, register_samples

register_samples(
    "mean",
    reference=lambda inputs, attrs: {"Out": np.mean(inputs["X"]).reshape(1)},
    samples=lambda: [
        Sample({"X": rand(5, 7)}, {}, ("X",), name="matrix", dtypes=EVERY),
        Sample({"X": rand(1)}, {}, ("X",), name="one"),
        Sample({"X": rand(2)}, {}, ("X",), name="two"),
        Sample({"X": rand()}, {}, ("X",), name="rank0"),
        Sample({"X": rand(3, 1000, low=0.0)}, {}, name="long", dtypes=EVERY),
    ],
)


def _reference(function: Callable[..., Any]) -> Callable[..., Mapping[str, Any]]:
    def reference(inputs: Inputs, attrs: Attrs) -> Outputs:
        x = inputs["X"]
        axes = tuple(range(x.ndim)) if attrs["reduce_all"] else tuple(attrs["dim"])
        out = np.asarray(function(x, axis=axes, keepdims=attrs["keep_dim"]), x.dtype)
        return {"Out": out.reshape(out.shape or (1,))}

    return reference


def _samples(
    make: Callable[..., Any], dtypes: tuple[str, ...], empty: bool = True, integers: bool = True
) -> Callable[[], list[Sample]]:
    def samples() -> list[Sample]:
        result = [
            Sample({"X": make(5, 7)}, {}, ("X",), name="rows", dtypes=dtypes),
            Sample({"X": make(5, 7)}, {"dim": [1]}, ("X",), name="columns", dtypes=dtypes),
            Sample({"X": make(3, 4, 5)}, {"dim": [-2], "keep_dim": True}, ("X",), name="middle_kept", dtypes=WIDE),
            Sample({"X": make(3, 4, 5)}, {"dim": [0, -1]}, ("X",), name="outer", dtypes=WIDE),
            Sample({"X": make(3, 4, 5)}, {"dim": [2, 1]}, ("X",), name="inner"),
            Sample({"X": make(2, 3, 2, 4)}, {"dim": [1, 3], "keep_dim": True}, ("X",), name="alternate"),
            Sample({"X": make(3, 4)}, {"reduce_all": True}, ("X",), name="all", dtypes=dtypes),
            Sample({"X": make(3, 4)}, {"reduce_all": True, "keep_dim": True}, ("X",), name="all_kept"),
            Sample({"X": make(4)}, {}, ("X",), name="vector"),
            Sample({"X": make(2, 3)}, {}, ("X",), name="pairs"),
            Sample({"X": make()}, {"reduce_all": True}, ("X",), name="rank0"),
            Sample({"X": make(64, 33)}, {"dim": [0]}, name="long_rows", dtypes=dtypes),
            Sample({"X": make(0, 3)}, {"dim": [1]}, name="empty"),
        ]
        if empty:
            result.append(Sample({"X": make(0, 3)}, {"dim": [0]}, name="empty_axis", dtypes=WIDE))
            result.append(Sample({"X": make(2, 0)}, {"reduce_all": True}, name="empty_all"))
        if integers:
            result += [Sample({"X": ints(4, 3, low=-9, dtype=t)}, {"dim": [1]}, name=t, dtypes=(t,)) for t in INTS]
            lowest = np.array([[5, np.iinfo("int32").min, 1]], "int32")
            result.append(Sample({"X": lowest}, {"dim": [1]}, name="lowest", dtypes=("int32",)))
        return result

    return samples


def _prod_samples() -> list[Sample]:
    def make(*dims: int) -> Array:
        return rand(*dims, low=0.7, high=1.4)

    zeros = np.array([[0.5, 0.0, 2.0], [0.0, 0.0, 3.0], [1.5, -2.0, 1.25]], "float32")
    return [
        *_samples(make, EVERY)(),
        Sample({"X": zeros}, {"dim": [1]}, ("X",), name="zeros", dtypes=EVERY),
        Sample({"X": zeros}, {"dim": [0], "keep_dim": True}, ("X",), name="zeros_kept"),
        Sample({"X": zeros}, {"reduce_all": True}, ("X",), name="zeros_all"),
        Sample({"X": rand(3, 77, low=0.9, high=1.1)}, {"dim": [1]}, ("X",), name="long", dtypes=WIDE),
    ]


def _truth_samples() -> list[Sample]:
    def case(name: str, dims: tuple[int, ...], **attrs: Any) -> Sample:
        return Sample({"X": bools(*dims, seed=sum(dims))}, attrs, name=name, dtypes=("bool",))

    return [
        case("rows", (3, 17)),
        case("columns", (9, 3), dim=[1]),
        case("kept", (2, 3, 2), dim=[-2], keep_dim=True),
        case("outer", (2, 3, 2), dim=[0, 2]),
        case("all", (1, 2), reduce_all=True),
        case("rank0", (), reduce_all=True),
        case("long", (4, 3000), dim=[1]),
        case("empty_axis", (0, 3)),
        case("empty", (0, 3), dim=[1]),
        Sample({"X": np.ones((40, 1000), "bool")}, {"reduce_all": True}, name="true", dtypes=("bool",)),
        Sample({"X": np.zeros((40, 1000), "bool")}, {"reduce_all": True}, name="false", dtypes=("bool",)),
    ]


register_samples(
    "logsumexp",
    reference=_reference(np.logaddexp.reduce),
    samples=lambda: [
        Sample({"X": rand(3, 4)}, {}, ("X",), name="columns", dtypes=EVERY),
        Sample({"X": rand(3, 4)}, {"dim": [-1], "keep_dim": True}, ("X",), name="rows", dtypes=WIDE),
        Sample({"X": rand(2, 3, 4)}, {"dim": [0, 2]}, ("X",), name="two"),
        Sample({"X": rand(2, 3)}, {"reduce_all": True}, ("X",), name="all", dtypes=WIDE),
        Sample({"X": rand(2, 3)}, {"reduce_all": True, "keep_dim": True}, ("X",), name="all_kept"),
        Sample({"X": rand()}, {"reduce_all": True}, ("X",), name="rank0"),
        Sample({"X": rand()}, {"reduce_all": True, "keep_dim": True}, ("X",), name="rank0_kept"),
        Sample({"X": rand(4, 3, low=500, high=900)}, {"dim": [1]}, name="large_numbers"),
        Sample({"X": rand(3, 0)}, {}, name="empty"),
    ],
)


register_samples(
    "sum",
    reference=lambda inputs, attrs: {"Out": np.sum(np.stack(inputs["X"]), axis=0)},
    samples=lambda: [
        Sample({"X": [rand(3, 4), rand(3, 4, seed=1)]}, {}, ("X",), name="two", dtypes=NUMBERS),
        Sample({"X": [rand(5, seed=i) for i in range(5)]}, {}, ("X",), name="five", dtypes=EVERY),
        Sample({"X": [rand(3, 4)]}, {}, ("X",), name="single"),
        Sample({"X": [rand(), rand(seed=1)]}, {}, ("X",), name="rank0"),
        Sample({"X": [rand(0, 2), rand(0, 2)]}, {}, name="empty"),
    ],
)


for _type, _function, _type_samples in (
    ("reduce_sum", np.sum, _samples(rand, EVERY)),
    ("reduce_mean", np.mean, _samples(rand, EVERY, empty=False, integers=False)),
    ("reduce_max", np.max, _samples(distinct, EVERY, empty=False)),
    ("reduce_min", np.min, _samples(distinct, EVERY, empty=False)),
    ("reduce_prod", np.prod, _prod_samples),
    ("reduce_all", np.all, _truth_samples),
    ("reduce_any", np.any, _truth_samples),
):
    register_samples(_type, reference=_reference(_function), samples=_type_samples)
