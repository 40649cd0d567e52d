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


CLIP = fluid.clip.GradientClipByNorm(1.0)


def parameter(case: Trained, **options: Any) -> Any:
    return case.main.global_block().create_parameter("p", options.pop("shape", [2]), "float32", **options)


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
    ("FLAGS_check_nan_inf is str '0'", lambda c: fluid.set_flags({"FLAGS_check_nan_inf": "0"})),
    ("the number of places is 1.5", lambda c: fluid.cpu_places(1.5)),  # type: ignore[arg-type]
    ("flags is int 3", lambda c: fluid.get_flags(3)),  # type: ignore[arg-type]
    ("variables of a slot is int", lambda c: fluid.op.Operator("abs", X=3, Out="y")),
    ("scope is int", lambda c: fluid.op.Operator("abs", X="x", Out="y").run(3, "cpu")),  # type: ignore[arg-type]
    ("from_dlpack got int", lambda c: fluid.from_dlpack(3)),
    (
        "low of create_random_int_lodtensor is str",
        lambda c: fluid.create_random_int_lodtensor([[1]], [1], "cpu", "a", 9),
    ),  # type: ignore[arg-type]
    ("expected low <= high", lambda c: fluid.create_random_int_lodtensor([[1]], [1], "cpu", 2, 1)),
    ("base_shape .* is int 3", lambda c: fluid.create_random_int_lodtensor([[1]], 3, "cpu", 0, 1)),  # type: ignore[arg-type]
    ("rows of different dims", lambda c: fluid.create_lod_tensor([[[1, 2]], [[3]]], [[1, 1]], "cpu")),
    ("lengths are 0 or more", lambda c: fluid.create_random_int_lodtensor([[2, -3]], [1], "cpu", 0, 9)),
    ("the batch is int", lambda c: fluid.DataFeeder([c.x], "cpu").feed(3)),  # type: ignore[arg-type]
    ("main_program is int", lambda c: fluid.io.save_inference_model("m", ["x"], [c.loss], c.exe, 3)),  # type: ignore[arg-type]
    ("not a program", lambda c: fluid.Program.parse_from_string(3)),  # type: ignore[arg-type]
    ("index of a block is str", lambda c: c.main.block("a")),  # type: ignore[arg-type]
    ("learning_rate is nan; expected a finite number", lambda c: fluid.ParamAttr(learning_rate=float("nan"))),
    ("regularization_coeff is inf; expected a finite", lambda c: fluid.regularizer.L2Decay(float("inf"))),
    ("has shape .2.5, 3.; expected a list of ints", lambda c: parameter(c, shape=[2.5, 3])),
    ("has shape .True, 3.; expected a list of ints", lambda c: c.main.global_block().create_var("q", [True, 3])),
    ("has shape 3; expected a list of ints", lambda c: parameter(c, shape=3)),
    ("dims of Reshape is float 2.5", lambda c: fluid.nn.Reshape([2.5, 3])),  # type: ignore[list-item]
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
    ("num_infer_chunks is 1.5", lambda c: fluid.metrics.ChunkEvaluator().update(1.5, 2, 1)),
    ("num_label_chunks is .*2, 2", lambda c: fluid.metrics.ChunkEvaluator().update(1, [2, 2], 1)),
    ("seq_num is -1", lambda c: fluid.metrics.EditDistance().update([1.0], -1)),
    ("predictions are .*'a'", lambda c: fluid.metrics.Precision().update(["a"], [1])),
    ("predictions have dims .2, 3.", lambda c: fluid.metrics.Auc().update(np.full((2, 3), 0.5), [1, 0])),
    ("num_thresholds is float", lambda c: fluid.metrics.Auc(num_thresholds=1.5)),  # type: ignore[arg-type]
    ("expected no list in it", lambda c: fluid.ParamAttr.to_attr([["w"]])),
    ("unique_name.switch is int", lambda c: fluid.unique_name.switch(3)),  # type: ignore[arg-type]
    ("'num_heads' is int 0", lambda c: fluid.nets.scaled_dot_product_attention(*[fluid.data("q", [1, 2, 4])] * 3, 0)),
    (
        "'conv_with_batchnorm' is str",
        lambda c: fluid.nets.img_conv_group(fluid.data("i", [1, 1, 4, 4]), [1], 2, conv_with_batchnorm="no"),
    ),
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
    ("'predicate' is int 3", lambda c: fluid.io.save_vars(c.exe, "m", c.main, predicate=3)),  # type: ignore[arg-type]
    ("feeded_var_names is int", lambda c: fluid.io.save_inference_model("m", 3, [c.loss], c.exe, c.main)),  # type: ignore[arg-type]
    ("target_vars is int", lambda c: fluid.io.save_inference_model("m", ["x"], 3, c.exe, c.main)),  # type: ignore[arg-type]
    ("no_grad_set is int 3", lambda c: fluid.append_backward(c.loss, no_grad_set=3)),  # type: ignore[arg-type]
    ("no_grad_set is .3.", lambda c: fluid.append_backward(c.loss, no_grad_set=[3])),  # type: ignore[list-item]
    ("places is int 3", lambda c: fluid.CompiledProgram(c.main).with_data_parallel(places=3)),  # type: ignore[arg-type]
    ("feed_list is int 3", lambda c: fluid.DataFeeder(3, "cpu")),  # type: ignore[arg-type]
    ("fan_in is str", lambda c: fluid.initializer.Xavier(fan_in="a")),  # type: ignore[arg-type]
    ("fan_out is -1", lambda c: fluid.initializer.Xavier(fan_out=-1)),
    ("fan_in and fan_out are 0", lambda c: fluid.initializer.Xavier(fan_in=0, fan_out=0)),
    ("fan_in is str", lambda c: fluid.initializer.MSRA(fan_in="a")),  # type: ignore[arg-type]
    ("fan_in is nan", lambda c: fluid.initializer.MSRA(fan_in=float("nan"))),
    ("fan_in is 0", lambda c: fluid.initializer.MSRA(fan_in=0)),
    ("diag_num is str", lambda c: fluid.initializer.Uniform(diag_num="a")),  # type: ignore[arg-type]
    ("value has dtype complex64", lambda c: fluid.initializer.NumpyArray(np.zeros(2, "complex64"))),
    ("value has dtype datetime64", lambda c: fluid.initializer.NumpyArray(np.zeros(2, "M8[D]"))),
    ("clip_norm is -1", lambda c: fluid.clip.GradientClipByGlobalNorm(-1)),
    ("clip_norm is nan", lambda c: fluid.clip.GradientClipByNorm(float("nan"))),
    ("min is nan", lambda c: fluid.clip.GradientClipByValue(float("nan"))),
    ("regularization_coeff is bool", lambda c: fluid.regularizer.L2Decay(True)),
    ("argument 'func' is int 3", lambda c: L.utils.map_structure(3, [c.x])),  # type: ignore[arg-type]
    ("batch.batch .*'reader' is int 3", lambda c: fluid.io.batch(3, 2)),  # type: ignore[arg-type]
    ("reader.shuffle .*'reader' is int 3", lambda c: fluid.io.shuffle(3, 2)),  # type: ignore[arg-type]
    ("buf_size of shuffle is str", lambda c: fluid.io.shuffle(list, "a")),  # type: ignore[arg-type]
    ("buf_size of shuffle is -1", lambda c: fluid.io.shuffle(list, -1)),
    ("reader.buffered .*'reader' is int 3", lambda c: fluid.io.buffered(3, 2)),  # type: ignore[arg-type]
    ("size of buffered is str", lambda c: fluid.io.buffered(list, "a")),  # type: ignore[arg-type]
    ("reader.map_readers .*'func' is int 3", lambda c: fluid.io.map_readers(3, list)),  # type: ignore[arg-type]
    ("reader.map_readers .*'reader' is int 3", lambda c: fluid.io.map_readers(abs, 3)),  # type: ignore[arg-type]
    ("reader.chain .*'reader' is int 3", lambda c: fluid.io.chain(list, 3)),  # type: ignore[arg-type]
    ("reader.compose .*'reader' is int 3", lambda c: fluid.io.compose(3)),  # type: ignore[arg-type]
    ("queue_size of multiprocess_reader is -1", lambda c: fluid.io.multiprocess_reader([list], queue_size=-1)),
    ("n of firstn is str", lambda c: fluid.io.firstn(list, "a")),  # type: ignore[arg-type]
    ("reader.cache .*'reader' is int 3", lambda c: fluid.io.cache(3)),  # type: ignore[arg-type]
    ("reader.xmap_readers .*'mapper' is int 3", lambda c: fluid.io.xmap_readers(3, list, 1, 1)),  # type: ignore[arg-type]
    ("reader.multiprocess_reader .*'reader' is int 3", lambda c: fluid.io.multiprocess_reader([3])),  # type: ignore[list-item]
    ("use_prune of Executor.run is for a Program", lambda c: c.exe.run(fluid.CompiledProgram(c.main), use_prune=True)),
    ("the prefix of name_scope is int 3", lambda c: fluid.name_scope(3).__enter__()),  # type: ignore[arg-type]
    ("new_generator of unique_name.guard is int", lambda c: fluid.unique_name.guard(3).__enter__()),  # type: ignore[arg-type]
    ("key of a unique name is int", lambda c: fluid.unique_name.generate(3)),  # type: ignore[arg-type]
    ("a variable of a scope is int", lambda c: fluid.Scope().var(3)),  # type: ignore[arg-type]
    (r"has no variable \[1\]", lambda c: c.main.global_block().var([1])),  # type: ignore[arg-type]
    ("lod_level of variable 'q' is str", lambda c: c.main.global_block().create_var("q", [1], lod_level="a")),  # type: ignore[arg-type]
    ("gradient_clip is int 3; expected one of fluid.clip", lambda c: fluid.ParamAttr(gradient_clip=3)),
    ("regularizer is int 3; expected one of", lambda c: fluid.ParamAttr(regularizer=3)),  # type: ignore[arg-type]
    ("gradient_clip_attr is int", lambda c: parameter(c, gradient_clip_attr=3)),
    ("regularizer is int", lambda c: parameter(c, regularizer=3)),
    ("optimize_attr of variable 'p' is 3", lambda c: parameter(c, optimize_attr=3)),
    ("error_clip of variable 'x' is int", lambda c: c.x.set_error_clip(3)),
    ("executor is int 3", lambda c: fluid.io.save_params(3, "m", c.main)),
    ("executor is int 3", lambda c: fluid.io.save_persistables(3, "m", c.main)),
    ("executor is int 3", lambda c: fluid.io.save_vars(3, "m", c.main, vars=[])),
    ("executor is int 3", lambda c: fluid.io.save_inference_model("m", ["x"], [c.loss], 3, c.main)),
    ("'name' is int 3", lambda c: fluid.optimizer.SGD(0.1, name=3)),  # type: ignore[arg-type]
    ("parameter_list is int", lambda c: fluid.optimizer.SGD(0.1, parameter_list=3)),  # type: ignore[arg-type]
    ("params_grads is int", lambda c: fluid.optimizer.SGD(0.1).apply_gradients(3)),  # type: ignore[arg-type]
    ("'params_grads' is list", lambda c: fluid.optimizer.SGD(0.1).apply_gradients([3])),  # type: ignore[list-item]
    ("param_list is int", lambda c: fluid.clip.set_gradient_clip(CLIP, 3)),  # type: ignore[arg-type]
    ("program is int", lambda c: fluid.clip.set_gradient_clip(CLIP, program=3)),  # type: ignore[arg-type]
    ("targets of Program.prune is int", lambda c: c.main.prune(3)),  # type: ignore[arg-type]
    ("callbacks of append_backward is int", lambda c: fluid.append_backward(c.loss, callbacks=3)),
    ("callbacks of append_backward holds 3", lambda c: fluid.append_backward(c.loss, callbacks=[3])),
    ("program is int", lambda c: fluid.DataFeeder([c.x], "cpu", 3)),  # type: ignore[arg-type]
    ("a sequence of create_lod_tensor is int", lambda c: fluid.create_lod_tensor([1], [[1]], "cpu")),
    ("exec_strategy is int", lambda c: fluid.CompiledProgram(c.main).with_data_parallel(exec_strategy=3)),  # type: ignore[arg-type]
    ("share_vars_from is int", lambda c: fluid.CompiledProgram(c.main).with_data_parallel(share_vars_from=3)),  # type: ignore[arg-type]
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


FLAGS: dict[str, Callable[[Trained, Any], Any]] = {
    "trainable": lambda c, v: fluid.ParamAttr(trainable=v),
    "do_model_average": lambda c, v: fluid.ParamAttr(do_model_average=v),
    "trainable of variable 'p'": lambda c, v: parameter(c, trainable=v),
    "stop_gradient of variable 'x'": lambda c, v: setattr(c.x, "stop_gradient", v),
    "is_data of variable 'x'": lambda c, v: setattr(c.x, "is_data", v),
    "persistable of variable 'x'": lambda c, v: setattr(c.x, "persistable", v),
    "stop_gradient of variable 'q'": lambda c, v: L.data("q", [1], stop_gradient=v),
    "'append_batch_size'": lambda c, v: L.data("q", [1], append_batch_size=v),
    "'is_bias'": lambda c, v: L.create_parameter([2], "float32", is_bias=v),
    "persistable of variable 'global_var.*'": lambda c, v: L.create_global_var([2], 1.0, "float32", persistable=v),
    "'force_cpu'": lambda c, v: L.create_global_var([2], 1.0, "float32", force_cpu=v),
    "'staircase'": lambda c, v: L.exponential_decay(0.1, 10, 0.9, staircase=v),
    "Constant: force_cpu": lambda c, v: fluid.initializer.Constant(1.0, force_cpu=v),
    "Xavier: uniform": lambda c, v: fluid.initializer.Xavier(uniform=v),
    "MSRA: uniform": lambda c, v: fluid.initializer.MSRA(uniform=v),
    "'use_nesterov'": lambda c, v: fluid.optimizer.Momentum(0.1, 0.9, use_nesterov=v),
    "'lazy_mode'": lambda c, v: fluid.optimizer.Adam(0.1, lazy_mode=v),
    "for_test of Program.clone": lambda c, v: c.main.clone(v),
    "return_numpy of Executor.run": lambda c, v: c.run({"x": ROWS}, return_numpy=v),
    "use_program_cache of Executor.run": lambda c, v: c.run({"x": ROWS}, use_program_cache=v),
    "return_merged of Executor.run": lambda c, v: c.run({"x": ROWS}, return_merged=v),
    "use_prune of Executor.run": lambda c, v: c.run({"x": ROWS}, use_prune=v),
    "'drop_last'": lambda c, v: fluid.io.batch(list, 2, drop_last=v),
    "'check_alignment'": lambda c, v: fluid.io.compose(list, check_alignment=v),
    **{
        name: lambda c, v, name=name: fluid.io.DataLoader.from_generator([c.x], capacity=2, **{name: v})  # type: ignore[misc]
        for name in ("use_double_buffer", "iterable", "return_list", "use_multiprocess", "drop_last")
    },
}
"""What is True or False, by what an error calls it."""


@pytest.mark.parametrize("said", FLAGS)
def test_a_flag_is_true_or_false(case: Trained, said: str) -> None:
    before = str(case.main.clone().prune([case.loss]))
    for value in (3, "yes", None, [1], 0.5, np.ones(2)):
        with pytest.raises(fluid.FluidError, match=rf"{said} is {type(value).__name__} .*; expected True or False"):
            FLAGS[said](case, value)
    assert str(case.main.clone().prune([case.loss])) == before
    for value in (False, 0, 1, np.bool_(True), True):  # what old programs say
        with fluid.unique_name.guard(), fluid.program_guard(case.main.clone(), fluid.Program()):
            FLAGS[said](case, value)


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
