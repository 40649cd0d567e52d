"""Fluid's remaining names of its static API: what each does, and what it refuses."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.errors import AttributeValueError, FluidError, ProgramError, SavedModelError

L = fluid.layers


def network() -> Any:
    x = L.data("x", [3])
    loss = L.mean(L.fc(x, 2, act="relu"))
    fluid.optimizer.SGD(0.1).minimize(loss)
    return loss


def test_programs_are_printed_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network()
    main = fluid.default_main_program()
    fluid.debugger.pprint_program_codes(main)
    short = capsys.readouterr().out
    assert "param fc_0.w_0 : float32[3, 2]" in short and "= mul(X=x, Y=fc_0.w_0)" in short and "sgd" not in short
    fluid.debugger.pprint_block_codes(main.global_block(), show_backward=True)
    assert "sgd(" in capsys.readouterr().out
    path = fluid.debugger.draw_block_graphviz(main.global_block(), [r"fc_0\.w.*"], tmp_path / "a.dot")
    text = Path(path).read_text()
    nodes = dict(re.findall(r'  (\w+) \[label="([^"\\]*)', text))
    edges = re.findall(r"  (\w+) -> (\w+)\[", text)
    count = sum(len(op.input_arg_names) + len(op.output_arg_names) for op in main.global_block().ops)
    assert len(edges) == count and {end for edge in edges for end in edge} <= set(nodes)
    assert sum("ffb3b3" in line for line in text.splitlines()) == 2  # the weight and its gradient
    graph = fluid.net_drawer.draw_graph(
        fluid.default_startup_program(), main, filename=str(tmp_path / "b.dot"), graph_attr={"label": 'a "b"'}
    )
    assert 'label="a \\"b\\"";' in (tmp_path / "b.dot").read_text() == graph.code()
    for call in (
        lambda: fluid.debugger.pprint_program_codes(main.global_block()),
        lambda: fluid.debugger.pprint_block_codes(main),
        lambda: fluid.debugger.draw_block_graphviz(main.global_block(), ["("], tmp_path / "c.dot"),
        lambda: fluid.debugger.draw_block_graphviz(main.global_block(), None, tmp_path / "no" / "c.dot"),
        lambda: fluid.net_drawer.draw_graph(None, main),
    ):
        with pytest.raises(ProgramError):
            call()


def test_the_installation_is_checked(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fluid.install_check.run_check()
    told = capsys.readouterr().out
    assert all(f"{place}: works" in told for place in fluid.places()) and told.endswith("installed successfully.\n")
    monkeypatch.setattr(fluid.install_check, "_trains_correctly", lambda place: False)
    with pytest.raises(FluidError, match="does not work on cpu"):
        fluid.install_check.run_check()


@pytest.mark.parametrize("format", ["fluidlite", "paddle"])
def test_state_of_programs_as_arrays(tmp_path: Path, format: str) -> None:
    exe, main = fluid.Executor("cpu"), fluid.default_main_program()
    network()
    exe.run(fluid.default_startup_program())
    fluid.io.save(main, str(tmp_path / "m"), format=format)
    fluid.io.save_persistables(exe, str(tmp_path / "folder"), main, format=format)
    state = fluid.io.load_program_state(str(tmp_path / "m"))
    again = fluid.io.load_program_state(str(tmp_path / "folder"))
    assert sorted(state) == sorted(again) == ["fc_0.b_0", "fc_0.w_0", "learning_rate_0"]
    for name, array in state.items():
        np.testing.assert_array_equal(array, again[name])
    assert list(fluid.io.load_program_state(str(tmp_path / "m"), ["fc_0.w_0"])) == ["fc_0.w_0"]
    state["fc_0.w_0"] = state["fc_0.w_0"] + 1
    fluid.io.set_program_state(main, state)
    np.testing.assert_array_equal(fluid.executor.fetch_var("fc_0.w_0"), state["fc_0.w_0"])
    with pytest.raises(SavedModelError, match="holds no variable 'q'"):
        fluid.io.load_program_state(str(tmp_path / "m"), ["q"])
    with pytest.raises(SavedModelError, match="there is no file"):
        fluid.io.load_program_state(str(tmp_path / "none"))
    with pytest.raises(ProgramError, match="'q' is nothing that the program keeps"):
        fluid.io.set_program_state(main, {"q": np.ones(1)})
    with pytest.raises(ProgramError, match=r"'fc_0.w_0' is .* was given"):
        fluid.io.set_program_state(main, {"fc_0.b_0": np.ones(2, "float32"), "fc_0.w_0": np.ones(1, "float32")})
    np.testing.assert_array_equal(fluid.executor.fetch_var("fc_0.b_0"), state["fc_0.b_0"])
    parameters = fluid.io.get_program_parameter(main)
    assert [v.name for v in parameters] == ["fc_0.w_0", "fc_0.b_0"]
    kept = fluid.io.get_program_persistable_vars(main)
    assert [v.name for v in kept if fluid.io.is_belong_to_optimizer(v)] == ["learning_rate_0"]


def test_names_of_executor_and_framework() -> None:
    exe = fluid.Executor("cpu")
    loss = network()
    exe.run(fluid.default_startup_program())
    with pytest.raises(ProgramError, match="no value of 'mean"):
        fluid.executor.fetch_var(loss.name)
    tensors = exe.run(feed={"x": np.ones((2, 3), "float32")}, fetch_list=[loss, loss], return_numpy=False)
    assert [array.shape for array in fluid.executor.as_numpy(tensors)] == [(1,), (1,)]
    with pytest.raises(ProgramError, match="has LoD"):
        fluid.executor.as_numpy(fluid.create_lod_tensor(np.ones((3, 1)), [[1, 2]], "cpu"))
    other = fluid.Scope()
    before = fluid.executor._switch_scope(other)
    assert fluid.global_scope() is other and fluid.executor._switch_scope(before) is other
    framework = fluid.framework
    assert framework.get_var("x").name == "x" and framework.dtype_is_floating("float16")
    assert not framework.dtype_is_floating(fluid.core.VarDesc.VarType.INT64)
    assert {"mul", "relu"} <= {proto.type for proto in framework.get_all_op_protos()}
    assert framework.is_compiled_with_cuda() == fluid.core.is_compiled_with_cuda()
    with pytest.raises(ProgramError, match="compiled for Paddle"):
        framework.load_op_library("libcustom.so")


def test_roles_and_blocks_as_layers_of_fluid_use_them() -> None:
    x = L.data("x", [3])
    main, block = fluid.default_main_program(), fluid.default_main_program().global_block()
    with main._optimized_guard([]):
        step = L.scale(x, 2.0)
    with main._lr_schedule_guard():
        L.scale(x, 3.0)
    main.set_op_role(fluid.core.op_proto_and_checker_maker.OpRole.Backward)
    L.scale(x, 4.0)
    main.op_role = 0
    assert [op.attr("op_role") for op in block.ops] == [2, 16, 1]
    with pytest.raises(ProgramError, match="op_role is 77"):
        main.op_role = 77
    assert [op.type for op in main._inference_optimize().global_block().ops] == []
    old = step.name
    block._rename_var(old, "step")
    assert block.var("step") is step and block.ops[0].output("Out") == ["step"] and not block.has_var(old)
    with pytest.raises(ProgramError, match="'x' is taken"):
        block._rename_var("step", "x")
    with pytest.raises(ProgramError, match="remove the operator first"):
        block._remove_var("step")
    block._remove_op(0)
    block._remove_var("step")
    assert not block.has_var("step") and len(block._slice_ops(0, 1)) == 1
    copy = fluid.Program().global_block()._clone_variable(x, False)
    assert (copy.name, copy.shape, copy.is_data) == ("x", (-1, 3), True)


def test_old_names_of_attributes() -> None:
    x = L.data("x", [3])
    block = fluid.default_main_program().global_block()
    out = block.create_var("o")
    assert block.append_op("hard_shrink", {"X": x}, {"Out": out}, {"lambda": 0.25}).attr("threshold") == 0.25
    with pytest.raises(AttributeValueError, match="lambda"):
        block.append_op("hard_shrink", {"X": x}, {"Out": out}, {"lambda": 0.25, "threshold": 0.5})
    state = [L.create_parameter([3], "float32") for _ in range(4)]
    rate = L.create_global_var([1], 0.1, "float32")
    ins = dict(zip(("Param", "SquaredAccumulator", "LinearAccumulator", "Grad"), state, strict=True))
    outs = dict(zip(("ParamOut", "SquaredAccumOut", "LinearAccumOut"), state[:3], strict=True))
    block.append_op("ftrl", {**ins, "LearningRate": rate}, outs, {"learning_rate": 0.0, "lr_power": -0.5})


def test_global_initialisers() -> None:
    with pytest.raises(ProgramError, match="bias_init"):
        fluid.initializer.set_global_initializer(fluid.initializer.Constant(1.0), 3)  # type: ignore[arg-type]
    fluid.initializer.set_global_initializer(fluid.initializer.Constant(3.0), fluid.initializer.Constant(0.5))
    try:
        L.fc(L.data("x", [2]), 1)
        L.fc(L.data("x", [2]), 1, param_attr=fluid.ParamAttr(initializer=fluid.initializer.Constant(7.0)))
    finally:
        fluid.initializer.set_global_initializer(None)
    L.fc(L.data("x", [2]), 1)
    fluid.Executor("cpu").run(fluid.default_startup_program())
    found = {name: fluid.executor.fetch_var(name) for name in ("fc_0.w_0", "fc_0.b_0", "fc_1.w_0", "fc_2.b_0")}
    assert {name: set(array.ravel()) for name, array in found.items()} == {
        "fc_0.w_0": {3.0}, "fc_0.b_0": {0.5}, "fc_1.w_0": {7.0}, "fc_2.b_0": {0.0}
    }  # fmt: skip


def test_a_sequence_convolution_is_pooled() -> None:
    rows = L.data("rows", [4], lod_level=1)
    attrs: Any = dict(param_attr=fluid.ParamAttr("w"), bias_attr=fluid.ParamAttr("b"))
    both = fluid.nets.sequence_conv_pool(rows, 3, 2, act="tanh", pool_type="sqrt", **attrs)
    steps = L.sequence_pool(L.sequence_conv(rows, 3, 2, act="tanh", **attrs), "sqrt")
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    feed = {"rows": fluid.create_lod_tensor(np.random.default_rng(0).normal(size=(5, 4)).astype("f4"), [[2, 3]], "cpu")}
    found, expected = exe.run(feed=feed, fetch_list=[both, steps])
    assert found.shape == (2, 3)
    np.testing.assert_array_equal(found, expected)


def test_operators_are_counted() -> None:
    network()
    types, pairs = fluid.contrib.op_freq_statistic(fluid.default_main_program())
    assert dict(types)["sgd"] == 2 and dict(types)["mul"] == 1
    assert ("mul->elementwise_add", 1) in pairs
    with pytest.raises(ProgramError, match="expected a Program"):
        fluid.contrib.op_freq_statistic(3)  # type: ignore[arg-type]


def fetched(*variables: Any, **feed: Any) -> list[Any]:
    return fluid.Executor("cpu").run(feed=feed, fetch_list=list(variables))


def test_uniform_and_normal_distributions() -> None:
    from scipy import stats  # half a second, that collection does not pay

    value = np.asarray([0.1, 0.5, 2.5, -1.0], "float32")
    x = L.data("value", [4], append_batch_size=False)
    uniform, normal, other = L.Uniform(0.0, 2.0), L.Normal([0.5], [2.0]), L.Normal(-1.0, 0.5)
    found = fetched(
        uniform.log_prob(x), uniform.entropy(), normal.log_prob(x), normal.entropy(), normal.kl_divergence(other),
        value=value,
    )  # fmt: skip
    with np.errstate(divide="ignore"):
        expected = [stats.uniform(0, 2).logpdf(value), math.log(2), stats.norm(0.5, 2).logpdf(value)]
    expected += [stats.norm(0.5, 2).entropy(), math.log(0.5 / 2) + (4 + 1.5**2) / (2 * 0.25) - 0.5]
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(got.ravel(), np.ravel(want), rtol=2e-6)
    drawn, gauss = fetched(uniform.sample([4000], seed=3), normal.sample([4000], seed=3))
    assert drawn.shape == (4000,)  # of numbers; those of an array have its dims too
    assert gauss.shape == (4000, 1)
    (wide,) = fetched(L.Normal([1.0, 2.0, 3.0], 2.0).entropy())
    np.testing.assert_allclose(wide, np.full(3, stats.norm(0, 2).entropy()), rtol=2e-6)
    assert stats.kstest(drawn.ravel(), stats.uniform(0, 2).cdf).pvalue > 1e-3
    assert stats.kstest(gauss.ravel(), stats.norm(0.5, 2).cdf).pvalue > 1e-3
    for call in (
        lambda: L.Normal("a", 1.0),
        lambda: L.Uniform([0.0, 1.0], [1.0, 2.0, 3.0]).sample([2]),
        lambda: normal.kl_divergence(uniform),
        lambda: normal.sample(3),
        lambda: normal.log_prob(3.0),
    ):
        with pytest.raises(ProgramError):
            call()


def test_categorical_and_diagonal_distributions() -> None:
    from scipy import stats  # half a second, that collection does not pay

    rng = np.random.default_rng(0)
    p, q = rng.normal(size=(2, 3, 5)).astype("float32")
    a, b = L.data("a", [3, 5], append_batch_size=False), L.data("b", [3, 5], append_batch_size=False)
    one, two = L.Categorical(a), L.Categorical(b)
    entropy, apart = fetched(one.entropy(), one.kl_divergence(two), a=p, b=q)
    first, second = (np.exp(x - x.max(1, keepdims=True)).astype(float) for x in (p, q))
    first, second = first / first.sum(1, keepdims=True), second / second.sum(1, keepdims=True)
    np.testing.assert_allclose(entropy.ravel(), stats.entropy(first, axis=1), rtol=1e-5)
    np.testing.assert_allclose(apart.ravel(), stats.entropy(first, second, axis=1), rtol=1e-4, atol=1e-6)
    means, scales = rng.normal(size=(2, 3)).astype("float32"), rng.uniform(0.5, 2, (2, 3)).astype("float32")
    left, right = (L.MultivariateNormalDiag(m, np.diag(s)) for m, s in zip(means, scales, strict=True))
    entropy, apart = fetched(left.entropy(), left.kl_divergence(right))
    np.testing.assert_allclose(entropy, stats.multivariate_normal(means[0], np.diag(scales[0])).entropy(), rtol=1e-5)
    s, t, d = scales[0].astype(float), scales[1].astype(float), (means[1] - means[0]).astype(float)
    np.testing.assert_allclose(apart, 0.5 * (sum(s / t) + sum(d * d / t) - 3 + np.log(t / s).sum()), rtol=1e-5)
    with pytest.raises(ProgramError, match="square"):
        L.MultivariateNormalDiag(means[0], means)
    with pytest.raises(ProgramError):
        one.kl_divergence(left)


def test_evaluators_sum_up_over_runs() -> None:
    tags, truth = (L.data(name, [1], dtype="int64", lod_level=1) for name in ("tags", "truth"))
    chunks = fluid.evaluator.ChunkEvaluator(tags, truth, "IOB", 1)
    edits = fluid.evaluator.EditDistance(tags, truth)
    exe = fluid.Executor("cpu")
    with pytest.raises(ProgramError, match="run the startup program"):
        chunks.eval(exe)
    exe.run(fluid.default_startup_program())
    with pytest.raises(ProgramError, match="no sequences"):
        edits.eval(exe)

    def run(left: list[int], right: list[int]) -> None:
        pairs = ((left, "tags"), (right, "truth"))
        feed = {
            n: fluid.create_lod_tensor(np.asarray(row).reshape(-1, 1).astype("int64"), [[2, len(row) - 2]], "cpu")
            for row, n in pairs
        }
        exe.run(feed=feed, fetch_list=chunks.metrics)

    for _ in range(2):
        run([0, 1, 2, 0], [0, 1, 0, 0])  # chunks: 2 found, 3 there, 1 right... by hand below
        run([0, 2, 0, 1], [0, 2, 0, 1])
        precision, recall, f1 = chunks.eval(exe)
        # first run: found {0-1, 3}, there {0-1, 2, 3}, right {0-1, 3}; second: found = there = {0, 2-3}
        assert (precision[0], recall[0]) == (1.0, np.float32(4 / 5)) and f1[0] == np.float32(8 / 9)
        distance, share = edits.eval(exe)
        assert (distance[0], share[0]) == (np.float32(0.5 / 4), np.float32(1 / 4))
        chunks.reset(exe)
        edits.reset(exe)


@pytest.mark.parametrize("bias", [False, None])
@pytest.mark.parametrize("place", fluid.places(), ids=str)
def test_batch_norm_is_folded(bias: Any, place: Any) -> None:
    image = L.data("image", [2, 6, 6])
    conv = L.conv2d(image, 3, 3, bias_attr=bias)
    out = L.relu(L.batch_norm(conv, moving_mean_name="m", moving_variance_name="v"))
    program = fluid.default_main_program().clone(for_test=True)
    exe = fluid.Executor(place)
    exe.run(fluid.default_startup_program())
    rng = np.random.default_rng(0)
    for name in ("m", "v", "batch_norm_0.w_0", "batch_norm_0.b_0"):
        fluid.global_scope().find_var(name).get_tensor().set(rng.uniform(0.5, 2, 3).astype("float32"))
    feed = {"image": rng.normal(size=(2, 2, 6, 6)).astype("float32")}
    (before,) = exe.run(program, feed=feed, fetch_list=[out.name])
    original = program.clone()
    fluid.InferenceTranspiler().transpile(program, place)
    assert [op.type for op in program.global_block().ops] == ["conv2d", "elementwise_add", "relu"]
    (after,) = exe.run(program, feed=feed, fetch_list=[out.name])
    np.testing.assert_allclose(before, after, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(before, exe.run(original, feed=feed, fetch_list=[out.name])[0])
    with pytest.raises(ProgramError, match="expected a Program"):
        fluid.InferenceTranspiler().transpile(3, place)  # type: ignore[arg-type]


def test_what_cannot_be_folded_stays() -> None:
    image = L.data("image", [2, 6, 6])
    conv = L.conv2d(image, 3, 3, bias_attr=False)
    L.elementwise_add(L.batch_norm(conv, is_test=True), conv)  # the convolution is read twice
    L.batch_norm(L.conv2d(image, 3, 3))  # its statistics are those of the batch
    fluid.Executor("cpu").run(fluid.default_startup_program())
    program = fluid.default_main_program()
    before = str(program)
    fluid.InferenceTranspiler().transpile(program, "cpu")
    assert str(program) == before


def test_a_parallel_executor_runs_members(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPU_NUM", "2")
    x = L.data("x", [3])
    loss = L.mean(L.fc(x, 1, bias_attr=False, param_attr=fluid.ParamAttr(initializer=fluid.initializer.Constant(1.0))))
    fluid.optimizer.SGD(1.0).minimize(loss)
    fluid.Executor("cpu").run(fluid.default_startup_program())
    runner = fluid.ParallelExecutor(use_cuda=False, loss_name=loss.name)
    (losses,) = runner.run([loss.name], feed={"x": np.arange(12, dtype="float32").reshape(4, 3)})
    assert runner.device_count == 2 and losses.tolist() == [7.5, 25.5]
    np.testing.assert_allclose(fluid.executor.fetch_var("fc_0.w_0").ravel(), [1 - 4.5, 1 - 5.5, 1 - 6.5])
    with pytest.raises(ProgramError, match="mpirun"):
        fluid.ParallelExecutor(False, num_trainers=2)


def test_layers_of_contrib_that_do_what_others_do() -> None:
    contrib = fluid.contrib.layers
    one, half = fluid.initializer.Constant(1.0), fluid.initializer.Constant(0.5)
    a, b = L.data("a", [4]), L.data("b", [4])
    words = L.data("words", [1], dtype="int64", lod_level=1)
    slots = L.data("slots", [2, -1, 4], append_batch_size=False)
    rows = np.random.default_rng(0).normal(size=(4, 3, 4)).astype("float32")
    x, y = rows[:2]
    cases = [
        (contrib.fused_elemwise_activation(a, b, ["elementwise_add", "relu"]), x + np.maximum(y, 0)),
        (contrib.fused_elemwise_activation(a, b, "tanh,elementwise_mul"), np.tanh(x * y)),
        (contrib.fused_elemwise_activation(a, b, ["scale", "elementwise_add"], scale=3.0), 3 * (x + y)),
        (contrib.partial_concat([a, b], 1, 2), np.concatenate([x[:, 1:3], y[:, 1:3]], 1)),
        (contrib.partial_sum([a, b], -3), x[:, 1:] + y[:, 1:]),
        (contrib.fused_embedding_seq_pool(words, [5, 2], padding_idx=0, param_attr=one), np.array([[1, 1], [2, 2]])),
        (contrib.batch_fc(slots, [2, 4, 2], half, [2, 2], one, "relu"),
         np.maximum(0.5 * rows[2:].sum(-1, keepdims=True) + 1, 0).repeat(2, -1)),
    ]  # fmt: skip
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    ids = fluid.create_lod_tensor(np.array([[3], [0], [2], [1]]), [[2, 2]], "cpu")
    found = exe.run(feed={"a": x, "b": y, "words": ids, "slots": rows[2:]}, fetch_list=[each for each, _ in cases])
    for value, (_, wanted) in zip(found, cases, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)
    for build, said in (
        (lambda: contrib.fused_elemwise_activation(a, b, ["relu", "tanh"]), "argument 'functor_list'"),
        (lambda: contrib.partial_sum([a, b], 3, 2), "within 4 columns"),
        (lambda: contrib.partial_concat([a, slots]), "of one known width"),
    ):
        with pytest.raises(fluid.FluidError, match=said):
            build()
    with pytest.raises(AttributeError, match="detection"):
        _ = contrib.multiclass_nms2


@pytest.mark.parametrize("place", fluid.places(), ids=str)
@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_rows_are_shuffled(place: Any, mode: str) -> None:
    x, words = L.data("x", [2, 3]), L.data("words", [1], dtype="int64", lod_level=1)
    x.stop_gradient = False
    mixed, fixed = fluid.contrib.layers.shuffle_batch(x), fluid.contrib.layers.shuffle_batch(words, seed=3)
    (slope,) = fluid.gradients([L.square(mixed)], [x])
    rows = np.arange(60, dtype="float32").reshape(10, 2, 3)
    ids = fluid.create_lod_tensor(np.arange(10).reshape(-1, 1), [[4, 6]], place)
    exe, orders = fluid.Executor(place, mode=mode), []
    for _ in range(2):
        found, dx, tensor = exe.run(
            feed={"x": rows, "words": ids}, fetch_list=[mixed, slope, fixed], return_numpy=False
        )
        orders.append((np.array(found).reshape(-1, 3), np.array(tensor)))
        assert np.array(found).shape == rows.shape and tensor.recursive_sequence_lengths() == [[4, 6]]
        np.testing.assert_array_equal(dx, 2 * rows)  # each row's goes where it came from
    for each, given in ((orders[0][0], rows.reshape(-1, 3)), (orders[0][1], np.arange(10).reshape(-1, 1))):
        np.testing.assert_array_equal(each[each[:, 0].argsort()], given)
        assert (each != given).any()
    assert (orders[0][0] != orders[1][0]).any() and (orders[0][1] == orders[1][1]).all()


def test_what_predictions_of_clicks_add_up() -> None:
    p, y = L.data("p", [1]), L.data("y", [1], dtype="int64")
    found = fluid.contrib.layers.ctr_metric_bundle(p, y)
    rng, exe = np.random.default_rng(0), fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    feeds = [{"p": rng.uniform(size=(n, 1)).astype("float32"), "y": rng.integers(2, size=(n, 1))} for n in (3, 5)]
    for feed in feeds:
        values = exe.run(feed=feed, fetch_list=list(found))
    a, b = (np.concatenate([feed[name] for feed in feeds]) for name in ("p", "y"))
    wanted = [((a - b) ** 2).sum(), abs(a - b).sum(), a.sum(), (1 / (1 + np.exp(-a))).sum(), b.sum(), 8]
    np.testing.assert_allclose(np.ravel(values), wanted, 1e-5)


def test_structures_under_fluids_names() -> None:
    utils = L.utils
    nested = [1, {"a": (2, [3])}]
    assert utils.flatten(nested) == [1, 2, 3]
    assert utils.map_structure(lambda x, y: x + y, nested, nested) == [2, {"a": (4, [6])}]
    with pytest.raises(ProgramError, match="map_structure got no structure"):
        utils.map_structure(abs)
    assert utils.pack_sequence_as(nested, [4, 5, 6]) == [4, {"a": (5, [6])}]
    assert utils.is_sequence(nested) and not utils.is_sequence("text")
    with pytest.raises(ValueError, match="structures differ"):
        utils.assert_same_structure(nested, [1, 2])
    with pytest.raises(ValueError, match="3 leaves, flat_sequence 1"):
        utils.pack_sequence_as(nested, [1])
