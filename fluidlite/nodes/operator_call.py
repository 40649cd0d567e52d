"""Run single operators of the registry eagerly on tensors of a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fluidlite import unique_name
from fluidlite.base.errors import NodeError
from fluidlite.base.fork import is_held
from fluidlite.base.lru_cache import LRUCache
from fluidlite.compiler.policy import policy
from fluidlite.compiler.selection.choice_cache import registry_versions
from fluidlite.memory.sharing import turn
from fluidlite.nodes.devices import Device
from fluidlite.nodes.routine import Routine
from fluidlite.nodes.tensor import Tensor
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import get_context
from fluidlite.program.program import Program, program_guard
from fluidlite.program.registry import ops
from fluidlite.tensor.tensor import Tensor as PlacedTensor
from fluidlite.tensor.tensor_spec import Spec
from fluidlite.tensor.transfer import transfer, uses

MAX_OPERATOR_CALLS = 1024  # entries of each cache of routines
_routines: LRUCache[tuple[Routine, list[str]]] = LRUCache(MAX_OPERATOR_CALLS, "operators run at once", 16 << 20)
Slots = Mapping[str, Sequence[PlacedTensor]]


def run_operator(
    type: str,
    inputs: Slots,
    attrs: Mapping[str, Any] | None,
    dev: Device,
    outputs: Slots | None = None,
) -> dict[str, list[Tensor]]:
    """Run an operator of the registry on tensors of a device's memory.

    Parameters
    ----------
    type : str
        An operator's type; ``fluid.op_proto(type)`` shows its slots and attributes.
    inputs : mapping of slot to tensors
    attrs : mapping
    dev : Device
        The device of the outputs.
    outputs : mapping of slot to tensors, optional
        Tensors that outputs are written to, such as the parameter of an update; other outputs are allocated.

    Returns
    -------
    dict of slot to list of Tensor

    Raises
    ------
    FluidError
        If the operator refuses its arguments; nothing was written.
    """
    place = dev.known_place()
    names: list[tuple[str, int]] = [(slot, len(tensors)) for slot, tensors in inputs.items()]
    operands = [tensor for tensors in inputs.values() for tensor in tensors]
    specs = tuple(tensor._required_spec() for tensor in operands)
    canonical = tuple(sorted((attrs or {}).items()))
    canonical = tuple((name, tuple(v) if isinstance(v, list) else v) for name, v in canonical)
    exact = repr(canonical)  # 0.0 equals -0.0, and True 1
    key = (type, tuple(names), specs, canonical, exact, place, registry_versions(), policy())
    routine, slots = _routines.get(key, lambda: _routine(type, names, specs, dict(attrs or {}), dev))
    context = get_context(place)
    written = [tensor for tensors in (outputs or {}).values() for tensor in tensors]
    with turn((context,), lambda: _memory_uses(context, operands, written)), context.raw.activate():
        results = routine.run(context, operands, [dev] * len(slots))
    result = {slot: [tensor] for slot, tensor in zip(slots, results, strict=True)}
    for slot, tensors in (outputs or {}).items():
        if slot not in result:
            raise NodeError(f"operator {type} makes no {slot}; it makes {', '.join(result)}")
        for output, target in zip(result[slot], tensors, strict=True):
            _write(output, target, context)
        result[slot] = list(tensors)  # type: ignore[arg-type]
    return result


def _memory_uses(context: Context, read: Sequence[PlacedTensor], written: Sequence[PlacedTensor]) -> Any:
    for tensor in read:
        yield from uses(context, tensor)
    for tensor in written:
        yield from uses(context, None, tensor)


def _write(source: PlacedTensor, target: PlacedTensor, context: Context) -> None:
    if source.spec is not None and target.spec is not None and source.spec.with_(lod=()) != target.spec.with_(lod=()):
        raise NodeError(f"an output is {source.spec!r}; expected {target.spec!r}, that of what it is written to")
    is_same_memory = source.allocation is target.allocation and source.byte_offset == target.byte_offset
    if not is_same_memory:
        transfer(source, context, target)
    target.wrote()


def _routine(
    type: str, names: Sequence[tuple[str, int]], specs: Sequence[Spec], attrs: Mapping[str, Any], dev: Device
) -> tuple[Routine, list[str]]:
    definition = ops.get(type)
    program = Program()
    with unique_name.guard(), program_guard(program, Program()):
        block = program.global_block()
        feeds: dict[str, Spec] = {}
        slots: dict[str, list[str]] = {}
        remaining_specs = iter(specs)
        for slot, count in names:
            for at in range(count):
                name = f"{slot}.{at}"
                feeds[name] = spec = next(remaining_specs)
                block.create_var(name, spec.dims, spec.dtype, is_data=True)
                slots.setdefault(slot, []).append(name)
        outs = {
            slot.name: block.create_temporary(stop_gradient=True)
            for slot in definition.outputs
            if not slot.dispensable or slot.intermediate or slot.name in definition.may_alias
        }
        block.append_op(type, slots, outs, attrs)
    return Routine(program, dev.known_place(), feeds, [v.name for v in outs.values()]), list(outs)


# Used by nodes ---------------------------------------------------------------------------------------

_sums: LRUCache[Routine] = LRUCache(MAX_OPERATOR_CALLS, "sums of gradients", 16 << 20)


def filled_tensor(dev: Device, spec: Spec, value: float) -> Tensor:
    attrs = {"shape": list(spec.dims), "value": value, "dtype": spec.dtype}
    (tensor,) = run_operator("fill_constant", {}, attrs, dev)["Out"]
    return tensor


def total(dev: Device, parts: Sequence[PlacedTensor]) -> Tensor:
    """The sum of tensors of equal dims; also inside a run that holds the lock of the context."""
    place = dev.known_place()
    context = get_context(place)
    if not is_held(context.lock):
        (tensor,) = run_operator("sum", {"X": parts}, None, dev)["Out"]
        return tensor
    return sum_of(dev, parts[0]._required_spec(), len(parts)).run(context, parts, (dev,))[0]


def sum_of(dev: Device, spec: Spec, count: int) -> Routine:
    """The routine that adds ``count`` tensors of equal metadata."""
    key = spec, count, id(dev.known_place()), registry_versions(), policy()
    return _sums.get(key, lambda: _routine("sum", [("X", count)], (spec,) * count, {}, dev)[0])
