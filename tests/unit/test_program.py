"""Programs: blocks, copies, text, and JSON that may be truncated, newer or hostile."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.errors import FluidError, ProgramError, SavedModelError, ShapeError
from fluidlite.plugin import Execution, Inference
from fluidlite.program.opdef import Attr
from fluidlite.program.registry import ops

layers = fluid.layers


def network() -> tuple[Any, Any, Any]:
    """A program with everything in it: parameters, backward, an optimiser, lists and a random operator."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = 5
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = layers.data("x", [6])
        label = layers.data("label", [1], dtype="int64")
        with fluid.name_scope("body"):
            hidden = layers.dropout(layers.fc(x, 8, act="relu"), 0.5)
        logits = layers.fc(hidden, 3)
        loss = layers.mean(layers.softmax_with_cross_entropy(logits, label))
        fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    return main, startup, loss


def run_twice(main: Any, startup: Any, loss: str) -> list[float]:
    scope = fluid.Scope()
    exe = fluid.Executor("cpu")
    startup.random_seed = 3
    exe.run(startup, scope=scope)
    rng = np.random.default_rng(0)
    feed = {"x": rng.standard_normal((4, 6)).astype("float32"), "label": np.asarray([[0], [1], [2], [1]])}
    return [float(exe.run(main, feed, [loss], scope=scope)[0][0]) for _ in range(3)]


# --- blocks ----------------------------------------------------------------------------------------------------------


def test_sub_blocks_see_their_parents() -> None:
    program = fluid.Program()
    outer = program.global_block()
    outer.create_var("a", [2], "float32")
    inner = program.create_block()
    assert (inner.idx, inner.parent_idx, program.num_blocks, program.current_block()) == (1, 0, 2, inner)
    inner.create_var("b", [2], "float32")
    inner.append_op("relu", {"X": "a"}, {"Out": "b"})
    innermost = program.create_block()
    innermost.create_var("a", [3], "float32")  # hides the outer one
    assert innermost.var("a").shape == (3,)
    assert inner.var("a").shape == (2,)
    assert innermost.find_var("b") is inner.vars["b"]
    assert not innermost.has_var("b")
    program.rollback()
    assert program.current_block() is inner
    program.rollback()
    assert program.current_block() is outer
    with pytest.raises(ProgramError, match="block 0 has no variable 'b'"):
        outer.var("b")


def test_an_unknown_variable_names_close_ones() -> None:
    block = fluid.Program().global_block()
    block.create_var("hidden", [2], "float32")
    with pytest.raises(ProgramError, match=r"block 0 has no variable 'hiden'; did you mean 'hidden'\?"):
        block.var("hiden")


def test_inference_overwrites_what_create_var_declared() -> None:
    block = fluid.Program().global_block()
    x = block.create_var("x", [-1, 3], "float64", lod_level=1)
    out = block.create_var("out", [9], "int8")
    block.append_op("relu", {"X": x}, {"Out": out})
    assert (out.shape, out.dtype, out.lod_level) == ((-1, 3), "float64", 1)


def test_editing_operators() -> None:
    block = fluid.Program().global_block()
    x = block.create_var("x", [2, 3], "float32")
    out = block.create_var("out")
    block.append_op("scale", {"X": x}, {"Out": out}, {"scale": 2.0, "op_device": "cpu"})
    (op,) = block.ops
    assert (op.type, op.input("X"), op.output("Out"), op.attr("scale"), op.attr("op_device")) == (
        "scale",
        ["x"],
        ["out"],
        2.0,
        "cpu",
    )
    assert (op.input_names, op.output_names, op.input_arg_names, op.output_arg_names) == (
        ["X"],
        ["Out"],
        ["x"],
        ["out"],
    )
    edits = block.program.edits
    op.set_attr("scale", 3)
    assert op.attr("scale") == 3.0
    assert block.program.edits > edits
    with pytest.raises(ProgramError, match="'scale' is 'x'; expected a float"):
        op.set_attr("scale", "x")
    with pytest.raises(ProgramError, match="has no attribute 'no'"):
        op.attr("no")
    block.prepend_op("relu", {"X": x}, {"Out": block.create_var("first")})
    block.insert_op(1, "tanh", {"X": "first"}, {"Out": block.create_var("second")})
    assert [op.type for op in block.ops] == ["relu", "tanh", "scale"]
    op.rename_input("x", "second")
    block.remove_op(1)
    assert [op.type for op in block.ops] == ["relu", "scale"]
    assert len({op.id for op in block.ops}) == 2


def test_parameters() -> None:
    program = fluid.Program()
    inner = program.create_block()
    w = inner.create_parameter("w", [2, 3], "float32", trainable=False)
    assert w.block is program.global_block()
    assert (w.persistable, w.trainable, w.stop_gradient) == (True, False, True)
    assert inner.create_parameter("w", [2, 3], "float32") is w
    assert program.all_parameters() == [w]
    with pytest.raises(ProgramError, match="parameter 'w' is declared twice"):
        inner.create_parameter("w", [2, 4], "float32")
    with pytest.raises(ShapeError, match="every one must be known"):
        inner.create_parameter("v", [-1, 3], "float32")
    with pytest.raises(ProgramError, match="unknown options"):
        inner.create_parameter("v", [3], "float32", colour="red")


def test_guards_nest_and_come_back() -> None:
    one, two = fluid.default_main_program(), fluid.default_startup_program()
    main, startup, other = fluid.Program(), fluid.Program(), fluid.Program()
    with pytest.raises(RuntimeError), fluid.program_guard(main, startup):
        assert (fluid.default_main_program(), fluid.default_startup_program()) == (main, startup)
        with fluid.program_guard(other):
            assert (fluid.default_main_program(), fluid.default_startup_program()) == (other, startup)
        assert fluid.default_main_program() is main
        raise RuntimeError
    assert (fluid.default_main_program(), fluid.default_startup_program()) == (one, two)
    for wrong in ("main", None):
        refused = pytest.raises(ProgramError, match=r"program_guard is str .\w+.; expected a Program")
        with refused, fluid.program_guard(wrong or "x"):  # type: ignore[arg-type]
            pass


def test_operators_on_variables() -> None:
    main = fluid.Program()
    with fluid.program_guard(main):
        x = layers.data("x", [3], append_batch_size=False)
        i = layers.data("i", [3], dtype="int64", append_batch_size=False)
        results = [
            x + 1, 1 + x, x - 1, 1 - x, x * 2, 2 * x, x / 2, 2 / x, -x, x**2, x + x, x * x, x - x, x / x,
            x < 2, x >= 2, x <= 1, x > 1,
            i + 1, i * 2, 3 - i, x[1:], x[0], x[-1], x[:2], x.astype("int32"),
        ]  # fmt: skip
    feed = {"x": np.asarray([1, 2, 4], "float32"), "i": np.asarray([1, 2, 4])}
    found = fluid.Executor("cpu").run(main, feed, results)
    x, i = feed["x"], feed["i"]
    wanted = [
        x + 1, 1 + x, x - 1, 1 - x, x * 2, 2 * x, x / 2, 2 / x, -x, x**2, x + x, x * x, x - x, x / x,
        x < 2, x >= 2, x <= 1, x > 1,
        i + 1, i * 2, 3 - i, x[1:], x[0:1], x[-1:], x[:2], x.astype("int32"),
    ]  # fmt: skip
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(got.reshape(-1), want.reshape(-1))
        assert got.dtype == want.dtype
    assert x[1:].shape == (2,)
    with pytest.raises(TypeError):
        results[0] + "text"


# --- clone and prune -------------------------------------------------------------------------------------------------


def test_clone_keeps_ids_lines_and_roles_and_is_apart() -> None:
    main, startup, loss = network()
    duplicate = main.clone()
    mine = [(op.id, op.type, op.role, op.line, op.namescope, op.attrs) for op in main.global_block().ops]
    assert [(op.id, op.type, op.role, op.line, op.namescope, op.attrs) for op in duplicate.global_block().ops] == mine
    assert duplicate.random_seed == 5
    assert str(duplicate) == str(main)
    with fluid.program_guard(duplicate):
        layers.relu(duplicate.global_block().var("x"))
    assert len(main.global_block().ops) == len(mine)
    assert duplicate.global_block().ops[-1].id not in {op.id for op in main.global_block().ops}
    assert all(variable.block is duplicate.global_block() for variable in duplicate.list_vars())
    assert run_twice(main, startup, loss.name) == run_twice(main.clone(), startup, loss.name)


@pytest.mark.parametrize(
    "change",
    [
        lambda parameter: parameter.optimize_attr.update(learning_rate=0.0),
        lambda parameter: setattr(parameter, "trainable", False),
        lambda parameter: setattr(parameter, "stop_gradient", True),
        lambda parameter: setattr(parameter, "regularizer", fluid.regularizer.L2Decay(9.0)),
        lambda parameter: setattr(parameter, "gradient_clip_attr", fluid.clip.GradientClipByValue(1e-3)),
    ],
)
@pytest.mark.parametrize("which", ["original", "copy"])
def test_what_is_changed_of_a_parameter_is_changed_in_one_program(change: Any, which: str) -> None:
    """Training the other one goes as if nothing had been changed."""

    def trained(changed: str) -> Any:
        main, startup = fluid.Program(), fluid.Program()
        with fluid.program_guard(main, startup), fluid.unique_name.guard():
            initial = fluid.ParamAttr(initializer=fluid.initializer.Constant(1.0))
            loss = layers.mean(layers.fc(layers.data("x", [3]), 1, param_attr=initial, bias_attr=False))
        programs = {"original": main, "copy": main.clone()}
        if changed:
            change(*programs[changed].all_parameters())
        with fluid.program_guard(programs["copy" if which == "original" else "original"], startup):
            fluid.optimizer.SGD(0.5).minimize(fluid.default_main_program().global_block().var(loss.name))
            exe, scope = fluid.Executor("cpu"), fluid.Scope()
            exe.run(startup, scope=scope)
            exe.run(feed={"x": np.ones((2, 3), "float32")}, scope=scope)
        return scope.find_var(main.all_parameters()[0].name).get_tensor().numpy().ravel().tolist()

    assert trained(which) == trained("") == [0.5] * 3


def test_clone_for_test_drops_training_and_dropout() -> None:
    main, _, loss = network()
    test = main.clone(for_test=True)
    roles = {op.role for op in test.global_block().ops}
    assert roles == {"forward"}
    (dropout,) = [op for op in test.global_block().ops if op.type == "dropout"]
    assert dropout.attr("is_test") is True
    assert [op.attr("is_test") for op in main.global_block().ops if op.type == "dropout"] == [False]
    assert not any(name.endswith("@GRAD") for name in test.global_block().vars)
    assert {p.name for p in test.all_parameters()} == {p.name for p in main.all_parameters()}
    assert loss.name in test.global_block().vars


def test_prune_keeps_what_the_targets_need() -> None:
    main, _, _ = network()
    hidden = next(op for op in main.global_block().ops if op.type == "relu").output_arg_names[0]
    small = main.prune([hidden])
    assert [op.type for op in small.global_block().ops] == ["mul", "elementwise_add", "relu"]
    assert "label" not in small.global_block().vars
    summed = next(op for op in main.global_block().ops if op.type == "elementwise_add").output_arg_names[0]
    assert [op.type for op in main.prune([hidden], [summed]).global_block().ops] == ["relu"]
    with pytest.raises(ProgramError, match=r"targets of Program\.prune names 'nope', which block 0 does not have"):
        main.prune(["nope"])


@pytest.mark.parametrize("in_place", ["assign", "increment", "branch"])
def test_prune_keeps_what_writes_over_a_feed_that_was_read(in_place: str) -> None:
    """A feed takes the place of what computes it first; what changes it later stays."""
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = layers.data("x", [1])
        fed = layers.scale(x, 5.0)
        if in_place == "increment":
            layers.increment(fed, 2.0)
        elif in_place == "assign":
            layers.assign(layers.exp(fed), output=fed)
        else:
            with layers.ConditionalBlock([layers.fill_constant([1], "bool", True)], is_scalar_condition=True).block():
                layers.assign(fed * 3.0, output=fed)
        out = fed * 2.0
        main = fluid.default_main_program()
    exe, value = fluid.Executor("cpu"), np.float32([[0.5]])
    changed = {"increment": value + 2, "assign": np.exp(value), "branch": value * 3}[in_place]
    for targets in ([out], [fed], [fed, out]):
        found = exe.run(main.prune(targets, [fed]), {fed.name: value}, targets)
        wanted = {fed.name: changed, out.name: 2 * changed}
        for target, array in zip(targets, found, strict=True):
            np.testing.assert_allclose(array, wanted[target.name], rtol=1e-6)
    assert "x" not in main.prune([out], [fed]).global_block().vars


def test_the_text_shows_operators_and_lines() -> None:
    main, _, _ = network()
    text = str(main)
    assert "block 0:" in text
    assert "var x: float32[-1, 6]" in text
    assert "= dropout(X=" in text
    assert "test_program.py:" in text
    assert "layers.fc" in text
    assert "[optimize]" in text
    assert "[backward]" in text
    assert "dropout_prob" not in text  # the default


# --- JSON ------------------------------------------------------------------------------------------------------------


def test_json_goes_both_ways() -> None:
    main, startup, loss = network()
    text = main.to_json()
    again = fluid.Program.from_json(text)
    assert again.to_json() == text
    assert fluid.Program.from_json(text.encode()).to_json() == text
    assert str(again) == str(main)
    assert run_twice(again, fluid.Program.from_json(startup.to_json()), loss.name) == run_twice(
        main, startup, loss.name
    )
    assert "/" not in json.loads(text)["blocks"][0]["ops"][0]["line"][0]  # no path of the author's machine
    with fluid.program_guard(again):
        layers.relu(again.global_block().var("x"))
    ids = [op.id for op in again.global_block().ops]
    assert len(set(ids)) == len(ids)


def facts(variable: fluid.framework.Variable) -> dict[str, str]:
    """All that a variable holds, but for what is of its program and of its author's text."""
    return {name: str(held) for name, held in vars(variable).items() if name not in ("block", "identity", "line")}


def test_copies_keep_every_attribute_of_a_parameter() -> None:
    program = fluid.default_main_program()
    rate = layers.fill_constant([1], "float32", 0.5)
    block, each, more = program.global_block(), fluid.regularizer, fluid.clip
    options: tuple[dict[str, object], ...] = (
        {"regularizer": each.L2Decay(0.1), "gradient_clip_attr": more.GradientClipByNorm(2.0)},
        {"regularizer": each.L1Decay(0.1), "gradient_clip_attr": more.GradientClipByValue(2.0, -1.0)},
        {"gradient_clip_attr": more.GradientClipByGlobalNorm(2.0, "group"), "do_model_average": False},
        {"error_clip": more.ErrorClipByValue(3.0, -1.0), "lod_level": 1, "do_model_average": True},
        {"trainable": False, "optimize_attr": {"learning_rate": 0.25}},
        {"optimize_attr": {"learning_rate": rate}},
    )
    parameters = [block.create_parameter(f"w{i}", [2], "float32", **given) for i, given in enumerate(options)]
    rate.set_error_clip(more.ErrorClipByValue(3.0))
    read = fluid.Program.from_json(program.to_json())
    for copy in (read, program.clone(), program.clone(for_test=True)):
        assert [facts(copy.global_block().var(own.name)) for own in (*parameters, rate)] == [
            facts(own) for own in (*parameters, rate)
        ]
    assert read.global_block().var("w5").optimize_attr["learning_rate"] is read.global_block().var(rate.name)  # type: ignore[attr-defined]
    parameters[0].gradient_clip_attr = more.GradientClipByNorm(2.0, need_clip=lambda param: True)  # no JSON holds it
    assert fluid.Program.from_json(program.to_json()).all_parameters()[0].gradient_clip_attr is None


def test_json_of_a_part_without_what_makes_a_rate() -> None:
    x = layers.data("x", [3])
    y = layers.fc(x, 2, bias_attr=False)
    sgd = fluid.optimizer.SGD(1.0)
    pairs = sgd.backward(layers.mean(y))
    layers.append_LARS(pairs, 0.1, 0.0)
    program = fluid.default_main_program()
    for part in (program.prune([y]), program.clone(for_test=True)):
        (read,) = fluid.Program.from_json(part.to_json()).all_parameters()
        assert read.optimize_attr == {"learning_rate": 1.0}
    (read,) = fluid.Program.from_json(program.to_json()).all_parameters()
    assert read.optimize_attr["learning_rate"].name == pairs[0][0].optimize_attr["learning_rate"].name


@pytest.mark.parametrize(
    ("field", "record"),
    [
        ("regularizer", ["GradientClipByNorm", 1.0, None]),
        ("regularizer", ["L2DecayRegularizer"]),
        ("regularizer", ["L2DecayRegularizer", "a"]),
        ("gradient_clip", [["GradientClipByNorm"], 1.0, None]),
        ("gradient_clip", ["GradientClipByNorm", 1.0, "print"]),
        ("gradient_clip", "GradientClipByNorm"),
        ("regularizer", ["L2DecayRegularizer", float("nan")]),
        ("learning_rate", "nobody"),
        ("learning_rate", float("inf")),
        ("learning_rate", float("nan")),
        ("learning_rate", 10**400),
        ("do_model_average", 3),
    ],
)
def test_nonsense_about_how_a_parameter_is_trained_is_refused(field: str, record: object) -> None:
    program = fluid.Program()
    program.global_block().create_parameter("w", [2], "float32")
    data = json.loads(program.to_json())
    data["blocks"][0]["vars"][0]["parameter"][field] = record
    with pytest.raises(SavedModelError, match=r"not a (valid )?program"):
        fluid.Program.from_json(json.dumps(data))


def test_json_keeps_sub_blocks_and_special_floats() -> None:
    program = fluid.Program()
    program.global_block().create_var("x", [2], "float32")
    inner = program.create_block()
    inner.append_op("scale", {"X": "x"}, {"Out": inner.create_var("y")}, {"scale": float("inf"), "bias": float("-inf")})
    again = fluid.Program.from_json(program.to_json())
    assert again.num_blocks == 2
    assert again.block(1).parent_idx == 0
    assert again.block(1).ops[0].attrs == inner.ops[0].attrs


def test_truncated_json() -> None:
    text = network()[0].to_json()
    for length in range(0, len(text) - 1, 37):
        with pytest.raises(SavedModelError):
            fluid.Program.from_json(text[:length])


def test_a_newer_version() -> None:
    record = json.loads(network()[0].to_json())
    record["version"] = 99
    with pytest.raises(
        SavedModelError, match="format version 99; this fluidlite reads versions 1 to 1\n  Do: update fluidlite"
    ):
        fluid.Program.from_json(json.dumps(record))
    record["version"] = 1
    record["blocks"][0]["ops"][0]["version"] = 7
    with pytest.raises(SavedModelError, match="'mul' is of definition version 7; this fluidlite knows 1"):
        fluid.Program.from_json(json.dumps(record))


@pytest.fixture
def record() -> dict[str, Any]:
    """A small program as parsed JSON."""
    program = fluid.Program()
    block = program.global_block()
    block.create_var("x", [-1, 4], "float32", is_data=True)
    block.append_op("split", {"X": "x"}, {"Out": [block.create_var("a"), block.create_var("b")]}, {"num": 2, "axis": 1})
    block.append_op("scale", {"X": "a"}, {"Out": block.create_var("c")}, {"scale": 2.0})
    block.create_parameter("w", [4], "float32")
    program.create_block()
    found: dict[str, Any] = json.loads(program.to_json())
    return found


def paths(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where every value of parsed JSON is."""
    if here:
        yield here
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from paths(item, (*here, key))


STRANGE: list[Any] = [
    None, True, -1, 0, 2**31, 2**63, 10**30, 10**400, -0.5, 1e308, "", "x", "\x00", "../../etc", [], {}, [[]],
    [None], {"a": []},
    [10**400], [-(2**70)], "cpu:0", ["x"] * 1000,
]  # fmt: skip


def test_every_field_replaced_by_something_strange(record: dict[str, Any]) -> None:
    """A program or a SavedModelError; never another exception."""
    text = json.dumps(record)
    for path in list(paths(record)):
        for strange in STRANGE:
            hostile = json.loads(text)
            target = hostile
            for key in path[:-1]:
                target = target[key]
            target[path[-1]] = strange
            try:
                read = fluid.Program.from_json(json.dumps(hostile))
            except SavedModelError:
                continue
            except Exception as error:
                pytest.fail(f"{path} = {strange!r:.60} raised {type(error).__name__}: {error}")
            str(read)
            read.to_json()


def test_every_field_left_out(record: dict[str, Any]) -> None:
    text = json.dumps(record)
    for path in list(paths(record)):
        hostile = json.loads(text)
        target = hostile
        for key in path[:-1]:
            target = target[key]
        del target[path[-1]]
        try:
            fluid.Program.from_json(json.dumps(hostile))
        except SavedModelError:
            continue
        except Exception as error:
            pytest.fail(f"without {path}: {type(error).__name__}: {error}")


HOSTILE: dict[str, Any] = {
    "nothing": "",
    "no JSON": "import os",
    "another object": "{}",
    "a list": "[]",
    "a number": "3",
    "deep nesting": "[" * 200_000,
    "deep objects": '{"a":' * 200_000,
    "bytes": b"\xff\xfe\x00\x80",
    "nul bytes": b"\x00" * 100,
    "a long number": '{"format": ' + "9" * 10_000 + "}",
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.timeout(20)
def test_hostile_texts(name: str) -> None:
    with pytest.raises(SavedModelError):
        fluid.Program.from_json(HOSTILE[name])


def change(**changes: Any) -> Callable[[dict[str, Any]], None]:
    def apply(record: dict[str, Any]) -> None:
        for path, value in changes.items():
            target: Any = record
            *keys, last = [int(key) if key.isdigit() else key for key in path.split("__")]
            for key in keys:
                target = target[key]
            target[last] = value

    return apply


WRONG = {
    "huge dims": (change(blocks__0__vars__0__dims=[2**60]), "variable 'x' has (10000 )?dims"),
    "many dims": (change(blocks__0__vars__0__dims=[1] * 10_000), "variable 'x' has (10000 )?dims"),
    "negative dims": (change(blocks__0__vars__0__dims=[-7]), "variable 'x' has (10000 )?dims"),
    "unknown dtype": (change(blocks__0__vars__0__dtype="float99"), "'float99' is not a data type"),
    "unknown operator": (change(blocks__0__ops__0__type="os.system"), "no operator is called 'os.system'"),
    "unknown attribute": (change(blocks__0__ops__1__attrs={"evil": 1}), "has no attribute 'evil'"),
    "wrong attribute": (change(blocks__0__ops__1__attrs={"scale": "big"}), "'scale' is 'big'"),
    "unknown variable": (
        change(blocks__0__ops__1__inputs={"X": ["nope"]}),
        "variable 'nope', which the block does not have",
    ),
    "a split into many": (change(blocks__0__ops__0__attrs={"num": 2**40, "axis": 0}), "split"),
    "its own parent": (change(blocks__1__parent=1), "block 1 says that its parent is 1"),
    "a later parent": (change(blocks__1__parent=5), "block 1 says that its parent is 5"),
    "no blocks": (change(blocks=[]), "it has 0 blocks"),
    "many blocks": (change(blocks=[{}] * 20_000), "it has 20000 blocks"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.timeout(20)
def test_hostile_programs(record: dict[str, Any], name: str) -> None:
    edit, message = WRONG[name]
    edit(record)
    with pytest.raises(SavedModelError, match=message):
        fluid.Program.from_json(json.dumps(record))


@pytest.fixture
def running() -> Iterator[str]:
    """An operator that runs a block."""
    op = fluid.register_op(
        "test_run_block",
        Inference(lambda call: {"Out": call.spec("X")}),
        Execution(run=lambda frame, op: None),
        inputs=("X",),
        outputs=("Out",),
        attrs=(Attr("sub_block", "block"),),
    )
    yield op.type
    ops.remove(op)


@pytest.mark.parametrize("chain", [{1: 1}, {1: 2, 2: 1}, {1: 0}, {1: 2, 2: 3, 3: 1}, {0: 0}])
@pytest.mark.timeout(20)
def test_blocks_that_run_each_other_in_a_circle(running: str, chain: dict[int, int]) -> None:
    program = fluid.Program()
    program.global_block().create_var("x", [2], "float32")
    for _ in range(3):
        program.create_block(0)
    for block, runs in chain.items():
        inside = program.block(block)
        inside.append_op(running, {"X": "x"}, {"Out": inside.create_var(f"out{block}")}, {"sub_block": runs})
    with pytest.raises(SavedModelError, match="block"):
        fluid.Program.from_json(program.to_json())


def test_an_operator_that_runs_a_block_is_read(running: str) -> None:
    program = fluid.Program()
    block = program.global_block()
    block.create_var("x", [2], "float32")
    program.create_block()
    block.append_op(running, {"X": "x"}, {"Out": block.create_var("out")}, {"sub_block": 1})
    text = program.to_json()
    assert fluid.Program.from_json(text).to_json() == text
    for wrong in (9, -1, None, "1", 1.0):
        record = json.loads(text)
        record["blocks"][0]["ops"][0]["attrs"]["sub_block"] = wrong
        with pytest.raises(SavedModelError):
            fluid.Program.from_json(json.dumps(record))


def test_reading_is_for_fluid_errors_only() -> None:
    with pytest.raises((FluidError, TypeError)):
        fluid.Program.from_json(3)  # type: ignore[arg-type]


def test_two_outputs_of_one_variable_are_refused() -> None:
    """Which of them it would be is not defined: of one slot, and of two slots."""
    block = fluid.default_main_program().global_block()
    for name in ("p", "g", "m", "v", "b", "lr"):
        block.create_var(name, [2] if name in "pgmv" else [1], "float32", is_data=True)
    inputs = {"Param": "p", "Grad": "g", "LearningRate": "lr", "Moment1": "p", "Moment2": "v"}
    inputs |= {"Beta1Pow": "b", "Beta2Pow": "b"}
    outputs = {"ParamOut": "p", "Moment1Out": "p", "Moment2Out": "v"}
    with pytest.raises(fluid.FluidError, match="outputs ParamOut and Moment1Out are one variable, 'p'"):
        block.append_op("lamb", inputs, outputs, {"weight_decay": 0.01})
    with pytest.raises(fluid.FluidError, match="outputs Out and Out are one variable, 'v'"):
        block.append_op("split", {"X": "p"}, {"Out": ["v", "v"]}, {"num": 2, "axis": 0})
    assert not block.ops
    for name in "ab":
        block.create_var(name)
    op = block.append_op("split", {"X": "p"}, {"Out": ["a", "b"]}, {"num": 2, "axis": 0})
    with pytest.raises(fluid.FluidError, match="outputs Out and Out are one variable, 'a'"):
        op.rename_output("b", "a")
    assert op.output("Out") == ["a", "b"]
    data = json.loads(fluid.default_main_program().to_json())
    data["blocks"][0]["ops"][0]["outputs"]["Out"] = ["a", "a"]
    with pytest.raises(fluid.FluidError, match="outputs Out and Out are one variable, 'a'"):
        fluid.Program.from_json(json.dumps(data))


def test_a_dtype_that_is_text_of_numpys() -> None:
    """Generated code writes dtypes as text."""
    x = fluid.layers.data("x", [4], dtype=np.str_("float32"))
    y = fluid.layers.cast(fluid.layers.relu(x), np.str_("float64"))
    for mode in ("interpreted", "compiled"):
        (found,) = fluid.Executor("cpu", mode=mode).run(feed={"x": np.ones((1, 4), "float32")}, fetch_list=[y])
        assert found.dtype == "float64" and found.sum() == 4
