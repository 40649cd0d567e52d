"""Program: blocks of operators and variables, independent of devices; and the default programs of layers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from fluidlite.base.arguments import check_bool, check_instance, check_int
from fluidlite.base.context_value import ContextDefault
from fluidlite.base.errors import ProgramError
from fluidlite.program.block import Block
from fluidlite.program.desc import ProgramDesc
from fluidlite.program.fluid_methods import FluidProgram
from fluidlite.program.reader import ProgramReader
from fluidlite.program.variable import Parameter, Variable

FORMAT_VERSION = 1  # of saved programs
TRAINING_ROLES = ("backward", "optimize", "lr_sched")
_serials = itertools.count()


class Program(FluidProgram):
    """Blocks of operators; the first is the global one.

    Attributes
    ----------
    random_seed : int
        Key of all random operators; 0: drawn once a process.
        repeated : bool
        Whether it runs many times, which justifies more compile time; programs that update state are taken to.
    """

    def __init__(self) -> None:
        self.blocks: list[Block] = [Block(self, 0)]
        self.current_block_idx = 0
        self.role = "forward"
        self.serial = next(_serials)
        self.edits = 0
        self._random_seed = 0
        self.repeated = False
        self._next_id = 0
        self.feed_names: list[str] = []
        self.fetch_names: list[str] = []
        self.readers: list[ProgramReader] = []
        """Readers that feed some of its variables at each run; copies of the program share them."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Program:
        return self.clone()  # with its own serial, which is a cache key

    def __copy__(self) -> Program:
        return self.clone()

    def touch(self) -> None:
        """Increment ``edits``, the version counter that invalidates caches of the program."""
        self.edits += 1

    def next_id(self) -> int:
        """Return a new operator id."""
        self._next_id += 1
        return self._next_id - 1

    @property
    def random_seed(self) -> int:
        """Key of all random operators; 0: drawn once a process."""
        return self._random_seed

    @random_seed.setter
    def random_seed(self, seed: int) -> None:
        self._random_seed = check_int("random_seed", seed)
        self.touch()

    @property
    def desc(self) -> ProgramDesc:
        """Fluid's description of it."""
        return ProgramDesc(self)

    def global_block(self) -> Block:
        """The first block."""
        return self.blocks[0]

    def block(self, index: int) -> Block:
        """Return the block of that index."""
        index = check_int("the index of a block", index)
        if not 0 <= index < len(self.blocks):
            raise ProgramError(f"the program has no block {index}; it has {len(self.blocks)}")
        return self.blocks[index]

    @property
    def num_blocks(self) -> int:
        """The number of blocks."""
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

        With ``for_test`` every ``is_test`` attribute is set; the operators of backward, optimiser and learning-rate
        schedule are left out, and those that run only such operators.
        """
        from fluidlite.program.edit import copy_program

        return copy_program(self, check_bool("for_test of Program.clone", for_test))

    def prune(self, targets: Sequence[Variable | str], feeds: Sequence[Variable | str] = ()) -> Program:
        """Copy the program with only the operators that the targets need; variables in ``feeds`` are inputs."""
        from fluidlite.program.edit import prune

        return prune(self, targets, feeds)

    _prune = prune

    def to_json(self) -> str:
        """Return the program as versioned JSON; :meth:`from_json` reads it, without running code.

        It contains regularizers and clips of fluidlite's classes, without ``need_clip``; not those of a user's class.
        """
        from fluidlite.program.json_form import dumps

        return dumps(self)

    @staticmethod
    def from_json(text: str | bytes) -> Program:
        """Read a program that :meth:`to_json` wrote.

        Raises
        ------
        SavedModelError
            If the text is truncated, of a newer version, or not a program.
        """
        from fluidlite.program.json_form import loads

        return loads(text)

    @staticmethod
    def parse_from_string(binary_str: str | bytes) -> Program:
        """Read a program in fluidlite's format, or a ``ProgramDesc`` of Paddle's ``serialize_to_string``.

        Raises
        ------
        SavedModelError
            If it is truncated, of a newer version, no program, or names unknown operators or attributes.
        """
        from fluidlite.program.json_form import loads
        from fluidlite.program.protobuf.reading import is_program, read_program

        if isinstance(binary_str, (bytes, bytearray)) and is_program(bytes(binary_str[:1])):
            return read_program(bytes(binary_str))
        return loads(binary_str)

    def to_string(self, throw_on_error: bool = False, with_details: bool = False) -> str:
        """Readable text; with details, with each variable."""
        from fluidlite.program.text import program_text

        return program_text(self, with_details)

    def __str__(self) -> str:
        return self.to_string()

    def __repr__(self) -> str:
        return f"<Program of {sum(len(b.ops) for b in self.blocks)} operators in {len(self.blocks)} block(s)>"


_main = ContextDefault("main_program", Program())
_startup = ContextDefault("startup_program", Program())


def default_main_program() -> Program:
    """The program that layers append to."""
    return _main.variable.get(_main.process_value)


def default_startup_program() -> Program:
    """Return the program that initialises parameters."""
    return _startup.variable.get(_startup.process_value)


def switch_main_program(program: Program) -> Program:
    """Make ``program`` the default main program, inside a guard that of its thread; return the one before."""
    return _main.switch(check_instance("the program of switch_main_program", program, Program))


def switch_startup_program(program: Program) -> Program:
    """Make ``program`` the default startup program, inside a guard that of its thread; return the one before."""
    return _startup.switch(check_instance("the program of switch_startup_program", program, Program))


@contextmanager
def program_guard(main_program: Program, startup_program: Program | None = None) -> Iterator[None]:
    """Layers that this thread calls inside the ``with`` block append to these programs."""
    with ExitStack() as guards:
        guards.enter_context(_main.guard(check_instance("main_program of program_guard", main_program, Program)))
        if startup_program is not None:
            check_instance("startup_program of program_guard", startup_program, Program)
            guards.enter_context(_startup.guard(startup_program))
        yield
