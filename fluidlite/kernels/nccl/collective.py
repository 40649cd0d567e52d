"""Collective operators by NCCL, on a stream of their own if computation may overlap with them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np

from fluidlite.kernel_support import CollectiveError, Group, ring_group
from fluidlite.plugin import IO, Call, Context, Span, register_kernel

_DTYPES = {
    "bool": "NCCL_UINT8",
    "uint8": "NCCL_UINT8",
    "int8": "NCCL_INT8",
    "int32": "NCCL_INT32",
    "int64": "NCCL_INT64",
    "float16": "NCCL_FLOAT16",
    "bfloat16": "NCCL_BFLOAT16",
    "float32": "NCCL_FLOAT32",
    "float64": "NCCL_FLOAT64",
}


def _nccl() -> Any:
    return importlib.import_module("cupy.cuda.nccl")


def supports(call: Call) -> str | None:
    """Return why NCCL cannot compute a call, or None: it is missing, lacks the dtype, or members share a GPU."""
    try:
        nccl = _nccl()
    except ImportError as exc:
        return f"CuPy has no NCCL here ({exc})"
    if not getattr(nccl, "available", True):
        return "CuPy has no NCCL here"
    ring = call.attr("ring_id")
    if not ring_group(ring).has_own_devices:
        return f"the members of ring {ring} have not said that each has a GPU of its own"
    dtype = call.dtype("X")
    return None if hasattr(nccl, _DTYPES.get(dtype, "")) else f"NCCL has no {dtype}"


class Link:
    """A context's NCCL communicator of a ring, its stream, and the events of pending collectives."""

    def __init__(self, context: Context, group: Group) -> None:
        self.group, self.nccl = group, _nccl()
        own = np.zeros(256, np.int64)
        if group.rank == 0:
            unique_id = self.nccl.get_unique_id()
            own[: len(unique_id) + 2] = [len(unique_id), isinstance(unique_id, bytes), *unique_id]
        count, as_bytes, *unique_id_values = map(int, group.broadcast(own, 0))
        raw = context.raw
        with raw.cupy.cuda.Device(raw.place.index):
            identity = (bytes if as_bytes else tuple)(
                unique_id_values[:count]
            )  # CuPy's from 14 on are bytes, and were a tuple
            self.communicator = self.nccl.NcclCommunicator(group.size, identity, group.rank)
            self.stream = raw.cupy.cuda.Stream(non_blocking=True)
            self._events = raw.cupy.cuda.Event
        self.pending: dict[tuple[int, int], Any] = {}

    def dtype(self, call: Call) -> int:
        """Return NCCL's constant of a call's dtype."""
        return int(getattr(self.nccl, _DTYPES[call.dtype("X")]))

    def reduction(self, name: str) -> int:
        """Return NCCL's constant of a reduction."""
        return int(getattr(self.nccl, f"NCCL_{name.upper()}"))

    @contextmanager
    def ordered(self, context: Context, waits: bool, outs: Sequence[Span]) -> Iterator[int]:
        """Yield the stream to use, after the context's stream; without ``waits``, record an event for ``outs``."""
        raw = context.raw
        with raw.cupy.cuda.Device(raw.place.index):
            if waits:
                yield raw.stream.ptr
                return
            computed = self._events(disable_timing=True)
            computed.record(raw.stream)
            self.stream.wait_event(computed)
            yield self.stream.ptr
            finished = self._events(disable_timing=True)
            finished.record(self.stream)
            self.pending.update({_key(span): finished for span in outs})


def _key(span: Span) -> tuple[int, int]:
    return span.handle.ptr, span.offset


def _address(span: Span) -> int:
    return int(span.handle.ptr) + span.offset


def _link(context: Context, ring: int) -> Link | None:
    """Return the link of a ring; None if this process is its only member."""
    group = ring_group(ring)
    if group.size == 1:
        return None
    if not group.has_own_devices:
        raise CollectiveError(
            f"NCCL was chosen for another group than ring {ring} has now, whose members have no GPUs of their own"
            "\n  Do: let them say where they compute, by world(place) or share_devices(group, unit)"
        )
    links: dict[tuple[int, int], Link] = context.handle("nccl", dict)
    link = links.get((ring, id(group)))
    if link is None:
        link = links[ring, id(group)] = Link(context, group)
    return link


def _copy(context: Context, io: IO, count: int = 1) -> list[Span]:
    """Out = X where they do not share memory; return the outputs."""
    outs = [io.span("Out", i) for i in range(count)]
    for i, out in enumerate(outs):
        source = io.span("X", i)
        if source.nbytes and _address(source) != _address(out):
            context.copy_within(out, source)
    return outs


def _reduce(name: str) -> Any:
    def prepare(call: Call, context: Context) -> Any:
        count, ring, waits = call.count("X"), call.attr("ring_id"), call.attr("use_calc_stream")
        sizes = [prod(call.dims("X", i)) for i in range(count)]

        def run(context: Context, io: IO) -> None:
            outs = _copy(context, io, count)
            link = _link(context, ring)
            if link is None:
                return
            dtype, reduction = link.dtype(call), link.reduction(name)
            with link.ordered(context, waits, outs) as stream:
                link.nccl.groupStart()
                for span, size in zip(outs, sizes, strict=True):
                    if size:
                        address = _address(span)
                        link.communicator.allReduce(address, address, size, dtype, reduction, stream)
                link.nccl.groupEnd()

        return run

    return prepare


all_reduce_sum = register_kernel("c_allreduce_sum", "cuda", library="nccl", supports=supports)(_reduce("sum"))
all_reduce_max = register_kernel("c_allreduce_max", "cuda", library="nccl", supports=supports)(_reduce("max"))
all_reduce_min = register_kernel("c_allreduce_min", "cuda", library="nccl", supports=supports)(_reduce("min"))
all_reduce_prod = register_kernel("c_allreduce_prod", "cuda", library="nccl", supports=supports)(_reduce("prod"))


@register_kernel("c_broadcast", "cuda", library="nccl", supports=supports)
def broadcast(call: Call, context: Context) -> Any:
    """Out = X of the root."""
    ring, root, waits, size = (*map(call.attr, ("ring_id", "root", "use_calc_stream")), prod(call.dims("X")))

    def run(context: Context, io: IO) -> None:
        outs, link = _copy(context, io), _link(context, ring)
        members = 1 if link is None else link.group.size
        if root >= members:
            raise CollectiveError(f"root is {root}, and ring {ring} has {members} members, from 0")
        if link is not None and size:
            with link.ordered(context, waits, outs) as stream:
                address = _address(outs[0])
                link.communicator.broadcast(address, address, size, link.dtype(call), root, stream)

    return run


def _gather(method: str) -> Any:
    def prepare(call: Call, context: Context) -> Any:
        ring, members = call.attr("ring_id"), call.attr("nranks")
        waits, size = call.attr("use_calc_stream"), prod(call.dims("X"))

        def run(context: Context, io: IO) -> None:
            link = _link(context, ring)
            ring_size = 1 if link is None else link.group.size
            if ring_size != members:
                raise CollectiveError(
                    f"nranks is {members}, and ring {ring} has {ring_size} members"
                    f"\n  Do: build the program with nranks={ring_size}"
                )
            if link is None:
                _copy(context, io)
                return
            source, target = io.span("X"), io.span("Out")
            with link.ordered(context, waits, [target]) as stream:
                addresses = _address(source), _address(target)
                if method == "allGather":
                    link.communicator.allGather(*addresses, size, link.dtype(call), stream)
                else:
                    link.communicator.reduceScatter(
                        *addresses, size // members, link.dtype(call), link.reduction("sum"), stream
                    )
            if not waits:  # X may end here: its memory must not be reused before the NCCL stream has read it
                context.raw.stream.wait_event(link.pending[_key(target)])

        return run

    return prepare


all_gather = register_kernel("c_allgather", "cuda", library="nccl", supports=supports)(_gather("allGather"))
reduce_scatter = register_kernel("c_reducescatter", "cuda", library="nccl", supports=supports)(_gather("reduceScatter"))


@register_kernel("c_sync_comm_stream", "cuda", library="nccl", supports=supports)
def sync_collectives(call: Call, context: Context) -> Any:
    """Let the queue wait for pending collectives."""
    count, ring = call.count("X"), call.attr("ring_id")

    def run(context: Context, io: IO) -> None:
        link = _link(context, ring)
        if link is not None:
            for i in range(count):
                event = link.pending.pop(_key(io.span("X", i)), None)
                if event is not None:
                    context.raw.stream.wait_event(event)
        _copy(context, io, count)

    return run
