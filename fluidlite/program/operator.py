"""Operator: one use of a definition in a block, checked on creation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fluidlite.base.arguments import did_you_mean, exact_int_text, name_of
from fluidlite.base.dtypes import INTS
from fluidlite.base.errors import AttributeValueError, ProgramError
from fluidlite.program.contents import RENAME, REPLACE, SET_ATTR, Attributes, Operators, Slots, read_only, slots
from fluidlite.program.desc import OpDesc
from fluidlite.program.inference import check_inputs, inferred
from fluidlite.program.op_call import PLACEHOLDER, Call, with_location
from fluidlite.program.opdef import GRAD, OpDef
from fluidlite.program.registry import HINTS
from fluidlite.program.roles import role_number
from fluidlite.program.source_location import SourceLine
from fluidlite.tensor.tensor_spec import Spec, merged_dims
from fluidlite.tensor.var_type import AttrType

if TYPE_CHECKING:
    from fluidlite.program.block import Block
    from fluidlite.program.variable import Variable

EMPTY = "@EMPTY@"
"""Fluid's name of an output that is not needed, or of an absent input."""


_EXACT_INTEGERS = 2**53
"""Bound below which a float represents every integer exactly."""
FUSED_OPERATORS = "made_of"
"""Hint of a fused operator: the types and lines of its operators."""
NOT_FUSED = "not_fused"
"""Hint of an operator: why it is not fused with adjacent operators, one text for each."""
INDEX_CHECKER = "checks"
"""Hint of a fused operator: the text by which errors name its operator that checks indices."""
NOT_EXPANDED = "not_expanded"
"""Hint of an operator that passes did not decompose, so that its parts are not fused: the reason."""


class Operator:
    """One operator of a block.

    Attributes
    ----------
    type : str
    inputs, outputs : dict of slot to list of variable names
        Read-only: :meth:`rename_input` and :meth:`rename_output` change them.
    attrs : dict
        Every attribute of the definition, in canonical form; read-only: :meth:`set_attr` changes one.
    hints : dict
        Fluid's hint attributes that the definition does not declare (stored, not used).
    id : int
        Preserved by clone and by passes.
    role : str
        ``"forward"``, ``"backward"``, ``"optimize"`` or ``"lr_sched"``.
    line : Line
        The user's line that created it.
    """

    __slots__ = (
        "__weakref__",
        "_attrs",
        "_hints",
        "_inputs",
        "_outputs",
        "block",
        "definition",
        "id",
        "line",
        "namescope",
        "role",
    )
    type: str = read_only("definition.type", REPLACE)
    inputs: Slots = read_only("_inputs", RENAME)
    outputs: Slots = read_only("_outputs", RENAME)
    attrs: Attributes = read_only("_attrs", SET_ATTR)
    hints: Attributes = read_only("_hints", SET_ATTR)

    def __init__(
        self,
        block: Block,
        definition: OpDef,
        inputs: Mapping[str, list[str]],
        outputs: Mapping[str, list[str]],
        attrs: Mapping[str, Any],
        hints: Mapping[str, Any],
        id: int,
        role: str,
        line: SourceLine,
        namescope: str = "",
    ) -> None:
        self.block = block
        self.definition = definition
        self._inputs = inputs if isinstance(inputs, Slots) else slots(inputs)
        self._outputs = outputs if isinstance(outputs, Slots) else slots(outputs)
        self._attrs = Attributes(attrs)
        self._hints = Attributes(hints)
        self.id = id
        self.role = role
        self.line = line
        self.namescope = namescope

    def _near(
        self,
        block: Block,
        definition: OpDef,
        inputs: Mapping[str, list[str]],
        outputs: Mapping[str, list[str]],
        attrs: Mapping[str, Any],
        hints: Mapping[str, Any],
    ) -> Operator:
        """Return a new operator with the id, role, line and name scope of this one, to replace or accompany it."""
        identity = self.id, self.role, self.line, self.namescope
        return Operator(block, definition, inputs, outputs, attrs, hints, *identity)

    def __str__(self) -> str:
        return f"operator {self.type} ({self.line})"

    def __repr__(self) -> str:
        ins = ", ".join(f"{slot}={names}" for slot, names in self.inputs.items())
        outs = ", ".join(f"{slot}={names}" for slot, names in self.outputs.items())
        return f"Operator({self.type}: {ins} -> {outs})"

    def check_outputs(self) -> None:
        """Raise ProgramError if two outputs are the same variable, whose value would be undefined."""
        slots: dict[str, str] = {}
        for slot, name in ((slot, name) for slot, names in self.outputs.items() for name in names if name != EMPTY):
            if name in slots:
                raise ProgramError(
                    f"{self}: outputs {slots[name]} and {slot} are one variable, {name!r}; expected one for each"
                    "\n  Do: block.create_var() for one of them"
                )
            slots[name] = slot

    def _check_rounded(self, values: Mapping[str, Any]) -> None:
        """Raise AttributeValueError if a float attribute rounds an integer and an output is of an integer dtype."""
        for name, value in self.attrs.items():
            if value.__class__ is float and abs(value) >= _EXACT_INTEGERS and exact_int_text(values.get(name)):
                for output in self.output_arg_names:
                    spec = self.block.var(output).spec
                    if spec is not None and spec.dtype in INTS:
                        raise AttributeValueError(
                            f"{self}: attribute {name!r} is {values[name]}, which a float rounds to {int(value)}; "
                            f"expected a number that a float holds, for {output!r} is {spec.dtype}"
                            "\n  Do: give it as a tensor of layers.fill_constant, to an operator of two tensors"
                        )

    # Fluid's accessors

    def input(self, slot: str) -> list[str]:
        """Names of the variables in an input slot."""
        return list(self.inputs.get(slot, ()))

    def output(self, slot: str) -> list[str]:
        """Names of the variables in an output slot."""
        return list(self.outputs.get(slot, ()))

    @property
    def input_names(self) -> list[str]:
        """The input slots that are present."""
        return list(self.inputs)

    @property
    def output_names(self) -> list[str]:
        """The output slots that are present."""
        return list(self.outputs)

    @property
    def input_arg_names(self) -> list[str]:
        """The names of all variables that it reads."""
        return [name for names in self.inputs.values() for name in names]

    @property
    def output_arg_names(self) -> list[str]:
        """The names of all variables that it writes."""
        return [name for names in self.outputs.values() for name in names]

    def attr(self, name: str) -> Any:
        """Return the value of an attribute or hint."""
        if name in self.attrs:
            return self.attrs[name]
        if name in self.hints:
            return self.hints[name]
        if name == "op_role":
            return role_number(self.role)
        raise no_attribute(self.definition, str(self), name)

    @property
    def idx(self) -> int:
        """Its index in the block.

        Raises
        ------
        ProgramError
            The block no longer has it.
        """
        for index, op in enumerate(self.block.ops):
            if op is self:
                return index
        raise ProgramError(f"{self} is no longer in its block")

    @property
    def desc(self) -> OpDesc:
        """Fluid's description of it."""
        return OpDesc(self)

    def attr_type(self, name: str) -> AttrType:
        """The kind of an attribute or hint."""
        declared = self.definition.attr(name)
        if declared is not None:
            return AttrType.of(declared.type)
        value = self.attr(name)
        first = value[0] if isinstance(value, (list, tuple)) and value else value
        return AttrType.of(type(first).__name__ + ("s" if isinstance(value, (list, tuple)) else ""))

    def block_attr(self, name: str) -> int:
        """Index of the block that an attribute names."""
        if self.attr_type(name) is not AttrType.BLOCK:
            raise AttributeValueError(f"{self}: attribute {name!r} is {self.attr(name)!r}, which is no block")
        return int(self.attr(name))

    _block_attr_id = block_attr

    def _block_attr(self, name: str) -> Block:
        return self.block.program.block(self.block_attr(name))

    @property
    def attr_names(self) -> list[str]:
        """Names of all attributes and hints."""
        return [*self.attrs, *self.hints]

    def to_string(self, throw_on_error: bool = False) -> str:
        """Readable text."""
        from fluidlite.program.text import operator_text

        return operator_text(self)

    def has_attr(self, name: str) -> bool:
        """Whether it has an attribute or hint of that name."""
        return name in self.attrs or name in self.hints or name == "op_role"

    def all_attrs(self) -> dict[str, Any]:
        """All attributes."""
        return {**self.attrs, **self.hints}

    def set_attr(self, name: str, value: Any) -> None:
        """Change an attribute; it is checked, and the outputs are inferred again.

        Raises
        ------
        AttributeValueError
            If neither the definition nor the hints have the name, or the value is invalid.
        """
        attr = self.definition.attr(name)
        if attr is None:
            if name not in HINTS:
                raise no_attribute(self.definition, str(self), name)
            self._hints = Attributes({**self.hints, name: value})
        else:
            try:
                checked = attr.check(value)
            except ProgramError as exc:
                raise with_location(exc, str(self)) from None
            old_attrs, self._attrs = self._attrs, Attributes({**self.attrs, name: checked})
            try:
                self.infer()
                self._check_rounded({name: value})
            except BaseException:  # an interruption too
                self._attrs = old_attrs
                raise
        self.block.program.touch()

    _set_attr = set_attr

    def rename_input(self, old: str | Variable, new: str | Variable) -> None:
        """Replace a variable in all input slots."""
        self._inputs = self._renamed(self.inputs, old, new)
        self.block.program.touch()

    def rename_output(self, old: str | Variable, new: str | Variable) -> None:
        """Replace a variable in all output slots."""
        old_outputs, self._outputs = self._outputs, self._renamed(self.outputs, old, new)
        try:
            self.check_outputs()
        except ProgramError:
            self._outputs = old_outputs
            raise
        self.block.program.touch()

    _rename_input, _rename_output = rename_input, rename_output

    def _renamed(self, names: Slots, old: str | Variable, new: str | Variable) -> Slots:
        old_name, new_name = map(name_of, (old, new))
        if old_name is None or new_name is None:
            raise ProgramError(f"a variable is renamed from {old!r:.60} to {new!r:.60}; expected variables or names")
        if not isinstance(new, str):
            self.block.own(new, f"{self}: a variable of {old_name!r}'s place")
        return slots(
            {slot: [new_name if name == old_name else name for name in group] for slot, group in names.items()}
        )

    # Inference

    def call(self) -> Call | None:
        """Return the build-time metadata, or None while an input's dims are not declared."""
        ins: dict[str, tuple[Spec, ...]] = {}
        for slot, names in self.inputs.items():
            specs = [self.block.var(name).spec for name in names]
            if any(spec is None for spec in specs):
                return None
            ins[slot] = tuple(spec for spec in specs if spec is not None)
        outs = {slot: (PLACEHOLDER,) * len(names) for slot, names in self.outputs.items()}
        return Call(self.definition, ins, outs, self.attrs)

    def infer(self) -> None:
        """Infer the outputs' dims and dtypes, and declare them."""
        if self.definition.infer is None:
            return
        call = self.call()
        if call is None:
            return
        try:
            check_inputs(call)
            results = inferred(call)
        except ProgramError as exc:
            raise with_location(exc, str(self)) from None
        for slot, names in self.outputs.items():
            specs = results.get(slot)
            if specs is None:
                continue
            if len(specs) != len(names):
                raise ProgramError(f"{self}: output {slot} has {len(names)} variables, inference found {len(specs)}")
            for name, spec in zip(names, specs, strict=True):
                if name != EMPTY:
                    self._declare(self.block.var(name), spec)

    def _declare(self, variable: Variable, spec: Spec) -> None:
        old_spec = variable.spec
        if variable.block is not self.block and old_spec is not None and old_spec.rank == spec.rank:
            # a sub-block may run repeatedly: dims that it changes become unknown
            spec = spec.with_(dims=merged_dims(old_spec.dims, spec.dims))
        variable.declare(spec)


Operators.kind = Operator


def no_attribute(definition: OpDef, what: str, name: Any) -> AttributeValueError:
    """Return the error for a name that no attribute of an operator has."""
    names = [attr.name for attr in definition.attrs]
    suggestion = did_you_mean(name, (*names, *HINTS))
    return AttributeValueError(f"{what} has no attribute {name!r}; it has {', '.join(names) or 'none'}{suggestion}")


def grad_name(name: str) -> str:
    """Return the name of a variable's gradient: ``x@GRAD``."""
    return name + GRAD
