"""What cannot be bound runs by the interpreter, piece by piece; what is before and behind it is bound all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.compiler.executable import executable, executable_cache
from fluidlite.platform.device_registry import devices
from fluidlite.plugin import Execution, Inference
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.registry import ops
from fluidlite.transformers import Transformer

Values = list[fluid.Variable]


def before(x: fluid.Variable) -> fluid.Variable:
    return layers.exp(x) * 2 + 1


def behind(value: fluid.Variable) -> fluid.Variable:
    return layers.tanh(value) * 3 - 1


def _made(dims: list[int]) -> fluid.Variable:
    block = fluid.default_main_program().global_block()
    return block.create_var(fluid.unique_name.generate("made"), dims, "float32")


def printing(x: fluid.Variable) -> Values:
    return [behind(layers.Print(before(x), message="seen"))]


def python(x: fluid.Variable) -> Values:
    out = _made([4, 3])
    layers.py_func(lambda array: np.asarray(array) * 2, before(x), out)
    return [behind(out)]


def python_of_any_size(x: fluid.Variable) -> Values:
    out = _made([-1, 3])
    layers.py_func(lambda array: np.asarray(array)[: 1 + int(np.asarray(array)[0, 0] > 3)], before(x), out)
    return [behind(out)]


def numbers_that_differ(x: fluid.Variable) -> Values:
    found, where = layers.unique(layers.cast(layers.reshape(before(x), [12]), "int64"))
    return [behind(layers.cast(found, "float32")), where]


def where(x: fluid.Variable) -> Values:
    return [behind(layers.cast(layers.where(before(x) > 3.0), "float32"))]


def shape_by_values(x: fluid.Variable) -> Values:
    rows = layers.cast(layers.reduce_sum(layers.cast(layers.slice(x, [1], [0], [1]) > -9.0, "float32")), "int32")
    columns = layers.fill_constant([1], "int32", 3)
    return [behind(layers.reshape(before(x), layers.concat([rows, columns])))]


def twice(x: fluid.Variable) -> Values:
    """Two parts whose sizes depend on values, and Python between them."""
    one, _ = layers.unique(layers.cast(layers.reshape(before(x), [12]), "int64"))
    out = _made([-1])
    layers.py_func(lambda array: np.asarray(array)[::2], layers.cast(one, "float32"), out)
    other, _ = layers.unique(layers.cast(behind(out), "int64"))
    return [layers.cast(other, "float32") * 2]


@pytest.fixture(params=[True])
def on_host(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def counts(on_host: bool) -> Iterator[Callable[[fluid.Operator], None]]:
    """An operator with a sub-block: X plus how many operators the block has."""

    def run(frame: Any, op: fluid.Operator) -> None:
        (x,) = frame.read("X")
        out = fluid.Tensor()
        out.set(x.numpy() + len(op._block_attr("sub_block").ops), "cpu")
        frame.write("Out", [out])

    made = fluid.register_op(
        "test_counts_its_block",
        Inference(lambda call: {"Out": call.spec("X")}),
        Execution(run=run),
        inputs=("X",),
        outputs=(Slot("Out", on_host=on_host),),
        attrs=(Attr("sub_block", "block"),),
    )
    yield made.type
    ops.remove(made)


def sub_block(x: fluid.Variable) -> Values:
    program = fluid.default_main_program()
    given = before(x)
    inside = program.create_block()
    layers.tanh(given)
    program.rollback()
    out = _made([4, 3])
    program.global_block().append_op("test_counts_its_block", {"X": given}, {"Out": out}, {"sub_block": inside.idx})
    return [behind(out)]


CASES: dict[Callable[[fluid.Variable], Values], tuple[str, bool]] = {
    printing: ("print", False),
    python: ("py_func", False),
    sub_block: ("test_counts_its_block", False),
    python_of_any_size: ("py_func", True),
    numbers_that_differ: ("unique", True),
    where: ("where_index", True),
    shape_by_values: ("concat", True),
    twice: ("unique", True),
}
"""What is no launch or has a size that values decide, or says the size; and whether that ends a piece."""


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_what_is_around_is_bound(
    make: Callable[[fluid.Variable], Values], transformer: Transformer, counts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    type, ends = CASES[make]
    x = layers.data("x", [4, 3], append_batch_size=False)
    results = make(x)
    computation = transformer.computation(results, x)
    given = np.random.default_rng(1).uniform(-1, 1, (4, 3)).astype("float32")
    other = given[::-1] + np.float32(1)
    interpreted = fluid.Executor(transformer.place, mode="interpreted")
    wanted = [interpreted.run(feed={"x": array}, fetch_list=results) for array in (given, other)]

    whole, rest = [], []
    run_plan, run_stages = executable_cache.run_plan, executable.run_stages
    monkeypatch.setattr(executable_cache, "run_plan", lambda *args: whole.append(1) or run_plan(*args))
    monkeypatch.setattr(executable, "run_stages", lambda *args: rest.append(1) or run_stages(*args))
    for _ in range(3):
        for array, found in ((given, wanted[0]), (other, wanted[1])):
            for one, two in zip(computation(array), found, strict=True):
                np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)
    assert not whole
    assert bool(rest) == ends
    rest.clear()
    for _ in range(3):
        computation(given)
        computation(other)
    assert not rest  # what follows is bound too, for each of the sizes
    assert computation.executor.executables.binds == 1

    pieces = computation.executor.pieces
    alone = [piece for piece in pieces if type in piece.steps]
    assert alone, str(pieces)
    if not ends:
        assert [piece.how for piece in alone] == ["unbatched: it runs a sub-block or calls the host"]
    at = pieces.index(alone[0])
    assert any("exp" in step for piece in pieces[: at + 1] for step in piece.steps)
    assert any("tanh" in step or "scale" in step for piece in pieces[at:] for step in piece.steps)
    assert all("interpreted" not in piece.how for piece in pieces)


def test_sizes_that_never_come_again_are_interpreted(cpu: Transformer) -> None:
    """A part behind a size that is new runs once by the interpreter; few are kept."""
    x = layers.data("x", [64], append_batch_size=False)
    found, _ = layers.unique(layers.cast(x, "int64"))
    computation = cpu.computation([layers.cast(found, "float32") * 2], x)
    for number in range(1, 65):
        given = np.arange(64) % number
        np.testing.assert_array_equal(computation(given)[0], np.arange(number) * 2)
        assert computation.executor.pieces[-1].how == "interpreted: it depends on values of this run"
    for _ in range(2):
        np.testing.assert_array_equal(computation(given)[0], np.arange(64) * 2)
    assert "interpreted" not in str(computation.executor.pieces)
    assert len(computation.executor.executables.last._next) <= executable.MAX_NEXT_STAGES


@pytest.mark.parametrize("on_host", [False], indirect=True)
def test_an_operator_that_writes_elsewhere(transformer: Transformer, counts: Any) -> None:
    """One that runs itself, and puts its output on the host where the plan expects it on the place."""
    x = layers.data("x", [4, 3], append_batch_size=False)
    results = sub_block(x)
    computation = transformer.computation(results, x)
    interpreted = fluid.Executor(transformer.place, mode="interpreted")
    given = np.ones((4, 3), "float32")
    if transformer.place != devices.host():  # what it reads is computed on the place
        for run in (lambda: computation(given), lambda: interpreted.run(feed={"x": given}, fetch_list=results)):
            for _ in range(2):
                with pytest.raises(
                    fluid.errors.ProgramError, match=rf"wrote Out on cpu:0; it belongs on {transformer.place}"
                ):
                    run()
    else:
        np.testing.assert_allclose(computation(given)[0], interpreted.run(feed={"x": given}, fetch_list=results)[0])
