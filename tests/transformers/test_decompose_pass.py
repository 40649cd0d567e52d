"""The pass that says operators with others: parts fuse with what is around them, for any size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.transformers import default_passes
from fluidlite.transformers.passes.decompose import Decompose

RNG = np.random.default_rng(3)


def able(place: Any) -> bool:
    return place.array is not None or place.dialect is not None


@pytest.fixture(params=[str(place) for place in fluid.places()])
def place(request: pytest.FixtureRequest) -> str:
    from fluidlite.platform.devices import devices

    if not able(devices.unit(request.param)):
        pytest.skip(f"{request.param} generates no kernels: nothing is decomposed there")
    return str(request.param)


def affine() -> tuple[fluid.Program, list[Any]]:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()), fluid.unique_name.guard():
        x = layers.data("x", [6, 5, 5])
        scale, bias = (layers.data(name, [6], append_batch_size=False) for name in ("scale", "bias"))
        y = layers.relu(layers.affine_channel(layers.tanh(x), scale, bias))
    return program, [y]


def feed(batch: int) -> dict[str, Any]:
    return {
        "x": RNG.standard_normal((batch, 6, 5, 5), "float32"),
        "scale": RNG.standard_normal(6, "float32"),
        "bias": RNG.standard_normal(6, "float32"),
    }


def kernels(exe: fluid.Executor) -> list[str]:
    return [row["op"] for row in exe.explain_last().data()]


def without() -> Any:
    return [each for each in default_passes() if not isinstance(each, Decompose)]


def test_parts_are_fused_with_what_is_around_them(place: str) -> None:
    program, fetches = affine()
    compiled, kept = fluid.Executor(place), fluid.Executor(place, passes=without())
    interpreted = fluid.Executor(place, mode="interpreted")
    for batch in (2, 1, 5):
        given = feed(batch)
        wanted = interpreted.run(program, given, fetches)
        for exe in (compiled, kept):
            np.testing.assert_allclose(exe.run(program, given, fetches)[0], wanted[0], rtol=1e-6, atol=1e-6)
    assert "affine_channel" in kernels(interpreted) and "affine_channel" in kernels(kept)
    assert len(kernels(compiled)) == 1
    assert len(kernels(kept)) == 3


def test_an_operator_whose_parts_name_sizes_is_left_to_the_planner(place: str) -> None:
    """A mesh repeats its inputs so often as the others are long: the parts for one length are wrong for another."""
    program = fluid.Program()
    block = program.global_block()
    x, y = (block.create_var(name, [-1], "float32", is_data=True) for name in "xy")
    outs = [block.create_var(f"out{i}") for i in range(2)]
    block.append_op("meshgrid", {"X": [x, y]}, {"Out": outs})
    fixed = fluid.Program()
    given = [fixed.global_block().create_var(name, [n], "float32", is_data=True) for name, n in (("x", 2), ("y", 3))]
    made = [fixed.global_block().create_var(f"out{i}") for i in range(2)]
    fixed.global_block().append_op("meshgrid", {"X": given}, {"Out": made})
    exe = fluid.Executor(place)
    for rows, columns in ((2, 3), (4, 1), (2, 3), (5, 6)):
        values = {"x": np.arange(rows, dtype="float32"), "y": np.arange(columns, dtype="float32")}
        found = exe.run(program, values, outs)
        for one, other in zip(found, np.meshgrid(values["x"], values["y"], indexing="ij"), strict=True):
            np.testing.assert_array_equal(one, other)
    assert kernels(exe) == ["meshgrid"]
    exe.run(fixed, {"x": np.arange(2, dtype="float32"), "y": np.arange(3, dtype="float32")}, made)
    assert "meshgrid" not in kernels(exe)


def test_a_library_that_was_asked_for_is_kept(place: str) -> None:
    program, fetches = affine()
    for op in program.global_block().ops:
        if op.type == "affine_channel":
            op.hints["op_library"] = "plain"
    exe = fluid.Executor(place)
    exe.run(program, feed(2), fetches)
    assert "affine_channel" in kernels(exe)
