"""What a declaration of a layer says: what arguments are, and what the body asks for beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar, cast

from fluidlite.initializer import Initializer

Result = TypeVar("Result")


class Unused(str):
    """Says of an argument that it is taken for Fluid's sake, and why it has no effect."""


class Returned(str):
    """Says of an argument that the named output is returned too where it is true."""


class Body(str):
    """Says of an argument that the body reads it as it is, and makes the named attribute of it, if it names one."""


class Weight(NamedTuple):
    """A parameter that ``param_attr`` describes, of the first input's dtype unless said."""

    dims: Sequence[int]
    initializer: Initializer | None = None
    dtype: Any = None
    stop_gradient: bool = False
    attr: Any = None
    """In place of ``param_attr``."""


class Bias(NamedTuple):
    """A parameter that ``bias_attr`` describes, the slot's variable; none if that is False, unless it is needed."""

    dims: Sequence[int]
    dtype: Any = None
    needed: bool = False


class AddedBias(NamedTuple):
    """Of an output: a bias of its dims from ``start`` to ``end`` is added, unless ``bias_attr`` is False."""

    start: int = 1
    end: int | None = None


class Several(NamedTuple):
    """Of an output: so many variables, which ``argument`` asked for."""

    argument: str
    number: int


class Further(NamedTuple):
    """What :func:`also` returns."""

    type: str
    values: dict[str, Any]


def also(type: str = "", /, **given: Any) -> Result:  # type: ignore[type-var]  # it stands for the layer's result
    """Return, from the body of a declared layer, what its operator gets beside the arguments.

    ``type``: another operator of the same slots and attributes.
    ``given``: by slot: a Variable or a list, a :class:`Weight` or :class:`Bias`; of an output also :class:`AddedBias`,
    :class:`Several`, or the name of the input whose variable it writes. By attribute: its value. None: nothing.
    """
    return cast(Result, Further(type, given))
