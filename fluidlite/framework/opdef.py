"""OpDef: what an operator means, declared once.

Slots, checked attributes, one inference function, a gradient rule, which outputs may share memory,
an optional decomposition, and samples with a float64 NumPy reference. HOW it computes is in kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fluidlite.base.errors import AttributeValueError, DtypeError, RegistryError

if TYPE_CHECKING:
    from fluidlite.framework.call import Call
    from fluidlite.framework.epilogue import Epilogue
    from fluidlite.framework.layout import Layout
    from fluidlite.framework.relayout import Relaid
    from fluidlite.framework.spec import Spec

GRAD = "@GRAD"
"""Suffix of a gradient's slot and variable names."""


@dataclass(frozen=True)
class Slot:
    """A named group of inputs or outputs.

    Attributes
    ----------
    duplicable : bool
        Takes a list of variables.
    dispensable : bool
        May be left out.
    intermediate : bool
        An output that exists for the gradient; ``content`` says what it holds.
    metadata_only : bool
        An input whose bytes no kernel reads (its dims or LoD suffice): it is never moved.
    value : bool
        An input whose numbers are metadata: inference and kernels read them with ``call.value(slot)``, no kernel
        reads its bytes. Where they are not known before the run, planning stops in front of the operator, and goes
        on once they are.
    on_host : bool
        An input that kernels read on the host, or an output that lives there.
    opaque : bool
        An intermediate whose content is one library's own; forward and gradient then use one library.
    kinds : tuple of str
        Which kinds of variable it takes.
    """

    name: str
    duplicable: bool = False
    dispensable: bool = False
    intermediate: bool = False
    metadata_only: bool = False
    value: bool = False
    on_host: bool = False
    opaque: bool = False
    content: str = ""
    kinds: tuple[str, ...] = ("dense",)
    doc: str = ""

    @property
    def unread(self) -> bool:
        """Whether no kernel reads the input's bytes."""
        return self.metadata_only or self.value


_ATTR_TYPES: dict[str, tuple[type, ...]] = {"int": (int,), "float": (float, int), "bool": (bool,), "str": (str,)}


@dataclass(frozen=True)
class Attr:
    """A typed, checked attribute.

    ``type`` is ``"int"``, ``"float"``, ``"bool"``, ``"str"``, a list of one (``"ints"``, ``"floats"``, ``"strs"``),
    ``"dtype"`` (kept as its canonical text; Fluid's numbers are taken too) or ``"block"`` (an index).
    ``minimum`` and ``maximum`` are inclusive; ``choices`` is the closed list. ``default`` None means required,
    unless ``optional``. A ``static`` float is a constant of generated kernels, which may branch on it; others are
    their arguments.
    """

    name: str
    type: str
    default: Any = None
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[Any, ...] | None = None
    optional: bool = False
    doc: str = ""
    static: bool = False

    @property
    def required(self) -> bool:
        """Whether the attribute must be given."""
        return self.default is None and not self.optional

    def check(self, value: Any) -> Any:
        """Return ``value`` in canonical, hashable form, or raise AttributeValueError."""
        if self.optional and (value is None or (self.type == "dtype" and value == -1)):  # -1: Fluid's word for none
            return None
        if self.type == "dtype":
            from fluidlite.framework.vartype import dtype_of

            try:
                canonical: Any = dtype_of(value)
            except DtypeError as exc:
                raise DtypeError(f"attribute {self.name!r}: {exc}") from None
        elif self.type.endswith("s") and self.type[:-1] in _ATTR_TYPES:
            if isinstance(value, (str, bytes)) or not isinstance(value, (Sequence, np.ndarray)):
                raise self._bad(value, f"a list of {self.type[:-1]}")
            canonical = tuple(self._scalar(self.type[:-1], item, value) for item in value)
        elif self.type == "block":
            canonical = self._scalar("int", value, value)
        else:
            canonical = self._scalar(self.type, value, value)
        if self.choices is not None and canonical not in self.choices:
            raise self._bad(value, "one of " + ", ".join(map(repr, self.choices)))
        for item in canonical if isinstance(canonical, tuple) else (canonical,):
            if self.minimum is not None and not item >= self.minimum:  # NaN is in no range
                raise self._bad(value, f"{self.minimum} or more")
            if self.maximum is not None and not item <= self.maximum:
                raise self._bad(value, f"{self.maximum} or less")
        return canonical

    def _scalar(self, kind: str, item: Any, whole: Any) -> Any:
        item = item.item() if isinstance(item, np.generic) else item
        if kind == "bool" and item is not whole and type(item) is int and item in (0, 1):
            item = bool(item)  # Fluid keeps lists of bools as numbers
        if (isinstance(item, bool) and kind != "bool") or not isinstance(item, _ATTR_TYPES[kind]):
            raise self._bad(whole, {"int": "an int", "float": "a float", "bool": "a bool", "str": "a str"}[kind]
                            if item is whole else f"a list of {kind}")  # fmt: skip
        number: Any = item
        try:
            return float(number) if kind == "float" else number
        except OverflowError:
            raise self._bad(whole, "a number that a float can hold") from None

    def _bad(self, value: Any, expected: str) -> AttributeValueError:
        return AttributeValueError(f"attribute {self.name!r} is {value!r}; expected {expected}")


@dataclass(frozen=True)
class Sample:
    """One tested use of an operator: inputs, attributes, and what is checked.

    Attributes
    ----------
    inputs : mapping of slot to array, or list of arrays for a duplicable slot
        NumPy arrays of the exact dtypes fed.
    attrs : mapping
    grads : tuple of str
        Input slots whose gradients are checked against central differences.
    lod : mapping of slot to LoD offsets
    name : str
        Shown in test ids.
    dtypes : tuple of str
        The sample also runs with its floating inputs cast to each of these.
    outputs : tuple of str
        Output slots to ask for; empty: all of the definition.
    """

    inputs: Mapping[str, Any]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    grads: tuple[str, ...] = ()
    lod: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    dtypes: tuple[str, ...] = ("float32",)
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class ScalarRule:
    """An elementwise operator as a function of scalar symbols.

    ``function(x, y, *, alpha)``: positional parameters are slots in snake case (``x`` is X, ``learning_rate``
    LearningRate, ``dout`` Out@GRAD), keyword-only ones attributes; it returns one symbol, or a tuple,
    for the output slots named in ``outputs``.

    ``supports(call)``, if given, returns the reason why a call is no function of scalars (an attribute that asks for
    a sum), or None; the planner goes on to kernels and to the decomposition then.

    ``placed(call)``, if given, says the dims of operands that Fluid's rule of broadcasting would put elsewhere: as
    many as the largest operand has, 1 where it is broadcast.

    ``code(call)``, if given, returns the typed expression itself, and ``function`` is not traced: a fused operator, of
    ``steps`` others.
    """

    function: Callable[..., Any]
    outputs: tuple[str, ...]
    supports: Callable[[Call], str | None] | None = None
    placed: Callable[[Call], Mapping[str, tuple[int, ...]]] | None = None
    code: Callable[[Call], Any] | None = None
    steps: int = 1


@dataclass(frozen=True)
class GradRule:
    """Which gradient operator an operator gets, and what that reads.

    Attributes
    ----------
    type : str
        The gradient operator's type.
    reads : tuple of str
        Forward slots (inputs or outputs) and ``Slot@GRAD`` names that become its inputs.
    writes : tuple of str
        Forward input slots whose gradients it makes.
    attrs : callable or None
        Makes its attributes of the forward operator's; None: those of the same names.
    """

    type: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    attrs: Callable[[Any], dict[str, Any]] | None = None


Infer = Callable[["Call"], "Mapping[str, Spec | Sequence[Spec]]"]
Reference = Callable[..., Mapping[str, Any]]
Constant = Callable[["Call"], "Mapping[str, tuple[float, ...] | None]"]


@dataclass(eq=False)
class OpDef:
    """The definition of one operator type. See :func:`fluidlite.framework.registry.register_op`."""

    type: str
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    attrs: tuple[Attr, ...] = ()
    infer: Infer | None = None
    grad: GradRule | Callable[..., Any] | None = None
    scalar: ScalarRule | None = None
    decompose: Callable[..., Any] | None = None
    kernel_dtype: str | None = None
    may_alias: Mapping[str, str] = field(default_factory=dict)
    must_alias: Mapping[str, str] = field(default_factory=dict)
    view: tuple[str, str] | None = None
    host_only: str | None = None
    random: bool = False
    dynamic: bool = False
    effect: bool = False
    constant: Constant | None = None
    run: Callable[..., None] | None = None
    epilogue: Epilogue | None = None
    in_layout: Callable[[Call, Layout], Relaid | None] | None = None
    marker: bool = False
    reference: Reference | None = None
    samples: Callable[[], Iterable[Sample]] | Sequence[Sample] = ()
    dtypes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    doc: str = ""
    memory: str = ""
    source: str = ""
    version: int = 1
    origin: str = ""

    def __post_init__(self) -> None:
        self._in = {slot.name: slot for slot in self.inputs}
        self._out = {slot.name: slot for slot in self.outputs}
        self._attr = {attr.name: attr for attr in self.attrs}
        both = self._in.keys() & self._out.keys()
        if both:
            raise RegistryError(f"operator {self.type!r}: slot {sorted(both)[0]!r} is both an input and an output")

    def input(self, name: str) -> Slot | None:
        """The input slot of that name, or None."""
        return self._in.get(name)

    def output(self, name: str) -> Slot | None:
        """The output slot of that name, or None."""
        return self._out.get(name)

    def attr(self, name: str) -> Attr | None:
        """The attribute of that name, or None."""
        return self._attr.get(name)

    def all_samples(self) -> list[Sample]:
        """The samples; made when first asked for."""
        return list(self.samples() if callable(self.samples) else self.samples)

    def __repr__(self) -> str:
        return f"OpDef({self.type!r})"
