"""OpDef: the definition of an operator type.

Slots, checked attributes, an inference function, a gradient rule, aliasing of outputs, and an optional decomposition.
Kernels are registered separately; samples and references are in fluidlite.conformance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fluidlite.base.arguments import as_int
from fluidlite.base.dtypes import FLOATS, INTS, is_float
from fluidlite.base.errors import AttributeValueError, DtypeError, FluidError, RegistryError

if TYPE_CHECKING:
    from fluidlite.program.epilogue import Epilogue
    from fluidlite.program.layout_rewrite import LayoutRewrite
    from fluidlite.program.op_call import Call
    from fluidlite.program.rules import ExpressionRule, GradRule, ScalarRule, StepsRule
    from fluidlite.tensor.layout import Layout
    from fluidlite.tensor.tensor_spec import Spec

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
        An output that exists for the gradient; ``content`` describes it.
    metadata_only : bool
        An input whose bytes no kernel reads (its dims or LoD suffice): it is never moved.
    value : bool
        An input whose numbers are metadata: inference and kernels read them with ``call.value(slot)``, no kernel
        reads its bytes. If they are unknown before the run, planning stops before the operator and continues at run
        time.
    table : bool
        For a ``value``: an expression gets its numbers as one tensor of integers instead of one by one, so that it does
        not depend on their count.
    unmoved : bool
        An input that must already be on the operator's place: planning raises if it would be moved.
    on_host : bool
        An input that kernels read in host memory, or an output in host memory.
    run_place : bool
        For an operator with ``run``: an input or output on the place of the run, whatever the place of the others.
    decomposed : bool
        Registered kernels do not support it: a call that has it is computed by the operator's expression.
    kinds : tuple of str
        The kinds of variable that it accepts.
    """

    name: str
    _: KW_ONLY
    duplicable: bool = False
    dispensable: bool = False
    intermediate: bool = False
    metadata_only: bool = False
    value: bool = False
    table: bool = False
    on_host: bool = False
    run_place: bool = False
    decomposed: bool = False
    unmoved: bool = False
    content: str = ""
    kinds: tuple[str, ...] = ("dense",)
    doc: str = ""

    @property
    def unread(self) -> bool:
        """Whether no kernel reads the input's bytes."""
        return self.metadata_only or self.value


_ATTR_TYPES: dict[str, tuple[type, ...]] = {"int": (int,), "float": (float, int), "bool": (bool,), "str": (str,)}


_ATTR_TYPE_NAMES = (*_ATTR_TYPES, *(f"{name}s" for name in _ATTR_TYPES), "dtype", "block")


_ARRAY_KINDS = {"ints": "i", "floats": "f"}


@dataclass(frozen=True)
class Attr:
    """A typed, checked attribute.

    ``type`` is ``"int"``, ``"float"``, ``"bool"``, ``"str"``, a list of one (``"ints"``, ``"floats"``, ``"strs"``),
    ``"dtype"`` (stored as its canonical text; Fluid's numbers are accepted too) or ``"block"`` (an index).
    ``minimum`` and ``maximum`` are inclusive; ``choices`` is the closed list. ``default`` None means required,
    unless ``optional``. A ``static`` float is a constant of generated kernels, which may branch on it; other floats are
    their arguments. ``tensors`` are input slots whose numbers replace the attribute; the first present slot is used. A
    duplicable slot has one number in each tensor, any other all numbers in one tensor.
    """

    name: str
    type: str
    default: Any = None
    _: KW_ONLY
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[Any, ...] | None = None
    optional: bool = False
    doc: str = ""
    static: bool = False
    tensors: tuple[Slot, ...] = ()

    def __post_init__(self) -> None:
        if self.type not in _ATTR_TYPE_NAMES:
            raise RegistryError(
                f"attribute {self.name!r} is of type {self.type!r}; expected one of {', '.join(_ATTR_TYPE_NAMES)}"
            )
        if self.tensors and not all(
            isinstance(slot, Slot) and slot.value and slot.dispensable for slot in self.tensors
        ):
            raise RegistryError(
                f"attribute {self.name!r} has tensors={self.tensors!r}; expected dispensable slots of values"
            )

    @property
    def required(self) -> bool:
        """Whether the attribute must be given."""
        return self.default is None and not self.optional

    @cached_property
    def canonical_default(self) -> Any:
        """The default in canonical form, or None."""
        return self.check(self.default) if self.default is not None else None

    @property
    def _unbounded(self) -> bool:
        return self.choices is None and self.minimum is None and self.maximum is None

    def check(self, value: Any) -> Any:
        """Return ``value`` in canonical, hashable form, or raise AttributeValueError."""
        if self.optional and (
            value is None or (self.type == "dtype" and as_int(value) == -1)
        ):  # -1: Fluid's value for none
            return None
        if self.type == "dtype":
            from fluidlite.tensor.var_type import dtype_of

            try:
                canonical: Any = dtype_of(value)
            except DtypeError as exc:
                raise DtypeError(f"attribute {self.name!r}: {exc}") from None
        elif self.type.endswith("s") and self.type[:-1] in _ATTR_TYPES:
            if isinstance(value, (str, bytes)) or not isinstance(value, (Sequence, np.ndarray)):
                raise self._bad(value, f"a list of {self.type[:-1]}")
            table = value.dtype.kind if isinstance(value, np.ndarray) and value.ndim == 1 else ""
            if isinstance(value, np.ndarray) and table == _ARRAY_KINDS.get(self.type) and self._unbounded:
                return tuple(value.tolist())  # the numbers of a table are checked by its dtype
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

    def _scalar(self, kind: str, item: Any, original: Any) -> Any:
        item = item.item() if isinstance(item, np.generic) else item
        if kind == "bool" and item is not original and type(item) is int and item in (0, 1):
            item = bool(item)  # Fluid stores lists of bools as numbers
        if (isinstance(item, bool) and kind != "bool") or not isinstance(item, _ATTR_TYPES[kind]):
            raise self._bad(
                original,
                {"int": "an int", "float": "a float", "bool": "a bool", "str": "a str"}[kind]
                if item is original
                else f"a list of {kind}",
            )
        number: Any = item
        if kind == "int" and not -(2**63) <= number < 2**64:
            raise self._bad(original, "an int of 64 bits")
        try:
            return float(number) if kind == "float" else number
        except OverflowError:
            raise self._bad(original, "a number that a float can hold") from None

    def _bad(self, value: Any, expected: str) -> AttributeValueError:
        return AttributeValueError(f"attribute {self.name!r} is {value!r}; expected {expected}")


def as_tensor(name: str) -> Slot:
    """Return an input slot of one tensor, whose numbers may replace an attribute."""
    return Slot(name, dispensable=True, value=True)


def as_tensors(name: str) -> Slot:
    """Return an input slot of several tensors, one for each number that may replace an attribute."""
    return Slot(name, duplicable=True, dispensable=True, value=True)


def tensor_slots(attrs: Iterable[Attr]) -> dict[str, Slot]:
    """Return the input slots whose numbers may replace attributes, with their documentation."""
    texts = {True: "a tensor each", False: "as a tensor"}
    return {
        slot.name: replace(slot, doc=slot.doc or f"{attr.name}, {texts[slot.duplicable]}; wins over the attribute")
        for attr in attrs
        for slot in attr.tensors
    }


def tensor_dtypes(attrs: Iterable[Attr]) -> dict[str, tuple[str, ...]]:
    """Return the dtypes of the slots of :func:`tensor_slots`."""
    return {slot.name: FLOATS if "float" in attr.type else INTS for attr in attrs for slot in attr.tensors}


Infer = Callable[["Call"], "Mapping[str, Spec | Sequence[Spec]]"]
Constant = Callable[["Call"], "Mapping[str, tuple[float, ...] | None]"]


@dataclass(eq=False)
class OpDef:
    """The definition of one operator type. See :func:`fluidlite.program.registry.register_op`."""

    type: str
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    attrs: tuple[Attr, ...] = ()
    infer: Infer | None = None
    grad: GradRule | Callable[..., Any] | None = None
    scalar: ScalarRule | None = None
    expression: ExpressionRule | None = None
    decompose: Callable[..., Any] | None = None
    steps: StepsRule | None = None
    kernel_dtype: str | None = None
    may_alias: Mapping[str, str] = field(default_factory=dict)
    must_alias: Mapping[str, str] = field(default_factory=dict)
    view: tuple[str, str] | None = None
    host_only: str | None = None
    random: bool = False
    dynamic: bool = False
    effect: bool = False
    pure: bool = False
    constant: Constant | None = None
    run: Callable[..., None] | None = None
    epilogue: Epilogue | None = None
    in_layout: Callable[[Call, Layout], LayoutRewrite | None] | None = None
    marker: bool = False
    dtypes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stop_gradient: Mapping[str, str] = field(default_factory=dict)
    no_gradient: Mapping[str, str] = field(default_factory=dict)
    doc: str = ""
    memory: str = ""
    source: str = ""
    version: int = 1
    origin: str = ""

    def __post_init__(self) -> None:
        self._in = {slot.name: slot for slot in self.inputs}
        self._out = {slot.name: slot for slot in self.outputs}
        self._attr = {attr.name: attr for attr in self.attrs}
        self.may_act = self.effect or self.run is not None
        """Whether a use of it may have effects besides its outputs."""
        self.derived: dict[str, Any] = {}
        """Derived gradient operators by suffix; see :mod:`fluidlite.program.derived`."""
        self.floats = tuple([attr.name for attr in self.attrs if attr.type == "float" and not attr.static])
        """Float attributes that are symbols of a trace."""
        self.slots = frozenset(self._in) | frozenset(self._out)
        """The names of inputs and outputs."""
        stated, tables, unmoved, decomposed = list[str](), list[str](), list[str](), list[str]()
        unread, on_host, numbers = set[str](), set[str](), set[str]()
        for slot in (*self.inputs, *self.outputs):
            name = slot.name
            if slot.value:
                numbers.add(name)
            if slot.metadata_only or slot.value:
                unread.add(name)
            if slot.on_host:
                on_host.add(name)
            if slot.decomposed:
                decomposed.append(name)
        for slot in self.inputs:
            if slot.table:
                tables.append(slot.name)
            elif slot.value:
                stated.append(slot.name)
            if slot.unmoved:
                unmoved.append(slot.name)
        self.stated, self.tables = tuple(stated), tuple(tables)
        """Inputs whose numbers are read one by one as metadata, and those whose numbers are read as one tensor."""
        self.unread = frozenset(unread)
        """Slots whose bytes no kernel reads."""
        self.non_kernel_slots = self.unread | on_host
        """Slots that are no operands of a kernel on the device."""
        self.off_device = frozenset(numbers | on_host)
        """Slots whose numbers the host reads, writes, or has as metadata."""
        self.unmoved, self.decomposed = tuple(unmoved), tuple(decomposed)
        common = self._in.keys() & self._out.keys()
        if common:
            raise RegistryError(f"operator {self.type!r}: slot {sorted(common)[0]!r} is both an input and an output")

    def input(self, name: str) -> Slot | None:
        """Return the input slot of that name, or None."""
        return self._in.get(name)

    def output(self, name: str) -> Slot | None:
        """Return the output slot of that name, or None."""
        return self._out.get(name)

    def attr(self, name: str) -> Attr | None:
        """Return the attribute of that name, or None."""
        return self._attr.get(name)

    def draws(self, attrs: Mapping[str, Any]) -> bool:
        """Whether a run draws random numbers, which it does not with ``is_test``."""
        return self.random and not attrs.get("is_test")

    def stops(self, slot: str) -> str | None:
        """Return why no derivative flows through an input or output slot; None if one does, or should."""
        if slot in self.stop_gradient:
            return self.stop_gradient[slot]
        if slot in self.must_alias:
            return "it updates state in place: derivatives are of the new value"
        declared = self._in.get(slot)
        if declared is not None and declared.metadata_only:
            return "its numbers are not read"
        allowed = self.dtypes.get(slot, ())
        if allowed and not any(is_float(dtype) for dtype in allowed):
            return f"it is {' or '.join(allowed)}"
        return None

    @contextmanager
    def attribute_errors(self, what: str, error: Callable[[str], FluidError]) -> Iterator[None]:
        """Turn exceptions of a function of the declaration into ``error``, except fluidlite's own errors."""
        try:
            yield
        except FluidError:
            raise
        except Exception as exc:
            raise error(f"{what} raised {type(exc).__name__}: {exc}\n  In the declaration at {self.origin}") from exc

    def __repr__(self) -> str:
        return f"OpDef({self.type!r})"
