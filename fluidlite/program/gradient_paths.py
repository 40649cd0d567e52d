"""Which operators lie on a path from a wanted input to a target, and what backward refuses there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fluidlite.base.dtypes import is_float
from fluidlite.base.errors import GradientError
from fluidlite.program.block import Block
from fluidlite.program.opdef import GRAD
from fluidlite.program.operator import Operator
from fluidlite.program.variable import Parameter


class NoDerivativeError(GradientError):
    """Backward met an operator without a derivative on a path from ``origin``, a wanted input."""

    def __init__(self, message: str, origin: str) -> None:
        super().__init__(message)
        self.origin = origin


Origins = Mapping[str, str]
"""Variable name to the name of a wanted input that it depends on."""


@dataclass
class Paths:
    """What the wanted inputs reach.

    ``reached``: every variable that depends on a wanted input.
    ``inputs``: the reached inputs of each operator, by slot; slots that stop derivatives are left out.
    """

    reached: dict[str, str]
    inputs: dict[Operator, dict[str, dict[str, str]]] = field(default_factory=dict)

    def into(self, op: Operator) -> dict[str, dict[str, str]]:
        return self.inputs.get(op, {})


def find_paths(operators: Sequence[Operator], wanted: set[str], block: Block, blocked: set[str]) -> Paths:
    """Follow the wanted inputs through operators in order, whether these have gradients or not.

    A path ends at ``blocked`` variables (:func:`stopped`), at what is no float, and at slots that stop derivatives.
    Of a wanted name that is written anew, the last value is wanted.
    """
    made = {name: op for op in operators for name in op.output_arg_names if name in wanted and not _reads(op, name)}
    paths = Paths({name: name for name in wanted if name not in made})
    for op in operators:
        into: dict[str, dict[str, str]] = {}
        for slot, names in op.inputs.items():
            origins = {name: paths.reached[name] for name in names if name in paths.reached}
            if origins and op.definition.stops(slot) is None:
                into[slot] = origins
        if into:
            paths.inputs[op] = into
        origin = next((o for origins in into.values() for o in origins.values()), None)
        for slot, names in op.outputs.items():
            passes = origin is not None and op.definition.stops(slot) is None
            for name in names:
                if made.get(name) is op:
                    paths.reached[name] = name
                elif passes and origin is not None and _takes_part(block, name, blocked):
                    paths.reached[name] = origin
                elif name not in wanted or not _reads(op, name):
                    paths.reached.pop(name, None)  # written anew, from something else
    return paths


def _reads(op: Operator, name: str) -> bool:
    return name in op.input_arg_names


def _takes_part(block: Block, name: str, blocked: set[str]) -> bool:
    variable = block.find_var(name)
    if name in blocked or variable is None:
        return False
    return variable.spec is None or is_float(variable.spec.dtype)


def refuse_missing(op: Operator, into: Mapping[str, Origins], differentiated: Iterable[str]) -> None:
    """Raise NoDerivativeError if an operator's gradient leaves out an input that lies on a path.

    ``into``: the reached inputs of the operator.
    ``differentiated``: inputs whose gradients it gives.
    """
    known = set(differentiated)
    for slot, origins in into.items():
        if slot in known:
            continue
        name, origin = next(iter(origins.items()))
        through = "" if origin == name else f", which depends on {origin!r}"
        raise NoDerivativeError(
            f"{op}{_derivative_of(op)} has no derivative with respect to its input {slot} {name!r}{through}"
            f"\n  Do: {op.definition.no_gradient.get(slot) or _advice(op, name)}",
            origin,
        )


def refuse_missing_output(op: Operator, into: Mapping[str, Origins], slot: str, name: str) -> None:
    """Raise NoDerivativeError: the target depends on an output that the operator's gradient does not take."""
    origin = next(iter(next(iter(into.values())).values()))
    raise NoDerivativeError(
        f"{op}{_derivative_of(op)}: the target depends on its output {slot} {name!r}; no derivative of that is defined"
        f"\n  Do: {op.definition.no_gradient.get(slot) or _advice(op, name)}",
        origin,
    )


def _derivative_of(op: Operator) -> str:
    return ", which computes a derivative itself," if _is_gradient(op) else ""


def _is_gradient(op: Operator) -> bool:
    return any(slot.endswith(GRAD) for slot in (*op.inputs, *op.outputs))


def _advice(op: Operator, name: str) -> str:
    stop = f"to take {name!r} for a constant, set its stop_gradient to True, or pass it through ng.stop_gradient"
    if _is_gradient(op):
        return f"write the first derivative with operators of the program, and differentiate that; {stop}"
    return f"write {op.type} with operators that have gradients; {stop}"


def stopped(block: Block) -> set[str]:
    """Variables of the block and those around it that say ``stop_gradient``, and through which no derivative flows.

    Layers say it of what an operator keeps for its gradient operator (the mean of a normalisation). Where that gradient
    is differentiated, what was kept is a function of the inputs like any other: a path that ended there would give a
    part of the second derivative for all of it.
    """
    found = set()
    scope: Block | None = block
    while scope is not None:
        found |= {name for name, variable in scope.vars.items() if variable.stop_gradient}
        scope = scope.parent
    return found - _kept_for_gradients(block)


def _kept_for_gradients(block: Block) -> set[str]:
    """Intermediate outputs that gradient operators read."""
    read = {name for op in block.ops if _is_gradient(op) for name in op.input_arg_names}
    kept: set[str] = set()
    for op in block.ops if read else ():
        for slot, names in op.outputs.items():
            declared = op.definition.output(slot)
            if declared is not None and declared.intermediate:
                kept.update(names)
    return kept & read


def free_inputs(block: Block) -> set[str]:
    """Variables that come from no other, fed or filled, through which gradients may flow (stop_gradient False)."""
    written = {name for op in block.ops if op.input_arg_names for name in op.output_arg_names}
    found = set()
    for name, variable in block.vars.items():
        frozen = variable.stop_gradient or (isinstance(variable, Parameter) and not variable.trainable)
        if name not in written and not frozen and variable.spec is not None and is_float(variable.spec.dtype):
            found.add(name)
    return found


def forward_part(block: Block, targets: Sequence[str]) -> list[Operator]:
    """Operators up to the last that writes a target, and that the targets depend on."""
    wanted = set(targets)
    kept = []
    for op in reversed(block.ops):
        if wanted.isdisjoint(op.output_arg_names):
            continue
        kept.append(op)
        wanted.update(op.input_arg_names)
    return kept[::-1]
