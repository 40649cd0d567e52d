"""Sequence tagging: years written in noisy digits. A linear-chain CRF learns the transitions between digits.

Trains on any place; the CRF itself runs on the CPU, and its inputs are copied there.

python examples/tag_sequences.py [place]
"""

from __future__ import annotations

import sys

import numpy as np
from sklearn.datasets import load_digits

import fluidlite as fluid

YEARS = ("476", "800", "1066", "1453", "1492", "1776", "1789", "1815", "1848", "1917", "1945", "1969", "1989")


def years(count: int, part: slice, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Generate ``count`` years: images (rows of 64 noisy pixels) from ``part``, and their digits."""
    images, labels = (array[part] for array in load_digits(return_X_y=True))
    rng, sequences = np.random.default_rng(seed), []
    for year in rng.choice(YEARS, count):
        digits = np.asarray([int(digit) for digit in year])
        pixels = np.stack([images[rng.choice(np.flatnonzero(labels == digit))] / 16 for digit in digits])
        sequences.append((np.float32(pixels + rng.normal(0, 0.4, pixels.shape)), digits.reshape(-1, 1)))
    return sequences


def main(place: str = "cpu", epochs: int = 5) -> tuple[list[float], float, float]:
    """Train; return the mean loss of each epoch, and the accuracy of digits without and with the CRF."""
    train, test = years(1000, slice(0, 1200), 1), years(200, slice(1200, None), 2)
    program, startup = fluid.Program(), fluid.Program()
    startup.random_seed = 1
    with fluid.program_guard(program, startup), fluid.unique_name.guard():
        image = fluid.layers.data("image", shape=[64], lod_level=1)
        label = fluid.layers.data("label", shape=[1], dtype="int64", lod_level=1)
        scores = fluid.layers.fc(fluid.layers.fc(image, size=48, act="tanh"), size=10)
        cost = fluid.layers.linear_chain_crf(scores, label, param_attr=fluid.ParamAttr(name="transition"))
        loss = fluid.layers.mean(cost)
        path = fluid.layers.crf_decoding(scores, param_attr=fluid.ParamAttr(name="transition"))
        _, single = fluid.layers.topk(scores, k=1)
        inference = program.clone(for_test=True)
        fluid.optimizer.Adam(learning_rate=0.01).minimize(loss)

    feeder = fluid.DataFeeder([image, label], place, program)
    executor, losses = fluid.Executor(place, fallback="allow"), []
    with fluid.scope_guard(fluid.Scope()):
        executor.run(startup)
        for epoch in range(epochs):
            batch_losses = []
            for start in range(0, len(train), 20):
                feed = feeder.feed(train[start : start + 20])
                batch_losses += executor.run(program, feed=feed, fetch_list=[loss])
            losses.append(float(np.mean(batch_losses)))
            print(f"{place}, epoch {epoch + 1}: negative log-likelihood of a year {losses[-1]:.3f}")
        lengths = [[len(digits) for _, digits in test]]
        pixels = fluid.create_lod_tensor(np.concatenate([x for x, _ in test]), lengths, place)
        tags = executor.run(inference, feed={"image": pixels}, fetch_list=[single, path], return_numpy=False)
        single_tags, path_tags = (sequence.numpy() for sequence in tags)  # without LoD: lengths are known
    labels = np.concatenate([digits for _, digits in test])
    single_accuracy, crf_accuracy = float(np.mean(single_tags == labels)), float(np.mean(path_tags == labels))
    print(f"{place}: {single_accuracy:.1%} of the digits are right one by one, {crf_accuracy:.1%} as sequences")
    return losses, single_accuracy, crf_accuracy


if __name__ == "__main__":
    main(*sys.argv[1:2])
