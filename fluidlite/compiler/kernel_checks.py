"""Run-time checks of kernels: they write every element of every output, and nothing else."""

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
MARGIN_BYTES = 256
"""Maximum bytes of the margin on each side of an output, inside its allocation, where stray writes are detected."""
_generator = np.random.default_rng(0x5EED)


class CheckKernels:
    """An observer that performs launches: it fills outputs with random bytes before, and compares inputs after.

    An element is unwritten if it still holds its fill bytes. A kernel could have computed the same bytes, so if such an
    element exists, the kernel runs again on the same inputs, with outputs filled with the complement.
    Margins around outputs hold their complement during the launch: a stray write could store their old content.
    """

    def __call__(self, observation: Observation) -> None:
        """Do nothing: the checks are done in :meth:`launch`."""

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

        ``inputs``, ``outputs``: operands of the kernel. Outputs that share memory with an input are not filled.
        ``workspace``: the workspace, which it may write.
        ``run``: launches the kernel and stores the arrays that it returns.
        Raises KernelError with the slot and the number of elements that are unwritten or changed, or of stray bytes.
        """
        local_inputs = [(at, t) for at, t in enumerate(inputs) if t.allocation is not None and t.place == context.place]
        filled_outputs = [
            (len(inputs) + at, tensor)
            for at, tensor in enumerate(outputs)
            if _can_fill(tensor, context) and not any(_overlap(tensor, read) for _, read in local_inputs)
        ]
        for _, tensor in local_inputs:
            transfer.order_after_writes(tensor, context)
        input_contents = [_read(tensor, context) for _, tensor in local_inputs]
        owners = [tensor.allocation for _, tensor in filled_outputs]
        patterns = [_generator.integers(0, 256, tensor.span().nbytes, np.uint8) for _, tensor in filled_outputs]
        with _checked_margins(step, inputs, outputs, workspace, context):
            first = _filled_run(filled_outputs, patterns, context, run)
        if _has_deferred_error(context):
            return  # raised when the host reads the status word; later kernels write nothing
        for (at, tensor), value in zip(local_inputs, input_contents, strict=True):
            if not any(_overlap(tensor, out) for out in outputs):
                _check_input(step, at, tensor, value, context)
        unwritten = [
            _equal(content, pattern, tensor) if tensor.allocation is owner else np.zeros(0, bool)
            for (_, tensor), content, pattern, owner in zip(filled_outputs, first, patterns, owners, strict=True)
        ]
        if not any(map(np.any, unwritten)):
            return
        for (_, tensor), value in zip(local_inputs, input_contents, strict=True):
            if any(_overlap(tensor, out) for out in outputs):
                context.copy_in(tensor.span(), value.data)
        complements = [~pattern for pattern in patterns]
        second = _filled_run(filled_outputs, complements, context, run)
        for (at, tensor), content, pattern, same in zip(filled_outputs, second, complements, unwritten, strict=True):
            if same.size and (count := int(np.count_nonzero(same & _equal(content, pattern, tensor)))):
                written_text = "nothing" if count == same.size else f"{same.size - count:,} of {same.size:,} elements"
                raise KernelError(
                    f"its kernel wrote {written_text} to output {_slot(step, at)} {list(tensor.dims)}"
                    "\n  Do: write every element; what is left holds what the memory held before"
                )


def _check_input(step: Launch, at: int, tensor: Tensor, content: Bytes, context: Context) -> None:
    changed = int(np.count_nonzero(~_equal(_read(tensor, context), content, tensor)))
    if changed:
        context.copy_in(tensor.span(), content.data)  # restore the parameter
        raise KernelError(
            f"its kernel changed {changed:,} elements of input {_slot(step, at)} {list(tensor.dims)}"
            "\n  Do: write to outputs only; that an output may take an input's memory is said by the operator "
            "(may_alias) and by the kernel (inplace=True)"
        )


@contextmanager
def _checked_margins(
    step: Launch, inputs: Sequence[Tensor], outputs: Sequence[Tensor], workspace: Tensor | None, context: Context
) -> Iterator[None]:
    """Complement the margins of outputs and workspace, check that a launch does not write them, and restore them."""
    writable = [*outputs, *((workspace,) if workspace is not None else ())]
    operands = [each for each in (*inputs, *writable) if each.allocation is not None and each.place == context.place]
    gaps: list[tuple[str, Span, Bytes]] = []
    for position, tensor in enumerate(writable, len(inputs)):
        if tensor.allocation is not None and tensor.place == context.place:
            name = "its workspace" if tensor is workspace else f"output {_slot(step, position)} {list(tensor.dims)}"
            tensor_span = tensor.span()
            for span in _margins(tensor, operands):
                side = "before" if span.offset < tensor_span.offset else "behind"
                gaps.append((f"{side} the {tensor_span.nbytes:,} of {name}", span, transfer.bytes_at(span, context)))
    for _, span, value in gaps:
        context.copy_in(span, (~value).data)
    contents: list[Bytes] = []
    try:
        yield
        contents = [transfer.bytes_at(span, context) for _, span, _ in gaps]
    finally:
        for _, span, value in gaps:
            context.copy_in(span, value.data)
    for (location, _, value), after in zip(gaps, contents, strict=True):
        if changed := int(np.count_nonzero(after != ~value)):
            raise KernelError(
                f"its kernel wrote {changed:,} bytes {location}"
                "\n  Do: write the bytes of io.span(slot) only; they may be part of a larger handle"
            )


def _margins(tensor: Tensor, operands: Sequence[Tensor]) -> Iterator[Span]:
    """Yield the margins of a tensor in its allocation, up to the next operand of the launch."""
    allocation = tensor.allocation
    assert allocation is not None
    block, tensor_span = allocation.live_block(), tensor.span()
    whole = allocation.is_permanent and allocation.offset == block.offset  # the padding of the block is then unused
    begin = allocation.offset
    end = begin + max(allocation.nbytes, block.size if whole else 0)
    spans = [each.span() for each in operands if each.allocation is not None and each.allocation.live_block() is block]
    first = max((s.offset + s.nbytes for s in spans if s.offset < tensor_span.offset), default=begin)
    last = min((s.offset for s in spans if s.offset + s.nbytes > tensor_span.offset + tensor_span.nbytes), default=end)
    low, high = max(begin, first, tensor_span.offset - MARGIN_BYTES), tensor_span.offset + tensor_span.nbytes
    if low < tensor_span.offset:
        yield Span(tensor_span.handle, low, tensor_span.offset - low)
    if high < (top := min(end, last, high + MARGIN_BYTES)):
        yield Span(tensor_span.handle, high, top - high)


def kernel_check() -> CheckKernels | None:
    """Return the kernel check of this thread's runs, or None."""
    return next((each for each in observers() if isinstance(each, CheckKernels)), None)


def needs_interpreter() -> bool:
    """Whether an observer needs operators to run one by one, without passes."""
    return any(not isinstance(each, CheckKernels) for each in observers())


@contextmanager
def debug(
    check_nan: bool = False,
    on_op: Callable[[Operator, Observation], Any] | None = None,
    interpret: bool = False,
    check_kernels: bool | None = None,
) -> Iterator[None]:
    """Observe the runs of this thread. Except for ``check_kernels``, operators run one by one, without passes.

    Parameters
    ----------
    check_nan : bool
        Raise NonFiniteError at the first operator that writes NaN or Inf.
    on_op : callable
        ``on_op(op, io)`` after each operator; ``io.inputs`` and ``io.outputs`` are tensors by name.
    interpret : bool
        Run operators one by one even without other options, to see whether passes or memory plans cause a fault.
    check_kernels : bool, optional
        Raise KernelError at the first kernel that leaves an element of an output unwritten, or writes anything else.
        Default: True if another option is set. Without other options it checks compiled programs, with passes and
        memory plans. Each launch copies its inputs and outputs to the host.
    """
    is_interpreted = check_nan or on_op is not None or interpret

    def observe(observation: Observation) -> None:
        if on_op is not None:
            on_op(observation.op, observation)
        if check_nan:
            check_finite(observation)

    with ExitStack() as stack:
        if is_interpreted:
            stack.enter_context(observing(observe))
        if check_kernels or (check_kernels is None and is_interpreted):
            stack.enter_context(observing(CheckKernels()))
        yield


def _filled_run(
    outputs: Sequence[tuple[int, Tensor]], patterns: Sequence[Bytes], context: Context, run: Callable[[], Any]
) -> list[Bytes]:
    for (_, tensor), pattern in zip(outputs, patterns, strict=True):
        context.copy_in(tensor.span(), pattern.data)
    run()
    return [_read(tensor, context) for _, tensor in outputs]


def _has_deferred_error(context: Context) -> bool:
    """Whether a kernel has recorded a deferred error; waits for the context."""
    word = context.begin_status()
    context.wait()
    return word is not None and bool(word[0])


def _can_fill(tensor: Tensor, context: Context) -> bool:
    """Whether an output has dense memory to fill; one with dynamic dims has none yet."""
    spec = tensor.spec
    if spec is None or spec.kind != "dense" or spec.size <= 0 or spec.layout.opaque or tensor._strides is not None:
        return False
    if tensor.allocation is None:
        tensor.allocate(context)
    return True


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors overlap in memory."""
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
    """Return for each element whether all its bytes are equal."""
    if one.size != other.size:
        return np.zeros(0, bool)
    width = ITEMSIZE[tensor.dtype]
    same: np.ndarray[Any, np.dtype[np.bool_]] = (one == other).reshape(-1, width).all(axis=1)
    return same


def _slot(step: Launch, position: int) -> str:
    """Return the slot at a position among the inputs and outputs of the operator."""
    slot = max((start, slot) for slot, start in step.call.index.items() if start <= position)[1]
    return slot if step.call.count(slot) == 1 else f"{slot}[{position - step.call.index[slot]}]"
