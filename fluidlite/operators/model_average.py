"""Averages of parameters over training: average_accumulates, and the slow weights of Lookahead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.codegen.expr import cast, logical_and, minimum, mod, where
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, Sample, ScalarRule
from fluidlite.framework.registry import register_op
from fluidlite.operators.inference import Inferred, all_agree, like, same_dtype
from fluidlite.operators.samples import WIDE, rand
from fluidlite.operators.scalar_op import scalar_op

MOST = 16384
"""After so many updates a sum is moved on: a longer one loses what is added to it."""

# average_accumulates -----------------------------------------------------------------------------------------------

_SUMS = ("in_sum_1", "in_sum_2", "in_sum_3")
_NUMBERS = ("in_num_accumulates", "in_old_num_accumulates", "in_num_updates")
_ALIAS = {slot.replace("in_", "out_", 1): slot for slot in (*_SUMS, *_NUMBERS)}


def _infer_average(call: Call) -> Inferred:
    for slot in _SUMS:
        same_dtype(call, slot, "param")
        if not all_agree(call.dims(slot), call.dims("param")):
            call.fail(slot, f"{list(call.dims('param'))}, the dims of param")
    for slot in _NUMBERS:
        if call.dtype(slot) != "int64":
            call.fail_dtype(slot, "int64")
        call.need(all(d in (1, -1) for d in call.dims(slot)), slot, "one number, [1]")
    if call.attr("min_average_window") > call.attr("max_average_window"):
        call.fail_attr("min_average_window", f"at most max_average_window = {call.attr('max_average_window')}")
    return {out: like(call.spec(slot)) for out, slot in _ALIAS.items()}


def _average(
    param: Any, in_sum_1: Any, in_sum_2: Any, in_sum_3: Any,
    in_num_accumulates: Any, in_old_num_accumulates: Any, in_num_updates: Any,
    *, average_window: float, max_average_window: int, min_average_window: int,
) -> Any:  # fmt: skip
    updates, count = in_num_updates + 1, in_num_accumulates + 1
    moved = mod(updates, MOST) == 0
    window = minimum(cast(cast(updates, "float32") * average_window, "int64"), max_average_window)
    full = logical_and(count >= min_average_window, count >= window)
    first = where(moved, 0, in_sum_1 + param)
    second = where(moved, in_sum_1 + in_sum_2, in_sum_2)
    return (
        where(full, 0, first), where(full, 0, second), where(full, in_sum_1 + in_sum_2, in_sum_3),
        where(full, 0, count), where(full, count, in_old_num_accumulates), updates,
    )  # fmt: skip


def _reference_average(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    one, two, three = (inputs[slot] for slot in _SUMS)
    count, old, updates = (int(inputs[slot].reshape(())) for slot in _NUMBERS)
    count, updates = count + 1, updates + 1
    sums = [one + inputs["param"], two, three]
    if updates % MOST == 0:
        sums = [np.zeros_like(one), one + two, three]
    if count >= attrs["min_average_window"] and count >= min(
        attrs["max_average_window"], int(updates * attrs["average_window"])
    ):
        sums, count, old = [np.zeros_like(one), np.zeros_like(one), one + two], 0, count
    return {**dict(zip(_ALIAS, (*sums, *(np.asarray([n], "int64") for n in (count, old, updates))), strict=True))}


def _average_samples() -> list[Sample]:
    def sample(name: str, counts: tuple[int, int, int], *dims: int, **attrs: Any) -> Sample:
        inputs: dict[str, Any] = {slot: rand(*dims, seed=i) for i, slot in enumerate(("param", *_SUMS))}
        inputs |= {slot: np.asarray([n], "int64") for slot, n in zip(_NUMBERS, counts, strict=True)}
        return Sample(inputs, {"max_average_window": 20000, **attrs}, name=name, dtypes=WIDE)

    return [
        sample("grows", (3, 5, 9), 5, 7),
        sample("full", (9, 5, 9), 5, 7, min_average_window=10, average_window=0.5),
        sample("below_rate", (9, 5, 29), 5, 7, min_average_window=5, average_window=0.5),
        sample("at_rate", (14, 5, 29), 5, 7, min_average_window=5, average_window=0.5),
        sample("at_most", (9, 5, 29), 5, 7, min_average_window=5, max_average_window=10, average_window=0.9),
        sample("moves_on", (3, 5, MOST - 1), 5, 7),
        sample("moves_on_full", (9, 5, MOST - 1), 5, 7, min_average_window=5, max_average_window=10),
        sample("one", (0, 0, 0), 1),
        sample("empty", (0, 0, 0), 0, 3),
        sample("large", (9, 5, 29), 300, 250, min_average_window=5, max_average_window=10),
    ]


register_op(
    "average_accumulates",
    inputs=("param", *_SUMS, *_NUMBERS),
    outputs=tuple(_ALIAS),
    attrs=(
        Attr("average_window", "float", 0.0, doc="length of the window, as a part of the number of updates"),
        Attr("max_average_window", "int", minimum=0),
        Attr("min_average_window", "int", 10000, doc="no window is full before so many updates"),
    ),
    infer=_infer_average,
    scalar=ScalarRule(_average, tuple(_ALIAS)),
    must_alias=_ALIAS,
    dtypes={"param": ALL_FLOATS},
    reference=_reference_average,
    samples=_average_samples,
    doc="out_sum_1 = in_sum_1 + param, which every 16384 updates moves to out_sum_2; once the window is full, "
    "min(max_average_window, average_window in_num_updates), out_sum_3 = in_sum_1 + in_sum_2 and the others start anew",
    source="Fluid average_accumulates_op.h",
)

# lookahead_update --------------------------------------------------------------------------------------------------

_LOOKAHEAD = {"FastOut": "Fast", "SlowOut": "Slow"}


def _infer_lookahead(call: Call) -> Inferred:
    same_dtype(call, "Slow", "Fast")
    if not all_agree(call.dims("Slow"), call.dims("Fast")):
        call.fail("Slow", f"{list(call.dims('Fast'))}, the dims of Fast")
    if call.dtype("Step") not in ("int32", "int64"):
        call.fail_dtype("Step", ("int32", "int64"))
    call.need(all(d in (1, -1) for d in call.dims("Step")), "Step", "one number, [1]")
    return {out: like(call.spec(slot)) for out, slot in _LOOKAHEAD.items()}


def _lookahead(fast: Any, slow: Any, step: Any, *, alpha: float, k: int) -> Any:
    due = mod(step, k) == 0
    mixed = alpha * fast + (1 - alpha) * slow
    return where(due, mixed, fast), where(due, mixed, slow)


def _reference_lookahead(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    fast, slow = inputs["Fast"], inputs["Slow"]
    if int(inputs["Step"].reshape(())) % attrs["k"] == 0:
        fast = slow = slow + attrs["alpha"] * (fast - slow)
    return {"FastOut": fast, "SlowOut": slow}


scalar_op(
    "lookahead_update",
    _lookahead,
    outputs=tuple(_LOOKAHEAD),
    attrs=(
        Attr("alpha", "float", 0.5, minimum=0, maximum=1, doc="how much of Fast the slow weights take"),
        Attr("k", "int", 5, minimum=1, maximum=2**31 - 1, doc="steps between two updates of Slow"),
    ),
    infer=_infer_lookahead,
    must_alias=_LOOKAHEAD,
    dtypes={"Fast": ALL_FLOATS},
    reference=_reference_lookahead,
    samples=lambda: [
        Sample(
            {"Fast": rand(5, 7, seed=1), "Slow": rand(5, 7, seed=2), "Step": np.asarray([step], dtype)},
            attrs,
            name=name,
            dtypes=WIDE,
        )
        for name, step, dtype, attrs in (
            ("due", 10, "int32", {}), ("not_due", 9, "int32", {}), ("alpha", 5, "int64", {"alpha": 0.2}),
            ("k", 9, "int64", {"k": 3}),
        )
    ],
    doc="where Step mod k is 0, FastOut = SlowOut = alpha Fast + (1 - alpha) Slow; else both stay",
    source="Zhang and others, 2019: Lookahead optimizer",
)  # fmt: skip
