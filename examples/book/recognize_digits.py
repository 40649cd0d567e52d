"""Recognize digits: the second chapter, by two networks.

`mlp`: three fully connected layers. `conv`: two groups of convolution and pooling, batch normalisation between them,
and one fully connected layer. Both end with a softmax over ten classes, trained by Adam on the mean cross entropy.
The images have 8 x 8 pixels, MNIST's have 28 x 28: filters are 3 x 3 instead of the chapter's 5 x 5.

python examples/book/recognize_digits.py [place]
"""

from __future__ import annotations

import itertools
import random

import numpy as np
from sklearn.datasets import load_digits

import fluidlite as fluid

VARIANTS = ("mlp", "conv")
DATA = "scikit-learn's digits: 1797 images of 8 x 8 (real)"
METRIC, BETTER = "accuracy on the test part", "higher"
GOAL = {"mlp": 0.93, "conv": 0.95}
STEPS = {"mlp": 500, "conv": 300}
BATCH_SIZE = 64


def reader(part: slice):
    """Return a reader of samples: pixels from -1 to 1, [1, 8, 8], and a digit."""

    def samples():
        images, labels = load_digits(return_X_y=True)
        order = np.random.RandomState(0).permutation(len(labels))[part]
        for image, label in zip(images[order], labels[order], strict=True):
            yield np.float32(image.reshape(1, 8, 8) / 8 - 1), int(label)

    return samples


TRAIN, TEST = reader(slice(0, 1500)), reader(slice(1500, None))


def multilayer_perceptron(img):
    """Two hidden layers of 128 units."""
    hidden = fluid.layers.fc(input=img, size=128, act="tanh")
    hidden = fluid.layers.fc(input=hidden, size=128, act="tanh")
    return fluid.layers.fc(input=hidden, size=10, act="softmax")


def convolutional_neural_network(img):
    """Two groups of convolution and pooling."""
    conv_pool_1 = fluid.nets.simple_img_conv_pool(
        input=img, filter_size=3, num_filters=20, conv_padding=1, pool_size=2, pool_stride=2, act="relu"
    )
    conv_pool_1 = fluid.layers.batch_norm(conv_pool_1)
    conv_pool_2 = fluid.nets.simple_img_conv_pool(
        input=conv_pool_1, filter_size=3, num_filters=50, conv_padding=1, pool_size=2, pool_stride=2, act="relu"
    )
    return fluid.layers.fc(input=conv_pool_2, size=10, act="softmax")


NETWORKS = {"mlp": multilayer_perceptron, "conv": convolutional_neural_network}


def train(place, folder, steps=500, on_step=lambda exe, step, loss: None, variant="mlp"):
    """Train, save the model, and return its predictions for the test part."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 90
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        img = fluid.layers.data(name="img", shape=[1, 8, 8], dtype="float32")
        label = fluid.layers.data(name="label", shape=[1], dtype="int64")
        prediction = NETWORKS[variant](img)
        avg_cost = fluid.layers.mean(fluid.layers.cross_entropy(input=prediction, label=label))
        test_program = main.clone(for_test=True)
        fluid.optimizer.Adam(learning_rate=0.001).minimize(avg_cost)

    random.seed(0)
    batches = fluid.batch(fluid.reader.shuffle(TRAIN, buf_size=1500), batch_size=BATCH_SIZE, drop_last=True)
    feeder = fluid.DataFeeder(feed_list=[img, label], place=place)
    exe = fluid.Executor(place)
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        epochs = itertools.chain.from_iterable(batches() for _ in itertools.count())
        for step, batch in enumerate(itertools.islice(epochs, steps)):
            (cost,) = exe.run(main, feed=feeder.feed(batch), fetch_list=[avg_cost])
            on_step(exe, step, float(cost[0]))
        fluid.io.save_inference_model(folder, ["img"], [prediction], exe, main)
        (predicted,) = exe.run(test_program, feed=feeder.feed(list(TEST())), fetch_list=[prediction])
    return predicted


def infer(place, folder, variant="mlp"):
    """Load the model; return its accuracy on the test part, and its predictions."""
    images, labels = map(np.stack, zip(*TEST(), strict=True))
    exe = fluid.Executor(place)
    with fluid.scope_guard(fluid.Scope()):
        program, feed_names, fetch_targets = fluid.io.load_inference_model(folder, exe)
        (predicted,) = exe.run(program, feed={feed_names[0]: images}, fetch_list=fetch_targets)
    return float(np.mean(predicted.argmax(axis=1) == labels)), predicted


if __name__ == "__main__":
    from fluidlite.cli.books import main

    main(__file__)
