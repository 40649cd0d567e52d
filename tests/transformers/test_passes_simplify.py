"""Exact simplification: what goes, what stays, and that no bit of a result changes."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
import fluidlite.graph as ng
from fluidlite.compiler.kernel_checks import debug
from fluidlite.graph.value import emit as append
from fluidlite.transformers import (
    CommonSubexpressions,
    Computation,
    EliminateCopies,
    Graph,
    PassList,
    SimplifyArithmetic,
    SimplifyShapes,
    Transformer,
    default_passes,
    make_transformer,
)


@pytest.fixture(autouse=True)
def _only_these(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default list up to its phase of simplification."""

    def shortened() -> PassList:
        found = default_passes()
        return PassList(item for item in found if found.phase(item) in ("prune", "simplify"))

    monkeypatch.setattr("fluidlite.compiler.transformer.default_passes", shortened)


SPECIAL = np.float32([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.5, -2.25, 1e-42, -3e38])


def work(computation: Computation) -> list[str]:
    """What a computation runs, constants apart."""
    return [op.type for op in computation.transformed.operators if op.type != "fill_constant"]


def emit(type: str, x: Any, slot: str = "X", **attrs: Any) -> Any:
    return append(type, {slot: x}, attrs)


def filled(value: float, *dims: int) -> Any:
    return append("fill_constant", {}, {"shape": list(dims), "value": value, "dtype": "float32"})


def scaled(x: Any, factor: float, bias: float = -0.0) -> Any:
    return emit("scale", x, scale=factor, bias=bias)


def cast(x: Any, dtype: str) -> Any:
    return emit("cast", x, out_dtype=dtype)


def reshaped(x: Any, *dims: int) -> Any:
    return emit("reshape2", x, shape=list(dims))


def turned(x: Any, *axis: int) -> Any:
    return emit("transpose2", x, axis=list(axis))


Build = Callable[[Any], Any]

GONE: list[tuple[str, Build, list[str]]] = [
    ("times one", lambda x: x * 1, []),
    ("one times", lambda x: 1 * x, []),
    ("over one", lambda x: x / 1, []),
    ("minus zero", lambda x: x - 0, []),
    ("plus minus zero", lambda x: x + ng.constant(-0.0), []),
    ("minus zero plus", lambda x: ng.constant(-0.0) + x, []),
    ("to the power of one", lambda x: x**1, []),
    ("plus zero twice", lambda x: (x + 0) + 0, ["elementwise_add"]),
    ("exp plus zero", lambda x: ng.exp(x) + 0, ["exp"]),
    ("exp scaled by one", lambda x: scaled(ng.exp(x), 1.0, 0.0), ["exp"]),
    ("scaled by one", lambda x: scaled(x, 1.0), []),
    ("negated twice", lambda x: scaled(scaled(x, -1.0), -1.0), []),
    ("negated and scaled", lambda x: scaled(scaled(x, 0.1), -1.0, 0.0), ["scale"]),
    ("powers of two", lambda x: scaled(scaled(x, 4.0), -2.0), ["scale"]),
    ("maximum of itself", lambda x: ng.maximum(x, x), []),
    ("relu of relu", lambda x: ng.relu(ng.relu(x)), ["relu"]),
    ("abs of abs", lambda x: abs(abs(x)), ["abs"]),
    ("floor of floor", lambda x: ng.floor(ng.floor(x)), ["floor"]),
    ("sign of sign", lambda x: ng.sign(ng.sign(x)), ["sign"]),
    ("not not", lambda x: ng.where(emit("logical_not", emit("logical_not", x < 1)), x, x), ["less_than", "where"]),
    ("sum of one", lambda x: emit("sum", [x]), []),
    ("concat of one", lambda x: emit("concat", [x]), []),
    ("expanded once", lambda x: emit("expand", x, expand_times=[1]), []),
    ("nothing padded", lambda x: emit("pad", x, paddings=[0, 0]), []),
    ("the whole", lambda x: emit("slice", x, "Input", axes=[0], starts=[0], ends=[100]), []),
    ("dropout at test", lambda x: emit("dropout", x, is_test=True, dropout_implementation="upscale_in_train"), []),
    ("cast to its own dtype", lambda x: cast(x, "float32"), []),
    ("cast and back", lambda x: cast(cast(x, "float64"), "float32"), []),
    ("cast on", lambda x: cast(cast(x, "float64"), "float16"), ["cast"]),
    ("cast on to integers", lambda x: cast(cast(x, "float64"), "int32"), ["cast"]),
    ("assigned twice", lambda x: ng.exp(ng.value_of(ng.value_of(x))), ["exp"]),
    ("reshaped and back", lambda x: reshaped(reshaped(x, 3, 3), 9), []),
    ("reshaped twice", lambda x: reshaped(reshaped(x, 3, 3), 9, 1), ["reshape2"]),
    ("squeezed and reshaped", lambda x: reshaped(emit("unsqueeze2", x, axes=[0]), 3, 3), ["reshape2"]),
    ("turned and back", lambda x: turned(turned(reshaped(x, 3, 3), 1, 0), 1, 0), ["reshape2"]),
    ("turned nowhere", lambda x: turned(x, 0), []),
    ("turned twice", lambda x: turned(turned(reshaped(x, 1, 3, 3), 2, 0, 1), 2, 1, 0), ["reshape2", "transpose2"]),
    ("turned three ways", lambda x: turned(turned(reshaped(x, 1, 3, 3), 2, 0, 1), 0, 2, 1), ["reshape2", "transpose2"]),
]

KEPT: list[tuple[str, Build]] = [
    ("plus zero", lambda x: x + 0),
    ("zero plus", lambda x: 0 + x),
    ("minus minus zero", lambda x: x - ng.constant(-0.0)),
    ("times zero", lambda x: x * 0),
    ("minus itself", lambda x: x - x),
    ("over itself", lambda x: x / x),
    ("zero minus", lambda x: 0 - x),
    ("one over", lambda x: 1 / x),
    ("to the power of zero", lambda x: x**0),
    ("scaled by one with a bias of zero", lambda x: scaled(x, 1.0, 0.0)),
    ("scaled by two tenths", lambda x: scaled(scaled(x, 0.1), 0.2)),
    ("scaled down and up", lambda x: scaled(scaled(x, 0.5), 2.0)),
    ("scaled up out of range", lambda x: scaled(scaled(x, 2.0**80), 2.0**80)),
    ("a lost sign and a kept one", lambda x: scaled(scaled(x, 1.0, 0.0), -1.0)),
    ("a bias before the scale", lambda x: emit("scale", scaled(x, -1.0), scale=-1.0, bias_after_scale=False)),
    ("a narrow dtype plus zero", lambda x: cast(x, "float16") + 0),
    ("scaled down plus zero", lambda x: scaled(x, 1e-10, 0.0) + 0),
    ("scaled with a negative bias plus zero", lambda x: scaled(x, 2.0, -0.0) + 0),
    ("through a narrow dtype", lambda x: cast(cast(x, "float16"), "float32")),
    ("through integers", lambda x: cast(cast(x, "int32"), "float32")),
    ("integers through floats", lambda x: cast(cast(cast(x, "int32"), "float64"), "uint8")),
    ("a part", lambda x: emit("slice", x, "Input", axes=[0], starts=[1], ends=[100])),
    ("broadcast by ones", lambda x: x * filled(1.0, 2, 9)),
    ("dropout at test", lambda x: emit("dropout", x, is_test=True)),
]


def same_bits(found: Any, wanted: Any) -> None:
    """Equal to the sign of zero; NaN is NaN."""
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)
    number = ~np.isnan(wanted.astype("float64"))
    np.testing.assert_array_equal(np.signbit(found)[number], np.signbit(wanted)[number])


def both_ways(transformer: Transformer, build: Build, dtype: str = "float32") -> tuple[Computation, Computation]:
    """A computation with all passes, and without any; their results have the same bits."""
    x = ng.placeholder((9,), dtype)
    y = build(x)
    with_passes = transformer.computation(y, x)
    given = SPECIAL.astype(dtype) if "float" in dtype else np.arange(-4, 5).astype(dtype)
    with np.errstate(all="ignore"):
        found = with_passes(given)
        before, transformer.graph_passes = transformer.graph_passes, []  # type: ignore[assignment]
        without = transformer.computation(y, x)
        same_bits(found, without(given))
    transformer.graph_passes = before
    return with_passes, without


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "build", "left"), GONE, ids=[case[0] for case in GONE])
def test_what_goes(name: str, build: Build, left: list[str], transformer: Transformer) -> None:
    computation, without = both_ways(transformer, build)
    assert work(computation) == left
    assert len(work(without)) > len(left)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "build"), KEPT, ids=[case[0] for case in KEPT])
def test_what_stays(name: str, build: Build, cpu: Transformer) -> None:
    computation, without = both_ways(cpu, build)
    assert work(computation) == work(without)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "int64"])
def test_other_dtypes(dtype: str, cpu: Transformer) -> None:
    computation, _ = both_ways(cpu, lambda x: ((x * 1 - 0) / 1) * 1, dtype)
    assert work(computation) == []
    computation, _ = both_ways(cpu, lambda x: x + 0, dtype)
    assert work(computation) == ([] if dtype.startswith("int") else ["elementwise_add"])


def test_one_row_is_no_reason_to_drop_a_broadcast(cpu: Transformer) -> None:
    """The batch may be one row, which the ones repeat."""
    x = ng.placeholder((-1, 2))
    computation = cpu.computation(x * filled(1.0, 3, 2), x)
    assert computation([[1, 2]]).shape == (3, 2)
    assert work(computation) == ["elementwise_mul"]


def test_unknown_dims_of_views(cpu: Transformer) -> None:
    x = ng.placeholder((-1, 6))
    back = reshaped(reshaped(x, -1, 2, 3), -1, 6)
    other = reshaped(reshaped(x, -1, 2, 3), -1, 3)
    two = ng.placeholder((-1, -1, 4))
    open_dims = reshaped(reshaped(two, 0, 0, 2, 2), 0, 0, 4)
    computation = cpu.computation([back, other, open_dims], x, two)
    given = np.arange(12, dtype="float32").reshape(2, 6)
    wide = np.ones((2, 0, 4), "float32")
    found = computation(given, wide)
    np.testing.assert_array_equal(found[0], given)
    np.testing.assert_array_equal(found[1], given.reshape(4, 3))
    assert found[2].shape == (2, 0, 4)
    assert work(computation) == ["reshape2"] * 3, "the dims of the last are not known well enough"


def test_the_gradient_of_a_turn_turns_back(transformer: Transformer) -> None:
    w = ng.variable((2, 3, 4), 1.0)
    weights = np.arange(24, dtype="float32").reshape(3, 4, 2)
    loss = ng.sum(turned(turned(w, 2, 0, 1), 2, 0, 1) * weights)
    computation = transformer.computation(ng.deriv(loss, w))
    np.testing.assert_array_equal(computation(), weights.transpose(2, 0, 1))
    assert work(computation) == ["transpose2", "elementwise_mul_grad", "transpose2"]


def test_what_is_padded_or_cut_at_unknown_dims_stays(cpu: Transformer) -> None:
    x = ng.placeholder((-1,))
    wide = emit("pad", x, paddings=[1, 1])
    part = emit("slice", x, "Input", axes=[0], starts=[1], ends=[100])
    found = cpu.computation([wide, part, emit("pad", x, paddings=[0, 0])], x)([1, 2])
    assert [array.tolist() for array in found] == [[0, 1, 2, 0], [2], [1, 2]]


def test_gradients_of_transposes_and_views(transformer: Transformer) -> None:
    """The backward of a turn is a turn; two that meet are none."""
    w = ng.variable((2, 6), np.arange(12.0).reshape(2, 6))
    turn = turned(turned(reshaped(w, 2, 2, 3), 0, 2, 1), 0, 2, 1)
    loss = ng.sum(ng.square(reshaped(turn, 12)))
    computation = transformer.computation([loss, ng.deriv(loss, w)])
    found = computation()
    np.testing.assert_array_equal(found[1], 2 * np.arange(12.0).reshape(2, 6))
    assert work(computation) == ["reshape2", "square", "reduce_sum", "reshape2", "square_grad", "reshape2"]


def test_equal_constants_of_other_signs_stay_apart(cpu: Transformer) -> None:
    x = ng.placeholder((2,))
    zero, minus = ng.constant(0.0), ng.constant(-0.0)
    cpu.graph_passes = [CommonSubexpressions()]  # type: ignore[assignment]
    found = cpu.computation([ng.minimum(x, 0) / zero, ng.minimum(x, 0) / minus], x)([-1, -1])
    np.testing.assert_array_equal(found, np.float32([[-np.inf] * 2, [np.inf] * 2]))


# Copies, and state


def grown_by_a_copy(passes: list[Any]) -> int:
    """How much memory a program with a copy takes, and that the copy goes with the pass."""
    with make_transformer() as transformer, fluid.program_guard(fluid.Program(), fluid.Program()):
        transformer.graph_passes = passes  # type: ignore[assignment]
        x = ng.placeholder((1 << 18,))
        y = ng.exp(x)
        computation = transformer.computation(ng.sum(ng.value_of(y)) + ng.sum(y), x)
        given = np.zeros(1 << 18, "float32")
        gc.collect()
        fluid.memory.reset_peak(transformer.place)
        before = fluid.memory.used(transformer.place)
        assert computation(given) == 1 << 19
        assert work(computation).count("assign") == (not passes)
        return fluid.memory.peak(transformer.place) - before


def test_a_copy_goes_and_its_memory_with_it() -> None:
    assert grown_by_a_copy([]) - grown_by_a_copy([EliminateCopies()]) >= 0.9 * (1 << 20)


def test_a_copy_of_state_that_is_overwritten_stays(transformer: Transformer) -> None:
    v = ng.variable((2,), 1.0)
    old = ng.value_of(v)
    put = ng.assign(v, v * 3)
    kept = ng.value_of(v)
    computation = transformer.computation([ng.exp(old), put, kept + old])
    np.testing.assert_allclose(computation()[2], [4, 4])
    np.testing.assert_allclose(computation()[2], [12, 12])
    graph = Graph(computation.program, computation.fetches)
    EliminateCopies().do_pass(graph)
    graph.prune()
    assert [op.type for op in graph].count("assign") == 1, "the snapshot before the write; that behind it is gone"


def test_a_copy_that_is_updated_in_place_stays(transformer: Transformer) -> None:
    program = fluid.default_main_program()
    block = program.global_block()
    w = block.create_parameter("w", [2], "float32")
    g, rate, copy = (block.create_var(name, [n], "float32", is_data=True) for name, n in (("g", 2), ("r", 1), ("c", 2)))
    copy.is_data = False
    block.append_op("assign", {"X": w}, {"Out": copy})
    block.append_op("sgd", {"Param": copy, "Grad": g, "LearningRate": rate}, {"ParamOut": copy})
    computation = transformer.computation([copy, w], g, rate)
    transformer.set_state(w, np.float32([5, 5]))
    moved, kept = computation([1, 2], [1])
    np.testing.assert_array_equal(moved, [4, 3])
    np.testing.assert_array_equal(kept, [5, 5])


def test_no_read_moves_across_a_write(transformer: Transformer) -> None:
    """Random sequences of reads and writes of two variables: each read sees what was written last before it."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        with fluid.program_guard(fluid.Program(), fluid.Program()):
            state = [ng.variable((2,), float(k + 1)) for k in range(2)]
            now = [np.full(2, k + 1.0) for k in range(2)]
            results: list[Any] = []
            wanted: list[Any] = []
            for _ in range(14):
                k, j = rng.integers(2, size=2)
                kind = rng.integers(4)
                if kind == 0:
                    results.append(ng.value_of(state[k]) * 1)
                    wanted.append(now[k].copy())
                elif kind == 1:
                    results.append((state[k] - 0) * (state[k] / 1))
                    wanted.append(now[k] ** 2)
                elif kind == 2:
                    results.append(ng.assign(state[k], state[j] * 1 + 1))
                    wanted.append(None)
                    now[k] = now[j] + 1
                else:
                    results.append(ng.assign(state[k], ng.value_of(ng.value_of(state[j]))))
                    wanted.append(None)
                    now[k] = now[j].copy()
            computation = transformer.computation([*results, *state])
            for found, right in zip(computation(), [*wanted, *now], strict=True):
                if right is not None:
                    np.testing.assert_array_equal(found, right)


def test_passes_leave_the_users_program_alone(cpu: Transformer) -> None:
    x = ng.placeholder((9,))
    computation = cpu.computation(reshaped(reshaped(x * 1, 3, 3), 9) + 0, x)
    before, main = str(computation.program), str(fluid.default_main_program())
    computation(SPECIAL)
    assert (str(computation.program), str(fluid.default_main_program())) == (before, main)


@pytest.mark.parametrize("one", [SimplifyArithmetic, SimplifyShapes, EliminateCopies, CommonSubexpressions])
def test_a_long_chain_comes_to_rest_at_once(one: Any, cpu: Transformer) -> None:
    x = ng.placeholder((9,))
    y = x
    for _ in range(60):
        y = ng.value_of(reshaped(reshaped(scaled(y * 1, -1.0), 3, 3), 9))
    computation = cpu.computation(y, x)
    graph = Graph(computation.program, computation.fetches)
    one().do_pass(graph)
    graph.prune()
    first = str(graph)
    one().do_pass(graph)
    graph.prune()
    assert str(graph) == first
    np.testing.assert_array_equal(computation(SPECIAL), SPECIAL)
    assert work(computation) == []


def test_the_line_of_the_user_stays(cpu: Transformer) -> None:
    x = ng.placeholder((9,))
    y = scaled(scaled(x, 0.1), -1.0, 0.0)
    computation = cpu.computation(y, x)
    seen: list[str] = []
    with debug(on_op=lambda op, outputs: seen.append(str(op))):
        computation(SPECIAL)
    assert [text for text in seen if "scale" in text and "test_passes_simplify.py" in text]


def test_many_operators_are_quick(cpu: Transformer) -> None:
    """A thousand operators with something to do in each."""
    from time import process_time  # others on this machine do not count

    x = ng.placeholder((4,))
    y = x
    for _ in range(250):
        y = ng.exp(ng.value_of((y * 1) - 0)) * 0.5
    computation = make_transformer().computation(y, x)
    begun = process_time()
    computation.transform()
    assert process_time() - begun < 20
    assert work(computation).count("exp") == 250
