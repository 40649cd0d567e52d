"""Rules of operators: how one is computed of scalars, tensors or steps, and how its gradient is made."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from fluidlite.program.opdef import GRAD

if TYPE_CHECKING:
    from fluidlite.program.op_call import Call
    from fluidlite.program.opdef import OpDef


class Operands(Protocol):
    """What says where the operands of an elementwise operator lie: their dims, and attributes."""

    def dims(self, slot: str) -> tuple[Any, ...]:
        """The dims of a slot's operand."""
        ...

    def attr(self, name: str) -> Any:
        """An attribute."""
        ...


@dataclass(frozen=True)
class ScalarRule:
    """An elementwise operator as a function of scalar symbols.

    ``function(x, y, *, alpha)``: positional parameters are slots in snake case (``x`` is X, ``learning_rate``
    LearningRate, ``dout`` Out@GRAD), keyword-only ones attributes; it returns one symbol, or a tuple,
    for the output slots named in ``outputs``.

    ``supports(call)``, if given, returns the reason why a call is no function of scalars (an attribute that asks for
    a sum), or None; the planner goes on to kernels, and to the operator's expression or decomposition, then.

    ``placed(operands)``, if given, says the dims of operands that Fluid's rule of broadcasting would put elsewhere: as
    many as the largest operand has, 1 where it is broadcast. Dims are those of a call, or numbers of a trace.

    ``code(call)``, if given, returns the typed expression itself, and ``function`` is not traced; ``domain(call)`` the
    index domain of that (``codegen.domain.Domain``), for a fused operator.
    """

    function: Callable[..., Any]
    outputs: tuple[str, ...]
    supports: Callable[[Call], str | None] | None = None
    placed: Callable[[Operands], Mapping[str, tuple[Any, ...]]] | None = None
    code: Callable[[Call], Any] | None = None
    domain: Callable[[Call], Any] | None = None

    def refuse(self, call: Call) -> str | None:
        """Why a call is no function of scalars, or None."""
        return self.supports(call) if self.supports is not None else None


AS_COMPUTED = ""
"""Says of an output that it is stored in the dtype in which it is computed: float32 of a half type."""


@dataclass(frozen=True)
class ExpressionRule:
    """An operator as a function of tensors, which :mod:`fluidlite.expr` traces.

    ``function``: ``function(symbols by input slot, attributes)`` returns tensors by output slot. Float attributes that
    are not static are numbers of the trace, all others are Python's values.
    ``stored``: outputs that are not stored in the dtype in which they are computed; those computed in float32 of a half
    type are stored in that, without being named here, unless it is :data:`AS_COMPUTED`.
    ``inferred``: whether outputs are inferred otherwise, so that the function may ask for their dims.
    ``library``: a library behind the array namespace computes most of it, such as a product of matrices: array calls
    come before kernels of a kernel language.
    ``operators``: of how many operators' expressions it is put together: where no kernel is generated for it, these
    compute it.
    """

    function: Callable[[Mapping[str, Sequence[Any]], Mapping[str, Any]], Mapping[str, Any]]
    stored: Mapping[str, str] = field(default_factory=dict)
    inferred: bool = False
    library: bool = False
    operators: int = 0


@dataclass(frozen=True, eq=False)
class StepsRule:
    """An operator that runs another one for each step of sequences, whose rows lie by step.

    ``step``: one step: states S, inputs X, parameters P; what it makes is O, new states first.
    ``backward``: from the last step to the first.
    """

    step: OpDef
    states: int
    backward: bool


@dataclass(frozen=True)
class GradRule:
    """Which gradient operator an operator gets, and what that reads.

    Attributes
    ----------
    type : str
        The gradient operator's type.
    reads : tuple of str
        Forward slots (inputs or outputs) and ``Slot@GRAD`` names that become its inputs.
    writes : tuple of str
        Forward input slots whose gradients it makes.
    attrs : callable or None
        Makes its attributes of the forward operator's; None: those of the same names.
    only_for : mapping of slot of ``reads`` to slot of ``writes``
        What is read for one gradient alone: it is no input where that gradient is not wanted.
    suffix : str
        What names the slots of gradients. Of a gradient operator ``@GRAD`` names slots already: derivatives of the
        second order are ``@GRAD2``.
    """

    type: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    attrs: Callable[[Any], dict[str, Any]] | None = None
    only_for: Mapping[str, str] = field(default_factory=dict)
    suffix: str = GRAD

    def output_of(self, slot: str) -> str | None:
        """The forward output whose gradient a slot of ``reads`` is; None if it is no gradient."""
        return slot.removesuffix(self.suffix) if slot.endswith(self.suffix) else None

    @property
    def outputs(self) -> tuple[str, ...]:
        """The forward outputs whose gradients it reads."""
        return tuple(slot.removesuffix(self.suffix) for slot in self.reads if slot.endswith(self.suffix))

    def read_for(self, wanted: Container[str]) -> tuple[str, ...]:
        """The slots of ``reads`` that the gradients of the wanted input slots need."""
        return tuple(slot for slot in self.reads if slot not in self.only_for or self.only_for[slot] in wanted)
