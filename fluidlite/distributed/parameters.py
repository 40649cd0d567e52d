"""Initial synchronization of members: broadcast of the first one's values, and a check that all programs are equal."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from fluidlite.base.errors import CollectiveError
from fluidlite.distributed.groups import Group
from fluidlite.program.program import Program
from fluidlite.program.scope import Scope


def broadcast_state(program: Program, scope: Scope, group: Group) -> None:
    """Broadcast the first member's values of persistable variables to all members.

    Raises CollectiveError if the members' variables or dims differ.
    """
    if group.size == 1:
        return
    names = state_names(program, scope)
    tensors = [scope.var(name).get_tensor() for name in names]
    check_same(
        group,
        "the variables that live from run to run",
        "\n".join(f"{name} {tensor.spec} {tensor.lod()}" for name, tensor in zip(names, tensors, strict=True)),
    )
    for tensor in tensors:
        value = np.ascontiguousarray(tensor.numpy()).reshape(-1)
        content = group.broadcast(value.view(np.uint8), 0)
        if group.rank:
            tensor.set(content.view(value.dtype).reshape(tensor.dims), tensor.place)


def state_names(program: Program, scope: Scope) -> list[str]:
    """Names of a program's persistable variables that have a value, in an order that is equal on all members."""
    names = {v.name for v in program.list_vars() if v.persistable}
    names_with_value = []
    for name in sorted(names):
        variable = scope.find_var(name)
        if variable is not None and variable.tensor.initialized:
            names_with_value.append(name)
    return names_with_value


def check_same_program(program: Program, group: Group, more: Sequence[str] = ()) -> None:
    """Raise CollectiveError unless all members run equal programs."""
    if group.size > 1:
        lines = [
            f"{op.type} {op.inputs} {op.outputs} {sorted(op.attrs.items(), key=str)}"
            for block in program.blocks
            for op in block.ops
        ]
        lines += [f"{variable.name} {variable.spec}" for variable in program.list_vars()]
        check_same(group, "the program", "\n".join([*lines, *more]))


def check_same(group: Group, what: str, text: str) -> None:
    """Raise CollectiveError unless all members pass equal texts."""
    own = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)
    digests = group.all_gather(own)
    differing_ranks = [rank for rank, digest in enumerate(digests) if not np.array_equal(digest, digests[0])]
    if differing_ranks:
        raise CollectiveError(
            f"{what} of member {differing_ranks[0]} of {group.size} is not that of member 0"
            "\n  Do: let all processes run one script with equal arguments, and one seed"
        )
