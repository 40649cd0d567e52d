"""Node: a value on a device, the gradient of a final quantity with respect to it, and how both are computed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from fluidlite.base.errors import NodeError
from fluidlite.nodes.devices import Device, ValueType, as_device
from fluidlite.nodes.precedence import common_device
from fluidlite.nodes.tensor import Tensor
from fluidlite.platform.context import Context
from fluidlite.platform.place import PlaceLike
from fluidlite.program.source_location import SourceLine, in_package
from fluidlite.tensor.tensor import Tensor as PlacedTensor
from fluidlite.tensor.tensor_spec import Spec

CodeLocation = tuple[CodeType, int]
"""The code object and instruction offset that made a node; the line number is computed on demand."""
MAX_FILES = 4096  # entries of _is_own_file
MAX_PARTS = 7
"""Partial gradients that one sum adds, to limit the sums of a weight with many uses."""
_own_files: dict[str, bool] = {}
"""Whether a file belongs to fluidlite, by file name."""


def code_location(frame: FrameType) -> CodeLocation:
    """The code and instruction of the first frame outside fluidlite, from ``frame`` on. Cheap: each node calls it."""
    while True:
        code = frame.f_code
        own = _own_files.get(code.co_filename)
        if own is None:
            file = code.co_filename
            if len(_own_files) > MAX_FILES:
                _own_files.clear()
            own = _own_files[file] = in_package(file)
        back = frame.f_back
        if not own or back is None:
            return code, frame.f_lasti
        frame = back


class ValueSource(Protocol):
    """Creates the tensor of a computed value on demand, by the number of the node."""

    def value(self, at: int) -> Tensor: ...


class GradientSource(Protocol):
    """Creates the tensor of a computed gradient on demand, by the number of the node."""

    def gradient(self, at: int) -> Tensor: ...


class ValueStorage:
    """A value and its gradient. Several nodes may share one: tied weights, views, and nodes that write in place.

    ``leaf``: whether it belongs to a leaf, which outlives graphs.
    """

    __slots__ = ("__weakref__", "_dev", "_grad_source", "_gradient", "_number", "_parts", "_source", "_tensor", "leaf")

    def __init__(self, dev: Device, leaf: bool) -> None:
        self._dev = dev
        self._tensor: Tensor | None = None
        self._gradient: Tensor | None = None
        self._source: ValueSource | None = None  # creates the value, and the next the gradient, on demand
        self._grad_source: GradientSource | None = None
        self._number = 0
        self._parts: Sequence[Tensor] = ()  # partial gradients of a run that are not yet added to _gradient
        self.leaf = leaf

    @property
    def _value(self) -> Tensor | None:
        value = self._tensor
        if value is None and self._source is not None:
            value = self._tensor = self._source.value(self._number)
        return value

    @_value.setter
    def _value(self, tensor: Tensor | None) -> None:
        self._tensor, self._source = tensor, None

    @property
    def _grad(self) -> Tensor | None:
        gradient = self._gradient
        if gradient is None and self._grad_source is not None:
            gradient = self._gradient = self._grad_source.gradient(self._number)
        return gradient

    @_grad.setter
    def _grad(self, tensor: Tensor | None) -> None:
        self._gradient, self._grad_source = tensor, None

    def dev(self) -> Device:
        return self._dev

    def add_part(self, tensor: Tensor) -> None:
        """Add a partial gradient; the sum may be deferred until :meth:`add_up`."""
        if self._grad is None:
            self._grad = tensor
            return
        self._parts = [*self._parts, tensor]
        if len(self._parts) >= MAX_PARTS:
            self.add_up()

    def add_up(self) -> None:
        """Add all partial gradients."""
        from fluidlite.nodes.operator_call import total

        if self._parts:
            parts, self._parts = self._parts, ()
            assert self._grad is not None
            self._grad = total(self._dev, [self._grad, *parts])

    def _on_device(self, tensor: PlacedTensor) -> Tensor:
        if not isinstance(tensor, PlacedTensor):
            raise NodeError(f"a node was given {type(tensor).__name__}; expected a Tensor")
        if isinstance(tensor, Tensor) and tensor.dev is self._dev:
            return tensor
        copy = Tensor.on(self._dev, tensor._required_spec())
        copy.assign(tensor)
        return copy

    def _zeros(self) -> Tensor:
        from fluidlite.nodes.operator_call import filled_tensor

        if self._value is None:
            raise NodeError("a node has no value yet, so its gradient has no dims\n  Do: Graph(node).forward()")
        return filled_tensor(self._dev, self._value._required_spec(), 0.0)


class Node:
    """A node of a dynamic graph, and the base class of user-defined nodes.

    A subclass computes in :meth:`forward_` and :meth:`backward_`. Most nodes are made by functions such as
    :func:`~fluidlite.nodes.Add` or by operators on nodes (``a + b``).

    Parameters
    ----------
    inputs : sequence of Node
    dev : Device or Place or str, optional
        Default: the device of highest precedence of the inputs.

    Attributes
    ----------
    reads_input : bool or tuple of bool
        Whether ``backward_`` of a user-defined class reads the values of (each of) its inputs. In-place proofs use it.
    reads_output : bool
        Whether ``backward_`` reads the node's own value.

    Raises
    ------
    NodeError
        If an input is no node, or inputs are in different memory.
    """

    __slots__ = (
        "__dict__",
        "__weakref__",
        "_at",
        "_dev",
        "_forwarded",
        "_has_grad",
        "_inputs",
        "_location",
        "_over",
        "_position",
        "_seen",
    )
    reads_input: ClassVar[bool | tuple[bool, ...]] = True
    reads_output: ClassVar[bool] = True
    leaf: ClassVar[bool] = False
    """Whether nothing computes its value, which moves between devices."""
    shares_value: ClassVar[bool] = False
    """Whether its value and gradient are those of its first input."""

    def __init__(self, inputs: Sequence[Node] = (), dev: Device | PlaceLike | None = None) -> None:
        self._inputs = tuple(inputs)
        for at, item in enumerate(self._inputs):
            if not isinstance(item, Node):
                raise NodeError(f"{self.name()}: input {at} is {item!r:.80}; expected a node")
        self._dev = _device_of(self) if dev is None else as_device(dev)
        self._has_grad: bool = any(item._has_grad for item in self._inputs)
        self._location = code_location(sys._getframe(1))
        self._start()

    def _start(self) -> None:
        self._at = ValueStorage(self._dev, self.leaf)
        self._forwarded = False
        self._overwriter: tuple[str, CodeLocation] | None = None  # name and location of the node that wrote over it
        self._graph_mark: object = None
        self._position = 0

    # Properties

    def name(self) -> str:
        """The kind of node, such as ``"Add"``."""
        return type(self).__name__.removesuffix("Node")

    def inputs(self) -> tuple[Node, ...]:
        """The nodes from which it is computed."""
        return self._inputs

    def dev(self) -> Device:
        """The device of its value."""
        return self._dev

    def has_grad(self) -> bool:
        """Whether it has a gradient: a leaf created with one, or a node that depends on such a leaf."""
        return self._has_grad

    @property
    def line(self) -> SourceLine:
        """The user's source line that made it."""
        return _line(self._location)

    def __str__(self) -> str:
        return f"{self.name()} ({self.line})"

    def __repr__(self) -> str:
        return f"<{self}>"

    # Value and gradient

    def value(self) -> Tensor:
        """The value, on the node's device.

        Raises
        ------
        NodeError
            Before ``forward``, or if a node that writes in place has overwritten it.
        """
        overwriter = self._overwriter
        if overwriter is not None:
            raise NodeError(
                f"{self}: {overwriter[0]} ({_line(overwriter[1])}) has overwritten its value in place"
                "\n  Do: read it before, or use Graph(sink, inplace=False)"
            )
        tensor = self._at._value
        if tensor is None:
            raise NodeError(f"{self} has no value yet\n  Do: Graph(node).forward()")
        return tensor

    def set_value(self, tensor: PlacedTensor) -> None:
        """Set the value; :meth:`forward_` of a user-defined class ends with this call."""
        self._at._value = self._at._on_device(tensor)

    def grad(self) -> Tensor:
        """The gradient; zeros if nothing was added since ``reset_grad``.

        Raises
        ------
        NodeError
            If the node has no gradient or no value.
        """
        if not self._has_grad:
            raise NodeError(f"{self} has no gradient: it depends on nothing that has one")
        at = self._at
        if at._grad is None:
            at._grad = at._zeros()
        return at._grad

    def add_grad(self, tensor: PlacedTensor) -> None:
        """Add to the gradient; for :meth:`backward_` of a user-defined class.

        Parameters
        ----------
        tensor : Tensor
            Of the value's dims and dtype; it may become the gradient itself, so do not change it afterwards.
        """
        if not self._has_grad:
            return
        value = self._at._value
        if value is not None and (
            tensor.spec is None or tensor.spec.with_(lod=()) != value._required_spec().with_(lod=())
        ):
            raise NodeError(f"{self}: a gradient {tensor.spec!r} was added; expected that of its value, {value.spec!r}")
        self._add_grad(self._at._on_device(tensor))

    def _add_grad(self, tensor: Tensor) -> None:
        self._at.add_part(tensor)
        self._at.add_up()

    # Computing

    def forward(self) -> None:
        """Compute the value from the inputs, unless it is computed already."""
        if not self._forwarded:
            self._overwriter = None
            self.forward_()
            self._forwarded = True

    def backward(self) -> None:
        """Add this node's contribution to the gradients of its inputs."""
        if self._has_grad and self._at._grad is not None:
            self.backward_()

    def forward_(self) -> None:
        """Compute: a user-defined class reads the values of ``self.inputs()`` and calls :meth:`set_value`."""
        if not self.leaf:
            raise NodeError(f"{self}: its class defines no forward_\n  Do: define forward_, which calls set_value")

    def backward_(self) -> None:
        """Propagate the gradient: a user-defined class calls ``add_grad`` of the inputs that have a gradient."""
        if not self.leaf:
            raise NodeError(f"{self}: its class defines no backward_\n  Do: define backward_, which calls add_grad")

    def reset_grad(self) -> None:
        """Set the gradient to 0."""
        self._at._grad = None

    def reset_forwarded(self) -> None:
        """Make the next ``forward`` compute again."""
        self._forwarded = self.leaf

    # Used by graphs

    def _spec(self) -> Spec | None:
        """Metadata of the value, or None if they are unknown until it is computed."""
        value = self._at._value
        return value.spec if value is not None else None

    @property
    def _type(self) -> ValueType | None:
        """The type of the value, if its metadata are known."""
        spec = self._spec()
        return self._dev.type_of(spec, self._has_grad) if spec is not None else None

    def _run_forward(self, context: Context, number: int) -> None:
        self._overwriter = None
        self.forward_()

    def _run_backward(self, context: Context, number: int) -> None:
        self.backward_()

    def _reads(self) -> tuple[tuple[bool, ...], bool]:
        """Whether the gradient reads the value of each input, and its own."""
        reads = self.reads_input
        return (reads if isinstance(reads, tuple) else (reads,) * len(self._inputs)), self.reads_output

    if TYPE_CHECKING:  # fluidlite.nodes.arithmetic and reductions define these methods

        def __add__(self, other: Any) -> Node: ...
        def __radd__(self, other: Any) -> Node: ...
        def __sub__(self, other: Any) -> Node: ...
        def __rsub__(self, other: Any) -> Node: ...
        def __mul__(self, other: Any) -> Node: ...
        def __rmul__(self, other: Any) -> Node: ...
        def __truediv__(self, other: Any) -> Node: ...
        def __rtruediv__(self, other: Any) -> Node: ...
        def __neg__(self) -> Node: ...
        def __lt__(self, other: Any) -> Node: ...
        def __gt__(self, other: Any) -> Node: ...

    def __iter__(self) -> Iterator[Node]:
        raise TypeError(f"{self} is no sequence")


def _line(location: CodeLocation) -> SourceLine:
    code, at = location
    lines = (line for start, end, line in code.co_lines() if start <= at < end)
    return SourceLine(code.co_filename, next(lines, None) or code.co_firstlineno, "")


def _device_of(node: Node) -> Device:
    inputs = node._inputs
    return common_device([item._dev for item in inputs], lambda: [str(item) for item in inputs], node.name())


def is_number(item: Any) -> bool:
    return type(item) is float or (isinstance(item, (int, float)) and not isinstance(item, bool))
