"""Optional tensors of scale, clip and dropout, a diagonal of random numbers, and layers without parameters."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.base.errors import AttributeValueError, ProgramError

PLACES = [str(place) for place in fluid.places()]
IMAGES = np.random.default_rng(0).uniform(-1, 1, (2, 3, 4, 5)).astype("float32")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    with (
        fluid.unique_name.guard(),
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.scope_guard(fluid.Scope()),
    ):
        yield


def run(*fetch: Any, place: str = "cpu", **feed: Any) -> list[Any]:
    exe = fluid.Executor(place, fallback="allow")
    exe.run(fluid.default_startup_program())
    found: list[Any] = exe.run(fluid.default_main_program(), feed=feed, fetch_list=list(fetch))
    return found


def data(name: str, array: Any) -> Any:
    return layers.data(name, list(array.shape), dtype=str(array.dtype), append_batch_size=False)


@pytest.mark.parametrize(
    ("name", "signature"),
    [
        ("unfold", "x kernel_sizes strides=1 paddings=0 dilations=1 name=None"),
        ("affine_grid", "theta out_shape name=None"),
        ("add_position_encoding", "input alpha beta name=None"),
        ("fsp_matrix", "x y"),
        ("grid_sampler", "x grid name=None"),
    ],
)
def test_signatures_are_fluids(name: str, signature: str) -> None:
    parameters = inspect.signature(getattr(layers, name)).parameters.values()
    found = [p.name if p.default is p.empty else f"{p.name}={p.default}" for p in parameters]
    assert " ".join(found) == signature


# Optional tensors --------------------------------------------------------------------------------------------------


def test_scale_by_a_variable() -> None:
    x, factor = np.float32([[1, 2]]), np.float32([3])
    a = data("a", x)
    a.stop_gradient = False
    out = layers.scale(a, scale=data("factor", factor), bias=0.5)
    (grad,) = fluid.gradients([out], [a])
    values, slopes = run(out, grad, a=x, factor=factor)
    assert values.tolist() == [[3.5, 6.5]] and slopes.tolist() == [[3, 3]]


def test_a_seed_tensor_is_the_seed_of_the_run() -> None:
    x = np.ones((4, 64), "float32")
    block = fluid.default_main_program().global_block()
    inputs = {"X": data("x", x), "Seed": layers.data("seed", [1], dtype="int32", append_batch_size=False)}
    for name in ("out", "mask", "other", "fixed"):
        block.create_var(name)
    block.append_op("dropout", inputs, {"Out": "out", "Mask": "mask"}, {"seed": 3, "fix_seed": True})
    block.append_op("dropout", {"X": "x"}, {"Out": "other", "Mask": "fixed"}, {"seed": 7, "fix_seed": True})
    for place in PLACES:
        exe = fluid.Executor(place, fallback="allow")
        masks = {}
        for seed in (7, 8):
            feed = {"x": x, "seed": np.asarray([seed], "int32")}
            masks[seed], fixed = exe.run(feed=feed, fetch_list=["mask", "fixed"])
        again = exe.run(feed=feed, fetch_list=["mask"])[0]
        assert masks[7].tolist() == fixed.tolist() != masks[8].tolist() == again.tolist()


@pytest.mark.parametrize("place", PLACES)
def test_uniform_sets_a_diagonal(place: str) -> None:
    initializer = fluid.initializer.Uniform(-1, 1, seed=5, diag_num=3, diag_step=3, diag_val=9.0)
    with_diagonal = layers.create_parameter([4, 3], "float32", default_initializer=initializer)
    plain = layers.create_parameter([4, 3], "float32", default_initializer=fluid.initializer.Uniform(-1, 1, seed=5))
    found, without = run(with_diagonal, plain, place=place)
    wanted = without.copy()
    wanted[range(3), range(3)] = 9.0
    np.testing.assert_array_equal(found, wanted)


def test_uniform_refuses_a_negative_diagonal() -> None:
    with pytest.raises(ProgramError, match="diag_num is -1"):
        fluid.initializer.Uniform(diag_num=-1)


# Layers ------------------------------------------------------------------------------------------------------------


def test_unfold_makes_a_convolution_a_product() -> None:
    weights = np.random.default_rng(1).uniform(-1, 1, (4, 3, 2, 3)).astype("float32")
    x = data("x", IMAGES)
    columns = layers.unfold(x, [2, 3], strides=[1, 2], paddings=[1, 0, 0, 1], dilations=1)
    product = layers.matmul(data("w", weights.reshape(4, 18)), columns)
    attr = fluid.ParamAttr(initializer=fluid.initializer.NumpyArray(weights))
    conv = layers.conv2d(x, 4, [2, 3], stride=[1, 2], padding=[[0, 0], [0, 0], [1, 0], [0, 1]], param_attr=attr,
                         bias_attr=False)  # fmt: skip
    found, wanted = run(product, conv, x=IMAGES, w=weights.reshape(4, 18))
    np.testing.assert_allclose(found, wanted.reshape(found.shape), rtol=1e-5, atol=1e-5)


def test_unfold_takes_paddings_of_one_two_or_four_numbers() -> None:
    x = data("x", IMAGES)
    dims = [layers.unfold(x, 2, paddings=pads).shape for pads in (1, [1, 0], [1, 2, 0, 1])]
    assert dims == [(2, 12, 5 * 6), (2, 12, 5 * 4), (2, 12, 4 * 7)]
    with pytest.raises(AttributeValueError, match="paddings"):
        layers.unfold(x, 2, paddings=[1, 2, 3])


def test_affine_grid_of_the_identity() -> None:
    theta, shape = np.float32([[[1, 0, 0], [0, 1, 0]]]), np.array([1, 1, 2, 3])
    given = data("theta", theta)
    grids = run(
        layers.affine_grid(given, [1, 1, 2, 3]), layers.affine_grid(given, data("shape", shape)),
        theta=theta, shape=shape,
    )  # fmt: skip
    for grid in grids:
        assert grid.tolist() == [[[[-1, -1], [0, -1], [1, -1]], [[-1, 1], [0, 1], [1, 1]]]]


def test_positions_start_anew_in_each_sequence() -> None:
    x = layers.data("x", [4], lod_level=1)
    out = layers.add_position_encoding(x, alpha=2.0, beta=1.0)
    tensor = fluid.create_lod_tensor(np.ones((3, 4), "float32"), [[2, 1]], fluid.CPUPlace())
    (found,) = fluid.Executor("cpu").run(feed={"x": tensor}, fetch_list=[out], return_numpy=False)
    assert found.lod() == [[0, 2, 3]]
    first, second = [2, 2, 3, 3], [2 + np.sin(1), 2 + np.sin(1e-4), 2 + np.cos(1), 2 + np.cos(1e-4)]
    np.testing.assert_allclose(np.array(found), [first, second, first], rtol=1e-6)


def test_fsp_matrix() -> None:
    other = IMAGES[:, :2] * 2
    (found,) = run(layers.fsp_matrix(data("x", IMAGES), data("y", other)), x=IMAGES, y=other)
    np.testing.assert_allclose(found, np.einsum("nahw,nbhw->nab", IMAGES, other) / 20, rtol=1e-4, atol=1e-5)


def test_grid_sampler_at_the_pixels_gives_the_image_back() -> None:
    theta = np.float32([[[1, 0, 0], [0, 1, 0]]] * 2)
    grid = layers.affine_grid(data("theta", theta), [2, 3, 4, 5])
    (found,) = run(layers.grid_sampler(data("x", IMAGES), grid), theta=theta, x=IMAGES)
    np.testing.assert_allclose(found, IMAGES, rtol=1e-5, atol=1e-5)
