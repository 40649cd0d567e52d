"""A layer as a declaration: what the arguments of Fluid's signature become of one operator.

``@layer("bpr_loss")`` above a typed signature is the whole layer. An argument is an input slot or an attribute of the
operator, found by its name; checks, results and the documentation follow from the operator's definition. A body, if
there is one, gets the checked arguments and returns :func:`also`: what else the operator gets. See docs/layers.md.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from fluidlite.base.errors import RegistryError
from fluidlite.control_flow import sub_program as _control_flow  # noqa: F401  declares the operators that run blocks
from fluidlite.layers.declared import AddedBias, Bias, Body, Returned, Several, Unused, Weight, also
from fluidlite.layers.declared_use import HELPED, Use
from fluidlite.program.opdef import Attr
from fluidlite.program.registry import HINTS, ops

Function = TypeVar("Function", bound=Callable[..., Any])
__all__ = [
    "AddedBias",
    "Bias",
    "Body",
    "Names",
    "Returned",
    "Several",
    "Unused",
    "Weight",
    "alike",
    "also",
    "declaration_of",
    "layer",
    "make",
]


@dataclass(frozen=True)
class Argument:
    """What an argument becomes.

    ``slot``: the input slot of a Variable; of an attribute, the slot of a Variable that holds it.
    ``each``: the slot of a list of Variables, beside ints, that hold an attribute.
    ``optional``: None stands for the operator's own default.
    ``attr``: the attribute; one that the operator does not declare is a check alone, for the body.
    ``output``: the output that is written into this Variable, or returned as well if this is true.
    ``unused``: why it has no effect.
    ``body_attr``: the attribute that the body makes of it.
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
        """Whether the operator, and not the body alone, gets it."""
        return bool(self.slot or self.output or self.attr is not None)


Names = Mapping[str, "str | Attr"]


@dataclass(frozen=True)
class Options:
    """What a declaration says beside the names; see :func:`layer`."""

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
        options: Options,
        body: Callable[..., Any] | None,
    ) -> None:
        self.name, self.signature, self.definition, self.body = name, signature, ops.get(type), body
        self.names, self.options = names, options
        self.attrs, self.called, returns = dict(options.attrs), options.called or name, options.returns
        slots = self.definition.outputs
        plain = tuple(slot.name for slot in slots if not slot.intermediate and not slot.dispensable)
        self.returns = ((returns,) if isinstance(returns, str) else tuple(returns)) or plain
        kept = (*(slot.name for slot in slots if not slot.dispensable), *options.extra)
        self.extra = tuple(slot for slot in kept if slot not in self.returns)
        self.still = {slot.name for slot in slots}
        if not isinstance(options.stop_gradient, bool):
            self.still = {*options.stop_gradient}
        elif not options.stop_gradient:
            self.still -= {*self.returns, *(str(slot) for slot in names.values() if isinstance(slot, Returned))}
        self.arguments = [self._argument(p, names) for p in signature.parameters.values() if p.name not in HELPED]
        self.inputs = {slot.name for slot in self.definition.inputs}
        self.outputs = {slot.name for slot in self.definition.outputs}
        self._names, self._known = (*signature.parameters,), {*signature.parameters}
        empty = inspect.Parameter.empty
        self._defaults = {p.name: p.default for p in signature.parameters.values() if p.default is not empty}
        unknown = {*names} - self._known
        if unknown:
            raise RegistryError(f"layers.{name} has no argument {sorted(unknown)[0]!r}, which its declaration names")

    def _argument(self, parameter: inspect.Parameter, names: Names) -> Argument:
        """What a parameter becomes; what the names do not say, the operator's slots and attributes do."""
        name, op = parameter.name, self.definition
        optional = parameter.default is None or "None" in str(parameter.annotation)
        said = names.get(name, name)
        if isinstance(said, Attr):
            return Argument(name, optional, attr=said)
        if not said or isinstance(said, Body):
            return Argument(name, optional, body_attr=said)
        if isinstance(said, (Unused, Returned)):
            unused, output = (str(said), "") if isinstance(said, Unused) else ("", str(said))
            return Argument(name, optional, unused=unused, output=output, returned=bool(output))
        first, *slots = said.split("|")
        slot, attr, output = _alike(op.inputs, first), _alike(op.attrs, first), _alike(op.outputs, first)
        if name not in names and name in ("input", "x") and not slot and not attr:
            slot = _alike(op.inputs, "x") or _alike(op.inputs, "input")
        if attr and (not slot or first == attr.name):
            slots = slots or ["".join(s.name for s in attr.tensors if s.duplicable is each) for each in (False, True)]
            whole, each = (*slots, "", "")[:2]
            return Argument(name, optional, whole, each, attr)
        if slot:
            return Argument(name, optional, slot.name, several=slot.duplicable)
        if output:
            return Argument(name, optional, output=output.name)
        if name in HINTS:
            return Argument(name, optional, unused="A hint.")
        raise RegistryError(
            f"layers.{self.name}: argument {name!r} is no slot and no attribute of operator {op.type!r}\n"
            "  Do: say in the declaration's names what it is"
        )

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Check the arguments, and append the operator."""
        given = {**self._defaults, **dict(zip(self._names, args, strict=False)), **kwargs}
        twice = kwargs and not kwargs.keys().isdisjoint(self._names[: len(args)])
        if twice or len(args) > len(self._names) or given.keys() != self._known:
            self._refuse(args, kwargs)
        return Use(self, given).append()

    def _refuse(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as exc:
            empty = inspect.Signature.empty
            plain = [each.replace(annotation=empty) for each in self.signature.parameters.values()]
            raise TypeError(f"layers.{self.name}{inspect.Signature(plain)}: {exc}") from None


def _alike(those: Sequence[Any], name: str) -> Any:
    """The slot or attribute of that name: as it is written, or but for case and underscores."""
    plain = name.replace("_", "").lower()
    exact = [each for each in those if each.name == name]
    return next(iter(exact or [each for each in those if each.name.replace("_", "").lower() == plain]), None)


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
    """Make a layer of a signature: it checks its arguments and appends one operator.

    ``type``: the operator.
    ``names``: what arguments are that the operator does not call so: a slot or an attribute; ``"scale|ScaleTensor"``,
    an attribute and the slot of a Variable that holds it, beside those that stand for it anyway; an output that is
    written into it; an :class:`Attr`, which is checked for the body; ``""``, for the body as it is; :class:`Body` with
    an attribute that it makes of it; :class:`Unused` with the reason; :class:`Returned` with an output. Of what
    Variables may hold the body gets Numbers.
    ``returns``: the outputs that are returned; default: all that no gradient and no one else needs.
    ``extra``: outputs that may be left out, and are kept for the gradient.
    ``attrs``: attributes that no argument says.
    ``called``: begins the names of results and parameters; default: the layer's name.
    ``stop_gradient``: all outputs get no gradient, or these; False: what is not returned.
    ``body``: in place of the signature's own body, which layers of one family share.
    Raises RegistryError if an argument is neither slot nor attribute.
    """

    def declare(function: Function) -> Function:
        signature = inspect.signature(function)
        options = Options(returns, extra, attrs or {}, called, stop_gradient)
        declaration = Declaration(function.__name__, signature, type, names or {}, options, body or function)
        return cast(Function, make(declaration, function))

    return declare


def alike(
    source: Function, type: str, body: Callable[..., Any] | None = None, **defaults: Any
) -> Callable[[Callable[[], None]], Function]:
    """Make a layer of another operator, with the signature of a declared layer but for some defaults.

    ``source``: the declared layer, whose names and options count too.
    ``type``: the operator.
    ``body``: in place of the layer's.
    """
    like = source.declaration  # type: ignore[attr-defined]

    def declare(function: Callable[[], None]) -> Function:
        given = [p.replace(default=defaults.get(p.name, p.default)) for p in like.signature.parameters.values()]
        signature = like.signature.replace(parameters=given)
        declaration = Declaration(function.__name__, signature, type, like.names, like.options, body or like.body)
        return cast(Function, make(declaration, function))

    return declare


def make(declaration: Declaration, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of a declaration; ``function`` has its signature, annotations and text."""
    from fluidlite.layers.documentation import documentation

    def generated(*args: Any, **kwargs: Any) -> Any:
        return declaration(args, kwargs)

    functools.update_wrapper(generated, function)
    # Errors name the function that the user called: the code's own name is what the stack shows.
    generated.__code__ = generated.__code__.replace(co_name=declaration.name)
    generated.__signature__ = declaration.signature  # type: ignore[attr-defined]
    generated.declaration = declaration  # type: ignore[attr-defined]
    module = "fluidlite.layers" if function.__module__.startswith("fluidlite.layers") else "fluidlite"
    generated.__doc__ = documentation(declaration, function.__doc__ or "", module)
    return generated


def declaration_of(function: Any) -> Declaration | None:
    found: Declaration | None = getattr(function, "declaration", None)
    return found
