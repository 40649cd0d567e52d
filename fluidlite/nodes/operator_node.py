"""OperatorNode: a node whose value and gradient are those of operators of the registry."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from copy import copy
from operator import attrgetter
from sys import _getframe
from typing import Any, TypeVar

from fluidlite.base.errors import DtypeError, FluidError, NodeError
from fluidlite.nodes.devices import ValueType
from fluidlite.nodes.node import CodeLocation, Node, ValueStorage, _device_of, _own_files, code_location
from fluidlite.nodes.node_program import Attrs, ExactValue, Kind, NodeProgram, program_of
from fluidlite.nodes.seeds import next_seed
from fluidlite.nodes.tensor import Tensor
from fluidlite.platform.context import Context
from fluidlite.tensor.tensor import Tensor as PlacedTensor
from fluidlite.tensor.tensor_spec import Spec

left_count = [0]
"""How often a node has left its storage: while it is unchanged, no value lies elsewhere than a run has stored it."""
MAX_FAST_PATHS = 512  # entries of Kind.programs
_ADVICE_PREFIX = "\n  Do: "
_CAST_ADVICE = (
    "make leaves of the dtype, such as nodes.Data(value, dtype='float32'), or cast by a node of "
    "nodes.node_function('Cast', graph.cast)"
)
_EMPTY: tuple[Any, ...] = ()
_type_of = attrgetter("_type")
_new_object = object.__new__
Function = TypeVar("Function", bound=Callable[..., Any])


class OperatorNode(Node):
    """A node of a :class:`~fluidlite.nodes.node_program.Kind`; functions such as ``Add`` make them.

    Attributes
    ----------
    kind : Kind
    """

    __slots__ = (
        "_asked",
        "_attrs",
        "_drawn",
        "_ends",
        "_inplace",
        "_passed",
        "_program",
        "_saved",
        "_seed",
        "_type",
        "kind",
    )

    kind: Kind
    _requests_inplace: bool
    _attrs: Attrs
    _overwritten_nodes: tuple[Node, ...]
    _inplace: int  # the input over which it writes, after a graph's proof; -1: none
    _wrote: tuple[str, CodeLocation] | None  # what it marks the nodes with that it has written over
    _gradient_moved: bool  # whether its gradient was overwritten by that of the input
    _program: NodeProgram | None
    _saved: Sequence[Tensor]
    _type: ValueType | None

    def _resolve_new(self, key: tuple[Any, ...]) -> None:
        """Find device and program, and cache them by the types of the inputs."""
        inputs, kind = self._inputs, self.kind
        if not inputs:
            raise NodeError(f"{kind.name} has no inputs; expected one node or more")
        self._dev = _device_of(self)
        self._has_grad = any([item._has_grad for item in inputs])
        self._program = self._type = None
        if None in key:
            return
        self._resolve()
        if len(kind.programs) >= MAX_FAST_PATHS:
            kind.programs.clear()
        assert self._program is not None and self._type is not None
        at = next(at for at, item in enumerate(inputs) if item._dev is self._dev)
        kind.programs[key] = self._program, self._type, at, self._has_grad

    def name(self) -> str:
        return f"InPlace{self.kind.name}" if self._requests_inplace else self.kind.name

    def _resolve(self) -> None:
        """Set the program, if the metadata of all inputs are known."""
        specs: list[Spec] = []
        needs_grad = []
        for item in self._inputs:
            spec = item._spec()
            if spec is None:
                return
            specs.append(spec)
            needs_grad.append(item._has_grad)
        place = self._dev.known_place()
        try:
            program = self._program = program_of(self.kind, self._attrs, tuple(specs), tuple(needs_grad), place)
        except NodeError:
            raise
        except FluidError as exc:
            raise _with_node(exc, self, specs) from exc
        if self.kind.random and not hasattr(self, "_seed"):  # the first node of a user-defined kind
            self._seed, self._drawn = next_seed(), 0
        if not program.is_differentiable:
            self._has_grad = False
        self._type = self._dev.type_of(program.spec, self._has_grad)

    def _spec(self) -> Spec | None:
        return self._program.spec if self._program is not None else None

    def forward_(self) -> None:
        from fluidlite.nodes.running import run_single

        run_single(self, self._run_forward, [item.value() for item in self._inputs])

    def backward_(self) -> None:
        from fluidlite.nodes.running import run_single

        run_single(self, self._run_backward, [item.value() for item in self._inputs if item._overwriter is None])
        for item in self._inputs:
            item._at.add_up()

    def _run_forward(self, context: Context, number: int) -> None:
        program = self._program
        values: list[PlacedTensor] = []
        for at, item in enumerate(self._inputs):
            value = item._at._value
            if value is None or item._overwriter is not None:
                value = item.value()  # raises
            if value.place is not context.place and value.place != context.place:
                raise NodeError(
                    f"{self}: its input {item} has moved to {value.dev} since the node was made on {self._dev}"
                    "\n  Do: make the nodes anew"
                )
            values.append(value)
            if program is None or value.spec is not program.ins[at]:
                program = None
        if program is None:
            self._resolve()
            program = self._program
            assert program is not None
            if self._inplace >= 0 and program.spec.nbytes != program.ins[self._inplace].nbytes:
                raise NodeError(f"{self}: its dims have changed since the graph was made\n  Do: make the graph anew")
        inplace = self._inplace
        draw = None
        if self.kind.random:
            draw = self._seed, self._drawn
            self._drawn += 1
        devs = (self._dev,) if not program.saved_count else (self._dev,) * (1 + program.saved_count)
        if inplace < 0:
            results = program.forward.run(context, values, devs, number, None, draw)
        else:
            target = values[0] if inplace == 0 and program.forward.is_aliasable and values[0].contiguous else None
            results = program.forward.run(context, values, devs, number, target, draw)
            self._at = self._inputs[inplace]._at  # which may have left the storage that they shared
            self.mark_overwritten()
        self._at._value = results[0]
        self._saved = results[1:]
        self._overwriter = None

    def _run_backward(self, context: Context, number: int) -> None:
        program = self._program
        assert program is not None
        if program.error is not None:
            program.check_derivative(self)
        routine = program.backward
        gradient = self._at._grad
        if routine is None or gradient is None:
            if self._inplace >= 0:
                self._at._grad = None
            return
        inputs = self._inputs
        count = len(inputs)
        operands: list[Any] = []
        for at in program.sources:
            if at < count:
                operands.append(inputs[at]._at._value)
            elif at == count:
                operands.append(self._at._value)
            elif at <= count + program.saved_count:
                operands.append(self._saved[at - count - 1])
            else:
                operands.append(gradient)
        devs = [inputs[at]._at._dev for at in program.targets]  # a gradient is on the device of the value
        input_gradients = routine.run(context, operands, devs, number)
        inplace = self._inplace
        if inplace >= 0:
            self._gradient_moved = True
            if inplace not in program.targets:
                self._at._grad = None
        for part, at, shared in zip(input_gradients, program.targets, routine.shares, strict=True):
            item = inputs[at]
            if at == inplace:
                item._at._grad, item._at._parts = part, ()  # replaces it: no other consumer adds to it
                continue
            if shared >= 0 and item.leaf:
                part = part.copy_to(part.dev)
            item._at.add_part(part)

    def value(self) -> Tensor:
        """The value, on the node's device; raises as :meth:`Node.value` does."""
        if self._inplace >= 0 and not self._forwarded:  # its storage holds the value of its input
            raise NodeError(f"{self} has no value yet\n  Do: Graph(node).forward()")
        return super().value()

    def grad(self) -> Tensor:
        """The gradient; of a node that writes in place, until ``backward`` has overwritten it by that of the input."""
        if self._gradient_moved and self._inplace >= 0:
            raise NodeError(f"{self} writes in place: its gradient has become that of {self._inputs[self._inplace]}")
        return super().grad()

    def reset_grad(self) -> None:
        self._at._grad = None
        self._gradient_moved = False

    def mark_overwritten(self) -> None:
        """Mark the values in the buffer that it has written over as overwritten."""
        self._gradient_moved = False
        overwriter = self._wrote = self.name(), self._location
        for node in self._overwritten_nodes:
            node._overwriter = overwriter

    def set_inplace(self, at: int, overwritten: tuple[Node, ...] = ()) -> None:
        """Share value and gradient with input ``at``, after a graph's proof; -1: use separate storage.

        Parameters
        ----------
        overwritten : tuple of Node
            The nodes whose values in the input's buffer are overwritten.
        """
        self._inplace = at
        self._overwritten_nodes = overwritten
        self._at = ValueStorage(self._dev, False) if at < 0 else self._inputs[at]._at
        self._forwarded = self._gradient_moved = False

    def _reads(self) -> tuple[tuple[bool, ...], bool]:
        program = self._program
        if program is None:
            return (True,) * len(self._inputs), True
        return program.reads_input, program.reads_output

    def reset_forwarded(self) -> None:
        if self._forwarded and self._overwriter is not None:
            self.leave_storage()
        self._forwarded = False

    def leave_storage(self) -> None:
        """Leave the storage to the node that has written over it, whose value stays."""
        left_count[0] += 1
        self._at = ValueStorage(self._dev, False)


def _with_node(error: FluidError, node: Node, specs: Sequence[Spec]) -> FluidError:
    """A copy of the error, of the same class, with the node and advice for nodes in its message."""
    text = str(error)
    if isinstance(error, DtypeError):
        text = f"{text.partition(_ADVICE_PREFIX)[0]}{_ADVICE_PREFIX}{_CAST_ADVICE}"
    input_texts = ", ".join(f"{item.name()} {spec!r}" for item, spec in zip(node._inputs, specs, strict=True))
    located_error = copy(error)  # does not call __init__, whose parameters differ by class
    located_error.args = (f"{node} of {input_texts}: {text}", *error.args[1:])
    return located_error


def operator_node(kind: Kind, inputs: tuple[Node, ...], attrs: Attrs = (), inplace: bool = False) -> OperatorNode:
    """Make a node, for a function that users call. Inlined for speed: a graph may be built for each sample."""
    node = _new_object(OperatorNode)
    for name, value in attrs:
        if value.__class__ is float and not value:
            attrs = tuple([(n, ExactValue.of(value) if n == name else v) for n, v in attrs])
    node.kind = kind
    node._inputs = inputs
    node._attrs = attrs
    node._requests_inplace = inplace
    node._overwritten_nodes = node._saved = _EMPTY
    node._inplace = -1
    node._gradient_moved = node._forwarded = False
    node._overwriter = node._graph_mark = node._wrote = None
    frame = _getframe(2)
    code = frame.f_code
    node._location = code_location(frame) if _own_files.get(code.co_filename, True) else (code, frame.f_lasti)
    if kind.random:
        node._seed, node._drawn = next_seed(), 0
    key: tuple[Any, ...]
    try:
        if len(inputs) == 2:  # takes a third of the time of the general form
            key = attrs, inputs[0]._type, inputs[1]._type
        elif len(inputs) == 1:
            key = attrs, inputs[0]._type
        elif len(inputs) == 3:
            key = attrs, inputs[0]._type, inputs[1]._type, inputs[2]._type
        else:
            key = (attrs, *map(_type_of, inputs))
    except AttributeError:
        item = next(item for item in inputs if not isinstance(item, Node))
        raise NodeError(f"{kind.name}: an input is {item!r:.80}; expected a node") from None
    cached = kind.programs.get(key)
    if cached is not None:
        node._program, node._type, at, node._has_grad = cached
        node._dev = inputs[at]._dev
    else:
        node._resolve_new(key)
    storage = node._at = _new_object(ValueStorage)
    storage._dev = node._dev
    storage._tensor = storage._gradient = storage._source = storage._grad_source = None
    storage._parts = _EMPTY
    storage.leaf = False
    return node


def unary(kind: Kind, doc: str, inplace: bool = False) -> Callable[[Node], OperatorNode]:
    """The function that makes nodes of a kind with one input and no attributes; ``inplace``: they write over it."""

    def make(x: Node) -> OperatorNode:
        return operator_node(kind, (x,), (), inplace)

    return _with_name(make, kind, doc, inplace)


def binary(kind: Kind, doc: str, inplace: bool = False) -> Callable[[Node, Node], OperatorNode]:
    """Like :func:`unary`, with two inputs."""

    def make(a: Node, b: Node) -> OperatorNode:
        return operator_node(kind, (a, b), (), inplace)

    return _with_name(make, kind, doc, inplace)


def _with_name(make: Function, kind: Kind, doc: str, inplace: bool) -> Function:
    make.__name__ = make.__qualname__ = f"InPlace{kind.name}" if inplace else kind.name
    make.__doc__ = doc
    return make


def node_function(name: str, build: Callable[..., Any], inplace: tuple[int, ...] = ()) -> Callable[..., OperatorNode]:
    """Define a kind of node from graph functions; returns the function that makes such nodes.

    Parameters
    ----------
    name : str
    build : callable
        ``build(*inputs, **attrs)`` returns a value of :mod:`fluidlite.graph`; gradients are those of its operators.
    inplace : tuple of int
        The inputs over which it may write; ``f(..., inplace=True)`` requests the first of them.

    Returns
    -------
    callable
        ``f(*nodes, inplace=False, **attrs)``; attributes are hashable.
    """
    kind = Kind(name, build, inplace)

    def make(*inputs: Node, **attrs: Hashable) -> OperatorNode:
        requests_inplace = bool(attrs.pop("inplace", False))
        if requests_inplace and not inplace:
            raise NodeError(f"{name} cannot write in place: its operators declare no such pair")
        exact = tuple([(name, ExactValue.of(attrs[name])) for name in sorted(attrs)])
        return operator_node(kind, inputs, exact, requests_inplace)

    make.__name__ = make.__qualname__ = name
    return make
