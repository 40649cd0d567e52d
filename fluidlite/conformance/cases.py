"""Test cases: one for each sample of each operator and each dtype of the sample."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fluidlite.base.dtypes import dtype_name
from fluidlite.base.errors import FluidError
from fluidlite.conformance.samples import Sample, becomes_exact, inputs_in, reference_of, samples_of
from fluidlite.program.opdef import OpDef
from fluidlite.program.registry import ops
from fluidlite.program.rules import GradRule

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Case:
    """One sample of an operator in one dtype.

    Attributes
    ----------
    op : OpDef
    sample : Sample
    label : str
        The sample's name, unique within the operator.
    dtype : str
        The dtype to which the sample's floating inputs are cast; an exact one has no gradients.
    """

    op: OpDef
    sample: Sample
    label: str
    dtype: str

    @property
    def id(self) -> str:
        """``op[sample:dtype]``, as test ids and known failures name it."""
        return f"{self.op.type}[{self.label}:{self.dtype}]"

    def inputs(self) -> dict[str, list[Array]]:
        """The arrays to feed: floating ones in the case's dtype, others as in the sample."""
        return inputs_in(self.sample, self.dtype)

    def attrs(self) -> dict[str, Any]:
        """All attributes of the operator in canonical form."""
        return canonical(self.op, self.sample.attrs)

    def requested_outputs(self) -> tuple[str, ...]:
        """The requested output slots."""
        return self.sample.outputs or tuple(slot.name for slot in self.op.outputs)

    def coarsest_dtype(self, *more: str) -> str:
        """The floating dtype of lowest precision among inputs and ``more``; float64 if there is none."""
        order = ("float64", "float32", "float16", "bfloat16")
        fed = [dtype_name(a.dtype) for arrays in self.inputs().values() for a in arrays]
        present = [dtype for dtype in (*fed, *more) if dtype in order]
        return max(present, key=order.index, default="float64")

    def graded_outputs(self) -> tuple[str, ...]:
        """The output slots whose gradients the operator's gradient rule reads."""
        rule = self.op.grad
        if isinstance(rule, GradRule):
            return rule.outputs
        return tuple(slot.name for slot in self.op.outputs if not slot.intermediate) if rule is not None else ()

    def __repr__(self) -> str:
        return f"Case({self.id})"


def canonical(op: OpDef, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """All attributes of an operator in canonical form: the given value, or the default."""
    return {
        attr.name: None if (value := attrs.get(attr.name, attr.default)) is None else attr.check(value)
        for attr in op.attrs
    }


def cases_of(type: str) -> list[Case]:
    """The cases of one operator.

    Raises FluidError if there are none, since nothing would be checked.
    """
    selected = cases([type])
    if not selected:
        raise FluidError(
            f"operator {type!r} has no samples with a reference, so that nothing can be checked\n"
            "  Do: register them with fluidlite.plugin.register_samples"
        )
    return selected


def cases(types: Iterable[str] | None = None) -> list[Case]:
    """All cases of the named operators (by default of all) that have a reference."""
    selected: list[Case] = []
    for op in ops if types is None else [ops.get(type) for type in types]:
        if reference_of(op.type) is None:
            continue
        name_counts: dict[str, int] = {}
        for sample in samples_of(op.type):
            name = sample.name or "sample"
            number = name_counts[name] = name_counts.get(name, 0) + 1
            label = name if number == 1 else f"{name}#{number}"
            exact = replace(sample, grads=())
            selected += [
                Case(op, exact if becomes_exact(sample, dtype) else sample, label, dtype) for dtype in sample.dtypes
            ]
    return selected
