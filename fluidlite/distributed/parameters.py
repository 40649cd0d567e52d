"""Equal beginnings: all members of a group get the values of the first, and are seen to run one program."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from fluidlite.base.errors import CollectiveError
from fluidlite.distributed.groups import Group
from fluidlite.program.program import Program
from fluidlite.program.scope import Scope


def broadcast_state(program: Program, scope: Scope, group: Group) -> None:
    """Give all members the first one's values of what lives from run to run.

    Raises CollectiveError: the members have other variables, or other dims.
    """
    if group.size == 1:
        return
    names = state_names(program, scope)
    specs = [scope.var(name).get_tensor().spec for name in names]
    same(
        group,
        "the variables that live from run to run",
        "\n".join(f"{n} {s}" for n, s in zip(names, specs, strict=True)),
    )
    for name in names:
        tensor = scope.var(name).get_tensor()
        value = np.ascontiguousarray(tensor.numpy()).reshape(-1)
        found = group.broadcast(value.view(np.uint8), 0)
        if group.rank:
            tensor.set(found.view(value.dtype).reshape(tensor.dims), tensor.place)


def state_names(program: Program, scope: Scope) -> list[str]:
    """Persistable variables of a program that have a value, in an order that all members share."""
    names = {v.name for v in program.list_vars() if v.persistable}
    found = []
    for name in sorted(names):
        variable = scope.find_var(name)
        if variable is not None and variable.tensor.initialized:
            found.append(name)
    return found


def check_same_program(program: Program, group: Group, more: Sequence[str] = ()) -> None:
    """Raise CollectiveError unless all members run equal programs."""
    if group.size > 1:
        lines = [
            f"{op.type} {op.inputs} {op.outputs} {sorted(op.attrs.items(), key=str)}"
            for block in program.blocks
            for op in block.ops
        ]
        lines += [f"{variable.name} {variable.spec}" for variable in program.list_vars()]
        same(group, "the program", "\n".join([*lines, *more]))


def same(group: Group, what: str, text: str) -> None:
    """Raise CollectiveError unless all members give equal texts."""
    own = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)
    digests = group.all_gather(own)
    others = [rank for rank, digest in enumerate(digests) if not np.array_equal(digest, digests[0])]
    if others:
        raise CollectiveError(
            f"{what} of member {others[0]} of {group.size} is not that of member 0"
            "\n  Do: let all processes run one script with equal arguments, and one seed"
        )
