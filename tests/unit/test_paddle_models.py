"""Models that Paddle 1.x saved, from bytes put together by hand; round trips; files that lie."""

from __future__ import annotations

import pickle
import random
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bytes_of_models as pb
import ml_dtypes
import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.base.errors import FluidError, MissingExtraError, SavedModelError
from fluidlite.program.protobuf import messages
from fluidlite.program.protobuf.writing import write_program

X = np.asarray([[1, 2, 3], [4, 5, 6]], "float32")
W, B = np.asarray([[1], [10], [100]], "float32"), np.asarray([0.5], "float32")
OUT = X.astype(float) @ W + B
"""What the line model gives."""


def executor() -> fluid.Executor:
    return fluid.Executor("cpu")


def line_folder(folder: Path, params: bool = False, model: bytes | None = None) -> Path:
    """A folder of the line model, its parameters apart or in one file."""
    (folder / "__model__").write_bytes(pb.line_model() if model is None else model)
    w, b = pb.lod_tensor(5, [3, 1], W.tobytes()), pb.lod_tensor(5, [1], B.tobytes())
    if params:
        (folder / "__params__").write_bytes(b + w)  # in the order of names
    else:
        (folder / "w").write_bytes(w)
        (folder / "b").write_bytes(b)
    return folder


@pytest.mark.parametrize("params", [False, True])
@pytest.mark.parametrize("place", fluid.places(), ids=str)
def test_a_model_by_hand_is_loaded_and_runs(tmp_path: Path, params: bool, place: Any) -> None:
    folder = line_folder(tmp_path, params)
    exe = fluid.Executor(place)
    found = fluid.io.load_inference_model(str(folder), exe, params_filename="__params__" if params else None)
    program, feeds, fetches = found
    assert feeds == ["x"] and [var.name for var in fetches] == ["out"]
    np.testing.assert_allclose(exe.run(program, feed={"x": X}, fetch_list=fetches)[0], OUT, rtol=1e-6)
    op = program.global_block().ops[0]
    assert (op.type, op.line.file, op.line.number, op.namescope) == ("mul", "line.py", 7, "net")
    assert program.global_block().var("x").is_data and not program.global_block().has_var("feed")


def test_values_of_separate_files_go_into_a_users_program(tmp_path: Path) -> None:
    line_folder(tmp_path)
    x = fluid.layers.data("x", [3])
    fluid.layers.fc(x, 1, param_attr=fluid.ParamAttr(name="w"), bias_attr=fluid.ParamAttr(name="b"))
    for load in (fluid.io.load_params, fluid.io.load_persistables):
        with fluid.scope_guard(fluid.Scope()):
            load(executor(), str(tmp_path))
            np.testing.assert_array_equal(fluid.global_scope().find_var("w").get_tensor().numpy(), W)
    fluid.io.load_vars(executor(), str(tmp_path), vars=["b"])
    np.testing.assert_array_equal(fluid.global_scope().find_var("b").get_tensor().numpy(), B)
    fluid.load(fluid.default_main_program(), str(tmp_path), executor())
    np.testing.assert_array_equal(fluid.global_scope().find_var("w").get_tensor().numpy(), W)


@pytest.mark.parametrize(
    ("number", "dtype"),
    list({0: "bool", 1: "int16", 2: "int32", 3: "int64", 4: "float16", 5: "float32", 6: "float64", 20: "uint8",
          21: "int8"}.items()),
)  # fmt: skip
def test_dtypes_dims_and_lod_are_read_and_written(tmp_path: Path, number: int, dtype: str) -> None:
    value = np.asarray([[0], [1], [1], [0], [1]]).astype(dtype)
    content = pb.lod_tensor(number, [5, 1], value.tobytes(), ([0, 1, 2], [0, 2, 5]))
    (tmp_path / "v").write_bytes(content)
    program = fluid.Program()
    program.global_block().create_var("v", [-1, 1], dtype, lod_level=2, persistable=True)
    fluid.io.load_persistables(executor(), str(tmp_path), program)
    tensor = fluid.global_scope().find_var("v").get_tensor()
    np.testing.assert_array_equal(tensor.numpy(), value)
    assert tensor.lod() == [[0, 1, 2], [0, 2, 5]]
    fluid.io.save_persistables(executor(), str(tmp_path / "again"), program, format="paddle")
    assert (tmp_path / "again" / "v").read_bytes() == content


@pytest.mark.parametrize("params", [None, "__params__"])
def test_a_saved_model_comes_back(tmp_path: Path, params: str | None) -> None:
    image = fluid.layers.data("image", [1, 8, 8])
    hidden = fluid.layers.pool2d(fluid.layers.conv2d(image, 4, 3, act="relu"), 2, "max", 2)
    out = fluid.layers.fc(fluid.layers.batch_norm(hidden), 5, act="softmax")
    exe = executor()
    exe.run(fluid.default_startup_program())
    feed = {"image": np.random.default_rng(0).normal(size=(3, 1, 8, 8)).astype("float32")}
    test = fluid.default_main_program().clone(for_test=True)
    (before,) = exe.run(test, feed=feed, fetch_list=[out.name])
    fluid.io.save_inference_model(str(tmp_path), ["image"], [out], exe, params_filename=params, format="paddle")
    with fluid.scope_guard(fluid.Scope()):
        program, feeds, fetches = fluid.io.load_inference_model(str(tmp_path), exe, params_filename=params)
        (after,) = exe.run(program, feed=feed, fetch_list=fetches)
    assert feeds == ["image"]
    np.testing.assert_array_equal(before, after)


def test_a_program_is_saved_without_its_parameters(tmp_path: Path) -> None:
    out = fluid.layers.fc(fluid.layers.data("x", [3]), 2)
    for format in ("fluidlite", "paddle"):
        folder = tmp_path / format
        fluid.io.save_inference_model(str(folder), ["x"], [out], executor(), program_only=True, format=format)
        assert [path.name for path in folder.iterdir() if path.name != "__manifest__"] == ["__model__"]
        program = fluid.Program.parse_from_string((folder / "__model__").read_bytes())
        assert (program.feed_names, program.fetch_names) == (["x"], [out.name])


def test_fluid_save_in_paddles_format_comes_back(tmp_path: Path) -> None:
    x, y = fluid.layers.data("x", [3]), fluid.layers.data("y", [1])
    loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(x, 1), y))
    fluid.optimizer.Adam(0.1).minimize(loss)
    exe, main = executor(), fluid.default_main_program()
    exe.run(fluid.default_startup_program())
    feed = {"x": X, "y": X[:, :1]}
    exe.run(main, feed=feed, fetch_list=[loss])
    fluid.save(main, str(tmp_path / "m"), format="paddle")
    with open(tmp_path / "m.pdparams", "rb") as stream:
        assert set(pickle.load(stream)) == {"fc_0.w_0", "fc_0.b_0"}
    losses = [exe.run(main, feed=feed, fetch_list=[loss])[0] for _ in range(2)]
    with fluid.scope_guard(fluid.Scope()):
        fluid.load(main, str(tmp_path / "m"), exe)
        again = [exe.run(main, feed=feed, fetch_list=[loss])[0] for _ in range(2)]
    np.testing.assert_array_equal(losses, again)
    model = fluid.Program.parse_from_string((tmp_path / "m.pdmodel").read_bytes())
    assert [op.type for op in model.global_block().ops] == [op.type for op in main.global_block().ops]
    assert [op.role for op in model.global_block().ops] == [op.role for op in main.global_block().ops]


def test_a_pickle_of_a_model_is_not_executed(tmp_path: Path) -> None:
    fluid.layers.fc(fluid.layers.data("x", [3]), 1, param_attr=fluid.ParamAttr(name="w"), bias_attr=False)

    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "run",)

    (tmp_path / "m.pdparams").write_bytes(pickle.dumps({"w": W, "x": Evil()}, 2))
    with pytest.raises(SavedModelError, match=r"names .*; nothing of it was run"):
        fluid.load(fluid.default_main_program(), str(tmp_path / "m"), executor())
    assert not (tmp_path / "run").exists()
    for value, text in ((W.reshape(1, 3), "but"), ([1.0], "holds no array"), (W.astype(complex), "array of 'c16'")):
        (tmp_path / "m.pdparams").write_bytes(pickle.dumps({"w": value}, 2))
        with pytest.raises(SavedModelError, match=text):
            fluid.load(fluid.default_main_program(), str(tmp_path / "m"), executor())


def test_a_while_of_paddle_runs(tmp_path: Path) -> None:
    names = ["i", "n", "go"]
    outer = [
        pb.raw_variable("feed", 9), pb.raw_variable("fetch", 10), pb.variable("i", 5, [1]), pb.variable("n", 5, [1]),
        pb.variable("go", 0, [1]), pb.raw_variable("steps", 11),
    ]  # fmt: skip
    axis = pb.attribute("axis", 0, -1)
    inner = [
        pb.operator("increment", {"X": ["i"]}, {"Out": ["i"]}, pb.attribute("step", 1, 1.0)),
        pb.operator("less_than", {"X": ["i"], "Y": ["n"]}, {"Out": ["go"]}, axis),
    ]
    ops = [
        pb.operator("feed", {"X": ["feed"]}, {"Out": ["n"]}, pb.attribute("col", 0, 0)),
        pb.operator("fill_constant", {}, {"Out": ["i"]}, pb.attribute("shape", 11, [1]), pb.attribute("value", 1, 0.0),
                    pb.attribute("dtype", 0, 5)),
        pb.operator("less_than", {"X": ["i"], "Y": ["n"]}, {"Out": ["go"]}, pb.attribute("axis", 0, -1)),
        pb.operator("while", {"X": names, "Condition": ["go"]}, {"Out": ["i", "go"], "StepScopes": ["steps"]},
                    pb.attribute("sub_block", 8, 1), pb.attribute("is_test", 6, 1),
                    pb.attribute("skip_eager_deletion_vars", 5, [])),
        pb.operator("fetch", {"X": ["i"]}, {"Out": ["fetch"]}, pb.attribute("col", 0, 0)),
    ]  # fmt: skip
    model = pb.program(outer, ops) + pb.program([], inner, 1, 0)
    (tmp_path / "__model__").write_bytes(model)
    exe = executor()
    program, _, fetches = fluid.io.load_inference_model(str(tmp_path), exe)
    (found,) = exe.run(program, feed={"n": np.asarray([6.5], "float32")}, fetch_list=fetches)
    assert found[0] == 7
    program.fetch_names, program.feed_names = ["i"], ["n"]
    again = fluid.Program.parse_from_string(write_program(program))
    assert exe.run(again, feed={"n": np.asarray([2.5], "float32")}, fetch_list=["i"])[0][0] == 3


@pytest.mark.parametrize("kind", ["cond", "static rnn", "gradient"])
def test_blocks_that_paddle_does_not_know_are_refused(tmp_path: Path, kind: str) -> None:
    """A branch of two blocks, the block of steps, and gradients of blocks are operators of ours."""
    layers = fluid.layers
    x = layers.data("x", [2, 3], append_batch_size=False, stop_gradient=False)
    on, start = layers.fill_constant([1], "bool", True), layers.fill_constant([3], "float32", 0.0)
    if kind == "cond":
        out = layers.cond(on, lambda: x * 2.0, lambda: x + 1.0)
    elif kind == "static rnn":
        rnn = layers.StaticRNN()
        with rnn.step():
            before = rnn.memory(init=start)
            rnn.update_memory(before, before + rnn.step_input(x))
            rnn.step_output(before)
        out = rnn()
    else:
        out = layers.assign(x)
        with layers.ConditionalBlock([on], is_scalar_condition=True).block():
            layers.assign(out * x, output=out)
        write_program(fluid.default_main_program().clone())
        fluid.gradients(out, x)
    with pytest.raises(SavedModelError, match=r"test_paddle_models.py:\d+.* runs blocks as Paddle's(?s:.*)Do: "):
        write_program(fluid.default_main_program())
    if kind != "gradient":
        with pytest.raises(SavedModelError, match="as Paddle's format cannot say"):
            fluid.io.save_inference_model(str(tmp_path / "m"), ["x"], [out], executor(), format="paddle")
        assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("number", [1e39, -1e300, 1e-46, -1e-300, 3.4028236e38])
def test_numbers_that_paddles_floats_do_not_hold_are_refused(number: float) -> None:
    """They would be infinite, or 0."""
    fluid.layers.scale(fluid.layers.data("x", [2], dtype="float64"), number)
    main = fluid.default_main_program()
    (op,) = main.global_block().ops
    with pytest.raises(SavedModelError, match=r"attribute 'scale' is .*e.*, which Paddle's format cannot hold"):
        write_program(main)
    op.set_attr("scale", 3.4028234e38 if abs(number) > 1 else 1.5e-45)
    op.set_attr("bias", float("inf"))
    (again,) = fluid.Program.parse_from_string(write_program(main)).global_block().ops
    assert np.float32(again.attr("scale")) == np.float32(op.attr("scale"))
    assert again.attr("bias") == float("inf")


def test_float32_attributes_are_the_numbers_that_were_written(tmp_path: Path) -> None:
    """0.001 is the largest epsilon of batch_norm: it was refused as 0.0010000000474974513."""
    x = layers.data("x", [3, 4, 4])
    normal = layers.layer_norm(layers.batch_norm(x, epsilon=1e-3, momentum=0.3, is_test=True), epsilon=1e-3)
    out = layers.fill_constant([2], "int64", 123456792) + layers.cast(layers.scale(normal, 0.1), "int64")[0, 0, 0, :2]
    exe = executor()
    exe.run(fluid.default_startup_program())
    fluid.io.save_inference_model(tmp_path / "m", ["x"], [out], exe, format="paddle")
    program, _, _ = fluid.io.load_inference_model(tmp_path / "m", exe)
    found = {op.type: op for op in program.global_block().ops}
    assert found["batch_norm"].attr("epsilon") == found["layer_norm"].attr("epsilon") == 1e-3
    assert found["batch_norm"].attr("momentum") == 0.3
    assert found["scale"].attr("scale") == 0.1
    assert found["fill_constant"].attr("value") == 123456792


def test_values_that_paddles_files_cannot_hold_are_refused(tmp_path: Path) -> None:
    program = fluid.Program()
    block, scope = program.global_block(), fluid.global_scope()
    for name in ("a/b", "a//b", "./a"):
        block.create_var(name, [1], "float32", persistable=True)
        scope.var(name).get_tensor().set(np.ones(1, "float32"), "cpu")
    for name in ("a//b", "./a"):
        with pytest.raises(SavedModelError, match=r"another variable's in Paddle's format(?s:.*)Do: .*filename"):
            fluid.io.save_vars(executor(), tmp_path / "m", program, [name], format="paddle")
    assert not (tmp_path / "m").exists()
    fluid.io.save_persistables(executor(), tmp_path / "m", program, "all", format="paddle")
    fluid.io.load_persistables(executor(), tmp_path / "m", program, "all")
    half = fluid.Program()
    half.global_block().create_parameter("w", [2], "bfloat16")
    scope.var("w").get_tensor().set(np.ones(2, ml_dtypes.bfloat16), "cpu")
    with pytest.raises(SavedModelError, match=r"'w' is bfloat16, which Paddle's format cannot hold"):
        fluid.save(half, str(tmp_path / "half" / "m"), format="paddle")
    assert not (tmp_path / "half").exists()


def _operator(type: str, *attributes: bytes, slot: str = "X") -> bytes:
    return pb.operator(type, {slot: ["out"]}, {"Out": ["out"]}, *attributes)


LIES: dict[str, tuple[Callable[[], bytes], str]] = {
    "truncated": (lambda: pb.line_model()[:-20], "truncated"),
    "length": (lambda: b"\n\xff\xff\xff\xff\x0f" + pb.line_model(), "truncated"),
    "no blocks": (lambda: b"\n", "truncated"),
    "operators": (lambda: pb.line_model(_operator("warp_drive"), _operator("tardis")), "'tardis', 'warp_drive'"),
    "attribute": (lambda: pb.line_model(_operator("relu", pb.attribute("magic", 1, 2.0))), "magic=2.0"),
    "scaled": (lambda: pb.line_model(old=(pb.attribute("scale_out", 1, 2.0),)), "scale_out"),
    "fused": (lambda: pb.line_model(_operator("relu", pb.attribute("fuse_activation", 2, "tanh"))), "fuse_activation"),
    "layout": (lambda: pb.line_model(_operator("relu", pb.attribute("data_format", 2, "NHWC"))), "data_format='NHWC'"),
    "attribute's type": (lambda: pb.line_model(_operator("relu", pb.number(2, 40) + pb.block(1, "a"))), "of type 40"),
    "slot": (lambda: pb.line_model(_operator("relu", slot="Z")), "slots .*'Z'"),
    "role": (lambda: pb.line_model(_operator("relu", pb.attribute("op_role", 0, 77))), "op_role is 77"),
    "columns": (lambda: pb.line_model(pb.operator("feed", {}, {"Out": ["out"]}, pb.attribute("col", 0, 5))), "columns"),
    "block's number": (lambda: pb.program([], [], index=3), "calls itself 3"),
    "block": (lambda: pb.line_model() + pb.program([], [], 1, 7), "parent is 7"),
    "circle": (lambda: pb.line_model(pb.operator("while", {"X": ["out"], "Condition": ["out"]}, {"Out": ["out"]},
                                                 pb.attribute("sub_block", 8, 0))), "block"),
    "twice": (lambda: pb.program([pb.variable("a", 5, [1]), pb.variable("a", 5, [1])], []), "twice"),
    "dtype": (lambda: pb.program([pb.variable("a", 99, [1])], []), "99 is not the number of a data type"),
    "dims": (lambda: pb.program([pb.variable("a", 5, [2**40, 2**40])], []), "2\\*\\*47"),
    "negative": (lambda: pb.program([pb.variable("a", 5, [-7])], []), "dims"),
    "rank": (lambda: pb.program([pb.variable("a", 5, [1] * 500)], []), "500 dims"),
    "levels": (lambda: pb.program([pb.variable("a", 5, [1], lod_level=10**6)], []), "lod_level"),
    "rows": (lambda: pb.program([pb.raw_variable("a", 8)], []), "SELECTED_ROWS"),
    "reader": (lambda: pb.program([pb.raw_variable("a", 15)], []), "READER"),
    "text": (lambda: pb.program([pb.block(1, b"\xff\xfe") + pb.block(2, pb.number(1, 17))], []), "program"),
    "many": (lambda: pb.program([pb.raw_variable("", 17)] * 100_001, []), "100,001 variables"),
    "large": (lambda: b"\n" + bytes(17 << 20), "at most"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_programs_that_lie_are_refused(tmp_path: Path, lie: str) -> None:
    make, text = LIES[lie]
    folder = line_folder(tmp_path, model=make())
    with pytest.raises(SavedModelError, match=text) as caught:
        fluid.io.load_inference_model(str(folder), executor())
    assert str(folder / "__model__") in str(caught.value)
    assert fluid.global_scope().find_var("w") is None


GOOD = pb.lod_tensor(5, [3, 1], W.tobytes())
HEAD = struct.pack("<IQ", 0, 0)


def _described(desc: bytes, content: bytes = W.tobytes(), length: int | None = None) -> bytes:
    return HEAD + struct.pack("<IiI", 0, len(desc) if length is None else length, 0)[:8] + desc + content


TENSORS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "truncated"),
    "short": (GOOD[:-1], "12 bytes, and the file has 11 more"),
    "long": (GOOD + b"x", "1 bytes after its tensor"),
    "version": (b"\0\0\0\0" + GOOD[4:12] + b"\7" + GOOD[13:], "tensor is of version 7"),
    "levels": (struct.pack("<IQ", 0, 2**60) + GOOD[12:], "LoD levels"),
    "level": (struct.pack("<IQQ", 0, 1, 2**62) + GOOD[12:], "bytes, and the file"),
    "odd level": (struct.pack("<IQQ", 0, 1, 7) + bytes(7) + GOOD[12:], "expected 8 a number"),
    "lod": (pb.lod_tensor(5, [3, 1], W.tobytes(), ([0, 9],)), "LoD is malformed"),
    "falling lod": (pb.lod_tensor(5, [3, 1], W.tobytes(), ([0, 5, 3],)), "LoD is malformed"),
    "desc length": (_described(pb.tensor_desc(5, [3, 1]), length=2**31 - 1), "TensorDesc is to have"),
    "negative length": (_described(pb.tensor_desc(5, [3, 1]), length=-1), "TensorDesc is to have"),
    "desc": (_described(b"\x08\x05\x12\xff\xff"), "TensorDesc is truncated"),
    "no dtype": (_described(b"\x10\x03"), "no data type"),
    "dtype": (_described(pb.tensor_desc(99, [3, 1])), "99 is not the number"),
    "size_t": (_described(pb.tensor_desc(19, [3, 1])), "19 is not the number"),
    "other dims": (pb.lod_tensor(5, [1, 3], W.tobytes()), "in the program, but"),
    "other dtype": (pb.lod_tensor(6, [3, 1], W.astype("f8").tobytes()), "in the program, but"),
    "overflow": (_described(pb.tensor_desc(5, [2**62, 2**62])), "2\\*\\*47"),
    "negative dim": (_described(pb.tensor_desc(5, [-1, 3])), "dims"),
    "huge": (_described(pb.tensor_desc(5, [2**40])), "in the program, but"),
    "rank": (_described(pb.tensor_desc(5, [1] * 70)), "70 dims"),
}


@pytest.mark.parametrize("lie", TENSORS)
def test_tensors_that_lie_are_refused(tmp_path: Path, lie: str) -> None:
    content, text = TENSORS[lie]
    folder = line_folder(tmp_path)
    (folder / "w").write_bytes(content)
    with pytest.raises(SavedModelError, match=text):
        fluid.io.load_inference_model(str(folder), executor())
    assert fluid.global_scope().find_var("b") is None


def test_what_the_program_leaves_open_is_checked_against_the_file(tmp_path: Path) -> None:
    (tmp_path / "v").write_bytes(_described(pb.tensor_desc(5, [2**40])))
    program = fluid.Program()
    program.global_block().create_var("v", [-1], "float32", persistable=True)
    with pytest.raises(SavedModelError, match="takes 4,398,046,511,104 bytes"):
        fluid.io.load_persistables(executor(), str(tmp_path), program)


def test_one_file_holds_what_the_program_names(tmp_path: Path) -> None:
    folder = line_folder(tmp_path, params=True)
    fewer = fluid.Program()
    fewer.global_block().create_var("b", [1], "float32", persistable=True)
    with pytest.raises(SavedModelError, match="after its tensor"):
        fluid.io.load_persistables(executor(), str(folder), fewer, "__params__")
    other = fluid.Program()
    for name in ("a", "w"):
        other.global_block().create_var(name, [3, 1], "float32", persistable=True)
    with pytest.raises(SavedModelError, match="variable 'a' is"):
        fluid.io.load_persistables(executor(), str(folder), other, "__params__")


def test_two_formats_in_one_folder_are_refused(tmp_path: Path) -> None:
    program = fluid.Program()
    program.global_block().create_var("v", [2], "bool", persistable=True)
    exe = executor()
    (tmp_path / "v").write_bytes(pb.lod_tensor(0, [2], b"\x02\x00"))
    fluid.io.load_persistables(exe, str(tmp_path), program)
    found = fluid.global_scope().find_var("v").get_tensor().numpy()
    assert found.view("uint8").tolist() == [1, 0]
    fluid.io.save_persistables(exe, str(tmp_path), program)
    with pytest.raises(SavedModelError, match=r"'v' twice, in Paddle's format and in ours \(v.safetensors\)"):
        fluid.io.load_persistables(exe, str(tmp_path), program)
    (tmp_path / "v").unlink()
    fluid.io.load_persistables(exe, str(tmp_path), program)


def test_the_extra_is_named_where_protobuf_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = line_folder(tmp_path)
    messages.message_classes.cache_clear()
    monkeypatch.setitem(sys.modules, "google.protobuf.descriptor_pb2", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'fluidlite\[paddle\]'"):
        fluid.io.load_inference_model(str(folder), executor())
    with pytest.raises(FluidError, match="format is 'onnx'"):
        fluid.io.save_params(executor(), str(tmp_path), format="onnx")


def test_random_damage_is_refused_or_harmless() -> None:
    """Every damaged program gives an error of ours, or a program."""
    rng, good = random.Random(1), pb.line_model(_operator("relu"))
    outcomes = set()
    for _ in range(400):
        content = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(1, len(content))
            action = rng.randrange(4)
            if action == 0:
                content[at] = rng.randrange(256)
            elif action == 1:
                del content[at : at + rng.randint(1, 9)]
            elif action == 2:
                content[at:at] = rng.randbytes(rng.randint(1, 9))
            else:
                content[at] ^= 1 << rng.randrange(8)
        try:
            fluid.Program.parse_from_string(bytes(content))
            outcomes.add("program")
        except SavedModelError:
            outcomes.add("refused")
    assert outcomes == {"program", "refused"}


def test_random_damage_of_tensors(tmp_path: Path) -> None:
    rng, good = random.Random(2), pb.lod_tensor(5, [3, 1], W.tobytes(), ([0, 1, 3],))
    program = fluid.Program()
    program.global_block().create_var("v", [-1, 1], "float32", lod_level=1, persistable=True)
    exe = executor()
    for _ in range(150):
        content = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            content[rng.randrange(4, len(content))] = rng.randrange(256)
        (tmp_path / "v").write_bytes(content[: rng.choice([len(content), rng.randrange(4, len(content))])])
        try:
            fluid.io.load_persistables(exe, str(tmp_path), program)
        except SavedModelError:
            continue
        assert fluid.global_scope().find_var("v").get_tensor().numpy().shape == (3, 1)
