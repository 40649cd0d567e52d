"""Layers as declarations: the arguments of Fluid's signature map to slots and attributes of one operator.

``@layer("bpr_loss")`` above a typed signature is the whole layer. An argument is an input slot or an attribute of the
operator, found by its name; checks, results and the documentation follow from the operator's definition. An optional
body gets the checked arguments and returns further inputs and attributes by :func:`also`. See docs/layers.md.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from fluidlite.base.errors import RegistryError
from fluidlite.control_flow import sub_program as _control_flow  # noqa: F401  declares the operators that run blocks
from fluidlite.layers.declared import AddedBias, Bias, BodyArg, Returned, Unused, VariableList, Weight, also
from fluidlite.layers.declared_use import HELPED, LayerCall
from fluidlite.program.opdef import Attr
from fluidlite.program.registry import HINTS, ops

Function = TypeVar("Function", bound=Callable[..., Any])
__all__ = [
    "AddedBias",
    "Bias",
    "BodyArg",
    "Names",
    "Returned",
    "Unused",
    "VariableList",
    "Weight",
    "also",
    "layer",
    "layer_like",
    "make",
]


@dataclass(frozen=True)
class LayerArgument:
    """The role of an argument.

    ``slot``: the input slot of a Variable; of an attribute, the slot of a Variable with its value.
    ``each``: the slot of a list of Variables, mixed with ints, with the values of an attribute.
    ``optional``: whether None stands for the operator's default.
    ``attr``: the attribute; one that the operator does not declare only checks the argument, for the body.
    ``output``: the output that is written into this Variable, or also returned if this is true.
    ``unused``: why it has no effect.
    ``body_attr``: the attribute that the body computes from it.
    """

    name: str
    optional: bool
    slot: str = ""
    each: str = ""
    attr: Attr | None = None
    output: str = ""
    unused: str = ""
    body_attr: str = ""
    returned: bool = False
    several: bool = False

    @property
    def used(self) -> bool:
        """Whether the operator uses it, and not only the body."""
        return bool(self.slot or self.output or self.attr is not None)


Names = Mapping[str, "str | Attr"]


@dataclass(frozen=True)
class LayerOptions:
    """The options of a declaration; see :func:`layer`."""

    returns: str | Sequence[str] = ()
    extra: Sequence[str] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    called: str = ""
    stop_gradient: bool | Sequence[str] = False


class Declaration:
    """A declared layer; see :func:`layer`."""

    def __init__(
        self,
        name: str,
        signature: inspect.Signature,
        type: str,
        names: Names,
        options: LayerOptions,
        body: Callable[..., Any] | None,
    ) -> None:
        self.name, self.signature, self.definition, self.body = name, signature, ops.get(type), body
        self.names, self.options = names, options
        self.attrs, self.called, returns = dict(options.attrs), options.called or name, options.returns
        slots = self.definition.outputs
        default_returns = tuple(slot.name for slot in slots if not slot.intermediate and not slot.dispensable)
        self.returns = ((returns,) if isinstance(returns, str) else tuple(returns)) or default_returns
        produced = (*(slot.name for slot in slots if not slot.dispensable), *options.extra)
        self.extra = tuple(slot for slot in produced if slot not in self.returns)
        self.no_gradient = {slot.name for slot in slots}
        if not isinstance(options.stop_gradient, bool):
            self.no_gradient = {*options.stop_gradient}
        elif not options.stop_gradient:
            self.no_gradient -= {*self.returns, *(str(slot) for slot in names.values() if isinstance(slot, Returned))}
        self.arguments = [self._argument(p, names) for p in signature.parameters.values() if p.name not in HELPED]
        self.inputs = {slot.name for slot in self.definition.inputs}
        self.outputs = {slot.name for slot in self.definition.outputs}
        unknown = {*names} - {*signature.parameters}
        if unknown:
            raise RegistryError(f"layers.{name} has no argument {sorted(unknown)[0]!r}, which its declaration names")

    def _argument(self, parameter: inspect.Parameter, names: Names) -> LayerArgument:
        """The role of a parameter, from the declaration's names, or by its name in the operator's definition."""
        name, op = parameter.name, self.definition
        optional = parameter.default is None or "None" in str(parameter.annotation)
        role = names.get(name, name)
        if isinstance(role, Attr):
            return LayerArgument(name, optional, attr=role)
        if not role or isinstance(role, BodyArg):
            return LayerArgument(name, optional, body_attr=role)
        if isinstance(role, (Unused, Returned)):
            unused, output = (str(role), "") if isinstance(role, Unused) else ("", str(role))
            return LayerArgument(name, optional, unused=unused, output=output, returned=bool(output))
        target, *slots = role.split("|")
        slot, attr, output = _find(op.inputs, target), _find(op.attrs, target), _find(op.outputs, target)
        if name not in names and name in ("input", "x") and not slot and not attr:
            slot = _find(op.inputs, "x") or _find(op.inputs, "input")
        if attr and (not slot or target == attr.name):
            slots = slots or ["".join(s.name for s in attr.tensors if s.duplicable is each) for each in (False, True)]
            slot_of_all, each = (*slots, "", "")[:2]
            return LayerArgument(name, optional, slot_of_all, each, attr)
        if slot:
            return LayerArgument(name, optional, slot.name, several=slot.duplicable)
        if output:
            return LayerArgument(name, optional, output=output.name)
        if name in HINTS:
            return LayerArgument(name, optional, unused="A hint.")
        raise RegistryError(
            f"layers.{self.name}: argument {name!r} is no slot and no attribute of operator {op.type!r}\n"
            "  Do: say in the declaration's names what it is"
        )

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Check the arguments, and append the operator."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as exc:
            empty = inspect.Signature.empty
            parameters = [each.replace(annotation=empty) for each in self.signature.parameters.values()]
            raise TypeError(f"layers.{self.name}{inspect.Signature(parameters)}: {exc}") from None
        bound.apply_defaults()
        return LayerCall(self, bound.arguments).append()


def _find(definitions: Sequence[Any], name: str) -> Any:
    """The slot or attribute of a name: exact, or ignoring case and underscores."""
    folded = name.replace("_", "").lower()
    exact = [each for each in definitions if each.name == name]
    return next(iter(exact or [each for each in definitions if each.name.replace("_", "").lower() == folded]), None)


def layer(
    type: str,
    names: Names | None = None,
    *,
    returns: str | Sequence[str] = (),
    extra: Sequence[str] = (),
    attrs: Mapping[str, Any] | None = None,
    called: str = "",
    stop_gradient: bool | Sequence[str] = False,
    body: Callable[..., Any] | None = None,
) -> Callable[[Function], Function]:
    """Make a layer from a signature: it checks its arguments and appends one operator.

    ``type``: the operator.
    ``names``: the roles of arguments whose name differs from the operator's: a slot or an attribute;
    ``"scale|ScaleTensor"``, an attribute and the slot of a Variable with its value, besides the declared ones; an
    output that is written into it; an :class:`Attr`, which is checked for the body; ``""``, passed to the body
    unchecked; :class:`BodyArg` with the attribute that the body computes from it; :class:`Unused` with the reason;
    :class:`Returned` with an output. For attributes that Variables may hold the body gets NumberArgument.
    ``returns``: the outputs that are returned; default: all that are neither intermediate nor dispensable.
    ``extra``: dispensable outputs that the gradient needs.
    ``attrs``: attributes without an argument.
    ``called``: prefix of the names of results and parameters; default: the layer's name.
    ``stop_gradient``: True: no output has a gradient; a list: these have none; False: those not returned have none.
    ``body``: replaces the signature's own body, for layers that share one.
    Raises RegistryError if an argument is neither slot nor attribute.
    """

    def declare(function: Function) -> Function:
        signature = inspect.signature(function)
        options = LayerOptions(returns, extra, attrs or {}, called, stop_gradient)
        declaration = Declaration(function.__name__, signature, type, names or {}, options, body or function)
        return cast(Function, make(declaration, function))

    return declare


def layer_like(
    source: Function, type: str, body: Callable[..., Any] | None = None, **defaults: Any
) -> Callable[[Callable[[], None]], Function]:
    """Make a layer of another operator, with the signature of a declared layer except for some defaults.

    ``source``: the declared layer, which also provides names and options.
    ``type``: the operator.
    ``body``: replaces the layer's body.
    """
    base = source.declaration  # type: ignore[attr-defined]

    def declare(function: Callable[[], None]) -> Function:
        parameters = [p.replace(default=defaults.get(p.name, p.default)) for p in base.signature.parameters.values()]
        signature = base.signature.replace(parameters=parameters)
        declaration = Declaration(function.__name__, signature, type, base.names, base.options, body or base.body)
        return cast(Function, make(declaration, function))

    return declare


def make(declaration: Declaration, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of a declaration; ``function`` has its signature, annotations and docstring."""
    from fluidlite.layers.documentation import documentation

    def generated(*args: Any, **kwargs: Any) -> Any:
        return declaration(args, kwargs)

    functools.update_wrapper(generated, function)
    # Errors name the function that the user called, by the name of its code object in the stack.
    generated.__code__ = generated.__code__.replace(co_name=declaration.name)
    generated.__signature__ = declaration.signature  # type: ignore[attr-defined]
    generated.declaration = declaration  # type: ignore[attr-defined]
    module = "fluidlite.layers" if function.__module__.startswith("fluidlite.layers") else "fluidlite"
    generated.__doc__ = documentation(declaration, function.__doc__ or "", module)
    return generated
