"""Averages of parameters over training: average_accumulates; and lookahead_update, the slow weights of Lookahead."""

from __future__ import annotations

from typing import Any

from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.expr import cast, logical_and, minimum, mod, where
from fluidlite.operators.inference import Inferred, all_dims_compatible, same_dtype, spec_like
from fluidlite.operators.scalar_op import Elementwise, scalar_op
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr
from fluidlite.program.operator_options import Aliasing, Inference, Lowering
from fluidlite.program.registry import register_op
from fluidlite.program.rules import ScalarRule

MAX_SUMMED_UPDATES = 16384
"""Updates after which out_sum_1 is added to out_sum_2, as in Fluid: a larger sum rounds off what is added to it."""

# average_accumulates -----------------------------------------------------------------------------------------------

_SUMS = ("in_sum_1", "in_sum_2", "in_sum_3")
_NUMBERS = ("in_num_accumulates", "in_old_num_accumulates", "in_num_updates")
_ALIAS = {slot.replace("in_", "out_", 1): slot for slot in (*_SUMS, *_NUMBERS)}


def _infer_average(call: Call) -> Inferred:
    for slot in _SUMS:
        same_dtype(call, slot, "param")
        if not all_dims_compatible(call.dims(slot), call.dims("param")):
            call.fail(slot, f"{list(call.dims('param'))}, the dims of param")
    for slot in _NUMBERS:
        if call.dtype(slot) != "int64":
            call.fail_dtype(slot, "int64")
        call.need(all(d in (1, -1) for d in call.dims(slot)), slot, "one number, [1]")
    if call.attr("min_average_window") > call.attr("max_average_window"):
        call.fail_attr("min_average_window", f"at most max_average_window = {call.attr('max_average_window')}")
    return {out: spec_like(call.spec(slot)) for out, slot in _ALIAS.items()}


def _average(
    param: Any,
    in_sum_1: Any,
    in_sum_2: Any,
    in_sum_3: Any,
    in_num_accumulates: Any,
    in_old_num_accumulates: Any,
    in_num_updates: Any,
    *,
    average_window: float,
    max_average_window: int,
    min_average_window: int,
) -> Any:
    updates, count = in_num_updates + 1, in_num_accumulates + 1
    rolls_over = mod(updates, MAX_SUMMED_UPDATES) == 0
    window = minimum(cast(cast(updates, "float32") * average_window, "int64"), max_average_window)
    is_full = logical_and(count >= min_average_window, count >= window)
    first = in_sum_1 + param
    first, second = where(rolls_over, 0, first), where(rolls_over, first + in_sum_2, in_sum_2)
    return (
        where(is_full, 0, first),
        where(is_full, 0, second),
        where(is_full, first + second, in_sum_3),
        where(is_full, 0, count),
        where(is_full, count, in_old_num_accumulates),
        updates,
    )


register_op(
    "average_accumulates",
    Inference(_infer_average),
    Aliasing(must=_ALIAS),
    Lowering(scalar=ScalarRule(_average, tuple(_ALIAS))),
    inputs=("param", *_SUMS, *_NUMBERS),
    outputs=tuple(_ALIAS),
    attrs=(
        Attr("average_window", "float", 0.0, doc="length of the window, as a part of the number of updates"),
        Attr("max_average_window", "int", minimum=0),
        Attr("min_average_window", "int", 10000, doc="minimum number of updates in a full window"),
    ),
    dtypes={"param": ALL_FLOATS},
    doc="out_sum_1 = in_sum_1 + param, which every 16384 updates moves to out_sum_2; once the window is full, "
    "min(max_average_window, average_window out_num_updates), out_sum_3 = out_sum_1 + out_sum_2, which start anew",
    source="Fluid average_accumulates_op.h",
)

# lookahead_update --------------------------------------------------------------------------------------------------

_LOOKAHEAD = {"FastOut": "Fast", "SlowOut": "Slow"}


def _infer_lookahead(call: Call) -> Inferred:
    same_dtype(call, "Slow", "Fast")
    if not all_dims_compatible(call.dims("Slow"), call.dims("Fast")):
        call.fail("Slow", f"{list(call.dims('Fast'))}, the dims of Fast")
    if call.dtype("Step") not in ("int32", "int64"):
        call.fail_dtype("Step", ("int32", "int64"))
    call.need(all(d in (1, -1) for d in call.dims("Step")), "Step", "one number, [1]")
    return {out: spec_like(call.spec(slot)) for out, slot in _LOOKAHEAD.items()}


def _lookahead(fast: Any, slow: Any, step: Any, *, alpha: float, k: int) -> Any:
    is_due = mod(step, k) == 0
    mixed = alpha * fast + (1 - alpha) * slow
    return where(is_due, mixed, fast), where(is_due, mixed, slow)


scalar_op(
    "lookahead_update",
    _lookahead,
    Inference(_infer_lookahead),
    Aliasing(must=_LOOKAHEAD),
    Elementwise(outputs=tuple(_LOOKAHEAD)),
    attrs=(
        Attr("alpha", "float", 0.5, minimum=0, maximum=1, doc="how much of Fast the slow weights take"),
        Attr("k", "int", 5, minimum=1, maximum=2**31 - 1, doc="steps between two updates of Slow"),
    ),
    dtypes={"Fast": ALL_FLOATS},
    doc="where Step mod k is 0, FastOut = SlowOut = alpha Fast + (1 - alpha) Slow; else both stay",
    source="Zhang and others, 2019: Lookahead optimizer",
)
