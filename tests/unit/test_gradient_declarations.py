"""Every operator says of each float input whether it has a derivative, or why it has none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from grouped import family, grouped

import fluidlite as fluid
from fluidlite.base.dtypes import ALL_FLOATS, dtype_name, is_float
from fluidlite.base.errors import GradientError
from fluidlite.conformance.cases import cases
from fluidlite.conformance.op_harness import build
from fluidlite.conformance.reference import Oracle
from fluidlite.conformance.samples import reference_of, samples_of
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import GRAD, OpDef
from fluidlite.program.operator_arguments import check_attrs
from fluidlite.program.registry import ops
from fluidlite.program.rules import GradRule
from fluidlite.program.source_location import NOWHERE
from fluidlite.tensor.tensor_spec import Spec

GRADIENTS = {op.grad.type for op in ops if isinstance(op.grad, GradRule)}
RULES = [op for op in ops if op.type not in GRADIENTS and not any(slot.name.endswith(GRAD) for slot in op.inputs)]
BY_FUNCTION = [op for op in RULES if callable(op.grad) and not isinstance(op.grad, GradRule) and reference_of(op.type)]


def arrays(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def dtypes_in_samples(op: OpDef, slot: str) -> set[str]:
    found = {dtype_name(a.dtype) for s in samples_of(op.type) for a in map(np.asarray, arrays(s.inputs.get(slot, [])))}
    return found


def may_be_float(op: OpDef, slot: str) -> bool:
    allowed = set(op.dtypes.get(slot, ())) or dtypes_in_samples(op, slot)
    return not allowed or any(map(is_float, allowed))


def float_outputs(op: OpDef) -> set[str]:
    """Output slots that hold floats in some sample; all of them where there is none."""
    found: set[str] = set()
    for case in cases([op.type]):
        specs = {
            slot: tuple(
                Spec.of(
                    a.shape, a.dtype.name, lod=case.sample.lod.get(slot, ()),
                    value=tuple(a.reshape(-1).tolist()) if op.input(slot).value else None,  # type: ignore[union-attr]
                )
                for a in given
            )
            for slot, given in case.inputs().items()
        }  # fmt: skip
        ordered = {slot.name: specs[slot.name] for slot in op.inputs if slot.name in specs}
        assert op.infer is not None
        results = op.infer(Call(op, ordered, {}, check_attrs(op, case.sample.attrs, NOWHERE)[0]))
        found |= {slot for slot, given in results.items() for spec in arrays(given) if is_float(spec.dtype)}
    return found if reference_of(op.type) is not None else {slot.name for slot in op.outputs}


@grouped(("op",), ((op,) for op in RULES if not op.marker), family)
def test_every_float_input_is_declared(op: OpDef) -> None:
    if not {slot for slot in float_outputs(op) if op.stops(slot) is None}:
        return  # no float comes out that could carry a derivative
    if callable(op.grad) and not isinstance(op.grad, GradRule):
        return  # tried below
    given = set(op.grad.writes) if isinstance(op.grad, GradRule) else set()
    undeclared = [
        slot.name
        for slot in op.inputs
        if may_be_float(op, slot.name)
        and slot.name not in given
        and slot.name not in op.no_gradient
        and op.stops(slot.name) is None
    ]
    assert not undeclared, f"{op.type}: say stop_gradient or no_gradient of {undeclared}, or give a gradient"


@grouped(("op",), ((op,) for op in RULES if isinstance(op.grad, GradRule)), family)
def test_every_float_output_is_declared(op: OpDef) -> None:
    assert isinstance(op.grad, GradRule)
    taken = {slot.removesuffix(GRAD) for slot in op.grad.reads if slot.endswith(GRAD)}
    undeclared = [
        slot.name
        for slot in op.outputs
        if slot.name in float_outputs(op)
        and slot.name not in taken
        and not slot.intermediate  # of which backward raises
        and slot.name not in op.no_gradient
        and op.stops(slot.name) is None
    ]
    assert not undeclared, f"{op.type}: its gradient does not take those of {undeclared}"


@pytest.mark.parametrize("op", BY_FUNCTION, ids=lambda op: op.type)
def test_functions_that_make_gradients_give_one_for_every_float_input(op: OpDef) -> None:
    tried = set()
    for case in cases([op.type]):
        for slot, given in case.inputs().items():
            if not all(dtype_name(a.dtype) in ALL_FLOATS for a in given):
                continue
            one = build(case, {name: len(outs) for name, outs in Oracle(case).outputs.items()})
            targets = [
                v for name, vs in one.outputs.items() for v in vs if is_float(v.dtype) and op.stops(name) is None
            ]
            if not targets or op.stops(slot) is not None or not (case.sample.grads or slot in op.no_gradient):
                continue
            tried.add(slot)
            if slot in op.no_gradient:
                with pytest.raises(GradientError, match=f"input {slot} '{slot}.0'"):
                    fluid.gradients(targets, one.inputs[slot])
            else:
                assert None not in fluid.gradients(targets, one.inputs[slot])
    untried = {s.name for s in op.inputs if may_be_float(op, s.name) and op.stops(s.name) is None} - tried
    assert untried <= set(op.no_gradient)
