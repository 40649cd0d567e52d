"""Processes that reduce through shared memory: exact, the same on all, in any piece, and apart from forked children."""

from __future__ import annotations

import os
import sys

import numpy as np

from fluidlite.distributed.groups import world
from fluidlite.distributed.shared_reduction import CHUNK_BYTES, SMALL_BYTES
from fluidlite.errors import CollectiveError


def numbers(rank: int, size: int, dtype: str) -> np.ndarray:
    found = np.random.default_rng(rank).integers(-4, 5, size)
    return found.astype(dtype)


def reductions(place: str) -> None:
    """Arrays that lie in the shared memory, or elsewhere, or there on one process, of sizes around each bound."""
    group = world()
    shared = group.shared
    assert shared is not None and not group.overlaps, "a processor is free here"
    rank, size = group.rank, group.size
    there = place == "there" or (place == "there on one" and rank == 1)
    for dtype in ("float32", "float64", "int32", "int64"):
        each = np.dtype(dtype).itemsize
        for total in (1, SMALL_BYTES // each, SMALL_BYTES // each + 1, 3 * CHUNK_BYTES // each + 5):
            sizes = [0, total // 3, total - total // 3]
            for reduction, function in (("sum", np.sum), ("max", np.max), ("prod", np.prod)):
                wanted = function(np.stack([numbers(member, total, dtype) for member in range(size)]), axis=0)
                ends = np.cumsum(sizes)[:-1]
                arrays = []
                for part in np.split(numbers(rank, total, dtype), ends):
                    made = shared.heap.allocate(part.nbytes) if there else np.empty(part.nbytes, np.uint8)
                    made.view(dtype)[...] = part
                    arrays.append(made.view(dtype))
                group.reduce_in_place(arrays, reduction)
                np.testing.assert_array_equal(np.concatenate(arrays), wanted, f"{reduction} of {total} {dtype}")
    random = np.random.default_rng(rank).normal(size=100_003)  # rounded in the order of ranks: equal to the bit
    every = [np.random.default_rng(member).normal(size=100_003) for member in range(size)]
    group.reduce_in_place([random], "sum")
    wanted = every[0].copy()
    for other in every[1:]:
        wanted += other
    np.testing.assert_array_equal(random, wanted)
    pieces = [np.full(20, rank + 1.0) for _ in range(5000)]  # more than a header says where they lie
    group.reduce_in_place(pieces, "sum")
    assert all((piece == sum(range(1, size + 1))).all() for piece in pieces)


def forked() -> None:
    """What a child writes into the memory is its own."""
    group = world()
    array = group.shared.heap.allocate(1 << 20)
    array[...] = 1
    child = os.fork()
    if not child:
        same = bool((array == 1).all())
        array[...] = 2
        os._exit(0 if same and bool((array == 2).all()) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (array == 1).all()
    group.reduce_in_place([array.view("int64")], "max")
    assert (array == 1).all()


def given_back() -> None:
    """Memory goes back with the last array that views it."""
    heap = world().shared.heap
    free = list(heap._free)
    first, second = heap.allocate(10_000), heap.allocate(1)
    assert heap.offset_of(second) - heap.offset_of(first) == 12_288
    view = first[5:].view(np.uint8)
    del first
    assert heap._free != free
    del view, second
    assert heap._free == free
    again = heap.allocate(10_000)
    assert not again.any()
    try:
        heap.allocate(heap.nbytes)
    except MemoryError as exc:
        assert "that processes share" in str(exc)
    else:
        raise AssertionError("there was as much")


def main(how: str) -> None:
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])  # no processor is free beside computing
    group = world()
    if how == "other":
        try:
            group.reduce_in_place([np.zeros(3 + group.rank, np.float32)], "sum")
        except CollectiveError as exc:
            if group.rank == 0:
                print(exc, flush=True)
            sys.exit(3)
    reductions("there")
    reductions("elsewhere")
    reductions("there on one")
    forked()
    given_back()
    group.barrier()
    print(f"process {group.rank} of {group.size}: all equal")


if __name__ == "__main__":
    main(sys.argv[1])
