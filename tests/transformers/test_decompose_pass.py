"""The pass that says operators with others: parts fuse with what is around them, for any size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.compiler.passes.decompose import Decompose
from fluidlite.conformance.samples import samples_of
from fluidlite.platform.device_registry import devices
from fluidlite.program.registry import ops
from fluidlite.transformers import default_passes

RNG = np.random.default_rng(3)


def able(place: Any) -> bool:
    return place.array is not None or place.language is not None


@pytest.fixture(params=[str(place) for place in fluid.places()])
def place(request: pytest.FixtureRequest) -> str:
    if not able(devices.unit(request.param)):
        pytest.skip(f"{request.param} generates no kernels: nothing is decomposed there")
    return str(request.param)


def affine(batch: int = -1) -> tuple[fluid.Program, list[Any]]:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()), fluid.unique_name.guard():
        x = layers.data("x", [batch, 6, 25, 25], append_batch_size=False)
        scale, bias = (layers.data(name, [6], append_batch_size=False) for name in ("scale", "bias"))
        y = layers.relu(layers.affine_channel(layers.tanh(x), scale, bias))
    return program, [y]


def feed(batch: int) -> dict[str, Any]:
    return {
        "x": RNG.standard_normal((batch, 6, 25, 25), "float32"),
        "scale": RNG.standard_normal(6, "float32"),
        "bias": RNG.standard_normal(6, "float32"),
    }


def kernels(exe: fluid.Executor) -> list[str]:
    """What computes: other dims for the same bytes take nothing."""
    return [row["op"] for row in exe.explain_last().data() if row["op"] != "reshape"]


def without() -> Any:
    return [each for each in default_passes() if not isinstance(each, Decompose)]


def test_parts_are_fused_with_what_is_around_them(place: str) -> None:
    program, fetches = affine(2)
    compiled, kept = fluid.Executor(place), fluid.Executor(place, passes=without())
    interpreted = fluid.Executor(place, mode="interpreted")
    given = feed(2)
    wanted = interpreted.run(program, given, fetches)
    for exe in (compiled, kept):
        np.testing.assert_allclose(exe.run(program, given, fetches)[0], wanted[0], rtol=1e-6, atol=1e-6)
    assert "affine_channel" in kernels(interpreted)
    assert kernels(kept) == ["fused.tanh_affine_channel_relu"]  # whole operators are fused, too
    assert len(kernels(compiled)) == 1


def test_dims_that_are_found_wrong_later_are_told_of_what_the_user_wrote(place: str) -> None:
    program = fluid.Program()
    block = program.global_block()
    x, scale, bias = (
        block.create_var(name, dims, "float32", is_data=True)
        for name, dims in (("x", [-1, 6, 25, 25]), ("scale", [-1]), ("bias", [-1]))
    )
    out = block.create_var("out")
    block.append_op("affine_channel", {"X": x, "Scale": scale, "Bias": bias}, {"Out": out}, {"data_layout": "NCHW"})
    exe = fluid.Executor(place)
    for batch in (2, 1, 5):
        exe.run(program, feed(batch), [out])
        assert kernels(exe) == ["affine_channel"]
    with pytest.raises(fluid.FluidError, match=r"affine_channel.* Scale .* expected \[6\], the number of channels"):
        exe.run(program, {**feed(2), "scale": np.ones(4, "float32")}, [out])
    exe.run(program, feed(2), [out])


ELEMENTWISE = {
    "expand": lambda x: layers.expand(x, [2, 3]),
    "reduce_sum": lambda x: layers.reduce_sum(x, dim=[0]),
    "mean": layers.mean,
    "expand_as": lambda x: layers.expand_as(x, layers.concat([x, x], axis=0)),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_what_is_elementwise_is_one_kernel_where_nothing_is_fused(name: str, place: str) -> None:
    """Operators beside each other would read and write what is between them; their gradients, too."""
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        x = layers.data("x", [64, 48], append_batch_size=False, stop_gradient=False)
        out = ELEMENTWISE[name](x)
        (gradient,) = fluid.gradients([out], [x])
    exe = fluid.Executor(place, mode="interpreted")
    given = {"x": RNG.standard_normal((64, 48), "float32")}
    found = exe.run(program, given, [out, gradient])
    if devices.unit(place).language is not None:
        assert not [row["op"] for row in exe.explain_last().data() if row["how"] == "decomposed"]
    for got, wanted in zip(found, fluid.Executor("cpu").run(program, given, [out, gradient]), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_a_library_that_was_asked_for_is_kept(place: str) -> None:
    program, fetches = affine(2)
    for op in program.global_block().ops:
        if op.type == "affine_channel":
            op.set_attr("op_library", "plain")
    exe = fluid.Executor(place)
    exe.run(program, feed(2), fetches)
    assert "affine_channel" in kernels(exe)


# Why not


def test_a_report_says_why_parts_are_not_fused(place: str) -> None:
    """What draws random numbers is taken apart when it is planned; what only computes is a kernel, or fused."""
    program = fluid.Program()
    drawn = program.global_block().create_var("drawn")
    program.global_block().append_op("randperm", {}, {"Out": drawn}, {"n": 16})
    exe = fluid.Executor(place)
    exe.run(program, fetch_list=[drawn])
    for report in (exe.explain_last(), fluid.explain(program, place, fetch_list=[drawn])):
        (row,) = [row for row in report.data() if row["how"] == "decomposed"]
        assert row["op"] == "randperm"
        assert row["not_fused"] == "it draws random numbers"
        assert f"its parts are not fused: {row['not_fused']}" in str(report)
        assert "not fused" in report.html()
    for batch in (-1, 2):
        program, fetches = affine(batch)
        report = fluid.explain(program, place, feed=feed(2), fetch_list=fetches)
        assert "not fused" not in str(report) and not any(row["not_fused"] for row in report.data())
        assert all(op.hints == {} for op in program.global_block().ops)  # the user's program stays as it is


def test_every_operator_that_stays_together_has_a_reason() -> None:
    """On each sample that its place decomposes when it plans, the report says why no pass did."""
    reasons = set()
    for op in ops:
        if op.decompose is None or op.host_only or op.dynamic or op.effect or op.run is not None:
            continue
        for sample in samples_of(op.type)[:2]:
            program, fetches = sample_program(op, sample)
            exe = fluid.Executor("cpu", fallback="allow")
            try:
                exe.run(program, feed=_fed(sample), fetch_list=fetches)
            except fluid.FluidError:
                continue
            for row in exe.explain_last().data():
                if row["how"] == "decomposed" and not row["op"].startswith("fused."):
                    assert row["not_fused"], (op.type, sample.name)
                    reasons.add(row["not_fused"])
    assert reasons


def test_what_has_a_kernel_is_not_decomposed_to_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Saying an operator with others took most of the time of compiling, and was thrown away."""
    said: list[str] = []
    refusing = "fluidlite.compiler.passes.decompose.decompose"
    monkeypatch.setattr(refusing, lambda call: said.append(call.op.type) or "nobody should ask")
    exe, program = fluid.Executor("cpu"), fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        x = layers.data("x", [4, 6], append_batch_size=False)
        y = layers.reduce_max(layers.softmax(x), dim=1)
    exe.run(program, feed={"x": np.ones((4, 6), "float32")}, fetch_list=[y])
    assert not said
    assert "decomposed" not in str(exe.explain_last())


def sample_program(op: Any, sample: Any) -> tuple[fluid.Program, list[str]]:
    program = fluid.Program()
    block = program.global_block()
    inputs: dict[str, list[str]] = {}
    for slot, given in sample.inputs.items():
        inputs[slot] = []
        for k, array in enumerate(given if isinstance(given, list) else [given]):
            name = f"{slot}{k}"
            lod_level = len(sample.lod[slot]) if slot in sample.lod else 0
            block.create_var(name, list(array.shape), str(array.dtype), is_data=True, lod_level=lod_level)
            inputs[slot].append(name)
    wanted = [slot.name for slot in op.outputs if not slot.dispensable and not slot.duplicable]
    wanted = list(sample.outputs) or wanted
    for slot in wanted:
        block.create_var(f"{slot}_out")
    outputs = {slot: [f"{slot}_out"] for slot in wanted}
    block.append_op(op.type, inputs, outputs, dict(sample.attrs))
    return program, [f"{slot}_out" for slot in wanted]


def _fed(sample: Any) -> dict[str, Any]:
    found = {}
    for slot, given in sample.inputs.items():
        for k, array in enumerate(given if isinstance(given, list) else [given]):
            found[f"{slot}{k}"] = np.asarray(array)
    return found
