"""What an operator makes of some of its operands alone: kernels compute that, and what is fused stands beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fluidlite.expr.tensor import Tensor, tensor
from fluidlite.expr.tracing import current


def unfused(
    type: str, inputs: Mapping[str, Tensor], attrs: Mapping[str, Any], function: Callable[[], Mapping[str, Tensor]]
) -> Mapping[str, Tensor]:
    """What the operator of that type makes of these operands and attributes, others being left out.

    Where a call of the operator is decomposed that has more (a bias, an activation), this is a call of the same
    operator, for which there are kernels; everywhere else it is what ``function`` says.

    Parameters
    ----------
    type : str
    inputs : mapping of slot to Tensor
        Operands, or what is computed of them in their dtypes.
    attrs : mapping of name to value
        Those that count; the others are at their defaults.
    function : callable
        Returns what the operator makes, by slot.
    """
    found, call = function(), current().call
    if call is None or call.op.type != type:
        return found
    given = all(x.op == "input" for x in inputs.values()) and set(call.ins) == set(inputs)
    if given and all(call.attrs[a.name] == a.default for a in call.op.attrs if a.name not in attrs):
        return found
    told = tuple((name, tuple(value) if isinstance(value, (list, tuple)) else value) for name, value in attrs.items())
    args, dtype = list(inputs.values()), call.key_dtype
    return {slot: tensor("unfused", args, (slot, tuple(inputs), told), x.dims, dtype) for slot, x in found.items()}
