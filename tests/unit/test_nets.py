"""Nets against NumPy, and their signatures."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers, nets
from fluidlite.base.errors import ProgramError

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Give every test new programs, names and scope."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup), fluid.scope_guard(fluid.Scope()):
        yield


def run(feed: dict[str, Any], *fetch: Any) -> list[np.ndarray]:
    exe = fluid.Executor("cpu")
    exe.run(fluid.default_startup_program())
    found: list[np.ndarray] = exe.run(feed=feed, fetch_list=list(fetch))
    return found


def types() -> list[str]:
    return [op.type for op in fluid.default_main_program().global_block().ops]


SIGNATURES = {
    "simple_img_conv_pool": "input num_filters filter_size pool_size pool_stride pool_padding=0 pool_type='max' "
    "global_pooling=False conv_stride=1 conv_padding=0 conv_dilation=1 conv_groups=1 param_attr=None bias_attr=None "
    "act=None use_cudnn=True",
    "img_conv_group": "input conv_num_filter pool_size conv_padding=1 conv_filter_size=3 conv_act=None param_attr=None "
    "conv_with_batchnorm=False conv_batchnorm_drop_rate=0.0 pool_stride=1 pool_type='max' use_cudnn=True",
    "sequence_conv_pool": "input num_filters filter_size param_attr=None act='sigmoid' pool_type='max' bias_attr=None",
    "glu": "input dim=-1",
    "scaled_dot_product_attention": "queries keys values num_heads=1 dropout_rate=0.0",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str) -> None:
    parameters = inspect.signature(getattr(nets, name)).parameters.values()
    shown = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters]
    assert " ".join(shown) == SIGNATURES[name]


def test_sequence_conv_pool_has_a_row_for_each_sequence() -> None:
    x, lengths = RNG.normal(size=(5, 3)).astype("float32"), [4, 1]
    attr = fluid.ParamAttr(name="w", initializer=fluid.initializer.Normal(seed=3))
    out = nets.sequence_conv_pool(layers.data("x", [3], lod_level=1), 2, 3, attr, pool_type="sum", bias_attr=False)
    found, w = run({"x": fluid.create_lod_tensor(x, [lengths], "cpu")}, out, "w")
    expected = []
    for rows in np.split(x.astype("float64"), [4]):
        padded = np.pad(rows, ((1, 1), (0, 0)))
        windows = np.stack([padded[step : step + 3].reshape(-1) for step in range(len(rows))])
        expected.append((1 / (1 + np.exp(-(windows @ w)))).sum(axis=0))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("dim", [-1, 1])
def test_glu(dim: int) -> None:
    x = RNG.normal(size=(3, 4, 6)).astype("float32")
    (found,) = run({"x": x}, nets.glu(layers.data("x", [4, 6]), dim))
    a, b = np.split(x.astype("float64"), 2, dim)
    np.testing.assert_allclose(found, a / (1 + np.exp(-b)), rtol=1e-5)


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(k.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("heads", [1, 2])
def test_attention(heads: int) -> None:
    q, k, v = (RNG.normal(size=dims).astype("float32") for dims in ((2, 3, 4), (2, 5, 4), (2, 5, 6)))
    given = [layers.data(name, list(array.shape[1:])) for name, array in zip("qkv", (q, k, v), strict=True)]
    out = nets.scaled_dot_product_attention(*given, num_heads=heads)
    (found,) = run({"q": q, "k": k, "v": v}, out)
    if heads == 1:
        want = attention(*(array.astype("float64") for array in (q, k, v)))
    else:
        scope, made = fluid.global_scope(), []
        for i, array in enumerate((q, k, v)):
            weight = np.array(scope.find_var(f"fc_{i}.w_0").get_tensor(), "float64")
            parts = (array @ weight).reshape(2, array.shape[1], heads, -1)
            made.append(np.swapaxes(parts, 1, 2))
        want = np.swapaxes(attention(*made), 1, 2).reshape(2, 3, 6)
    assert found.shape == (2, 3, 6)
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


def test_attention_may_drop_weights() -> None:
    q = layers.data("q", [3, 4])
    out = nets.scaled_dot_product_attention(q, q, q, dropout_rate=0.5)
    assert "dropout" in types() and out.shape == (-1, 3, 4)


@pytest.mark.parametrize(
    ("dims", "heads", "word"),
    [
        (([4], [4], [4]), 1, "'queries'"),
        (([3, 4], [3, 5], [3, 4]), 1, "'keys'"),
        (([3, 4], [5, 4], [3, 4]), 1, "'values'"),
        (([3, 4], [3, 4], [3, 4]), 3, "'num_heads'"),
    ],
)
def test_what_attention_refuses(dims: Any, heads: int, word: str) -> None:
    given = [layers.data(name, shape) for name, shape in zip("qkv", dims, strict=True)]
    with pytest.raises(ProgramError, match=word):
        nets.scaled_dot_product_attention(*given, num_heads=heads)


# Images ------------------------------------------------------------------------------------------------------------


def convolved(x: np.ndarray, weight: np.ndarray, padding: int) -> np.ndarray:
    x = np.pad(x, ((0, 0), (0, 0), (padding,) * 2, (padding,) * 2))
    size = weight.shape[-1]
    windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), (2, 3))
    return np.einsum("ncijhw,fchw->nfij", windows, weight)


def pooled(x: np.ndarray, size: int, stride: int) -> np.ndarray:
    return np.lib.stride_tricks.sliding_window_view(x, (size, size), (2, 3))[:, :, ::stride, ::stride].max((-1, -2))


def value(name: str) -> np.ndarray:
    return np.array(fluid.global_scope().find_var(name).get_tensor(), "float64")


def test_simple_img_conv_pool() -> None:
    x = RNG.normal(size=(2, 3, 8, 8)).astype("float32")
    out = nets.simple_img_conv_pool(layers.data("x", [3, 8, 8]), 4, 3, 2, 2, act="relu", conv_padding=1)
    (found,) = run({"x": x}, out)
    bias = value("conv2d_0.b_0").reshape(1, -1, 1, 1)
    want = pooled(np.maximum(convolved(x, value("conv2d_0.w_0"), 1) + bias, 0), 2, 2)
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


def test_img_conv_group() -> None:
    x = RNG.normal(size=(2, 3, 8, 8)).astype("float32")
    out = nets.img_conv_group(layers.data("x", [3, 8, 8]), [4, 5], 2, [1, 0], conv_act="relu", pool_stride=2)
    (found,) = run({"x": x}, out)
    want = x.astype("float64")
    for i, padding in enumerate((1, 0)):
        bias = value(f"conv2d_{i}.b_0").reshape(1, -1, 1, 1)
        want = np.maximum(convolved(want, value(f"conv2d_{i}.w_0"), padding) + bias, 0)
    np.testing.assert_allclose(found, pooled(want, 2, 2), rtol=1e-4, atol=1e-5)


def test_img_conv_group_with_normalisation_and_dropout() -> None:
    x = layers.data("x", [3, 8, 8])
    nets.img_conv_group(
        x, [4, 4], 2, conv_act="relu", conv_with_batchnorm=[True, False], conv_batchnorm_drop_rate=[0.3, 0.0]
    )
    kinds = [type for type in types() if type in ("conv2d", "batch_norm", "relu", "dropout", "pool2d")]
    assert kinds == ["conv2d", "batch_norm", "relu", "dropout", "conv2d", "relu", "pool2d"]
    for bad in ({"conv_padding": [1]}, {"param_attr": [None] * 3}):
        with pytest.raises(ProgramError, match=next(iter(bad))):
            nets.img_conv_group(x, [4, 4], 2, **bad)
    with pytest.raises(ProgramError, match="conv_num_filter"):
        nets.img_conv_group(x, 4, 2)
