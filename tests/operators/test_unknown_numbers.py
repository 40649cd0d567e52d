"""Operators that read numbers of tensors, planned before anybody knows these: refused with a reason, or left open."""

from __future__ import annotations

import pytest

import fluidlite as fluid
from fluidlite.compiler.policy import Policy
from fluidlite.compiler.selection.kernel_selection import select_kernel
from fluidlite.conformance.cases import Case, cases_of
from fluidlite.conformance.samples import reference_of
from fluidlite.program.op_call import Call
from fluidlite.program.registry import ops
from fluidlite.tensor.tensor_spec import Spec

TYPES = [op.type for op in ops if op.stated and reference_of(op.type) is not None]
"""Operators of which an input is read number by number."""
CPU = fluid.Place.parse("cpu")


def call_of(case: Case) -> Call | None:
    """The call of a case whose outputs are known, and then the numbers it reads are not."""
    ins = {slot: tuple(Spec.of(a.shape, str(a.dtype)) for a in arrays) for slot, arrays in case.inputs().items()}
    values = {
        slot: tuple(spec.with_(value=tuple(a.ravel().tolist())) for spec, a in zip(ins[slot], arrays, strict=True))
        for slot, arrays in case.inputs().items()
        if slot in case.op.stated
    }
    assert case.op.infer is not None
    if case.sample.lod or not values:
        return None
    found = case.op.infer(Call(case.op, {**ins, **values}, {}, case.attrs(), CPU))
    outs = {slot: tuple(specs) if isinstance(specs, (tuple, list)) else (specs,) for slot, specs in found.items()}
    return Call(case.op, ins, outs, case.attrs(), CPU)


@pytest.mark.parametrize("type", TYPES)
def test_numbers_that_only_the_run_knows(type: str) -> None:
    """What expressions are decomposed into is asked for numbers: without them it is no error but a reason."""
    for case in cases_of(type):
        call = call_of(case) if case.dtype == case.sample.dtypes[0] else None
        if call is None:
            continue
        for exclude in ((), ("native", "generated", "generic")):
            try:
                select_kernel(call, CPU, Policy(exclude=exclude))
            except fluid.FluidError as exc:  # there may be no way before they are known; it says why
                assert type in str(exc) and ("is not known" in str(exc) or exclude)


def test_a_value_that_is_fed_and_an_output_that_is_too_large_for_one_tensor() -> None:
    main = fluid.Program()
    block = main.global_block()
    value = block.create_var("value", [1], "float32", is_data=True)
    block.append_op("fill_constant", {"ValueTensor": value}, {"Out": block.create_var("out")},
                    {"shape": [2**28], "dtype": "float32"})  # fmt: skip
    (line,) = fluid.explain(main, "cpu").plan.lines
    assert line.op.type == "fill_constant" and line.choice is not None
