"""The workloads as programs of fluidlite, run by an executor or as a computation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import fluidlite as fluid
from benchmarks.peers.workloads import EPSILON, MOMENTUM, RATE, WORKLOADS, Numbers, Sizes, blocks, numbers
from fluidlite import layers
from fluidlite.platform.context_pool import get_context
from fluidlite.transformers import make_transformer

VERSION = fluid.__version__


def variants(name: str) -> list[str]:
    """How a workload is run.

    "": an executor is fed arrays, and its result is fetched; "state": all lies on the place, and the result stays
    there; "computation": a transformer's; "no passes": nothing is fused.
    """
    more = {"a": ["state", "computation"], "b": ["state", "computation"], "c": ["state"]}
    return ["", *more.get(WORKLOADS[name].letter, []), *(["no passes"] if name == "chain" else [])]


def make(name: str, sizes: Sizes, variant: str, place: str) -> Callable[[], Any]:
    """Return a call that runs the workload once, and returns its result."""
    weights, data = numbers(name, sizes)
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        given = _inputs(name, data, variant == "state")
        found = _program(name, sizes, *given)
        if variant == "state":
            kept = layers.create_global_var(found.shape, 0.0, "float32", persistable=True, name="result")
            layers.assign(found, kept)
        if WORKLOADS[name].trains:
            fluid.optimizer.Momentum(RATE, MOMENTUM).minimize(found)
    feed = {one.name: data[one.name] for one in given}
    if variant == "computation":
        function = make_transformer(place).computation(found, *given)
        arrays = list(feed.values())
        return lambda: function(*arrays)
    scope = fluid.Scope()
    fluid.Executor(place).run(startup, scope=scope)
    for source in (weights, data) if variant == "state" else (weights,):
        for one in source:
            variable = scope.find_var(one)
            if variable is not None:
                variable.get_tensor().set(source[one], fluid.Place.parse(place))
    executor = fluid.Executor(place, mode="compiled", passes=() if variant == "no passes" else None)
    if variant != "state":
        return lambda: executor.run(main, feed=feed, fetch_list=[found], scope=scope)[0]

    context, result = get_context(fluid.Place.parse(place)), scope.var("result").get_tensor()

    def call() -> Any:
        executor.run(main, scope=scope)
        context.wait()
        return result

    return call


def _inputs(name: str, data: Numbers, state: bool) -> list[Any]:
    """Declare what the workload reads, with all its dims: arguments of a run, or state."""
    used: dict[str, Sequence[str]] = {
        "a": "xy", "b": "xwb", "c": "ab" if name == "gemm" else "abc", "d": ("x", "label"), "e": ("x", "label"),
        "f": "x", "g": "x" if name == "encoder" else "xy", "h": "xy",
    }  # fmt: skip
    found = []
    for one in used[WORKLOADS[name].letter]:
        dims, kind, _ = data.made[one]
        if state:
            found.append(layers.create_global_var(list(dims), 0.0, "float32", persistable=True, name=one))
        else:
            dtype = "int64" if kind == "classes" else "float32"
            found.append(layers.data(one, list(dims), dtype=dtype, append_batch_size=False))
    return found


def _program(name: str, sizes: Sizes, x: Any, *more: Any) -> Any:
    """Return the result, or the loss."""
    if name in ("add", "chain"):
        (total,) = more
        for _ in range(sizes["ops"]):
            total = layers.elementwise_add(total, x)
        return total
    if name.startswith("gelu"):
        return _gelu(x * more[0] + more[1], name == "gelu_tanh")
    if name.startswith("gemm"):
        product = layers.matmul(x, more[0])
        return layers.relu(layers.elementwise_add(product, more[1])) if name == "gemm_bias_relu" else product
    if name in ("mlp", "lenet"):
        logits = _mlp(x, sizes["widths"][1:]) if name == "mlp" else _lenet(x, sizes)
        return layers.mean(layers.softmax_with_cross_entropy(logits, *more))
    if name.startswith("resnet"):
        return _resnet(x, sizes)
    if name == "encoder":
        return _encoder(x, sizes)
    out = _encoder(x, sizes) if name == "encoder_train" else _mlp(x, [sizes["width"]] * sizes["layers"], last="relu")
    return layers.mean(layers.square_error_cost(out, *more))


def _gelu(t: Any, tanh: bool) -> Any:
    if tanh:
        return t * 0.5 * (layers.tanh((t + t * t * t * 0.044715) * 0.7978845608028654) + 1.0)
    return layers.gelu(t)


def _fc(x: Any, name: str, size: int, act: str | None = None, dims: int = 1) -> Any:
    return layers.fc(x, size, num_flatten_dims=dims, param_attr=f"{name}.w", bias_attr=f"{name}.b", act=act)


def _mlp(x: Any, widths: Sequence[int], last: str | None = None) -> Any:
    for i, size in enumerate(widths):
        x = _fc(x, f"fc{i}", size, "relu" if i < len(widths) - 1 else last)
    return x


def _lenet(x: Any, sizes: Sizes) -> Any:
    for i, size in enumerate(sizes["channels"]):
        x = layers.conv2d(x, size, 5, param_attr=f"conv{i}.w", bias_attr=f"conv{i}.b", act="relu")
        x = layers.pool2d(x, 2, "max", 2)
    return _fc(_fc(x, "fc0", sizes["hidden"], "relu"), "fc1", 10)


def _conv_bn(x: Any, name: str, size: int, side: int, stride: int, act: str | None = None) -> Any:
    x = layers.conv2d(x, size, side, stride, side // 2, param_attr=f"{name}.w", bias_attr=False)
    return layers.batch_norm(
        x, act, is_test=True, epsilon=EPSILON, param_attr=f"{name}.scale", bias_attr=f"{name}.shift",
        moving_mean_name=f"{name}.mean", moving_variance_name=f"{name}.variance",
    )  # fmt: skip


def _resnet(x: Any, sizes: Sizes) -> Any:
    x = layers.pool2d(_conv_bn(x, "stem", sizes["width"], 7, 2, "relu"), 3, "max", 2, 1)
    for block in blocks(sizes["width"]):
        past = _conv_bn(x, f"{block.name}c", block.size, 1, block.stride) if block.bends else x
        x = _conv_bn(x, f"{block.name}a", block.size, 3, block.stride, "relu")
        x = layers.elementwise_add(past, _conv_bn(x, f"{block.name}b", block.size, 3, 1), act="relu")
    return _fc(layers.pool2d(x, pool_type="avg", global_pooling=True), "fc", sizes["classes"])


def _encoder(x: Any, sizes: Sizes) -> Any:
    width, heads = sizes["width"], sizes["heads"]
    part = width // heads
    for i in range(sizes["layers"]):
        q, k, v = (
            layers.transpose(layers.reshape(one, [0, 0, heads, part]), [0, 2, 1, 3])
            for one in layers.split(_fc(x, f"{i}.qkv", 3 * width, dims=2), 3, dim=-1)
        )
        seen = layers.softmax(layers.matmul(q, k, transpose_y=True, alpha=part**-0.5))
        mixed = layers.reshape(layers.transpose(layers.matmul(seen, v), [0, 2, 1, 3]), [0, 0, width])
        x = _norm(x + _fc(mixed, f"{i}.out", width, dims=2), f"{i}.norm0")
        wide = _fc(x, f"{i}.up", 4 * width, "gelu", dims=2)
        x = _norm(x + _fc(wide, f"{i}.down", width, dims=2), f"{i}.norm1")
    return x


def _norm(x: Any, name: str) -> Any:
    return layers.layer_norm(
        x, begin_norm_axis=2, epsilon=EPSILON, param_attr=f"{name}.scale", bias_attr=f"{name}.shift"
    )
