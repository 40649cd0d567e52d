"""Layers generated from the definitions of elementwise operators: activations, ``elementwise_*``, compare, logic.

Each is generated on first access (``layers.relu``), so that importing fluidlite loads no operator.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from fluidlite.layers.declare import BodyArg, Declaration, LayerOptions, also, make
from fluidlite.layers.public import public
from fluidlite.program.registry import HINTS, ops
from fluidlite.program.variable import Variable

ACTIVATIONS = (
    "abs",
    "acos",
    "asin",
    "atan",
    "brelu",
    "ceil",
    "clip",
    "cos",
    "cosh",
    "cumsum",
    "elu",
    "erf",
    "exp",
    "floor",
    "gelu",
    "hard_shrink",
    "hard_sigmoid",
    "hard_swish",
    "leaky_relu",
    "log",
    "log1p",
    "logsigmoid",
    "mish",
    "reciprocal",
    "relu",
    "relu6",
    "round",
    "rsqrt",
    "selu",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "soft_relu",
    "softplus",
    "softshrink",
    "softsign",
    "sqrt",
    "square",
    "stanh",
    "swish",
    "tanh",
    "tanh_shrink",
    "thresholded_relu",
)
OPTIONAL_ARGUMENTS = {
    "cumsum": {"axis": "axis", "exclusive": "exclusive", "reverse": "reverse"},
    "hard_shrink": {"threshold": "threshold"},
    "selu": {"scale": "scale", "alpha": "alpha"},
    "softshrink": {"alpha": "lambda"},
    "thresholded_relu": {"threshold": "threshold"},
}
"""Arguments with the default None in Fluid, and the attributes that they set; None means the attribute's default."""
ELEMENTWISE = (
    "elementwise_add",
    "elementwise_div",
    "elementwise_floordiv",
    "elementwise_max",
    "elementwise_min",
    "elementwise_mod",
    "elementwise_mul",
    "elementwise_pow",
    "elementwise_sub",
)
COMPARE = ("equal", "greater_equal", "greater_than", "less_equal", "less_than", "not_equal")
LOGICAL = ("logical_and", "logical_not", "logical_or", "logical_xor")

__all__ = [*ACTIVATIONS, *ELEMENTWISE, *COMPARE, *LOGICAL]

Layer = Callable[..., Variable]
_EMPTY = inspect.Parameter.empty
_ANNOTATIONS = {"x": "Variable", "y": "Variable", "cond": "Variable", "out": "Variable", "force_cpu": "bool"}


def __getattr__(name: str) -> Layer:
    if name in __all__:
        return layer(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


@cache
def layer(type: str) -> Layer:
    """Return the layer of an operator X -> Out or X, Y -> Out, declared by a signature of the operator's own names."""
    definition = ops.get(type)
    logical, compare = type in LOGICAL, type in COMPARE
    arguments: list[tuple[str, Any]] = [(slot, _EMPTY) for slot in ("x", "y") if definition.input(slot.upper())]
    names: dict[str, str] = {}
    text = ""
    if type in ELEMENTWISE:
        arguments += [("axis", -1), ("act", None), ("name", None)]
    elif compare:
        # Fluid has this order in less_than, and no force_cpu elsewhere
        hint, last = ("force_cpu", None), [("cond", None), ("name", None)]
        arguments += [hint, *last] if type == "less_than" else [*last, hint]
        names = {"cond": "Out", "force_cpu": BodyArg()}
        text = "force_cpu: kept as a hint, for Fluid's sake"
    elif logical:
        arguments += [("out", None), ("name", None)]
    else:
        optional = OPTIONAL_ARGUMENTS.get(type)
        names = optional or {attr.name: attr.name for attr in definition.attrs if attr.name not in HINTS}
        attrs = [definition.attr(attribute) for attribute in names.values()]
        defaults = [_EMPTY if attr is None or attr.required else attr.default for attr in attrs]
        arguments += zip(names, [None] * len(names) if optional else defaults, strict=True)
        arguments.append(("name", None))
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature(
        [
            inspect.Parameter(name, kind, default=default, annotation=_ANNOTATIONS.get(name, _EMPTY))
            for name, default in arguments
        ],
        return_annotation="Variable",
    )
    options = LayerOptions(stop_gradient=logical or compare)
    declaration = Declaration(type, signature, type, names, options, _force_cpu_hint if compare else None)

    def generated() -> None: ...

    generated.__name__ = generated.__qualname__ = type
    generated.__module__ = "fluidlite.layers"
    generated.__doc__ = f"{text}\n\n{_example(declaration)}"
    return public(make(declaration, generated))


def _force_cpu_hint(force_cpu: Any, **_: Any) -> Any:
    return also() if force_cpu is None else also(force_cpu=bool(force_cpu))


def _example(declaration: Declaration) -> str:
    """Return an example call with matrices, and numbers for required attributes."""
    of_integers = "float32" not in declaration.definition.dtypes.get("X", ("float32",))
    dtype = ', "bool"' if declaration.name in LOGICAL else ', "int64"' * of_integers
    operands = [
        f'data("{each.slot.lower()}", [2, 4]{dtype})' for each in declaration.arguments if each.slot in ("X", "Y")
    ]
    required = [each for each in declaration.arguments if each.attr is not None and each.attr.required]
    operands += [f"{each.name}={i - 0.5}" for i, each in enumerate(required)]
    return f">>> {declaration.name}({', '.join(operands)}).shape\n(2, 4)"
