"""Collective operators for every device: copy to the host, run the group's operation, copy back."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from fluidlite.kernel_support import HALVES, ITEMSIZE, CollectiveError, Group, ring_group
from fluidlite.plugin import IO, Call, Context, Span, numpy_dtype, register_kernel

from .staging import Bucket, pending_work


def _differs(a: Span, b: Span) -> bool:
    return a.handle is not b.handle or a.offset != b.offset


def _copy(context: Context, io: IO, indices: Sequence[int] = (0,)) -> None:
    """Out = X for the tensors of ``indices``, unless they share memory. An output may alias another one's input."""
    pairs = [(io.span("X", i), io.span("Out", i)) for i in indices]
    copied_pairs = [(x, out) for x, out in pairs if x.nbytes and _differs(x, out)]
    if len(pairs) > 1 and any(not _differs(out, x) for _, out in copied_pairs for x, _ in pairs):
        host_arrays = [np.empty(x.nbytes, np.uint8) for x, _ in copied_pairs]
        for (x, _), array in zip(copied_pairs, host_arrays, strict=True):
            context.copy_out(array.data, x)
        context.wait()
        for (_, out), array in zip(copied_pairs, host_arrays, strict=True):
            context.copy_in(out, array.data)
        return
    for x, out in copied_pairs:
        context.copy_within(out, x)


def _array(span: Span, dtype: str) -> np.ndarray[Any, Any]:
    """Return a tensor in host memory as a flat array."""
    return np.frombuffer(span.handle, numpy_dtype(dtype), span.nbytes // ITEMSIZE[dtype], span.offset)


def _check_members(call: Call, group: Group) -> None:
    """Raise unless the ring has ``nranks`` members."""
    if group.size != call.attr("nranks"):
        raise CollectiveError(
            f"nranks is {call.attr('nranks')}, and ring {call.attr('ring_id')} has {group.size} members"
            f"\n  Do: build the program with nranks={group.size}"
        )


def _reduce(reduction: str) -> Any:
    def prepare(call: Call, context: Context) -> Any:
        count, ring, waits = call.count("X"), call.attr("ring_id"), call.attr("use_calc_stream")
        dtype = call.dtype("X")
        sizes = [prod(call.dims("X", i)) for i in range(count)]

        def run(context: Context, io: IO) -> None:
            group = ring_group(ring)
            if group.size == 1:
                _copy(context, io, range(count))
                return
            outs = [io.span("Out", i) for i in range(count)]
            in_place = group.reduces_in_place and dtype not in HALVES
            if in_place and context.unit.info.host:
                _copy(context, io, range(count))
                context.wait()
                group.reduce_in_place([_array(span, dtype) for span in outs], reduction)
                return
            bucket = Bucket(dtype, sizes)
            bucket.fill(context, [io.span("X", i) for i in range(count)])
            if in_place:  # tensor by tensor: other members may be on the host
                context.wait()
                group.reduce_in_place([bucket.flat[part] for part in bucket.slices], reduction)
                for i, span in enumerate(outs):
                    bucket.empty(context, i, span)
                return
            if waits or dtype in HALVES:
                context.wait()
                work = group.start_all_reduce(bucket.widened(), reduction)
            else:
                work = group.start_all_reduce(bucket.flat, reduction, context.record())
            if waits:
                work.wait()
                for i, span in enumerate(outs):
                    bucket.empty(context, i, span)
                return
            _copy(context, io, range(count))
            pending_work(context).add(ring, outs, work, bucket)

        return run

    return prepare


all_reduce_sum = register_kernel("c_allreduce_sum", "memory", library="mpi", inplace=True)(_reduce("sum"))
all_reduce_max = register_kernel("c_allreduce_max", "memory", library="mpi", inplace=True)(_reduce("max"))
all_reduce_min = register_kernel("c_allreduce_min", "memory", library="mpi", inplace=True)(_reduce("min"))
all_reduce_prod = register_kernel("c_allreduce_prod", "memory", library="mpi", inplace=True)(_reduce("prod"))


@register_kernel("c_broadcast", "memory", library="mpi", inplace=True)
def broadcast(call: Call, context: Context) -> Any:
    """Out = X of the root."""
    ring, root, size = call.attr("ring_id"), call.attr("root"), prod(call.dims("X"))
    dtype = call.dtype("X")

    def run(context: Context, io: IO) -> None:
        group = ring_group(ring)
        if root >= group.size:
            raise CollectiveError(f"root is {root}, and ring {ring} has {group.size} members, from 0")
        if group.size == 1:
            _copy(context, io)
            return
        bucket = Bucket(dtype, [size])
        bucket.fill(context, [io.span("X")])
        context.wait()
        group.start_broadcast(bucket.flat, root).wait()
        if bucket.flat.nbytes:
            context.copy_in(io.span("Out"), bucket.part(0))

    return run


def _host_array(context: Context, io: IO, call: Call) -> np.ndarray[Any, Any]:
    bucket = Bucket(call.dtype("X"), [prod(call.dims("X"))])
    bucket.fill(context, [io.span("X")])
    context.wait()
    return bucket.flat.reshape(call.dims("X"))


def _write(context: Context, io: IO, array: np.ndarray[Any, Any]) -> None:
    span = io.span("Out")
    if span.nbytes:
        context.copy_in(span, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


@register_kernel("c_allgather", "memory", library="mpi")
def all_gather(call: Call, context: Context) -> Any:
    """Out = the rows of X of all members, in the order of ranks."""

    def run(context: Context, io: IO) -> None:
        group = ring_group(call.attr("ring_id"))
        _check_members(call, group)
        if group.size == 1:
            _copy(context, io)
        else:
            _write(context, io, group.all_gather(_host_array(context, io, call)))

    return run


@register_kernel("c_reducescatter", "memory", library="mpi")
def reduce_scatter(call: Call, context: Context) -> Any:
    """Out = this member's part of the rows of the sum."""

    def run(context: Context, io: IO) -> None:
        group = ring_group(call.attr("ring_id"))
        _check_members(call, group)
        if group.size == 1:
            _copy(context, io)
            return
        array = _host_array(context, io, call)
        wide = array.astype(np.float32) if call.dtype("X") in HALVES else array
        _write(context, io, group.reduce_scatter(wide, "sum").astype(array.dtype, copy=False))

    return run


@register_kernel("c_sync_calc_stream", "memory", library="mpi", inplace=True)
def sync_compute(call: Call, context: Context) -> Any:
    """Wait for the context's queue."""

    def run(context: Context, io: IO) -> None:
        _copy(context, io)
        context.wait()

    return run


@register_kernel("c_sync_comm_stream", "memory", library="mpi", inplace=True)
def sync_collectives(call: Call, context: Context) -> Any:
    """Wait for pending collectives, and write their results."""
    count, ring = call.count("X"), call.attr("ring_id")

    def run(context: Context, io: IO) -> None:
        pending = pending_work(context)
        pending_items = [pending.take(ring, io.span("X", i)) for i in range(count)]
        _copy(context, io, [i for i, item in enumerate(pending_items) if item is None])
        for i, item in enumerate(pending_items):
            if item is not None:
                work, bucket, position = item
                work.wait()
                bucket.empty(context, position, io.span("Out", i))

    return run
