"""What inference functions share: dims that may be -1 at build time, LoD that is shared, gradients' metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from fluidlite.framework.call import Call
from fluidlite.framework.opdef import GRAD, Slot
from fluidlite.framework.spec import Dims, Spec

Inferred = Mapping[str, "Spec | Sequence[Spec]"]


def size(dims: Sequence[int]) -> int:
    """Number of elements; -1 if a dim is unknown (even beside a zero: the rank of the problem stays open)."""
    return -1 if any(d < 0 for d in dims) else prod(dims)


def agree(a: int, b: int) -> bool:
    """Whether two dims may be equal."""
    return a == b or a < 0 or b < 0


def all_agree(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether two lists of dims may be equal."""
    return len(a) == len(b) and all(map(agree, a, b))


def merged(a: Sequence[int], b: Sequence[int]) -> Dims:
    """Return what is known of dims that are equal."""
    return tuple(y if x < 0 else x for x, y in zip(a, b, strict=True))


def like(spec: Spec, dims: Sequence[int] | None = None, dtype: str | None = None) -> Spec:
    """Return a spec that shares the LoD of ``spec`` (Fluid's ShareLoD), and its dims and dtype unless given."""
    return Spec.of(
        spec.dims if dims is None else dims,
        spec.dtype if dtype is None else dtype,
        lod=spec.lod,
        lod_level=spec.lod_level,
    )


def same_dtype(call: Call, slot: str, other: str) -> None:
    """Raise DtypeError unless two input slots have one dtype."""
    if call.dtype(slot) != call.dtype(other):
        call.fail_dtype(slot, f"{call.dtype(other)}, the dtype of {other}", do="use layers.cast on one of the two")


def one_number(call: Call, slot: str, like: str | None = None) -> None:
    """Raise unless a slot that may be left out holds one number (of the dtype of the slot ``like``)."""
    if call.has(slot):
        if not all(d in (1, -1) for d in call.dims(slot)):
            call.fail(slot, "one number, as [1]")
        if like is not None:
            same_dtype(call, slot, like)


def normal_axis(call: Call, name: str, value: int, rank: int, slot: str = "X") -> int:
    """Return an axis as 0..rank-1, or raise AttributeValueError."""
    if not -rank <= value < rank:
        call.fail_attr(name, f"an axis in [{-rank}, {rank}) of {slot}, which is {call.shown(slot)}")
    return value + rank if value < 0 else value


def grad_inputs(*names: str, meta: Sequence[str] = ()) -> tuple[Slot, ...]:
    """Return input slots of a gradient operator; those in ``meta`` are read as metadata only."""
    return tuple(Slot(name, metadata_only=name in meta) for name in names)


def grad_outputs(*names: str) -> tuple[Slot, ...]:
    """Return the gradient slots of forward slots; any of them may be unwanted."""
    return tuple(Slot(name + GRAD, dispensable=True) for name in names)


def grad_like(*names: str) -> Callable[[Call], Inferred]:
    """Return the inference of a gradient operator: each gradient is as its forward variable."""

    def infer(call: Call) -> Inferred:
        return {name + GRAD: like(call.spec(name)) for name in names}

    return infer
