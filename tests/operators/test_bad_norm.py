"""What normalisations and softmax refuse: when the program is built where dims are known, else when it runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.errors import AttributeValueError, DtypeError, FluidError, ProgramError, ShapeError

Dims = tuple[int, ...]

OUTPUTS = {
    "batch_norm": ("Y", "MeanOut", "VarianceOut", "SavedMean", "SavedVariance"),
    "layer_norm": ("Y", "Mean", "Variance"),
    "group_norm": ("Y", "Mean", "Variance"),
    "instance_norm": ("Y", "SavedMean", "SavedVariance"),
    "norm": ("Norm", "Out"),
    "lrn": ("Out", "MidOut"),
    "data_norm": ("Y", "Means", "Scales"),
    "data_norm_grad": ("X@GRAD",),
}
IMAGES: Dims = (2, 4, 3, 3)


def batch(x: Dims, c: int, **other: Dims) -> dict[str, Dims]:
    """Inputs of batch_norm with ``c`` channels, but for those named."""
    return {"X": x, **{slot: other.get(slot, (c,)) for slot in ("Scale", "Bias", "Mean", "Variance")}}


def scaled(x: Dims, *c: int) -> dict[str, Dims]:
    """X with a Scale and a Bias."""
    return {"X": x, "Scale": c, "Bias": c}


def summed(x: Dims, c: int, **other: Dims) -> dict[str, Dims]:
    """Inputs of data_norm with ``c`` channels, but for those named."""
    return {"X": x, **{slot: other.get(slot, (c,)) for slot in ("BatchSize", "BatchSum", "BatchSquareSum")}}


def singular(weight: Dims, u: int, v: int) -> dict[str, Dims]:
    """Inputs of spectral_norm."""
    return {"Weight": weight, "U": (u,), "V": (v,)}


LEARNED: dict[str, Dims] = {"scale_w": (4,), "bias": (4,)}
SHIFT = {"enable_scale_and_shift": True}

BAD: list[tuple[str, dict[str, Dims], dict[str, Any], type[Exception], str]] = [
    ("batch_norm", batch((4,), 4), {}, ShapeError, "X .* expected a rank of 2 to 5"),
    ("batch_norm", batch((1, 2, 3, 4, 5, 6), 2), {}, ShapeError, "rank of 2 to 5"),
    ("batch_norm", batch(IMAGES, 3), {}, ShapeError, r"Scale .* expected \[4\], the number of channels of X"),
    ("batch_norm", batch(IMAGES, 4), {"data_layout": "NHWC"}, ShapeError, r"Scale .* expected \[3\]"),
    ("batch_norm", batch(IMAGES, 4, Bias=(4, 1)), {}, ShapeError, "Bias"),
    ("batch_norm", batch(IMAGES, 4, Mean=(5,)), {}, ShapeError, "Mean"),
    ("batch_norm", batch(IMAGES, 4, Variance=()), {}, ShapeError, "Variance"),
    ("batch_norm", batch((0, 4, 3), 4), {}, ShapeError, "an empty batch has no mean.*\n.*use_global_stats"),
    ("batch_norm", batch((2, 4, 0), 4), {}, ShapeError, "at least one element a channel"),
    ("batch_norm", {**batch(IMAGES, 4), "MomentumTensor": (2,)}, {}, ShapeError, "MomentumTensor .* one element"),
    ("batch_norm", batch(IMAGES, 4), {"data_layout": "AnyLayout"}, AttributeValueError, "'NCHW', 'NHWC'"),
    ("batch_norm", batch(IMAGES, 4), {"epsilon": 0.5}, AttributeValueError, "0.001 or less"),
    ("batch_norm", batch(IMAGES, 4), {"epsilon": -1e-5}, AttributeValueError, "0.0 or more"),
    ("layer_norm", scaled((4,), 4), {}, ShapeError, "X .* a rank of 2 or more"),
    ("layer_norm", scaled(IMAGES, 4), {}, ShapeError, r"Scale .* expected \[36\]"),
    ("layer_norm", scaled(IMAGES, 36, 1), {}, ShapeError, "Scale"),
    ("layer_norm", {"X": IMAGES, "Bias": (9,)}, {}, ShapeError, "Bias"),
    ("layer_norm", scaled(IMAGES, 36), {"begin_norm_axis": 0}, AttributeValueError, "1 or more"),
    ("layer_norm", scaled(IMAGES, 36), {"begin_norm_axis": 4}, AttributeValueError, "a dim of X after the first"),
    ("layer_norm", {"X": (2, 0)}, {}, ShapeError, "at least one element to normalise"),
    ("layer_norm", scaled((2, 3), 3), {"epsilon": 0.01}, AttributeValueError, "0.001 or less"),
    ("group_norm", {"X": (4,)}, {"groups": 2}, ShapeError, "X .* a rank of 2 or more"),
    (
        "group_norm",
        scaled(IMAGES, 4),
        {"groups": 3},
        AttributeValueError,
        "a divisor of the number of channels .*, 4",
    ),
    ("group_norm", scaled(IMAGES, 4), {"groups": 8}, AttributeValueError, "a divisor"),
    ("group_norm", scaled(IMAGES, 4), {"groups": 0}, AttributeValueError, "1 or more"),
    ("group_norm", scaled(IMAGES, 4), {}, AttributeValueError, "groups"),
    ("group_norm", scaled(IMAGES, 4), {"groups": 3, "data_layout": "NHWC"}, ShapeError, r"Scale .* expected \[3\]"),
    ("group_norm", {"X": (2, 4, 0)}, {"groups": 2}, ShapeError, "at least one element"),
    ("group_norm", scaled(IMAGES, 4), {"groups": 2, "epsilon": 2.0}, AttributeValueError, "1.0 or less"),
    ("instance_norm", scaled((4,), 4), {}, ShapeError, "rank of 2 to 5"),
    ("instance_norm", scaled((1, 2, 3, 4, 5, 6), 2), {}, ShapeError, "rank of 2 to 5"),
    ("instance_norm", scaled(IMAGES, 3), {}, ShapeError, r"Scale .* expected \[4\]"),
    ("instance_norm", {"X": (2, 4, 0)}, {}, ShapeError, "at least one element"),
    ("norm", {"X": ()}, {"axis": 0}, ShapeError, "X .* a rank of 1 or more"),
    ("norm", {"X": (2, 3)}, {"axis": 2}, AttributeValueError, r"an axis in \[-2, 2\)"),
    ("norm", {"X": (2, 3)}, {"axis": -3}, AttributeValueError, "an axis"),
    ("norm", {"X": (2, 3)}, {}, AttributeValueError, "axis"),
    ("lrn", {"X": (2, 3, 4)}, {}, ShapeError, "X .* a rank of 4"),
    ("lrn", {"X": IMAGES}, {"n": 4}, AttributeValueError, "an odd number"),
    ("lrn", {"X": IMAGES}, {"n": 0}, AttributeValueError, "1 or more"),
    ("lrn", {"X": IMAGES}, {"k": 0.0}, AttributeValueError, "'k' .* above 0"),
    ("lrn", {"X": IMAGES}, {"alpha": -1.0}, AttributeValueError, "'alpha' .* above 0"),
    ("lrn", {"X": IMAGES}, {"beta": float("nan")}, AttributeValueError, "'beta' .* above 0"),
    ("lrn", {"X": IMAGES}, {"data_format": "NCDHW"}, AttributeValueError, "'NHWC'"),
    ("affine_channel", scaled((4,), 4), {}, ShapeError, "X .* a rank of 2 or more"),
    ("affine_channel", scaled(IMAGES, 4), {}, ShapeError, r"Scale .* expected \[3\], the number of channels"),
    ("affine_channel", {**scaled(IMAGES, 4), "Bias": (3,)}, {"data_layout": "NCHW"}, ShapeError, "Bias"),
    ("softmax", {"X": ()}, {}, ShapeError, "X .* rank 1 or more"),
    ("softmax", {"X": (2, 3)}, {"axis": 2}, AttributeValueError, r"an axis in \[-2, 2\)"),
    ("log_softmax", {"X": ()}, {}, ShapeError, "rank 1 or more"),
    ("log_softmax", {"X": (2, 3)}, {"axis": -3}, AttributeValueError, "an axis"),
    ("data_norm", summed((4,), 4), {}, ShapeError, "X .* a rank of 2: batch and channels"),
    ("data_norm", summed((2, 4, 3), 4), {}, ShapeError, "X .* a rank of 2: batch and channels"),
    ("data_norm", summed((2, 4), 3), {}, ShapeError, r"BatchSize .* expected \[4\], the number of channels of X"),
    ("data_norm", summed((2, 4), 4, BatchSum=(5,)), {}, ShapeError, "BatchSum"),
    ("data_norm", summed((2, 4), 4, BatchSquareSum=(4, 1)), {}, ShapeError, "BatchSquareSum"),
    ("data_norm", {**summed((2, 4), 4), **LEARNED, "bias": (3,)}, SHIFT, ShapeError, "bias"),
    ("data_norm", {**summed((2, 4), 4), "scale_w": (4,)}, SHIFT, AttributeValueError, "an input in slot bias"),
    ("data_norm", summed((2, 4), 4), {"slot_dim": 3}, AttributeValueError, "a divisor of the number of channels"),
    ("data_norm", summed((2, 4), 4), {"epsilon": 0.01}, AttributeValueError, "0.001 or less"),
    ("data_norm", summed((2, 4), 4), {"data_layout": "CN"}, AttributeValueError, "'NCHW', 'NHWC'"),
    ("spectral_norm", singular((4,), 4, 1), {}, ShapeError, "Weight .* a rank of 2 to 5"),
    ("spectral_norm", singular((1, 1, 1, 1, 1, 1), 1, 1), {}, ShapeError, "Weight .* a rank of 2 to 5"),
    ("spectral_norm", singular((0, 4), 0, 4), {}, ShapeError, "an empty matrix"),
    (
        "spectral_norm",
        singular((2, 3, 4), 3, 8),
        {},
        ShapeError,
        "U .* expected 2 numbers, as many as the matrix has rows",
    ),
    ("spectral_norm", singular((2, 3, 4), 3, 12), {"dim": 1}, ShapeError, "V .* expected 8 numbers"),
    ("spectral_norm", singular((2, 3), 2, 3), {"dim": 2}, AttributeValueError, "one of 0, 1"),
    ("spectral_norm", singular((2, 3), 2, 3), {"power_iters": -1}, AttributeValueError, "0 or more"),
    ("spectral_norm", singular((2, 3), 2, 3), {"power_iters": 2**40}, AttributeValueError, "1000 or less"),
]
DTYPES = [
    ("batch_norm", batch(IMAGES, 4), {"X": "int64"}, {}),
    ("batch_norm", batch(IMAGES, 4), {"Scale": "float64"}, {}),
    ("batch_norm", batch(IMAGES, 4), {"X": "float16", "Mean": "float16"}, {}),
    ("batch_norm", {**batch(IMAGES, 4), "MomentumTensor": (1,)}, {"MomentumTensor": "int64"}, {}),
    ("layer_norm", scaled(IMAGES, 36), {"Bias": "float64"}, {}),
    ("group_norm", scaled(IMAGES, 4), {"X": "float64"}, {"groups": 2}),
    ("instance_norm", scaled(IMAGES, 4), {"Scale": "float16"}, {}),
    ("norm", {"X": (2, 3)}, {"X": "int32"}, {"axis": 1}),
    ("lrn", {"X": IMAGES}, {"X": "int32"}, {}),
    ("affine_channel", scaled(IMAGES, 4), {"Scale": "float64"}, {"data_layout": "NCHW"}),
    ("log_softmax", {"X": (2, 3)}, {"X": "int64"}, {}),
    ("data_norm", summed((2, 4), 4), {"X": "float16"}, {}),
    ("data_norm", summed((2, 4), 4), {"BatchSum": "float64"}, {}),
    ("data_norm", {**summed((2, 4), 4), **LEARNED}, {"scale_w": "float64"}, SHIFT),
    ("spectral_norm", singular((2, 3), 2, 3), {"Weight": "int32"}, {}),
    ("spectral_norm", singular((2, 3), 2, 3), {"V": "float64"}, {}),
]


def build(type: str, dims: dict[str, Dims], attrs: dict[str, Any], dtypes: dict[str, str], known: bool = True) -> Any:
    """Append the operator to the default program; return its first output. ``known``: dims are declared."""
    block = fluid.default_main_program().global_block()
    inputs = {}
    for slot, shape in dims.items():
        declared = list(shape) if known else [-1] * len(shape)
        inputs[slot] = block.create_var(slot.lower(), declared, dtypes.get(slot, "float32"), is_data=True)
    outputs = {slot: block.create_var(f"out_{slot.lower()}") for slot in OUTPUTS.get(type, ("Out",))}
    for slot in ("Mean", "Variance"):
        if type == "batch_norm":
            outputs[slot + "Out"] = inputs[slot]
    block.append_op(type=type, inputs=inputs, outputs=outputs, attrs=attrs)
    return next(iter(outputs.values()))


@pytest.mark.parametrize(("type", "dims", "attrs", "error", "word"), BAD)
def test_refused_when_built(
    type: str, dims: dict[str, Dims], attrs: dict[str, Any], error: type[Exception], word: str
) -> None:
    with fluid.program_guard(fluid.Program()), pytest.raises(error, match=word):
        build(type, dims, attrs, {})


@pytest.mark.parametrize(("type", "dims", "dtypes", "attrs"), DTYPES)
def test_dtypes_refused(type: str, dims: dict[str, Dims], dtypes: dict[str, str], attrs: dict[str, Any]) -> None:
    with fluid.program_guard(fluid.Program()), pytest.raises(DtypeError, match=next(reversed(dtypes))):
        build(type, dims, attrs, dtypes)


LATE = [
    case
    for case in BAD
    if case[3] is ShapeError and "rank" not in case[4] and "MomentumTensor" not in case[1]
    and all(len(dims) == 1 for slot, dims in case[1].items() if slot != "X")
]  # fmt: skip


@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
@pytest.mark.parametrize(("type", "dims", "attrs", "error", "word"), LATE)
def test_refused_when_run(
    type: str, dims: dict[str, Dims], attrs: dict[str, Any], error: type[Exception], word: str, place: str
) -> None:
    with fluid.program_guard(fluid.Program()), fluid.scope_guard(fluid.Scope()):
        for slot in ("mean", "variance") if type == "batch_norm" else ():  # state: a feed is not updated in place
            fluid.default_main_program().global_block().create_var(
                slot, [-1], "float32", persistable=True
            )  # fmt: skip
            shape = dims[slot.capitalize()]
            fluid.global_scope().var(slot).get_tensor().set(np.ones(shape, "float32"), place)
        out = build(type, dims, attrs, {}, known=False)
        feed = {slot.lower(): np.ones(shape, "float32") for slot, shape in dims.items()}
        exe = fluid.Executor(place)
        if type == "batch_norm":
            del feed["mean"], feed["variance"]
        with pytest.raises(error, match=word):
            exe.run(feed=feed, fetch_list=[out])


# Layers ------------------------------------------------------------------------------------------------------------

layers = fluid.layers
LAYERS: dict[str, tuple[Any, type[FluidError], str]] = {
    "activation": (lambda x, y: layers.inplace_abn(x, "relu"), AttributeValueError, "'leaky_relu' or 'elu'"),
    "data rank": (lambda x, y: layers.data_norm(x), ProgramError, r"\[batch, channels\]"),
    "data layout": (lambda x, y: layers.data_norm(x, data_layout="CN"), AttributeValueError, "'NCHW' or 'NHWC'"),
    "data first": (
        lambda x, y: layers.data_norm(layers.data("z", [4]), param_attr={"size": 1}),
        AttributeValueError,
        "batch_size",
    ),
    "data slots": (lambda x, y: layers.data_norm(layers.data("z", [4]), slot_dim=3), AttributeValueError, "a divisor"),
    "data dtype": (lambda x, y: layers.data_norm(layers.data("z", [4], dtype="int64")), DtypeError, "float32"),
    "weight dims": (lambda x, y: layers.spectral_norm(x), ProgramError, "known dims"),
    "weight rank": (lambda x, y: layers.spectral_norm(layers.ones([3], "float32")), ProgramError, "rank 2 to 5"),
    "weight dim": (
        lambda x, y: layers.spectral_norm(layers.ones([3, 2], "float32"), dim=2),
        AttributeValueError,
        "0 or 1",
    ),
    "weight iterations": (
        lambda x, y: layers.spectral_norm(layers.ones([3, 2], "float32"), power_iters=-1),
        FluidError,
        "from 0 to 1000",
    ),
    "weight dtype": (lambda x, y: layers.spectral_norm(layers.ones([3, 2], "int64")), DtypeError, "float32"),
    "rank": (lambda x, y: layers.batch_norm(y), ProgramError, "a rank of 2 or more"),
    "layout": (lambda x, y: layers.batch_norm(x, data_layout="CHW"), AttributeValueError, "'NCHW' or 'NHWC'"),
    "channels": (lambda x, y: layers.group_norm(x, 2, data_layout="NHWC"), ProgramError, "a known number of channels"),
    "row": (lambda x, y: layers.layer_norm(x), ProgramError, "known dims from dim 1 on"),
    "one of two": (lambda x, y: layers.instance_norm(x, param_attr=False), ProgramError, "if, and only if"),
    "no scale": (lambda x, y: layers.batch_norm(x, param_attr=False), ProgramError, "needs the parameter"),
    "two scales": (lambda x, y: layers.layer_norm(y, param_attr=["a", "b"]), FluidError, "param_attr|rank"),
    "momentum": (lambda x, y: layers.batch_norm(x, momentum="much"), ProgramError, "a number"),
    "groups": (lambda x, y: layers.group_norm(x, 2.5), ProgramError, "an int"),
    "no bias": (lambda x, y: layers.affine_channel(x, y), ProgramError, "'bias'"),
    "axis": (lambda x, y: layers.l2_normalize(x, "last"), ProgramError, "an int"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_refuse(name: str) -> None:
    call, error, word = LAYERS[name]
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        x = layers.data("x", [4, 3, -1])
        y = layers.data("y", [4], append_batch_size=False)
        with pytest.raises(error, match=word):
            call(x, y)
