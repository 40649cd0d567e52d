"""The one observation point: fluid.debug and flags."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.errors import NonFiniteError, ProgramError

layers = fluid.layers


@pytest.fixture
def program() -> Any:
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        x = layers.data("x", [3])
        main.result = layers.sqrt(layers.log(layers.scale(x, 2.0)))
    return main


GOOD, ZERO = {"x": np.full((1, 3), 3, "float32")}, {"x": np.asarray([[3, 0, 3]], "float32")}


def run(program: Any, feed: Any) -> Any:
    return fluid.Executor("cpu").run(program, feed, [program.result])[0]


def test_on_op_sees_every_operator_with_its_tensors(program: Any) -> None:
    seen = []
    with fluid.debug(
        on_op=lambda op, io: seen.append(
            (op.type, list(io.inputs), list(io.outputs), next(iter(io.outputs.values())).numpy().sum())
        )
    ):
        run(program, GOOD)
    assert [(type, ins, outs) for type, ins, outs, _ in seen] == [
        ("scale", ["x"], ["scale_0.tmp_0"]), ("log", ["scale_0.tmp_0"], ["log_0.tmp_0"]),
        ("sqrt", ["log_0.tmp_0"], ["sqrt_0.tmp_0"]),
    ]  # fmt: skip
    assert seen[0][3] == 18
    run(program, GOOD)
    assert len(seen) == 3  # over


def test_check_nan_names_the_first_operator(program: Any) -> None:
    with fluid.debug(check_nan=True):
        run(program, GOOD)
        with pytest.raises(
            NonFiniteError,
            match=r"operator log \(test_observe.py:\d+, .* wrote 1 Inf into log_0.tmp_0 .*; its inputs were finite",
        ):
            run(program, ZERO)
        with pytest.raises(NonFiniteError, match=r"operator scale .* wrote 3 NaN .*; its inputs x had some already"):
            run(program, {"x": np.full((1, 3), np.nan, "float32")})
        run(program, GOOD)
    assert np.isnan(run(program, ZERO)).sum() == 1


def test_an_observer_that_raises_ends_the_run_and_the_next_works(program: Any) -> None:
    def fail(op: Any, io: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), fluid.debug(on_op=fail):
        run(program, GOOD)
    assert run(program, GOOD).shape == (1, 3)


def test_observers_are_for_their_thread(program: Any) -> None:
    seen: list[str] = []
    with fluid.debug(on_op=lambda op, io: seen.append(op.type)):
        thread = threading.Thread(target=run, args=(program, GOOD))
        thread.start()
        thread.join()
    assert seen == []


def test_observers_nest(program: Any) -> None:
    outer, inner = [], []
    with fluid.debug(on_op=lambda op, io: outer.append(op.type)):
        with fluid.debug(on_op=lambda op, io: inner.append(op.type)):
            run(program, GOOD)
        run(program, GOOD)
    assert (len(outer), len(inner)) == (6, 3)


def test_the_flag_holds_for_all_threads(program: Any) -> None:
    fluid.set_flags({"FLAGS_check_nan_inf": True})
    try:
        assert fluid.get_flags("FLAGS_check_nan_inf") == {"FLAGS_check_nan_inf": True}
        failures: list[Exception] = []

        def work() -> None:
            try:
                run(program, ZERO)
            except NonFiniteError as error:
                failures.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert len(failures) == 1
    finally:
        fluid.set_flags({"FLAGS_check_nan_inf": False})
    run(program, ZERO)
    with pytest.raises(ProgramError, match="there is no flag 'FLAGS_nothing'"):
        fluid.set_flags({"FLAGS_benchmark": True, "FLAGS_nothing": 1})
    assert fluid.get_flags("FLAGS_benchmark") == {"FLAGS_benchmark": False}
    with pytest.raises(ProgramError, match="there is no flag"):
        fluid.get_flags(["FLAGS_nothing"])


@pytest.mark.parametrize(("text", "on"), [("1", True), ("True", True), ("0", False), ("", False)])
def test_the_flag_may_come_from_the_environment(text: str, on: bool) -> None:
    code = "import fluidlite; print(fluidlite.get_flags('FLAGS_check_nan_inf')['FLAGS_check_nan_inf'])"
    env = {**os.environ, "FLAGS_check_nan_inf": text}
    shown = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True).stdout
    assert shown.strip() == str(on)


def test_values_are_the_same_with_and_without_observers(program: Any) -> None:
    with fluid.program_guard(program):
        program.result = layers.dropout(program.result, 0.5)
    program.random_seed = 3
    alone = fluid.Executor("cpu").run(program, GOOD, [program.result], scope=fluid.Scope())[0]
    with fluid.debug(on_op=lambda op, io: None, check_nan=True):
        watched = fluid.Executor("cpu").run(program, GOOD, [program.result], scope=fluid.Scope())[0]
    np.testing.assert_array_equal(alone, watched)


def test_interpret_runs_what_is_written() -> None:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        x = layers.data("x", [3])
        y = layers.relu(layers.scale(x, 2.0))
    exe = fluid.Executor("cpu")

    def ran() -> list[str]:
        (result,) = exe.run(program, {"x": np.float32([[-1, 0, 2]])}, [y])
        assert result.tolist() == [[0, 0, 4]]
        return [row["op"] for row in exe.explain_last().data()]

    assert len(ran()) == 1  # fused
    with fluid.debug(interpret=True):
        assert ran() == ["scale", "relu"]
    with fluid.debug():
        assert len(ran()) == 1
