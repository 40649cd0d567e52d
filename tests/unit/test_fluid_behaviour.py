"""Calls of Fluid's programs behave as Fluid documents them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.errors import LoDError


@pytest.fixture
def main() -> Any:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()), fluid.scope_guard(fluid.Scope()):
        yield program


@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
def test_a_blocks_parameter_has_its_first_value(main: fluid.Program, place: str) -> None:
    block = main.global_block()
    constant = fluid.initializer.Constant(2.5)
    w = block.create_parameter(name="w", shape=[2, 3], dtype="float32", initializer=constant, lod_level=1)
    assert block.create_parameter(name="w", shape=[2, 3], dtype="float32", initializer=constant, lod_level=1) is w
    assert (w.lod_level, [op.type for op in block.ops]) == (1, ["fill_constant"])
    (value,) = fluid.Executor(place).run(main, fetch_list=[fluid.layers.scale(w, 2.0)])
    np.testing.assert_array_equal(value, np.full((2, 3), 5.0, "float32"))


@pytest.mark.parametrize(
    ("options", "says"),
    [({"initializer": 3}, "initializer is 3"), ({"lod_level": -1}, "lod_level is -1"), ({"colour": 1}, "'colour'")],
)
def test_options_of_a_parameter(main: fluid.Program, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        main.global_block().create_parameter(name="w", shape=[2], dtype="float32", **options)
    assert not main.global_block().has_var("w")


@pytest.mark.parametrize(
    "again", [{"shape": [3, 2]}, {"shape": [2, 3], "dtype": "int64"}, {"shape": [2, 3], "lod_level": 1}]
)
def test_a_variable_is_declared_once(main: fluid.Program, again: dict[str, Any]) -> None:
    block = main.global_block()
    first = block.create_var(name="v", shape=[2, 3], dtype="float64")
    assert block.create_var(name="v", shape=[2, 3]) is block.create_var(name="v") is first
    assert (first.shape, first.dtype) == ((2, 3), "float64")
    with pytest.raises(ValueError, match="'v' is declared twice"):
        block.create_var(name="v", **again)
    assert (first.shape, first.dtype, first.lod_level) == ((2, 3), "float64", 0)


def test_what_inference_found_may_be_declared(main: fluid.Program) -> None:
    block = main.global_block()
    out = fluid.layers.relu(fluid.layers.data("x", [3]))
    assert block.create_var(name=out.name, shape=[2, 3], dtype="float32").shape == (2, 3)
    with pytest.raises(ValueError, match="declared twice"):
        block.create_var(name=out.name, shape=[4, 3], dtype="float32")


def test_an_operator_has_a_type(main: fluid.Program) -> None:
    with pytest.raises(ValueError, match=r"append_op \(test_fluid_behaviour\.py:\d+.*\): the type is missing"):
        main.global_block().append_op()
    assert main.global_block().ops == []


@pytest.mark.parametrize("data", [np.zeros((4, 1), "float32"), [[1, 2], [3]]])
def test_lengths_that_do_not_sum_up(data: Any) -> None:
    for error in (AssertionError, ValueError, LoDError):
        with pytest.raises(error):
            fluid.create_lod_tensor(data, [[2, 3]], fluid.CPUPlace())


@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
def test_calc_gradient_of_one_input_is_no_list(main: fluid.Program, place: str) -> None:
    x, y = fluid.layers.data("x", [2]), fluid.layers.data("y", [2])
    x.stop_gradient = y.stop_gradient = False
    out = x * y * y
    one = fluid.calc_gradient(out, x)
    two = fluid.calc_gradient([out], [x, y])
    (listed,) = fluid.gradients(out, x)
    feed = {"x": np.float32([[1, 2]]), "y": np.float32([[3, 4]])}
    found = fluid.Executor(place).run(main, feed, [one, *two, listed])
    for value, right in zip(found, ([9, 16], [9, 16], [6, 16], [9, 16]), strict=True):
        np.testing.assert_allclose(value, [right])


def test_a_whole_program_is_saved_without_feeds(main: fluid.Program, tmp_path: Path) -> None:
    x = fluid.layers.data("x", [3])
    cost = fluid.layers.mean(fluid.layers.fc(x, 1))
    fluid.optimizer.SGD(0.1).minimize(cost)
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    with pytest.raises(ValueError, match="target_vars"):
        fluid.io.save_inference_model(tmp_path, [], [], exe)
    assert fluid.io.save_inference_model(tmp_path, [], [], exe, export_for_deployment=False) == []
    saved = fluid.Program.from_json((tmp_path / "__model__.main_program").read_bytes())
    assert [op.type for op in saved.global_block().ops] == [op.type for op in main.global_block().ops]
    feed = {"x": np.ones((2, 3), "float32")}
    (before,) = exe.run(main.clone(for_test=True), feed, [cost.name])
    with fluid.scope_guard(fluid.Scope()):
        fluid.io.load_persistables(exe, tmp_path, saved)
        (after,) = exe.run(saved.clone(for_test=True), feed, [cost.name])
    np.testing.assert_array_equal(after, before)


def test_operators_say_their_role_and_index(main: fluid.Program) -> None:
    x = fluid.layers.data("x", [3])
    cost = fluid.layers.mean(fluid.layers.fc(x, 1))
    fluid.optimizer.SGD(0.1).minimize(cost)
    maker = fluid.core.op_proto_and_checker_maker
    block = main.global_block()
    name = maker.kOpRoleAttrName()
    roles = {op.type: op.attr(name) for op in block.ops if op.has_attr(name)}
    assert roles["mean"] == maker.OpRole.Forward and roles["mean_grad"] == maker.OpRole.Backward
    assert roles["sgd"] == int(maker.OpRole.Optimize) == 2
    assert [op.idx for op in block.ops] == list(range(len(block.ops)))
    gone = block.ops[0]
    block.remove_op(0)
    with pytest.raises(ValueError, match="no longer in its block"):
        _ = gone.idx


def test_descriptions(main: fluid.Program) -> None:
    out = fluid.layers.scale(fluid.layers.data("x", [3], lod_level=1), 2.0)
    desc = main.desc
    block = desc.block(0)
    op = block.op(block.op_size() - 1)
    assert (desc.num_blocks(), block.id, block.parent, op.type()) == (1, 0, -1, "scale")
    assert (op.input_names(), op.input("X"), op.output_arg_names()) == (["X"], ["x"], [out.name])
    assert (op.output("Out"), op.output_names(), op.input_arg_names()) == ([out.name], ["Out"], ["x"])
    op._set_attr("scale", 3.0)
    assert op.attr("scale") == 3.0 and op.has_attr("scale") and "bias" in op.attr_names()
    found = block.find_var(b"x")
    assert found is not None and (found.name(), found.shape(), found.dtype()) == ("x", [-1, 3], "float32")
    assert (found.lod_level(), found.type(), found.persistable()) == (1, "dense", False)
    found.set_persistable(True)
    assert main.global_block().var("x").desc.persistable()
    assert block.has_var("x") and block.find_var("y") is None and len(block.all_vars()) == 2
    assert fluid.Program.parse_from_string(desc.serialize_to_string()).num_blocks == 1


def test_holder_of_definitions() -> None:
    holder = fluid.framework.OpProtoHolder.instance()
    assert holder.get_op_proto("scale") == fluid.op_proto("scale")
    assert holder.has_op_proto("scale") and not holder.has_op_proto("scales")
    assert "op_role" in holder.generated_op_attr_names()


def test_memory_is_planned_in_any_case(main: fluid.Program) -> None:
    fluid.layers.relu(fluid.layers.data("x", [256]))
    before = main.to_json()
    for function in (fluid.memory_optimize, fluid.release_memory):
        with pytest.warns(UserWarning, match="does nothing"):
            function(main)
        with pytest.raises(ValueError, match="expected a Program"):
            function(3)  # type: ignore[arg-type]
    assert main.to_json() == before
    assert fluid.contrib.memory_usage(main, 8) == (8 * 0.95, 8 * 1.05, "KB")
    with pytest.raises(ValueError, match="batch_size is 0"):
        fluid.contrib.memory_usage(main, 0)


def test_scopes_are_entered_and_left() -> None:
    from fluidlite import default_scope_funcs as scopes

    outer = scopes.get_cur_scope()
    scopes.var("a")

    def inside() -> None:
        scopes.var("b").set_int(3)
        assert scopes.get_cur_scope() is not outer and scopes.find_var("a") is not None
        found = scopes.find_var("b")
        assert found is not None and found.get_int() == 3 and not found.is_float()

    scopes.scoped_function(inside)
    assert scopes.get_cur_scope() is outer and scopes.find_var("b") is None
    with pytest.raises(ValueError, match="no local scope"):
        scopes.leave_local_scope()


def test_numbers_in_a_scope() -> None:
    variable = fluid.Scope().var("n")
    for get in (variable.get_int, variable.get_float):
        with pytest.raises(ValueError, match="'n' holds no"):
            get()
    variable.set_float(0.5)
    assert variable.get_float() == 0.5 and not variable.is_int()
    with pytest.raises(ValueError, match="'n'"):
        variable.set_int("3")  # type: ignore[arg-type]


def test_a_tensor_of_lengths() -> None:
    tensor = fluid.core.LoDTensor([[2, 3]])
    assert tensor.lod() == [[0, 2, 5]]
    with pytest.raises(ValueError):
        fluid.core.LoDTensor([[2, -3]])


def test_places_of_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fluid.layers.device.get_places(2) == [fluid.CPUPlace()] * 2
    with pytest.raises(fluid.FluidError, match="device_type"):
        fluid.layers.device.get_places(1, "abacus")


def _trained() -> tuple[fluid.Program, fluid.Program, Any, Any, Any]:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x, y = layers.data("x", [3]), layers.data("y", [1])
        hidden = layers.relu(layers.fc(x, 4, param_attr="w"))
        loss = layers.mean(layers.square_error_cost(layers.fc(hidden, 1), y))
        fluid.optimizer.Adam(0.1).minimize(loss)
    return main, startup, x, hidden, loss


@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_use_prune_runs_what_the_fetches_need(place: str, mode: str) -> None:
    main, startup, _, hidden, loss = _trained()
    exe, scope = fluid.Executor(place, mode=mode), fluid.Scope()
    exe.run(startup, scope=scope)

    def state() -> dict[str, Any]:
        return {v.name: np.array(scope.find_var(v.name).get_tensor()) for v in main.list_vars() if v.persistable}

    feed = {"x": np.ones((2, 3), "float32"), "y": np.ones((2, 1), "float32")}
    before = state()
    for _ in range(3):
        (first,) = exe.run(main, feed, [loss], scope=scope, use_prune=True)
    found = exe.run(main, {"x": feed["x"]}, [hidden], scope=scope, use_prune=True)
    given = exe.run(main, {hidden.name: found[0], "y": feed["y"]}, [loss], scope=scope, use_prune=True)
    gradient = exe.run(main, feed, ["w@GRAD"], scope=scope, use_prune=True)
    assert all(np.array_equal(value, before[name]) for name, value in state().items())
    np.testing.assert_allclose(given[0], first)
    (second,) = exe.run(main, feed, [loss], scope=scope)  # which updates
    np.testing.assert_allclose(second, first, rtol=1e-6)
    after = state()
    assert all(not np.array_equal(value, before[name]) for name, value in after.items() if "learning_rate" not in name)
    assert (np.sign(before["w"] - after["w"]) == np.sign(gradient[0])).all()
    exe.run(main, feed, ["w"], scope=scope, use_prune=True)  # what updates it is needed
    changed = [name for name, value in state().items() if not np.array_equal(value, after[name])]
    assert "w" in changed and not any(name.startswith("fc_1") for name in changed)


def test_use_prune_sees_what_a_program_became() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = layers.data("x", [2])
        out, exe = layers.scale(x, 2.0), fluid.Executor("cpu")
        feed = {"x": np.ones((1, 2), "float32")}
        for factor in (2.0, 3.0):
            out.block.ops[0].set_attr("scale", factor)
            assert exe.run(feed=feed, fetch_list=out, use_prune=True)[0].tolist() == [[factor, factor]]
        with pytest.raises(fluid.FluidError, match="the feed names 'z', which block 0 does not have"):
            exe.run(feed={**feed, "z": 1}, fetch_list=out, use_prune=True)
        with pytest.raises(fluid.FluidError, match="fetch_list names 'z'"):
            exe.run(feed=feed, fetch_list=["z"], use_prune=True)


def test_checks_of_layers_that_scripts_declare() -> None:
    from fluidlite.data_feeder import check_dtype, check_type, check_variable_and_dtype, convert_dtype

    named = {"float32": (np.float32, "float32", np.dtype("float32"), fluid.core.VarDesc.VarType.FP32), "bool": (bool,)}
    for name, given in named.items():
        assert [convert_dtype(each) for each in given] == [name] * len(given)
    x = layers.data("x", [2])
    check_variable_and_dtype(x, "x", ["float16", "float32", "complex64"], "mine")
    check_type(3, "n", (int, float), "mine")
    check_dtype(np.int64, "x", "int64", "mine")
    with pytest.raises(TypeError, match="float33"):
        convert_dtype("float33")
    with pytest.raises(TypeError, match=r"mine: 'x' is float32; expected int32 or int64\. because"):
        check_variable_and_dtype(x, "x", ("int32", "int64"), "mine", "because")
    with pytest.raises(TypeError, match="mine: argument 'x' is ndarray; expected Variable"):
        check_variable_and_dtype(np.ones(2), "x", ["float32"], "mine")
    with pytest.raises(TypeError, match="mine: argument 'n' is str; expected int or float"):
        check_type("3", "n", (int, float), "mine")
