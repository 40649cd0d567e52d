"""The runtime of emitted programs: kernels of libraries, native kernels, and functions of the host's device.

An emitted program runs on the host, on NumPy arrays. These functions prepare or compile the kernels that the executable
runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from fluidlite.base.errors import OutOfRangeError, ProgramError
from fluidlite.codegen.epilogue import ACCUMULATE, product_with
from fluidlite.compiler.kernel_runs import prepare_kernel, run_kernel
from fluidlite.compiler.selection.choice import Choice
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import get_context
from fluidlite.platform.device_registry import devices
from fluidlite.program.epilogue import ELEMENTWISE_PREFIX
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
    """A function of the host's device that replaces NumPy's function of that name."""
    return _host().array.extra(name)


def host_context() -> Any:
    """The context of array calls: the NumPy namespace, and index checks that raise at once."""
    return SimpleNamespace(xp=np, array=_host().array, check_index=_check_index)


def _check_index(index: Array, size: int, io: Any) -> Array:
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
    """Prepare a registered kernel of a library.

    ``kernel``: module and name of the function.
    ``ins``, ``outs``: by slot a list of (dims, dtype[, lod[, numbers]]).
    ``attrs``: the attributes that differ from their defaults.
    ``accumulate``: the factor of the last input, to which the kernel adds its matmul; None: a plain matmul.
    Returns ``run(*arrays, workspace=None, random=(0, 0, 0, 0))``: inputs, then outputs, which it writes.
    Raises ProgramError if the kernel is not registered.
    """
    context, op = _host(), ops.get(type)
    registered = next((each for each in kernels.of(type) if each.identity == kernel), None)
    if registered is None:
        raise ProgramError(f"{type} has no kernel {kernel}: this program was written with another version, or plugin")
    all_attrs = {attr.name: attr.default for attr in op.attrs} | dict(attrs)
    if accumulate is not None:
        op = product_with(op, op.outputs[0].name, ACCUMULATE, "Product", ("X",), ("Out",))
        all_attrs[ELEMENTWISE_PREFIX + "scale"] = accumulate
    call = Call(op, _specs(ins), _specs(outs), all_attrs, context.place, training)
    capability = next((each for each in ("array", "language", "memory") if each in registered.places), "")
    run = prepare_kernel(Choice("native", context.place, registered.library, registered, capability), call, context)
    specs = [spec for group in (*call.ins.values(), *call.outs.values()) for spec in group]
    first_output = len(specs) - sum(map(len, call.outs.values()))

    def launch(*arrays: Array | None, workspace: Array | None = None, random: tuple[int, ...] = (0, 0, 0, 0)) -> None:
        tensors = [_tensor(array, spec, context) for array, spec in zip(arrays, specs, strict=True)]
        space = None if workspace is None else borrow(workspace, Spec.of(workspace.shape, "uint8"), context)
        io = IO(call, tensors, context, 0, random, space)  # type: ignore[arg-type]
        run_kernel(run, context, io, tensors[first_output:])

    return launch


def _specs(slots: Slots) -> dict[str, tuple[Spec, ...]]:
    specs_by_slot = {}
    for slot, group in slots.items():
        specs = []
        for dims, dtype, *rest in group:
            spec = Spec.of(tuple(dims), dtype, *rest[:1])
            specs.append(spec.with_(value=rest[1]) if len(rest) > 1 else spec)
        specs_by_slot[slot] = tuple(specs)
    return specs_by_slot


def _tensor(array: Array | None, spec: Spec, context: Context) -> Tensor:
    return Tensor.of(spec, context.place) if array is None else borrow(array, spec, context)


def native(path: str | Path, entry: str, parameters: Sequence[str]) -> Callable[..., None]:
    """Compile a kernel text in the host's kernel language.

    Returns ``launch(items, group, *arguments)``: for a buffer and its offset an array, or (array, offset in bytes);
    otherwise numbers.
    """
    context = _host()
    kernel = context.compile(Path(path).read_text(encoding="utf-8"), entry, tuple(parameters))

    def launch(items: int, group: int | None, *arguments: Any) -> None:
        args: list[Any] = []
        for argument in arguments:
            array, start = argument if isinstance(argument, tuple) else (argument, 0)
            if isinstance(array, np.ndarray):
                span = borrow(array, Spec.of(array.shape, str(array.dtype)), context).span()
                args += [span.handle, span.offset + start]
            else:
                args.append(argument)
        context.launch(kernel, items, args, group)

    return launch


def memory(nbytes: int) -> Array:
    """Allocate bytes with the alignment of the host's device."""
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
    """Run the steps of a recurrent operator on consecutive groups of rows, each on the states of the previous step.

    ``functions``: by number of rows, ``step(*states, *inputs, *parameters, *outs, workspace)``; all arguments but the
    parameters have that number of rows.
    ``counts``: the rows of each step.
    ``states``: the initial states of the sequences.
    ``inputs``, ``outs``: all rows; the first outs are the states.
    ``backward``: run from the last step to the first.
    """
    begins = [sum(counts[:t]) for t in range(len(counts))]
    current: Sequence[Array] = [x[:0] for x in states]
    for t in reversed(range(len(counts))) if backward else range(len(counts)):
        rows, step_rows = counts[t], slice(begins[t], begins[t] + counts[t])
        pairs = zip(current, states, strict=True)
        step_states = [np.concatenate([x[:rows], first[len(x) : rows]]) for x, first in pairs]
        step_outs = [x[step_rows] for x in outs]
        functions[rows](*step_states, *(x[step_rows] for x in inputs), *parameters, *step_outs, workspace)
        current = step_outs[: len(states)]
