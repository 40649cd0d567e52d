"""append: a layer of one operator with one result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fluidlite.base.absent import absent
from fluidlite.layer_helper import LayerHelper
from fluidlite.program.variable import Variable


def append(
    type: str,
    inputs: Mapping[str, Any],
    attrs: Mapping[str, Any] | None = None,
    *,
    slot: str = "Out",
    name: str | None = None,
    stop_gradient: bool = False,
) -> Variable:
    """Append an operator whose result, in an output slot, is a new variable, ``<type>_0.tmp_0``; return that."""
    helper = LayerHelper(type, name=name)
    out = helper.create_variable_for_type_inference(stop_gradient=stop_gradient)
    helper.append_op(type, inputs, {slot: out}, attrs)
    return out


def layers_getattr(module: str) -> Callable[[str], Any]:
    """Return a module's ``__getattr__`` that finds all layers, as Fluid's module has more of them."""

    def find(name: str) -> Any:
        from fluidlite import layers

        if name in vars(layers).get("__all__", ()):
            return getattr(layers, name)
        raise absent(module, name)

    return find
