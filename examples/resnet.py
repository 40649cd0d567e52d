"""A small residual network with batch normalisation classifies handwritten digits.

python examples/resnet.py [place]
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import fluidlite as fluid


def conv_bn(x: Any, filters: int, size: int, stride: int, act: str | None = "relu") -> Any:
    """Convolution without bias, then batch normalisation."""
    hidden = fluid.layers.conv2d(x, filters, size, stride=stride, padding=(size - 1) // 2, bias_attr=False)
    return fluid.layers.batch_norm(hidden, act=act)


def block(x: Any, filters: int, stride: int) -> Any:
    """Two convolutions with a shortcut connection."""
    hidden = conv_bn(conv_bn(x, filters, 3, stride), filters, 3, 1, act=None)
    shortcut = x if stride == 1 else conv_bn(x, filters, 1, stride, act=None)
    return fluid.layers.elementwise_add(hidden, shortcut, act="relu")


def resnet(image: Any) -> Any:
    """Return the scores of ten digits; ``image`` is [rows, 1, 8, 8]."""
    hidden = conv_bn(image, 16, 3, 1)
    for filters, stride in ((16, 1), (32, 2), (64, 2)):
        hidden = block(hidden, filters, stride)
    hidden = fluid.layers.pool2d(hidden, pool_type="avg", global_pooling=True)
    return fluid.layers.fc(hidden, size=10)


def main(place: str = "cpu", epochs: int = 5) -> tuple[list[float], float]:
    """Train on 1500 images; return each epoch's mean loss, and the accuracy on the other 297."""
    images, labels = load_digits(return_X_y=True)
    x, y = np.asarray(images / 16, np.float32).reshape(-1, 1, 8, 8), labels.reshape(-1, 1)
    program, startup = fluid.Program(), fluid.Program()
    program.random_seed = startup.random_seed = 1
    with fluid.program_guard(program, startup), fluid.unique_name.guard():
        image = fluid.layers.data("image", shape=[1, 8, 8])
        label = fluid.layers.data("label", shape=[1], dtype="int64")
        scores = resnet(image)
        loss = fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(scores, label))
        batch_accuracy = fluid.layers.accuracy(fluid.layers.softmax(scores), label)
        test = program.clone(for_test=True)  # normalises by the moving mean and variance
        fluid.optimizer.Momentum(learning_rate=0.02, momentum=0.9).minimize(loss)

    executor, losses = fluid.Executor(place, fallback="allow"), []
    with fluid.scope_guard(fluid.Scope()):
        executor.run(startup)
        for epoch in range(epochs):
            batch_losses = []
            for rows in np.split(np.random.default_rng(epoch).permutation(1500), 30):
                batch_losses += executor.run(program, feed={"image": x[rows], "label": y[rows]}, fetch_list=[loss])
            losses.append(float(np.mean(batch_losses)))
            print(f"{place}, epoch {epoch + 1}: loss {losses[-1]:.4f}")
        (accuracy,) = executor.run(test, feed={"image": x[1500:], "label": y[1500:]}, fetch_list=[batch_accuracy])
    print(f"{place}: {float(accuracy[0]):.1%} of the test images are read")
    return losses, float(accuracy[0])


if __name__ == "__main__":
    main(*sys.argv[1:2])
