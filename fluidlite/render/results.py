"""How results are stored: what is computed where it is to be, and in which order memory that others read is written."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from fluidlite.expr.tensor import Tensor
from fluidlite.render.buffers import operands_below
from fluidlite.render.readers import stored_at_once

WRITING = frozenset({"take", "pick", "add_at", "set_at", "put", "contract", "scan", "unwindow"})
"""What a function may write where it is to be."""
_MOVING = WRITING | {"concat", "pad", "transpose", "broadcast"}
"""What is copied when it gets other dims, unless it is written under its own."""


def stored_directly(
    outputs: Sequence[Tensor], users: Mapping[Tensor, Sequence[Tensor | None]], writing: Collection[str]
) -> set[Tensor]:
    """What ends in an output that alone reads it, and is written there part by part."""
    found: set[Tensor] = set()

    def add(x: Tensor, whole: bool) -> None:
        if len(users[x]) > 1:
            return
        if number_in(x) is not None:
            while x.op != "number" and len(users[x]) == 1:
                found.add(x)
                (x,) = x.args
            return
        if x.op == "concat":
            for arg in x.args:
                add(arg, whole and x.params == (0,))  # parts of a first axis have their own memory
        elif x.op == "reshape" and whole and x.args[0].op in {*_MOVING, *writing} and len(users[x.args[0]]) == 1:
            add(x.args[0], True)
        elif x.op != "pad" and x.op not in writing:
            return
        found.add(x)

    for x in outputs:
        add(x, True)
    return found


def stored_with(results: Sequence[Tensor], direct: Collection[Tensor]) -> dict[Tensor, int]:
    """What has no value of its own: with which of the results it is stored."""
    found: dict[Tensor, int] = {}

    def add(x: Tensor, k: int) -> None:
        if x in direct:
            found[x] = k
            for arg in x.args:
                add(arg, k)

    for k, x in enumerate(results):
        add(x, k)
    return found


def under_reshapes(x: Tensor) -> list[Tensor]:
    """A result, and what it is but for its dims."""
    found = [x]
    while found[-1].op == "reshape":
        found.append(found[-1].args[0])
    return found


def number_in(x: Tensor) -> Tensor | None:
    """The number that all elements of a tensor are; None if it is not known to be one."""
    while x.op in ("broadcast", "reshape") or (x.op == "cast" and x.args[0].op == "number"):
        (x,) = x.args
    return x if x.op == "number" else None


def maps_stored_at_once(results: Sequence[Tensor], users: Mapping[Tensor, Sequence[Tensor | None]]) -> set[Tensor]:
    """Elementwise results that nobody else reads, and their views."""
    chains = [under_reshapes(x) for x in results]
    alone = [chain for chain in chains if all(len(users[each]) == 1 for each in chain) and stored_at_once(chain[-1])]
    return {each for chain in alone for each in chain}


def not_overwritten(
    wanted: Sequence[tuple[str, int, Tensor]],
    direct: set[Tensor],
    within: Collection[Tensor],
    shared: Mapping[str, str],
) -> set[Tensor]:
    """Those of ``direct`` that read no operand whose memory results have by then, or are being written to."""
    found, overwritten = set(direct), set[str]()
    for slot, _, x in wanted:
        parts = with_args(x, found)
        own = {shared[slot]} if slot in shared else set()
        at_once = all(each.op in ("map", "reshape") for each in parts)  # NumPy minds its operands' memory
        read = operands_below([arg for each in parts for arg in each.args], within)
        if read & (overwritten if at_once else overwritten | own):
            found -= parts
        overwritten |= own
    return found


def read_when_overwritten(
    wanted: Sequence[tuple[str, int, Tensor]], direct: set[Tensor], shared: Mapping[str, str]
) -> list[Tensor]:
    """Results that are operands, or views of these, whose memory other results have when they are stored."""
    found, overwritten = list[Tensor](), set[str]()
    for slot, _, x in wanted:
        if x not in direct and operands_below([x]) & overwritten:
            found.append(x)
        overwritten |= {shared[slot]} if slot in shared else set()
    return found


def with_args(x: Tensor, direct: Collection[Tensor]) -> set[Tensor]:
    """What is computed where a tensor is stored."""
    return {x}.union(*[with_args(arg, direct) for arg in x.args]) if x in direct else set()
