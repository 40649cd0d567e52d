"""Calls with arguments of the wrong kind: an error of ours names the argument, and what is right works after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.testing import check_gradient, check_sample

L = fluid.layers
ROWS = np.ones((2, 4), "float32")


@dataclass
class Trained:
    """A small program with its state."""

    main: fluid.Program
    x: fluid.Variable
    loss: fluid.Variable
    scope: fluid.Scope
    exe: fluid.Executor

    def run(self, feed: Any, fetch: Any = None, **more: Any) -> Any:
        return self.exe.run(self.main, feed=feed, fetch_list=fetch or [self.loss], **{"scope": self.scope, **more})

    def state(self) -> dict[str, Any]:
        held = {v.name: self.scope.find_var(v.name) for v in self.main.list_vars() if v.persistable}
        return {name: np.array(one.get_tensor().numpy()) for name, one in held.items() if one is not None}


@pytest.fixture
def case() -> Iterator[Trained]:
    main, start, scope, exe = fluid.Program(), fluid.Program(), fluid.Scope(), fluid.Executor("cpu")
    with fluid.program_guard(main, start), fluid.unique_name.guard():
        x = L.data("x", [4])
        loss = L.mean(L.fc(x, 3))
        fluid.optimizer.Adam(0.1).minimize(loss)
        exe.run(start, scope=scope)
        yield Trained(main, x, loss, scope, exe)


class Nameless:
    """What stands for a variable, and cannot say its name."""

    @property
    def name(self) -> str:
        raise KeyError("lost")


CALLS: list[tuple[str, Callable[[Trained], Any]]] = [
    ("complex64", lambda c: c.run({"x": ROWS.astype("complex64")})),
    ("numbers", lambda c: c.run({"x": np.full((2, 4), None)})),
    ("masked array", lambda c: c.run({"x": np.ma.masked_array(ROWS, ROWS > 0)})),
    ("no memory", lambda c: c.run({"x": np.broadcast_to(np.float32(1), (2**40, 4))})),
    ("scope is dict", lambda c: c.run({"x": ROWS}, scope={})),
    ("feed is int", lambda c: c.run([1])),
    ("fetch_list is int 3", lambda c: c.run({"x": ROWS}, 3)),
    ("the name of a Nameless raised KeyError", lambda c: c.run({"x": ROWS}, [Nameless()])),
    ("the name of a Nameless raised", lambda c: c.main.global_block().append_op("abs", {"X": Nameless()}, {})),
    ("the name of a Nameless raised", lambda c: c.main.global_block().ops[0].rename_input("x", Nameless())),  # type: ignore[arg-type]
    ("the name of a Nameless raised", lambda c: fluid.append_backward(c.loss, parameter_list=[Nameless()])),  # type: ignore[list-item]
    ("fetch_list names 'absent'", lambda c: c.run({"x": ROWS}, ["absent"])),
    ("passes is int 3", lambda c: fluid.Executor("cpu", passes=3)),  # type: ignore[arg-type]
    ("is not a place", lambda c: fluid.Executor("cpu:" + "9" * 5000)),
    ("inputs of check_gradient is int", lambda c: check_gradient(lambda a: a, "cpu", 3)),  # type: ignore[arg-type]
    ("feed of check_gradient is int", lambda c: check_gradient(c.loss, feed=3, scope=c.scope)),  # type: ignore[arg-type]
    ("wrt of check_gradient is int", lambda c: check_gradient(c.loss, feed={"x": ROWS}, wrt=3)),  # type: ignore[arg-type]
    ("elements of check_gradient is -1", lambda c: check_gradient(c.loss, feed={"x": ROWS}, elements=-1)),
    ("elements of check_gradient is str", lambda c: check_gradient(c.loss, elements="a")),  # type: ignore[arg-type]
    ("rtol of check_gradient is str", lambda c: check_gradient(c.loss, rtol="a")),  # type: ignore[arg-type]
    ("check_sample takes", lambda c: check_sample(3, "cpu")),  # type: ignore[arg-type]
    ("inputs of fluid.gradients is str", lambda c: fluid.gradients(c.loss, "x")),
    ("targets of fluid.gradients is int", lambda c: fluid.gradients(3, c.x)),  # type: ignore[arg-type]
    ("inputs of fluid.gradients holds 3", lambda c: fluid.gradients([c.loss], [3])),  # type: ignore[list-item]
    ("target_gradients of", lambda c: fluid.gradients([c.loss], [c.x], target_gradients=3)),  # type: ignore[arg-type]
    ("parameter_list of", lambda c: fluid.append_backward(c.loss, parameter_list=3)),  # type: ignore[arg-type]
    ("flags is int 3", lambda c: fluid.set_flags(3)),  # type: ignore[arg-type]
    ("flags is int 3", lambda c: fluid.get_flags(3)),  # type: ignore[arg-type]
    ("variables of a slot is int", lambda c: fluid.op.Operator("abs", X=3, Out="y")),
    ("scope is int", lambda c: fluid.op.Operator("abs", X="x", Out="y").run(3, "cpu")),  # type: ignore[arg-type]
    ("from_dlpack got int", lambda c: fluid.from_dlpack(3)),
    ("lengths are 0 or more", lambda c: fluid.create_random_int_lodtensor([[2, -3]], [1], "cpu", 0, 9)),
    ("the batch is int", lambda c: fluid.DataFeeder([c.x], "cpu").feed(3)),  # type: ignore[arg-type]
    ("main_program is int", lambda c: fluid.io.save_inference_model("m", ["x"], [c.loss], c.exe, 3)),  # type: ignore[arg-type]
    ("not a program", lambda c: fluid.Program.parse_from_string(3)),  # type: ignore[arg-type]
    ("index of a block is str", lambda c: c.main.block("a")),  # type: ignore[arg-type]
    ("name of a variable is 3", lambda c: c.main.global_block().create_var(3)),  # type: ignore[arg-type]
    ("inputs is int", lambda c: c.main.global_block().append_op("relu", inputs=3)),  # type: ignore[arg-type]
    ("outputs is int", lambda c: c.main.global_block().append_op("relu", {"X": c.x}, 3)),  # type: ignore[arg-type]
    ("index of an operator is str", lambda c: c.main.global_block().remove_op("a")),  # type: ignore[arg-type]
    ("index of an operator is str", lambda c: c.main.global_block().insert_op("a", "relu")),  # type: ignore[arg-type]
    ("has no operator 99; it has", lambda c: c.main.global_block().remove_op(99)),
    ("has no operator -99; it has", lambda c: c.main.global_block().remove_op(-99)),
    ("expected variables or names", lambda c: c.main.global_block().ops[0].rename_input("x", None)),  # type: ignore[arg-type]
    ("expected variables or names", lambda c: c.main.global_block().ops[0].rename_output(3, "x")),  # type: ignore[arg-type]
    ("libraries is int 3", lambda c: fluid.Executor("cpu", libraries=3)),  # type: ignore[arg-type]
    ("libraries of a kind of place is int 3", lambda c: fluid.Executor("cpu", libraries={"cpu": 3})),  # type: ignore[dict-item]
    ("libraries of a kind of place is str", lambda c: fluid.set_libraries("cpu", "blas")),
    ("value is 'a'", lambda c: fluid.metrics.Accuracy().update("a", 3)),
    ("value is str", lambda c: fluid.initializer.Constant("a")),  # type: ignore[arg-type]
    ("seed is str", lambda c: fluid.initializer.Normal(seed="a")),  # type: ignore[arg-type]
    ("loc is str", lambda c: fluid.initializer.Normal("a")),  # type: ignore[arg-type]
    ("low and high is str", lambda c: fluid.initializer.Uniform("a", 1)),  # type: ignore[arg-type]
    ("learning_rate is str", lambda c: fluid.ParamAttr(learning_rate="a")),  # type: ignore[arg-type]
    ("is not an operator type", lambda c: fluid.register_op(3)),  # type: ignore[arg-type]
    ("is of type 'nosuch'", lambda c: fluid.Attr("a", "nosuch")),
    ("executor is int 3", lambda c: fluid.io.load_persistables(3, "m")),
    ("executor is int 3", lambda c: fluid.io.load_inference_model("m", 3)),
    ("vars holds 3", lambda c: fluid.io.save_vars(c.exe, "m", c.main, vars=[3])),  # type: ignore[list-item]
    ("vars is int 3", lambda c: fluid.io.save_vars(c.exe, "m", c.main, vars=3)),  # type: ignore[arg-type]
    ("predicate is int 3", lambda c: fluid.io.save_vars(c.exe, "m", c.main, predicate=3)),  # type: ignore[arg-type]
    ("feeded_var_names is int", lambda c: fluid.io.save_inference_model("m", 3, [c.loss], c.exe, c.main)),  # type: ignore[arg-type]
    ("target_vars is int", lambda c: fluid.io.save_inference_model("m", ["x"], 3, c.exe, c.main)),  # type: ignore[arg-type]
    ("no_grad_set is int 3", lambda c: fluid.append_backward(c.loss, no_grad_set=3)),  # type: ignore[arg-type]
    ("no_grad_set is .3.", lambda c: fluid.append_backward(c.loss, no_grad_set=[3])),  # type: ignore[list-item]
    ("places is int 3", lambda c: fluid.CompiledProgram(c.main).with_data_parallel(places=3)),  # type: ignore[arg-type]
    ("feed_list is int 3", lambda c: fluid.DataFeeder(3, "cpu")),  # type: ignore[arg-type]
    ("fan_in and fan_out is str", lambda c: fluid.initializer.Xavier(fan_in="a")),  # type: ignore[arg-type]
    ("fan_in and fan_out is str", lambda c: fluid.initializer.MSRA(fan_in="a")),  # type: ignore[arg-type]
    ("argument 'func' is int 3", lambda c: L.utils.map_structure(3, [c.x])),  # type: ignore[arg-type]
    ("the reader of batch is int", lambda c: fluid.io.batch(3, 2)),  # type: ignore[arg-type]
    ("a reader of shuffle is int", lambda c: fluid.io.shuffle(3, 2)),  # type: ignore[arg-type]
    ("buf_size of shuffle is str", lambda c: fluid.io.shuffle(list, "a")),  # type: ignore[arg-type]
    ("buf_size of shuffle is -1", lambda c: fluid.io.shuffle(list, -1)),
    ("a reader of buffered is int", lambda c: fluid.io.buffered(3, 2)),  # type: ignore[arg-type]
    ("size of buffered is str", lambda c: fluid.io.buffered(list, "a")),  # type: ignore[arg-type]
    ("func of map_readers is int", lambda c: fluid.io.map_readers(3, list)),  # type: ignore[arg-type]
    ("a reader of map_readers is int", lambda c: fluid.io.map_readers(abs, 3)),  # type: ignore[arg-type]
    ("a reader of chain is int", lambda c: fluid.io.chain(list, 3)),  # type: ignore[arg-type]
    ("a reader of compose is int", lambda c: fluid.io.compose(3)),  # type: ignore[arg-type]
    ("n of firstn is str", lambda c: fluid.io.firstn(list, "a")),  # type: ignore[arg-type]
    ("a reader of cache is int", lambda c: fluid.io.cache(3)),  # type: ignore[arg-type]
    ("mapper of xmap_readers is int", lambda c: fluid.io.xmap_readers(3, list, 1, 1)),  # type: ignore[arg-type]
    ("a reader of multiprocess_reader is int", lambda c: fluid.io.multiprocess_reader([3])),  # type: ignore[list-item]
    ("'default_initializer' is int", lambda c: L.create_parameter([2], "float32", default_initializer=3)),  # type: ignore[arg-type]
]


def test_a_fetch_without_a_name_is_refused_by_the_fast_path_too(case: Trained) -> None:
    for _ in range(3):
        case.run({"x": ROWS})
    with pytest.raises(fluid.errors.ProgramError, match="the name of a Nameless raised KeyError"):
        case.run({"x": ROWS}, [Nameless()])


@pytest.mark.parametrize(("said", "call"), CALLS, ids=[said for said, _ in CALLS])
def test_refused(case: Trained, said: str, call: Callable[[Trained], Any]) -> None:
    before, operators = case.state(), len(case.main.global_block().ops)
    with pytest.raises(fluid.FluidError, match=said):
        call(case)
    after = case.state()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert len(case.main.global_block().ops) == operators
    (loss,) = case.run({"x": ROWS})
    assert np.isfinite(loss).all()
    assert any(not np.array_equal(before[name], array) for name, array in case.state().items())


BIG = 2**53 + 1
ROUNDED: dict[str, Callable[[Any], Any]] = {
    "fill_constant_batch_size_like": lambda x: L.fill_constant_batch_size_like(x, [-1, 2], "int64", BIG),
    "fill_any_like": lambda x: x.block.append_op("fill_any_like", {"X": x}, {"Out": x}, {"value": BIG}),
    "fill_constant": lambda x: x.block.append_op(
        "fill_constant", {}, {"Out": x}, {"shape": [1], "dtype": "int64", "value": BIG}
    ),
    "increment": lambda x: L.increment(L.fill_constant([1], "int64", 1), np.int64(BIG)),  # type: ignore[arg-type]
    "scale": lambda x: L.scale(x, 1.0, bias=-BIG),
    "pad": lambda x: L.pad(x, [0, 0, 1, 0], pad_value=BIG),
    "set_attr": lambda x: L.scale(x, 2.0).block.ops[-1].set_attr("bias", BIG),
}


@pytest.mark.parametrize("what", ROUNDED)
def test_a_number_that_a_float_rounds_is_none_of_integers(what: str) -> None:
    with pytest.raises(
        fluid.errors.AttributeValueError, match=r"is -?9007199254740993, which a float rounds to .*int64"
    ):
        ROUNDED[what](L.data("x", [3], dtype="int64"))


def test_a_number_that_a_float_rounds_is_one_of_floats() -> None:
    x = L.data("x", [1])
    wanted = [L.pad(x, [0, 0, 1, 0], pad_value=BIG), L.scale(x, 1.0, bias=BIG), L.fill_constant([1], "int64", BIG)]
    found = fluid.Executor("cpu").run(feed={"x": ROWS[:1, :1]}, fetch_list=wanted)
    assert [each.ravel()[0] for each in found] == [2.0**53, 2.0**53, BIG]
