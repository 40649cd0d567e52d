"""Runs of prepared kernels: their cache, returned arrays, random words, and tensors with other specs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from sys import getrefcount
from typing import Any

from fluidlite.base.errors import DeviceError
from fluidlite.base.fork import first_in_child
from fluidlite.compiler.planning.plan import Launch
from fluidlite.compiler.selection.choice import Choice
from fluidlite.platform.context import Context
from fluidlite.program.kernel_io import IO
from fluidlite.program.op_call import Call
from fluidlite.program.prepared import Prepared, Run
from fluidlite.program.scope import Scope
from fluidlite.tensor import transfer
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Spec

_process_seed = 0


def _draw_seed() -> None:
    global _process_seed
    _process_seed = int.from_bytes(os.urandom(8)) | 1


_draw_seed()

first_in_child(_draw_seed)  # forked workers draw different numbers

NO_RANDOM = (0, 0, 0, 0)
"""Random words of an operator without random numbers."""


def with_spec(tensor: Tensor, spec: Spec) -> Tensor:
    """Return a tensor with the memory of ``tensor`` and another spec, with which a kernel computes."""
    shared = Tensor()
    shared.share_data_with(tensor)
    shared.spec, shared._array = spec, None
    return shared


def set_compute_specs(outputs: list[Tensor], call: Call) -> None:
    """Set the specs of outputs to those that the kernel computes with, during its run."""
    specs = [spec for group in call.outs.values() for spec in group]
    for tensor, spec in zip(outputs, specs, strict=True):
        tensor.spec, tensor._array = spec, None


def prepare_step(step: Launch, context: Context) -> Prepared:
    """Prepare the kernel of a step for a context, and store it in the step."""
    kernel = prepare_kernel(step.choice, step.call, context)
    for closed_context in [key for key in list(step.runs) if key.closed]:
        step.runs.pop(closed_context, None)
    step.runs[context] = kernel
    return kernel


def prepare_kernel(choice: Choice, call: Call, context: Context) -> Prepared:
    """Return the prepared kernel of a call, from the LRU cache of the context."""

    def make() -> Prepared:
        with context.guarded(f"preparing {call.op.type}"):
            return choice.prepare(call, context)

    kernel: Prepared = context.prepared.get((call, choice.kernel, choice.capability, choice.part_choices), make)
    return kernel


def run_kernel(run: Run, context: Context, io: IO, outputs: Sequence[Tensor]) -> None:
    """Run a prepared kernel, and store the arrays that it returns."""
    result = run(context, io)
    if result is not None:
        take_arrays(result, outputs, context)


def take_arrays(result: Any, outputs: Sequence[Tensor], context: Context) -> None:
    """Store arrays that a kernel returned: adopt them, or copy them into outputs that have memory."""
    arrays = result if isinstance(result, (tuple, list)) else (result,)
    if len(arrays) != len(outputs):
        raise DeviceError(f"the kernel returned {len(arrays)} arrays for {len(outputs)} outputs")
    own_references = _OWN_REFERENCES[isinstance(result, (tuple, list))]
    owned = [count <= own_references for count in _references(result)]  # arrays with other references are copied
    for tensor, array, is_owned in zip(outputs, arrays, owned, strict=True):
        spec = tensor.spec
        if array is None or spec is None:
            continue
        if not spec.is_static and spec.fits(Spec.of(array.shape, spec.dtype)):  # a dynamic output
            spec = tensor.spec = spec.with_(dims=tuple(array.shape))
        if tuple(array.shape) != spec.dims:
            raise DeviceError(f"the kernel returned dims {list(array.shape)}, inference found {list(spec.dims)}")
        if str(array.dtype).rpartition(".")[2] != spec.dtype:
            raise DeviceError(f"the kernel returned {array.dtype}, inference found {spec.dtype}")
        if tensor.allocation is None:
            adopted = transfer.adopt(array, spec, context) if is_owned else None
            if adopted is not None:
                tensor.allocation = adopted.allocation
                continue
            tensor.allocate(context)
        tensor.native()[...] = array


def _references(result: Any) -> list[int]:
    arrays = result if isinstance(result, (tuple, list)) else (result,)
    return [getrefcount(array) for array in arrays]


def _count_own_references() -> tuple[int, int]:
    """Return the reference counts in ``take_arrays`` of a new array, returned alone and in a tuple."""

    def take(result: Any) -> int:
        arrays = result if isinstance(result, (tuple, list)) else (result,)
        count = _references(result)[0]
        del arrays
        return count

    single = object()
    in_tuple = (object(),)
    return take(single), take(in_tuple)


_OWN_REFERENCES = _count_own_references()


def random_words(random: tuple[int, int], scope: Scope) -> tuple[int, int, int, int]:
    """Return the Philox words of a run: key (2 words), run number, stream."""
    seed, _ = random
    key, stream = random_key(random)
    if stream < 0:
        return key & 0xFFFFFFFF, (key >> 32) & 0xFFFFFFFF, 0, 0
    key, number, stream = scope.draw(key, stream, seed)
    return key & 0xFFFFFFFF, (key >> 32) & 0xFFFFFFFF, number & 0xFFFFFFFF, stream


def random_key(random: tuple[int, int]) -> tuple[int, int]:
    """Return key and stream of an operator's random numbers; with a negative stream, each run has equal numbers."""
    seed, stream = random
    return (seed if stream < 0 else seed or _process_seed), stream
