"""Kernels that take another layout: values are rearranged where one is needed, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.errors import KernelNotFoundError, RegistryError
from fluidlite.operators.inference import spec_like
from fluidlite.plugin import Execution, Inference, KernelOptions
from fluidlite.program.kernel_registry import Library, kernels, register_kernel
from fluidlite.program.registry import ops, register_op

layers = fluid.layers
PLACES = [str(place) for place in fluid.places()]
SEEN: list[Any] = []


@pytest.fixture(autouse=True)
def channels_last() -> Iterator[None]:
    """``test_centre``: subtracts the mean over channels; its kernel takes and gives NHWC."""
    fluid.places()
    op = register_op(
        "test_centre",
        Inference(lambda call: {"Out": spec_like(call.spec("X"))}),
        Execution(host_only="its kernel is NumPy's"),
        inputs=("X",),
        outputs=("Out",),
    )
    library = Library("channels_last", ("cpu",), 5)
    kernels.add_library(library)

    def centre(call: Any, context: Any) -> Any:
        def run(context: Any, io: Any) -> None:
            x, out = io.array("X"), io.array("Out")
            assert x.strides[1] == out.strides[1] == x.itemsize  # channels are next to each other in memory
            SEEN.append(x.shape)
            out[...] = x - x.mean(1, keepdims=True)

        return run

    layouts = {"X": "NHWC", "Out": "NHWC"}
    kernel = register_kernel("test_centre", "array", library="channels_last", options=KernelOptions(layouts=layouts))(
        centre
    )
    SEEN.clear()
    yield
    kernels.remove(kernel)
    kernels.remove_library(library)
    ops.remove(op)


def centre(x: Any) -> Any:
    block = x.block
    out = block.create_var(fluid.unique_name.generate("centred"))
    block.append_op("test_centre", {"X": x}, {"Out": out})
    return out


X = np.random.default_rng(0).standard_normal((2, 3, 4, 5), np.float32)


def centred(x: Any) -> Any:
    return x - x.mean(1, keepdims=True)


def run(program: Any, result: Any, place: str = "cpu", x: Any = X) -> tuple[Any, list[str]]:
    exe = fluid.Executor(place, fallback="allow")
    (out,) = exe.run(program, {"x": x}, [result])
    text = exe.explain_last().text()
    return out, [line.strip() for line in text.splitlines() if "(layout)" in line]


@pytest.mark.parametrize("place", PLACES)
def test_a_value_is_rearranged_for_the_kernel_and_back_for_the_fetch(place: str) -> None:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        result = centre(layers.scale(layers.data("x", [3, 4, 5]), 2.0))
    out, moves = run(program, result, place)
    np.testing.assert_allclose(out, centred(2 * X), 1e-5, 1e-5)
    assert [X.shape] == SEEN
    assert len(moves) == 2


def test_elementwise_operators_between_keep_the_layout() -> None:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        hidden = layers.relu(centre(layers.data("x", [3, 4, 5])))
        result = centre(layers.elementwise_add(hidden, layers.tanh(hidden)))
    out, moves = run(program, result)
    hidden = np.maximum(centred(X), 0)
    np.testing.assert_allclose(out, centred(hidden + np.tanh(hidden)), 1e-5, 1e-5)
    assert len(moves) == 2  # one before the first, one for the fetch


def test_an_operator_that_needs_plain_order_gets_it_once() -> None:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        middle = centre(layers.data("x", [3, 4, 5]))
        rows = [layers.reduce_sum(middle, dim=[1, 3]), layers.reshape(middle, [-1, 60])]
        result = layers.concat(rows, axis=1)
    out, moves = run(program, result)
    c = centred(X)
    np.testing.assert_allclose(out, np.concatenate([c.sum((1, 3)), c.reshape(2, 60)], 1), 1e-4, 1e-4)
    assert len(moves) == 2


def test_inputs_in_different_layouts_are_brought_together() -> None:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        x = layers.data("x", [3, 4, 5])
        result = layers.elementwise_add(layers.relu(x), centre(x))
    out, _ = run(program, result)
    np.testing.assert_allclose(out, np.maximum(X, 0) + centred(X), 1e-5, 1e-5)


def test_large_values_keep_the_layout_when_memory_is_shared() -> None:
    x = np.random.default_rng(1).standard_normal((2, 8, 64, 64), np.float32)
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        result = centre(layers.exp(layers.tanh(layers.relu(centre(layers.data("x", [8, 64, 64]))))))
    out, moves = run(program, result, x=x)
    np.testing.assert_allclose(out, centred(np.exp(np.tanh(np.maximum(centred(x), 0)))), 1e-4, 1e-4)
    assert len(moves) == 2


def test_state_is_stored_plain() -> None:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        block = program.global_block()
        kept = block.create_var("kept", [2, 3, 4, 5], "float32", persistable=True)
        block.append_op("test_centre", {"X": layers.data("x", [3, 4, 5])}, {"Out": kept})
    scope = fluid.Scope()
    for _ in range(2):
        fluid.Executor("cpu").run(program, {"x": X}, scope=scope)
        tensor = scope.var("kept").get_tensor()
        assert tensor.layout.name == "plain"
        np.testing.assert_allclose(tensor.numpy(), centred(X), 1e-5, 1e-5)


def test_another_rank_is_refused_with_the_reason() -> None:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        result = centre(layers.data("x", [3, 4]))
    with pytest.raises(KernelNotFoundError, match="it takes layout NHWC for X, this has rank 3"):
        fluid.Executor("cpu").run(program, {"x": X[..., 0]}, [result])


def test_a_layout_without_a_name_is_refused_when_it_is_registered() -> None:
    with pytest.raises(RegistryError, match="no layout is called 'NCWH'; there are plain, NHWC, NDHWC"):
        register_kernel("relu", "cpu", library="other", options=KernelOptions(layouts={"X": "NCWH"}))(
            lambda call, context: None
        )


def test_what_a_kernel_prefers_has_a_name_too() -> None:
    with pytest.raises(RegistryError, match="no layout is called 'NCWH'; there are plain, NHWC, NDHWC"):
        register_kernel("relu", "cpu", library="other", options=KernelOptions(prefers={"X": "NCWH"}))(
            lambda call, context: None
        )


def test_a_kernel_in_vectors_is_for_languages_that_have_them() -> None:
    from types import SimpleNamespace

    from fluidlite.compiler.policy import Policy
    from fluidlite.compiler.selection.refusals import unsuited_reason

    kernel: Any = SimpleNamespace(written_for="registers")
    facts: dict[str, Any] = {"place": fluid.CPUPlace(), "array": None, "lacks": {"array": ()}}
    without: Any = SimpleNamespace(language=SimpleNamespace(registers=None), **facts)
    with_them: Any = SimpleNamespace(language=SimpleNamespace(registers=(16, 32)), **facts)
    call: Any = None
    assert unsuited_reason(kernel, call, without, Policy()) == "cpu has no kernel language that names vector registers"
    assert unsuited_reason(kernel, call, with_them, Policy()) is None
    assert unsuited_reason(kernel, call, with_them, Policy(exclude=("language",))) == "excluded by the policy"


def test_a_kernel_of_few_long_items_is_for_devices_that_run_one_after_another() -> None:
    from types import SimpleNamespace

    from fluidlite.compiler.policy import Policy
    from fluidlite.compiler.selection.refusals import unsuited_reason

    kernel: Any = SimpleNamespace(written_for="cores")
    call: Any = None
    for group, said in (None, None), ((32, 256), "its work-items are few and long, and cpu runs many side by side"):
        unit: Any = SimpleNamespace(place=fluid.CPUPlace(), language=SimpleNamespace(group=group), array=None)
        assert unsuited_reason(kernel, call, unit, Policy()) == said
    with pytest.raises(RegistryError, match="expected '' or 'registers' or 'cores'"):
        KernelOptions(written_for="lanes")
