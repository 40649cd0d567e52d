"""The metadata of a variable: its name, dims, dtype, flags and descriptions."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from fluidlite.base.arguments import check_bool
from fluidlite.base.errors import ProgramError
from fluidlite.program.contents import tracked
from fluidlite.program.desc import VariableDesc
from fluidlite.program.opdef import GRAD
from fluidlite.tensor.tensor_spec import TENSOR_ARRAY, Spec
from fluidlite.tensor.var_type import VarType

if TYPE_CHECKING:
    from fluidlite.program.block import Block
    from fluidlite.program.scope import Scope
    from fluidlite.program.selected_rows import SelectedRows
    from fluidlite.program.source_location import SourceLine
    from fluidlite.tensor.tensor import Tensor


_identities = itertools.count()


ROWS = "@ROWS"
"""Suffix of the variable of row numbers, for sparse rows that are declared, not created by a gradient."""


class SelectedRowsOf(NamedTuple):
    """The rows of a taller tensor that a variable holds."""

    rows: str
    """Name of the variable of row numbers, int64 [count]."""
    height: int
    """Number of rows of the tensor."""
    merged: bool = False
    """Whether row numbers are unique."""


class VariableMetadata:
    """A named value of a block, without operators on it; its attributes are those of a Variable."""

    spec: Spec | None = tracked("spec", Spec | None)
    stop_gradient: bool = tracked("stop_gradient", bool)
    is_data: bool = tracked("is_data", bool)
    type: str = tracked("type", str)
    line: SourceLine | None = None
    declared: Spec | None = None
    selected: SelectedRowsOf | None = None

    def __init__(
        self,
        block: Block,
        name: str,
        spec: Spec | None = None,
        persistable: bool = False,
        stop_gradient: bool = False,
        is_data: bool = False,
        kind: str = VarType.LOD_TENSOR,
    ) -> None:
        self.block = block
        self.name = name
        self.spec = spec
        self.persistable = persistable
        self.stop_gradient = stop_gradient
        self.is_data = is_data
        self.type = VarType.LOD_TENSOR_ARRAY if spec is not None and spec.kind == TENSOR_ARRAY else kind
        self.error_clip: Any = None
        self.identity = next(_identities)

    def select(self, selected: SelectedRowsOf) -> Self:
        """Mark the variable as rows of a taller tensor, and return it."""
        self.selected, self.type = selected, VarType.SELECTED_ROWS
        return self

    def get_value(self, scope: Scope | None = None) -> Tensor | SelectedRows:
        """Return its value in a scope: a tensor, or the rows and values of sparse rows.

        Parameters
        ----------
        scope : Scope, optional
            Default: the global scope.

        Raises
        ------
        ProgramError
            If the scope has no value: it is not persistable, or no program that writes it has run.
        """
        from fluidlite.program.scope import global_scope
        from fluidlite.program.selected_rows import SelectedRows

        names = [self.name] if self.selected is None else [self.name, self.selected.rows]
        variables = [(scope if scope is not None else global_scope()).find_var(name) for name in names]
        for name, variable in zip(names, variables, strict=True):
            if variable is None or not variable.tensor.initialized:
                raise ProgramError(
                    f"the scope holds no value of variable {name!r}"
                    "\n  Do: set persistable=True before the run, or fetch it"
                )
        values, *numbers = [variable for variable in variables if variable is not None]
        if self.selected is None:
            return values.tensor
        return SelectedRows.of(values.tensor, numbers[0], self.selected.height)

    def stands_for(self, other: VariableMetadata) -> bool:
        """Whether both name the same value: one variable, counterparts in copies of a program, or state of one name."""
        return self.identity == other.identity or (self.persistable and other.persistable and self.name == other.name)

    def name_and_line(self) -> str:
        """Return its name, and the user's line that created it."""
        lines = [op.line for op in self.block.ops if self.name in op.output_arg_names]
        line = lines[0] if lines else self.line
        return f"{self.name!r} ({line})" if line is not None else repr(self.name)

    _persistable: bool = tracked("_persistable")

    @property
    def persistable(self) -> bool:
        """Whether it persists in the scope between runs."""
        return self._persistable

    @persistable.setter
    def persistable(self, on: bool) -> None:
        self._persistable = on if on.__class__ is bool else check_bool(f"persistable of variable {self.name!r}", on)
        if self.selected is not None:
            rows = self.block.find_var(self.selected.rows)
            if rows is not None:
                rows.persistable = on

    def saved(self) -> dict[str, Any]:
        """Return the field of a saved program that this kind of variable adds to those of every variable."""
        return {}

    def declare(self, spec: Spec) -> None:
        """Set the inferred dims and dtype."""
        old_spec = self.spec
        if spec.kind == TENSOR_ARRAY:
            self.type = VarType.LOD_TENSOR_ARRAY
            if old_spec is not None and old_spec.kind == TENSOR_ARRAY and old_spec.dims and not spec.dims:
                return  # an emptied array keeps the declared element, such as that of a write in a sub-block
        self.spec = spec

    @property
    def is_array(self) -> bool:
        """Whether it is a tensor array."""
        return self.type == VarType.LOD_TENSOR_ARRAY

    def _spec(self) -> Spec:
        if self.spec is None:
            raise ProgramError(f"variable {self.name!r} has no declared dims; create it with shape= and dtype=")
        return self.spec

    @property
    def shape(self) -> tuple[int, ...]:
        """Declared dims; -1 for a dim that is known only at run time."""
        return self._spec().dims

    @property
    def dtype(self) -> str:
        """Declared dtype."""
        return self._spec().dtype

    @property
    def lod_level(self) -> int:
        """Number of LoD levels."""
        return self.spec.lod_level if self.spec is not None else 0

    @property
    def grad_name(self) -> str:
        """Name of its gradient."""
        return self.name + GRAD

    @property
    def desc(self) -> VariableDesc:
        """Fluid's description of it."""
        return VariableDesc(self)

    def to_string(self, throw_on_error: bool = False, with_details: bool = False) -> str:
        """Readable text."""
        return str(self)

    def __str__(self) -> str:
        marks = "".join(
            f", {mark}"
            for mark, on in (
                ("persistable", self.persistable),
                ("stop_gradient", self.stop_gradient),
                ("data", self.is_data),
            )
            if on
        )
        return f"{self.name}: {self.spec!r}{marks}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"


def copy_operator(variable: VariableMetadata) -> str:
    """Return the operator that copies a variable: a tensor, or a tensor array."""
    return "assign_array" if variable.is_array else "assign"


def sum_operator(variable: VariableMetadata) -> str:
    """Return the operator that adds values of a variable's kind."""
    return "sum_arrays" if variable.is_array else "sum"


def zeros_operator(variable: VariableMetadata) -> str:
    """Return the operator that creates zeros like a variable: for a tensor array, an array without elements."""
    return "empty_array_like" if variable.is_array else "fill_zeros_like"
