"""Leaves: nodes with stored values. These can be moved between devices, with their gradients."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np

from fluidlite.base.dtypes import is_float
from fluidlite.base.errors import NodeError
from fluidlite.nodes.devices import Device, ValueType, as_device, cpu
from fluidlite.nodes.node import Node, ValueStorage, code_location
from fluidlite.nodes.tensor import Tensor
from fluidlite.platform.place import Place, PlaceLike
from fluidlite.tensor.tensor import Tensor as PlacedTensor

L = TypeVar("L", bound="Leaf")


class Leaf(Node):
    """A node with a stored value. ``value()`` may be assigned to at any time; the next forward reads it."""

    __slots__ = ("_cached_device", "_cached_type")
    leaf: ClassVar[bool] = True
    reads_input = False
    reads_output = False

    def __init__(self, value: Tensor, has_grad: bool) -> None:
        if has_grad and not is_float(value.dtype):
            has_grad = False  # integers have no derivative
        self._inputs = ()
        self._has_grad = has_grad
        self._location = code_location(sys._getframe(1))
        self._at = ValueStorage(value.dev, True)
        self._at._value = value
        self._overwriter = self._graph_mark = None
        self._position = 0
        self._forwarded = True
        self._cached_type: ValueType | None = None  # cached for _type: the type of the value,
        self._cached_device: Device | None = None  # and the device at that time

    @property  # tied leaves move together
    def _dev(self) -> Device:  # type: ignore[override]
        at = self._at
        value = at._tensor  # a leaf's value is never materialized on demand
        return at._dev if value is None else value.dev

    @property
    def _type(self) -> ValueType | None:
        value = self._at._tensor
        assert value is not None
        value_type = self._cached_type
        if value_type is None or value_type.spec is not value.spec or self._cached_device is not value.dev:
            value_type = value.dev.type_of(value.spec, self._has_grad) if value.spec is not None else None
            self._cached_type, self._cached_device = value_type, value.dev
        return value_type

    def name(self) -> str:
        """The kind of leaf, such as ``"Data"``."""
        return type(self).__name__ if self._has_grad or type(self) is Weight else f"Fixed{type(self).__name__}"

    def dev(self) -> Device:
        return self._dev

    def move_to(self: L, dev: Device | PlaceLike) -> L:
        """Move value and gradient to a device; nothing happens if they are on it. Tied leaves move together.

        Raises
        ------
        OutOfMemoryError
            If the device is full; both stay where they are.
        """
        target = as_device(dev)
        at = self._at
        value, grad = at._value, at._grad
        assert value is not None
        if value.dev is target:
            return self
        moved = value.copy_to(target)
        at._grad = grad.copy_to(target) if grad is not None else None
        value.move_to(target) if value.allocation is None else value._replace(lambda: moved)
        at._dev = target
        return self

    def copy_to(self: L, dev: Device | PlaceLike) -> L:
        """An independent leaf on a device, with a copy of the value."""
        return self._new_leaf(self.value().copy_to(dev))

    def _new_leaf(self: L, value: Tensor) -> L:
        leaf: L = object.__new__(type(self))
        Leaf.__init__(leaf, value, self._has_grad)
        return leaf

    def set_value(self, tensor: PlacedTensor) -> None:
        """Copy a tensor's contents in; the device stays."""
        self.value().assign(tensor)

    def forward(self) -> None:
        """Nothing: the value is stored."""

    def backward(self) -> None:
        """Nothing: the gradient is stored."""


def _tensor(function: str, args: tuple[Any, ...], dtype: Any, dev: Any = None) -> Tensor:
    """A tensor of ``(array)``, ``(dev, shape)`` or ``(dev, array)``."""
    items = list(args)
    if items and isinstance(items[0], (Device, str, Place)):
        dev = items.pop(0)
    if len(items) != 1:
        raise NodeError(f"{function} takes (dev, shape), (dev, array) or (array), got {len(args)} arguments")
    (item,) = items
    if isinstance(item, Tensor) and dev is None:
        return item
    target = as_device(dev) if dev is not None else cpu()
    if isinstance(item, PlacedTensor):
        tensor = Tensor(target)
        tensor.assign(item)
        return tensor
    sizes = isinstance(item, (tuple, list)) and all(isinstance(d, (int, np.integer)) for d in item)
    if sizes and dev is not None and not isinstance(item, np.ndarray):
        tensor = Tensor(target, item, dtype or "float32")
        return tensor.set_zero() if tensor.spec is not None and tensor.spec.size else tensor
    array = np.asarray(item)
    if dtype is None:
        has_dtype = isinstance(item, (np.ndarray, np.generic))
        dtype = str(array.dtype) if has_dtype or array.dtype.kind in "bi" else "float32"
    return Tensor(target, None, dtype, array)


class Data(Leaf):
    """Input data: a leaf with a gradient. :func:`FixedData` has none.

    ``Data(dev, shape)`` (zeros), ``Data(dev, array)``, or ``Data(array)`` on the CPU.

    Parameters
    ----------
    *args
        As above; a :class:`~fluidlite.nodes.Tensor` becomes the value and is not copied.
    dtype : str, optional
        Default: the array's own; float32 for a shape and for lists of floats.
    has_grad : bool
        Values of integers have none in any case.
    """

    __slots__ = ()

    def __init__(self, *args: Any, dtype: Any = None, has_grad: bool = True) -> None:
        super().__init__(_tensor("Data", args, dtype), has_grad)


class Weight(Leaf):
    """A parameter: a leaf that updaters change.

    Parameters
    ----------
    *args
        ``(dev, shape)``, ``(dev, array)`` or ``(array)``.
    init : callable, optional
        ``init(tensor)`` fills the value, such as an initialiser of :mod:`fluidlite.nodes`; default: zeros.
    dtype : str, optional
        float32, float64, float16 or bfloat16.

    Notes
    -----
    :meth:`tied` returns another node of the same value and gradient, :meth:`copy` an independent one.
    """

    __slots__ = ()

    def __init__(self, *args: Any, init: Any = None, dtype: Any = None) -> None:
        value = _tensor("Weight", args, dtype)
        if not is_float(value.dtype):
            raise NodeError(f"Weight is {value.dtype}, which has no derivative; expected a float dtype")
        super().__init__(value, True)
        if init is not None:
            init(value)

    @property
    def identity(self) -> int:
        """A number that is equal for tied weights only."""
        return id(self._at)

    def tied(self) -> Weight:
        """Another node of the same value and gradient: moves and updates of one apply to both."""
        leaf = self._new_leaf(self.value())
        leaf._at = self._at
        return leaf

    def copy(self) -> Weight:
        """An independent weight: the value is copied, the gradient is 0."""
        return self._new_leaf(self.value().copy_to(self.value().dev))

    def is_tied_to(self, other: Weight) -> bool:
        """Whether both have the same value and gradient."""
        return self._at is other._at

    def __copy__(self) -> Weight:
        return self.tied()

    def __deepcopy__(self, memo: dict[int, Any]) -> Weight:
        key = id(self._at)
        if key in memo:
            copied_weight: Weight = memo[key]
            return copied_weight.tied()
        memo[key] = new_weight = self.copy()
        return new_weight


def FixedData(*args: Any, dtype: Any = None) -> Data:
    """Input data without a gradient; arguments as of :class:`Data`."""
    return Data(*args, dtype=dtype, has_grad=False)


def _filled_tensor(dev: Any, shape: Sequence[int], fill: Any, dtype: Any) -> Tensor:
    value = Tensor(as_device(dev), shape, dtype)
    if value.spec is not None and value.spec.size:
        fill(value)
    return value


def _without_grad(leaf: L) -> L:
    leaf._has_grad = False
    return leaf


class Constant(Leaf):
    """A leaf of one number, with a gradient: ``Constant(dev, shape, value)``. :func:`FixedConstant` has none."""

    __slots__ = ()

    def __init__(self, dev: Device | PlaceLike, shape: Sequence[int], value: float, dtype: Any = "float32") -> None:
        super().__init__(_filled_tensor(dev, shape, lambda tensor: tensor.fill(value), dtype), True)


class Zero(Leaf):
    """A leaf of zeros, with a gradient. :func:`FixedZero` has none."""

    __slots__ = ()

    def __init__(self, dev: Device | PlaceLike, shape: Sequence[int], dtype: Any = "float32") -> None:
        super().__init__(_filled_tensor(dev, shape, Tensor.set_zero, dtype), True)


class Ones(Leaf):
    """A leaf of ones, with a gradient. :func:`FixedOnes` has none."""

    __slots__ = ()

    def __init__(self, dev: Device | PlaceLike, shape: Sequence[int], dtype: Any = "float32") -> None:
        super().__init__(_filled_tensor(dev, shape, Tensor.set_ones, dtype), True)


class Random(Leaf):
    """A leaf of random numbers, uniform in -1 to 1, with a gradient. :func:`FixedRandom` has none."""

    __slots__ = ()

    def __init__(self, dev: Device | PlaceLike, shape: Sequence[int], dtype: Any = "float32") -> None:
        super().__init__(_filled_tensor(dev, shape, Tensor.set_random, dtype), True)


def FixedConstant(dev: Device | PlaceLike, shape: Sequence[int], value: float, dtype: Any = "float32") -> Constant:
    """A leaf of one number, without a gradient."""
    return _without_grad(Constant(dev, shape, value, dtype))


def FixedZero(dev: Device | PlaceLike, shape: Sequence[int], dtype: Any = "float32") -> Zero:
    """A leaf of zeros, without a gradient."""
    return _without_grad(Zero(dev, shape, dtype))


def FixedOnes(dev: Device | PlaceLike, shape: Sequence[int], dtype: Any = "float32") -> Ones:
    """A leaf of ones, without a gradient."""
    return _without_grad(Ones(dev, shape, dtype))


def FixedRandom(dev: Device | PlaceLike, shape: Sequence[int], dtype: Any = "float32") -> Random:
    """A leaf of random numbers, uniform in -1 to 1, without a gradient."""
    return _without_grad(Random(dev, shape, dtype))
