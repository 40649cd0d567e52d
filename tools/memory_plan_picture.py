"""Writes docs/memory_plan.svg: the memory plan of a training step of LeNet.

    python tools/memory_plan_picture.py

Run it again when kernels or passes change what a step does.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import fluidlite as fluid
from fluidlite import layers
from fluidlite.transformers import make_transformer

TARGET = Path(__file__).resolve().parents[1] / "docs" / "memory_plan.svg"


def main() -> None:
    image, label = layers.data("image", [1, 28, 28]), layers.data("label", [1], dtype="int64")
    hidden = layers.pool2d(layers.conv2d(image, 20, 5, act="relu"), 2, pool_stride=2)
    hidden = layers.pool2d(layers.conv2d(hidden, 50, 5, act="relu"), 2, pool_stride=2)
    logits = layers.fc(layers.fc(hidden, 500, act="relu"), 10)
    loss = layers.mean(layers.softmax_with_cross_entropy(logits, label))
    updates, _ = fluid.optimizer.Momentum(0.01, 0.9).minimize(loss)
    with make_transformer() as transformer:
        step = transformer.computation([loss, *updates], image, label)
        step(np.zeros((64, 1, 28, 28)), np.zeros((64, 1)))
        step.memory_plan.save(TARGET)
        print(f"{TARGET}: {step.memory_plan.summary()}")


if __name__ == "__main__":
    main()
