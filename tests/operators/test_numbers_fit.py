"""Attributes' numbers that an operator combines with integers, or writes as such: right, or refused."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.dtypes import ALL_FLOATS, dtype_name
from fluidlite.conformance.cases import cases
from fluidlite.conformance.samples import Sample, reference_of
from fluidlite.program.registry import ops

L = fluid.layers
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
NUMBERS = (2**40, -(2**40), 2**63, 2**63 - 1, 2**70, 300, 0.5, -1.5, 1e30, math.nan, math.inf, -1)
WRAPS = ("scale", "increment")
"""They compute in X's dtype: numbers lose their fractions first, and then products and sums wrap, as integers do."""
LARGE = 10**6
"""Elements above which an output is not made: its dims came out of the number."""


def narrow(array: Any, dtype: str) -> Any:
    return array.astype(dtype) if isinstance(array, np.ndarray) and array.dtype.kind in "iu" else array


def subjects() -> Iterator[tuple[str, Sample, str]]:
    """Each operator with a reference, a sample that computes with integers, and an attribute that is a number."""
    for op in ops:
        if reference_of(op.type) is None or op.random:
            continue
        for case in cases([op.type]):
            sample, inputs = case.sample, case.inputs()
            given = [x for arrays in inputs.values() for x in arrays]
            lists = any(isinstance(x, list) for x in sample.inputs.values())
            if lists or any(dtype_name(x.dtype) in ALL_FLOATS or x.size == 0 for x in given):
                continue
            if not given and sample.attrs.get("dtype") not in INTEGERS:
                continue
            for attr in op.attrs:
                if attr.type in ("float", "int"):
                    yield op.type, replace(sample, inputs={slot: x for slot, (x,) in inputs.items()}), attr.name
            break


def result(type: str, inputs: dict[str, Any], attrs: dict[str, Any]) -> list[Any] | None:
    """What the operator gives; None if it refuses, or if Out is too large to be made here."""
    op, main = ops.get(type), fluid.Program()
    with fluid.scope_guard(fluid.Scope()), fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        block, feed = main.global_block(), {f"in.{slot}": x for slot, x in inputs.items()}
        given = {s: L.data(f"in.{s}", list(x.shape), dtype=x.dtype.name, append_batch_size=False)
                 for s, x in inputs.items()}  # fmt: skip
        made = {slot.name: block.create_var(f"out.{slot.name}") for slot in op.outputs if not slot.dispensable}
        try:
            block.append_op(type, inputs=given, outputs=made, attrs=attrs)
            if any(math.prod(abs(d) for d in out.shape) > LARGE for out in made.values()):
                return None
            exe = fluid.Executor("cpu")
            return [np.asarray(x) for x in exe.run(main, feed, list(made.values()))]
        except fluid.FluidError:
            return None


def wanted(type: str, inputs: dict[str, Any], attrs: dict[str, Any], name: str) -> list[Any]:
    """The exact result, in Python's integers where there can be a number beyond 64 bits; fractions are cut off."""
    op = ops.get(type)
    full = {attr.name: attr.default for attr in op.attrs} | attrs
    if type in WRAPS and isinstance(full.get(name), float):
        full[name] = math.trunc(full[name])
    wide = {slot: x.astype("int64") if x.dtype.kind in "iu" else x for slot, x in inputs.items()}
    assert reference_of(op.type) is not None
    found = reference_of(op.type)(wide, full)
    return [np.asarray(found[slot.name]) for slot in op.outputs if not slot.dispensable]


def equal(these: list[Any], those: list[Any]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(these, those, strict=True))


def fault(type: str, inputs: dict[str, Any], attrs: dict[str, Any], name: str, usual: list[Any]) -> Any:
    """What the operator gives, and what it should, if these differ; None where it is right or refuses."""
    got = result(type, inputs, attrs)
    if got is None or equal(got, usual):
        return None  # refused, or of no effect
    if isinstance(attrs[name], float) and not math.isfinite(attrs[name]):
        return got, "a refusal"
    exact = wanted(type, inputs, attrs, name)
    if type in WRAPS:
        exact = [x.astype(mine.dtype) for x, mine in zip(exact, got, strict=True)]
    return None if equal(got, exact) else (got, exact)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_every_operator(dtype: str) -> None:
    wrong, tried = [], set()
    for type, sample, name in subjects():
        inputs = {slot: narrow(np.asarray(x), dtype) for slot, x in sample.inputs.items()}
        attrs = {k: dtype if k == "dtype" and v in INTEGERS else v for k, v in sample.attrs.items()}
        usual = result(type, inputs, attrs)
        if usual is None or not (type in WRAPS or equal(usual, wanted(type, inputs, attrs, name))):
            continue  # it takes no such integers, or its reference is of numbers of another width
        tried.add(type)
        floats = next(attr for attr in ops.get(type).attrs if attr.name == name).type == "float"
        for number in NUMBERS:
            if floats or isinstance(number, int):
                found = fault(type, inputs, {**attrs, name: float(number) if floats else number}, name, usual)
                if found is not None:
                    wrong.append((type, name, number, *found))
    assert not wrong, "\n".join(map(str, wrong))
    assert tried >= {"increment", "scale", "pad", "fill_any_like", "shard_index"} or dtype not in ("int32", "int64")


def test_dims_fit_into_shapes_numbers() -> None:
    x = L.data("x", [2, 1], dtype="int64", append_batch_size=False)
    with pytest.raises(fluid.errors.ShapeError, match="Out is int32"):
        L.shape(L.one_hot(x, 2**33))
