"""Steps from the operators' samples: their attributes disturbed, their dims changed, their inputs taken from elsewhere.

What a definition or a reference does not take is left out; the plain sample is always tried last.
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

DUE = 8
"""Operators that have their turn in a program."""
KEEP_NUMBERS = frozenset(
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
"""Operators whose inputs depend on each other: numbers and dims stay as the samples have them."""


@functools.cache
def samples_by_type() -> dict[str, tuple[Case, ...]]:
    """The cases of every operator that has samples and a reference, and whose result is that of its inputs alone."""
    found: dict[str, list[Case]] = {}
    for case in cases():
        if case.op.effect:  # collective ones: other numbers of members are other processes
            continue
        if sum(a.size for arrays in case.inputs().values() for a in arrays) <= MAX_ELEMENTS:
            found.setdefault(case.op.type, []).append(case)
    return {type: tuple(some) for type, some in found.items()}


def due(number: int) -> list[str]:
    """The operators that program ``number`` begins with: every operator comes again after some programs."""
    types = sorted(samples_by_type())
    return [types[(DUE * number + i) % len(types)] for i in range(DUE)]


@dataclass
class _Use:
    """One use of a case: arrays by slot for each batch, and which of them have the batch in front."""

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
    liked = [case for case in fits if case.dtype in b.dtypes or case.dtype not in ALL_FLOATS]
    case = b.any(liked or fits)
    for attempt in (0, 1, 2) if not case.op.random else (2,):  # samples of random operators leave no choice
        use = _use(b, case, bold=attempt == 0, batched=attempt < 2)
        made = None if use is None else _append(b, use, wired=attempt == 0)
        if made is not None:
            return made
    return None


def _computable(case: Case, b: Builder) -> bool:
    return all(dtype_name(a.dtype) in b.known_dtypes for arrays in case.inputs().values() for a in arrays)


def _use(b: Builder, case: Case, bold: bool, batched: bool) -> _Use | None:
    arrays, attrs = case.inputs(), dict(case.sample.attrs)
    if case.sample.lod or not arrays:
        return _Use(case, [arrays] * len(b.batches), attrs, False)
    if bold:
        attrs = {**attrs, **_disturbed(b, case)}
        arrays = {slot: [_renewed(b, case.op, a) for a in some] for slot, some in arrays.items()}
        if b.chance(0.5) and case.op.type not in KEEP_NUMBERS:
            arrays = _with_other_dims(b, arrays)
    if batched and case.op.type not in KEEP_NUMBERS:
        lead = _lead(case.op, arrays)
        if lead and b.chance(0.7):
            each = [{s: [_rows(a, lead, batch) for a in some] for s, some in arrays.items()} for batch in b.batches]
            return _Use(case, each, attrs, True)
    return _Use(case, [arrays] * len(b.batches), attrs, False)


def _lead(op: OpDef, arrays: Mapping[str, Sequence[Array]]) -> int:
    """The dim that may stand for the batch: it comes first, and nowhere else; 0 if there is none."""
    every = [(slot, a) for slot, some in arrays.items() for a in some]
    if not every or not every[0][1].ndim:
        return 0
    lead = int(every[0][1].shape[0])
    elsewhere = any(lead in a.shape[1:] for _, a in every)
    updated = any(slot in op.must_alias.values() for slot, _ in every)
    return 0 if elsewhere or updated else lead


def _rows(array: Array, old: int, new: int) -> Array:
    if not array.ndim or array.shape[0] != old:
        return array
    return np.take(array, np.arange(new) % old, axis=0)


def _with_other_dims(b: Builder, arrays: Mapping[str, list[Array]]) -> dict[str, list[Array]]:
    """Replace one dim by another wherever it occurs."""
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
    """Other numbers of the same range."""
    if not array.size or op.type in KEEP_NUMBERS or b.chance(0.4):
        return array
    if dtype_name(array.dtype) in ALL_FLOATS:
        plain = array.astype(np.float64)
        if not np.isfinite(plain).all() or plain.min() == plain.max() or set(np.unique(plain)) <= {0.0, 1.0}:
            return array
        low, high = plain.min(), plain.max()
        return np.asarray(b.rng.uniform(low, high, array.shape)).astype(array.dtype)
    return np.asarray(b.rng.permutation(array.reshape(-1)).reshape(array.shape))


def _disturbed(b: Builder, case: Case) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for attr in case.op.attrs:
        if not b.chance(0.25) or (attr.type == "int" and case.op.type in KEEP_NUMBERS):  # a number of classes
            continue
        value = case.sample.attrs.get(attr.name, attr.default)
        if value is not None:
            found[attr.name] = _moved(b, attr, value)
    return found


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


def _append(b: Builder, use: _Use, wired: bool) -> Any:
    """Append a use: state as persistable variables, other inputs fed, or made of earlier values."""
    case, op = use.case, use.case.op
    counts = _counts(b, use)
    if counts is None:
        return None
    inputs: dict[str, list[str]] = {}
    updated = {given: out for out, given in op.must_alias.items()}
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


def _counts(b: Builder, use: _Use) -> dict[str, int] | None:
    """How many variables each output slot gets; None if the reference, which knows it of lists, refuses the inputs."""
    op = use.case.op
    wanted = use.case.wanted()
    lists = {slot.name for slot in op.outputs if slot.duplicable}
    if not lists.intersection(wanted):
        return dict.fromkeys(wanted, 1)
    joined = [
        some for slot, some in use.arrays[0].items() if (given := op.input(slot)) is not None and given.duplicable
    ]
    if math.prod(a.size for some in joined for a in some) > MAX_ELEMENTS:  # meshgrid gives so many
        b.refused["too large"] += 1
        return None
    try:
        results = call_reference(op, use.arrays[0], canonical(op, use.attrs), use.case.sample.lod)
    except Exception:  # whatever NumPy says of what the reference was not written for
        b.refused[f"reference: {op.type}"] += 1
        return None
    return {slot: len(results[slot]) if slot in lists else 1 for slot in wanted}
