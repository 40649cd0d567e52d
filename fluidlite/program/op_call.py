"""Call: one use of an operator, as hashable metadata. Inference, planner and kernels all see this."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
_OF_OPERANDS = ("leaves", "traced")
"""What is found of operands and attributes alone; where an operator infers its outputs itself, of these too."""


_SMALL = frozenset({int, float, bool, str, type(None)})
"""Types of attributes that weigh little beside their entry; lists and arrays may be long."""


class Call:
    """Metadata of one use of an operator.

    Attributes
    ----------
    op : OpDef
    ins, outs : mapping of slot to tuple of Spec
        Only slots that are given (inputs) or wanted (outputs). Dims may hold -1 at build time.
    attrs : mapping
        Canonical values of every attribute of the definition.
    place : Place or None
        Where it will run; None at build time.
    training : bool
        Whether the program reads gradients of it.
    weight : int
        An estimate of its bytes, for caches.
    """

    __slots__ = ("_cache", "_hash", "_signs", "attrs", "index", "ins", "op", "outs", "place", "training", "weight")

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
        position = 0
        weight = 2000 + 100 * len(attrs)
        for value in attrs.values():
            if type(value) not in _SMALL:
                weight += weight_of(value)
        for slot, specs in (*ins.items(), *outs.items()):
            index[slot] = position
            position += len(specs)
            for spec in specs:
                weight += spec.weight
        self.index = index
        self.weight = weight
        self._hash: int | None = None  # both when they are asked for: most calls are no keys
        self._signs: tuple[Any, ...] | None = None
        self._cache: dict[str, Any] | None = None

    def once(self, name: str, find: Callable[[Call], Result]) -> Result:
        """What ``find`` says of this call; asked once, for choosing and preparing a kernel both want to know."""
        if self._cache is None:
            self._cache = {}
        if name not in self._cache:
            self._cache[name] = find(self)
        result: Result = self._cache[name]
        return result

    @property
    def of_tensors(self) -> bool:
        """Whether its operator's expression computes it: one of tensors, and no function of scalars does."""
        scalar = self.op.scalar
        return self.op.expression is not None and (scalar is None or scalar.refuse(self) is not None)

    @property
    def by_elements(self) -> Call:
        """The call said element by element, where its operator is put together of elementwise ones; else itself."""
        rule = self.op.expression
        return self if rule is None or rule.elements is None else self.once("by elements", _by_elements)

    def has(self, slot: str) -> bool:
        """Whether the input slot was given, or the output slot is wanted."""
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
        """The numbers of an input whose slot says ``value=True``; None if absent, or not known yet."""
        specs = self.ins.get(slot)
        return specs[i].value if specs else None

    def attr(self, name: str) -> Any:
        """Value of an attribute."""
        return self.attrs[name]

    @property
    def known(self) -> bool:
        """Whether all dims of inputs are known."""
        for specs in self.ins.values():
            for spec in specs:
                if spec.size < 0:
                    return False
        return True

    @property
    def key_dtype(self) -> str | None:
        """The dtype that chooses the kernel: of the definition's ``kernel_dtype`` slot, else of the first variable."""
        slot = self.op.kernel_dtype
        if slot is not None and slot in self.index:
            return self.dtype(slot)
        for specs in (*self.ins.values(), *self.outs.values()):
            for spec in specs:
                return spec.dtype
        return None

    @property
    def epilogue(self) -> Epilogue | None:
        """What is computed of each element of a product before it is stored; None for other operators."""
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
        """A call of the same operands and attributes, which knows what was found of these."""
        rule = self.op.expression
        if self._cache is not None and (rule is None or not rule.inferred or self.outs is other.outs):
            other._cache = {name: self._cache[name] for name in _OF_OPERANDS if name in self._cache}
        return other

    # What inference functions raise. The framework puts operator and user's line before the message.

    def fail(self, slot: str, expected: str, got: Any = None, do: str = "") -> NoReturn:
        """Raise ShapeError: ``slot`` should be ``expected``."""
        shown = self.shown(slot) if got is None else got
        raise ShapeError(f"{slot} is {shown}; expected {expected}." + (f"\n  Do: {do}" if do else ""))

    def fail_dtype(self, slot: str, expected: str | Sequence[str], do: str = "") -> NoReturn:
        """Raise DtypeError: the slot's dtype is wrong."""
        names = expected if isinstance(expected, str) else ", ".join(expected)
        raise DtypeError(f"{slot} is {self.shown(slot)}; expected dtype {names}." + (f"\n  Do: {do}" if do else ""))

    def fail_attr(self, name: str, expected: str, do: str = "") -> NoReturn:
        """Raise AttributeValueError: the attribute does not suit the inputs."""
        raise AttributeValueError(
            f"attribute {name!r} is {self.attrs[name]!r}; expected {expected}." + (f"\n  Do: {do}" if do else "")
        )

    def need(self, condition: bool, slot: str, expected: str, do: str = "") -> None:
        """Raise ShapeError unless ``condition``."""
        if not condition:
            self.fail(slot, expected, do=do)

    def shown(self, slot: str) -> str:
        """The slot's metadata as an error shows it."""
        specs = self.specs(slot)
        return ", ".join(map(repr, specs)) if specs else "absent"

    def _key(self) -> tuple[Any, ...]:
        if self._signs is None:
            self._signs = _minus_zeros(self.attrs)
        return (self.op.type, self.ins, self.outs, self.attrs, self._signs, self.place, self.training)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Call)
            and hash(self) == hash(other)
            and self.op is other.op
            and self._key() == other._key()
        )

    def __hash__(self) -> int:
        if self._hash is None:
            type, ins, outs, attrs, signs, place, training = self._key()
            self._hash = hash(
                (type, tuple(ins.items()), tuple(outs.items()), tuple(attrs.items()), signs, place, training)
            )
        return self._hash

    def __repr__(self) -> str:
        ins = ", ".join(f"{slot}={self.shown(slot)}" for slot in self.ins)
        return f"{self.op.type}({ins})"


def _minus_zeros(attrs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Where attributes hold -0.0, which is equal to 0.0 and not the same."""
    found: tuple[Any, ...] = ()
    for name, value in attrs.items():
        if value.__class__ is float:
            if value == 0 and copysign(1.0, value) < 0:
                found += (name,)
        elif value.__class__ is tuple and value and value[0].__class__ is float and 0.0 in value:
            found += tuple((name, i) for i, item in enumerate(value) if item == 0 and copysign(1.0, item) < 0)
    return found


def located(error: ProgramError, what: str) -> ProgramError:
    """Return the same error with the operator and the user's line before its message."""
    return type(error)(f"{what}: {error}")


def _by_elements(call: Call) -> Call:
    rule = call.op.expression
    assert rule is not None and rule.elements is not None
    said = Call(rule.elements(), call.ins, call.outs, call.attrs, call.place, call.training)
    return call if said.op.scalar is None or said.op.scalar.refuse(said) is not None else said
