"""Layers that give rows other sequences: lod_reset and lod_append."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluidlite.layer_helper import check_ints, check_variable, refuse
from fluidlite.layers.declare import also, layer
from fluidlite.program.variable import Variable


def _sequences(argument: str, y: Any, listed: str, offsets: Any) -> dict[str, Any]:
    """A variable whose LoD is taken, or that holds offsets; or the offsets."""
    if y is not None:
        return {"Y" if check_variable(argument, y).lod_level else "TargetLod": y}
    if offsets is None:
        refuse(argument, y, "a Variable, or offsets as a list")
    return {"target_lod": check_ints(listed, offsets)}


@layer("lod_reset", {"y": "", "target_lod": ""}, attrs={"append": False})
def lod_reset(x: Variable, y: Variable | None = None, target_lod: Sequence[int] | None = None) -> Variable:
    """Return ``x`` with other sequences.

    y: Its LoD is taken; without LoD it holds the offsets of one level, int32 or int64
    target_lod: Offsets of one level, where ``y`` is None

    >>> lod_reset(data("x", [6, 4]), target_lod=[0, 2, 6]).shape
    (6, 4)
    """
    return also(**_sequences("y", y, "target_lod", target_lod))


@layer("lod_reset", {"level": ""}, attrs={"append": True})
def lod_append(x: Variable, level: Any) -> Variable:
    """Return ``x`` with one more level, or those of a Variable, under its own.

    level: Offsets, as ``target_lod`` and ``y`` of :func:`lod_reset`

    >>> lod_append(data("x", [-1, 4], lod_level=1), data("level", [-1, 4], lod_level=1)).shape
    (-1, 4)
    """
    variable = isinstance(level, Variable)
    return also(**_sequences("level", level if variable else None, "level", None if variable else level))
