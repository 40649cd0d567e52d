"""The workloads in JAX, each one jitted function; images have their channels last."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.peers.workloads import EPSILON, MOMENTUM, RATE, WORKLOADS, Numbers, Sizes, blocks, numbers

VERSION = jax.__version__

Arrays = dict[str, Any]


def variants(name: str) -> list[str]:
    """One of each."""
    return ["jit"]


def make(name: str, sizes: Sizes, variant: str, threads: int) -> Callable[[], Any]:
    """Return a call that runs the workload once, and returns its result."""
    weights, data = numbers(name, sizes)
    w = {key: _arranged(name, key, weights, sizes) for key in weights}
    d = {key: jnp.asarray(np.moveaxis(data[key], 1, -1) if data[key].ndim == 4 else data[key]) for key in data}
    if WORKLOADS[name].trains:
        return _step(name, sizes, w, d)
    function = jax.jit(lambda w, d: _result(name, sizes, w, d))
    return lambda: function(w, d).block_until_ready()


def _arranged(name: str, key: str, weights: Numbers, sizes: Sizes) -> Any:
    """Filters are [height, width, in, out]; the rows behind LeNet's images lie as these do."""
    array = weights[key]
    if array.ndim == 4:
        array = array.transpose(2, 3, 1, 0)
    if name == "lenet" and key == "fc0.w":
        array = array.reshape(sizes["channels"][-1], 16, -1).transpose(1, 0, 2).reshape(array.shape)
    return jnp.array(array)


def _step(name: str, sizes: Sizes, w: Arrays, d: Arrays) -> Callable[[], float]:
    @partial(jax.jit, donate_argnums=(0, 1))
    def step(w: Arrays, moved: Arrays, d: Arrays) -> tuple[Arrays, Arrays, Any]:
        loss, gradients = jax.value_and_grad(lambda w: _loss(name, sizes, w, d))(w)
        moved = jax.tree.map(lambda m, g: MOMENTUM * m + g, moved, gradients)
        return jax.tree.map(lambda p, m: p - RATE * m, w, moved), moved, loss

    state = [w, jax.tree.map(jnp.zeros_like, w)]

    def call() -> float:
        state[0], state[1], loss = step(state[0], state[1], d)
        return float(loss)

    return call


def _result(name: str, sizes: Sizes, w: Arrays, d: Arrays) -> Any:
    if name in ("add", "chain"):
        total = d["y"]
        for _ in range(sizes["ops"]):
            total = total + d["x"]
        return total
    if name.startswith("gelu"):
        return jax.nn.gelu(d["x"] * d["w"] + d["b"], approximate=name == "gelu_tanh")
    if name == "gemm":
        return d["a"] @ d["b"]
    if name == "gemm_bias_relu":
        return jax.nn.relu(d["a"] @ d["b"] + d["c"])
    return _resnet(w, d["x"], sizes) if name.startswith("resnet") else _encoder(w, d["x"], sizes)


def _loss(name: str, sizes: Sizes, w: Arrays, d: Arrays) -> Any:
    if name in ("mlp", "lenet"):
        logits = _mlp(w, d["x"], len(sizes["widths"]) - 1, False) if name == "mlp" else _lenet(w, d["x"])
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), d["label"], 1))
    out = _encoder(w, d["x"], sizes) if name == "encoder_train" else _mlp(w, d["x"], sizes["layers"], True)
    return jnp.mean((out - d["y"]) ** 2)


def _fc(w: Arrays, name: str, x: Any) -> Any:
    return x @ w[f"{name}.w"] + w[f"{name}.b"]


def _mlp(w: Arrays, x: Any, count: int, last: bool) -> Any:
    for i in range(count):
        x = _fc(w, f"fc{i}", x)
        if last or i < count - 1:
            x = jax.nn.relu(x)
    return x


def _conv(x: Any, filters: Any, stride: int, padding: int) -> Any:
    around = ((padding, padding), (padding, padding))
    return lax.conv_general_dilated(x, filters, (stride, stride), around, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _max_pool(x: Any, side: int, padding: int) -> Any:
    around = ((0, 0), (padding, padding), (padding, padding), (0, 0))
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, side, side, 1), (1, 2, 2, 1), around)


def _lenet(w: Arrays, x: Any) -> Any:
    for name in ("conv0", "conv1"):
        x = _max_pool(jax.nn.relu(_conv(x, w[f"{name}.w"], 1, 0) + w[f"{name}.b"]), 2, 0)
    return _fc(w, "fc1", jax.nn.relu(_fc(w, "fc0", x.reshape(x.shape[0], -1))))


def _conv_bn(w: Arrays, name: str, x: Any, side: int, stride: int) -> Any:
    x = _conv(x, w[f"{name}.w"], stride, side // 2)
    scale = w[f"{name}.scale"] * lax.rsqrt(w[f"{name}.variance"] + EPSILON)
    return x * scale + (w[f"{name}.shift"] - w[f"{name}.mean"] * scale)


def _resnet(w: Arrays, x: Any, sizes: Sizes) -> Any:
    x = _max_pool(jax.nn.relu(_conv_bn(w, "stem", x, 7, 2)), 3, 1)
    for block in blocks(sizes["width"]):
        past = _conv_bn(w, f"{block.name}c", x, 1, block.stride) if block.bends else x
        x = jax.nn.relu(_conv_bn(w, f"{block.name}a", x, 3, block.stride))
        x = jax.nn.relu(past + _conv_bn(w, f"{block.name}b", x, 3, 1))
    return _fc(w, "fc", x.mean((1, 2)))


def _encoder(w: Arrays, x: Any, sizes: Sizes) -> Any:
    heads = sizes["heads"]
    batch, length, width = x.shape

    def norm(x: Any, name: str) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1, keepdims=True)
        return centred * lax.rsqrt(variance + EPSILON) * w[f"{name}.scale"] + w[f"{name}.shift"]

    for i in range(sizes["layers"]):
        parts = _fc(w, f"{i}.qkv", x).reshape(batch, length, 3, heads, width // heads)
        q, k, v = parts.transpose(2, 0, 3, 1, 4)
        seen = jax.nn.softmax(jnp.einsum("bhtd,bhsd->bhts", q, k) * (width // heads) ** -0.5)
        mixed = jnp.einsum("bhts,bhsd->bhtd", seen, v).transpose(0, 2, 1, 3).reshape(x.shape)
        x = norm(x + _fc(w, f"{i}.out", mixed), f"{i}.norm0")
        wide = jax.nn.gelu(_fc(w, f"{i}.up", x), approximate=False)
        x = norm(x + _fc(w, f"{i}.down", wide), f"{i}.norm1")
    return x
