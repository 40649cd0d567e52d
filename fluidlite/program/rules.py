"""Rules of operators: functions of scalars, of tensors or of steps, and gradient rules."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from fluidlite.program.opdef import GRAD

if TYPE_CHECKING:
    from fluidlite.program.op_call import Call
    from fluidlite.program.opdef import OpDef


class ElementwiseOperands(Protocol):
    """The operands of an elementwise operator: their dims, and the attributes."""

    def dims(self, slot: str) -> tuple[Any, ...]:
        """Return the dims of a slot's operand."""
        ...

    def attr(self, name: str) -> Any:
        """Return the value of an attribute."""
        ...


@dataclass(frozen=True)
class ScalarRule:
    """An elementwise operator as a function of scalar symbols.

    ``function(x, y, *, alpha)``: positional parameters are slots in snake case (``x`` is X, ``learning_rate``
    LearningRate, ``dout`` Out@GRAD), keyword-only ones attributes; it returns one symbol, or a tuple,
    for the output slots named in ``outputs``.

    ``supports(call)``, if set, returns the reason why a call is no function of scalars (an attribute that requests a
    sum), or None; with a reason, the planner tries kernels and the operator's expression or decomposition.

    ``placed(operands)``, if set, returns the dims of operands to which Fluid's rule of broadcasting does not apply:
    of the rank of the largest operand, with 1 in broadcast dims. Dims are those of a call, or symbols of a trace.

    ``code(call)``, if set, returns the typed expression itself, and ``function`` is not traced; ``domain(call)``
    returns its index domain (``codegen.domain.Domain``), for a fused operator.
    """

    function: Callable[..., Any]
    outputs: tuple[str, ...]
    supports: Callable[[Call], str | None] | None = None
    placed: Callable[[ElementwiseOperands], Mapping[str, tuple[Any, ...]]] | None = None
    code: Callable[[Call], Any] | None = None
    domain: Callable[[Call], Any] | None = None

    def refuse(self, call: Call) -> str | None:
        """Return why a call is no function of scalars, or None."""
        return self.supports(call) if self.supports is not None else None


AS_COMPUTED = ""
"""In ``stored``: the output has the dtype of the computation, which is float32 for half types."""


@dataclass(frozen=True)
class ExpressionRule:
    """An operator as a function of tensors, which :mod:`fluidlite.expr` traces.

    ``function``: ``function(symbols by input slot, attributes)`` returns tensors by output slot. Float attributes that
    are not static are symbols of the trace, all others are Python values.
    ``stored``: dtypes of outputs that differ from the dtype of the computation. Outputs computed in float32 from half
    types are stored in the half type by default, unless they are :data:`AS_COMPUTED` here.
    ``inferred``: whether another function infers the outputs, so that ``function`` may read their dims.
    ``library``: a library behind the array namespace computes most of it, such as a matrix product: array calls have
    priority over kernels of a kernel language.
    ``operators``: the number of operators whose expressions it combines; these compute it if no kernel is generated.
    """

    function: Callable[[Mapping[str, Sequence[Any]], Mapping[str, Any]], Mapping[str, Any]]
    stored: Mapping[str, str] = field(default_factory=dict)
    inferred: bool = False
    library: bool = False
    operators: int = 0


@dataclass(frozen=True, eq=False)
class StepsRule:
    """An operator that runs another one for each step of sequences, whose rows are grouped by step.

    ``step``: the operator of one step, with S (states), X (inputs), P (parameters), and outputs O (new states first).
    ``states``: the number of states.
    ``backward``: whether it runs from the last step to the first.
    """

    step: OpDef
    states: int
    backward: bool


@dataclass(frozen=True)
class GradRule:
    """The gradient operator of an operator, and the slots that it reads.

    Attributes
    ----------
    type : str
        The gradient operator's type.
    reads : tuple of str
        Forward slots (inputs or outputs) and ``Slot@GRAD`` names that become its inputs.
    writes : tuple of str
        Forward input slots whose gradients it computes.
    attrs : callable or None
        Returns its attributes from the forward operator; None: the attributes of the same names.
    only_for : mapping of slot of ``reads`` to slot of ``writes``
        Slots that only one gradient needs: they are no inputs if that gradient is not needed.
    suffix : str
        The suffix of slots of gradients. A gradient operator has ``@GRAD`` slots already: derivatives of the second
        order are ``@GRAD2``.
    """

    type: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    attrs: Callable[[Any], dict[str, Any]] | None = None
    only_for: Mapping[str, str] = field(default_factory=dict)
    suffix: str = GRAD

    def output_of(self, slot: str) -> str | None:
        """Return the forward output whose gradient a slot of ``reads`` is; None if it is no gradient."""
        return slot.removesuffix(self.suffix) if slot.endswith(self.suffix) else None

    @property
    def outputs(self) -> tuple[str, ...]:
        """The forward outputs whose gradients it reads."""
        return tuple(slot.removesuffix(self.suffix) for slot in self.reads if slot.endswith(self.suffix))

    def read_for(self, slots: Container[str]) -> tuple[str, ...]:
        """Return the slots of ``reads`` that the gradients of the input ``slots`` need."""
        return tuple(slot for slot in self.reads if slot not in self.only_for or self.only_for[slot] in slots)
