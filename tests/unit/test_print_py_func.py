"""print and py_func: control-flow and host-callback operators, on every place."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.errors import AttributeValueError, DtypeError, ProgramError, ShapeError
from fluidlite.operators import py_func

layers = fluid.layers
PLACES = [str(place) for place in fluid.places()]
X = np.array([[1, -2, 3], [4, 5, -6]], "float32")


def program_of(build: Any) -> tuple[Any, Any]:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        x = layers.data("x", [3])
        x.stop_gradient = False
        return program, build(x)


# --- print -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
def test_print_shows_a_tensor_and_hands_it_on(place: str, capsys: Any) -> None:
    program, out = program_of(lambda x: layers.Print(layers.scale(x, 2.0), message="doubled", summarize=4))
    exe = fluid.Executor(place, fallback="allow")
    (value,) = exe.run(program, {"x": X}, [out])
    assert value.tolist() == (2 * X).tolist()
    text = capsys.readouterr().out
    where, name = exe.explain_last().data()[0]["place"], program.global_block().ops[-1].input("In")[0]
    assert text.splitlines() == [
        "1\tdoubled", f"Variable: {name}", f"  - place: {where}", "  - lod: []", "  - shape: [2, 3]",
        "  - dtype: float32", "  - data: [2.0 -4.0 6.0 8.0 ...]",
    ]  # fmt: skip


def test_print_prints_the_first_n_times(capsys: Any) -> None:
    program, _ = program_of(lambda x: layers.Print(x, first_n=2, print_tensor_name=False, print_tensor_type=False))
    exe = fluid.Executor("cpu")
    for _ in range(4):
        exe.run(program, {"x": X})  # nobody fetches it: it prints all the same
    text = capsys.readouterr().out
    assert text.count("shape: [2, 3]") == 2
    assert "Variable" not in text
    assert "dtype" not in text


@pytest.mark.parametrize(("phase", "values", "gradients"), [("both", 1, 1), ("forward", 1, 0), ("backward", 0, 1)])
def test_print_shows_the_gradient(phase: str, values: int, gradients: int, capsys: Any) -> None:
    def build(x: Any) -> Any:
        loss = layers.mean(layers.square(layers.Print(x, print_phase=phase)))
        return fluid.gradients(loss, x)[0]

    program, grad = program_of(build)
    (value,) = fluid.Executor("cpu").run(program, {"x": X}, [grad])
    np.testing.assert_allclose(value, X / 3, 1e-6)
    text = capsys.readouterr().out
    assert text.count("Variable: x\n") == values
    assert text.count("@GRAD") == gradients


def test_what_is_printed_is_not_overwritten_in_place() -> None:
    big = np.ones((64, 256), "float32")
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        hidden = layers.scale(layers.data("x", [256]), 1.0)
        printed = layers.Print(hidden, first_n=0)
        changed = layers.relu(layers.scale(hidden, -1.0))  # the last reader of hidden
        out = layers.elementwise_add(changed, printed)
    (value,) = fluid.Executor("cpu").run(program, {"x": big}, [out])
    assert value.tolist() == big.tolist()


def test_an_unknown_phase_is_refused() -> None:
    with pytest.raises(AttributeValueError, match="print_phase"):
        program_of(lambda x: layers.Print(x, print_phase="sideways"))


# --- py_func ---------------------------------------------------------------------------------------------------------


def declared(name: str, shape: list[int], dtype: str = "float32") -> Any:
    return fluid.default_main_program().global_block().create_var(name, shape, dtype)


@pytest.mark.parametrize("place", PLACES)
def test_py_func_runs_a_function_and_its_gradient(place: str) -> None:
    def forward(x: Any) -> Any:
        return np.tanh(np.asarray(x))

    def backward(x: Any, y: Any, dy: Any) -> Any:
        return np.asarray(dy) * (1 - np.square(np.asarray(y)))

    def build(x: Any) -> Any:
        y = layers.py_func(forward, layers.scale(x, 0.5), declared("y", [-1, 3]), backward)
        loss = layers.reduce_sum(layers.scale(y, 3.0))
        return [y, *fluid.gradients(loss, x)]

    program, fetches = program_of(build)
    y, grad = fluid.Executor(place, fallback="allow").run(program, {"x": X}, fetches)
    np.testing.assert_allclose(y, np.tanh(X / 2), 1e-5)
    np.testing.assert_allclose(grad, 1.5 * (1 - np.tanh(X / 2) ** 2), 1e-4, 1e-6)


def test_py_func_skips_what_the_gradient_does_not_take() -> None:
    seen = []

    def backward(*arguments: Any) -> Any:
        seen.append(len(arguments))
        return 2 * np.asarray(arguments[-1])

    def build(x: Any) -> Any:
        y = declared("y", [-1, 3])
        layers.py_func(lambda x: 2 * np.asarray(x), x, y, backward, skip_vars_in_backward_input=[x, y])
        return fluid.gradients(layers.reduce_sum(y), x)[0]

    program, grad = program_of(build)
    (value,) = fluid.Executor("cpu").run(program, {"x": X}, [grad])
    assert value.tolist() == np.full_like(X, 2).tolist()
    assert seen == [1]


def test_py_func_may_choose_its_dims() -> None:
    def build(x: Any) -> Any:
        few = layers.py_func(lambda x: np.asarray(x)[np.asarray(x) > 0], x, declared("few", [-1]))
        return layers.scale(few, 10.0)

    program, out = program_of(build)
    exe = fluid.Executor("cpu")
    assert exe.run(program, {"x": X}, [out])[0].tolist() == [10, 30, 40, 50]
    assert exe.run(program, {"x": -X}, [out])[0].tolist() == [20, 60]
    assert exe.run(program, {"x": -abs(X)}, [out])[0].shape == (0,)


def test_py_func_takes_and_makes_several() -> None:
    def build(x: Any) -> Any:
        outs = [declared("low", [-1, 3]), declared("count", [1], "int64")]
        layers.py_func(lambda a, b: (np.minimum(a, b), np.array([a.shape()[0]])), [x, layers.square(x)], outs)
        return outs

    program, outs = program_of(build)
    low, count = fluid.Executor("cpu").run(program, {"x": X}, outs)
    assert low.tolist() == np.minimum(X, X * X).tolist()
    assert count.tolist() == [2]


def test_py_func_without_outputs_runs_for_its_effect() -> None:
    seen = []

    def watch(x: Any) -> None:
        seen.append(np.asarray(x).sum())

    program, _ = program_of(lambda x: layers.py_func(watch, x, None))
    fluid.Executor("cpu").run(program, {"x": X})
    assert seen == [X.sum()]


@pytest.mark.parametrize(
    ("result", "error", "words"),
    [
        (np.zeros((2, 3)), DtypeError, "returned float64 for 'y', which is declared float32"),
        (np.zeros((2, 4), "float32"), ShapeError, r"returned dims \[2, 4\] for 'y', which is declared \[-1, 3\]"),
        ((X, X), ProgramError, "returned 2 values for 1 outputs"),
    ],
)
def test_a_wrong_result_names_the_function(result: Any, error: Any, words: str) -> None:
    def wrong(x: Any) -> Any:
        return result

    program, y = program_of(lambda x: layers.py_func(wrong, x, declared("y", [-1, 3])))
    with pytest.raises(error, match=f"py_func.*wrong.* {words}"):
        fluid.Executor("cpu").run(program, {"x": X}, [y])


def test_an_exception_in_the_function_is_the_cause() -> None:
    def broken(x: Any) -> Any:
        raise KeyError("no such thing")

    program, y = program_of(lambda x: layers.py_func(broken, x, declared("y", [-1, 3])))
    exe = fluid.Executor("cpu")
    with pytest.raises(fluid.FluidError, match=r"operator py_func .*no such thing") as caught:
        exe.run(program, {"x": X}, [y])
    assert isinstance(caught.value.__cause__, KeyError)


def test_what_py_func_is_given_is_checked() -> None:
    with pytest.raises(ProgramError, match="func is 3; expected a function"):
        program_of(lambda x: layers.py_func(3, x, declared("y", [-1, 3])))
    with pytest.raises(ProgramError, match="are not declared"):
        program_of(
            lambda x: layers.py_func(
                abs, x, fluid.default_main_program().global_block().create_var("y", dtype="float32")
            )
        )
    with pytest.raises(ProgramError, match="neither in x nor in out"):
        program_of(lambda x: layers.py_func(abs, x, declared("y", [-1, 3]), abs, [declared("z", [1])]))


def test_a_function_of_another_process_is_an_error() -> None:
    program, y = program_of(lambda x: layers.py_func(abs, x, declared("y", [-1, 3])))
    program.global_block().ops[0].set_attr("forward_callable_id", 10_000)
    with pytest.raises(ProgramError, match="function 10000 is not registered in this process"):
        fluid.Executor("cpu").run(program, {"x": X}, [y])


def by_sets(x: Any) -> Any:
    return np.asarray(x) * (3 if "a" in {"a", "b", "c", "d"} else 5)


@pytest.mark.parametrize(
    "function", [lambda x: np.asarray(x) * 2, by_sets, np.tanh, lambda x: next(np.exp(y) for y in [x])]
)
def test_a_saved_program_does_not_call_another_function(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process has other functions under the first numbers: the number says which function it is."""
    program, y = program_of(lambda x: layers.py_func(function, x, declared("y", [-1, 3])))
    text, wanted = program.to_json(), function(X)
    others = (
        lambda x: np.asarray(x) * 100,
        lambda x: np.asarray(x) + 2,
        lambda x: next(np.sin(y) for y in [x]),
        np.exp,
        lambda x: np.cos(x),
    )
    monkeypatch.setattr(py_func, "_functions", {})  # as a new process begins
    for other in others:
        program_of(lambda x, other=other: layers.py_func(other, x, declared("y", [-1, 3])))
    again = fluid.Program.from_json(text)
    with pytest.raises(ProgramError, match="is not registered in this process; a saved program does not hold Python"):
        fluid.Executor("cpu").run(again, {"x": X}, [y.name])
    program_of(lambda x: layers.py_func(function, x, declared("y", [-1, 3])))
    np.testing.assert_array_equal(fluid.Executor("cpu").run(again, {"x": X}, [y.name])[0], wanted)


def test_the_text_of_a_function_is_the_same_in_every_process() -> None:
    """Members of a group compare the texts of their programs; sets of texts have another order in each process."""
    assert py_func._code_text(frozenset("bdca")) == "['a', 'b', 'c', 'd']"
    assert "0x" not in py_func._code_text(by_sets.__code__)


@pytest.mark.parametrize("place", PLACES)
def test_py_func_may_run_what_another_thread_plans_for_strided_state(place: str) -> None:
    """That thread waits for this run, to copy the state; this run must not wait for that thread."""
    program, scope = fluid.Program(), fluid.Scope()
    with fluid.program_guard(program, fluid.Program()):
        w = layers.create_global_var([3], 0.0, "float32", persistable=True, name="w")
        read = layers.scale(w, 2.0)
    exe = fluid.Executor(place, fallback="allow", mode="interpreted")
    found: list[Any] = []
    other = threading.Thread(target=lambda: found.append(exe.run(program, {}, [read], scope=scope)), daemon=True)

    def inner(x: Any) -> Any:
        other.start()
        other.join(0.3)
        small, y = program_of(layers.square)
        return exe.run(small, {"x": np.asarray(x)}, [y])[0]

    def work() -> None:
        whole = fluid.Tensor().set(np.arange(6, dtype="float32"), place)  # in the queue of this thread
        scope.var("w").get_tensor().share_data_with(whole[::2])
        outer, y = program_of(lambda x: layers.py_func(inner, x, declared("y", [-1, 3])))
        found.append(exe.run(outer, {"x": X}, [y]))

    mine = threading.Thread(target=work, daemon=True)
    mine.start()
    for thread in (mine, other):
        thread.join(60)
    assert sorted(np.ravel(each).tolist() for each in found) == [[0, 4, 8], (X * X).ravel().tolist()]


# --- Assert ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_assert_ends_a_run_whose_condition_does_not_hold(place: str, mode: str) -> None:
    def build(x: Any) -> Any:
        layers.Assert(layers.reduce_all(x < 6.0), [x], summarize=4)
        return layers.scale(x, 2.0)

    program, out = program_of(build)
    exe = fluid.Executor(place, fallback="allow", mode=mode)
    assert exe.run(program, {"x": X}, [out])[0].tolist() == (2 * X).tolist()
    shown = r"(?s)test_print_py_func\.py.*does not hold\n  x \[2, 3\]: \[2\.0, -4\.0, 6\.0, 8\.0\]"
    with pytest.raises(fluid.FluidError, match=shown):
        exe.run(program, {"x": 2 * X}, [out])
    assert exe.run(program, {"x": X}, [out])[0].tolist() == (2 * X).tolist()


def test_assert_takes_a_bool() -> None:
    with pytest.raises(ProgramError, match=r"layers\.Assert .*'cond' is x: .*expected a bool Variable"):
        program_of(layers.Assert)
