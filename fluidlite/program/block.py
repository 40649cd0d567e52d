"""Block: operators and variables in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from fluidlite import unique_name
from fluidlite.base.arguments import check_int, did_you_mean, name_of
from fluidlite.base.errors import ProgramError
from fluidlite.program.contents import Operators
from fluidlite.program.declare_variable import declare_parameter, declare_variable
from fluidlite.program.desc import BlockDesc
from fluidlite.program.fluid_methods import FluidBlock
from fluidlite.program.op_guards import current_device, current_namescope
from fluidlite.program.opdef import OpDef
from fluidlite.program.operator import Operator
from fluidlite.program.operator_arguments import check_attrs, check_own, check_slots
from fluidlite.program.registry import ops
from fluidlite.program.source_location import SourceLine, source_location
from fluidlite.program.variable import Parameter, Variable
from fluidlite.tensor.var_type import VarType

if TYPE_CHECKING:
    from fluidlite.program.program import Program


class Block(FluidBlock):
    """A list of operators and the variables they name; a sub-block sees its parent's variables."""

    def __init__(self, program: Program, idx: int, parent_idx: int = -1) -> None:
        self.program = program
        self.idx = idx
        self.parent_idx = parent_idx
        self.forward_block_idx = -1
        self.vars: dict[str, Variable] = {}
        self._ops = Operators(self)

    def _hold(self, operators: Iterable[Operator]) -> None:
        self._ops = Operators(self, operators)
        self.program.touch()

    ops: Operators = property(attrgetter("_ops"), _hold)  # type: ignore[assignment]
    """The operators in order, as a list that may be changed."""

    @property
    def parent(self) -> Block | None:
        """The enclosing block, or None."""
        return self.program.blocks[self.parent_idx] if self.parent_idx >= 0 else None

    @property
    def desc(self) -> BlockDesc:
        """Fluid's description of it."""
        return BlockDesc(self)

    # Variables

    def find_var(self, name: str) -> Variable | None:
        """Return the variable of that name in this or an outer block, or None."""
        block: Block | None = self
        while block is not None:
            variable = block.vars.get(name)
            if variable is not None:
                return variable
            block = block.parent
        return None

    _find_var_recursive = find_var

    def var(self, name: str) -> Variable:
        """Return the variable of that name in this or an outer block.

        Raises
        ------
        ProgramError
            If there is none.
        """
        try:
            variable = self.find_var(name)
        except TypeError:  # a list is no key
            variable = None
        if variable is None:
            raise ProgramError(f"block {self.idx} has no variable {name!r}{did_you_mean(name, self.vars)}")
        return variable

    _var_recursive = var

    def own(self, variable: Variable | str, what: str) -> Variable:
        """Return the block's variable of that name.

        Raises
        ------
        ProgramError
            If there is none, or if ``variable`` is another program's variable of the same name; the message begins with
            ``what``.
        """
        name = name_of(variable)
        if name is None:
            raise ProgramError(f"{what} got {variable!r:.60}; expected a variable or its name")
        own_variable = self.find_var(name)
        if own_variable is not variable and not isinstance(variable, str):
            check_own(own_variable, variable, what, self)
        if own_variable is None:
            raise ProgramError(
                f"{what} names {name!r}, which block {self.idx} does not have{did_you_mean(name, self.vars)}"
            )
        return own_variable

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
        """Declare a variable, or return the existing one of that name.

        Raises
        ------
        ProgramError
            If one of that name was declared with another shape, dtype or LoD level; it is unchanged.
        """
        options = {"persistable": persistable, "stop_gradient": stop_gradient, "is_data": is_data}
        return declare_variable(self, name, shape, dtype, lod_level, type, **options)

    def create_temporary(self, dtype: Any = None, prefix: str = "tmp", stop_gradient: bool = False) -> Variable:
        """Declare a variable for an intermediate result, under a new name."""
        return self.create_var(self.new_name(prefix), stop_gradient=stop_gradient)

    def new_name(self, prefix: str) -> str:
        """``prefix_0``, ``prefix_1``, ...: the first that no variable of the program has.

        Names are numbered by a generator of the process, which restarts in ``unique_name.guard()`` and in a process
        that loaded the program.
        """
        blocks = self.program.blocks
        while True:
            name = unique_name.generate(prefix)
            if not any(name in block.vars for block in blocks):
                return name

    def create_parameter(self, name: str, shape: Sequence[int], dtype: Any, **options: Any) -> Parameter:
        """Declare a parameter; parameters live in the global block.

        Parameters
        ----------
        name, shape, dtype
        initializer : Initializer, optional
            Appends the operator that gives the first value to the global block, unless one there writes it already.
        **options
            ``lod_level``, and those of :class:`Parameter`.

        Raises
        ------
        ProgramError
            The name is taken by another parameter, or an option is unknown.
        """
        return declare_parameter(self, name, shape, dtype, options)

    def constant_like(self, like: Variable, value: int | float, full: bool = False) -> Variable:
        """Append a constant that broadcasts against ``like``, or has all of its dims if ``full``."""
        out = self.create_temporary(like.dtype, stop_gradient=True)
        is_exact = value != value or float(value) == value
        if full:
            zeros = self.create_temporary(like.dtype, stop_gradient=True)
            self.append_op("fill_zeros_like", {"X": like}, {"Out": zeros})
            if is_exact:
                self.append_op("scale", {"X": zeros}, {"Out": out}, {"scale": 1.0, "bias": float(value)})
            else:
                number = self.constant_like(like, value)
                self.append_op("elementwise_add", {"X": zeros, "Y": number}, {"Out": out})
            return out
        shape = [1] if like.shape else []
        attrs = {"shape": shape, "value": float(value), "dtype": like.dtype}
        exact_text = {} if is_exact or "float" in like.dtype else {"str_value": str(value)}  # floats round
        self.append_op("fill_constant", {}, {"Out": out}, {**attrs, **exact_text})
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
        type: str | None = None,
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
        stop_gradient : bool
            Not used: in Fluid, it only has an effect if layers run immediately.

        Raises
        ------
        OperatorNotFoundError, ProgramError, ShapeError, DtypeError, AttributeValueError
            With the operator and the user's line; the block stays as it was.
        """
        if type is None:
            raise ProgramError(
                f"append_op ({source_location()}): the type is missing\n  Do: append_op(type='relu', ...)"
            )
        return self._insert(len(self.ops), type, inputs, outputs, attrs)

    def insert_op(
        self,
        index: int,
        type: str,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        attrs: Mapping[str, Any] | None = None,
    ) -> Operator:
        """Insert an operator before the ``index``-th."""
        return self._insert(check_int("the index of an operator", index), type, inputs, outputs, attrs)

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
        role: str | None = None,
        line: SourceLine | None = None,
    ) -> Operator:
        line = line or source_location()
        definition: OpDef = ops.get(type)
        device = current_device()
        if device is not None and "op_device" not in (attrs or {}):
            attrs = {**(attrs or {}), "op_device": device}
        op = Operator(
            self,
            definition,
            check_slots(definition, inputs, "input", line, self),
            check_slots(definition, outputs, "output", line, self),
            *check_attrs(definition, attrs, line),
            id=self.program.next_id(),
            role=role or self.program.role,
            line=line,
            namescope=current_namescope(),
        )
        op.check_outputs()
        op.infer()
        op._check_rounded(attrs or {})
        self.ops.insert(index, op)
        return op

    def remove_op(self, index: int) -> None:
        """Remove the ``index``-th operator.

        Raises
        ------
        ProgramError
            There is none.
        """
        at, count = check_int("the index of an operator", index), len(self.ops)
        if not -count <= at < count:
            raise ProgramError(f"block {self.idx} has no operator {at}; it has {count}")
        del self.ops[at]

    _remove_op = remove_op

    def to_string(self, throw_on_error: bool = False, with_details: bool = False) -> str:
        """Readable text."""
        return str(self)

    def __str__(self) -> str:
        from fluidlite.program.text import block_text

        return block_text(self)
