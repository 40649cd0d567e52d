"""Backward: gradients as operators of the program, held against what they should be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.errors import GradientError, ShapeError

layers = fluid.layers
X = np.asarray([1.0, 2.0, -3.0])


@pytest.fixture(autouse=True)
def program() -> Any:
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        yield main


def data(name: str, dims: list[int] | None = None) -> Any:
    return layers.data(name, dims or [3], dtype="float64", append_batch_size=False, stop_gradient=False)


def value(variables: list[Any], **feed: Any) -> list[Any]:
    found = iter(fluid.Executor("cpu").run(feed=feed, fetch_list=[v for v in variables if v is not None]))
    return [next(found) if v is not None else None for v in variables]


REPEATED: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "x + x": (lambda x: x + x, lambda x: 2 + 0 * x),
    "x * x": (lambda x: x * x, lambda x: 2 * x),
    "three readers": (lambda x: x * x + layers.exp(x) + layers.scale(x, 3.0), lambda x: 2 * x + np.exp(x) + 3),
    "four readers": (lambda x: (x + x) * x + x, lambda x: 4 * x + 1),
    "sum of one thrice": (lambda x: layers.sums([x, x, x]), lambda x: 3 + 0 * x),
    "a diamond": (lambda x: (lambda y: y * layers.exp(y))(layers.tanh(x)), None),
    "a chain": (lambda x: layers.exp(layers.exp(layers.scale(x, 0.1))), None),
    "concat of itself": (lambda x: layers.concat([x, x, x * x], axis=0), lambda x: 2 + 2 * x),
}


@pytest.mark.parametrize("name", REPEATED)
def test_gradients_of_several_readers_are_summed(name: str) -> None:
    build, wanted = REPEATED[name]
    x = data("x")
    y = build(x)
    (gradient,) = fluid.gradients([y], [x])
    found, _ = value([gradient, y], x=X)
    if wanted is None:
        step = 1e-6

        def total(values: Any) -> Any:
            return value([y], x=values)[0].sum()

        expected = [(total(X + step * e) - total(X - step * e)) / (2 * step) for e in np.eye(3)]
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)
    else:
        np.testing.assert_allclose(found, wanted(X), rtol=1e-12)
    assert gradient.name == "x@GRAD"


def test_repeated_gradients_have_fluids_names(program: Any) -> None:
    x = data("x")
    fluid.gradients([layers.exp(x) + layers.tanh(x) + layers.relu(x)], [x])
    (add,) = [op for op in program.global_block().ops if op.type == "sum"]
    assert sorted(add.input("X")) == ["x@GRAD@RENAME@0", "x@GRAD@RENAME@1", "x@GRAD@RENAME@2"]
    assert add.output("Out") == ["x@GRAD"]


def test_backward_carries_role_and_line(program: Any) -> None:
    x = data("x")
    y = layers.exp(x)
    fluid.gradients([y], [x])
    forward, *backward = program.global_block().ops
    assert forward.role == "forward"
    assert {op.role for op in backward} == {"backward"}
    assert backward[-1].line == forward.line
    assert backward[-1].line.file.endswith("test_backward.py")


def test_stop_gradient_stops() -> None:
    x = data("x")
    y = layers.exp(x)
    y.stop_gradient = True
    z = y * x
    (gradient,) = fluid.gradients([z], [x])
    np.testing.assert_allclose(value([gradient], x=X)[0], np.exp(X))  # not through y


def test_a_fixed_input_has_no_gradient() -> None:
    x, fixed = data("x"), data("fixed")
    fixed.stop_gradient = True
    loss = layers.mean(x * fixed)
    fluid.append_backward(loss)
    names = fluid.default_main_program().global_block().vars
    assert "x@GRAD" in names
    assert "fixed@GRAD" not in names


@pytest.mark.parametrize("fed", [True, False])
def test_what_comes_from_no_other_has_one_gradient_by_name(fed: bool) -> None:
    """Nobody asked append_backward for it; its parts are summed up all the same."""
    x = data("x") if fed else layers.assign(X)
    x.stop_gradient = False
    loss = layers.reduce_sum(x * layers.exp(x))
    fluid.append_backward(loss)
    gradient = f"{x.name}@GRAD"
    np.testing.assert_allclose(value([gradient], **({"x": X} if fed else {}))[0], np.exp(X) * (1 + X), rtol=1e-6)


def test_parameter_list_takes_variables_that_are_no_parameters() -> None:
    x, y = data("x"), data("y")
    loss = layers.reduce_sum(layers.elementwise_mul(x, y))
    pairs = fluid.append_backward(loss, parameter_list=["x", y])
    assert [(variable.name, grad.name) for variable, grad in pairs] == [("x", "x@GRAD"), ("y", "y@GRAD")]
    found = value([grad for _, grad in pairs], x=X, y=2 * X)
    np.testing.assert_array_equal(found, [2 * X, X])


def test_no_grad_set() -> None:
    x = data("x")
    y, z = layers.exp(x), layers.tanh(x)
    (gradient,) = fluid.gradients([y + z], [x], no_grad_set={y})
    np.testing.assert_allclose(value([gradient], x=X)[0], 1 - np.tanh(X) ** 2)


@pytest.mark.parametrize("names", [lambda v: {v.name}, lambda v: [v], lambda v: {v}])
def test_no_grad_set_takes_names_and_variables(names: Any) -> None:
    x = data("x")
    y = layers.exp(x)
    assert fluid.gradients([y * 2], [x], no_grad_set=names(y)) == [None]


def test_target_gradients() -> None:
    x, start = data("x"), data("start")
    y = x * x
    gradient = fluid.calc_gradient(y, x, start)
    weights = np.asarray([1.0, 10.0, 100.0])
    np.testing.assert_allclose(value([gradient], x=X, start=weights)[0], 2 * X * weights)


@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
@pytest.mark.parametrize("dims", [(4, 3), (1, 3), (2, 2)])
def test_a_target_gradient_of_other_dims_is_refused_when_it_runs(place: str, dims: tuple[int, ...]) -> None:
    """Kernels of gradients rely on dims: with fewer rows they would read beyond the end."""
    x = layers.data("x", [3], stop_gradient=False)
    given = layers.data("given", [-1, -1], append_batch_size=False)
    (dx,) = fluid.gradients([layers.softmax(x)], [x], [given])
    exe, rows = fluid.Executor(place, fallback="allow"), np.ones((2, 3), "float32")
    assert exe.run(feed={"x": rows, "given": rows}, fetch_list=[dx])[0].shape == (2, 3)
    with pytest.raises(ShapeError, match=r"assign_like .* expected \[2, 3\]"):
        exe.run(feed={"x": rows, "given": np.ones(dims, "float32")}, fetch_list=[dx])


def test_a_target_gradient_of_another_dtype_is_refused() -> None:
    x = layers.data("x", [3], stop_gradient=False)
    with pytest.raises(GradientError, match="float64"):
        fluid.gradients([layers.softmax(x)], [x], [layers.data("given", [3], dtype="float64")])


def test_several_targets_and_inputs() -> None:
    x, y, unused, start = data("x"), data("y"), data("unused"), data("start")
    one, two = x * y, layers.exp(x)
    found = fluid.gradients([one, two], [x, y, unused], [start, None])
    assert found[2] is None
    weights = np.asarray([1.0, 10.0, 100.0])
    dx, dy, _ = value(found, x=X, y=X + 1, start=weights)
    np.testing.assert_allclose(dx, weights * (X + 1) + np.exp(X))
    np.testing.assert_allclose(dy, weights * X)


def test_a_target_that_another_target_reads() -> None:
    x = data("x")
    y = layers.exp(x)
    z = y * y
    (gradient,) = fluid.gradients([y, z], [x])
    np.testing.assert_allclose(value([gradient], x=X)[0], np.exp(X) + 2 * np.exp(2 * X))


def test_a_gradient_with_respect_to_something_in_the_middle() -> None:
    x = data("x")
    y = layers.exp(x)
    z = y * y
    dy, dx = fluid.gradients([z], [y, x])
    found = value([dy, dx], x=X)
    np.testing.assert_allclose(found[0], 2 * np.exp(X))
    np.testing.assert_allclose(found[1], 2 * np.exp(2 * X))


def test_a_target_is_an_input() -> None:
    x = data("x")
    (gradient,) = fluid.gradients([x], [x])
    np.testing.assert_allclose(value([gradient], x=X)[0], np.ones(3))


def test_second_gradients_of_what_has_them() -> None:
    x = data("x")
    (first,) = fluid.gradients([x * x], [x])
    assert first is not None
    np.testing.assert_allclose(value([first], x=X)[0], 2 * X)


@pytest.mark.parametrize("type", ["scale", "exp", "sum"])
def test_a_variable_written_in_place(program: Any, type: str) -> None:
    x = data("x")
    block = program.global_block()
    y = layers.scale(x, 2.0)
    block.append_op(type, {"X": y}, {"Out": y}, {"scale": 3.0} if type == "scale" else None)
    z = y * y
    (gradient,) = fluid.gradients([z], [x])
    wanted = {"scale": 72 * X, "exp": 4 * np.exp(4 * X), "sum": 8 * X}
    np.testing.assert_allclose(value([gradient], x=X)[0], wanted[type], rtol=1e-12)


def test_a_value_that_backward_needs_and_that_was_overwritten(program: Any) -> None:
    x = data("x")
    block = program.global_block()
    y = layers.exp(x)  # its gradient reads its output
    block.append_op("scale", {"X": y}, {"Out": y}, {"scale": 3.0})
    with pytest.raises(
        GradientError,
        match=r"operator exp \(test_backward.py:\d+.*reads .*exp_0.tmp_0.*operator scale \(.*overwrites",
    ):
        fluid.gradients([layers.mean(y)], [x])


def test_an_input_that_backward_needs_and_that_its_operator_overwrites(program: Any) -> None:
    x = data("x")
    block = program.global_block()
    y = layers.scale(x, 2.0)
    block.append_op("square", {"X": y}, {"Out": y})  # its gradient reads its input
    with pytest.raises(GradientError, match=r"operator square .*reads .*overwrites"):
        fluid.gradients([layers.mean(y)], [x])


def test_an_operator_without_gradient_blocks() -> None:
    x = data("x")
    y = (
        layers.cast(layers.argmax(x), "float64")
        if hasattr(layers, "argmax")
        else layers.cast(layers.cast(x, "int64"), "float64")
    )
    assert fluid.gradients([y], [x]) == [None]


def test_an_unwanted_branch_gets_no_operators(program: Any) -> None:
    x, fixed = data("x"), data("fixed")
    fixed.stop_gradient = True
    loss = layers.mean(x + layers.exp(layers.tanh(fixed)))
    before = len(program.global_block().ops)
    fluid.append_backward(loss)
    types = [op.type for op in program.global_block().ops[before:]]
    assert "exp_grad" not in types
    assert "tanh_grad" not in types


def test_broadcast_gradients_are_reduced() -> None:
    x, y = data("x", [2, 3]), data("y", [3])
    dx, dy = fluid.gradients([layers.elementwise_mul(x, y)], [x, y])
    values = np.arange(6.0).reshape(2, 3)
    found = value([dx, dy], x=values, y=X)
    np.testing.assert_allclose(found[0], np.broadcast_to(X, (2, 3)))
    np.testing.assert_allclose(found[1], values.sum(axis=0))


# --- append_backward -------------------------------------------------------------------------------------------------


def test_append_backward_gives_parameters_and_gradients() -> None:
    x = layers.data("x", [4])
    hidden = layers.fc(x, 3, act="tanh")
    loss = layers.mean(layers.fc(hidden, 1))
    pairs = fluid.append_backward(loss)
    assert [(p.name, g.name) for p, g in pairs] == [
        (name, f"{name}@GRAD") for name in ("fc_0.w_0", "fc_0.b_0", "fc_1.w_0", "fc_1.b_0")
    ]
    assert all(p.shape == g.shape for p, g in pairs)


def test_a_parameter_list_and_untrainable_parameters() -> None:
    x = layers.data("x", [4])
    frozen = fluid.ParamAttr(name="frozen", trainable=False)
    loss = layers.mean(layers.fc(layers.fc(x, 3, param_attr=frozen), 1))
    assert "frozen" not in [p.name for p, _ in fluid.append_backward(loss)]


def test_a_chosen_parameter() -> None:
    x = layers.data("x", [4])
    loss = layers.mean(layers.fc(layers.fc(x, 3), 1))
    assert [p.name for p, _ in fluid.append_backward(loss, ["fc_1.w_0"])] == ["fc_1.w_0"]


def test_a_shared_parameter_gets_one_summed_gradient() -> None:
    x = layers.data("x", [3], append_batch_size=True)
    attr = fluid.ParamAttr(name="shared", initializer=fluid.initializer.Constant(0.5))
    y = layers.fc(layers.fc(x, 3, param_attr=attr, bias_attr=False), 3, param_attr=attr, bias_attr=False)
    pairs = fluid.append_backward(layers.reduce_sum(y))
    assert [p.name for p, _ in pairs] == ["shared"]
    exe, scope = fluid.Executor("cpu"), fluid.Scope()
    exe.run(fluid.default_startup_program(), scope=scope)
    values = np.asarray([[1, 2, 3]], "float32")
    (found,) = exe.run(feed={"x": values}, fetch_list=[pairs[0][1]], scope=scope)
    w = np.full((3, 3), 0.5)
    expected = values.T @ (np.ones((1, 3)) @ w.T) + (values @ w).T @ np.ones((1, 3))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_wrong_losses() -> None:
    x = layers.data("x", [4])
    y = layers.fc(x, 3)
    with pytest.raises(GradientError, match=r"the loss .* is float32\[-1, 3\]; backward starts from one float"):
        fluid.append_backward(y)
    with pytest.raises(GradientError, match="takes the loss as a Variable, got str"):
        fluid.append_backward("loss")  # type: ignore[arg-type]
    with pytest.raises(GradientError, match="is int64"):
        fluid.append_backward(layers.reduce_sum(layers.cast(y, "int64")))
    y.stop_gradient = True
    with pytest.raises(GradientError, match="depends on none of the parameters"):
        fluid.append_backward(layers.mean(y), ["fc_0.w_0"])


def test_wrong_calls_of_calc_gradient() -> None:
    x = data("x")
    y = layers.exp(x)
    with pytest.raises(GradientError, match="got 1 targets and 2 target_gradients"):
        fluid.gradients([y], [x], [None, None])
    with pytest.raises(GradientError, match="needs at least one target"):
        fluid.gradients([], [x])
    with pytest.raises(GradientError, match=r"has dims \[2\]"):
        fluid.gradients([y], [x], [data("start", [2])])


def test_what_backward_reads_is_what_the_rule_says(program: Any) -> None:
    x = data("x")
    y = layers.tanh(layers.relu(x))
    fluid.gradients([y], [x])
    reads = {op.type: set(op.inputs) for op in program.global_block().ops if op.type.endswith("_grad")}
    assert reads == {"tanh_grad": {"Out", "Out@GRAD"}, "relu_grad": {"Out", "Out@GRAD"}}


@pytest.mark.parametrize(
    ("type_", "inputs", "wanted", "absent"),
    [
        ("margin_rank_loss_grad", ("X1", "Label", "Activated", "Out@GRAD"), "Label@GRAD", "X2"),
        ("modified_huber_loss_grad", ("Y", "IntermediateVal", "Out@GRAD"), "Y@GRAD", "X"),
        ("softmax_with_cross_entropy_grad", ("Softmax", "Label", "Loss@GRAD"), "Label@GRAD", "Logits"),
    ],
)
def test_a_gradient_without_what_it_alone_reads_is_refused(
    type_: str, inputs: tuple[str, ...], wanted: str, absent: str
) -> None:
    """What is read for one gradient alone may be absent where that one is not wanted, and only there."""
    main = fluid.Program()
    block = main.global_block()
    for name in inputs:
        block.create_var(
            name, [4, 1] if type_ != "softmax_with_cross_entropy_grad" else [4, 3], "float32", is_data=True
        )
    attrs = {"soft_label": True} if type_.startswith("softmax") else {}
    if type_.startswith("softmax"):
        block.vars["Loss@GRAD"].spec = block.vars["Loss@GRAD"].spec.with_(dims=(4, 1))
    block.create_var("out")
    with pytest.raises(fluid.FluidError, match=f"{absent} is absent; expected a value, which {wanted} needs"):
        block.append_op(type_, {name: name for name in inputs}, {wanted: "out"}, attrs)


# --- names that are written more than once ---------------------------------------------------------------------------


def overwrite(source: Any, target: Any, **attrs: float) -> None:
    """``target = scale(source)``, under the name that it has."""
    target.block.append_op("scale", {"X": source}, {"Out": target}, {"bias": 0.5, **attrs})


def test_a_value_made_of_the_one_that_it_overwrites() -> None:
    x = data("x")
    a = layers.assign(x)
    overwrite(layers.tanh(a), a, scale=2.0)
    (gradient,) = fluid.gradients([a + 1.0], [x])
    np.testing.assert_allclose(value([gradient], x=X)[0], 2 * (1 - np.tanh(X) ** 2))


@pytest.mark.parametrize("readers", [1, 2, 3])
def test_each_value_of_a_name_has_a_gradient_of_its_own(readers: int) -> None:
    x = data("x")
    a = layers.scale(x, 3.0)
    before = layers.sums([layers.exp(layers.scale(a, 0.1)) for _ in range(readers)])
    overwrite(layers.sin(x), a, scale=5.0)
    after = layers.sums([layers.cos(layers.scale(a, 1.0)) for _ in range(readers)])
    of_x, of_a = fluid.gradients([before + after], [x, a])
    found = value([of_x, of_a], x=X)
    last = 5 * np.sin(X) + 0.5
    wanted_a = -readers * np.sin(last)  # of what it holds last
    np.testing.assert_allclose(found[1], wanted_a, rtol=1e-12)
    np.testing.assert_allclose(found[0], readers * 0.3 * np.exp(0.3 * X) + wanted_a * 5 * np.cos(X), rtol=1e-12)


def test_state_that_is_read_and_then_written() -> None:
    x = data("x")
    state = layers.create_global_var([3], 0.25, "float64", persistable=True)
    state.stop_gradient = False
    first = layers.exp(state + x)
    layers.assign(x, output=state)
    y = first + x * state
    (gradient,) = fluid.gradients([y], [x])
    scope = fluid.Scope()
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program(), scope=scope)
    (found,) = exe.run(feed={"x": X}, fetch_list=[gradient], scope=scope)
    np.testing.assert_allclose(found, np.exp(0.25 + X) + 2 * X)


def test_a_parameter_that_is_assigned_has_the_gradient_of_its_new_value() -> None:
    w = layers.create_parameter([3], "float64", name="w")
    layers.assign(layers.clip(w, -1.0, 1.0), output=w)
    ((parameter, gradient),) = fluid.append_backward(layers.reduce_sum(layers.square(w)))
    exe, scope = fluid.Executor("cpu"), fluid.Scope()
    scope.var("w").get_tensor().set(np.asarray([-3.0, 0.5, 2.0]), "cpu")
    (found,) = exe.run(fetch_list=[gradient], scope=scope)
    assert parameter.name == "w"
    np.testing.assert_allclose(found, [-2, 1, 2])


@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_a_loss_whose_parameters_another_minimize_updates_first(place: str, mode: str) -> None:
    """Both losses are of the parameters as they were: the second backward reads what they were, not the updates."""
    x = layers.data("x", [3], append_batch_size=True)
    fixed = fluid.initializer.NumpyArrayInitializer(np.linspace(-1, 1, 12).reshape(3, 4).astype("float32"))
    hidden = layers.fc(x, 4, act="tanh", bias_attr=False, param_attr=fluid.ParamAttr(name="a", initializer=fixed))
    last = fluid.ParamAttr(name="b", initializer=fluid.initializer.Constant(0.5))
    out = layers.fc(hidden, 1, bias_attr=False, param_attr=last)
    first, second = layers.mean(out), layers.mean(layers.square(out))
    fluid.optimizer.SGD(0.5).minimize(first, parameter_list=["b"])
    ((_, gradient),) = fluid.append_backward(second, ["a"])
    exe, scope = fluid.Executor(place, mode=mode), fluid.Scope()
    exe.run(fluid.default_startup_program(), scope=scope)
    values = np.float32([[1, -2, 0.5], [0.25, 1, 2]])
    (found,) = exe.run(feed={"x": values}, fetch_list=[gradient], scope=scope)
    a, b = np.linspace(-1, 1, 12).reshape(3, 4), np.full((4, 1), 0.5)
    h = np.tanh(values @ a)
    wanted = values.T @ ((h @ b) @ b.T * (1 - h * h))  # mean over two rows of the square: 2 / 2
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_a_function_of_python_whose_input_is_overwritten(program: Any) -> None:
    x = data("x")
    y = layers.scale(x, 2.0)
    out = program.global_block().create_var("out", [3], "float64")
    layers.py_func(lambda v: np.asarray(v) ** 2, y, out, lambda v, o, g: 2 * np.asarray(v) * np.asarray(g))
    overwrite(x, y, scale=5.0)
    with pytest.raises(GradientError, match=r"operator py_func .*reads X .*operator scale \(.*overwrites"):
        fluid.gradients([out + y], [x])
