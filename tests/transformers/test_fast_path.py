"""Calls of a known signature take the fast path, all others the slow path; both give the same."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
import fluidlite.graph as ng
from fluidlite.transformers import Transformer, make_transformer


def doubled(transformer: Transformer) -> tuple[Any, Any]:
    x = ng.placeholder((3,), dtype="float32")
    return transformer.computation(x * 2.0 + x, x), x


def test_the_third_call_takes_the_fast_path(cpu: Transformer, taken: list[bool]) -> None:
    step, _ = doubled(cpu)
    given = np.array([1, 2, 3], "float32")
    first, _ = step(given), step(given)
    assert taken == []
    second = step(given)
    assert taken == [True]
    assert first.tolist() == second.tolist() == [3, 6, 9]
    given[:] = 0  # arguments and results are copies
    assert second.tolist() == [3, 6, 9]
    second[:] = 7
    assert step(np.array([1, 1, 1], "float32")).tolist() == [3, 3, 3]


@pytest.mark.parametrize("value", [
    [1, 2, 3], (1.0, 2.0, 3.0), np.array([1, 2, 3]), np.array([1, 2, 3], "float64"), np.array([1, 2, 3], ">f4"),
    np.arange(1, 7, 1, "float32")[:3],
], ids=["list", "tuple", "int64", "float64", "swapped", "part"])  # fmt: skip
def test_arguments_that_look_otherwise_give_the_same(cpu: Transformer, value: Any) -> None:
    step, _ = doubled(cpu)
    step(np.zeros(3, "float32"))
    step(np.zeros(3, "float32"))
    assert step(value).tolist() == [3, 6, 9]


def test_sizes_take_turns(cpu: Transformer, taken: list[bool]) -> None:
    x = ng.placeholder((-1, 2))
    alone, several = cpu.computation(x * 2.0, x), cpu.computation([x * 2.0, x + 1.0], x)
    for rows in (1, 3, 2, 1, 3, 2, 1, 3, 2, 1, 3, 2):
        given = np.full((rows, 2), rows, "float32")
        np.testing.assert_array_equal(alone(given), given * 2)
        first, second = several(given)
        np.testing.assert_array_equal(first, given * 2)
        np.testing.assert_array_equal(second, given + 1)
    assert taken.count(True) >= 8


def test_strides_do_not_matter(cpu: Transformer, taken: list[bool]) -> None:
    step, _ = doubled(cpu)
    step(np.zeros(3, "float32"))
    step(np.zeros(3, "float32"))
    assert step(np.array([1, 9, 2, 9, 3, 9], "float32")[::2]).tolist() == [3, 6, 9]
    assert step(np.array([3, 2, 1], "float32")[::-1]).tolist() == [3, 6, 9]
    assert taken == [True, True]


def test_wrong_arguments_are_the_usual_errors(cpu: Transformer) -> None:
    step, x = doubled(cpu)
    step(np.zeros(3, "float32"))
    with pytest.raises(ValueError, match="dims"):
        step(np.zeros(4, "float32"))
    with pytest.raises(ValueError, match="got 2 arguments"):
        step(np.zeros(3, "float32"), np.zeros(3, "float32"))
    with pytest.raises(ValueError, match="got 0 arguments"):
        step()
    assert step(np.ones(3, "float32")).tolist() == [3, 3, 3]
    assert step(feed_dict={x: np.ones(3, "float32")}).tolist() == [3, 3, 3]


def test_results_come_as_they_were_asked_for(cpu: Transformer, taken: list[bool]) -> None:
    x = ng.placeholder((2,), dtype="float32")
    a, b = x + 1.0, x * 3.0
    given = np.array([1, 2], "float32")
    for results, expected in (
        ([a, b, a], ([2, 3], [3, 6], [2, 3])), ((b,), ([3, 6],)), ({a, b}, None), (None, None),
        ([b, b], ([3, 6], [3, 6])),
    ):  # fmt: skip
        step = cpu.computation(results, x)
        for _ in range(4):
            found = step(given)
            if isinstance(results, set):
                assert {key: value.tolist() for key, value in found.items()} == {a: [2, 3], b: [3, 6]}
            elif expected is None:
                assert found is None
            else:
                assert isinstance(found, tuple)
                assert tuple(value.tolist() for value in found) == expected
                assert len({id(value) for value in found}) == len(found)
    assert sum(taken) >= 6


def test_state_is_read_and_written(cpu: Transformer, taken: list[bool]) -> None:
    count = ng.variable((1,), initial_value=0.0)
    by = ng.placeholder((1,), dtype="float32")
    step = cpu.computation(ng.sequential([ng.assign(count, count + by), count]), by)
    read = cpu.computation(count)
    one = np.ones(1, "float32")
    assert [step(one).item() for _ in range(5)] == [1, 2, 3, 4, 5]
    assert read().item() == 5
    tensor = cpu.scope.find_var(count.name).tensor
    before = tensor.version
    step(one)
    assert tensor.version > before
    tensor.set(np.array([40], "float32"), cpu.place)
    assert step(one).item() == 41
    assert read().item() == 41
    assert taken.count(True) >= 5


def test_an_argument_that_is_state_goes_the_usual_way(cpu: Transformer, taken: list[bool]) -> None:
    kept = ng.variable((1,), initial_value=1.0)
    step = cpu.computation(kept * 2.0, kept)
    assert [step(np.array([v], "float32")).item() for v in (1, 2, 3)] == [2, 4, 6]
    assert taken == []
    assert cpu.computation(kept)().item() == 3


def test_other_computations_may_run_between(cpu: Transformer) -> None:
    """All share one arena, which another makes larger, or moves."""
    step, _ = doubled(cpu)
    given = np.array([1, 2, 3], "float32")
    wide = ng.placeholder((-1, 64), dtype="float32")
    other = cpu.computation(ng.exp(wide) * 2.0 - ng.exp(wide + 1.0), wide)
    for rows in (1, 700, 3, 5000, 2):
        assert step(given).tolist() == [3, 6, 9]
        other(np.zeros((rows, 64), "float32"))
        assert step(given).tolist() == [3, 6, 9]


def test_a_late_error_comes_and_the_next_call_works(cpu: Transformer) -> None:
    table = ng.constant(np.arange(6, dtype="float32").reshape(3, 2))
    index = ng.placeholder((2,), dtype="int32")
    with fluid.program_guard(table.block.program):
        rows = fluid.layers.gather(table, index)
    step = cpu.computation(rows, index)
    good = np.array([2, 0], "int32")
    for _ in range(3):
        assert step(good).tolist() == [[4, 5], [0, 1]]
    with pytest.raises(fluid.errors.OutOfRangeError, match="gather"):
        step(np.array([1, 9], "int32"))
    assert step(good).tolist() == [[4, 5], [0, 1]]


def test_observers_see_it(cpu: Transformer) -> None:
    x = ng.placeholder((3,), dtype="float32")
    step = cpu.computation(ng.log(x), x)
    for _ in range(2):
        step(np.ones(3, "float32"))
    with fluid.debug(check_nan=True), pytest.raises(fluid.FluidError, match="log"):
        step(np.full(3, -1, "float32"))
    assert np.isnan(step(np.full(3, -1, "float32"))).all()


def test_other_threads_go_the_usual_way(cpu: Transformer) -> None:
    step, _ = doubled(cpu)
    given = np.array([1, 2, 3], "float32")
    wrong: list[Any] = []

    def work() -> None:
        for _ in range(50):
            found = step(given).tolist()
            if found != [3, 6, 9]:
                wrong.append(found)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    work()
    for thread in threads:
        thread.join(60)
    assert wrong == []


def test_a_closed_transformer_raises() -> None:
    transformer = make_transformer()
    step, _ = doubled(transformer)
    for _ in range(3):
        step(np.ones(3, "float32"))
    transformer.close()
    with pytest.raises(fluid.FluidError, match="closed"):
        step(np.ones(3, "float32"))


def test_a_transformer_with_a_run_of_its_own_is_asked(taken: list[bool]) -> None:
    class Counting(Transformer):
        calls = 0

        def run(self, *args: Any) -> Any:
            self.calls += 1
            return super().run(*args)

    with Counting("cpu") as transformer:
        step, _ = doubled(transformer)
        for _ in range(4):
            step(np.ones(3, "float32"))
        assert transformer.calls == 4
    assert taken == []


def test_every_place_gives_the_same(transformer: Transformer) -> None:
    step, _ = doubled(transformer)
    for value in (1.0, 2.0, 3.0):
        assert step(np.full(3, value, "float32")).tolist() == [3 * value] * 3


def test_random_numbers_go_on(taken: list[bool]) -> None:
    def drawn(times: int) -> list[Any]:
        with fluid.program_guard(fluid.Program()), fluid.unique_name.guard(), Transformer("cpu", seed=5) as transformer:
            x = ng.placeholder((4,), dtype="float32")
            noise = fluid.layers.uniform_random([4], seed=0)
            step = transformer.computation(x + noise, x)
            return [step(np.zeros(4, "float32")).tolist() for _ in range(times)]

    found = drawn(4)
    assert len({tuple(line) for line in found}) == 4
    with fluid.debug(on_op=lambda *args: None):  # through the interpreter
        assert drawn(4) == found
    assert any(taken)


def test_state_whose_memory_is_replaced_is_seen(cpu: Transformer, taken: list[bool]) -> None:
    kept = ng.variable((4,), initial_value=1.0)
    x = ng.placeholder((4,), dtype="float32")
    step = cpu.computation(kept * x, x)
    ones = np.ones(4, "float32")
    for _ in range(4):
        assert step(ones).tolist() == [1] * 4
    other = fluid.Tensor()
    other.set(np.full(4, 5, "float32"), cpu.place)
    cpu.scope.find_var(kept.name).tensor.share_data_with(other)
    assert step(ones).tolist() == [5] * 4
    assert taken == [True, True, False]


def test_contexts_belong_to_threads(cpu: Transformer, taken: list[bool]) -> None:
    step, _ = doubled(cpu)
    ones = np.ones(3, "float32")
    step(ones)
    step(ones)
    thread = threading.Thread(target=step, args=(ones,))
    thread.start()
    thread.join(60)
    assert taken == [False]
