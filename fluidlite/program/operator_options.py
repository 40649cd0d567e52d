"""Options of an operator's declaration, besides its slots and attributes: frozen dataclasses, one for each aspect.

``register_op``, ``@operator``, ``@gradient``, ``unary`` and ``binary`` take them by position after the type,
in any order, each at most once::

    @operator("increment", Aliasing(may={"Out": "X"}), attrs=[STEP], source="Fluid increment_op.cc")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any, TypeVar, Union

from fluidlite.base.errors import RegistryError
from fluidlite.program.layout_rewrite import Rule
from fluidlite.program.opdef import Constant, Infer
from fluidlite.program.rules import ExpressionRule, GradRule, ScalarRule


def _is_mapping_of_texts(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(each, str) for pair in value.items() for each in pair)


_EXPECTED: dict[str, Callable[[Any], bool]] = {
    "True or False": lambda value: isinstance(value, bool),
    "a function": callable,
    "a tuple of names": lambda value: not isinstance(value, str) and all(isinstance(each, str) for each in value),
    "a text": lambda value: isinstance(value, str),
    "a mapping of names to texts": _is_mapping_of_texts,
}
"""The check for each kind of field, by the text that errors expect."""


def check_fields(
    option: Any,
    *,
    flags: Sequence[str] = (),
    functions: Sequence[str] = (),
    names: Sequence[str] = (),
    texts: Sequence[str] = (),
    mappings: Sequence[str] = (),
) -> None:
    """Raise RegistryError for a field of an option that is not of its kind: bool, function, names, text or mapping.

    None, the default of many fields, is accepted.
    """
    for (what, is_valid), group in zip(_EXPECTED.items(), (flags, functions, names, texts, mappings), strict=True):
        for name in group:
            value = getattr(option, name)
            if value is None:
                continue
            try:
                valid = is_valid(value)
            except TypeError:  # not iterable
                valid = False
            if not valid:
                raise RegistryError(f"{type(option).__name__}({name}={value!r}): expected {what}")


@dataclass(frozen=True)
class Inference:
    """The metadata of a call that is known before it runs.

    Attributes
    ----------
    infer : callable, optional
        ``infer(call) -> {output slot: Spec or list of Spec}``: pure; at build time dims may be -1, at bind time they
        are exact. It raises through ``call.fail`` and related methods. Operators that are functions of tensors or of
        scalars derive it from their function; for those, ``infer`` adds checks.
    constant : callable, optional
        ``constant(call) -> {output slot: numbers or None}``: the outputs, if metadata determines them. Operators that
        read the output as metadata (a slot with ``value=True``) then need no copy from the device.
    dynamic : bool
        The dims of its outputs depend on values: inference returns -1, and the kernel calls ``io.resize``.
    kernel_dtype : str, optional
        The slot whose dtype selects the kernel; default: the first input.

    Raises
    ------
    RegistryError
        If a value is of another kind.
    """

    infer: Infer | None = None
    _: KW_ONLY
    constant: Constant | None = None
    dynamic: bool = False
    kernel_dtype: str | None = None

    def __post_init__(self) -> None:
        check_fields(self, functions=("infer", "constant"), flags=("dynamic",), texts=("kernel_dtype",))


@dataclass(frozen=True, kw_only=True)
class Aliasing:
    """The outputs that share memory with inputs.

    Attributes
    ----------
    may : mapping of output slot to input slot
        Pairs that may share memory.
    must : mapping of output slot to input slot
        Pairs that are the same variable, updated in place.
    view : (output slot, input slot), optional
        The output has the input's bytes with other dims.

    Raises
    ------
    RegistryError
        If a value is of another kind, or an output is in ``may`` and in ``must``.
    """

    may: Mapping[str, str] = field(default_factory=dict)
    must: Mapping[str, str] = field(default_factory=dict)
    view: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        check_fields(self, mappings=("may", "must"), names=("view",))
        if self.view is not None and len(self.view) != 2:
            raise RegistryError(f"Aliasing(view={self.view!r}): expected two names, of the output and of the input")
        common = self.may.keys() & self.must.keys()
        if common:
            raise RegistryError(
                f"Aliasing: {min(common)!r} is in may and in must\n  Do: leave it in must, if it is updated in place"
            )


@dataclass(frozen=True, kw_only=True)
class Differentiation:
    """The gradient of an operator, and the slots without derivatives.

    Attributes
    ----------
    rule : GradRule or callable, optional
        The gradient operator and the slots that it reads; or ``rule(maker)``, which appends gradient operators.
    reads : tuple of slots, optional
        For ``@operator``: the gradient operator, its type + "_grad", is derived, and reads these inputs and outputs
        besides the outputs' gradients. It has all inputs; those that are not named here are metadata only.
    dispensable : tuple of slots
        Inputs of a derived or handwritten gradient operator that may be absent (``"Out@GRAD"``).
    only_for : mapping of slot read to slot written
        Slots that a handwritten gradient reads for one gradient only; see ``GradRule``.
    stop_gradient : mapping of input or output slot to str
        Slots through which no derivative flows, and why: the derivative is 0 almost everywhere (a choice of an index,
        a count), or it stops there on purpose. Slots that are no floats, whose numbers are not read
        (``metadata_only``), or that update state in place need no entry.
    no_gradient : mapping of input or output slot to str
        Slots whose derivative is not implemented, and what a program can do instead: backward raises with this text.
        It also raises for any other slot that the gradient operator leaves out.
    doc, memory : str
        The documentation and ``Execution.memory`` of the derived gradient operator.

    Raises
    ------
    RegistryError
        If a value is of another kind, or there are ``rule`` and ``reads``.
    """

    rule: GradRule | Callable[..., Any] | None = None
    reads: Sequence[str] | None = None
    dispensable: Sequence[str] = ()
    only_for: Mapping[str, str] = field(default_factory=dict)
    stop_gradient: Mapping[str, str] = field(default_factory=dict)
    no_gradient: Mapping[str, str] = field(default_factory=dict)
    doc: str = ""
    memory: str = ""

    def __post_init__(self) -> None:
        check_fields(self, names=("reads", "dispensable"), texts=("doc", "memory"))
        check_fields(self, mappings=("only_for", "stop_gradient", "no_gradient"))
        if self.rule is not None and not isinstance(self.rule, GradRule) and not callable(self.rule):
            raise RegistryError(f"Differentiation(rule={self.rule!r}): expected a GradRule or rule(maker)")
        if self.rule is not None and self.reads is not None:
            raise RegistryError(
                "Differentiation has a rule, and reads, which ask for a derived gradient\n  Do: leave one of them out"
            )


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How an operator runs: its place, effects and memory.

    Attributes
    ----------
    run : callable, optional
        ``run(frame, op)`` of an operator without kernels (print, control flow): it takes tensors from
        ``frame.read(slot)`` and hands its own to ``frame.write(slot, tensors)``.
    pure : bool
        An operator with ``run`` has no effects besides its outputs: it is removed if they are not read.
    marker : bool
        It only marks variables, and never runs (feed, fetch).
    host_only : str, optional
        Keeps the operator on the host; the text is the reason.
    random : bool
        It draws random numbers.
    effect : bool
        It has effects besides its outputs, so that it runs even if they are not read.
    memory : str
        The memory that its kernels allocate, and why, if with the outputs it is more than twice the outputs.

    Raises
    ------
    RegistryError
        If a value is of another kind, or two of them contradict each other.
    """

    run: Callable[..., None] | None = None
    pure: bool = False
    marker: bool = False
    host_only: str | None = None
    random: bool = False
    effect: bool = False
    memory: str = ""

    def __post_init__(self) -> None:
        check_fields(self, functions=("run",), flags=("pure", "marker", "random", "effect"))
        check_fields(self, texts=("host_only", "memory"))
        if self.host_only == "":
            raise RegistryError("Execution(host_only=''): say the reason, which errors and reports show")
        if self.pure and (self.run is None or self.effect):
            raise RegistryError(
                "Execution(pure=True) is of an operator with run= and without effect=True: kernels are pure anyway"
            )
        if self.marker and self.run is not None:
            raise RegistryError("Execution: an operator that only marks variables never runs\n  Do: leave run= out")


@dataclass(frozen=True, kw_only=True)
class Lowering:
    """How an operator is computed if no kernel is registered.

    Attributes
    ----------
    scalar : ScalarRule, optional
        The operator as a function of scalars, from which kernels are generated.
    expression : ExpressionRule, optional
        For ``register_op``: the operator as a function of tensors; ``@operator`` creates it.
    decompose : callable, optional
        For ``register_op``: ``decompose(call, build)`` decomposes it into other operators (docs/operators.md).
    in_layout : callable, optional
        ``in_layout(call, layout)``: the form of the operator for tensors in a layout, or None; elementwise operators
        need none.
    library : bool
        A library behind the array namespace computes most of it, such as a matrix product: array calls have priority
        over kernels of a kernel language.
    gradient_library : bool, optional
        The same for its derived gradient; default: as ``library``.
    stored : mapping of output slot to dtype
        Outputs that are stored in another dtype than their default (see ``ExpressionRule``), also ``AS_COMPUTED``.
    decomposed : tuple of slots
        Slots of a gradient operator that registered kernels do not support: the expression computes calls with them.

    Raises
    ------
    RegistryError
        If a value is of another kind.
    """

    scalar: ScalarRule | None = None
    expression: ExpressionRule | None = None
    decompose: Callable[..., Any] | None = None
    in_layout: Rule | None = None
    library: bool = False
    gradient_library: bool | None = None
    stored: Mapping[str, str] = field(default_factory=dict)
    decomposed: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_fields(self, functions=("decompose", "in_layout"), flags=("library", "gradient_library"))
        check_fields(self, mappings=("stored",), names=("decomposed",))
        for name, kind in (("scalar", ScalarRule), ("expression", ExpressionRule)):
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise RegistryError(f"Lowering({name}={value!r}): expected a {kind.__name__}")


@dataclass(frozen=True, kw_only=True)
class Registration:
    """The registration of an operator.

    Attributes
    ----------
    version : int
        The version of its semantics, from 1 on: programs are saved with it, and a higher version is not loaded.
    override : bool
        It replaces a registered operator of the same type.

    Raises
    ------
    RegistryError
        If a value is of another kind.
    """

    version: int = 1
    override: bool = False

    def __post_init__(self) -> None:
        check_fields(self, flags=("override",))
        if isinstance(self.version, bool) or not isinstance(self.version, int) or self.version < 1:
            raise RegistryError(f"Registration(version={self.version!r}): expected a number from 1 on")


Option = Union[Inference, Aliasing, Differentiation, Execution, Lowering, Registration]
Kind = TypeVar("Kind")


_defaults: dict[type[Any], Any] = {}


def _default_option(kind: type[Kind]) -> Kind:
    """Return an option with its defaults, created once, because most operators use the defaults of most options."""
    if kind not in _defaults:
        _defaults[kind] = kind()
    option: Kind = _defaults[kind]
    return option


class Options:
    """The options of one declaration, by class.

    ``what``: the operator, as an error names it.
    ``further``: classes that the declaration accepts besides :data:`Option`.
    Raises RegistryError if one is no option, or a class occurs twice.
    """

    def __init__(self, what: str, options: Sequence[Any], *further: type) -> None:
        self.what = what
        self._by_class: dict[type, Any] = {}
        classes = (*Option.__args__, *further)  # type: ignore[attr-defined]
        for option in options:
            if type(option) not in classes:
                raise RegistryError(
                    f"{what}: {option!r} is no option of it; expected {', '.join(each.__name__ for each in classes)}"
                    "\n  Do: give slots and attributes by name: inputs=, outputs=, attrs="
                )
            if type(option) in self._by_class:
                raise RegistryError(f"{what} has {type(option).__name__} twice\n  Do: say all of it in one")
            self._by_class[type(option)] = option

    def find(self, kind: type[Kind]) -> Kind | None:
        return self._by_class.get(kind)

    def get(self, kind: type[Kind]) -> Kind:
        """Return the option of a class, or its defaults."""
        return self._by_class.get(kind) or _default_option(kind)

    def refuse(self, kind: type[Any], names: Sequence[str], do: str) -> None:
        """Raise if an option sets fields that this declaration does not support; ``do``: the advice."""
        option, default = self.get(kind), _default_option(kind)
        for name in names:
            if getattr(option, name) != getattr(default, name):
                supported = ", ".join(each.name for each in fields(kind) if each.name not in names)
                raise RegistryError(
                    f"{self.what} does not take {kind.__name__}({name}=...); expected {supported}\n  Do: {do}"
                )
