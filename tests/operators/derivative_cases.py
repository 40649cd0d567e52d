"""The operators that have derivatives, and a few small cases of each."""

from __future__ import annotations

import re
from pathlib import Path

import fluidlite as fluid
from fluidlite.base.dtypes import dtype_name, is_float
from fluidlite.conformance.samples import reference_of
from fluidlite.program.opdef import GRAD, OpDef
from fluidlite.program.registry import ops
from fluidlite.testing import Case, cases

DOCUMENTED = Path(__file__).parents[2] / "docs" / "programs.md"
MAX_OUTPUT = 2000
MAX_CASES = 2


def derived(op: OpDef) -> bool:
    if reference_of(op.type) is None or op.grad is None or op.random or op.run is not None or op.type.endswith("_grad"):
        return False
    return not any(GRAD in slot.name for slot in op.inputs)


OPERATORS = [op for op in ops if derived(op) and op.origin.startswith(str(fluid.__path__[0]))]


def chosen(op: OpDef, count: int = MAX_CASES) -> list[Case]:
    """A few small cases in float64, those first whose gradients the samples check."""
    found, seen = [], set()
    for case in sorted(cases([op.type]), key=lambda case: not case.sample.grads):
        if case.sample.name in seen or dtype_name(next(iter(case.inputs().values()))[0].dtype) == "bool":
            continue
        seen.add(case.sample.name)
        wide = Case(op, case.sample, case.label, "float64")
        given = wide.inputs()
        allowed = all(
            not allowed or dtype_name(a.dtype) in allowed
            for slot, arrays in given.items()
            for a in arrays
            for allowed in [op.dtypes.get(slot, ())]
        )
        floats = [a for arrays in given.values() for a in arrays if is_float(dtype_name(a.dtype))]
        if allowed and floats and all(0 < a.size <= MAX_OUTPUT for a in floats):
            found.append(wide)
    return found[:count]


def refused_twice() -> set[str]:
    """Operators whose second derivatives the documentation says are refused."""
    table = DOCUMENTED.read_text("utf-8").split("| second derivative refused |")[1].split("\n\n")[0]
    return {type for row in table.splitlines()[2:] for type in re.findall(r"`(\w+)`", row.split("|")[1])}
