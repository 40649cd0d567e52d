"""What metadata tells of a tensor: shape, size, is_empty. No kernel reads the tensor's bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Sample, Slot
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Spec
from fluidlite.operators.samples import bools, ints, rand


def _register(
    type: str, slot: str, dtype: str, tell: Callable[[Spec], tuple[int, ...]], reference: Any, doc: str
) -> None:
    """Declare an operator whose output is ``tell(spec of the input)``."""

    def dims(call: Call) -> tuple[int, ...]:
        return (call.spec(slot).rank,) if type == "shape" else (1,)

    def constant(call: Call) -> Mapping[str, tuple[float, ...] | None]:
        spec = call.spec(slot)
        return {"Out": tell(spec) if spec.known else None}

    register_op(
        type,
        inputs=(Slot(slot, metadata_only=True),),
        outputs=("Out",),
        infer=lambda call: {"Out": Spec.of(dims(call), dtype)},
        constant=constant,
        dtypes={slot: ALL},
        reference=lambda inputs, attrs: {"Out": np.asarray(reference(inputs[slot]), dtype)},
        samples=lambda: [
            Sample({slot: rand(3, 4, 5)}, {}, name="rank3"),
            Sample({slot: rand(7, 2)}, {}, name="matrix", dtypes=("float16", "bfloat16", "float64")),
            Sample({slot: ints(6)}, {}, name="int64", dtypes=("int64",)),
            Sample({slot: bools(2, 2)}, {}, name="bool", dtypes=("bool",)),
            Sample({slot: rand(0, 4)}, {}, name="empty"),
            Sample({slot: rand()}, {}, name="rank0"),
        ],
        doc=doc,
        source=f"Fluid {type}_op.cc",
    )


_register("shape", "Input", "int32", lambda spec: spec.dims, np.shape, "Out = the dims of Input, int32")
_register("size", "Input", "int64", lambda spec: (spec.size,), lambda x: [x.size],
          "Out = the number of elements of Input, int64 [1]")  # fmt: skip
_register("is_empty", "X", "bool", lambda spec: (int(spec.size == 0),), lambda x: [x.size == 0],
          "Out = whether X has no elements, bool [1]")  # fmt: skip
