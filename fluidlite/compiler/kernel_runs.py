"""Prepared kernels, and what each run of one needs: the arrays that it returns, random words, other layouts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from sys import getrefcount
from typing import Any

from fluidlite.base.errors import DeviceError
from fluidlite.base.fork import first_in_child
from fluidlite.compiler.planning.plan import Launch, ReadyKernel
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

first_in_child(_draw_seed)  # workers that are forks of one process draw numbers of their own

NO_RANDOM = (0, 0, 0, 0)


def relaid(tensor: Tensor, spec: Spec) -> Tensor:
    """The same bytes under the metadata that a kernel computes with."""
    shared = Tensor()
    shared.share_data_with(tensor)
    shared.spec, shared._array = spec, None
    return shared


def see_as_plain(outputs: list[Tensor], call: Call) -> None:
    """Give outputs the metadata that a kernel computes with, while it runs."""
    specs = [spec for group in call.outs.values() for spec in group]
    for tensor, spec in zip(outputs, specs, strict=True):
        tensor.spec, tensor._array = spec, None


def prepare_step(step: Launch, context: Context) -> ReadyKernel:
    """Prepare the kernel of a step for a context, and keep it with the step."""
    kernel = prepared(step.choice, step.call, context)
    for other in [known for known in list(step.runs) if known.closed]:
        step.runs.pop(other, None)
    space = Spec.of((kernel.workspace,), "uint8") if kernel.workspace else None
    ready = step.runs[context] = ReadyKernel(kernel.run, space, kernel)
    return ready


def prepared(choice: Choice, call: Call, context: Context) -> Prepared:
    """The prepared kernel of a call: one bounded cache a context, shared by all that run kernels."""

    def make() -> Prepared:
        with context.guarded(f"preparing {call.op.type}"):
            return choice.prepare(call, context)

    found: Prepared = context.prepared.get((call, choice.kernel, choice.capability, choice.part_choices), make)
    return found


def run_kernel(run: Run, context: Context, io: IO, outputs: Sequence[Tensor]) -> None:
    """Run a prepared kernel, and take the arrays that it returns."""
    result = run(context, io)
    if result is not None:
        take_arrays(result, outputs, context)


def take_arrays(result: Any, outputs: Sequence[Tensor], context: Context) -> None:
    """Take arrays that a kernel returned: adopt them, or copy where memory is already bound."""
    arrays = result if isinstance(result, (tuple, list)) else (result,)
    if len(arrays) != len(outputs):
        raise DeviceError(f"the kernel returned {len(arrays)} arrays for {len(outputs)} outputs")
    alone = _FRESH[isinstance(result, (tuple, list))]
    fresh = [count <= alone for count in _references(result)]  # one that a kernel keeps (a table) is copied
    for tensor, array, mine in zip(outputs, arrays, fresh, strict=True):
        spec = tensor.spec
        if array is None or spec is None:
            continue
        if not spec.known and spec.fits(Spec.of(array.shape, spec.dtype)):  # a dynamic output
            spec = tensor.spec = spec.with_(dims=tuple(array.shape))
        if tuple(array.shape) != spec.dims:
            raise DeviceError(f"the kernel returned dims {list(array.shape)}, inference found {list(spec.dims)}")
        if str(array.dtype).rpartition(".")[2] != spec.dtype:
            raise DeviceError(f"the kernel returned {array.dtype}, inference found {spec.dtype}")
        if tensor.allocation is None:
            adopted = transfer.adopt(array, spec, context) if mine else None
            if adopted is not None:
                tensor.allocation = adopted.allocation
                continue
            tensor.allocate(context)
        tensor.native()[...] = array


def _references(result: Any) -> list[int]:
    arrays = result if isinstance(result, (tuple, list)) else (result,)
    return [getrefcount(array) for array in arrays]


def _fresh_counts() -> tuple[int, int]:
    """References to an array that a kernel has just made, alone and in a tuple, as ``take_arrays`` sees them."""

    def take(result: Any) -> int:
        arrays = result if isinstance(result, (tuple, list)) else (result,)
        count = _references(result)[0]
        del arrays
        return count

    one = object()
    several = (object(),)
    return take(one), take(several)


_FRESH = _fresh_counts()


def random_words(random: tuple[int, int], scope: Scope) -> tuple[int, int, int, int]:
    """Philox words of a run: key (2), run number, stream."""
    seed, _ = random
    key, stream = random_key(random)
    if stream < 0:
        return key & 0xFFFFFFFF, (key >> 32) & 0xFFFFFFFF, 0, 0
    key, number, stream = scope.draw(key, stream, seed)
    return key & 0xFFFFFFFF, (key >> 32) & 0xFFFFFFFF, number & 0xFFFFFFFF, stream


def random_key(random: tuple[int, int]) -> tuple[int, int]:
    """Key and stream of an operator's random numbers; a negative stream: the same numbers at each run."""
    seed, stream = random
    return (seed if stream < 0 else seed or _process_seed), stream
