"""Layers generated from the definitions of elementwise operators: activations, ``elementwise_*``, compare, logic.

Each is made when it is first asked for (``layers.relu``), so that importing fluidlite loads no operator.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from fluidlite.framework.opdef import OpDef
from fluidlite.framework.registry import HINTS, ops
from fluidlite.framework.variable import Variable
from fluidlite.layer_helper import check_variable
from fluidlite.layers.common import append
from fluidlite.layers.public import public

ACTIVATIONS = (
    "abs", "acos", "asin", "atan", "brelu", "ceil", "clip", "cos", "cosh", "cumsum", "elu", "erf", "exp", "floor",
    "gelu", "hard_shrink", "hard_sigmoid", "hard_swish", "leaky_relu", "log", "log1p", "logsigmoid", "mish",
    "reciprocal", "relu", "relu6", "round", "rsqrt", "selu", "sigmoid", "sign", "sin", "sinh", "soft_relu",
    "softplus", "softshrink", "softsign", "sqrt", "square", "stanh", "swish", "tanh", "tanh_shrink", "thresholded_relu",
)  # fmt: skip
OPTIONAL = {
    "cumsum": {"axis": "axis", "exclusive": "exclusive", "reverse": "reverse"},
    "hard_shrink": {"threshold": "threshold"},
    "selu": {"scale": "scale", "alpha": "alpha"},
    "softshrink": {"alpha": "lambda"},
    "thresholded_relu": {"threshold": "threshold"},
}
"""Arguments that Fluid gives the default None, with the attributes that they set; None leaves the attribute's."""
ELEMENTWISE = (
    "elementwise_add", "elementwise_div", "elementwise_floordiv", "elementwise_max", "elementwise_min",
    "elementwise_mod", "elementwise_mul", "elementwise_pow", "elementwise_sub",
)  # fmt: skip
COMPARE = ("equal", "greater_equal", "greater_than", "less_equal", "less_than", "not_equal")
LOGICAL = ("logical_and", "logical_not", "logical_or", "logical_xor")

__all__ = [*ACTIVATIONS, *ELEMENTWISE, *COMPARE, *LOGICAL]

Layer = Callable[..., Variable]
_X = "x : Variable"
_Y = "y : Variable\n    Broadcast against x: its dims are a run of x's."
_AXIS = "axis : int\n    The dim of x at which those of y begin; -1: they end together."
_ACT = "act : str or dict, optional\n    An activation of the result."
_NAME = "name : str, optional\n    Of the layer; its result is ``<name>.tmp_0``."
_OUT = ": Variable, optional\n    Where the result goes; default: a new variable."


def __getattr__(name: str) -> Layer:
    if name in __all__:
        return layer(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


@cache
def layer(type: str) -> Layer:
    """Return the layer of an operator X -> Out or X, Y -> Out; it checks its arguments and appends the operator."""
    definition = ops.get(type)
    if type in ELEMENTWISE:
        return _elementwise(definition)
    if type in COMPARE:
        return _compare(definition)
    if type in LOGICAL:
        return _logical(definition)
    return _activation(definition)


def _activation(definition: OpDef) -> Layer:
    optional = OPTIONAL.get(definition.type)
    names = optional or {attr.name: attr.name for attr in definition.attrs if attr.name not in HINTS}

    def make(x: Any, name: Any, **given: Any) -> Variable:
        attrs = {names[key]: value for key, value in given.items() if value is not None or optional is None}
        return append(definition.type, definition.type, {"X": check_variable("x", x)}, attrs, name=name)

    docs: list[str] = []
    arguments: list[tuple[str, Any]] = [("x", inspect.Parameter.empty)]
    for argument, attribute in names.items():
        attr = definition.attr(attribute)
        assert attr is not None
        needed = "" if attr.required else f", default {attr.default!r}"
        docs.append(f"{argument} : {attr.type}{needed}" + (f"\n    {attr.doc}" if attr.doc else ""))
        default = None if optional is not None else inspect.Parameter.empty if attr.required else attr.default
        arguments.append((argument, default))
    arguments.append(("name", None))
    return _finish(definition, make, arguments, [_X, *docs, _NAME])


def _elementwise(definition: OpDef) -> Layer:
    def make(x: Any, y: Any, axis: Any, act: Any, name: Any) -> Variable:
        inputs = {"X": check_variable("x", x), "Y": check_variable("y", y)}
        return append(definition.type, definition.type, inputs, {"axis": axis}, name=name, act=act)

    empty = inspect.Parameter.empty
    arguments = [("x", empty), ("y", empty), ("axis", -1), ("act", None), ("name", None)]
    return _finish(definition, make, arguments, [_X, _Y, _AXIS, _ACT, _NAME])


def _compare(definition: OpDef) -> Layer:
    def make(x: Any, y: Any, cond: Any, force_cpu: Any, name: Any) -> Variable:
        inputs = {"X": check_variable("x", x), "Y": check_variable("y", y)}
        hints = {} if force_cpu is None else {"force_cpu": bool(force_cpu)}
        return append(definition.type, definition.type, inputs, hints, out=cond, name=name, stop_gradient=True)

    empty = inspect.Parameter.empty
    hint, last = ("force_cpu", None), [("cond", None), ("name", None)]
    # Fluid has this order in less_than, and no force_cpu elsewhere
    arguments = [("x", empty), ("y", empty), *([hint, *last] if definition.type == "less_than" else [*last, hint])]
    docs = [_X, _Y, "cond " + _OUT, "force_cpu : bool, optional\n    Kept as a hint, for Fluid's sake.", _NAME]
    return _finish(definition, make, arguments, docs)


def _logical(definition: OpDef) -> Layer:
    def make(x: Any, out: Any, name: Any, y: Any = None) -> Variable:
        inputs = {"X": check_variable("x", x)}
        if definition.input("Y") is not None:
            inputs["Y"] = check_variable("y", y)
        return append(definition.type, definition.type, inputs, out=out, name=name, stop_gradient=True)

    operands = [("x", inspect.Parameter.empty), ("y", inspect.Parameter.empty)]
    docs = [_X, _Y]
    if definition.input("Y") is None:
        operands, docs = operands[:1], docs[:1]
    return _finish(definition, make, [*operands, ("out", None), ("name", None)], [*docs, "out " + _OUT, _NAME])


def _finish(definition: OpDef, make: Layer, arguments: list[tuple[str, Any]], docs: list[str]) -> Layer:
    """Give ``make`` a signature, a name and a docstring."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(name, kind, default=default) for name, default in arguments])
    type = definition.type

    def generated(*args: Any, **kwargs: Any) -> Variable:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as exc:
            raise TypeError(f"layers.{type}{signature}: {exc}") from None
        bound.apply_defaults()
        return make(**bound.arguments)

    # Errors name the function that the user called: the code's own name is what the stack shows.
    generated.__code__ = generated.__code__.replace(co_name=type)
    generated.__name__ = generated.__qualname__ = type
    generated.__module__ = "fluidlite.layers"
    generated.__signature__ = signature  # type: ignore[attr-defined]
    parameters = "\n".join(docs)
    generated.__doc__ = f"{definition.doc}.\n\nParameters\n----------\n{parameters}\n\nReturns\n-------\nVariable\n"
    return public(generated)
