"""What the optimisers' updates share: outputs that are their inputs, written in place; inference; samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS, HALVES, NUMPY, compute_dtype
from fluidlite.codegen.expr import parameters
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, OpDef, Reference, Sample, Slot
from fluidlite.operators.inference import Inferred, all_agree, like, same_dtype
from fluidlite.operators.samples import MIXED, WIDE, rand
from fluidlite.operators.scalar_op import camel, scalar_op

Ranges = Mapping[str, "tuple[float, float]"]
Named = Mapping[str, Mapping[str, Any]]

SCALARS = ("LearningRate", "Beta1Pow", "Beta2Pow", "Beta1Tensor", "Beta2Tensor")
"""Inputs of one number."""


def update(
    type: str,
    function: Callable[..., Any],
    outputs: Mapping[str, str],
    *,
    attrs: Iterable[Attr] = (),
    reference: Reference,
    samples: Callable[[], Iterable[Sample]],
    optional: Sequence[str] = (),
    check: Callable[[Call], None] | None = None,
    doc: str,
    source: str,
) -> OpDef:
    """Declare an update that is a function of scalars.

    Parameters
    ----------
    outputs : mapping of output slot to the input slot whose variable it is
    optional : sequence of str
        Slots, of inputs and outputs, that may be left out.
    check : callable
        Raises what else is wrong with a call.
    """
    inputs = tuple(map(camel, parameters(function)[0]))
    return scalar_op(
        type, function, outputs=tuple(outputs), attrs=attrs, infer=update_infer(inputs, outputs, check),
        slots={name: Slot(name, dispensable=True) for name in optional}, must_alias=outputs,
        dtypes={"Param": ALL_FLOATS}, reference=reference, samples=samples, doc=doc, source=source,
    )  # fmt: skip


def update_infer(
    inputs: Sequence[str], outputs: Mapping[str, str], check: Callable[[Call], None] | None = None
) -> Callable[[Call], Inferred]:
    """Return the inference of an update: state is as Param, ``SCALARS`` hold one number; outputs are as their inputs.

    All but Grad may be float32 where Param is a half type: in that, powers of beta2 near 1 and slow averages stall.
    """

    def infer(call: Call) -> Inferred:
        if check is not None:
            check(call)
        for slot in inputs:
            if slot == "Param" or not call.has(slot):
                continue
            if slot == "Grad" or call.dtype(slot) != compute_dtype(call.dtype("Param")):
                same_dtype(call, slot, "Param")
            if slot in SCALARS:
                call.need(all(d in (1, -1) for d in call.dims(slot)), slot, "one number, [1]")
            elif not all_agree(call.dims(slot), call.dims("Param")):
                call.fail(slot, f"{list(call.dims('Param'))}, the dims of Param")
        for output, slot in outputs.items():
            if call.has(output) and not call.has(slot):
                call.fail(slot, f"the variable that {output} updates")
        return {output: like(call.spec(slot)) for output, slot in outputs.items() if call.has(slot)}

    return infer


# Samples -----------------------------------------------------------------------------------------------------------


def tensors(*dims: int, **ranges: tuple[float, float]) -> dict[str, Any]:
    """Return Param, Grad, LearningRate, and state of uniform numbers in ``ranges``; that of a scalar is its number."""
    inputs = {"Param": rand(*dims, seed=1), "Grad": rand(*dims, seed=2), "LearningRate": np.asarray([0.1], "float32")}
    for i, (slot, (low, high)) in enumerate(ranges.items()):
        size = (1,) if slot in SCALARS else dims
        inputs[slot] = rand(*size, low=low, high=high, seed=3 + i)
    return inputs


def halved(inputs: Mapping[str, Any], dtype: str, *wide: str) -> dict[str, Any]:
    """Return inputs in a half type, but for those named."""
    return {slot: array if slot in wide else array.astype(NUMPY[dtype]) for slot, array in inputs.items()}


def update_samples(
    ranges: Ranges,
    attributes: Named,
    outputs: tuple[str, ...] = (),
    rate: bool = True,
) -> Callable[[], list[Sample]]:
    """Return samples of an update: a matrix under each of ``attributes``, then the edges and the half types.

    Parameters
    ----------
    ranges : mapping of slot to (low, high)
        State beside Param, Grad and LearningRate.
    attributes : mapping of name to attributes
        The first is used for the edges.
    outputs : tuple of str
        Output slots to ask for; empty: all.
    rate : bool
        Whether there is a LearningRate.
    """

    def samples() -> list[Sample]:
        def given(*dims: int) -> dict[str, Any]:
            made = tensors(*dims, **ranges)
            return made if rate else {slot: array for slot, array in made.items() if slot != "LearningRate"}

        first = next(iter(attributes.values()))
        state = tuple(slot for slot in given(1) if slot not in ("Param", "Grad"))
        scalars = tuple(slot for slot in state if slot in SCALARS)
        found = [
            Sample(given(5, 7), each, name=name, dtypes=WIDE, outputs=outputs) for name, each in attributes.items()
        ]
        for name, dims in (("one", (1,)), ("empty", (0, 3)), ("large", (300, 250))):
            found.append(Sample(given(*dims), first, name=name, outputs=outputs))
        for half in HALVES:
            inputs = halved(given(5, 7), half, *state)
            found.append(Sample(inputs, first, name=half, dtypes=MIXED, outputs=outputs))
        if len(state) > len(scalars):
            inputs = halved(given(5, 7), "float16", *scalars)
            found.append(Sample(inputs, first, name="half_state", dtypes=MIXED, outputs=outputs))
        return found

    return samples


def squares(x: Any) -> float:
    """Return the sum of squares, added one by one."""
    return sum((float(v) * float(v) for v in np.ravel(x)), 0.0)
