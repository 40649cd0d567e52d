"""Device memory: copies at any offset and size, exhaustion, and bounds checks."""

from __future__ import annotations

import random

import numpy as np
import pytest
from fluidlite.plugin import DeviceError, Span

from fluidlite_fpga import FpgaDevice
from fpga_simulator.memory import ALIGNMENT, Memory, MemoryFault, OutOfMemory


@pytest.mark.parametrize("nbytes", [1, 3, 64, 65, 4097, 700_001])
@pytest.mark.parametrize("offset", [0, 1, 7, 64])
def test_copies_round_trip(device: FpgaDevice, offset: int, nbytes: int) -> None:
    context, allocator = device.context(0, 0), device.allocator(0)
    handle = allocator.allocate(offset + nbytes)
    source = bytearray(np.random.default_rng(nbytes).bytes(nbytes))
    expected = bytes(source)
    context.copy_in(Span(handle, offset, nbytes), memoryview(source))
    source[:] = bytes(nbytes)  # the source may be reused at once
    destination = bytearray(nbytes)
    context.copy_out(memoryview(destination), Span(handle, offset, nbytes))
    context.wait()
    assert destination == expected


def test_copies_take_arrays_of_any_dtype_and_empty_ones(device: FpgaDevice) -> None:
    context, allocator = device.context(0, 0), device.allocator(0)
    handle = allocator.allocate(64)
    sent = np.arange(6, dtype=np.float64).reshape(2, 3)
    got = np.zeros_like(sent)
    context.copy_in(Span(handle, 0, 48), sent.data)
    context.copy_out(got.data, Span(handle, 0, 48))
    context.copy_in(Span(None, 0, 0), memoryview(b""))
    context.copy_out(memoryview(bytearray()), Span(None, 0, 0))
    context.copy_within(Span(None, 0, 0), Span(None, 0, 0))
    context.wait()
    assert np.array_equal(sent, got)


def test_copy_within_moves_bytes_on_the_board(device: FpgaDevice) -> None:
    context, allocator = device.context(0, 0), device.allocator(0)
    first, second = allocator.allocate(64), allocator.allocate(64)
    context.copy_in(Span(first, 0, 5), memoryview(b"hello"))
    context.copy_within(Span(second, 11, 3), Span(first, 1, 3))
    got = bytearray(3)
    context.copy_out(memoryview(got), Span(second, 11, 3))
    context.wait()
    assert got == b"ell"
    assert [entry["command"] for entry in device.command_log(0)][2:] == ["copy_in", "copy_within", "copy_out"]


def test_out_of_memory_says_how_much_and_the_board_goes_on(device: FpgaDevice) -> None:
    allocator = device.allocator(0)
    half = allocator.allocate(1 << 19)
    with pytest.raises(MemoryError, match=r"fpga:0: allocate: 700032 bytes asked, 524288 of 1048576 bytes are free"):
        allocator.allocate(700_032)
    allocator.release(half)
    assert allocator.allocate(700_032) == half


def test_a_fault_is_reported_once_by_the_context_that_caused_it(device: FpgaDevice) -> None:
    guilty, innocent = device.context(0, 0), device.context(0, 0)
    handle = device.allocator(0).allocate(64)
    guilty.copy_in(Span(handle, 60, 8), memoryview(bytes(8)))
    innocent.wait()
    with pytest.raises(DeviceError, match="fpga:0: copy_in: memory fault: 8 bytes at 0x"):
        guilty.wait()
    guilty.wait()


def test_released_memory_is_protected(device: FpgaDevice) -> None:
    context, allocator = device.context(0, 0), device.allocator(0)
    handle = allocator.allocate(64)
    allocator.release(handle)
    with pytest.raises(DeviceError, match="release: 0x40000000 is not the start of an allocated block"):
        allocator.release(handle)
    context.copy_out(memoryview(bytearray(8)), Span(handle, 0, 8))
    with pytest.raises(DeviceError, match="copy_out: memory fault"):
        context.wait()


def test_boards_have_memory_of_their_own(device: FpgaDevice) -> None:
    spans = [Span(device.allocator(i).allocate(64), 0, 4) for i in range(2)]
    for i, span in enumerate(spans):
        device.context(i, 0).copy_in(span, memoryview(bytes([i] * 4)))
    for i, span in enumerate(spans):
        got, context = bytearray(4), device.context(i, 0)
        context.copy_out(memoryview(got), span)
        context.wait()
        assert got == bytes([i] * 4)


def test_the_free_list_keeps_blocks_apart_and_joins_what_is_freed() -> None:
    memory, rng = Memory(1 << 14), random.Random(7)
    blocks: dict[int, int] = {}
    for _ in range(3000):
        if blocks and rng.random() < 0.5:
            address = rng.choice(list(blocks))
            assert (memory.view(address, blocks[address]) == address // ALIGNMENT % 251).all()
            memory.release(address)
            del blocks[address]
        else:
            nbytes = rng.randrange(1, 2000)
            try:
                address = memory.allocate(nbytes)
            except OutOfMemory:
                continue
            assert address % ALIGNMENT == 0
            blocks[address] = nbytes
            memory.view(address, nbytes)[:] = address // ALIGNMENT % 251
    for address in blocks:
        memory.release(address)
    assert memory.allocate(1 << 14)
    with pytest.raises(MemoryFault):
        memory.view(0, 1)
