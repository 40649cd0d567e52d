"""What computations refuse, and what they say."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
import fluidlite.graph as ng
from fluidlite.transformers import (
    Graph,
    GraphPass,
    Transformer,
    make_transformer,
    make_transformer_factory,
    set_transformer_factory,
    transformer_choices,
)

Make = Callable[[Transformer], Any]


def _x() -> ng.Value:
    return ng.placeholder((2,))


def _other_program() -> ng.Value:
    with fluid.program_guard(fluid.Program()):
        return ng.placeholder((2,))


def _contradiction(t: Transformer) -> Any:
    v = ng.variable((), 1.0)
    a, b = ng.assign(v, v + 1), ng.assign(v, v * 2)
    return t.computation([ng.sequential([a, b]), ng.sequential([b, a])])


BAD_COMPUTATIONS: dict[str, tuple[Make, str]] = {
    "unlisted placeholder": (lambda t: t.computation(_x() + 1), "not among the computation's arguments"),
    "unlisted result": (lambda t: t.computation(_x()), "not among the computation's arguments"),
    "temporary argument": (lambda t: t.computation(None, ng.temporary((2,))), "is_input"),
    "constant argument": (lambda t: t.computation(None, ng.constant(4)), "is_input"),
    "array constant argument": (lambda t: t.computation(None, ng.constant([1.0])), "is_input"),
    "computed argument": (lambda t: t.computation(None, ng.constant(4) + 1), "is_input"),
    "action argument": (lambda t: t.computation(None, ng.assign(ng.variable(()), 1.0)), "is_input"),
    "number argument": (lambda t: t.computation(None, 3), "expected a value of the graph"),
    "argument twice": (lambda t: (lambda x: t.computation(x, x, x))(_x()), "listed twice"),
    "array result": (lambda t: t.computation(np.ones(2)), "a result of a computation"),
    "text result": (lambda t: t.computation("x"), "a result of a computation is 'x'"),
    "generator of results": (
        lambda t: t.computation(v for v in [_x()]),
        "expected a value or an action .*dict of them",
    ),
    "results by bad keys": (lambda t: t.computation({"a": 3}), "a result of a computation is 3"),
    "nested results": (lambda t: t.computation([[_x()]]), "a result of a computation"),
    "two programs": (lambda t: t.computation([_x(), _other_program()]), "different programs"),
    "temporary unassigned": (lambda t: t.computation(ng.temporary((2,)) + 1), "before it is assigned"),
    "contradiction": (_contradiction, "contradict"),
}


@pytest.mark.parametrize("case", BAD_COMPUTATIONS)
def test_bad_computation(case: str, cpu: Transformer) -> None:
    make, word = BAD_COMPUTATIONS[case]
    with pytest.raises(ValueError, match=word):
        make(cpu)
    assert not cpu.computations


BAD_CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "too few": ((1.0,), {}, "got 1 arguments; it takes 2"),
    "too many": ((1.0, [1, 2], 3), {}, "got 3 arguments; it takes 2"),
    "none": ((), {}, "got 0 arguments"),
    "both kinds": ((1.0, [1, 2]), {"feed_dict": {}}, "not both"),
    "dims": ((1.0, [1, 2, 3]), {}, "has dims"),
    "rank": (([1.0], [1, 2]), {}, "has dims"),
    "text": (("one", [1, 2]), {}, "expected numbers"),
    "ragged": ((1.0, [[1], [1, 2]]), {}, "cannot become an array"),
    "fraction": ((1.0, [1.5, 2]), {}, "no int64"),
    "complex": ((1j, [1, 2]), {}, "expected numbers"),
    "too large": ((1e300, [1, 2]), {}, "no float32"),
    "missing": ((), {"feed_dict": {}}, "no value for"),
    "unknown": ((), {"feed_dict": {"x": 1}}, "no parameter of it"),
    "no mapping": ((), {"feed_dict": [1]}, "expected a mapping"),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_call(case: str, transformer: Transformer) -> None:
    args, options, word = BAD_CALLS[case]
    v, x = ng.variable((), 5.0), ng.placeholder((2,), "int64")
    computation = transformer.computation([v + 0, x], v, x)
    with pytest.raises(ValueError, match=word):
        computation(*args, **options)
    np.testing.assert_array_equal(transformer.computation(v)(), 5)  # a refused call sets nothing
    assert computation(2, [1, 2])[0] == 2


GOOD_CALLS: dict[str, Any] = {
    "list": [1, 2],
    "integers": np.array([1, 2]),
    "wider floats": np.array([1.0, 2.0]),
    "half": np.array([1, 2], "float16"),
    "not contiguous": np.arange(1, 5, dtype="float32")[::2],
    "backwards": np.array([2, 1], "float32")[::-1],
    "column": np.ones((2, 3), "float32")[:, 1],
    "one number twice": np.broadcast_to(np.float32(1), (2,)),
    "other byte order": np.array([1, 2], ">f4"),
    "flags": [True, False],
    "NaN": [np.nan, np.inf],
    "tensor": "tensor",
}


@pytest.mark.parametrize("case", GOOD_CALLS)
def test_arguments_of_every_make(case: str, transformer: Transformer) -> None:
    """What fits is taken, by the fast path too; it is neither kept nor changed."""
    value = GOOD_CALLS[case]
    if case == "tensor":
        value = fluid.Tensor()
        value.set(np.float32([1, 2]), "cpu")
    x = _x()
    double = transformer.computation(x * 2 + 1, x)
    given = np.array(value.numpy() if case == "tensor" else value)
    wanted = given.astype("float32") * 2 + 1
    for _ in range(3):
        found = double(value)
        np.testing.assert_array_equal(found, wanted)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(double(np.float32([5, 6])), [11, 13])
    np.testing.assert_array_equal(value.numpy() if case == "tensor" else value, given)


def _py_func(function: Callable[..., Any], x: ng.Value) -> ng.Value:
    """A function of Python in the middle of the graph."""
    out = fluid.default_main_program().global_block().create_var(fluid.unique_name.generate("made"), [2], "float32")
    fluid.layers.py_func(function, x, out)
    return ng.value_of(out)


def test_an_operator_that_calls_a_computation(transformer: Transformer) -> None:
    """Another one, and the one that runs."""
    x = _x()
    other = transformer.computation(ng.sum(x), x)
    depth = []

    def again(array: Any) -> Any:
        given = np.array(array)
        if len(depth) == 2:
            return given + other(given)
        depth.append(1)
        try:
            return both(given * 2)
        finally:
            depth.pop()

    both = transformer.computation(_py_func(again, ng.exp(x) * 0 + x) + 1, x)
    for _ in range(4):
        np.testing.assert_array_equal(both(np.float32([1, 2])), [4 + 12 + 3, 8 + 12 + 3])


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, MemoryError])
def test_an_operator_that_raises(error: type[BaseException], transformer: Transformer) -> None:
    x, calls = _x(), []

    def fail(array: Any) -> Any:
        calls.append(1)
        if len(calls) % 2 == 0:
            raise error("mine")
        return np.array(array)

    computation = transformer.computation([_py_func(fail, ng.exp(x)) * 2, ng.tanh(x)], x)
    for _ in range(4):
        np.testing.assert_array_equal(computation([0, 0])[0], [2, 2])
        with pytest.raises((error, fluid.errors.FluidError), match=r"py_func.*test_bad_computations.*mine|^mine$|^$"):
            computation([0, 0])


def test_a_transformer_is_not_closed_by_its_own_operator(transformer: Transformer) -> None:
    x = _x()

    def close(array: Any) -> Any:
        transformer.close()

    computation = transformer.computation(_py_func(close, x), x)
    for _ in range(2):
        with pytest.raises(ValueError, match="cannot be closed while it runs"):
            computation([1, 2])
    np.testing.assert_array_equal(transformer.computation(x + 1, x)([1, 2]), [2, 3])


def test_a_computation_that_two_threads_call(transformer: Transformer) -> None:
    x, v = _x(), ng.variable((), 0.0)
    computation = transformer.computation([ng.exp(x) * 2 + x, ng.assign(v, v + 1)], x)
    wrong: list[Any] = []

    def work(number: int) -> None:
        for i in range(30):
            given = np.full(2, number + i / 30, "float32")
            found = computation(given)[0]
            if not np.allclose(found, np.exp(given) * 2 + given, rtol=1e-5):
                wrong.append((number, i, found))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert transformer.computation(v)() == 90


def test_closing_while_another_thread_calls(transformer: Transformer) -> None:
    x = _x()
    computation, errors = transformer.computation(ng.exp(x) + 1, x), []
    begun, stop = threading.Event(), threading.Event()

    def work() -> None:
        try:
            while not stop.is_set():
                computation([1, 2])
                begun.set()
        except Exception as exc:
            errors.append(exc)

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(60)
    transformer.close()
    thread.join(200)
    stop.set()
    assert [type(error) for error in errors] == [fluid.errors.ProgramError]
    assert "closed" in str(errors[0])


def test_a_device_guard_that_names_no_place(transformer: Transformer) -> None:
    x = _x()
    good = transformer.computation(x + 1, x)
    with fluid.device_guard("nowhere:0"):
        lost = ng.exp(x)
    bad = transformer.computation(lost * 2, x)
    for _ in range(2):
        with pytest.raises(
            fluid.errors.PlaceError, match=r"exp \(test_bad_computations.py:\d+.*'nowhere:0'.*known kinds"
        ):
            bad([1, 2])
    np.testing.assert_array_equal(good([1, 2]), [2, 3])


def test_a_pass_that_raises(transformer: Transformer) -> None:
    class Fails(GraphPass):
        """A user's own."""

        def do_pass(self, graph: Graph) -> None:
            raise KeyError("mine")

    x = _x()
    transformer.register_graph_pass(Fails())
    computation = transformer.computation(ng.exp(x), x)
    for _ in range(2):
        with pytest.raises(ValueError, match="pass Fails failed: KeyError: 'mine'"):
            computation([0, 0])
    transformer.graph_passes = [p for p in transformer.graph_passes if not isinstance(p, Fails)]
    np.testing.assert_array_equal(computation([0, 0]), [1, 1])


@pytest.mark.parametrize("passes", [None, 3, [3], [GraphPass]])
def test_bad_lists_of_passes(passes: Any, cpu: Transformer) -> None:
    x = _x()
    with pytest.raises(ValueError, match="GraphPass"):
        cpu.graph_passes = passes
    np.testing.assert_array_equal(cpu.computation(x + 1, x)([1, 2]), [2, 3])


def test_state_without_a_value(cpu: Transformer) -> None:
    v = ng.variable(())
    read = cpu.computation(v + 1)
    with pytest.raises(ValueError, match="has no value yet"):
        read()
    cpu.computation(ng.assign(v, 3.0))()
    assert read() == 4


def test_a_closed_transformer() -> None:
    t = make_transformer()
    x = ng.placeholder(())
    computation = t.computation(x, x)
    t.close()
    for call in (lambda: computation(1), lambda: t.computation(x, x), t.initialize):
        with pytest.raises(ValueError, match="closed"):
            call()


BAD_ACTIONS: dict[str, tuple[Callable[[], Any], str]] = {
    "assign a constant": (lambda: ng.assign(ng.constant([1.0]), 2.0), "cannot be assigned"),
    "assign a placeholder": (lambda: ng.assign(_x(), 2.0), "cannot be assigned"),
    "assign a computed value": (lambda: ng.assign(_x() + 1, 2.0), "cannot be assigned"),
    "assign other dims": (lambda: ng.assign(ng.variable((2,)), [1.0, 2.0, 3.0]), "does not broadcast"),
    "assign another dtype": (lambda: ng.assign(ng.variable((2,)), ng.placeholder((2,), "int64")), "ng.cast"),
    "assign an action": (lambda: ng.assign(ng.variable(()), ng.assign(ng.variable(()), 1.0)), "no value"),
    "set_item outside": (lambda: ng.set_item(ng.variable((2,)), 5, 1.0), "has no part"),
    "set_item by a bool": (lambda: ng.set_item(ng.variable((2,)), True, 1.0), "ints, slices"),
    "set_item of unknown dims": (lambda: ng.set_item(ng.temporary((-1, 2)), 0, 1.0), "dims are known"),
    "set_item by mask": (lambda: ng.set_item(ng.variable((2,)), [True, False], 1.0), "ints, slices"),
    "sequential of none": (lambda: ng.sequential([]), "one part or more"),
    "sequential of a number": (lambda: ng.sequential([1]), "a part of sequential"),
    "variable of unknown dims": (lambda: ng.variable((-1,)), "must be known"),
    "initial rows of different lengths": (lambda: ng.variable((2,), [[1.0], [2.0, 3.0]]), "is no value"),
    "initial dims": (lambda: ng.variable((2,), [1.0, 2.0, 3.0]), "has dims"),
    "initial value of other dims": (lambda: ng.variable((3,), ng.constant([1.0, 2.0])), "initial value"),
    "initial value of an argument": (lambda: ng.variable((2,), ng.exp(_x()) + 1), "needs placeholder 'placeholder_"),
    "initial value that is an argument": (lambda: ng.variable((2,), _x()), "has no value before a call"),
    "initial text": (lambda: ng.variable((2,), "a"), "expected numbers"),
    "constant beyond its dtype": (lambda: ng.constant(1e300), "no float32"),
    "constant of other numbers": (lambda: ng.constant([1.5], dtype="int64"), "no int64"),
    "constant of a dict": (lambda: ng.constant({}), "is no value"),
    "ragged constant": (lambda: ng.constant([[1], [1, 2]]), "is no value"),
    "ragged operand": (lambda: ng.add(_x(), [[1], [1, 2]]), "is no value"),
    "placeholder of fractions": (lambda: ng.placeholder((2.5,)), "expected a list of ints"),  # type: ignore[arg-type]
    "placeholder of no dtype": (lambda: ng.placeholder((2,), "float31"), "float31"),
    "constant of a value": (lambda: ng.constant(_x()), "a constant is a number"),
    "constant of text": (lambda: ng.constant("one"), "no value|expected numbers"),
    "int beside fraction": (lambda: ng.placeholder((2,), "int64") + 0.5, "no int64 is 0.5"),
    "ints beside fractions": (lambda: ng.add(ng.placeholder((2,), "int64"), [0.5, 1]), "no int64 is"),
    "ints beside greater ones": (lambda: ng.add(ng.placeholder((2,), "int32"), [2**40, 1]), "no int32 is"),
    "ints beside none": (lambda: ng.placeholder((2,), "int32") < float("nan"), "no int32 is nan"),
    "int beside a greater one": (lambda: ng.placeholder((2,), "int64") + 2**70, "no int64 is"),
    "uint8 beside negative ones": (lambda: ng.add(ng.placeholder((2,), "uint8"), [-1, 1]), "no uint8 is"),
    "float beside a number beyond all": (lambda: _x() * 2**1100, "no float32 is"),
    "bool beside 2": (lambda: ng.equal(ng.placeholder((2,), "bool"), 2), "no bool is 2"),
    "assign fractions to ints": (lambda: ng.assign(ng.variable((2,), [1, 2], dtype="int64"), [0.5, 1]), "no int64 is"),
    "operands": (lambda: _x() + ng.placeholder((3,)), "elementwise_add"),
    "deriv of no scalar": (lambda: (lambda v: ng.deriv(v * 2, v))(ng.variable((2,))), "error tensor"),
    "deriv error dims": (lambda: (lambda v: ng.deriv(v * 2, v, [1.0]))(ng.variable((2,))), "has dims"),
    "deriv of unused": (lambda: ng.deriv(ng.sum(_x()), ng.variable((2,))), "does not depend"),
    "deriv rule": (lambda: ng.deriv(ng.sum(_x()), _x(), unused="no"), "expected 'raise' or 'zero'"),
    "deriv by a number": (lambda: ng.deriv(ng.sum(_x()), 3), "expected a value"),  # type: ignore[call-overload]
    "axis": (lambda: ng.sum(_x(), 1), "has axes"),
    "axis twice": (lambda: ng.sum(ng.placeholder((2, 2)), (0, -2)), "twice"),
    "dot of matrices": (lambda: ng.dot(_x(), ng.placeholder((1, 2, 2))), "ng.matmul"),
    "pad": (lambda: ng.pad(_x(), [1, 2]), "paddings"),
    "concat of none": (lambda: ng.concat([]), "one value or more"),
    "concat of dtypes": (lambda: ng.concat([_x(), ng.placeholder((2,), "int64")]), "one dtype"),
    "stack": (lambda: ng.stack([_x(), ng.placeholder((3,))]), "stack"),
    "one_hot axis": (lambda: ng.one_hot(ng.placeholder((2,), "int64"), 3, axis=4), "axis is 4"),
    "convolution": (lambda: ng.convolution(_x(), _x()), "expected \\[images"),
    "strides": (lambda: ng.convolution(ng.placeholder((1, 1, 4, 4)), np.ones((1, 1, 2, 2), "float32"), (1, 1, 1)),
                "strides"),
    "cross entropy": (lambda: ng.cross_entropy_multi(_x(), ng.placeholder((3,))), "must be equal"),
    "uniform dims": (lambda: ng.uniform((-1,)), "0 or more"),
    "reshape of a fraction": (lambda: ng.reshape(_x(), 1.5), "shape is 1.5"),
    "axis of text": (lambda: ng.sum(_x(), "a"), "axis is 'a'"),
    "strides of fractions": (lambda: ng.convolution(ng.placeholder((1, 1, 4, 4)), ng.placeholder((1, 1, 2, 2)), 1.5),
                             "strides is 1.5"),
    "pad of an int": (lambda: ng.pad(ng.placeholder((2, 2)), 1), "paddings"),
    "negative pad": (lambda: ng.pad(_x(), [-1]), "paddings"),
    "fill by a fraction": (lambda: ng.fill(ng.variable((2,), dtype="int32"), 1.5), "no int32 is 1.5"),
    "fill by a complex number": (lambda: ng.fill(ng.variable((2,)), np.complex64(1)), "takes a number"),
    "fill by a number of 400 digits": (lambda: ng.fill(ng.variable((2,)), 10**399), "no float32"),
    "fill by text": (lambda: ng.fill(ng.variable((2,)), "a"), "takes a number"),
    "deriv of a number": (lambda: ng.deriv(3, _x()), "no value"),
    "value_of a number": (lambda: ng.value_of(3), "no value"),
    "operand of text": (lambda: _x() + "a", "no value"),
    "operand None": (lambda: _x() + None, "no value"),
    "index": (lambda: _x()[0, 0], "indexed by 2 items"),
    "softmax axis": (lambda: ng.softmax(_x(), 3), "axis"),
    "reshape": (lambda: ng.reshape(_x(), (3,)), "reshape2"),
    "broadcast": (lambda: ng.broadcast(_x(), (3,)), "does not broadcast"),
    "broadcast to fractions": (lambda: ng.broadcast(_x(), (2.5,)), "shape is"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_ACTIONS)
def test_bad_graph(case: str) -> None:
    make, word = BAD_ACTIONS[case]
    with pytest.raises(ValueError, match=word):
        make()


def test_choices() -> None:
    choices = transformer_choices()
    assert choices == sorted(choices)
    assert "cpu" in choices
    assert "cuda" not in choices
    assert ("gpu" in choices) == any(place.kind == "cuda" for place in fluid.places())


@pytest.mark.parametrize("name", ["npu", "cpu:7", "", 3])
def test_no_such_transformer(name: Any) -> None:
    with pytest.raises(ValueError, match=r"the choices are .*cpu"):
        make_transformer_factory(name)


def test_the_factory_that_is_set() -> None:
    class Mine(Transformer):
        """A transformer of a plugin."""

    with pytest.raises(ValueError, match="expected a callable"):
        set_transformer_factory("cpu")  # type: ignore[arg-type]
    try:
        set_transformer_factory(Mine)
        assert isinstance(make_transformer(), Mine)
        set_transformer_factory(make_transformer_factory("cpu", seed=3))
        assert make_transformer().seed == 3
    finally:
        set_transformer_factory(None)
    assert type(make_transformer()) is Transformer


@pytest.mark.parametrize("options", [{"place": "npu"}, {"seed": 1.5}, {"seed": True}])
def test_bad_transformer(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"npu|seed"):
        Transformer(**options)


def test_a_transformer_of_ones_own() -> None:
    seen = []

    class Counting(Transformer):
        def transform_ordered_ops(self, computation: Any, ordered_ops: Any) -> Any:
            seen.append([op.type for op in ordered_ops])
            inner = super().transform_ordered_ops(computation, ordered_ops)
            return lambda arguments: [array * 2 for array in inner(arguments)]

    with Counting() as t:
        x = ng.placeholder(())
        assert t.computation(ng.exp(x), x)(0) == 2
    assert seen == [["exp"]]
