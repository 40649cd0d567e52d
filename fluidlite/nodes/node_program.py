"""NodeProgram: the operators of one node, and of its gradient, for inputs of known metadata on a place.

The framework's backward pass appends the gradient operators. The values that the gradient reads are derived from these
operators; in-place proofs depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import count
from operator import itemgetter
from typing import Any, NamedTuple

from fluidlite import unique_name
from fluidlite.base.dtypes import is_float
from fluidlite.base.errors import GradientError
from fluidlite.base.lru_cache import LRUCache
from fluidlite.base.weak_objects import WeakObjects
from fluidlite.compiler.policy import policy
from fluidlite.compiler.selection.choice_cache import registry_versions
from fluidlite.graph.value import Value, create, emit
from fluidlite.nodes.devices import ValueType
from fluidlite.nodes.image import RoutineImage
from fluidlite.nodes.routine import Routine
from fluidlite.platform.context import Context
from fluidlite.platform.place import Place
from fluidlite.program.backward import gradients
from fluidlite.program.block import Block
from fluidlite.program.gradient_paths import NoDerivativeError
from fluidlite.program.operator import EMPTY, Operator
from fluidlite.program.program import Program, program_guard
from fluidlite.program.variable import Variable
from fluidlite.tensor.tensor_spec import Spec

MAX_NODE_PROGRAMS = 4096  # entries of the cache of node programs
MAX_NODE_PROGRAM_BYTES = 64 << 20  # their estimated size
Build = Callable[..., Value]
"""``build(*inputs, **attrs)`` computes the node's value from graph values, with inputs in the node's order."""


_numbers = count()
_kinds: WeakObjects[Kind] = WeakObjects()


class Kind:
    """A kind of node: its name, and the operators that compute it.

    ``inplace``: the inputs over which a node of this kind may write; an in-place request is for the first.
    ``random``: whether it draws random numbers; each such node has its own seed.
    """

    __slots__ = ("__weakref__", "build", "inplace", "name", "programs", "random")

    def __init__(self, name: str, build: Build, inplace: tuple[int, ...] = (), random: bool = False) -> None:
        self.name = name
        self.random = random
        self.build = build
        self.inplace = inplace
        self.programs: dict[tuple[Any, ...], tuple[NodeProgram, ValueType, int, bool]] = {}
        """A fast path to the cache, by attributes and input types: the program, the type of the value, the input whose
        device it has, and whether it has a gradient."""
        _kinds.add(self)

    def __repr__(self) -> str:
        return f"Kind({self.name!r})"


class ExactValue(NamedTuple):
    """An attribute's value that may equal one that computes something else: 0.0 and -0.0; 1, 1.0 and True."""

    value: Any
    form: str

    @classmethod
    def of(cls, value: Any) -> ExactValue:
        return cls(value, repr(value))


Attrs = tuple[tuple[str, Hashable], ...]


class NodeProgram:
    """The operators of a node of a kind for inputs of given metadata.

    ``number``: its identifier in cache keys.
    ``attrs``: names and values.
    ``needs_grad``: for each input whether its gradient is needed.
    ``spec``: of the value.
    ``forward_ops``, ``backward_ops``: the operators of the value and of the gradients. Input variables are named
    ``in0``, ``in1``, ...; the value's gradient is ``dout``.
    ``out``: the variable of the value.
    ``saved_names``, ``gradient_names``: the variables saved for the gradient, and the gradients of ``targets``.
    ``is_differentiable``: whether the value has a float dtype.
    ``saved_count``: the number of saved values besides inputs and output.
    ``reads_input``: whether the gradient reads the value of each input.
    ``reads_output``: whether it reads the node's own value.
    ``error``: why there is no gradient; raised by backward.
    """

    def __init__(
        self, kind: Kind, attrs: Attrs, ins: tuple[Spec, ...], needs_grad: tuple[bool, ...], place: Place
    ) -> None:
        self.kind, self.attrs, self.ins, self.place = kind, attrs, ins, place
        self.needs_grad = tuple(each and is_float(spec.dtype) for each, spec in zip(needs_grad, ins, strict=True))
        self.number = next(_numbers)
        self.weight = 60_000  # bytes, an estimate: two plans of a few operators, with their programs
        program = Program()
        program.random_seed = 1  # nodes pass their own seeds when they run
        with unique_name.guard(), program_guard(program, Program()):
            block = program.global_block()
            values = [_input(block, f"in{i}", spec) for i, spec in enumerate(ins)]
            for value, needed in zip(values, self.needs_grad, strict=True):
                value.stop_gradient = not needed
            plain = {name: each.value if type(each) is ExactValue else each for name, each in attrs}
            out = kind.build(*values, **plain)
            if any(out.name == value.name for value in values):  # the value needs its own memory
                out = emit("assign", {"X": out})
            self.spec: Spec = out._spec()
            self.is_differentiable = is_float(self.spec.dtype)
            self.error: NoDerivativeError | None = None
            gradients = self._gradients(block, out, values)
        names = [value.name for value in values]
        backward = [op for op in block.ops if op.role == "backward"]
        gradient_outputs = {name for op in backward for name in op.output_arg_names}
        read = [name for name in _read_names(backward) if name not in gradient_outputs]
        intermediate_specs = {name: block.var(name)._spec() for name in read if name not in (*names, out.name, "dout")}
        bytes_read = _read_names(backward, bytes_only=True)
        saved_names = [name for name in intermediate_specs if name in bytes_read]
        self.out = out.name
        self.forward_ops = [op for op in block.ops if op.role != "backward"]
        self.backward_ops = backward
        if any(op.definition.random for op in self.forward_ops):
            kind.random = True  # user-defined kinds do not declare it
        self.gradient_names = [name for name in gradients if name is not None]
        self.targets = tuple(i for i, name in enumerate(gradients) if name is not None)
        """The inputs that get a gradient, in the order of the results of the gradient routine."""
        self.reads_input: tuple[bool, ...] = (False,) * len(ins)
        self.reads_output = False
        self.backward: Routine | None = None
        if self.targets:
            specs = {**dict(zip(names, ins, strict=True)), out.name: self.spec, **intermediate_specs, "dout": self.spec}
            gradient_program = backward_program(block, backward)
            routine = _gradient_routine(gradient_program, place, specs, {*bytes_read, "dout"}, self.gradient_names)
            saved_names = [name for name in intermediate_specs if name in routine.feed_names]
            sources = [*names, out.name, *saved_names, "dout"]
            self.sources = tuple(sources.index(name) for name in routine.feed_names)
            """The operands of the gradient routine: indices into inputs, forward results, and the value's gradient."""
            self.pick = _operand_picker(self.sources)
            self.backward = routine
            self.reads_input = tuple(name in routine.reads for name in names)
            self.reads_output = out.name in routine.reads
        self.saved_names = saved_names
        self.saved_count = len(saved_names)
        self.images: dict[Context, tuple[RoutineImage, RoutineImage | None]] = {}
        """The images of value and gradient, by context."""
        self.sums: dict[int, Routine] = {}
        """Routines that add so many partial gradients of the value; made on first use."""
        feeds = dict(zip(names, ins, strict=True))
        self.forward = Routine(program, place, feeds, (out.name, *saved_names))

    def _gradients(self, block: Block, out: Value, values: Sequence[Value]) -> list[str | None]:
        targets = [value for value, needed in zip(values, self.needs_grad, strict=True) if needed]
        if not targets:
            return [None] * len(values)
        start = _input(block, "dout", self.spec)
        start.stop_gradient = True
        try:
            target_gradients = gradients([out], targets, [start])
        except NoDerivativeError as exc:
            self.error = exc
            return [None] * len(values)
        remaining = iter(target_gradients)
        names = [next(remaining) if needed else None for needed in self.needs_grad]
        return [gradient.name if gradient is not None else None for gradient in names]

    def check_derivative(self, node: Any) -> None:
        if self.error is not None:
            raise GradientError(f"{node}: {self.error}") from None


def _operand_picker(sources: tuple[int, ...]) -> Callable[[Sequence[int]], Sequence[int]]:
    """A function that selects the operands of a gradient routine from all addresses of its node."""
    if len(sources) == 1:
        (at,) = sources
        return lambda addresses: (addresses[at],)
    return itemgetter(*sources) if sources else lambda addresses: ()


def _input(block: Block, name: str, spec: Spec) -> Value:
    value = create(Value, name, block, spec)
    del block.vars[value.name]
    value.name = name
    block.vars[name] = value
    value.is_data = value.is_input = True
    return value


def _gradient_routine(
    program: Program, place: Place, specs: Mapping[str, Spec], read: set[str], fetches: Sequence[str]
) -> Routine:
    """The routine of a gradient: its feeds are the values that are read; of the others it gets the metadata."""
    while True:
        feeds = {name: spec for name, spec in specs.items() if name in read}
        metadata_specs = {name: spec for name, spec in specs.items() if name not in read}
        routine = Routine(program, place, feeds, fetches, metadata_specs)
        unfed_reads = routine.reads - set(feeds)
        if not unfed_reads:
            return routine
        read = read | unfed_reads  # a kernel of this place reads values that the definition does not


def _read_names(operators: Sequence[Operator], bytes_only: bool = False) -> list[str]:
    names_read: dict[str, None] = {}
    for op in operators:
        for slot, names in op.inputs.items():
            declared = op.definition.input(slot)
            if bytes_only and declared is not None and declared.metadata_only:
                continue
            names_read.update(dict.fromkeys(name for name in names if name != EMPTY))
    return list(names_read)


def backward_program(block: Block, operators: Sequence[Operator]) -> Program:
    """A program of gradient operators only; the values that they read are feeds."""
    program = Program()
    program.random_seed = block.program.random_seed
    block_copy = program.global_block()
    for op in operators:
        for name in (*op.input_arg_names, *op.output_arg_names):
            if name == EMPTY or name in block_copy.vars:
                continue
            block_copy.vars[name] = Variable(block_copy, name, block.var(name).spec, False, True)
        block_copy.append_op(op.type, op.inputs, op.outputs, {**op.attrs, **op.hints})
    return program


# The cache ---------------------------------------------------------------------------------------------------------

_programs: LRUCache[NodeProgram] = LRUCache(MAX_NODE_PROGRAMS, "programs of nodes", MAX_NODE_PROGRAM_BYTES)
_stamp: tuple[Any, ...] = ()


def program_of(
    kind: Kind, attrs: Attrs, ins: tuple[Spec, ...], needs_grad: tuple[bool, ...], place: Place
) -> NodeProgram:
    """The program of a node, from a bounded cache.

    Raises FluidError if the operators refuse the inputs.
    """
    check_stamp()
    return _programs.get(
        (kind, attrs, ins, needs_grad, place), lambda: NodeProgram(kind, attrs, ins, needs_grad, place)
    )


def current_stamp() -> tuple[Any, ...]:
    """The version of registries and policy that cached node programs depend on, as of the last check."""
    return _stamp


def check_stamp() -> bool:
    """Clear all caches if a kernel, operator or device was registered, or a preference set; return whether."""
    global _stamp
    stamp = registry_versions(), policy()
    if stamp == _stamp:
        return False
    _stamp = stamp
    _programs.clear()
    for kind in _kinds:
        kind.programs.clear()
    return True
