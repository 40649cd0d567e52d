"""append: a layer of one operator with one result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fluidlite.base.absent import absent
from fluidlite.layer_helper import LayerHelper, check_variable
from fluidlite.program.variable import Variable


def append(
    layer: str,
    type: str,
    inputs: Mapping[str, Any],
    attrs: Mapping[str, Any] | None = None,
    *,
    out: Variable | None = None,
    slot: str = "Out",
    extra: tuple[str, ...] = (),
    name: str | None = None,
    stop_gradient: bool = False,
) -> Variable:
    """Append an operator whose result is a new variable (or ``out``), and return that.

    ``layer``: names the result: ``<layer>_0.tmp_0``.
    ``type``, ``inputs``, ``attrs``: as for ``Block.append_op``.
    ``slot``: the output slot of the result.
    ``extra``: output slots that exist for the gradient only.
    """
    helper = LayerHelper(layer, name=name)
    if out is None:
        out = helper.create_variable_for_type_inference(stop_gradient=stop_gradient)
    else:
        check_variable("out", out)
    outputs = {slot: out, **{more: helper.create_variable_for_type_inference(stop_gradient=True) for more in extra}}
    helper.append_op(type, inputs, outputs, attrs)
    return out


def layers_getattr(module: str) -> Callable[[str], Any]:
    """Return a module's ``__getattr__`` that finds all layers, as Fluid's module has more of them."""

    def find(name: str) -> Any:
        from fluidlite import layers

        if name in vars(layers).get("__all__", ()):
            return getattr(layers, name)
        raise absent(module, name)

    return find
