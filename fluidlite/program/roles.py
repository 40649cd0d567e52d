"""Fluid's numbers of the roles of operators, and the names of their attributes."""

from __future__ import annotations

from enum import IntEnum

_ROLE_NUMBERS = {"forward": 0, "backward": 1, "optimize": 2, "lr_sched": 16}
ROLES = {number: role for role, number in _ROLE_NUMBERS.items()}
"""``Operator.role`` by Fluid's number."""


class OpRole(IntEnum):
    """Fluid's ``core.op_proto_and_checker_maker.OpRole``."""

    Forward, Backward, Optimize, RPC, Dist, LRSched, Loss, NotSpecified = 0, 1, 2, 4, 8, 16, 256, 4096


def role_number(role: str) -> int:
    """Return Fluid's number of ``Operator.role``."""
    return _ROLE_NUMBERS[role]


class op_proto_and_checker_maker:
    """Fluid's names of the attributes that every operator has."""

    OpRole = OpRole

    @staticmethod
    def kOpRoleAttrName() -> str:
        """The attribute that holds the role."""
        return "op_role"

    @staticmethod
    def kOpRoleVarAttrName() -> str:
        """The attribute that names a parameter and its gradient."""
        return "op_role_var"

    @staticmethod
    def kOpNameScopeAttrName() -> str:
        """The attribute that holds the name scope."""
        return "op_namescope"

    @staticmethod
    def kOpCreationCallstackAttrName() -> str:
        """The attribute that holds the user's line."""
        return "op_callstack"

    @staticmethod
    def kOpDeviceAttrName() -> str:
        """The attribute that holds the place of ``device_guard``."""
        return "op_device"
