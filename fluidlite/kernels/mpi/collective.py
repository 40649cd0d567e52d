"""The collective operators, for every device: copies to the host, the group's operation, copies back."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from fluidlite.kernel_support import HALVES, ITEMSIZE, CollectiveError, Group, ring_group
from fluidlite.plugin import IO, Call, Context, Span, numpy_dtype, register_kernel

from .staging import Bucket, under_way


def _elsewhere(a: Span, b: Span) -> bool:
    return a.handle is not b.handle or a.offset != b.offset


def _copy(context: Context, io: IO, wanted: Sequence[int] = (0,)) -> None:
    """Out = X for the wanted ones, unless they are one. An output may lie on the input of another."""
    pairs = [(io.span("X", i), io.span("Out", i)) for i in wanted]
    moved = [(x, out) for x, out in pairs if x.nbytes and _elsewhere(x, out)]
    if len(pairs) > 1 and any(not _elsewhere(out, x) for _, out in moved for x, _ in pairs):
        held = [np.empty(x.nbytes, np.uint8) for x, _ in moved]
        for (x, _), array in zip(moved, held, strict=True):
            context.copy_out(array.data, x)
        context.wait()
        for (_, out), array in zip(moved, held, strict=True):
            context.copy_in(out, array.data)
        return
    for x, out in moved:
        context.copy_within(out, x)


def _array(span: Span, dtype: str) -> np.ndarray[Any, Any]:
    """A tensor in host memory, flat."""
    return np.frombuffer(span.handle, numpy_dtype(dtype), span.nbytes // ITEMSIZE[dtype], span.offset)


def _members(call: Call, group: Group) -> None:
    """Raise unless the ring has as many members as the program was built for."""
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
            if group.reduces_at_once and dtype not in HALVES and context.unit.info.host:
                _copy(context, io, range(count))
                context.wait()
                group.reduce_now([_array(span, dtype) for span in outs if span.nbytes], reduction)
                return
            bucket = Bucket(dtype, sizes)
            bucket.fill(context, [io.span("X", i) for i in range(count)])
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
            under_way(context).add(ring, outs, work, bucket)

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


def _whole(context: Context, io: IO, call: Call) -> np.ndarray[Any, Any]:
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
    """Out = X of all members, row by row."""

    def run(context: Context, io: IO) -> None:
        group = ring_group(call.attr("ring_id"))
        _members(call, group)
        if group.size == 1:
            _copy(context, io)
        else:
            _write(context, io, group.all_gather(_whole(context, io, call)))

    return run


@register_kernel("c_reducescatter", "memory", library="mpi")
def reduce_scatter(call: Call, context: Context) -> Any:
    """Out = a part of the rows of the sum."""

    def run(context: Context, io: IO) -> None:
        group = ring_group(call.attr("ring_id"))
        _members(call, group)
        if group.size == 1:
            _copy(context, io)
            return
        array = _whole(context, io, call)
        wide = array.astype(np.float32) if call.dtype("X") in HALVES else array
        _write(context, io, group.reduce_scatter(wide, "sum").astype(array.dtype, copy=False))

    return run


@register_kernel("c_sync_calc_stream", "memory", library="mpi", inplace=True)
def sync_compute(call: Call, context: Context) -> Any:
    """Wait for the queue."""

    def run(context: Context, io: IO) -> None:
        _copy(context, io)
        context.wait()

    return run


@register_kernel("c_sync_comm_stream", "memory", library="mpi", inplace=True)
def sync_collectives(call: Call, context: Context) -> Any:
    """Wait for what is under way, and write the results."""
    count, ring = call.count("X"), call.attr("ring_id")

    def run(context: Context, io: IO) -> None:
        begun = under_way(context)
        found = [begun.take(ring, io.span("X", i)) for i in range(count)]
        _copy(context, io, [i for i, each in enumerate(found) if each is None])
        for i, each in enumerate(found):
            if each is not None:
                work, bucket, position = each
                work.wait()
                bucket.empty(context, position, io.span("Out", i))

    return run
