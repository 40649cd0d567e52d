"""Call: the hashable metadata of one use of an operator, for inference, planner and kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from math import copysign
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from fluidlite.base.errors import AttributeValueError, DtypeError, ProgramError, ShapeError
from fluidlite.base.lru_cache import weight_of
from fluidlite.platform.place import Place
from fluidlite.program.opdef import OpDef
from fluidlite.tensor.tensor_spec import Dims, Lod, Spec

if TYPE_CHECKING:
    from fluidlite.program.epilogue import Epilogue

Result = TypeVar("Result")
PLACEHOLDER = Spec.of((), "float32")
"""Placeholder of an output that is not yet inferred."""
_operand_functions: set[Callable[[Call], Any]] = set()
_SMALL_TYPES = frozenset({int, float, bool, str, type(None)})
"""Types of attributes whose size is negligible; lists and arrays may be long."""


class Call:
    """Metadata of one use of an operator.

    Attributes
    ----------
    op : OpDef
    ins, outs : mapping of slot to tuple of Spec
        Only slots that are present. Dims may be -1 at build time.
    attrs : mapping
        Canonical values of every attribute of the definition.
    place : Place or None
        The place that it will run on; None at build time.
    training : bool
        Whether the program reads gradients of it.
    index : mapping of slot to int
        The position of its first variable among those of all inputs and outputs.
    known : bool
        Whether all dims of inputs are known.
    dense : bool
        Whether all inputs and outputs are dense tensors.
    largest : int
        The elements of its largest tensor; -1 if dims of an input are unknown.
        found : dict
        Results of functions decorated with :func:`once`.
    weight : int
        An estimate of its bytes, for caches.
    """

    __slots__ = (
        "_facts",
        "_hash",
        "attrs",
        "cache",
        "dense",
        "index",
        "ins",
        "is_static",
        "largest",
        "op",
        "outs",
        "place",
        "training",
        "weight",
    )

    def __init__(
        self,
        op: OpDef,
        ins: Mapping[str, tuple[Spec, ...]],
        outs: Mapping[str, tuple[Spec, ...]],
        attrs: Mapping[str, Any],
        place: Place | None = None,
        training: bool = False,
    ) -> None:
        self.op = op
        self.ins = ins
        self.outs = outs
        self.attrs = attrs
        self.place = place
        self.training = training
        index: dict[str, int] = {}
        position = largest = 0
        is_static = dense = True
        weight = 2000 + 100 * len(attrs)
        for value in attrs.values():
            if type(value) not in _SMALL_TYPES:
                weight += weight_of(value)
        for slot, specs in (*ins.items(), *outs.items()):
            index[slot] = position
            position += len(specs)
            for spec in specs:
                weight += spec.weight
                dense = dense and spec.kind == "dense"
                if spec.size > largest:
                    largest = spec.size
                elif spec.size < 0 and slot in ins:
                    is_static = False
        self.index = index
        self.is_static = is_static
        self.dense = dense
        self.largest = largest if is_static else -1
        self.weight = weight
        self._hash: int | None = None  # both computed on demand: most calls are no keys
        self._facts: tuple[Any, ...] = ()
        self.cache: dict[Callable[[Call], Any], Any] = {}

    @property
    def of_tensors(self) -> bool:
        """Whether the operator's expression of tensors computes the call, because no function of scalars does."""
        op, scalar = self.op, self.op.scalar
        if op.expression is None or scalar is None:
            return op.expression is not None
        return scalar.supports is not None and scalar.supports(self) is not None

    def has(self, slot: str) -> bool:
        """Whether the call has the input or output slot."""
        return slot in self.index

    def count(self, slot: str) -> int:
        """Number of variables in the slot."""
        return len(self.ins.get(slot, ()) or self.outs.get(slot, ()))

    def spec(self, slot: str, i: int = 0) -> Spec:
        """Metadata of the ``i``-th variable of an input or output slot."""
        return (self.ins.get(slot) or self.outs[slot])[i]

    def specs(self, slot: str) -> tuple[Spec, ...]:
        """Metadata of all variables of a slot; empty if absent."""
        return self.ins.get(slot) or self.outs.get(slot) or ()

    def dims(self, slot: str, i: int = 0) -> Dims:
        """Dims of the ``i``-th variable of a slot."""
        return (self.ins.get(slot) or self.outs[slot])[i].dims

    def dtype(self, slot: str, i: int = 0) -> str:
        """Dtype of the ``i``-th variable of a slot."""
        return (self.ins.get(slot) or self.outs[slot])[i].dtype

    def lod(self, slot: str, i: int = 0) -> Lod:
        """LoD offsets of the ``i``-th variable of a slot."""
        return self.spec(slot, i).lod

    def value(self, slot: str, i: int = 0) -> tuple[Any, ...] | None:
        """The numbers of an input whose slot has ``value=True``; None if absent, or not yet known."""
        specs = self.ins.get(slot)
        return specs[i].value if specs else None

    def attr(self, name: str) -> Any:
        """Value of an attribute."""
        return self.attrs[name]

    @property
    def key_dtype(self) -> str | None:
        """The dtype that selects the kernel: of the definition's ``kernel_dtype`` slot, else of the first variable."""
        slot = self.op.kernel_dtype
        if slot is not None and slot in self.index:
            return self.dtype(slot)
        for specs in (*self.ins.values(), *self.outs.values()):
            for spec in specs:
                return spec.dtype
        return None

    @property
    def epilogue(self) -> Epilogue | None:
        """The epilogue fused into the store of a product; None for other operators."""
        return self.op.epilogue

    def with_outs(self, outs: Mapping[str, tuple[Spec, ...]]) -> Call:
        """Return the same call with inferred outputs."""
        return self._alike(Call(self.op, self.ins, outs, self.attrs, self.place, self.training))

    def at(self, place: Place) -> Call:
        """Return the same call on a place."""
        if place == self.place:
            return self
        return self._alike(Call(self.op, self.ins, self.outs, self.attrs, place, self.training))

    def _alike(self, other: Call) -> Call:
        """Return ``other``, a call of the same operands and attributes, with the cached results of these."""
        rule = self.op.expression
        if rule is None or not rule.inferred or self.outs is other.outs:
            for function in _operand_functions & self.cache.keys():
                other.cache[function] = self.cache[function]
        return other

    # Errors of inference functions. The framework prepends the operator and the user's line to the message.

    def fail(self, slot: str, expected: str, got: Any = None, do: str = "") -> NoReturn:
        """Raise ShapeError: ``slot`` is not ``expected``."""
        text = self.describe(slot) if got is None else got
        raise ShapeError(f"{slot} is {text}; expected {expected}." + (f"\n  Do: {do}" if do else ""))

    def fail_dtype(self, slot: str, expected: str | Sequence[str], do: str = "") -> NoReturn:
        """Raise DtypeError: the slot's dtype is wrong."""
        names = expected if isinstance(expected, str) else ", ".join(expected)
        raise DtypeError(f"{slot} is {self.describe(slot)}; expected dtype {names}." + (f"\n  Do: {do}" if do else ""))

    def fail_attr(self, name: str, expected: str, do: str = "") -> NoReturn:
        """Raise AttributeValueError: the attribute does not fit the inputs; ShapeError if a tensor replaces it."""
        slot = slot_of_attribute(self, name)
        if slot is not None:
            values = [spec.value for spec in self.specs(slot)]
            numbers = [n for value in values for n in value or ()]
            single = len(numbers) == 1 and not isinstance(self.attrs[name], tuple)
            self.fail(slot, expected, got=None if None in values else numbers[0] if single else numbers, do=do)
        raise AttributeValueError(
            f"attribute {name!r} is {self.attrs[name]!r}; expected {expected}." + (f"\n  Do: {do}" if do else "")
        )

    def need(self, condition: bool, slot: str, expected: str, do: str = "") -> None:
        """Raise ShapeError unless ``condition``."""
        if not condition:
            self.fail(slot, expected, do=do)

    def describe(self, slot: str) -> str:
        """The slot's metadata as text for errors."""
        specs = self.specs(slot)
        return ", ".join(map(repr, specs)) if specs else "absent"

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Call)
            and hash(self) == hash(other)
            and self.op is other.op
            and self._facts == other._facts
        )

    def __hash__(self) -> int:
        if self._hash is None:
            signs = _minus_zeros(self.attrs)
            self._facts = (self.ins, self.outs, self.attrs, signs, self.place, self.training)
            ins, outs, attrs = tuple(self.ins.items()), tuple(self.outs.items()), tuple(self.attrs.items())
            self._hash = hash((self.op.type, ins, outs, attrs, signs, self.place, self.training))
        return self._hash

    def __repr__(self) -> str:
        ins = ", ".join(f"{slot}={self.describe(slot)}" for slot in self.ins)
        return f"{self.op.type}({ins})"


def slot_of_attribute(call: Call, name: str) -> str | None:
    """Return the input slot whose numbers replace an attribute; None if the attribute's own value is used."""
    attr = call.op.attr(name)
    return next((slot.name for slot in attr.tensors if call.has(slot.name)), None) if attr is not None else None


def cached_in_call(function: Callable[[Call], Result]) -> Callable[[Call], Result]:
    """Cache a function's result in the call: choosing and preparing a kernel both need it."""

    @wraps(function)
    def cached(call: Call) -> Result:
        results = call.cache
        if cached not in results:
            results[cached] = function(call)
        result: Result = results[cached]
        return result

    return cached


def cached_by_operands(function: Callable[[Call], Result]) -> Callable[[Call], Result]:
    """Cache a function's result in the call and in calls with the same operands and attributes.

    Calls with other outputs or on other places share it, unless the operator's expression infers its outputs otherwise.
    """
    cached = cached_in_call(function)
    _operand_functions.add(cached)
    return cached


def _minus_zeros(attrs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the attributes, and indices in them, that are -0.0, which compares equal to 0.0."""
    positions: tuple[Any, ...] = ()
    for name, value in attrs.items():
        if value.__class__ is float:
            if value == 0 and copysign(1.0, value) < 0:
                positions += (name,)
        elif value.__class__ is tuple and value and value[0].__class__ is float and 0.0 in value:
            positions += tuple((name, i) for i, item in enumerate(value) if item == 0 and copysign(1.0, item) < 0)
    return positions


def with_location(error: ProgramError, what: str) -> ProgramError:
    """Return the error with the operator and the user's line prepended to its message."""
    return type(error)(f"{what}: {error}")
