"""Finds the operators on paths from differentiated inputs to targets, and raises for missing derivatives."""

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
    """An operator on a path from ``origin``, a differentiated input, has no derivative."""

    def __init__(self, message: str, origin: str) -> None:
        super().__init__(message)
        self.origin = origin


Origins = Mapping[str, str]
"""Variable name to the name of a differentiated input that it depends on."""


@dataclass
class Paths:
    """The variables and operators that depend on differentiated inputs.

    ``reached``: every variable that depends on a differentiated input, with the name of that input.
    ``inputs``: the reached inputs of each operator, by slot, without slots that stop derivatives.
    """

    reached: dict[str, str]
    inputs: dict[Operator, dict[str, dict[str, str]]] = field(default_factory=dict)

    def into(self, op: Operator) -> dict[str, dict[str, str]]:
        return self.inputs.get(op, {})


def find_paths(operators: Sequence[Operator], roots: set[str], block: Block, blocked: set[str]) -> Paths:
    """Propagate the differentiated inputs through operators in order, whether these have gradients or not.

    A path ends at ``blocked`` variables (:func:`stopped`), at values that are no floats, and at slots that stop
    derivatives. If a name in ``roots`` is written several times, its last value is differentiated.
    """
    last_writers = {
        name: op for op in operators for name in op.output_arg_names if name in roots and not _reads(op, name)
    }
    paths = Paths({name: name for name in roots if name not in last_writers})
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
                if last_writers.get(name) is op:
                    paths.reached[name] = name
                elif passes and origin is not None and _is_differentiable(block, name, blocked):
                    paths.reached[name] = origin
                elif name not in roots or not _reads(op, name):
                    paths.reached.pop(name, None)  # overwritten by an independent value
    return paths


def _reads(op: Operator, name: str) -> bool:
    return name in op.input_arg_names


def _is_differentiable(block: Block, name: str, blocked: set[str]) -> bool:
    variable = block.find_var(name)
    if name in blocked or variable is None:
        return False
    return variable.spec is None or is_float(variable.spec.dtype)


def refuse_missing(op: Operator, into: Mapping[str, Origins], differentiated: Iterable[str]) -> None:
    """Raise NoDerivativeError if an operator's gradient leaves out an input on a path.

    ``into``: the reached inputs of the operator.
    ``differentiated``: the input slots whose gradients it computes.
    """
    slots = set(differentiated)
    for slot, origins in into.items():
        if slot in slots:
            continue
        name, origin = next(iter(origins.items()))
        through = "" if origin == name else f", which depends on {origin!r}"
        raise NoDerivativeError(
            f"{op}{_derivative_of(op)} has no derivative with respect to its input {slot} {name!r}{through}"
            f"\n  Do: {op.definition.no_gradient.get(slot) or _advice(op, name)}",
            origin,
        )


def refuse_missing_output(op: Operator, into: Mapping[str, Origins], slot: str, name: str) -> None:
    """Raise NoDerivativeError: the target depends on an output that the operator's gradient ignores."""
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


def blocked_variables(block: Block) -> set[str]:
    """Return the variables with ``stop_gradient`` of the block and its outer blocks, at which derivatives end.

    Layers set it on outputs that an operator saves for its gradient operator (the mean of a normalisation). If that
    gradient is differentiated, the saved outputs are left out here, as functions of the inputs like any other: a path
    that ended there would give only a part of the second derivative.
    """
    names = set()
    scope: Block | None = block
    while scope is not None:
        names |= {name for name, variable in scope.vars.items() if variable.stop_gradient}
        scope = scope.parent
    return names - _saved_for_gradients(block)


def _saved_for_gradients(block: Block) -> set[str]:
    """Return the intermediate outputs that gradient operators read."""
    read = {name for op in block.ops if _is_gradient(op) for name in op.input_arg_names}
    saved: set[str] = set()
    for op in block.ops if read else ():
        for slot, names in op.outputs.items():
            declared = op.definition.output(slot)
            if declared is not None and declared.intermediate:
                saved.update(names)
    return saved & read


def free_inputs(block: Block) -> set[str]:
    """Return the variables that depend on no other (fed or filled) and through which gradients may flow."""
    written = {name for op in block.ops if op.input_arg_names for name in op.output_arg_names}
    names = set()
    for name, variable in block.vars.items():
        is_frozen = variable.stop_gradient or (isinstance(variable, Parameter) and not variable.trainable)
        if name not in written and not is_frozen and variable.spec is not None and is_float(variable.spec.dtype):
            names.add(name)
    return names


def forward_part(block: Block, targets: Sequence[str]) -> list[Operator]:
    """Return the operators that the targets depend on, in order."""
    needed = set(targets)
    operators = []
    for op in reversed(block.ops):
        if needed.isdisjoint(op.output_arg_names):
            continue
        operators.append(op)
        needed.update(op.input_arg_names)
    return operators[::-1]
