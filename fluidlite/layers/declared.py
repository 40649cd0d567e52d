"""Markers in declarations of layers: the roles of arguments, and further inputs and outputs that a body requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar, cast

from fluidlite.initializer import Initializer

Result = TypeVar("Result")


class Unused(str):
    """Marks an argument that is accepted for Fluid's sake; the text says why it has no effect."""


class Returned(str):
    """Marks an argument that, if true, also returns the named output."""


class BodyArg(str):
    """Marks an argument that the body gets unchecked, and the attribute, if any, that the body computes from it."""


class Weight(NamedTuple):
    """A parameter that ``param_attr`` describes, by default of the first input's dtype."""

    dims: Sequence[int]
    initializer: Initializer | None = None
    dtype: Any = None
    stop_gradient: bool = False
    attr: Any = None
    """Replaces ``param_attr``."""


class Bias(NamedTuple):
    """A parameter that ``bias_attr`` describes; none if that is False, unless ``needed``."""

    dims: Sequence[int]
    dtype: Any = None
    needed: bool = False


class AddedBias(NamedTuple):
    """For an output: add a bias of its dims ``start`` to ``end``, unless ``bias_attr`` is False."""

    start: int = 1
    end: int | None = None


class VariableList(NamedTuple):
    """For an output: a list of ``number`` variables, requested by ``argument``."""

    argument: str
    number: int


class Further(NamedTuple):
    """The result of :func:`also`."""

    type: str
    values: dict[str, Any]


def also(type: str = "", /, **values: Any) -> Result:  # type: ignore[type-var]  # typed as the layer's result
    """From the body of a declared layer, return further inputs, outputs and attributes of its operator.

    ``type``: another operator of the same slots and attributes.
    ``values``: by slot: a Variable or a list, a :class:`Weight` or :class:`Bias`; of an output also :class:`AddedBias`,
    :class:`VariableList`, or the name of the input whose variable it writes. By attribute: its value. None: nothing.
    """
    return cast(Result, Further(type, values))
