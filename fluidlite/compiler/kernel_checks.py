"""Checks of kernels while they run: every element of every output is written, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from fluidlite.base.dtypes import ITEMSIZE
from fluidlite.base.errors import KernelError
from fluidlite.compiler.instrumentation import Observation, check_finite, observers, observing
from fluidlite.platform.device_memory import Span
from fluidlite.program.operator import Operator
from fluidlite.tensor import transfer
from fluidlite.tensor.tensor import Tensor

if TYPE_CHECKING:
    from fluidlite.compiler.planning.plan import Launch
    from fluidlite.platform.context import Context

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
AROUND = 256
"""Bytes before and behind an output that a kernel is caught writing, as far as they are the same allocation's."""
_random = np.random.default_rng(0x5EED)


class CheckKernels:
    """An observer that is asked to launch: it fills outputs before with random bytes, and compares inputs after.

    An element is unwritten if it still holds the bytes that it was filled with. A kernel could have computed just
    those; so where one is found, the kernel runs again on the same inputs and outputs filled with the complement.
    What lies around outputs holds its complement while the kernel runs: it may write what was there before.
    """

    def __call__(self, seen: Observation) -> None:
        """Nothing is left to do after the launch."""

    def launch(
        self,
        step: Launch,
        context: Context,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        workspace: Tensor | None,
        run: Callable[[], Any],
    ) -> None:
        """Run a kernel.

        ``inputs``, ``outputs``: as the kernel sees them. Outputs that share memory with an input are not filled.
        ``workspace``: what it may write, too.
        ``run``: launches it, and takes the arrays that it returns.
        Raises KernelError naming the slot, and how much of it is unwritten, or was changed, or beside it.
        """
        here = [(at, t) for at, t in enumerate(inputs) if t.allocation is not None and t.place == context.place]
        fresh = [
            (len(inputs) + at, tensor)
            for at, tensor in enumerate(outputs)
            if _fillable(tensor, context) and not any(_share(tensor, read) for _, read in here)
        ]
        for _, tensor in here:
            transfer.ready(tensor, context)
        before = [_read(tensor, context) for _, tensor in here]
        owners = [tensor.allocation for _, tensor in fresh]
        marks = [_random.integers(0, 256, tensor.span().nbytes, np.uint8) for _, tensor in fresh]
        with _nothing_around(step, inputs, outputs, workspace, context):
            first = _filled_run(fresh, marks, context, run)
        if _late(context):
            return  # an index out of range is raised where the host looks for that; kernels behind it write nothing
        for (at, tensor), value in zip(here, before, strict=True):
            if not any(_share(tensor, out) for out in outputs):
                _see_input(step, at, tensor, value, context)
        unwritten = [
            _equal(found, mark, tensor) if tensor.allocation is owner else np.zeros(0, bool)
            for (_, tensor), found, mark, owner in zip(fresh, first, marks, owners, strict=True)
        ]
        if not any(map(np.any, unwritten)):
            return
        for (_, tensor), value in zip(here, before, strict=True):
            if any(_share(tensor, out) for out in outputs):
                context.copy_in(tensor.span(), value.data)
        others = [~mark for mark in marks]
        second = _filled_run(fresh, others, context, run)
        for (at, tensor), found, mark, same in zip(fresh, second, others, unwritten, strict=True):
            if same.size and (left := int(np.count_nonzero(same & _equal(found, mark, tensor)))):
                how = "nothing" if left == same.size else f"{same.size - left:,} of {same.size:,} elements"
                raise KernelError(
                    f"its kernel wrote {how} to output {_slot(step, at)} {list(tensor.dims)}"
                    "\n  Do: write every element; what is left holds what the memory held before"
                )


def _see_input(step: Launch, at: int, tensor: Tensor, before: Bytes, context: Context) -> None:
    changed = int(np.count_nonzero(~_equal(_read(tensor, context), before, tensor)))
    if changed:
        context.copy_in(tensor.span(), before.data)  # a parameter is what it was
        raise KernelError(
            f"its kernel changed {changed:,} elements of input {_slot(step, at)} {list(tensor.dims)}"
            "\n  Do: write to outputs only; that an output may take an input's memory is said by the operator "
            "(may_alias) and by the kernel (inplace=True)"
        )


@contextmanager
def _nothing_around(
    step: Launch, inputs: Sequence[Tensor], outputs: Sequence[Tensor], workspace: Tensor | None, context: Context
) -> Iterator[None]:
    """Complement the bytes around outputs and the workspace, see that a launch leaves them so, and put them back."""
    written = [*outputs, *((workspace,) if workspace is not None else ())]
    owned = [each for each in (*inputs, *written) if each.allocation is not None and each.place == context.place]
    gaps: list[tuple[str, Span, Bytes]] = []
    for position, tensor in enumerate(written, len(inputs)):
        if tensor.allocation is not None and tensor.place == context.place:
            what = "its workspace" if tensor is workspace else f"output {_slot(step, position)} {list(tensor.dims)}"
            here = tensor.span()
            for span in _around(tensor, owned):
                side = "before" if span.offset < here.offset else "behind"
                gaps.append((f"{side} the {here.nbytes:,} of {what}", span, transfer.bytes_at(span, context)))
    for _, span, value in gaps:
        context.copy_in(span, (~value).data)
    found: list[Bytes] = []
    try:
        yield
        found = [transfer.bytes_at(span, context) for _, span, _ in gaps]
    finally:
        for _, span, value in gaps:
            context.copy_in(span, value.data)
    for (where, _, value), after in zip(gaps, found, strict=True):
        if changed := int(np.count_nonzero(after != ~value)):
            raise KernelError(
                f"its kernel wrote {changed:,} bytes {where}"
                "\n  Do: write the bytes of io.span(slot) only; they may be part of a larger handle"
            )


def _around(tensor: Tensor, owned: Sequence[Tensor]) -> Iterator[Span]:
    """The bytes of a tensor's allocation before and behind it, up to the next that the launch may touch."""
    allocation = tensor.allocation
    assert allocation is not None
    block, here = allocation.live_block(), tensor.span()
    whole = allocation.lasting and allocation.offset == block.offset  # then what pads the block is nobody's
    begin = allocation.offset
    end = begin + max(allocation.nbytes, block.size if whole else 0)
    spans = [each.span() for each in owned if each.allocation is not None and each.allocation.live_block() is block]
    first = max((s.offset + s.nbytes for s in spans if s.offset < here.offset), default=begin)
    last = min((s.offset for s in spans if s.offset + s.nbytes > here.offset + here.nbytes), default=end)
    low, high = max(begin, first, here.offset - AROUND), here.offset + here.nbytes
    if low < here.offset:
        yield Span(here.handle, low, here.offset - low)
    if high < (top := min(end, last, high + AROUND)):
        yield Span(here.handle, high, top - high)


def kernel_check() -> CheckKernels | None:
    """The check that this thread's runs are to make, or None."""
    return next((each for each in observers() if isinstance(each, CheckKernels)), None)


def one_by_one() -> bool:
    """Whether an observer wants operators to run one by one, as the program is written."""
    return any(not isinstance(each, CheckKernels) for each in observers())


@contextmanager
def debug(
    check_nan: bool = False,
    on_op: Callable[[Operator, Observation], Any] | None = None,
    interpret: bool = False,
    check_kernels: bool | None = None,
) -> Iterator[None]:
    """Watch the runs of this thread. All but ``check_kernels`` runs operators one by one, as the program is written.

    Parameters
    ----------
    check_nan : bool
        Raise NonFiniteError at the first operator that writes NaN or Inf.
    on_op : callable
        ``on_op(op, io)`` after each operator; ``io.inputs`` and ``io.outputs`` are tensors by name.
    interpret : bool
        Run operators one by one though nothing else is asked for: whether passes or bound memory are to blame.
    check_kernels : bool, optional
        Raise KernelError at the first kernel that leaves an element of an output unwritten, or writes anything else.
        Default: if something else is asked for. Alone, it checks programs as they run without it: those of a compiled
        executor with passes and bound memory. Each launch then copies its inputs and outputs to the host.
    """
    interpreted = check_nan or on_op is not None or interpret

    def observe(seen: Observation) -> None:
        if on_op is not None:
            on_op(seen.op, seen)
        if check_nan:
            check_finite(seen)

    with ExitStack() as stack:
        if interpreted:
            stack.enter_context(observing(observe))
        if check_kernels or (check_kernels is None and interpreted):
            stack.enter_context(observing(CheckKernels()))
        yield


def _filled_run(
    outputs: Sequence[tuple[int, Tensor]], marks: Sequence[Bytes], context: Context, run: Callable[[], Any]
) -> list[Bytes]:
    for (_, tensor), mark in zip(outputs, marks, strict=True):
        context.copy_in(tensor.span(), mark.data)
    run()
    return [_read(tensor, context) for _, tensor in outputs]


def _late(context: Context) -> bool:
    """Whether a kernel has recorded a deferred error."""
    word = context.begin_status()
    context.wait()
    return word is not None and bool(word[0])


def _fillable(tensor: Tensor, context: Context) -> bool:
    """Whether an output has memory of its own to fill; one whose dims the kernel finds has none yet."""
    spec = tensor.spec
    if spec is None or spec.kind != "dense" or spec.size <= 0 or spec.layout.opaque or tensor._strides is not None:
        return False
    if tensor.allocation is None:
        tensor.allocate(context)
    return True


def _share(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors lie in common bytes."""
    if one.allocation is None or other.allocation is None:
        return False
    if one.allocation.live_block() is not other.allocation.live_block():
        return False
    a, b = one.span(), other.span()
    return a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes


def _read(tensor: Tensor, context: Context) -> Bytes:
    if tensor.allocation is None:
        return np.zeros(0, np.uint8)
    return transfer.bytes_at(tensor.span(), context)


def _equal(one: Bytes, other: Bytes, tensor: Tensor) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Element by element, whether all bytes are equal."""
    if one.size != other.size:
        return np.zeros(0, bool)
    width = ITEMSIZE[tensor.dtype]
    same: np.ndarray[Any, np.dtype[np.bool_]] = (one == other).reshape(-1, width).all(axis=1)
    return same


def _slot(step: Launch, position: int) -> str:
    """The slot of the operator at a position among its inputs and outputs."""
    slot = max((start, slot) for slot, start in step.call.index.items() if start <= position)[1]
    return slot if step.call.count(slot) == 1 else f"{slot}[{position - step.call.index[slot]}]"
