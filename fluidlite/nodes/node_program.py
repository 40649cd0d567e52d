"""NodeProgram: the operators of one node, and of its gradient, for inputs of known metadata on a place.

The gradient is what the framework's backward appends for the registry's operators; which values it reads is read off
those operators, and in-place proofs rest on it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import count
from operator import itemgetter
from typing import Any

from fluidlite import unique_name
from fluidlite.base.dtypes import is_float
from fluidlite.base.errors import GradientError
from fluidlite.base.lru_cache import LRUCache
from fluidlite.base.weak_objects import WeakObjects
from fluidlite.compiler.policy import policy
from fluidlite.compiler.selection.choice_cache import generation
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

MAX_NODE_PROGRAMS = 4096
MAX_NODE_PROGRAM_BYTES = 64 << 20
Build = Callable[..., Value]
"""``build(*inputs, **attrs)`` makes the node's value of graph values; inputs come in the node's order."""


_numbers = count()
_kinds: WeakObjects[Kind] = WeakObjects()


class Kind:
    """A kind of node: its name, and the operators that compute it.

    ``inplace``: the inputs over which a node of this kind may write; one that is asked to writes over the first.
    ``random``: whether it draws random numbers: each node has a seed of its own.
    """

    __slots__ = ("__weakref__", "build", "inplace", "name", "programs", "random")

    def __init__(self, name: str, build: Build, inplace: tuple[int, ...] = (), random: bool = False) -> None:
        self.name = name
        self.random = random
        self.build = build
        self.inplace = inplace
        self.programs: dict[tuple[Any, ...], tuple[NodeProgram, ValueType, int, bool]] = {}
        """Those that were used, by attributes and the types of inputs: a short cut to the cache. With the type of the
        value, the input on whose device it is, and whether it has a gradient."""
        _kinds.add(self)

    def __repr__(self) -> str:
        return f"Kind({self.name!r})"


Attrs = tuple[tuple[str, Hashable], ...]


class NodeProgram:
    """What a node of a kind does to inputs of known metadata.

    ``number``: names it in keys of caches.
    ``attrs``: names and values.
    ``wanted``: the inputs whose gradients are asked for.
    ``spec``: of the value.
    ``forward_ops``, ``backward_ops``: those of the value, and of the gradients; inputs are called ``in0`` on, and the
    value's gradient ``dout``.
    ``out``: what the value is called.
    ``kept``, ``gradient_names``: what the values that are kept for the gradient are called, and the gradients of
    ``targets``.
    ``differentiable``: whether the value is of a float dtype.
    ``saved``: how many values beside inputs and output are kept for the gradient.
    ``reads_input``: whether the gradient reads the value of each input.
    ``reads_output``: whether it reads the node's own value.
    ``error``: why there is no gradient; raised by backward.
    """

    def __init__(self, kind: Kind, attrs: Attrs, ins: tuple[Spec, ...], wanted: tuple[bool, ...], place: Place) -> None:
        self.kind, self.attrs, self.ins, self.place = kind, attrs, ins, place
        self.wanted = tuple(each and is_float(spec.dtype) for each, spec in zip(wanted, ins, strict=True))
        self.number = next(_numbers)
        self.weight = 60_000  # two plans of a few operators, with their programs
        program = Program()
        program.random_seed = 1  # what nodes draw with, they say when they run
        with unique_name.guard(), program_guard(program, Program()):
            block = program.global_block()
            values = [_input(block, f"in{i}", spec) for i, spec in enumerate(ins)]
            for value, asked in zip(values, self.wanted, strict=True):
                value.stop_gradient = not asked
            out = kind.build(*values, **dict(attrs))
            if any(out.name == value.name for value in values):  # a value has memory of its own
                out = emit("assign", {"X": out})
            self.spec: Spec = out._spec()
            self.differentiable = is_float(self.spec.dtype)
            self.error: NoDerivativeError | None = None
            gradients = self._gradients(block, out, values)
        names = [value.name for value in values]
        backward = [op for op in block.ops if op.role == "backward"]
        made = {name for op in backward for name in op.output_arg_names}
        read = [name for name in _names_read(backward) if name not in made]
        known = {name: block.var(name)._spec() for name in read if name not in (*names, out.name, "dout")}
        bytes_read = _names_read(backward, bytes_only=True)
        kept = [name for name in known if name in bytes_read]
        self.out = out.name
        self.forward_ops = [op for op in block.ops if op.role != "backward"]
        self.backward_ops = backward
        if any(op.definition.random for op in self.forward_ops):
            kind.random = True  # of a kind of the user's own, nothing else says so
        self.gradient_names = [name for name in gradients if name is not None]
        self.targets = tuple(i for i, name in enumerate(gradients) if name is not None)
        """The inputs that get a gradient, in the order of what the gradient's routine gives."""
        self.reads_input: tuple[bool, ...] = (False,) * len(ins)
        self.reads_output = False
        self.backward: Routine | None = None
        if self.targets:
            specs = {**dict(zip(names, ins, strict=True)), out.name: self.spec, **known, "dout": self.spec}
            only = backward_program(block, backward)
            routine = _gradient_routine(only, place, specs, {*bytes_read, "dout"}, self.gradient_names)
            kept = [name for name in known if name in routine.feed_names]
            sources = [*names, out.name, *kept, "dout"]
            self.sources = tuple(sources.index(name) for name in routine.feed_names)
            """What the gradient is given: numbers of inputs, then of what forward gives, then the value's gradient."""
            self.pick = _picker(self.sources)
            self.backward = routine
            self.reads_input = tuple(name in routine.reads for name in names)
            self.reads_output = out.name in routine.reads
        self.kept = kept
        self.saved = len(kept)
        self.images: dict[Context, tuple[RoutineImage, RoutineImage | None]] = {}
        """Those of value and gradient, by the context that they are for."""
        self.sums: dict[int, Routine] = {}
        """What adds so many parts of the value's gradient, as far as that was asked for."""
        feeds = dict(zip(names, ins, strict=True))
        self.forward = Routine(program, place, feeds, (out.name, *kept))

    def _gradients(self, block: Block, out: Value, values: Sequence[Value]) -> list[str | None]:
        asked = [value for value, wanted in zip(values, self.wanted, strict=True) if wanted]
        if not asked:
            return [None] * len(values)
        start = _input(block, "dout", self.spec)
        start.stop_gradient = True
        try:
            found = gradients([out], asked, [start])
        except NoDerivativeError as exc:
            self.error = exc
            return [None] * len(values)
        made = iter(found)
        names = [next(made) if wanted else None for wanted in self.wanted]
        return [gradient.name if gradient is not None else None for gradient in names]

    def check_derivative(self, node: Any) -> None:
        if self.error is not None:
            raise GradientError(f"{node}: {self.error}") from None


def _picker(sources: tuple[int, ...]) -> Callable[[Sequence[int]], Sequence[int]]:
    """A function that takes what a gradient is given out of all that there is of its node."""
    if len(sources) == 1:
        (at,) = sources
        return lambda all_there_is: (all_there_is[at],)
    return itemgetter(*sources) if sources else lambda all_there_is: ()


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
    """The routine of a gradient, which is given the values that are read, and told of the others."""
    while True:
        given = {name: spec for name, spec in specs.items() if name in read}
        known = {name: spec for name, spec in specs.items() if name not in read}
        routine = Routine(program, place, given, fetches, known)
        more = routine.reads - set(given)
        if not more:
            return routine
        read = read | more  # kernels of this place read what the definition does not


def _names_read(operators: Sequence[Operator], bytes_only: bool = False) -> list[str]:
    found: dict[str, None] = {}
    for op in operators:
        for slot, names in op.inputs.items():
            declared = op.definition.input(slot)
            if bytes_only and declared is not None and declared.metadata_only:
                continue
            found.update(dict.fromkeys(name for name in names if name != EMPTY))
    return list(found)


def backward_program(block: Block, operators: Sequence[Operator]) -> Program:
    """A program of gradient operators alone; what they read is fed."""
    program = Program()
    program.random_seed = block.program.random_seed
    to = program.global_block()
    for op in operators:
        for name in (*op.input_arg_names, *op.output_arg_names):
            if name == EMPTY or name in to.vars:
                continue
            to.vars[name] = Variable(to, name, block.var(name).spec, False, True)
        to.append_op(op.type, op.inputs, op.outputs, {**op.attrs, **op.hints})
    return program


# The cache ---------------------------------------------------------------------------------------------------------

_programs: LRUCache[NodeProgram] = LRUCache(MAX_NODE_PROGRAMS, "programs of nodes", MAX_NODE_PROGRAM_BYTES)
_stamp: tuple[Any, ...] = ()


def program_of(kind: Kind, attrs: Attrs, ins: tuple[Spec, ...], wanted: tuple[bool, ...], place: Place) -> NodeProgram:
    """The program of a node, from a bounded cache.

    Raises FluidError if the operators refuse the inputs.
    """
    check_stamp()
    return _programs.get((kind, attrs, ins, wanted, place), lambda: NodeProgram(kind, attrs, ins, wanted, place))


def current_stamp() -> tuple[Any, ...]:
    """What programs of nodes depend on beside what they are of; it is what it was when they were last checked."""
    return _stamp


def check_stamp() -> bool:
    """Forget all programs if a kernel, operator or device was registered, or a preference set; say whether."""
    global _stamp
    now = generation(), policy()
    if now == _stamp:
        return False
    _stamp = now
    _programs.clear()
    for kind in _kinds:
        kind.programs.clear()
    return True
