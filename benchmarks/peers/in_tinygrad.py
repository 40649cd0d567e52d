"""The workloads in tinygrad, each captured by its TinyJit; the process's DEV names the device."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from tinygrad import Device, Tensor, TinyJit, nn
from tinygrad.helpers import Context

from benchmarks.peers.workloads import EPSILON, MOMENTUM, RATE, WORKLOADS, Sizes, blocks, numbers

VERSION = version("tinygrad")

Tensors = dict[str, Any]


def variants(name: str) -> list[str]:
    """One of each."""
    return [""]


def make(name: str, sizes: Sizes, variant: str, threads: int) -> Callable[[], Any]:
    """Return a call that runs the workload once, and returns its result; it takes its threads from the environment."""
    weights, data = numbers(name, sizes)
    w = {key: Tensor(weights[key]).contiguous().realize() for key in weights}
    d = {key: Tensor(data[key].astype("int32") if key == "label" else data[key]).realize() for key in data}
    device = Device[Device.DEFAULT]
    if WORKLOADS[name].trains:
        return _step(name, sizes, w, d)
    run = TinyJit(lambda: _result(name, sizes, w, d).realize())

    def call() -> Any:
        found = run()
        device.synchronize()
        return found

    return call


def _step(name: str, sizes: Sizes, w: Tensors, d: Tensors) -> Callable[[], float]:
    optimizer = nn.optim.SGD(list(w.values()), lr=RATE, momentum=MOMENTUM)

    @TinyJit  # type: ignore[untyped-decorator]
    def step() -> Any:
        optimizer.zero_grad()
        loss = _loss(name, sizes, w, d).backward()
        return loss.realize(*optimizer.schedule_step())

    def call() -> float:
        with Context(TRAINING=1):
            return float(step().item())

    return call


def _result(name: str, sizes: Sizes, w: Tensors, d: Tensors) -> Any:
    if name in ("add", "chain"):
        total = d["y"]
        for _ in range(sizes["ops"]):
            total = total + d["x"]
        return total
    if name.startswith("gelu"):
        t = d["x"] * d["w"] + d["b"]
        return t.gelu() if name == "gelu_tanh" else _gelu(t)
    if name == "gemm":
        return d["a"] @ d["b"]
    if name == "gemm_bias_relu":
        return (d["a"] @ d["b"] + d["c"]).relu()
    return _resnet(w, d["x"], sizes) if name.startswith("resnet") else _encoder(w, d["x"], sizes)


def _gelu(x: Any) -> Any:
    """The erf form."""
    return x * 0.5 * ((x * 0.5**0.5).erf() + 1)


def _loss(name: str, sizes: Sizes, w: Tensors, d: Tensors) -> Any:
    if name in ("mlp", "lenet"):
        logits = _mlp(w, d["x"], len(sizes["widths"]) - 1, False) if name == "mlp" else _lenet(w, d["x"])
        return logits.sparse_categorical_crossentropy(d["label"].reshape(-1))
    out = _encoder(w, d["x"], sizes) if name == "encoder_train" else _mlp(w, d["x"], sizes["layers"], True)
    return ((out - d["y"]) ** 2).mean()


def _fc(w: Tensors, name: str, x: Any) -> Any:
    return x @ w[f"{name}.w"] + w[f"{name}.b"]


def _mlp(w: Tensors, x: Any, count: int, last: bool) -> Any:
    for i in range(count):
        x = _fc(w, f"fc{i}", x)
        if last or i < count - 1:
            x = x.relu()
    return x


def _lenet(w: Tensors, x: Any) -> Any:
    for name in ("conv0", "conv1"):
        x = x.conv2d(w[f"{name}.w"], w[f"{name}.b"]).relu().max_pool2d()
    return _fc(w, "fc1", _fc(w, "fc0", x.flatten(1)).relu())


def _conv_bn(w: Tensors, name: str, x: Any, side: int, stride: int) -> Any:
    x = x.conv2d(w[f"{name}.w"], stride=stride, padding=side // 2)
    inverse = (w[f"{name}.variance"] + EPSILON).rsqrt()
    return x.batchnorm(w[f"{name}.scale"], w[f"{name}.shift"], w[f"{name}.mean"], inverse)


def _resnet(w: Tensors, x: Any, sizes: Sizes) -> Any:
    x = _conv_bn(w, "stem", x, 7, 2).relu().max_pool2d((3, 3), 2, padding=1)
    for block in blocks(sizes["width"]):
        past = _conv_bn(w, f"{block.name}c", x, 1, block.stride) if block.bends else x
        x = _conv_bn(w, f"{block.name}a", x, 3, block.stride).relu()
        x = (past + _conv_bn(w, f"{block.name}b", x, 3, 1)).relu()
    return _fc(w, "fc", x.mean((2, 3)))


def _encoder(w: Tensors, x: Any, sizes: Sizes) -> Any:
    heads = sizes["heads"]
    batch, length, width = x.shape

    def norm(x: Any, name: str) -> Any:
        return x.layernorm(eps=EPSILON) * w[f"{name}.scale"] + w[f"{name}.shift"]

    for i in range(sizes["layers"]):
        parts = _fc(w, f"{i}.qkv", x).reshape(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        mixed = parts[0].scaled_dot_product_attention(parts[1], parts[2])
        x = norm(x + _fc(w, f"{i}.out", mixed.transpose(1, 2).reshape(batch, length, width)), f"{i}.norm0")
        x = norm(x + _fc(w, f"{i}.down", _gelu(_fc(w, f"{i}.up", x))), f"{i}.norm1")
    return x
