"""Collective operators among several members, on every place, compiled and interpreted, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.errors import AttributeValueError, CollectiveError, DtypeError, ShapeError

Together = Callable[..., list[Any]]
DTYPES = ("float32", "float64", "int32", "int64", "float16", "bfloat16")


def numbers(rank: int, dims: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    found = np.random.default_rng(rank).integers(-4, 5, dims)
    return found.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def run(
    place: str, mode: str, type: str, given: list[np.ndarray], attrs: dict[str, Any], sync: bool = False,
    between: bool = False,
) -> list[np.ndarray]:  # fmt: skip
    """Run one operator on this thread's member; with ``sync``, wait for it by c_sync_comm_stream."""
    program = fluid.Program()
    block = program.global_block()
    names = [f"x{i}" for i in range(len(given))]
    for name, array in zip(names, given, strict=True):
        block.create_var(name, shape=array.shape, dtype=str(array.dtype), is_data=True)
    outs = [block.create_var(f"out{i}") for i in range(len(given))]
    block.append_op(type, {"X": names}, {"Out": outs}, attrs)
    fetched = outs
    if between:  # something to compute meanwhile
        other = block.create_var("other")
        block.append_op("scale", {"X": names[0]}, {"Out": other}, {"scale": 3.0})
        fetched = [*outs, other]
    if sync:
        block.append_op("c_sync_comm_stream", {"X": outs}, {"Out": outs}, {"ring_id": attrs.get("ring_id", 0)})
    executor = fluid.Executor(place, mode=mode, fallback="allow")
    feed = dict(zip(names, given, strict=True))
    for _ in range(3):  # the third run of a bound program is another way than the first
        found = executor.run(program, feed, fetched, scope=fluid.Scope())
    return list(found)


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("reduction", ["sum", "max", "min", "prod"])
def test_reductions(together: Together, place: str, mode: str, waits: bool, reduction: str) -> None:
    dims = [(3, 5), (7,), (2, 1, 2)]
    inputs = [[numbers(10 * rank + i, d) for i, d in enumerate(dims)] for rank in range(3)]
    function = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}[reduction]

    def work(rank: int, group: Any) -> Any:
        attrs = {"use_calc_stream": waits}
        return run(place, mode, f"c_allreduce_{reduction}", inputs[rank], attrs, sync=not waits, between=True)

    for rank, found in enumerate(together(3, work)):
        for i in range(len(dims)):
            wanted = function([np.float64(inputs[member][i]) for member in range(3)], axis=0)
            np.testing.assert_allclose(found[i], wanted, rtol=1e-6)
        np.testing.assert_array_equal(found[-1], 3 * inputs[rank][0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("waits", [True, False])
def test_dtypes(together: Together, dtype: str, waits: bool) -> None:
    def work(rank: int, group: Any) -> Any:
        attrs = {"use_calc_stream": waits}
        return run("cpu", "compiled", "c_allreduce_sum", [numbers(rank, (4, 3), dtype)], attrs, sync=not waits)

    wanted = sum(np.float64(numbers(rank, (4, 3), dtype)) for rank in range(4))
    for (found,) in together(4, work):
        assert str(found.dtype) == dtype
        np.testing.assert_array_equal(np.float64(found), wanted)


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_broadcast_gather_and_scatter(together: Together, place: str, mode: str) -> None:
    inputs = [numbers(rank, (6, 4)) for rank in range(3)]

    def work(rank: int, group: Any) -> Any:
        def one(type: str, **attrs: Any) -> np.ndarray:
            return run(place, mode, type, [inputs[rank]], attrs)[0]

        return (
            one("c_broadcast", root=2), one("c_allgather", nranks=3), one("c_reducescatter", nranks=3),
            one("c_sync_calc_stream"),
        )  # fmt: skip

    for rank, (sent, gathered, scattered, same) in enumerate(together(3, work)):
        np.testing.assert_array_equal(sent, inputs[2])
        np.testing.assert_array_equal(gathered, np.concatenate(inputs))
        np.testing.assert_array_equal(scattered, sum(inputs)[2 * rank : 2 * rank + 2])
        np.testing.assert_array_equal(same, inputs[rank])


def test_rings_are_apart(together: Together) -> None:
    def work(rank: int, group: Any) -> Any:
        given = [numbers(rank, (2, 2))]
        joined = run("cpu", "compiled", "c_allreduce_sum", given, {"ring_id": 3, "use_calc_stream": True})
        alone = run("cpu", "compiled", "c_allreduce_sum", given, {"ring_id": 4, "use_calc_stream": True})
        return joined[0], alone[0]

    for rank, (joined, alone) in enumerate(together(2, work, ring=3)):
        np.testing.assert_array_equal(joined, numbers(0, (2, 2)) + numbers(1, (2, 2)))
        np.testing.assert_array_equal(alone, numbers(rank, (2, 2)))


def test_what_was_begun_is_x_until_it_is_waited_for(together: Together) -> None:
    def work(rank: int, group: Any) -> Any:
        return run("cpu", "interpreted", "c_allreduce_sum", [numbers(rank, (2, 2))], {})[0]

    for rank, found in enumerate(together(2, work)):
        np.testing.assert_array_equal(found, numbers(rank, (2, 2)))


@pytest.mark.parametrize("type", ["c_allreduce_sum", "c_allgather", "c_reducescatter"])
def test_gradients_are_those_of_all_members_losses(together: Together, type: str) -> None:
    """The loss of all is the sum of each one's: what X of a member does to all of them, by differences."""
    members, dims = 2, (4, 3)
    inputs = [np.float64(numbers(rank, dims)) for rank in range(members)]
    rows = {"c_allreduce_sum": 4, "c_allgather": 8, "c_reducescatter": 2}[type]
    weights = [np.random.default_rng(7 + rank).normal(size=(rows, 3)) for rank in range(members)]

    def outputs(values: list[np.ndarray]) -> list[np.ndarray]:
        total = sum(values)
        return [
            {"c_allreduce_sum": total, "c_allgather": np.concatenate(values),
             "c_reducescatter": total[2 * rank : 2 * rank + 2]}[type]
            for rank in range(members)
        ]  # fmt: skip

    def work(rank: int, group: Any) -> Any:
        program = fluid.Program()
        with fluid.program_guard(program, fluid.Program()), fluid.unique_name.guard():
            x = layers.data("x", list(dims), append_batch_size=False, dtype="float64", stop_gradient=False)
            w = layers.data("w", [rows, 3], append_batch_size=False, dtype="float64")
            out = program.global_block().create_var("out")
            attrs = {"use_calc_stream": True}
            if type != "c_allreduce_sum":
                attrs["nranks"] = members
            program.global_block().append_op(type, {"X": x}, {"Out": out}, attrs)
            loss = layers.reduce_sum(layers.elementwise_mul(layers.square(out), w))
            (gradient,) = fluid.gradients(loss, x)
        return fluid.Executor("cpu").run(program, {"x": inputs[rank], "w": weights[rank]}, [gradient])[0]

    for rank, found in enumerate(together(members, work)):
        for at in range(0, 12, 5):
            sides = []
            for step in (1e-5, -1e-5):
                values = [value.copy() for value in inputs]
                values[rank].reshape(-1)[at] += step
                sides.append(sum((o**2 * w).sum() for o, w in zip(outputs(values), weights, strict=True)))
            assert found.reshape(-1)[at] == pytest.approx((sides[0] - sides[1]) / 2e-5, rel=1e-6, abs=1e-6)


# Errors ------------------------------------------------------------------------------------------------------------


def test_a_member_that_fails_ends_the_others(together: Together) -> None:
    seen = []

    def work(rank: int, group: Any) -> Any:
        if rank == 1:
            raise ValueError("bad batch")
        try:
            run("cpu", "compiled", "c_allreduce_sum", [numbers(rank, (2,))], {"use_calc_stream": True})
        except CollectiveError as exc:
            seen.append(str(exc))
            raise

    with pytest.raises((ValueError, CollectiveError)):
        together(3, work)
    assert len(seen) == 2
    assert all("member 1 of 3 ended by ValueError: bad batch" in text for text in seen)


def test_members_that_do_different_things_are_told(together: Together) -> None:
    def work(rank: int, group: Any) -> Any:
        return run("cpu", "compiled", "c_allreduce_sum", [numbers(0, (2 + rank,))], {"use_calc_stream": True})

    with pytest.raises(CollectiveError, match="different operations"):
        together(2, work)


def test_a_ring_of_another_size_is_refused(together: Together) -> None:
    def work(rank: int, group: Any) -> Any:
        return run("cpu", "compiled", "c_allgather", [numbers(rank, (2, 2))], {"nranks": 3})

    with pytest.raises(CollectiveError, match="nranks is 3, and ring 0 has 2 members"):
        together(2, work)
    with pytest.raises(CollectiveError, match="nranks is 2, and ring 0 has 1 members"):
        run("cpu", "compiled", "c_allgather", [numbers(0, (2, 2))], {"nranks": 2})
    with pytest.raises(CollectiveError, match="root is 1, and ring 0 has 1 members"):
        run("cpu", "compiled", "c_broadcast", [numbers(0, (2, 2))], {"root": 1})


def test_what_makes_no_sense_is_refused_when_it_is_built() -> None:
    with pytest.raises(ShapeError, match="rows that 2 members can share equally"):
        run("cpu", "compiled", "c_reducescatter", [numbers(0, (3, 2))], {"nranks": 2})
    with pytest.raises(DtypeError):
        run("cpu", "compiled", "c_allreduce_sum", [np.array([True])], {})
    with pytest.raises(DtypeError, match="one operator reduces one bucket"):
        run("cpu", "compiled", "c_allreduce_sum", [numbers(0, (2,)), numbers(0, (2,), "float64")], {})
    with pytest.raises(AttributeValueError, match="ring_id"):
        run("cpu", "compiled", "c_allreduce_sum", [numbers(0, (2,))], {"ring_id": -1})


def test_a_maximum_has_no_gradient() -> None:
    x = layers.data("x", [2], stop_gradient=False)
    block = fluid.default_main_program().global_block()
    out = block.create_var("out")
    block.append_op("c_allreduce_max", {"X": x}, {"Out": out})
    with pytest.raises(fluid.errors.GradientError, match="reduce by c_allreduce_sum"):
        fluid.gradients(layers.reduce_sum(out), x)


def test_kernels_are_named(place: str) -> None:
    x = layers.data("x", [2])
    block = fluid.default_main_program().global_block()
    out = block.create_var("out")
    block.append_op("c_allreduce_sum", {"X": x}, {"Out": out})
    report = fluid.explain(place=place, feed={"x": (4, 2)}, fetch_list=[out])
    (line,) = [line for line in report.plan.lines if line.op.type == "c_allreduce_sum"]
    assert line.choice.library == "mpi"
    assert str(line.choice.place) == str(fluid.Place(place.partition(":")[0], int(place.partition(":")[2] or 0)))
