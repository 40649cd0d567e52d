"""NCCL's kernels without a GPU: over a CuPy of host memory, whose communicators are threads that meet.

What is held is what they ask NCCL for, on which stream, in which order; NCCL itself is not here.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from cuda_on_host import host_cupy, loaded

import fluidlite as fluid
from fluidlite.devices.cuda import CUDADevice
from fluidlite.distributed.groups import ring_group, share_devices, single
from fluidlite.distributed.threads import Rendezvous
from fluidlite.errors import CollectiveError
from fluidlite.kernels.nccl import collective
from fluidlite.platform.device_registry import devices
from fluidlite.plugin import Library, hookimpl, register_kernel

KIND = "gpus"
TYPES = {"float32": 7, "float64": 8, "int32": 2, "int64": 4}
OPERATIONS = {0: "sum", 1: "prod", 2: "max", 3: "min"}


def view(address: int, count: int, dtype: int) -> np.ndarray:
    name = next(name for name, number in TYPES.items() if number == dtype)
    size = np.dtype(name).itemsize * count
    return np.frombuffer((ctypes.c_char * size).from_address(address), name)


class Communicator:
    """What CuPy's has, among threads."""

    meetings: ClassVar[dict[Any, Rendezvous]] = {}
    streams: ClassVar[list[int]] = []

    def __init__(self, size: int, identity: tuple[int, ...] | bytes, rank: int) -> None:
        assert type(identity) is type(importlib.import_module("cupy.cuda.nccl").get_unique_id())  # as CuPy's insists
        self.group = self.meetings.setdefault(identity, Rendezvous(size)).members[rank]

    def allReduce(self, send: int, receive: int, count: int, dtype: int, operation: int, stream: int) -> None:
        self.streams.append(stream)
        view(receive, count, dtype)[:] = self.group.all_reduce(view(send, count, dtype), OPERATIONS[operation])

    def broadcast(self, send: int, receive: int, count: int, dtype: int, root: int, stream: int) -> None:
        view(receive, count, dtype)[:] = self.group.broadcast(view(send, count, dtype), root)

    def allGather(self, send: int, receive: int, count: int, dtype: int, stream: int) -> None:
        gathered = self.group.all_gather(view(send, count, dtype)).reshape(-1)
        view(receive, count * self.group.size, dtype)[:] = gathered

    def reduceScatter(self, send: int, receive: int, count: int, dtype: int, operation: int, stream: int) -> None:
        whole = view(send, count * self.group.size, dtype)
        view(receive, count, dtype)[:] = self.group.reduce_scatter(whole, OPERATIONS[operation])


class Device(CUDADevice):
    """CUDA's device under another name, without its arrays and kernel language."""

    kind = KIND

    def array(self, index: int) -> None:
        return None

    def language(self, index: int) -> None:
        return None


class Plugin:
    """Brings the device, and NCCL's kernels for it."""

    @hookimpl
    def register_devices(self, register: Any) -> None:
        register(Device())

    @hookimpl
    def register_libraries(self, register: Any) -> None:
        register(Library("nccl-of-host", (KIND,), 50, "for tests"))

    @hookimpl
    def register_kernels(self, register: Any) -> None:
        for kernel in vars(collective).values():
            if getattr(kernel, "library", "") == "nccl":
                mark = register_kernel(kernel.op, KIND, library="nccl-of-host", supports=kernel.supports)
                register(mark(kernel.function))


@pytest.fixture(params=[tuple, bytes], ids=["tuples", "bytes"])
def cupy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A CuPy of host memory; its communicators are known by tuples, as before CuPy 14, or by bytes."""
    identity = {tuple: lambda number: (3, -7, number), bytes: lambda number: bytes([3, 249, number])}[request.param]
    fake = host_cupy()
    numbers_of = {f"NCCL_{name.upper()}": number for name, number in TYPES.items()}
    numbers_of.update({f"NCCL_{name.upper()}": number for number, name in OPERATIONS.items()})
    nccl = SimpleNamespace(
        NcclCommunicator=Communicator,
        get_unique_id=lambda: identity(len(Communicator.meetings)),
        groupStart=lambda: None,
        groupEnd=lambda: None,
        **numbers_of,
    )
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", nccl)
    Communicator.streams.clear()
    with loaded("gpus", Plugin()):
        yield fake


def run(
    type: str, given: list[np.ndarray], attrs: dict[str, Any], sync: bool = False, apart: bool = True
) -> list[np.ndarray]:
    program = fluid.Program()
    block = program.global_block()
    names = [f"x{i}" for i in range(len(given))]
    for name, array in zip(names, given, strict=True):
        block.create_var(name, shape=array.shape, dtype=str(array.dtype), is_data=True)
    outs = [block.create_var(f"out{i}") for i in range(len(given))]
    block.append_op(type, {"X": names}, {"Out": outs}, attrs)
    if sync:
        block.append_op("c_sync_comm_stream", {"X": outs}, {"Out": outs})
    executor = fluid.Executor(KIND)
    ring_group(0).has_own_devices = apart
    found = executor.run(program, dict(zip(names, given, strict=True)), outs)
    libraries = {line.choice.library for line in executor.explain_last().plan.lines}
    assert libraries == {"nccl-of-host" if apart else "mpi"}
    return list(found)


def numbers(rank: int, dims: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(rank).integers(-4, 5, dims).astype(dtype)


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("reduction", ["sum", "max", "min", "prod"])
def test_reductions(cupy: Any, together: Callable[..., list[Any]], waits: bool, reduction: str) -> None:
    dims = [(3, 4), (5,)]

    def work(rank: int, group: Any) -> Any:
        given = [numbers(10 * rank + i, d) for i, d in enumerate(dims)]
        return run(f"c_allreduce_{reduction}", given, {"use_calc_stream": waits}, sync=not waits)

    function = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}[reduction]
    for found in together(2, work):
        for i, d in enumerate(dims):
            np.testing.assert_array_equal(found[i], function([numbers(i, d), numbers(10 + i, d)], axis=0))
    computing = {stream.ptr for stream in cupy.Stream.is_static if stream.entered or stream.waits}
    assert Communicator.streams
    assert bool(computing) or waits


@pytest.mark.parametrize("dtype", TYPES)
def test_dtypes_and_the_others(cupy: Any, together: Callable[..., list[Any]], dtype: str) -> None:
    inputs = [numbers(rank, (4, 3), dtype) for rank in range(2)]

    def work(rank: int, group: Any) -> Any:
        given = [inputs[rank]]
        return (
            run("c_broadcast", given, {"root": 1}, True)[0], run("c_allgather", given, {"nranks": 2})[0],
            run("c_reducescatter", given, {"nranks": 2, "use_calc_stream": True})[0],
        )  # fmt: skip

    for rank, (sent, gathered, scattered) in enumerate(together(2, work)):
        np.testing.assert_array_equal(sent, inputs[1])
        np.testing.assert_array_equal(gathered, np.concatenate(inputs))
        np.testing.assert_array_equal(scattered, sum(inputs)[2 * rank : 2 * rank + 2])


def test_members_that_share_a_gpu_reduce_through_the_host(cupy: Any, together: Callable[..., list[Any]]) -> None:
    def work(rank: int, group: Any) -> Any:
        return run("c_allreduce_sum", [numbers(rank, (3,))], {}, sync=True, apart=False)[0]

    for found in together(2, work):
        np.testing.assert_array_equal(found, numbers(0, (3,)) + numbers(1, (3,)))
    assert not Communicator.streams


def test_alone_it_copies(cupy: Any) -> None:
    np.testing.assert_array_equal(run("c_allreduce_sum", [numbers(0, (3,))], {}, apart=False)[0], numbers(0, (3,)))
    assert not Communicator.streams


@pytest.mark.parametrize(
    ("places", "apart"),
    [
        ((0, 1), True),
        ((0, 0), False),
        ((1, 0, 1), False),
        ((0, "cpu"), False),
        (("cpu", "cpu"), False),
    ],
    ids=str,
)
def test_members_learn_whether_their_devices_are_apart(
    cupy: Any, together: Callable[..., list[Any]], places: tuple[Any, ...], apart: bool
) -> None:
    def work(rank: int, group: Any) -> bool:
        where = places[rank]
        share_devices(group, devices.unit(f"{KIND}:{where}" if where != "cpu" else where))
        return bool(group.has_own_devices)

    assert together(len(places), work) == [apart] * len(places)
    share_devices(single(), devices.unit("cpu"))
    assert not single().has_own_devices


def test_another_group_has_its_kernels_chosen_anew(cupy: Any, together: Callable[..., list[Any]]) -> None:
    """By executors that ran for the one before: choices are kept for the whole process."""
    program = fluid.Program()
    block = program.global_block()
    block.create_var("x", shape=(3,), dtype="float32", is_data=True)
    block.append_op("c_allreduce_sum", {"X": "x"}, {"Out": block.create_var("out")}, {"use_calc_stream": True})
    executors = [fluid.Executor(KIND) for _ in range(2)]  # of one GPU: the CuPy here knows one at a time

    def work(apart: bool, rank: int, group: Any) -> str:
        share_devices(group, devices.unit(f"{KIND}:{rank if apart else 0}"))
        (found,) = executors[rank].run(program, {"x": numbers(rank, (3,))}, ["out"])
        np.testing.assert_array_equal(found, numbers(0, (3,)) + numbers(1, (3,)))
        (line,) = executors[rank].explain_last().plan.lines
        return str(line.choice.library)

    for apart, library in ((False, "mpi"), (True, "nccl-of-host"), (False, "mpi")):
        assert together(2, partial(work, apart)) == [library] * 2


def test_a_plan_for_another_group_is_refused(cupy: Any, together: Callable[..., list[Any]]) -> None:
    def work(rank: int, group: Any) -> None:
        group.has_own_devices = True
        program = fluid.Program()
        block = program.global_block()
        block.create_var("x", shape=(3,), dtype="float32", is_data=True)
        block.append_op("c_allreduce_sum", {"X": "x"}, {"Out": block.create_var("out")}, {"use_calc_stream": True})
        executor = fluid.Executor(KIND)
        executor.run(program, {"x": numbers(rank, (3,))}, ["out"])
        group.has_own_devices = False
        with pytest.raises(CollectiveError, match="no GPUs of their own"):
            executor.run(program, {"x": numbers(rank, (3,))}, ["out"])

    together(2, work)


def test_where_cupy_has_no_nccl_the_reason_is_shown(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", None)
    x = fluid.layers.data("x", [2])
    block = fluid.default_main_program().global_block()
    out = block.create_var("out")
    block.append_op("c_allreduce_sum", {"X": x}, {"Out": out})
    report = fluid.explain(place=KIND, feed={"x": (4, 2)}, fetch_list=[out])
    assert "CuPy has no NCCL here" in str(report.data())
    (line,) = report.plan.lines
    assert line.choice.library == "mpi"
