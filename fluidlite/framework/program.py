"""Program and Block: operators and variables in order, with no device in them."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fluidlite import unique_name
from fluidlite.base.arguments import whole
from fluidlite.base.errors import ProgramError, ShapeError
from fluidlite.framework.opdef import OpDef
from fluidlite.framework.operator import Operator, check_attrs, check_own, check_slots
from fluidlite.framework.registry import ops
from fluidlite.framework.spec import Spec, dims_problem
from fluidlite.framework.variable import Parameter, Variable
from fluidlite.framework.vartype import VarType, dtype_of
from fluidlite.framework.whereabouts import Line, users_line
from fluidlite.platform.place import Place, PlaceLike

FORMAT_VERSION = 1
TRAINING_ROLES = ("backward", "optimize", "lr_sched")
_serials = itertools.count()


def declared_dims(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    """Dims as a declaration gives them: ints of 0 or more, -1 for what is known only when it runs."""
    try:
        dims = tuple(operator.index(d) for d in shape)
    except TypeError:
        raise ShapeError(f"variable {name!r} has shape {shape!r}; expected a list of ints") from None
    if any(d < -1 for d in dims):
        raise ShapeError(f"variable {name!r} has shape {list(dims)}; a dim is 0 or more, or -1 for unknown")
    problem = dims_problem(dims, "bool")
    if problem:
        raise ShapeError(f"variable {name!r} {problem}")
    return dims


class Block:
    """A list of operators and the variables they name; a sub-block sees its parent's variables."""

    def __init__(self, program: Program, idx: int, parent_idx: int = -1) -> None:
        self.program = program
        self.idx = idx
        self.parent_idx = parent_idx
        self.forward_block_idx = -1
        self.vars: dict[str, Variable] = {}
        self.ops: list[Operator] = []

    @property
    def parent(self) -> Block | None:
        """The block that it is nested in."""
        return self.program.blocks[self.parent_idx] if self.parent_idx >= 0 else None

    # Variables

    def find_var(self, name: str) -> Variable | None:
        """The variable of that name here or in an outer block, or None."""
        block: Block | None = self
        while block is not None:
            found = block.vars.get(name)
            if found is not None:
                return found
            block = block.parent
        return None

    _find_var_recursive = find_var

    def var(self, name: str) -> Variable:
        """The variable of that name here or in an outer block.

        Raises
        ------
        ProgramError
            If there is none.
        """
        found = self.find_var(name)
        if found is None:
            import difflib

            near = difflib.get_close_matches(str(name), self.vars, n=2)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise ProgramError(f"block {self.idx} has no variable {name!r}{hint}")
        return found

    _var_recursive = var

    def own(self, variable: Variable | str, what: str) -> Variable:
        """The block's variable of that name.

        Raises
        ------
        ProgramError
            If there is none, or if the one given is another program's that has the name by chance; ``what`` begins the
            message.
        """
        found = self.var(variable if isinstance(variable, str) else variable.name)
        if found is not variable and not isinstance(variable, str):
            check_own(found, variable, what)
        return found

    def has_var(self, name: str) -> bool:
        """Whether this block itself has a variable of that name."""
        return name in self.vars

    def create_var(
        self,
        name: str | None = None,
        shape: Sequence[int] | None = None,
        dtype: Any = None,
        lod_level: int | None = None,
        persistable: bool = False,
        stop_gradient: bool = False,
        is_data: bool = False,
        type: str = VarType.LOD_TENSOR,
        **ignored: Any,
    ) -> Variable:
        """Declare a variable (the one of that name, if there is one)."""
        if name is None:
            name = unique_name.generate("_generated_var")
        elif not isinstance(name, str):
            raise ProgramError(f"the name of a variable is {name!r:.80}; expected a text")
        spec = None
        if shape is not None or dtype is not None:
            dims = declared_dims(name, shape) if shape is not None else ()
            spec = Spec.of(dims, dtype_of(dtype or "float32"), lod_level=lod_level or 0)
            if shape is None:
                spec = None
        variable = self.vars.get(name)
        if variable is None:
            variable = self.vars[name] = Variable(self, name, spec, persistable, stop_gradient, is_data, type)
            if is_data:
                variable.line = users_line()
        elif spec is not None:
            if variable.is_data and variable.spec != spec:
                raise ProgramError(f"variable {name!r} is declared twice: as {variable.spec!r} and as {spec!r}")
            variable.declare(spec)
        self.program.touch()
        return variable

    def create_temporary(self, dtype: Any = None, prefix: str = "tmp", stop_gradient: bool = False) -> Variable:
        """A variable for an intermediate result."""
        return self.create_var(unique_name.generate(prefix), stop_gradient=stop_gradient)

    def create_parameter(self, name: str, shape: Sequence[int], dtype: Any, **options: Any) -> Parameter:
        """Declare a parameter; parameters live in the global block."""
        home = self.program.global_block()
        options.pop("initializer", None)
        if not isinstance(name, str):
            raise ProgramError(f"the name of a parameter is {name!r:.80}; expected a text")
        found = home.vars.get(name)
        parameter = Parameter(home, name, shape, dtype, **options)
        if found is not None:
            if isinstance(found, Parameter) and found.spec == parameter.spec:
                return found
            raise ProgramError(f"parameter {name!r} is declared twice: as {found.spec!r} and as {parameter.spec!r}")
        parameter.line = users_line()
        home.vars[name] = parameter
        self.program.touch()
        return parameter

    def constant_like(self, like: Variable, value: int | float, full: bool = False) -> Variable:
        """A constant that broadcasts against ``like``; ``full`` gives it all of its dims."""
        out = self.create_temporary(like.dtype, stop_gradient=True)
        exact = value != value or float(value) == value
        if full:
            zeros = self.create_temporary(like.dtype, stop_gradient=True)
            self.append_op("fill_zeros_like", {"X": like}, {"Out": zeros})
            if exact:
                self.append_op("scale", {"X": zeros}, {"Out": out}, {"scale": 1.0, "bias": float(value)})
            else:
                number = self.constant_like(like, value)
                self.append_op("elementwise_add", {"X": zeros, "Y": number}, {"Out": out})
            out.stop_gradient = True
            return out
        shape = [1] if like.shape else []
        attrs = {"shape": shape, "value": float(value), "dtype": like.dtype}
        text = {} if exact or "float" in like.dtype else {"str_value": str(value)}  # an attribute float rounds it
        self.append_op("fill_constant", {}, {"Out": out}, {**attrs, **text})
        out.stop_gradient = True
        return out

    def all_parameters(self) -> list[Parameter]:
        """The parameters of the block."""
        return [variable for variable in self.vars.values() if isinstance(variable, Parameter)]

    def iter_parameters(self) -> Iterator[Parameter]:
        """The parameters of the block."""
        return iter(self.all_parameters())

    # Operators

    def append_op(
        self,
        type: str,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        attrs: Mapping[str, Any] | None = None,
        stop_gradient: bool = False,
    ) -> Operator:
        """Append an operator; slots, attributes, dims and dtypes are checked here.

        Parameters
        ----------
        type : str
            An operator's type; ``fluid.op_proto(type)`` shows its slots and attributes.
        inputs, outputs : mapping of slot to Variable, name, or list of them
        attrs : mapping

        Raises
        ------
        OperatorNotFoundError, ProgramError, ShapeError, DtypeError, AttributeValueError
            With the operator and the user's line; the block stays as it was.
        """
        return self._insert(len(self.ops), type, inputs, outputs, attrs, stop_gradient)

    def insert_op(
        self,
        index: int,
        type: str,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        attrs: Mapping[str, Any] | None = None,
    ) -> Operator:
        """Insert an operator before the ``index``-th."""
        return self._insert(index, type, inputs, outputs, attrs)

    def prepend_op(
        self,
        type: str,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        attrs: Mapping[str, Any] | None = None,
    ) -> Operator:
        """Insert an operator at the start."""
        return self._insert(0, type, inputs, outputs, attrs)

    _prepend_op = prepend_op
    _insert_op = insert_op

    def _insert(
        self,
        index: int,
        type: str,
        inputs: Mapping[str, Any] | None,
        outputs: Mapping[str, Any] | None,
        attrs: Mapping[str, Any] | None,
        stop_gradient: bool = False,
        role: str | None = None,
        line: Line | None = None,
    ) -> Operator:
        line = line or users_line()
        definition: OpDef = ops.get(type)
        guarded = current_device()
        if guarded is not None and "op_device" not in (attrs or {}):
            attrs = {**(attrs or {}), "op_device": guarded}
        op = Operator(
            self, definition,
            check_slots(definition, inputs, "input", line, self),
            check_slots(definition, outputs, "output", line, self),
            *check_attrs(definition, attrs, line),
            id=self.program.next_id(), role=role or self.program.role, line=line, namescope=current_namescope(),
        )  # fmt: skip
        op.check_outputs()
        op.infer()
        self.ops.insert(index, op)
        if stop_gradient:
            for name in op.output_arg_names:
                self.var(name).stop_gradient = True
        self.program.touch()
        return op

    def remove_op(self, index: int) -> None:
        """Remove the ``index``-th operator."""
        del self.ops[index]
        self.program.touch()

    _remove_op = remove_op

    def to_string(self, throw_on_error: bool = False, with_details: bool = False) -> str:
        """Readable text."""
        return str(self)

    def __str__(self) -> str:
        from fluidlite.framework.program_text import block_text

        return block_text(self)


class Program:
    """Blocks of operators; the first is the global one.

    Attributes
    ----------
    random_seed : int
        Key of all random operators; 0: drawn once a process.
    """

    def __init__(self) -> None:
        self.blocks: list[Block] = [Block(self, 0)]
        self.current_block_idx = 0
        self.role = "forward"
        self.serial = next(_serials)
        self.edits = 0
        self._random_seed = 0
        self._next_id = 0
        self.pruned = 0
        """Operators of the program that this one was compiled from which nothing needed."""
        self.feed_names: list[str] = []
        self.fetch_names: list[str] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> Program:
        return self.clone()  # with a serial of its own, by which caches know it

    def __copy__(self) -> Program:
        return self.clone()

    def touch(self) -> None:
        """Note that the program changed; caches watch ``edits``."""
        self.edits += 1

    def next_id(self) -> int:
        """A fresh operator id."""
        self._next_id += 1
        return self._next_id - 1

    @property
    def random_seed(self) -> int:
        """Key of all random operators; 0: drawn once a process."""
        return self._random_seed

    @random_seed.setter
    def random_seed(self, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise ProgramError(f"random_seed is {seed!r}; expected an int")
        self._random_seed = seed
        self.touch()

    def global_block(self) -> Block:
        """The first block."""
        return self.blocks[0]

    def block(self, index: int) -> Block:
        """The block of that index."""
        index = whole("the index of a block", index)
        if not 0 <= index < len(self.blocks):
            raise ProgramError(f"the program has no block {index}; it has {len(self.blocks)}")
        return self.blocks[index]

    @property
    def num_blocks(self) -> int:
        """How many blocks there are."""
        return len(self.blocks)

    def current_block(self) -> Block:
        """The block that layers append to."""
        return self.blocks[self.current_block_idx]

    def create_block(self, parent_idx: int | None = None) -> Block:
        """Open a sub-block of the current (or the named) block; layers append to it until :meth:`rollback`."""
        parent = self.current_block_idx if parent_idx is None else parent_idx
        block = Block(self, len(self.blocks), parent)
        self.blocks.append(block)
        self.current_block_idx = block.idx
        self.touch()
        return block

    _create_block = create_block

    def rollback(self) -> None:
        """Go back to the parent of the current block."""
        if self.current_block_idx == 0:
            raise ProgramError("the current block is the global one; there is no parent to go back to")
        self.current_block_idx = self.current_block().parent_idx

    _rollback = rollback

    @contextmanager
    def roles(self, role: str) -> Iterator[None]:
        """Operators appended inside have that role."""
        old, self.role = self.role, role
        try:
            yield
        finally:
            self.role = old

    def list_vars(self) -> Iterator[Variable]:
        """All variables of all blocks."""
        for block in self.blocks:
            yield from list(block.vars.values())

    def all_parameters(self) -> list[Parameter]:
        """All parameters."""
        return [parameter for block in self.blocks for parameter in block.all_parameters()]

    def clone(self, for_test: bool = False) -> Program:
        """Copy the program; operator ids, lines and roles are kept.

        With ``for_test`` every ``is_test`` attribute is set and the operators of backward, optimiser and
        learning-rate schedule are left out.
        """
        from fluidlite.framework.program_edit import copy_program

        return copy_program(self, for_test)

    def prune(self, targets: Sequence[Variable | str], feeds: Sequence[Variable | str] = ()) -> Program:
        """Copy only what the targets need; variables in ``feeds`` are taken as given."""
        from fluidlite.framework.program_edit import prune

        return prune(self, targets, feeds)

    _prune = prune

    def to_json(self) -> str:
        """Versioned JSON; :meth:`from_json` reads it, without running code."""
        from fluidlite.framework.program_json import dumps

        return dumps(self)

    @staticmethod
    def from_json(text: str | bytes) -> Program:
        """Read what :meth:`to_json` wrote.

        Raises
        ------
        SavedModelError
            If the text is truncated, of a newer version, or not a program.
        """
        from fluidlite.framework.program_json import loads

        return loads(text)

    parse_from_string = from_json

    def to_string(self, throw_on_error: bool = False, with_details: bool = False) -> str:
        """Readable text; with details, with each variable."""
        from fluidlite.framework.program_text import program_text

        return program_text(self, with_details)

    def __str__(self) -> str:
        return self.to_string()

    def __repr__(self) -> str:
        return f"<Program of {sum(len(b.ops) for b in self.blocks)} operators in {len(self.blocks)} block(s)>"


_main = Program()
_startup = Program()
_namescopes: list[str] = []
_devices: list[str | None] = []


def default_main_program() -> Program:
    """The program that layers append to."""
    return _main


def default_startup_program() -> Program:
    """The program that initialises parameters."""
    return _startup


def switch_main_program(program: Program) -> Program:
    """Make ``program`` the default main program; return the one before."""
    global _main
    old, _main = _main, program
    return old


def switch_startup_program(program: Program) -> Program:
    """Make ``program`` the default startup program; return the one before."""
    global _startup
    old, _startup = _startup, program
    return old


@contextmanager
def program_guard(main_program: Program, startup_program: Program | None = None) -> Iterator[None]:
    """Layers inside append to these programs."""
    for program in (main_program, startup_program):
        if program is not None and not isinstance(program, Program):
            raise ProgramError(f"program_guard takes Programs, got {type(program).__name__}")
    old_main = switch_main_program(main_program)
    old_startup = switch_startup_program(startup_program) if startup_program is not None else None
    try:
        yield
    finally:
        switch_main_program(old_main)
        if old_startup is not None:
            switch_startup_program(old_startup)


@contextmanager
def device_guard(place: PlaceLike | None = None) -> Iterator[None]:
    """Operators appended inside run on ``place``, wherever the program runs; None: on the executor's again.

    The copies between places are the planner's, and ``explain`` shows them.
    """
    _devices.append(str(Place.parse(place)) if place is not None else None)
    try:
        yield
    finally:
        _devices.pop()


def current_device() -> str | None:
    """The place of the innermost ``device_guard``, as text."""
    return _devices[-1] if _devices else None


@contextmanager
def name_scope(prefix: str | None = None) -> Iterator[None]:
    """Group the operators made inside under a name, for reading."""
    _namescopes.append(prefix or "scope")
    try:
        yield
    finally:
        _namescopes.pop()


def current_namescope() -> str:
    """The names of the open scopes, joined by slashes."""
    return "/".join(_namescopes)
