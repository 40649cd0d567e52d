"""What written programs call that is no NumPy: kernels of libraries, native kernels, functions of the host's device.

A written program runs on the host's place, on NumPy arrays; each of these prepares or compiles what the computation
itself ran.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from fluidlite.base.errors import OutOfRangeError, ProgramError
from fluidlite.codegen.epilogue import ACCUMULATE, product_with
from fluidlite.compiler.kernel_runs import prepared, run_kernel
from fluidlite.compiler.selection.choice import Choice
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.device_registry import devices
from fluidlite.program.epilogue import THEN
from fluidlite.program.kernel_io import IO
from fluidlite.program.kernel_registry import kernels
from fluidlite.program.op_call import Call
from fluidlite.program.registry import ops
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Spec
from fluidlite.tensor.transfer import borrow

Array = np.ndarray[Any, Any]
Slots = Mapping[str, Sequence[tuple[Any, ...]]]


def _host() -> Context:
    return get_context(devices.host())


def host_function(name: str) -> Any:
    """A function that the host's device brings, which is faster than NumPy's of that name."""
    return _host().array.extra(name)


def host_context() -> Any:
    """What array calls ask of a context: its namespace, and an error at once where an index is out of range."""
    return SimpleNamespace(xp=np, array=_host().array, check_index=_checked)


def _checked(index: Array, size: int, io: Any) -> Array:
    if ((index < 0) | (index >= size)).any():
        raise OutOfRangeError(f"an index is not in [0, {size})")
    return index


def library(
    kernel: str,
    type: str,
    ins: Slots,
    outs: Slots,
    attrs: Mapping[str, Any],
    training: bool = False,
    accumulate: float | None = None,
) -> Callable[..., None]:
    """Prepare a kernel that a library registered.

    ``kernel``: module and name of the function.
    ``ins``, ``outs``: by slot a list of (dims, dtype[, lod[, numbers]]).
    ``attrs``: those that differ from the defaults.
    ``accumulate``: the kernel adds its product to so many times its last input.
    Returns ``run(*arrays, workspace=None, random=(0, 0, 0, 0))``: inputs, then outputs, which it writes.
    Raises ProgramError if there is no such kernel any more.
    """
    context, op = _host(), ops.get(type)
    found = next((each for each in kernels.of(type) if each.identity == kernel), None)
    if found is None:
        raise ProgramError(f"{type} has no kernel {kernel}: this program was written with another version, or plugin")
    given = {attr.name: attr.default for attr in op.attrs} | dict(attrs)
    if accumulate is not None:
        op = product_with(op, op.outputs[0].name, ACCUMULATE, "Given", ("X",), ("Out",))
        given[THEN + "scale"] = accumulate
    call = Call(op, _specs(ins), _specs(outs), given, context.place, training)
    capability = next((each for each in ("array", "language", "memory") if each in found.places), "")
    run = prepared(Choice("native", context.place, found.library, found, capability), call, context)
    specs = [spec for group in (*call.ins.values(), *call.outs.values()) for spec in group]
    first = len(specs) - sum(map(len, call.outs.values()))

    def launch(*arrays: Array | None, workspace: Array | None = None, random: tuple[int, ...] = (0, 0, 0, 0)) -> None:
        tensors = [_tensor(array, spec, context) for array, spec in zip(arrays, specs, strict=True)]
        space = None if workspace is None else borrow(workspace, Spec.of(workspace.shape, "uint8"), context)
        io = IO(call, tensors, context, 0, random, space)  # type: ignore[arg-type]
        run_kernel(run, context, io, tensors[first:])

    return launch


def _specs(slots: Slots) -> dict[str, tuple[Spec, ...]]:
    found = {}
    for slot, group in slots.items():
        specs = []
        for dims, dtype, *rest in group:
            spec = Spec.of(tuple(dims), dtype, *rest[:1])
            specs.append(spec.with_(value=rest[1]) if len(rest) > 1 else spec)
        found[slot] = tuple(specs)
    return found


def _tensor(array: Array | None, spec: Spec, context: Context) -> Tensor:
    return Tensor.of(spec, context.place) if array is None else borrow(array, spec, context)


def native(path: str | Path, entry: str, parameters: Sequence[str]) -> Callable[..., None]:
    """Compile a written kernel by the host's kernel language.

    Returns ``launch(items, group, *arguments)``: an array, or (array, bytes into it), where the kernel takes a buffer
    and its offset; else numbers.
    """
    context = _host()
    kernel = context.compile(Path(path).read_text(encoding="utf-8"), entry, tuple(parameters))

    def launch(items: int, group: int | None, *arguments: Any) -> None:
        args: list[Any] = []
        for given in arguments:
            array, start = given if isinstance(given, tuple) else (given, 0)
            if isinstance(array, np.ndarray):
                span = borrow(array, Spec.of(array.shape, str(array.dtype)), context).span()
                args += [span.handle, span.offset + start]
            else:
                args.append(given)
        context.launch(kernel, items, args, group)

    return launch


def memory(nbytes: int) -> Array:
    """Bytes that begin where the host's device would begin them."""
    alignment = _host().unit.info.alignment
    raw = np.empty(nbytes + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + nbytes]


def steps(
    functions: Mapping[int, Callable[..., None]],
    counts: Sequence[int],
    states: Sequence[Array],
    inputs: Sequence[Array],
    parameters: Sequence[Array],
    outs: Sequence[Array],
    workspace: Array | None,
    backward: bool = False,
) -> None:
    """Run a step for each run of rows, on the states that the one before it made.

    ``functions``: ``step(*states, *inputs, *parameters, *outs, workspace)``, on so many rows of each, but for the
    parameters.
    ``counts``: the rows of each step.
    ``states``: those with which sequences begin.
    ``inputs``, ``outs``: all rows; of the outs the first ones are the states.
    ``backward``: from the last step to the first.
    """
    begins = [sum(counts[:t]) for t in range(len(counts))]
    now: Sequence[Array] = [x[:0] for x in states]
    for t in reversed(range(len(counts))) if backward else range(len(counts)):
        rows, part = counts[t], slice(begins[t], begins[t] + counts[t])
        begun = [np.concatenate([x[:rows], first[len(x) : rows]]) for x, first in zip(now, states, strict=True)]
        made = [x[part] for x in outs]
        functions[rows](*begun, *(x[part] for x in inputs), *parameters, *made, workspace)
        now = made[: len(states)]
