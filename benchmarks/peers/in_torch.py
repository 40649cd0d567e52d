"""The workloads in PyTorch: eager, and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from benchmarks.peers.workloads import EPSILON, MOMENTUM, RATE, WORKLOADS, Sizes, blocks, numbers

VERSION = torch.__version__

Tensors = dict[str, Any]


def variants(name: str) -> list[str]:
    """Eager always; "compile" is slow to begin, and is measured where overhead and fusion are."""
    if name in ("add", "chain", "gelu_tanh", "gelu_erf"):
        return ["eager", "compile"]
    return ["eager", "channels last"] if name.startswith("resnet") else ["eager"]


def make(name: str, sizes: Sizes, variant: str, threads: int) -> Callable[[], Any]:
    """Return a call that runs the workload once, and returns its result."""
    torch.set_num_threads(threads)
    weights, data = numbers(name, sizes)
    w = {key: _weight(key, weights[key]) for key in weights}
    d = {key: torch.from_numpy(data[key]) for key in data}
    if "label" in d:
        d["label"] = d["label"].reshape(-1)
    if variant == "channels last":
        d["x"] = d["x"].to(memory_format=torch.channels_last)
        w = {k: v.to(memory_format=torch.channels_last) if v.ndim == 4 else v for k, v in w.items()}
    if WORKLOADS[name].trains:
        return _step(name, sizes, w, d)
    function: Any = lambda **given: _result(name, sizes, w, given)  # noqa: E731
    if variant == "compile":
        function = torch.compile(function)
    used = {"a": "xy", "b": "xwb", "c": "abc"}.get(WORKLOADS[name].letter, "x")
    given = {key: d[key] for key in used}

    def call() -> Any:
        with torch.no_grad():
            return function(**given)

    return call


def _weight(name: str, array: Any) -> Any:
    """A linear layer's weight is [out, in] here."""
    found = torch.from_numpy(array)
    return found.T.contiguous() if name.endswith(".w") and array.ndim == 2 else found


def _step(name: str, sizes: Sizes, w: Tensors, d: Tensors) -> Callable[[], float]:
    for weight in w.values():
        weight.requires_grad_()
    optimizer = torch.optim.SGD(w.values(), lr=RATE, momentum=MOMENTUM)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = _loss(name, sizes, w, d)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def _result(name: str, sizes: Sizes, w: Tensors, d: Tensors) -> Any:
    if name in ("add", "chain"):
        total = d["y"]
        for _ in range(sizes["ops"]):
            total = total + d["x"]
        return total
    if name.startswith("gelu"):
        return functional.gelu(d["x"] * d["w"] + d["b"], approximate="tanh" if name == "gelu_tanh" else "none")
    if name == "gemm":
        return d["a"] @ d["b"]
    if name == "gemm_bias_relu":
        return functional.relu(d["a"] @ d["b"] + d["c"])
    return _resnet(w, d["x"], sizes) if name.startswith("resnet") else _encoder(w, d["x"], sizes)


def _loss(name: str, sizes: Sizes, w: Tensors, d: Tensors) -> Any:
    if name == "mlp":
        return functional.cross_entropy(_mlp(w, d["x"], len(sizes["widths"]) - 1, False), d["label"])
    if name == "lenet":
        return functional.cross_entropy(_lenet(w, d["x"]), d["label"])
    out = _encoder(w, d["x"], sizes) if name == "encoder_train" else _mlp(w, d["x"], sizes["layers"], True)
    return functional.mse_loss(out, d["y"])


def _fc(w: Tensors, name: str, x: Any) -> Any:
    return functional.linear(x, w[f"{name}.w"], w[f"{name}.b"])


def _mlp(w: Tensors, x: Any, count: int, last: bool) -> Any:
    for i in range(count):
        x = _fc(w, f"fc{i}", x)
        if last or i < count - 1:
            x = functional.relu(x)
    return x


def _lenet(w: Tensors, x: Any) -> Any:
    for name in ("conv0", "conv1"):
        x = functional.max_pool2d(functional.relu(functional.conv2d(x, w[f"{name}.w"], w[f"{name}.b"])), 2)
    return _fc(w, "fc1", functional.relu(_fc(w, "fc0", x.flatten(1))))


def _conv_bn(w: Tensors, name: str, x: Any, side: int, stride: int) -> Any:
    x = functional.conv2d(x, w[f"{name}.w"], None, stride, side // 2)
    parts = (w[f"{name}.{part}"] for part in ("mean", "variance", "scale", "shift"))
    return functional.batch_norm(x, *parts, eps=EPSILON)


def _resnet(w: Tensors, x: Any, sizes: Sizes) -> Any:
    x = functional.max_pool2d(functional.relu(_conv_bn(w, "stem", x, 7, 2)), 3, 2, 1)
    for block in blocks(sizes["width"]):
        past = _conv_bn(w, f"{block.name}c", x, 1, block.stride) if block.bends else x
        x = functional.relu(_conv_bn(w, f"{block.name}a", x, 3, block.stride))
        x = functional.relu(past + _conv_bn(w, f"{block.name}b", x, 3, 1))
    return _fc(w, "fc", x.mean((2, 3)))


def _encoder(w: Tensors, x: Any, sizes: Sizes) -> Any:
    width, heads = sizes["width"], sizes["heads"]

    def norm(x: Any, name: str) -> Any:
        return functional.layer_norm(x, (width,), w[f"{name}.scale"], w[f"{name}.shift"], EPSILON)

    for i in range(sizes["layers"]):
        parts = _fc(w, f"{i}.qkv", x).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts.unbind(0)).transpose(1, 2).flatten(2)
        x = norm(x + _fc(w, f"{i}.out", mixed), f"{i}.norm0")
        x = norm(x + _fc(w, f"{i}.down", functional.gelu(_fc(w, f"{i}.up", x))), f"{i}.norm1")
    return x
