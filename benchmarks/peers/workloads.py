"""The workloads: what each computes, at which sizes, and the numbers that all contenders share."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Sizes = dict[str, Any]

RATE, MOMENTUM = 0.01, 0.9
EPSILON = 1e-5
CLASSES = 10
STEPS = 3
"""Training steps whose losses are compared."""


@dataclass(frozen=True)
class Workload:
    """What is computed, and how it is measured."""

    letter: str
    title: str
    full: Sizes
    small: Sizes
    unit: str = "ms"
    calls: int = 1
    """Calls that are timed as one: a call may take less than the clock can tell."""
    trains: bool = False
    tolerance: float = 1e-4
    """Of results, to the largest of them: float32, sums in any order."""

    def sizes(self, small: bool) -> Sizes:
        """The sizes that are measured, or small ones to try it."""
        return self.small if small else self.full


MLP = {"batch": 128, "widths": (784, 512, 512, 10)}
ENCODER = {"batch": 8, "length": 128, "width": 256, "heads": 4, "layers": 4}
SMALL_ENCODER = {"batch": 2, "length": 3, "width": 4, "heads": 2, "layers": 2}
RESNET = {"pixels": 224, "width": 64, "classes": 1000}
SMALL_RESNET = {"pixels": 32, "width": 4, "classes": 7}
LENET = {"batch": 64, "channels": (20, 50), "hidden": 500}

WORKLOADS = {
    "add": Workload("a", "an addition of two [1]", {"n": 1, "ops": 1}, {"n": 3, "ops": 1}, "us", 200),
    "chain": Workload("a", "100 additions on [1], one after the other",
                      {"n": 1, "ops": 100}, {"n": 3, "ops": 5}, "us", 20),
    "gelu_tanh": Workload("b", "gelu(x*w+b), its tanh form, 16 M numbers", {"n": 1 << 24}, {"n": 5000}),
    "gelu_erf": Workload("b", "gelu(x*w+b), its erf form, 16 M numbers", {"n": 1 << 24}, {"n": 5000}),
    "gemm": Workload("c", "a product of two [1024, 1024]", {"n": 1024}, {"n": 33}),
    "gemm_bias_relu": Workload("c", "relu(a.b + c) of [1024, 1024]", {"n": 1024}, {"n": 33}),
    "mlp": Workload("d", "a training step, 784-512-512-10, batch 128", MLP,
                    {"batch": 4, "widths": (9, 8, 12, 10)}, trains=True),
    "lenet": Workload("e", "a training step of LeNet 20-50-500, batch 64", LENET,
                      {"batch": 2, "channels": (2, 3), "hidden": 4}, trains=True),
    "resnet_1": Workload("f", "ResNet-18, 224 x 224, batch 1, inference", {"batch": 1, **RESNET},
                         {"batch": 1, **SMALL_RESNET}, tolerance=1e-3),
    "resnet_8": Workload("f", "ResNet-18, 224 x 224, batch 8, inference", {"batch": 8, **RESNET},
                         {"batch": 2, **SMALL_RESNET}, tolerance=1e-3),
    "encoder": Workload("g", "encoder, 4 layers of 256, 8 x 128 tokens, inference", ENCODER, SMALL_ENCODER,
                        tolerance=1e-3),
    "encoder_train": Workload("g", "a training step of the encoder", ENCODER, SMALL_ENCODER, trains=True),
    "deep": Workload("h", "a training step of 20 layers of 2048, batch 256",
                     {"batch": 256, "width": 2048, "layers": 20}, {"batch": 3, "width": 6, "layers": 3},
                     trains=True),
}  # fmt: skip
"""All of them. SGD with momentum trains; the mean of squares is the encoder's loss and the deep network's, the cross
entropy of ten classes the others'."""


class Numbers(Mapping[str, Array]):
    """Arrays by name, each made when it is asked for: the same in every process, and held by none."""

    def __init__(self, made: Mapping[str, tuple[tuple[int, ...], str, float]]) -> None:
        self.made = made

    def __getitem__(self, name: str) -> Array:
        dims, kind, scale = self.made[name]
        random = np.random.default_rng(zlib.crc32(name.encode()))
        if kind == "classes":
            return random.integers(0, CLASSES, dims)
        if kind == "positive":
            return random.uniform(0.5, 1.5, dims).astype(np.float32)
        array = random.standard_normal(dims, np.float32)
        return np.multiply(array, np.float32(scale), out=array)

    def __iter__(self) -> Iterator[str]:
        return iter(self.made)

    def __len__(self) -> int:
        return len(self.made)


def numbers(name: str, sizes: Sizes) -> tuple[Numbers, Numbers]:
    """Return the weights and the data of a workload."""
    makers = {"resnet_1": _resnet, "resnet_8": _resnet, "encoder_train": _encoder, "encoder": _encoder,
              "mlp": _mlp, "lenet": _lenet, "deep": _deep}  # fmt: skip
    weights, data = makers[name](sizes) if name in makers else ({}, _plain(name, sizes["n"]))
    return Numbers(weights), Numbers(data)


Made = dict[str, tuple[tuple[int, ...], str, float]]


def _plain(name: str, n: int) -> Made:
    if name.startswith("gemm"):
        return {"a": ((n, n), "normal", 1.0), "b": ((n, n), "normal", 1.0), "c": ((n,), "normal", 10.0)}
    return {key: ((n,), "normal", 1.0) for key in ("x", "y", "w", "b")}


def _dense(made: Made, name: str, given: int, size: int, gain: float = 2.0) -> None:
    made[f"{name}.w"] = (given, size), "normal", (gain / given) ** 0.5
    made[f"{name}.b"] = (size,), "normal", 0.1


def _conv(made: Made, name: str, given: int, size: int, side: int) -> None:
    made[f"{name}.w"] = (size, given, side, side), "normal", (2 / (given * side * side)) ** 0.5


def _mlp(sizes: Sizes) -> tuple[Made, Made]:
    widths = sizes["widths"]
    made: Made = {}
    for i, (given, size) in enumerate(pairwise(widths)):
        _dense(made, f"fc{i}", given, size)
    batch = sizes["batch"]
    return made, {"x": ((batch, widths[0]), "normal", 1.0), "label": ((batch, 1), "classes", 1.0)}


def _deep(sizes: Sizes) -> tuple[Made, Made]:
    made: Made = {}
    for i in range(sizes["layers"]):
        _dense(made, f"fc{i}", sizes["width"], sizes["width"])
    return made, {key: ((sizes["batch"], sizes["width"]), "normal", 1.0) for key in ("x", "y")}


def _lenet(sizes: Sizes) -> tuple[Made, Made]:
    made: Made = {}
    given = 1
    for i, size in enumerate(sizes["channels"]):
        _conv(made, f"conv{i}", given, size, 5)
        made[f"conv{i}.b"] = (size,), "normal", 0.1
        given = size
    _dense(made, "fc0", given * 16, sizes["hidden"])
    _dense(made, "fc1", sizes["hidden"], CLASSES)
    return made, {"x": ((sizes["batch"], 1, 28, 28), "normal", 1.0), "label": ((sizes["batch"], 1), "classes", 1.0)}


@dataclass(frozen=True)
class Block:
    """A block of ResNet: two convolutions, and one for what goes past them, if its dims change."""

    name: str
    given: int
    size: int
    stride: int

    @property
    def bends(self) -> bool:
        """Whether the way past it has a convolution."""
        return self.stride != 1 or self.given != self.size


def blocks(width: int) -> list[Block]:
    """ResNet-18's eight."""
    found: list[Block] = []
    given = width
    for stage in range(4):
        size = width << stage
        for part in range(2):
            found.append(Block(f"{stage}{part}", given, size, 2 if stage and not part else 1))
            given = size
    return found


def _resnet(sizes: Sizes) -> tuple[Made, Made]:
    made: Made = {}

    def conv(name: str, given: int, size: int, side: int) -> None:
        _conv(made, name, given, size, side)
        for part, kind in {"scale": "positive", "shift": "normal", "mean": "normal", "variance": "positive"}.items():
            made[f"{name}.{part}"] = (size,), kind, 0.1

    width = sizes["width"]
    conv("stem", 3, width, 7)
    for block in blocks(width):
        conv(f"{block.name}a", block.given, block.size, 3)
        conv(f"{block.name}b", block.size, block.size, 3)
        if block.bends:
            conv(f"{block.name}c", block.given, block.size, 1)
    _dense(made, "fc", width * 8, sizes["classes"])
    return made, {"x": ((sizes["batch"], 3, sizes["pixels"], sizes["pixels"]), "normal", 1.0)}


def _encoder(sizes: Sizes) -> tuple[Made, Made]:
    made: Made = {}
    width = sizes["width"]
    for i in range(sizes["layers"]):
        _dense(made, f"{i}.qkv", width, 3 * width, 1.0)
        _dense(made, f"{i}.out", width, width, 1.0)
        _dense(made, f"{i}.up", width, 4 * width, 1.0)
        _dense(made, f"{i}.down", 4 * width, width, 1.0)
        for norm in ("norm0", "norm1"):
            made[f"{i}.{norm}.scale"] = (width,), "positive", 1.0
            made[f"{i}.{norm}.shift"] = (width,), "normal", 0.1
    dims = sizes["batch"], sizes["length"], width
    return made, {key: (dims, "normal", 1.0) for key in ("x", "y")}


def state_bytes(sizes: Sizes) -> int:
    """Bytes of the deep network's parameters and their momentum."""
    weights, _ = _deep(sizes)
    return 2 * 4 * sum(prod(dims) for dims, _, _ in weights.values())
