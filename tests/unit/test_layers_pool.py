"""Layers of pooling and of images: signatures as in Fluid 1.8, and values against NumPy."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.base.errors import AttributeValueError, ProgramError

POOL = "input, pool_size=-1, pool_type='max', pool_stride=1, pool_padding=0, global_pooling=False, use_cudnn=True, "
RESIZE = "input, out_shape=None, scale=None, name=None, "
SIGNATURES = {
    "pool2d": POOL + "ceil_mode=False, name=None, exclusive=True, data_format='NCHW'",
    "pool3d": POOL + "ceil_mode=False, name=None, exclusive=True, data_format='NCDHW'",
    "adaptive_pool2d": "input, pool_size, pool_type='max', require_index=False, name=None",
    "adaptive_pool3d": "input, pool_size, pool_type='max', require_index=False, name=None",
    "image_resize": RESIZE
    + "resample='BILINEAR', actual_shape=None, align_corners=True, align_mode=1, data_format='NCHW'",
    "resize_bilinear": RESIZE + "actual_shape=None, align_corners=True, align_mode=1, data_format='NCHW'",
    "resize_trilinear": RESIZE + "actual_shape=None, align_corners=True, align_mode=1, data_format='NCDHW'",
    "resize_nearest": RESIZE + "actual_shape=None, align_corners=True, data_format='NCHW'",
    "image_resize_short": "input, out_short_len, resample='BILINEAR'",
    "im2sequence": "input, filter_size=1, stride=1, padding=0, input_image_size=None, out_stride=1, name=None",
    "row_conv": "input, future_context_size, param_attr=None, act=None",
    "pixel_shuffle": "x, upscale_factor",
    "space_to_depth": "x, blocksize, name=None",
    "shuffle_channel": "x, group, name=None",
    "temporal_shift": "x, seg_num, shift_ratio=0.25, name=None",
}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Give every test new programs, names and scope."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup), fluid.scope_guard(fluid.Scope()):
        yield


def image(*dims: int, name: str = "x", **options: Any) -> Any:
    return layers.data(name, list(dims), append_batch_size=False, **options)


def run(fetch: Any, **feed: Any) -> list[Any]:
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    many = fetch if isinstance(fetch, (list, tuple)) else [fetch]
    return list(exe.run(fluid.default_main_program(), feed=feed, fetch_list=list(many)))


def numbers(*dims: int) -> Any:
    return np.random.default_rng(0).permutation(int(np.prod(dims))).reshape(dims).astype("float32")


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name: str) -> None:
    parameters = inspect.signature(getattr(layers, name)).parameters.values()
    shown = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters]
    assert ", ".join(shown) == SIGNATURES[name]
    assert name in layers.__all__


def test_pool2d_values() -> None:
    x = numbers(2, 3, 4, 6)
    given = image(-1, 3, 4, 6)
    outs = [
        layers.pool2d(given, 2, "max", 2),
        layers.pool2d(given, [2, 3], "avg", [2, 3]),
        layers.pool2d(given, pool_type="avg", global_pooling=True),
        layers.pool2d(given, 3, "max", 1, "SAME"),
        layers.pool2d(given, 2, "avg", 2, [[0, 0], [0, 0], [1, 1], [0, 0]], exclusive=False),
    ]
    assert [out.shape for out in outs] == [(-1, 3, 2, 3), (-1, 3, 2, 2), (-1, 3, 1, 1), (-1, 3, 4, 6), (-1, 3, 3, 3)]
    assert outs[0].name == "pool2d_0.tmp_0"
    found = run(outs, x=x)
    np.testing.assert_allclose(found[0], x.reshape(2, 3, 2, 2, 3, 2).max((3, 5)))
    np.testing.assert_allclose(found[1], x.reshape(2, 3, 2, 2, 2, 3).mean((3, 5)), rtol=1e-6)
    np.testing.assert_allclose(found[2], x.mean((2, 3), keepdims=True), rtol=1e-6)
    wide = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-1)
    windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), (2, 3))
    np.testing.assert_allclose(found[3], windows.max((4, 5)))
    wide = np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 0)))
    np.testing.assert_allclose(found[4], wide.reshape(2, 3, 3, 2, 3, 2).mean((3, 5)), rtol=1e-6)


def test_pool2d_with_channels_last_and_pool3d() -> None:
    x, volume = numbers(1, 4, 4, 3), numbers(1, 2, 2, 4, 4)
    last = layers.pool2d(image(1, 4, 4, 3), 2, "max", 2, data_format="NHWC")
    deep = layers.pool3d(image(1, 2, 2, 4, 4, name="v"), 2, "avg", 2)
    found = run([last, deep], x=x, v=volume)
    np.testing.assert_allclose(found[0], x.reshape(1, 2, 2, 2, 2, 3).max((2, 4)))
    np.testing.assert_allclose(found[1], volume.reshape(1, 2, 1, 2, 2, 2, 2, 2).mean((3, 5, 7)), rtol=1e-6)


def test_adaptive_pools() -> None:
    x = numbers(2, 3, 6, 4)
    given = image(2, 3, 6, 4)
    most, where = layers.adaptive_pool2d(given, [3, 2], require_index=True)  # type: ignore[misc]
    mean = layers.adaptive_pool2d(given, [3, 2], "avg")
    deep = layers.adaptive_pool3d(image(1, 1, 2, 6, 4, name="v"), [1, 3, 2], "max")
    assert (most.dtype, where.dtype) == ("float32", "int32")
    found = run([most, where, mean, deep], x=x, v=x[None, :1, :2])
    parts = x.reshape(2, 3, 3, 2, 2, 2)
    np.testing.assert_allclose(found[0], parts.max((3, 5)))
    np.testing.assert_allclose(np.take_along_axis(x.reshape(2, 3, -1), found[1].reshape(2, 3, -1), 2),
                               parts.max((3, 5)).reshape(2, 3, -1))  # fmt: skip
    np.testing.assert_allclose(found[2], parts.mean((3, 5)), rtol=1e-6)
    np.testing.assert_allclose(found[3][0, 0, 0], x[0, :2].reshape(2, 3, 2, 2, 2).max((0, 2, 4)))


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({}, AttributeValueError, "pool_size"),
        ({"pool_size": 2, "pool_type": "sum"}, AttributeValueError, "'max' or 'avg'"),
        ({"pool_size": [2, 2, 2]}, AttributeValueError, "pool_size"),
        ({"pool_size": 2, "pool_stride": 0}, AttributeValueError, "pool_stride"),
        ({"pool_size": 2, "pool_padding": "HALF"}, AttributeValueError, "pool_padding"),
        ({"pool_size": 2, "pool_padding": [[1, 1], [0, 0], [0, 0], [0, 0]]}, AttributeValueError, "pool_padding"),
        ({"pool_size": 2, "pool_padding": "VALID", "ceil_mode": True}, AttributeValueError, "ceil_mode"),
        ({"pool_size": 2, "data_format": "NCDHW"}, AttributeValueError, "data_format"),
    ],
)
def test_pool2d_refuses(arguments: dict[str, Any], error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        layers.pool2d(image(2, 3, 4, 4), **arguments)


def test_adaptive_pool_refuses() -> None:
    with pytest.raises(AttributeValueError, match="require_index"):
        layers.adaptive_pool2d(image(2, 3, 4, 4), 2, "avg", require_index=True)
    with pytest.raises(AttributeValueError, match="pool_type"):
        layers.adaptive_pool3d(image(1, 1, 2, 2, 2, name="v"), 2, "sum")


def test_resize_linear() -> None:
    x = numbers(2, 3, 4)
    given = image(2, 3, 4)
    same, wider = run([layers.resize_linear(given, [4]), layers.resize_linear(given, out_shape=(7,))], x=x)
    np.testing.assert_array_equal(same, x)
    expected = [[np.interp(np.linspace(0, 3, 7), range(4), line) for line in plane] for plane in x]
    np.testing.assert_allclose(wider, expected, rtol=1e-5)


def test_resize_values() -> None:
    x = numbers(1, 2, 3, 4)
    given, sizes = image(1, 2, 3, 4), image(2, name="sizes", dtype="int32")
    width = layers.fill_constant([1], "int32", 8)
    outs = [
        layers.resize_nearest(given, [6, 8], align_corners=False),
        layers.resize_bilinear(given, scale=2.0, align_corners=False),
        layers.resize_bilinear(given, [5, 7]),
        layers.image_resize(given, [3, width], resample="NEAREST", align_corners=False),
        layers.resize_nearest(given, [1, 1], actual_shape=sizes, align_corners=False),
        layers.image_resize(
            given, scale=layers.fill_constant([1], "float32", 2.0), resample="NEAREST", align_corners=False
        ),
        layers.image_resize_short(given, 6, "NEAREST"),
    ]
    assert outs[0].shape == (1, 2, 6, 8) and outs[6].shape == (1, 2, 6, 8) and outs[4].shape[:2] == (1, 2)
    found = run(outs, x=x, sizes=np.int32([6, 4]))
    twice = x.repeat(2, 2).repeat(2, 3)
    np.testing.assert_array_equal(found[0], twice)
    rows = np.minimum(np.arange(6) / 2, 2)
    columns = np.minimum(np.arange(8) / 2, 3)
    lines = np.stack([[np.interp(rows, range(3), plane[:, j]) for j in range(4)] for plane in x[0]]).swapaxes(1, 2)
    expected = np.stack([[np.interp(columns, range(4), line) for line in plane] for plane in lines])
    np.testing.assert_allclose(found[1][0], expected, rtol=1e-5)
    np.testing.assert_allclose(found[2][0][:, ::4, ::6], x[0][:, ::2, ::3])
    np.testing.assert_array_equal(found[3], x.repeat(2, 3))
    np.testing.assert_array_equal(found[4], x.repeat(2, 2))
    np.testing.assert_array_equal(found[5], twice)
    assert found[6].shape == (1, 2, 6, 8)


def test_resize_of_volumes_and_lines() -> None:
    volume, line = numbers(1, 1, 2, 2, 2), numbers(1, 2, 3)
    deep = layers.resize_trilinear(image(1, 1, 2, 2, 2), [3, 2, 2])
    long = layers.image_resize(image(1, 2, 3, name="y"), [5], resample="LINEAR", data_format="NCW")
    found = run([deep, long], x=volume, y=line)
    np.testing.assert_allclose(found[0][0, 0, 1], volume[0, 0].mean(0))
    np.testing.assert_allclose(found[1][0, :, ::2], line[0])


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({}, ProgramError, "out_shape"),
        ({"out_shape": [2]}, ProgramError, "2 sizes"),
        ({"out_shape": [2, 0]}, AttributeValueError, "out_shape"),
        ({"scale": 0.0}, AttributeValueError, "scale"),
        ({"scale": 2.0, "resample": "AREA"}, AttributeValueError, "resample"),
        ({"scale": 2.0, "data_format": "NCDHW"}, AttributeValueError, "data_format"),
        ({"scale": 2.0, "align_mode": 3}, AttributeValueError, "align_mode"),
        ({"scale": 2.0, "align_corners": 1}, ProgramError, "align_corners"),
        ({"scale": 2.0, "actual_shape": [2, 2]}, ProgramError, "actual_shape"),
    ],
)
def test_image_resize_refuses(arguments: dict[str, Any], error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        layers.image_resize(image(1, 2, 3, 3), **arguments)


def test_orders_of_channels() -> None:
    x = numbers(2, 4, 2, 4)
    given = image(2, 4, 2, 4)
    outs = [
        layers.pixel_shuffle(given, 2), layers.shuffle_channel(given, 2), layers.space_to_depth(given, 2),
        layers.temporal_shift(given, 2),
    ]  # fmt: skip
    found = run(outs, x=x)
    expected = x.reshape(2, 1, 2, 2, 2, 4).transpose(0, 1, 4, 2, 5, 3).reshape(2, 1, 4, 8)
    np.testing.assert_array_equal(found[0], expected)
    np.testing.assert_array_equal(found[1], x[:, [0, 2, 1, 3]])
    np.testing.assert_array_equal(found[2], expected.reshape(2, 16, 1, 2))
    shifted = x.copy()
    shifted[0, 0], shifted[1, 0], shifted[0, 1], shifted[1, 1] = 0, x[0, 0], x[1, 1], 0
    np.testing.assert_array_equal(found[3], shifted)


def test_im2sequence_gives_a_sequence_an_image() -> None:
    x = numbers(2, 1, 3, 3)
    out = layers.im2sequence(image(-1, 1, 3, 3), filter_size=2, stride=1)
    assert out.shape == (-1, 4) and out.lod_level == 1
    exe = fluid.Executor("cpu")
    found = exe.run(fluid.default_main_program(), feed={"x": x}, fetch_list=[out], return_numpy=False)[0]
    assert found.recursive_sequence_lengths() == [[4, 4]]
    np.testing.assert_array_equal(found.numpy()[1], x[0, 0, :2, 1:].reshape(-1))


def test_im2sequence_leaves_out_what_images_do_not_have() -> None:
    sizes = image(-1, 2, name="sizes")
    out = layers.im2sequence(image(-1, 1, 3, 3), [1, 1], padding=[0, 0], input_image_size=sizes, out_stride=2)
    feed = {"x": numbers(2, 1, 3, 3), "sizes": np.float32([[6, 5], [2, 4]])}
    found = fluid.Executor("cpu").run(fluid.default_main_program(), feed=feed, fetch_list=[out], return_numpy=False)[0]
    assert found.recursive_sequence_lengths() == [[9, 2]]
    with pytest.raises(AttributeValueError, match="padding"):
        layers.im2sequence(image(-1, 1, 3, 3, name="z"), padding=[1, 1, 1])


def test_row_conv_looks_ahead_and_learns() -> None:
    x = numbers(1, 4, 3)
    given = image(1, 4, 3, stop_gradient=False)
    weight = fluid.ParamAttr(initializer=fluid.initializer.Constant(1.0))
    out = layers.row_conv(given, 2, param_attr=weight, act="relu")
    loss = layers.mean(out)
    grads = fluid.gradients([loss], [given, fluid.default_main_program().global_block().var("row_conv_0.w_0")])
    found = run([out, *grads], x=x)
    ahead = np.pad(x, ((0, 0), (0, 2), (0, 0)))
    np.testing.assert_allclose(found[0], ahead[:, :4] + ahead[:, 1:5] + ahead[:, 2:])
    np.testing.assert_allclose(found[1][0, :, 0], np.float32([1, 2, 3, 3]) / 12, rtol=1e-6)
    assert found[2].shape == (3, 3)


def test_a_network_of_poolings_trains() -> None:
    x = image(-1, 2, 8, 8)
    hidden = layers.pool2d(layers.conv2d(x, 4, 3, padding=1), 2, "max", 2)
    hidden = layers.resize_bilinear(layers.pool2d(hidden, 3, "avg", 1, 1), scale=2.0)
    loss = layers.mean(layers.fc(layers.adaptive_pool2d(hidden, 2), 1))
    fluid.optimizer.SGD(0.1).minimize(loss)
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    feed = {"x": np.random.default_rng(0).normal(size=(4, 2, 8, 8)).astype("float32")}
    losses = [float(exe.run(feed=feed, fetch_list=[loss])[0][0]) for _ in range(5)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]
