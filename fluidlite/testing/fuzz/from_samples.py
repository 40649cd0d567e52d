"""Steps from operators' samples, with changed attributes, changed dims, or inputs from earlier values.

Steps that a definition or a reference refuses are dropped; the unchanged sample is always tried last.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS, dtype_name
from fluidlite.conformance.cases import Case, canonical, cases
from fluidlite.program.opdef import Attr, OpDef
from fluidlite.testing.fuzz.adapt import fitted
from fluidlite.testing.fuzz.builder import MAX_ELEMENTS, Builder
from fluidlite.testing.fuzz.call import call_reference
from fluidlite.testing.fuzz.recipe import Array

OPERATORS_PER_PROGRAM = 8
"""Number of operators that each program must contain, in turn."""
FIXED_SAMPLES = frozenset(
    {
        "unpool",
        "gather_tree",
        "hash",
        "crf_decoding",
        "linear_chain_crf",
        "auc",
        "precision_recall",
        "lstm",
        "lstmp",
        "gru",
        "cudnn_lstm",
        "edit_distance",
        "ctc_align",
        "warpctc",
        "hierarchical_sigmoid",
        "nce",
        "chunk_eval",
    }
)
"""Operators whose inputs depend on each other: values and dims of samples are not changed."""


@functools.cache
def samples_by_type() -> dict[str, tuple[Case, ...]]:
    """The cases of all operators with samples and a reference whose results depend on their inputs alone."""
    cases_by_type: dict[str, list[Case]] = {}
    for case in cases():
        if case.op.effect:  # collective operators need other processes
            continue
        if sum(a.size for arrays in case.inputs().values() for a in arrays) <= MAX_ELEMENTS:
            cases_by_type.setdefault(case.op.type, []).append(case)
    return {type: tuple(some) for type, some in cases_by_type.items()}


def operators_due(number: int) -> list[str]:
    """The operators that program ``number`` must contain; the programs cycle through all operators."""
    types = sorted(samples_by_type())
    return [types[(OPERATORS_PER_PROGRAM * number + i) % len(types)] for i in range(OPERATORS_PER_PROGRAM)]


@dataclass
class _SampleUse:
    """One use of a case: arrays by slot for each batch, and whether their first dim is the batch."""

    case: Case
    arrays: list[dict[str, list[Array]]]
    attrs: dict[str, Any]
    open: bool


def sample(b: Builder) -> Any:
    by_type = samples_by_type()
    type = b.due.pop() if b.due else str(b.any(b.types or tuple(by_type)))
    fits = [case for case in by_type[type] if _computable(case, b)]
    if not fits:
        return None
    preferred = [case for case in fits if case.dtype in b.dtypes or case.dtype not in ALL_FLOATS]
    case = b.any(preferred or fits)
    for attempt in (0, 1, 2) if not case.op.random else (2,):  # samples of random operators are used unchanged
        use = _use(b, case, bold=attempt == 0, batched=attempt < 2)
        names = None if use is None else _append(b, use, wired=attempt == 0)
        if names is not None:
            return names
    return None


def _computable(case: Case, b: Builder) -> bool:
    return all(dtype_name(a.dtype) in b.known_dtypes for arrays in case.inputs().values() for a in arrays)


def _use(b: Builder, case: Case, bold: bool, batched: bool) -> _SampleUse | None:
    arrays, attrs = case.inputs(), dict(case.sample.attrs)
    if case.sample.lod or not arrays:
        return _SampleUse(case, [arrays] * len(b.batches), attrs, False)
    if bold:
        attrs = {**attrs, **_disturbed(b, case)}
        arrays = {slot: [_renewed(b, case.op, a) for a in some] for slot, some in arrays.items()}
        if b.chance(0.5) and case.op.type not in FIXED_SAMPLES:
            arrays = _with_other_dims(b, arrays)
    if batched and case.op.type not in FIXED_SAMPLES:
        lead = _lead(case.op, arrays)
        if lead and b.chance(0.7):
            each = [{s: [_rows(a, lead, batch) for a in some] for s, some in arrays.items()} for batch in b.batches]
            return _SampleUse(case, each, attrs, True)
    return _SampleUse(case, [arrays] * len(b.batches), attrs, False)


def _lead(op: OpDef, arrays: Mapping[str, Sequence[Array]]) -> int:
    """The size of the batch dim: a first dim that occurs nowhere else; 0 if there is none."""
    slot_arrays = [(slot, a) for slot, some in arrays.items() for a in some]
    if not slot_arrays or not slot_arrays[0][1].ndim:
        return 0
    lead = int(slot_arrays[0][1].shape[0])
    elsewhere = any(lead in a.shape[1:] for _, a in slot_arrays)
    updated = any(slot in op.must_alias.values() for slot, _ in slot_arrays)
    return 0 if elsewhere or updated else lead


def _rows(array: Array, old: int, new: int) -> Array:
    if not array.ndim or array.shape[0] != old:
        return array
    return np.take(array, np.arange(new) % old, axis=0)


def _with_other_dims(b: Builder, arrays: Mapping[str, list[Array]]) -> dict[str, list[Array]]:
    """Replace all dims of one size by another size."""
    dims = sorted({d for some in arrays.values() for a in some for d in a.shape if d > 0})
    if not dims:
        return dict(arrays)
    old, new = int(b.any(dims)), b.size()
    if b.chance(0.05):
        new = 0

    if (
        sum(np.prod([float(new if d == old else d) for d in a.shape]) for some in arrays.values() for a in some)
        > MAX_ELEMENTS
    ):
        return dict(arrays)

    def changed(array: Array) -> Array:
        for axis, dim in enumerate(array.shape):
            if dim == old:
                array = np.take(array, np.arange(new) % old, axis=axis)
        return array

    return {slot: [changed(a) for a in some] for slot, some in arrays.items()}


def _renewed(b: Builder, op: OpDef, array: Array) -> Array:
    """Random values of the same range."""
    if not array.size or op.type in FIXED_SAMPLES or b.chance(0.4):
        return array
    if dtype_name(array.dtype) in ALL_FLOATS:
        plain = array.astype(np.float64)
        if not np.isfinite(plain).all() or plain.min() == plain.max() or set(np.unique(plain)) <= {0.0, 1.0}:
            return array
        low, high = plain.min(), plain.max()
        return np.asarray(b.rng.uniform(low, high, array.shape)).astype(array.dtype)
    return np.asarray(b.rng.permutation(array.reshape(-1)).reshape(array.shape))


def _disturbed(b: Builder, case: Case) -> dict[str, Any]:
    attrs: dict[str, Any] = {}
    for attr in case.op.attrs:
        if not b.chance(0.25) or (attr.type == "int" and case.op.type in FIXED_SAMPLES):  # such as a number of classes
            continue
        value = case.sample.attrs.get(attr.name, attr.default)
        if value is not None:
            attrs[attr.name] = _moved(b, attr, value)
    return attrs


def _moved(b: Builder, attr: Attr, value: Any) -> Any:
    if attr.choices is not None:
        return b.any(attr.choices)
    if attr.type == "bool":
        return not value
    if attr.type == "float":
        moved = float(value) * float(b.rng.uniform(0.5, 1.5)) if value else float(b.rng.uniform(0, 0.5))
        low = -np.inf if attr.minimum is None else attr.minimum
        high = np.inf if attr.maximum is None else attr.maximum
        return float(np.round(np.clip(moved, low, high), 4)) if moved > 1e-3 else moved
    if attr.type == "int":
        return int(value) + int(b.any((-1, 1)))
    if attr.type == "ints" and len(value):
        at = int(b.rng.integers(len(value)))
        return [int(v) + (int(b.any((-1, 1))) if i == at else 0) for i, v in enumerate(value)]
    return value


def _append(b: Builder, use: _SampleUse, wired: bool) -> Any:
    """Append a use: state becomes persistable variables; other inputs are fed or derived from earlier values."""
    case, op = use.case, use.case.op
    counts = _counts(b, use)
    if counts is None:
        return None
    inputs: dict[str, list[str]] = {}
    updated = {source: out for out, source in op.must_alias.items()}
    for slot, first in use.arrays[0].items():
        declared = op.input(slot)
        inputs[slot] = []
        for i, array in enumerate(first):
            each = [arrays[slot][i] for arrays in use.arrays]
            if slot in updated:
                inputs[slot].append(b.keep(array))
                continue
            lod = case.sample.lod.get(slot, ())
            opened = use.open and bool(array.ndim) and [a.shape[0] for a in each] == [*b.batches]
            name = None
            by_value = declared is not None and declared.value
            if wired and not lod and not by_value and b.chance(0.65):
                name = fitted(b, each, opened)
            inputs[slot].append(name if name is not None else b.feed(each, opened, lod))
    outputs: dict[str, Any] = {}
    for slot, count in counts.items():
        source = op.must_alias.get(slot)
        outputs[slot] = inputs[source] if source is not None and source in inputs else count
    return b.append(op.type, inputs, outputs, use.attrs)


def _counts(b: Builder, use: _SampleUse) -> dict[str, int] | None:
    """The number of variables of each output slot; None if the reference, which determines it for lists, raises."""
    op = use.case.op
    slots = use.case.requested_outputs()
    lists = {slot.name for slot in op.outputs if slot.duplicable}
    if not lists.intersection(slots):
        return dict.fromkeys(slots, 1)
    list_inputs = [
        some for slot, some in use.arrays[0].items() if (declared := op.input(slot)) is not None and declared.duplicable
    ]
    if math.prod(a.size for some in list_inputs for a in some) > MAX_ELEMENTS:  # the size of meshgrid's results
        b.refused["too large"] += 1
        return None
    try:
        results = call_reference(op, use.arrays[0], canonical(op, use.attrs), use.case.sample.lod)
    except Exception:  # NumPy may raise any class for unsupported inputs
        b.refused[f"reference: {op.type}"] += 1
        return None
    return {slot: len(results[slot]) if slot in lists else 1 for slot in slots}
