"""dropout: set random elements to 0."""

from __future__ import annotations

from typing import Any

from fluidlite.base.dtypes import ALL_FLOATS, INTS
from fluidlite.expr import cast, uniform, where
from fluidlite.operators.inference import Inferred, one_number, spec_like
from fluidlite.operators.scalar_op import Elementwise, scalar_op
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Aliasing, Execution, Inference

_UPSCALE = "upscale_in_train"

_ATTRS = (
    Attr("dropout_prob", "float", 0.5, minimum=0.0, maximum=1.0, doc="probability that an element becomes 0"),
    Attr("is_test", "bool", False, doc="nothing is dropped"),
    Attr("fix_seed", "bool", False, doc="use seed, so that every run draws the same mask"),
    Attr("seed", "int", 0, doc="0: the program's seed; else this operator's own"),
    Attr(
        "dropout_implementation",
        "str",
        "downgrade_in_infer",
        choices=("downgrade_in_infer", _UPSCALE),
        doc="whether elements are scaled at test or in training",
    ),
)


def _keep_probability(dropout_prob: Any) -> Any:
    """Return 1 - dropout_prob, or 1 if that is 0, since it is a divisor."""
    return where(dropout_prob < 1, 1 - dropout_prob, 1)


def _dropout(x: Any, *, dropout_prob: Any, is_test: bool, dropout_implementation: str) -> Any:
    upscale = dropout_implementation == _UPSCALE
    if is_test:
        return (x if upscale else x * (1 - dropout_prob)), 1
    keep = uniform() >= dropout_prob
    return where(keep, x / _keep_probability(dropout_prob) if upscale else x, 0), cast(keep, "uint8")


def _dropout_grad(mask: Any, dout: Any, *, dropout_prob: Any, is_test: bool, dropout_implementation: str) -> Any:
    upscale = dropout_implementation == _UPSCALE
    if is_test:
        return dout if upscale else dout * (1 - dropout_prob)
    return where(mask != 0, dout / _keep_probability(dropout_prob) if upscale else dout, 0)


def _infer(call: Call) -> Inferred:
    x = call.spec("X")
    one_number(call, "Seed")
    return {"Out": spec_like(x), "Mask": spec_like(x, dtype="uint8")}


scalar_op(
    "dropout",
    _dropout,
    Inference(_infer),
    Aliasing(may={"Out": "X"}),
    Execution(random=True),
    Elementwise(
        outputs=("Out", "Mask"),
        slots=[
            Slot("Mask", intermediate=True, dispensable=True, content="1 where X is not dropped, else 0"),
            Slot("Seed", dispensable=True, value=True, doc="[1]: the seed, instead of seed and fix_seed"),
        ],
    ),
    attrs=_ATTRS,
    grad=_dropout_grad,
    dtypes={"X": ALL_FLOATS, "Seed": INTS},
    doc="Out = X where a random number is dropout_prob or more, else 0; at test X (1 - dropout_prob). "
    "upscale_in_train: other elements are divided by 1 - dropout_prob instead, and at test Out = X",
    source="Fluid dropout_op.cc",
)
