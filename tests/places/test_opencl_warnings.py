"""OpenCL programs: remarks of the compiler are no warnings, and all queues of a device share what was built."""

from __future__ import annotations

import uuid

import pytest

from fluidlite.memory import alloc
from fluidlite.platform.context_pool import get_context, new_context


@pytest.mark.opencl
def test_a_remark_of_the_compiler_is_no_warning() -> None:
    context = get_context("opencl")
    name = f"remarked_{uuid.uuid4().hex}"  # no compiled program of an earlier run is found
    source = f"__kernel void {name}(__global int* out) {{ int i = get_global_id(0); out[i] = i < i; }}"
    assert context.unit.language.compile(context.raw, source, name, ("buffer",)) is not None


@pytest.mark.opencl
def test_a_program_is_built_once_for_all_queues() -> None:
    name = f"shared_{uuid.uuid4().hex}"
    source = f"__kernel void {name}(__global int* out) {{ out[get_global_id(0)] = 7; }}"
    queues = [new_context("opencl") for _ in range(3)]
    language = queues[0].unit.language
    before = language.cache_info()["OpenCL programs"]
    kernels = [queue.compile(source, name, ("buffer",)) for queue in queues]
    after = language.cache_info()["OpenCL programs"]
    assert (after.misses - before.misses, after.hits - before.hits) == (1, 2)
    assert len({id(kernel) for kernel in kernels}) == 3  # arguments belong to the kernel: each queue has its own
    for queue in queues:
        queue.close()


@pytest.mark.opencl
def test_the_last_command_marks_the_end_of_a_queue() -> None:
    """A queue that has nothing new is not marked again; whoever gets the queue may put something into it."""
    context = new_context("opencl")
    allocation = alloc("opencl", 64, context)
    sent, back = memoryview(bytes(range(64))), bytearray(64)
    context.copy_in_async(allocation.span(), sent)
    first, second = context.record(), context.record()
    assert first.marker is second.marker
    first.wait()
    assert first.done()
    context.copy_out(memoryview(back), allocation.span())
    third = context.record()
    assert third.marker is not second.marker
    third.wait()
    assert back == sent
    assert context.record().marker is third.marker
    context.raw.queue.flush()
    assert context.record().marker is not third.marker
    context.close()
