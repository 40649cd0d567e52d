"""Propagation of error bounds through operators, by class of operator.

- views and selections: the bounds move with the elements;
- scalar functions: a running error analysis of their expression (:mod:`fluidlite.testing.fuzz.tolerance`);
- sums of products: ``c n eps sum|terms|``, plus the operands' bounds propagated through the absolute terms;
- others: probes, the reference at random points within the bounds (an estimate of the local condition number).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS, HALVES, dtype_name
from fluidlite.program.kernel_registry import kernels
from fluidlite.program.opdef import OpDef
from fluidlite.testing.fuzz.call import call_reference
from fluidlite.testing.fuzz.operator_classes import CANCELLING, CENTRED, FUSED, SELECTIONS, SUMS, VIEWS
from fluidlite.testing.fuzz.recipe import OperatorStep
from fluidlite.testing.fuzz.tolerance import UNIT, Array, Bounded, Term, distance, rounding, running_error, wide

PROBES = 6  # points at which a reference is evaluated
SAFETY = 4.0
"""Factor of probed bounds: random directions may miss the largest change."""
INPUT_ERROR_UNITS = 8.0
"""Backward error of operators of no simpler class, in rounding units of their input."""


@functools.cache
def by_hand() -> frozenset[str]:
    """Operators with hand-written kernels, which may round otherwise than kernels generated from the expression."""
    return frozenset(kernel.op for kernel in kernels)


class NoReference(Exception):
    """The reference does not accept the inputs, or there is none."""


def reference_of(op: OpDef, inputs: Any, attrs: Any, lod: Any) -> dict[str, list[Array]]:
    """Evaluate the definition's reference in float64; raise NoReference if it raises."""
    try:
        outputs: dict[str, list[Array]] = call_reference(op, inputs, attrs, lod)
    except Exception as error:  # NumPy may raise any class for unsupported inputs
        raise NoReference(f"{op.type}: {type(error).__name__}: {error}") from error
    return outputs


def _steepened(x: Array, y: Array, axis: int) -> Array:
    """The largest element of X times the largest slope dY/dX between neighbours along an axis."""
    x, y = wide(x), wide(y)
    if x.shape[axis] < 2:
        x, y = x.reshape(-1), y.reshape(-1)
    with np.errstate(all="ignore"):
        slopes = np.abs(np.diff(y, axis=axis) / np.diff(x, axis=axis))
    steepest = np.max(slopes, axis=axis, keepdims=True, initial=0.0, where=np.isfinite(slopes))
    largest = np.max(np.abs(x), axis=axis, keepdims=True, initial=0.0, where=np.isfinite(x))
    product: Array = largest * steepest
    return product


def _compute(op: OpDef, dtype: str) -> str:
    """The compute dtype of an operator: float32 for half types, unless it may be decomposed into rounding operators."""
    return "float32" if dtype in HALVES and op.decompose is None else dtype


def _overflows(array: Array) -> bool:
    """Whether the product of a subset of elements may leave the dtype's range, even if the whole product does not."""
    if array.dtype.kind in "biu" or not array.size:
        return False
    sizes = np.abs(wide(array))
    with np.errstate(all="ignore"):
        logs = np.log2(sizes[sizes > 0])
    reach = {"float64": 1000.0, "float16": 14.0}.get(dtype_name(array.dtype), 120.0)
    return bool(logs[logs > 0].sum() > reach or -logs[logs < 0].sum() > reach)


def float_dtypes(inputs: Any) -> list[str]:
    return [dtype_name(b.value.dtype) for bs in inputs.values() for b in bs if b.value.dtype.kind not in "biu"]


def _reduced(inputs: Any, array: Array) -> float:
    """The approximate number of input elements that one output element depends on."""
    largest = max((b.value.size for bs in inputs.values() for b in bs), default=1)
    return largest / max(1, array.size)


class ErrorBounds:
    """Error bounds of operators' outputs, from those of their inputs; ``seed``: for the probes' directions."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)

    def of(
        self,
        step: OperatorStep,
        attrs: Any,
        inputs: dict[str, list[Bounded]],
        exact: dict[str, list[Array]],
        declared: dict[str, str],
        lod: Any,
    ) -> dict[str, list[Array]]:
        """Return the bounds of a step's values ``exact``, by slot; the expression's values may replace them."""
        op = step.op
        floats = [b for bs in inputs.values() for b in bs if b.value.dtype.kind not in "biu"]
        dirty = any(not b.exact for bs in inputs.values() for b in bs)
        if any(np.isinf(b.bound).any() for bs in inputs.values() for b in bs):
            return {slot: [np.full(a.shape, np.inf) for a in arrays] for slot, arrays in exact.items()}
        if step.type in VIEWS or step.type in SELECTIONS:
            if not dirty:
                return {slot: [np.zeros(a.shape) for a in arrays] for slot, arrays in exact.items()}
            if step.type in VIEWS:
                return self._moved(op, attrs, inputs, exact, lod)
            return self._probed(op, attrs, inputs, exact, declared, lod, own=False)
        if step.type.endswith("_interp") and not floats:  # integers, truncated from sums of floats
            return {slot: [np.full(a.shape, np.inf) for a in arrays] for slot, arrays in exact.items()}
        if step.type == "reduce_prod" and _overflows(inputs["X"][0].value):
            return {slot: [np.full(a.shape, np.inf) for a in arrays] for slot, arrays in exact.items()}
        running = running_error(op, attrs, inputs, declared)
        if running is not None and set(running) >= set(declared):
            agreed = self._agreed(running, exact, declared, op.type in by_hand())
            if agreed is not None:
                return agreed
        if step.type in SUMS and len(floats) > 0 and "act" not in attrs:
            return self._summed(op, attrs, inputs, exact, declared, lod)
        return self._probed(op, attrs, inputs, exact, declared, lod, own=True)

    @staticmethod
    def _agreed(
        running: dict[str, Term], exact: dict[str, list[Array]], declared: dict[str, str], by_hand: bool
    ) -> dict[str, list[Array]] | None:
        """Return the bounds of the expression, or None if its value differs from the reference's by more than them.

        If every rendering gives the bits of the expression, its value replaces the reference's in ``exact``.
        """
        bounds: dict[str, list[Array]] = {}
        replaced: dict[str, Array] = {}
        for slot, dtype in declared.items():
            (array,) = exact[slot]
            try:
                value = np.broadcast_to(running[slot].value, array.shape)
                drift = np.broadcast_to(running[slot].drift, array.shape)
            except ValueError:
                return None
            if dtype in ALL_FLOATS and value.dtype.kind == "f":
                with np.errstate(all="ignore"):
                    error = np.abs(value - array)
                    exceeds = error > drift + 4 * rounding(array, dtype) + 1e-12 * np.abs(array)
                if (exceeds & np.isfinite(array)).any():
                    return None
                if dtype == "float64":  # the reference itself rounds in float64
                    drift = drift + np.where(np.isfinite(error), error, 0.0)
            if running[slot].exact and not by_hand:
                replaced[slot], drift = value, np.zeros(array.shape)
            bounds[slot] = [drift]
        for slot, value in replaced.items():
            exact[slot] = [value]
        return bounds

    def _moved(self, op: OpDef, attrs: Any, inputs: Any, exact: Any, lod: Any) -> dict[str, list[Array]]:
        """Views: apply the operator to the bounds; constants that it fills in have bound 0."""
        plain = {name: 0.0 if name in ("pad_value", "value") else value for name, value in attrs.items()}
        arrays = {
            slot: [b.bound.copy() if b.value.dtype.kind not in "biu" else b.value for b in bs]
            for slot, bs in inputs.items()
        }
        moved = reference_of(op, arrays, plain, lod)
        return {
            slot: [
                np.abs(m) if a.dtype.kind == "f" else np.zeros(a.shape)
                for m, a in zip(moved[slot], arrays_, strict=True)
            ]
            for slot, arrays_ in exact.items()
        }

    def _summed(
        self, op: OpDef, attrs: Any, inputs: Any, exact: Any, declared: dict[str, str], lod: Any
    ) -> dict[str, list[Array]]:
        """``(bound of the operands) + c n eps sum|terms|``, from the reference at the absolute values."""
        positive = {name: abs(value) if isinstance(value, float) else value for name, value in attrs.items()}
        steepest = 1.0
        if any(attrs.get(name) for name in FUSED):  # a fused activation, with at most this slope
            steepest = max(1.1, abs(attrs.get("fuse_alpha") or 0.0))
            positive |= {name: type(attrs[name])() for name in FUSED if name in attrs}

        def at(change: Callable[[Bounded], Array]) -> dict[str, list[Array]]:
            moved = {
                slot: [b.value if b.value.dtype.kind in "biu" else change(b) for b in bs] for slot, bs in inputs.items()
            }
            return reference_of(op, moved, positive, lod)

        terms = at(lambda b: np.abs(wide(b.value)) + b.bound)
        plain = at(lambda b: np.abs(wide(b.value)))
        counts = at(lambda b: np.ones(b.value.shape))
        bounds: dict[str, list[Array]] = {}
        for slot, arrays in exact.items():
            dtype = declared.get(slot, "float32")
            bounds[slot] = []
            for i, array in enumerate(arrays):
                if dtype not in ALL_FLOATS:
                    bounds[slot].append(np.zeros(array.shape))
                    continue
                compute = _compute(op, dtype)
                count = max(float(np.max(counts[slot][i], initial=1.0)), _reduced(inputs, array))
                own = UNIT[compute] * (count + 4) * terms[slot][i] * 2
                with np.errstate(invalid="ignore"):  # inf - inf: no finite bound
                    carried = np.nan_to_num(terms[slot][i] - plain[slot][i], nan=np.inf, posinf=np.inf)
                bounds[slot].append(steepest * (carried * (1 + 1e-6) + own) + 2 * rounding(array, dtype))
        return bounds

    def _probed(
        self, op: OpDef, attrs: Any, inputs: Any, exact: Any, declared: dict[str, str], lod: Any, own: bool
    ) -> dict[str, list[Array]]:
        """The largest change at probes within the bounds; with ``own``, extended by some units for the own rounding.

        Random probes come in pairs of opposite directions: of nearly equal elements or sums, a selection cannot choose
        the same one at both.
        """
        across: dict[tuple[str, int], Array] = {}
        farthest = {slot: [np.zeros(a.shape) for a in arrays] for slot, arrays in exact.items()}
        for probe in range(PROBES):
            moved: dict[str, list[Array]] = {}
            for slot, bs in inputs.items():
                moved[slot] = []
                for i, b in enumerate(bs):
                    if b.value.dtype.kind in "biu":
                        moved[slot].append(b.value)
                        continue
                    value = wide(b.value)
                    reach = b.bound.copy()
                    if own and value.size:
                        unit = UNIT[_compute(op, dtype_name(b.value.dtype))]
                        finite = np.where(np.isfinite(value), np.abs(value), 0.0)
                        reach = reach + INPUT_ERROR_UNITS * unit * (np.max(finite) if probe in (1, 4, 5) else finite)
                    if probe < 2:
                        moved[slot].append(value + (1.0, -1.0)[probe] * reach)
                    elif probe % 2:
                        moved[slot].append(value - across[slot, i])
                    else:
                        shape = value.shape
                        signs = self.rng.choice([-1.0, 1.0], shape) if own else self.rng.uniform(-1.0, 1.0, shape)
                        across[slot, i] = np.asarray(signs * reach)
                        moved[slot].append(value + across[slot, i])
            try:
                other = reference_of(op, moved, attrs, lod)
            except NoReference:
                return {slot: [np.full(a.shape, np.inf) for a in arrays] for slot, arrays in exact.items()}
            for slot, arrays in exact.items():
                for i, array in enumerate(arrays):
                    probed = other[slot][i]
                    if probed.shape != array.shape:
                        farthest[slot][i][...] = np.inf
                    elif array.dtype.kind in "biu":
                        farthest[slot][i][probed != array] = np.inf
                    else:
                        farthest[slot][i] = np.maximum(farthest[slot][i], distance(probed, array))
        bounds: dict[str, list[Array]] = {}
        for slot, arrays in exact.items():
            bounds[slot] = []
            for array, far in zip(arrays, farthest[slot], strict=True):
                dtype = declared.get(slot, "float32")
                if own and array.dtype.kind == "f" and dtype in ALL_FLOATS:
                    finite = np.abs(array[np.isfinite(array)])
                    mean = float(finite.mean()) if finite.size else 0.0
                    unit = max(UNIT[_compute(op, d)] for d in (dtype, *float_dtypes(inputs)))
                    count = _reduced(inputs, array)
                    some = far[np.isfinite(far)]
                    with np.errstate(over="ignore"):  # then the bound is infinite
                        far = SAFETY * (far + (float(some.mean()) if some.size else 0.0))
                    if op.type in CANCELLING:
                        mean += sum(float(np.abs(b.value).sum()) for bs in inputs.values() for b in bs)
                    far = far + unit * (count + 16) * (np.abs(array) + mean) + 4 * rounding(array, dtype)
                    if op.type in CENTRED and slot == "Y":
                        far = far + INPUT_ERROR_UNITS * unit * _steepened(inputs["X"][0].value, array, CENTRED[op.type])
                elif not own:
                    far = np.where(far > 0, 2 * far, 0.0)
                bounds[slot].append(far)
        return bounds
