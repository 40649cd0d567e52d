"""Every operator with an input of another size, rank or dtype: its reference takes it too, or the error is clear."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from grouped import family, grouped

from fluidlite.base.errors import ProgramError
from fluidlite.cli.op_docs import is_own
from fluidlite.conformance.op_harness import build
from fluidlite.conformance.reference import Oracle
from fluidlite.conformance.samples import Sample, reference_of, samples_of
from fluidlite.program.opdef import OpDef
from fluidlite.program.registry import ops
from fluidlite.testing import Case

Array = np.ndarray[Any, Any]
ONE_NUMBER = {
    "Alpha", "Beta1Pow", "Beta1Tensor", "Beta2Pow", "Beta2Tensor", "CenterUpdateRate", "DirectionSquares", "End",
    "GradSquares", "LearningRate", "Max", "Min", "Noise", "Num", "ParamSquares", "ScaleTensor", "Seed", "Start", "Step",
    "Stop", "in_num_accumulates", "in_num_updates", "in_old_num_accumulates",
}  # fmt: skip
"""Slots of one number, whatever its rank; references read [1]."""


def changed(array: Array) -> Iterator[tuple[str, Array]]:
    """The array with one thing changed."""
    for axis, size in enumerate(array.shape):
        if size:
            yield f"dim {axis} longer", np.concatenate([array, np.take(array, [0], axis)], axis)
    yield "one dim more", array[None]
    if array.ndim:
        yield "one dim less", array.reshape((*array.shape[:-2], -1))
    for dtype in ("float32", "float64", "int64"):
        if str(array.dtype) != dtype:
            yield dtype, array.astype(dtype)


def uses(op: OpDef) -> Iterator[tuple[str, str, Case]]:
    """The operator's first samples, each with one input changed; and the slot's name."""
    for sample in samples_of(op.type)[:2]:
        if sample.lod:
            continue
        given = {slot: list(v) if isinstance(v, (list, tuple)) else [v] for slot, v in sample.inputs.items()}
        if sum(np.size(array) for arrays in given.values() for array in arrays) > 5000:
            continue
        for slot, arrays in given.items():
            declared = op.input(slot)
            assert declared is not None
            for how, array in changed(np.asarray(arrays[0])) if arrays else ():
                inputs: dict[str, Any] = dict(sample.inputs)
                inputs[slot] = [array, *arrays[1:]] if declared.duplicable else array
                use = Sample(inputs, sample.attrs, outputs=sample.outputs)
                yield slot, f"{sample.name}: {slot} {how}", Case(op, use, how, "as given")


def problem(slot: str, case: Case, counts: dict[str, int]) -> str | None:
    """What is wrong with how the operator takes a use."""
    words = [each.name for each in (*case.op.inputs, *case.op.outputs, *case.op.attrs)]
    try:
        one = build(case, counts)
    except ProgramError as error:
        text = str(error)
        named = any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text.partition("): ")[2]) for word in words)
        return None if f"operator {case.op.type} " in text and named else f"unclear: {text}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if slot in ONE_NUMBER or reference_of(case.op.type) is None or case.op.random:
        return None
    try:
        expected = Oracle(case).outputs
    except IndexError:  # of numbers, which are looked at when it runs
        return None
    except Exception as error:
        return f"taken, but its reference says {type(error).__name__}: {error}"
    for name, variables in one.outputs.items():
        for variable, wanted in zip(variables, expected.get(name, ()), strict=False):
            fits = len(variable.shape) == wanted.ndim and all(
                a in (-1, b) for a, b in zip(variable.shape, wanted.shape, strict=True)
            )
            if not fits:
                return f"{name} is {list(variable.shape)}, and of the reference {list(wanted.shape)}"
    return None


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@grouped(("op",), ((op,) for op in ops if samples_of(op.type) and is_own(op) and op.run is None), family)
def test_inputs_that_differ(op: OpDef) -> None:
    first = samples_of(op.type)[0]
    outputs = Oracle(Case(op, first, "", "as given")).outputs if reference_of(op.type) is not None else {}
    found = []
    for slot, name, case in uses(op):
        slots = case.sample.outputs or tuple(each.name for each in op.outputs)
        counts = {each: len(outputs.get(each, [0])) for each in slots}
        wrong = problem(slot, replace(case, label=name), counts)
        if wrong is not None:
            found.append(f"{name}: {wrong}")
    assert not found, "\n".join(found)
