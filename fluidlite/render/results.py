"""Storing results: tensors that are computed in place in the output, and the safe order if outputs alias operands."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from fluidlite.expr.tensor import Tensor
from fluidlite.render.buffers import operands_below
from fluidlite.render.readers import can_compute_in_output

WRITING = frozenset({"take", "pick", "add_at", "set_at", "put", "contract", "scan", "unwindow"})
"""Primitives whose array function can write to an output."""
_MOVING = WRITING | {"concat", "pad", "transpose", "broadcast"}
"""Primitives whose reshape would copy, unless they are written to a reshaped view of the output."""


def stored_directly(outputs: Sequence[Tensor], users: Mapping[Tensor, Sequence[Tensor | None]]) -> set[Tensor]:
    """The tensors whose only reader is an output, and that are computed in place in it, part by part."""
    direct: set[Tensor] = set()

    def add(x: Tensor, whole: bool) -> None:
        if len(users[x]) > 1:
            return
        if constant_value(x) is not None:
            while x.op != "number" and len(users[x]) == 1:
                direct.add(x)
                (x,) = x.args
            return
        if x.op == "concat":
            for arg in x.args:
                add(arg, whole and x.params == (0,))  # parts along the first axis are contiguous
        elif x.op == "reshape" and whole and x.args[0].op in _MOVING and len(users[x.args[0]]) == 1:
            add(x.args[0], True)
        elif x.op != "pad" and x.op not in WRITING:
            return
        direct.add(x)

    for x in outputs:
        add(x, True)
    return direct


def stored_with(results: Sequence[Tensor], direct: Collection[Tensor]) -> dict[Tensor, int]:
    """The tensors that are computed in place, with the number of the result that they are stored with."""
    numbers: dict[Tensor, int] = {}

    def add(x: Tensor, k: int) -> None:
        if x in direct:
            numbers[x] = k
            for arg in x.args:
                add(arg, k)

    for k, x in enumerate(results):
        add(x, k)
    return numbers


def reshape_chain(x: Tensor) -> list[Tensor]:
    """A result, followed by the operands of its reshapes."""
    chain = [x]
    while chain[-1].op == "reshape":
        chain.append(chain[-1].args[0])
    return chain


def constant_value(x: Tensor) -> Tensor | None:
    """The number that all elements of a tensor equal; None if it is not known to be constant."""
    while x.op in ("broadcast", "reshape") or (x.op == "cast" and x.args[0].op == "number"):
        (x,) = x.args
    return x if x.op == "number" else None


def maps_in_output(results: Sequence[Tensor], users: Mapping[Tensor, Sequence[Tensor | None]]) -> set[Tensor]:
    """Elementwise results without other readers, with their reshapes: they are computed in place."""
    chains = [reshape_chain(x) for x in results]
    in_place = [c for c in chains if all(len(users[each]) == 1 for each in c) and can_compute_in_output(c[-1])]
    return {each for c in in_place for each in c}


def without_overwritten(
    requested: Sequence[tuple[str, int, Tensor]],
    direct: set[Tensor],
    within: Collection[Tensor],
    shared: Mapping[str, str],
) -> set[Tensor]:
    """The tensors of ``direct`` whose operands are not overwritten by earlier results, or by their own."""
    safe, overwritten = set(direct), set[str]()
    for slot, _, x in requested:
        parts = with_direct_operands(x, safe)
        own = {shared[slot]} if slot in shared else set()
        is_elementwise = all(each.op in ("map", "reshape") for each in parts)  # NumPy handles overlapping operands
        read = operands_below([arg for each in parts for arg in each.args], within)
        if read & (overwritten if is_elementwise else overwritten | own):
            safe -= parts
        overwritten |= own
    return safe


def overwritten_results(
    requested: Sequence[tuple[str, int, Tensor]], direct: set[Tensor], shared: Mapping[str, str]
) -> list[Tensor]:
    """Results that are views of operands which earlier results overwrite: they must be copied first."""
    results, overwritten = list[Tensor](), set[str]()
    for slot, _, x in requested:
        if x not in direct and operands_below([x]) & overwritten:
            results.append(x)
        overwritten |= {shared[slot]} if slot in shared else set()
    return results


def with_direct_operands(x: Tensor, direct: Collection[Tensor]) -> set[Tensor]:
    """A tensor with all operands that are computed in place together with it."""
    return {x}.union(*[with_direct_operands(arg, direct) for arg in x.args]) if x in direct else set()
