"""What a variable is: its name, its dims and dtype, where it lives, and how it is described."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from fluidlite.base.arguments import truth
from fluidlite.base.errors import ProgramError
from fluidlite.program.contents import noted
from fluidlite.program.desc import VariableDesc
from fluidlite.program.opdef import GRAD
from fluidlite.tensor.tensor_spec import TENSOR_ARRAY, Spec
from fluidlite.tensor.var_type import VarType

if TYPE_CHECKING:
    from fluidlite.program.block import Block
    from fluidlite.program.scope import Scope
    from fluidlite.program.selected_rows import SelectedRows
    from fluidlite.program.source_location import Line
    from fluidlite.tensor.tensor import Tensor


_identities = itertools.count()


ROWS = "@ROWS"
"""Suffix of the variable that has the numbers of sparse rows, where their own variable was not made by a gradient."""


class SelectedRowsOf(NamedTuple):
    """What says which rows of a tensor a variable holds."""

    rows: str
    """Name of the variable that has their numbers, int64 [count]."""
    height: int
    """Number of rows of the tensor."""
    merged: bool = False
    """Whether each number comes once."""


class VariableMetadata:
    """A named value of a block, without operators on it; its attributes are those of a Variable."""

    spec: Spec | None = noted("spec", Spec | None)
    stop_gradient: bool = noted("stop_gradient", bool)
    is_data: bool = noted("is_data", bool)
    type: str = noted("type", str)
    line: Line | None = None
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
        """Say that it holds rows of a taller tensor; return it."""
        self.selected, self.type = selected, VarType.SELECTED_ROWS
        return self

    def get_value(self, scope: Scope | None = None) -> Tensor | SelectedRows:
        """What a scope holds of it: a tensor, or the rows and values of sparse rows.

        Parameters
        ----------
        scope : Scope, optional
            Default: the global scope.

        Raises
        ------
        ProgramError
            If the scope does not hold it: it is not persistable, or nothing has run yet.
        """
        from fluidlite.program.scope import global_scope
        from fluidlite.program.selected_rows import SelectedRows

        names = [self.name] if self.selected is None else [self.name, self.selected.rows]
        found = [(scope if scope is not None else global_scope()).find_var(name) for name in names]
        for name, held in zip(names, found, strict=True):
            if held is None or not held.tensor.initialized:
                raise ProgramError(
                    f"the scope holds no value of variable {name!r}"
                    "\n  Do: set persistable=True before the run, or fetch it"
                )
        values, *numbers = [held for held in found if held is not None]
        if self.selected is None:
            return values.tensor
        return SelectedRows.of(values.tensor, numbers[0], self.selected.height)

    def stands_for(self, other: VariableMetadata) -> bool:
        """Whether it names the same value: itself, its counterpart in a copy of the program, or state of that name."""
        return self.identity == other.identity or (self.persistable and other.persistable and self.name == other.name)

    def name_and_line(self) -> str:
        """Its name, and the line that made it."""
        lines = [op.line for op in self.block.ops if self.name in op.output_arg_names]
        line = lines[0] if lines else self.line
        return f"{self.name!r} ({line})" if line is not None else repr(self.name)

    _persistable: bool = noted("_persistable")

    @property
    def persistable(self) -> bool:
        """Whether it lives in the scope from run to run."""
        return self._persistable

    @persistable.setter
    def persistable(self, on: bool) -> None:
        self._persistable = on if on.__class__ is bool else truth(f"persistable of variable {self.name!r}", on)
        if self.selected is not None:
            rows = self.block.find_var(self.selected.rows)
            if rows is not None:
                rows.persistable = on

    def saved(self) -> dict[str, Any]:
        """What a saved program says of it beyond the fields of every variable: one field, by the kind of variable."""
        return {}

    def declare(self, spec: Spec) -> None:
        """Take the dims and dtype that inference found."""
        before = self.spec
        if spec.kind == TENSOR_ARRAY:
            self.type = VarType.LOD_TENSOR_ARRAY
            if before is not None and before.kind == TENSOR_ARRAY and before.dims and not spec.dims:
                return  # an array that is emptied: what it is to hold is known, of a write in a block perhaps
        self.spec = spec

    @property
    def is_array(self) -> bool:
        """Whether it holds tensors by number."""
        return self.type == VarType.LOD_TENSOR_ARRAY

    def _spec(self) -> Spec:
        if self.spec is None:
            raise ProgramError(f"variable {self.name!r} has no declared dims; create it with shape= and dtype=")
        return self.spec

    @property
    def shape(self) -> tuple[int, ...]:
        """Declared dims; -1 where they are known only when it runs."""
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
    """The operator that copies what a variable holds: a tensor, or an array of tensors."""
    return "assign_array" if variable.is_array else "assign"


def sum_operator(variable: VariableMetadata) -> str:
    """The operator that adds values of the kind that a variable holds."""
    return "sum_arrays" if variable.is_array else "sum"


def zeros_operator(variable: VariableMetadata) -> str:
    """The operator that makes zeros like what a variable holds: an array without elements, if it is an array."""
    return "empty_array_like" if variable.is_array else "fill_zeros_like"
