"""Scalars, tensors of rank 0, in each operator's slots: its reference's result, or an error that says what it wants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.conformance.samples import Sample, reference_of, samples_of
from fluidlite.program.opdef import OpDef
from fluidlite.program.registry import ops

L = fluid.layers
PLACES = [str(place) for place in fluid.places() if place.kind in ("cpu", "opencl")]
FOREIGN = (fluid.errors.DeviceError, fluid.errors.KernelError)
"""What an exception of Python's or NumPy's in a kernel, or a driver's error, becomes."""


def subjects() -> Iterator[tuple[OpDef, Sample, list[tuple[str, ...]]]]:
    """Each operator with a reference, its first sample of tensors, and the slots to be made scalars: each, and all."""
    for op in ops:
        if reference_of(op.type) is None or op.random or op.type in ("print", "py_func"):
            continue
        for sample in samples_of(op.type):
            arrays = list(sample.inputs.values())
            if arrays and all(not isinstance(x, list) and np.asarray(x).size for x in arrays):
                each = [(slot,) for slot in sample.inputs if len(sample.inputs) > 1]
                yield op, sample, [*each, tuple(sample.inputs)]
                break


def build(op: OpDef, inputs: dict[str, Any], attrs: dict[str, Any]) -> tuple[fluid.Program, dict[str, Any]]:
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        given = {s: L.data(f"in.{s}", list(x.shape), dtype=x.dtype.name, append_batch_size=False)
                 for s, x in inputs.items()}  # fmt: skip
        made = {slot.name: main.global_block().create_var(f"o.{slot.name}")
                for slot in op.outputs if not slot.dispensable}  # fmt: skip
        main.global_block().append_op(op.type, inputs=given, outputs=made, attrs=attrs)
    return main, made


def exact(op: OpDef, inputs: dict[str, Any], attrs: dict[str, Any]) -> dict[str, Any]:
    """The reference in float64; one that takes its numbers as [1] is given them so: it counts as the same number."""
    full = {attr.name: attr.default for attr in op.attrs} | attrs
    wide = {s: x.astype("float64") if x.dtype.kind == "f" else x for s, x in inputs.items()}
    assert reference_of(op.type) is not None
    with np.errstate(all="ignore"):
        try:
            return dict(reference_of(op.type)(wide, full))
        except (IndexError, TypeError):
            return dict(reference_of(op.type)({s: np.atleast_1d(x) for s, x in wide.items()}, full))


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
@pytest.mark.parametrize("place", PLACES)
def test_every_operator(place: str, mode: str) -> None:
    wrong, ran, refused = [], 0, 0
    for op, sample, choices in subjects():
        # A kernel takes long where a driver builds it, and is the same for most slots.
        for slots in choices if place.startswith("cpu") else choices[:1] if mode == "compiled" else choices[-1:]:
            inputs = {slot: np.asarray(x) for slot, x in sample.inputs.items()}
            if all(inputs[slot].ndim == 0 for slot in slots):
                continue
            inputs |= {slot: inputs[slot].reshape(-1)[0].reshape(()) for slot in slots}
            try:
                main, made = build(op, inputs, dict(sample.attrs))
                feed = {f"in.{slot}": x for slot, x in inputs.items()}
                with fluid.scope_guard(fluid.Scope()):
                    values = fluid.Executor(place, mode=mode).run(main, feed, list(made.values()))
            except FOREIGN as exc:
                wrong.append((op.type, slots, exc))
                continue
            except fluid.FluidError:
                refused += 1
                continue
            ran += 1
            want = exact(op, inputs, dict(sample.attrs))
            for (slot, variable), value in zip(made.items(), map(np.asarray, values), strict=True):
                expected = np.asarray(want[slot])
                dims = -1 in variable.shape or value.shape == tuple(variable.shape)
                near = value.size == expected.size and np.allclose(
                    value.reshape(-1), expected.reshape(-1), rtol=1e-4, atol=1e-5, equal_nan=True
                )
                if not (dims and near):
                    wrong.append((op.type, slots, slot, value.shape, variable.shape, value, expected))
    assert not wrong, "\n".join(map(str, wrong))
    assert ran > 60 and refused > 50, (ran, refused)
