"""Helpers of the optimisers' updates: in-place outputs and inference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fluidlite.base.dtypes import ALL_FLOATS, compute_dtype
from fluidlite.operators.inference import Inferred, all_dims_compatible, same_dtype, spec_like
from fluidlite.operators.scalar_op import Elementwise, scalar_op
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, OpDef, Slot
from fluidlite.program.operator_options import Aliasing, Inference

SCALARS = ("LearningRate", "Beta1Pow", "Beta2Pow", "Beta1Tensor", "Beta2Tensor", "Noise")
"""Inputs of one number."""


def update(
    type: str,
    function: Callable[..., Any],
    outputs: Mapping[str, str],
    *,
    attrs: Iterable[Attr] = (),
    optional: Sequence[str] = (),
    check: Callable[[Call], None] | None = None,
    doc: str,
    source: str,
) -> OpDef:
    """Declare an elementwise update.

    ``outputs``: by output slot, the input slot whose variable it updates in place.
    ``optional``: slots, of inputs and outputs, that may be left out.
    ``check``: makes further checks of a call.
    """
    return scalar_op(
        type,
        function,
        Inference(update_infer(outputs, check)),
        Aliasing(must=outputs),
        Elementwise(outputs=tuple(outputs), slots=[Slot(name, dispensable=True) for name in optional]),
        attrs=attrs,
        dtypes={"Param": ALL_FLOATS},
        doc=doc,
        source=source,
    )


def update_infer(outputs: Mapping[str, str], check: Callable[[Call], None] | None = None) -> Callable[[Call], Inferred]:
    """Return the inference of an update: state has Param's metadata, ``SCALARS`` hold one number.

    Inputs other than Grad may be float32 if Param is a half type, in which powers of beta2 near 1 and slow averages
    would stop changing.
    """

    def infer(call: Call) -> Inferred:
        if check is not None:
            check(call)
        for slot in call.ins:
            if slot == "Grad" or call.dtype(slot) != compute_dtype(call.dtype("Param")):
                same_dtype(call, slot, "Param")
            if slot in SCALARS:
                call.need(all(d in (1, -1) for d in call.dims(slot)), slot, "one number, [1]")
            elif not all_dims_compatible(call.dims(slot), call.dims("Param")):
                call.fail(slot, f"{list(call.dims('Param'))}, the dims of Param")
        for output, slot in outputs.items():
            if call.has(output) and not call.has(slot):
                call.fail(slot, f"the variable that {output} updates")
        return {output: spec_like(call.spec(slot)) for output, slot in outputs.items() if call.has(slot)}

    return infer
