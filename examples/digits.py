"""Handwritten digits with two layers, on every place that is there: one program, built once.

python examples/digits.py [place ...]
"""

from __future__ import annotations

import sys
import warnings

import numpy as np
from sklearn.datasets import load_digits

import fluidlite as fluid

# 1797 images of 8 x 8 pixels; the last 297 are for the test.
images, labels = load_digits(return_X_y=True)
x, y = np.asarray(images / 16, np.float32), labels.reshape(-1, 1)

# The program: no place is named in it.
fluid.default_startup_program().random_seed = 1
image = fluid.layers.data("image", shape=[64])
label = fluid.layers.data("label", shape=[1], dtype="int64")
hidden = fluid.layers.fc(image, size=64, act="relu")
prediction = fluid.layers.fc(hidden, size=10, act="softmax")
loss = fluid.layers.mean(fluid.layers.cross_entropy(prediction, label))
accuracy = fluid.layers.accuracy(prediction, label)
test = fluid.default_main_program().clone(for_test=True)
fluid.optimizer.Momentum(learning_rate=0.1, momentum=0.9).minimize(loss)

# fpga:0, if it is there, runs most operators by fallback, and the executor warns of that.
warnings.simplefilter("ignore", fluid.FallbackWarning)

for place in sys.argv[1:] or fluid.places():
    exe = fluid.Executor(place)
    with fluid.scope_guard(fluid.Scope()):  # parameters of this place
        exe.run(fluid.default_startup_program())
        for epoch in range(10):
            for rows in np.split(np.random.default_rng(epoch).permutation(1500), 30):
                exe.run(feed={"image": x[rows], "label": y[rows]}, fetch_list=[loss])
        (rate,) = exe.run(test, feed={"image": x[1500:], "label": y[1500:]}, fetch_list=[accuracy])
    print(f"{place}: {rate.item():.1%} of the test images are read")
