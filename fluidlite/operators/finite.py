"""isfinite, isinf, isnan: one answer for the whole tensor, as in Fluid 1.x."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS, INTS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Sample
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Spec
from fluidlite.operators.inference import Inferred
from fluidlite.operators.samples import EVERY, WIDE, ints, rand


def _infer(call: Call) -> Inferred:
    return {"Out": Spec.of((1,), "bool")}


def _samples() -> list[Sample]:
    def case(name: str, *special: float, dims: tuple[int, ...] = (5, 7), dtypes: Any = WIDE) -> Sample:
        x = rand(*dims)
        for i, value in enumerate(special):
            x.reshape(-1)[x.size // 2 + i] = value
        return Sample({"X": x}, {}, name=name, dtypes=dtypes)

    inf, nan = np.inf, np.nan
    return [
        case("usual", dtypes=EVERY), case("infinite", inf, dtypes=EVERY), case("minus_infinite", -inf),
        case("nan", nan, dtypes=EVERY), case("both", nan, inf), case("one", inf, dims=(1,)),
        case("rank0", nan, dims=()), case("long", nan, dims=(3, 50000)), case("long_infinite", -inf, dims=(150001,)),
        case("long_usual", dims=(150001,)), case("empty", dims=(0, 3)),
        *(Sample({"X": ints(4, 3, dtype=t)}, {}, name=t, dtypes=(t,)) for t in INTS),
    ]  # fmt: skip


def _register(name: str, function: Callable[[Any], Any], doc: str) -> None:
    register_op(
        name,
        inputs=("X",),
        outputs=("Out",),
        infer=_infer,
        dtypes={"X": (*ALL_FLOATS, *INTS)},
        reference=lambda inputs, attrs: {"Out": np.asarray([function(inputs["X"])])},
        samples=_samples,
        doc=doc,
        source="Fluid isfinite_op.cc",
    )


_register("isfinite", lambda x: np.isfinite(x).all(), "Out = whether no element of X is infinite or NaN, as [1]")
_register("isinf", lambda x: np.isinf(x).any(), "Out = whether an element of X is infinite, as [1]")
_register("isnan", lambda x: np.isnan(x).any(), "Out = whether an element of X is NaN, as [1]")
