"""Errors and operators name the user's line, and what the user called there."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.base.errors import ProgramError
from fluidlite.program.source_location import PACKAGE_FOLDER


class Recurrent(layers.StaticRNN):
    """A class of the user's own, of one of ours."""

    def __init__(self, name: Any = None) -> None:
        super().__init__(name)


def _step_input(rnn: Any) -> None:
    with rnn.step() if isinstance(rnn, layers.StaticRNN) else rnn.block():
        rnn.step_input(3)


@pytest.mark.parametrize(
    ("make", "api"),
    [
        (lambda: layers.IfElse(3), "layers.IfElse"),  # type: ignore[arg-type]
        (lambda: layers.IfElse(layers.data("c", [2])), "layers.IfElse"),
        (lambda: layers.While(3), "layers.While"),  # type: ignore[arg-type]
        (lambda: layers.Switch(3), "layers.Switch"),  # type: ignore[arg-type]
        (lambda: layers.StaticRNN(3), "layers.StaticRNN"),  # type: ignore[arg-type]
        (lambda: layers.DynamicRNN(3), "layers.DynamicRNN"),  # type: ignore[arg-type]
        (lambda: layers.GRUCell("wide"), "layers.GRUCell"),  # type: ignore[arg-type]
        (lambda: Recurrent(3), "layers.StaticRNN"),
        (lambda: _step_input(Recurrent()), "layers.StaticRNN.step_input"),
        (lambda: _step_input(layers.DynamicRNN()), "layers.DynamicRNN.step_input"),
        (lambda: layers.fc(3, 2), "layers.fc"),
        (lambda: fluid.optimizer.SGD("fast"), "optimizer.SGDOptimizer"),  # type: ignore[arg-type]
        (lambda: fluid.optimizer.Adam(0.1, beta1=2.0), "optimizer.AdamOptimizer"),
        (lambda: fluid.optimizer.SGD(0.1).minimize(3), "optimizer.SGDOptimizer.minimize"),  # type: ignore[arg-type]
        (lambda: fluid.optimizer.ExponentialMovingAverage("a"), "optimizer.ExponentialMovingAverage"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_an_error_names_what_was_called_and_the_line(make: Callable[[], Any], api: str) -> None:
    with pytest.raises(ProgramError) as caught:
        make()
    entry = next(entry for entry in reversed(caught.traceback) if not str(entry.path).startswith(PACKAGE_FOLDER))
    assert str(caught.value).startswith(f"{api} (test_source_location.py:{entry.lineno + 1}): argument ")


@contextmanager
def _scaled(x: Any) -> Any:
    """A context of the user's own, which appends as it ends."""
    yield
    layers.scale(x, 2.0)


def test_operators_name_what_was_called() -> None:
    x = layers.data("x", [4, 3], append_batch_size=False)
    x + 3
    x[1:2]
    with _scaled(x):
        layers.relu(x)
    program = fluid.default_main_program()
    program.global_block().append_op(type="tanh", inputs={"X": x}, outputs={"Out": program.global_block().create_var()})
    rnn, start = layers.StaticRNN(), layers.zeros([3], "float32")
    with rnn.step():
        memory = rnn.memory(init=start)
        step = rnn.step_input(x)
        rnn.update_memory(memory, layers.elementwise_add(memory, step))
        rnn.step_output(memory)
    rnn()
    cases = layers.Switch()
    with cases.case(layers.less_than(layers.ones([1], "float32"), layers.zeros([1], "float32"))):
        layers.fill_constant([1], "float32", 1)
    ops = [op for block in program.blocks for op in block.ops]
    assert {op.line.file for op in ops} == {__file__}
    apis = {op.type: op.line.api for op in ops}
    assert apis["scale"] == "layers.scale"
    assert next(op.line.api for op in ops) == "program.Variable.__add__"
    assert apis["slice"] == "program.Variable.__getitem__"
    assert apis["tanh"] == "program.Block.append_op"
    assert apis["recurrent"] == "layers.StaticRNN"
    assert apis["conditional_block"] == "layers.ConditionalBlock"


def test_a_context_of_the_library_hides_no_line() -> None:
    from fluidlite.program.source_location import source_location

    namespace = {"__name__": "fluidlite.layers.x", "source_location": source_location, "contextmanager": contextmanager}
    text = "@contextmanager\ndef context():\n    yield\n    lines.append(source_location())\n"
    lines: list[Any] = []
    exec(compile(text, PACKAGE_FOLDER + "layers/x.py", "exec"), {**namespace, "lines": lines}, namespace)
    with namespace["context"]():  # type: ignore[operator]
        line = sys._getframe().f_lineno - 1
    assert (lines[0].file, lines[0].number, lines[0].api) == (__file__, line, "layers.context")
