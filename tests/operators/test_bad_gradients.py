"""Gradient operators refuse gradients and saved outputs of other dims than those of the forward operator."""

from __future__ import annotations

import numpy as np
import pytest
from derivative_cases import OPERATORS, chosen
from grouped import family, grouped

from fluidlite.base.dtypes import dtype_name, is_float
from fluidlite.base.errors import FluidError
from fluidlite.conformance.cases import Case
from fluidlite.expr.gradients import function_of
from fluidlite.platform.place import Place
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import GRAD, OpDef
from fluidlite.program.registry import ops
from fluidlite.program.rules import GradRule
from fluidlite.tensor.tensor_spec import Spec, specs_of

Specs = dict[str, tuple[Spec, ...]]

OF_ANY_DIMS = {"crop", "crop_tensor", "scatter", "scatter_nd_add"}
"""Only Out@GRAD says what was cut, or how large X is."""
ALLOWED = {
    "expand": lambda ins, axis, size: size % ins["X"][0].dims[axis] == 0,  # it says how often X is repeated
    "expand_as": lambda ins, axis, size: size % ins["X"][0].dims[axis] == 0,
    "pad_constant_like": lambda ins, axis, size: size >= ins["Y"][0].dims[axis],  # it says how large X is
}
"""Whether Out@GRAD may have a size along an axis, where it alone says that."""


def gradient_specs(case: Case, rule: GradRule) -> Specs | None:
    """What the gradient operator reads, as backward makes it; None where inference alone does not say it."""
    op, ins = case.op, Specs()
    for slot, arrays in case.inputs().items():
        declared = op.input(slot)
        value = declared is not None and declared.value
        ins[slot] = tuple(
            Spec.of(a.shape, dtype_name(a.dtype), lod=case.sample.lod.get(slot, ()),
                    value=tuple(np.asarray(a).reshape(-1).tolist()) if value else None)
            for a in arrays
        )  # fmt: skip
    wanted = case.sample.outputs or tuple(slot.name for slot in op.outputs)
    call = Call(op, ins, dict.fromkeys(wanted, ()), case.attrs(), Place("cpu"))
    assert op.infer is not None
    outs = {slot: specs_of(found) for slot, found in op.infer(call).items() if slot in wanted}
    found = Specs()
    for name in rule.reads:
        given = outs.get(name.removesuffix(GRAD)) if GRAD in name else ins.get(name, outs.get(name))
        if given:
            found[name] = given
    if any(d < 0 for specs in found.values() for spec in specs for d in spec.dims):
        return None
    return found


def inferred(case: Case, rule: GradRule, ins: Specs) -> None:
    op = ops.get(rule.type)
    attrs = {attr.name: case.attrs()[attr.name] for attr in op.attrs}
    assert op.infer is not None
    op.infer(Call(op, ins, dict.fromkeys((slot + GRAD for slot in rule.writes), ()), attrs, Place("cpu")))


@grouped(("op",), ((op,) for op in OPERATORS if isinstance(op.grad, GradRule)), family)
def test_other_dims_are_refused(op: OpDef) -> None:
    """Unless nothing beside them says dims, or the gradient is a function of scalars, which broadcasts."""
    rule = op.grad
    assert isinstance(rule, GradRule)
    definition = ops.get(rule.type)
    if definition.scalar is not None or function_of(definition) is None or op.type in OF_ANY_DIMS:
        pytest.skip("no expression of tensors")
    for case in chosen(op):
        ins = gradient_specs(case, rule)
        if ins is None:
            continue
        inferred(case, rule, ins)
        for name in ins:
            base = op.output(name.removesuffix(GRAD))
            if base is None or base.intermediate or not is_float(ins[name][0].dtype) or not ins[name][0].dims:
                continue
            beside = ins.keys() - {name}
            if not any(op.input(each) is not None or each == name.removesuffix(GRAD) for each in beside):
                continue  # nothing else says dims
            spec, *rest = ins[name]
            for axis, size in enumerate(spec.dims):
                for wrong in {1, size + 1} - {size}:
                    if op.type in ALLOWED and ALLOWED[op.type](ins, axis, wrong):
                        continue
                    dims = (*spec.dims[:axis], wrong, *spec.dims[axis + 1 :])
                    with pytest.raises(FluidError):
                        inferred(case, rule, {**ins, name: (spec.with_(dims=dims), *rest)})
                        pytest.fail(f"{case.id}: {name} of {dims} in place of {spec.dims}")


@grouped(("op",), ((op,) for op in OPERATORS if isinstance(op.grad, GradRule)), family)
def test_other_dtypes_are_refused(op: OpDef) -> None:
    """A gradient in float64 of what is float32, and the other way."""
    rule = op.grad
    assert isinstance(rule, GradRule)
    definition = ops.get(rule.type)
    if definition.scalar is not None or function_of(definition) is None:
        pytest.skip("no expression of tensors")
    for case in chosen(op):
        ins = gradient_specs(case, rule)
        if ins is None or not any(name in ins for name in rule.writes):
            continue  # nothing else says the dtype
        inferred(case, rule, ins)
        for name in (name for name in ins if name.endswith(GRAD)):
            spec, *rest = ins[name]
            if spec.dtype in ("float32", "float64"):
                other = "float64" if spec.dtype == "float32" else "float32"
                with pytest.raises(FluidError):
                    inferred(case, rule, {**ins, name: (spec.with_(dtype=other), *rest)})
                    pytest.fail(f"{case.id}: {name} of {other} in place of {spec.dtype}")
