"""The peers' workloads compute what they say: each at a small size, against NumPy in float64."""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)

from benchmarks.common import Times  # noqa: E402
from benchmarks.peers import in_fluidlite  # noqa: E402
from benchmarks.peers.process import Server  # noqa: E402
from benchmarks.peers.session import Session, tables  # noqa: E402
from benchmarks.peers.workloads import (  # noqa: E402
    EPSILON,
    MOMENTUM,
    RATE,
    STEPS,
    WORKLOADS,
    blocks,
    numbers,
    state_bytes,
)

Arrays = dict[str, Any]
WAYS = [(name, variant) for name in WORKLOADS for variant in in_fluidlite.variants(name)]
TRAINING = [name for name, work in WORKLOADS.items() if work.trains]


def erf_gelu(x: Any) -> Any:
    """gelu, its erf form."""
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / 2**0.5))


def relu(x: Any) -> Any:
    """The positive part."""
    return np.maximum(x, 0)


def fc(w: Arrays, name: str, x: Any) -> Any:
    """A linear layer."""
    return x @ w[f"{name}.w"] + w[f"{name}.b"]


def windows(x: Any, side: int, stride: int, padding: int, fill: float = 0.0) -> Any:
    """Windows of images, [images, channels, height, width, side, side]."""
    around = ((0, 0), (0, 0), (padding, padding), (padding, padding))
    padded = np.pad(x, around, constant_values=fill)
    return np.lib.stride_tricks.sliding_window_view(padded, (side, side), (2, 3))[:, :, ::stride, ::stride]


def conv(x: Any, filters: Any, stride: int, padding: int) -> Any:
    """A convolution."""
    return np.einsum("ncijhw,fchw->nfij", windows(x, filters.shape[-1], stride, padding), filters, optimize=True)


def mlp(w: Arrays, x: Any, count: int, last: bool) -> Any:
    """Linear layers with relu between them, and behind the last one if it is asked for."""
    for i in range(count):
        x = fc(w, f"fc{i}", x)
        x = relu(x) if last or i < count - 1 else x
    return x


def lenet(w: Arrays, x: Any) -> Any:
    """Two convolutions and two linear layers."""
    for name in ("conv0", "conv1"):
        x = relu(conv(x, w[f"{name}.w"], 1, 0) + w[f"{name}.b"][:, None, None])
        x = windows(x, 2, 2, 0).max((4, 5))
    return fc(w, "fc1", relu(fc(w, "fc0", x.reshape(len(x), -1))))


def resnet(w: Arrays, x: Any, width: int) -> Any:
    """ResNet-18."""

    def normalised(name: str, x: Any, stride: int) -> Any:
        scale, shift, mean, variance = (
            w[f"{name}.{part}"][:, None, None] for part in ("scale", "shift", "mean", "variance")
        )
        filters = w[f"{name}.w"]
        found = conv(x, filters, stride, filters.shape[-1] // 2)
        return (found - mean) / np.sqrt(variance + EPSILON) * scale + shift

    x = windows(relu(normalised("stem", x, 2)), 3, 2, 1, -np.inf).max((4, 5))
    for block in blocks(width):
        past = normalised(f"{block.name}c", x, block.stride) if block.bends else x
        x = normalised(f"{block.name}b", relu(normalised(f"{block.name}a", x, block.stride)), 1)
        x = relu(past + x)
    return fc(w, "fc", x.mean((2, 3)))


def encoder(w: Arrays, x: Any, count: int, heads: int) -> Any:
    """Layers of attention and of two linear ones."""
    batch, length = x.shape[:2]

    def norm(x: Any, name: str) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred**2).mean(-1, keepdims=True)
        return centred / np.sqrt(variance + EPSILON) * w[f"{name}.scale"] + w[f"{name}.shift"]

    for i in range(count):
        parts = fc(w, f"{i}.qkv", x).reshape(batch, length, 3, heads, -1)
        q, k, v = (parts[:, :, j].transpose(0, 2, 1, 3) for j in range(3))
        seen = np.exp(q @ k.transpose(0, 1, 3, 2) / q.shape[-1] ** 0.5)
        mixed = (seen / seen.sum(-1, keepdims=True)) @ v
        x = norm(x + fc(w, f"{i}.out", mixed.transpose(0, 2, 1, 3).reshape(x.shape)), f"{i}.norm0")
        x = norm(x + fc(w, f"{i}.down", erf_gelu(fc(w, f"{i}.up", x))), f"{i}.norm1")
    return x


def cross_entropy(logits: Any, label: Any) -> Any:
    """The mean over rows."""
    logits = logits - logits.max(1, keepdims=True)
    return (np.log(np.exp(logits).sum(1)) - logits[np.arange(len(label)), label[:, 0]]).mean()


def gelu(x: Any, tanh: bool) -> Any:
    """One of the forms."""
    return 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))) if tanh else erf_gelu(x)


def reference(name: str, w: Arrays, d: Arrays) -> Any:
    """A workload's result, or its loss."""
    sizes = WORKLOADS[name].small
    found: dict[str, Callable[[], Any]] = {
        "add": lambda: d["x"] + d["y"],
        "chain": lambda: d["y"] + sizes["ops"] * d["x"],
        "gelu_tanh": lambda: gelu(d["x"] * d["w"] + d["b"], True),
        "gelu_erf": lambda: gelu(d["x"] * d["w"] + d["b"], False),
        "gemm": lambda: d["a"] @ d["b"],
        "gemm_bias_relu": lambda: relu(d["a"] @ d["b"] + d["c"]),
        "mlp": lambda: cross_entropy(mlp(w, d["x"], len(sizes["widths"]) - 1, False), d["label"]),
        "lenet": lambda: cross_entropy(lenet(w, d["x"]), d["label"]),
        "resnet_1": lambda: resnet(w, d["x"], sizes["width"]),
        "resnet_8": lambda: resnet(w, d["x"], sizes["width"]),
        "encoder": lambda: encoder(w, d["x"], sizes["layers"], sizes["heads"]),
        "encoder_train": lambda: ((encoder(w, d["x"], sizes["layers"], sizes["heads"]) - d["y"]) ** 2).mean(),
        "deep": lambda: ((mlp(w, d["x"], sizes["layers"], True) - d["y"]) ** 2).mean(),
    }
    return found[name]()


def arrays(name: str) -> tuple[Arrays, Arrays]:
    """Weights and data, in float64."""
    weights, data = numbers(name, WORKLOADS[name].small)
    d = {key: data[key] if key == "label" else data[key].astype(np.float64) for key in data}
    return {key: weights[key].astype(np.float64) for key in weights}, d


def trained(name: str) -> list[float]:
    """Losses of some steps of SGD with momentum; gradients are central differences."""
    w, d = arrays(name)
    moved = {key: np.zeros_like(array) for key, array in w.items()}
    losses = [float(reference(name, w, d))]
    for _ in range(STEPS - 1):
        for key, array in w.items():
            gradient = np.empty_like(array)
            flat = array.reshape(-1)
            for i in range(flat.size):
                kept, ends = flat[i], []
                for step in (1e-6, -1e-6):
                    flat[i] = kept + step
                    ends.append(reference(name, w, d))
                flat[i] = kept
                gradient.reshape(-1)[i] = (ends[0] - ends[1]) / 2e-6
            moved[key] = MOMENTUM * moved[key] + gradient
        for key in w:
            w[key] -= RATE * moved[key]
        losses.append(float(reference(name, w, d)))
    return losses


@pytest.mark.parametrize(("name", "variant"), [way for way in WAYS if way[0] not in TRAINING])
def test_results(name: str, variant: str) -> None:
    work = WORKLOADS[name]
    call = in_fluidlite.make(name, work.small, variant, "cpu")
    expected = reference(name, *arrays(name))
    for _ in range(2):  # bound at the second call
        found = np.asarray(call())
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("name", TRAINING)
def test_losses(name: str) -> None:
    call = in_fluidlite.make(name, WORKLOADS[name].small, "", "cpu")
    losses = [float(np.asarray(call()).item()) for _ in range(STEPS)]
    expected = trained(name)
    assert np.allclose(losses, expected, rtol=1e-5, atol=0)
    assert abs(losses[0] - losses[-1]) > 100 * abs(losses[-1] - expected[-1])  # it learns more than it is off by


def test_numbers_are_the_same_each_time_and_differ_by_name() -> None:
    weights, data = numbers("mlp", WORKLOADS["mlp"].small)
    again, _ = numbers("mlp", WORKLOADS["mlp"].small)
    assert all(np.array_equal(weights[key], again[key]) for key in weights)
    assert not np.array_equal(weights["fc0.b"][:12], weights["fc1.b"][:12])
    assert data["label"].shape == (4, 1) and data["label"].dtype == np.int64
    assert weights["fc0.w"].dtype == data["x"].dtype == np.float32


def test_state_of_the_deep_network() -> None:
    assert state_bytes(WORKLOADS["deep"].full) == 2 * 4 * 20 * (2048 * 2048 + 2048)


def test_a_process_answers(tmp_path: Path) -> None:
    server = Server("fluidlite", "cpu", 1, tmp_path)
    for variant in server.variants("gelu_tanh")["variants"]:
        answer = server.load("gelu_tanh", variant, True)
        assert np.load(answer["file"]).shape == (5000,)
        assert all(seconds > 0 for seconds in server.turn(variant, 0.001, 2, "cpu")["seconds"])
    server.drop()
    with pytest.raises(KeyError):
        server.turn("", 0.001, 1, "wall")
    found = server.memory("deep", True, 2)
    assert found["growth"] >= found["made"] and len(found["losses"]) == 2


def test_the_table(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    command = [sys.executable, "benchmarks/peers", "--small", "--only", "c", "h", "--seconds", "0.02", "--turn", "0.01",
               "--threads", "1", "--clock", "cpu", "--json", str(path)]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "relu(a.b + c)" in done.stdout and "left out: torch;" in done.stdout and "failed" not in done.stdout
    rows = json.loads(path.read_text())["figures"]["rows"]
    names = [(row["workload"], row["contender"]) for row in rows]
    products = [(name, f"fluidlite, cpu{way}") for name in ("gemm", "gemm_bias_relu") for way in ("", " state")]
    assert names == [*products, ("deep", "fluidlite, cpu")]
    assert all(row["off"] == 0 for row in rows) and rows[0]["least"] >= 0 and rows[-1]["growth"] > 0


def test_a_time_below_the_step_of_the_clock(capsys: pytest.CaptureFixture[str]) -> None:
    tables([{"workload": "gemm", "contender": name, "unit": "ms", "times": Times([seconds])}
            for name, seconds in (("one", 0.0), ("two", 0.001))])  # fmt: skip
    assert "nan" in capsys.readouterr().out


def test_results_that_differ_are_named(tmp_path: Path) -> None:
    session = Session(argparse.Namespace(only=["h"]), tmp_path)
    rows = []
    for contender, value in (("one", 1.0), ("near", 1.00001), ("far", 1.001), ("nan", np.nan)):
        np.save(tmp_path / f"{contender}.npy", np.array([[2.0, value]]))
        rows.append({"workload": "gemm", "contender": contender, "file": tmp_path / f"{contender}.npy"})
    session.compare(rows)
    assert [failure.split(":")[0] for failure in session.failures] == ["gemm, far", "gemm, nan"]


def test_a_process_that_cannot_start_is_named() -> None:
    command = [sys.executable, "benchmarks/peers", "--small", "--only", "a", "--torch-python", "/no/such/python"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1].startswith("no Python for torch: /no/such/python")
