"""A process of several: every collective operator by MPI, against what NumPy makes of all members' numbers."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import ml_dtypes
import numpy as np

import fluidlite as fluid
from fluidlite.distributed import groups, machine, mpi
from fluidlite.distributed.groups import Group, world


def numbers(rank: int, dims: tuple[int, ...], dtype: str) -> np.ndarray:
    """Small integers: sums of them are exact."""
    found = np.random.default_rng(rank).integers(-4, 5, dims)
    return found.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def run(place: str, type: str, given: np.ndarray, attrs: dict[str, Any], sync: bool) -> np.ndarray:
    program = fluid.Program()
    block = program.global_block()
    block.create_var("x", shape=given.shape, dtype=str(given.dtype), is_data=True)
    out = block.create_var("out")
    block.append_op(type, {"X": "x"}, {"Out": out}, attrs)
    if sync:
        block.append_op("c_sync_comm_stream", {"X": out}, {"Out": out})
    executor = fluid.Executor(place, fallback="allow")
    for _ in range(3):
        (found,) = executor.run(program, {"x": given}, [out], scope=fluid.Scope())
    return np.asarray(found)


def group_of(how: str) -> Group:
    """All processes, that operate as on a machine of which this holds; the first group ends with the process, too."""
    facts = how == "facts"
    mpi.free_processors = machine.free_processors if facts else lambda local: how == "a thread"
    mpi.shared_reductions = (
        machine.shared_reductions if how != "no shared memory" else lambda everyone, local, wait: None
    )
    mpi._world = None
    groups.set_ring(0, groups._SINGLE)
    group = world()
    assert facts or (group.overlaps, bool(group.shared)) == (how == "a thread", how == "shared memory")
    return group


def main(how: str, places: list[str]) -> None:
    group = group_of(how)
    size, rank = group.size, group.rank
    for place in places:
        for dtype in ("float32", "float64", "int32", "int64", "float16", "bfloat16"):
            every = [numbers(member, (2 * size, 3), dtype) for member in range(size)]
            wide = np.stack([np.float64(each) for each in every])
            mine = every[rank]
            for waits in (True, False):
                for name, function in (("sum", np.sum), ("max", np.max), ("min", np.min), ("prod", np.prod)):
                    attrs = {"use_calc_stream": waits}
                    found = run(place, f"c_allreduce_{name}", mine, attrs, not waits)
                    wanted = function(wide, axis=0)
                    np.testing.assert_array_equal(np.float64(found), wanted, f"{name} {dtype} {place}")
            found = run(place, "c_broadcast", mine, {"root": size - 1}, False)
            np.testing.assert_array_equal(np.float64(found), wide[-1])
            found = run(place, "c_allgather", mine, {"nranks": size}, False)
            np.testing.assert_array_equal(np.float64(found), np.concatenate(list(wide)))
            found = run(place, "c_reducescatter", mine, {"nranks": size}, False)
            np.testing.assert_array_equal(np.float64(found), wide.sum(0)[2 * rank : 2 * rank + 2])
    flag = run("cpu", "c_broadcast", np.array([rank == 0]), {}, False)
    assert flag.all()
    group.barrier()
    print(f"process {rank} of {size} by {how}: all equal", flush=True)


def mixed(how: str, places: list[str]) -> None:
    """Tensors that are reduced together, by members on places of different kinds, each kind with each."""
    group = group_of(how)
    sizes = (4100, 0, 3, 2500)
    for dtype, turn in itertools.product(("float32", "int64", "float16"), range(len(places))):
        place = places[(group.rank + turn) % len(places)]
        every = [[numbers(10 * rank + i, (size,), dtype) for i, size in enumerate(sizes)] for rank in range(group.size)]
        for waits in (True, False):
            program = fluid.Program()
            block = program.global_block()
            names = [f"x{i}" for i in range(len(sizes))]
            for name, size in zip(names, sizes, strict=True):
                block.create_var(name, shape=(size,), dtype=dtype, is_data=True)
            outs = [block.create_var(f"out{i}") for i in range(len(sizes))]
            block.append_op("c_allreduce_sum", {"X": names}, {"Out": outs}, {"use_calc_stream": waits})
            if not waits:
                block.append_op("c_sync_comm_stream", {"X": outs}, {"Out": outs})
            executor = fluid.Executor(place, fallback="allow")
            feed = dict(zip(names, every[group.rank], strict=True))
            for _ in range(2):
                found = executor.run(program, feed, outs, scope=fluid.Scope())
            for i, values in enumerate(zip(*every, strict=True)):
                wanted = np.sum([np.float64(value) for value in values], axis=0)
                np.testing.assert_array_equal(np.float64(found[i]), wanted, f"{dtype} {i} of {place}, {how}")
    group.barrier()
    print(f"process {group.rank} of {group.size}, on all kinds of places by {how}: all equal", flush=True)


if __name__ == "__main__":
    main("facts", sys.argv[1:])
    for how in ("a thread", "no shared memory", "shared memory"):
        main(how, ["cpu"])
        mixed(how, sys.argv[1:])
