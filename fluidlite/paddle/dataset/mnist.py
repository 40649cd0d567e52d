"""``paddle.dataset.mnist``: images of digits, float32 [784] in -1..1, and their labels."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fluidlite.base.errors import LoaderError
from fluidlite.paddle.dataset import files

Sample = tuple[np.ndarray[Any, Any], int]
_TEST_ROWS = 297  # of the substitute


def train() -> Callable[[], Iterator[Sample]]:
    """A reader of the training images."""
    return partial(_samples, "train")


def test() -> Callable[[], Iterator[Sample]]:
    """A reader of the test images."""
    return partial(_samples, "t10k")


def _samples(part: str) -> Iterator[Sample]:
    images, labels = _arrays(part)
    for image, label in zip(images, labels, strict=True):
        yield image, int(label)


def _arrays(part: str) -> tuple[Any, Any]:
    name = f"mnist/{part}-images-idx3-ubyte.gz"
    images, labels = files.find(name), files.find(f"mnist/{part}-labels-idx1-ubyte.gz")
    if images is None or labels is None:
        pixels, digits = _substitute(name)
        rows = slice(None, -_TEST_ROWS) if part == "train" else slice(-_TEST_ROWS, None)
        return pixels[rows], digits[rows]
    pixels, digits = _idx(images, 3), _idx(labels, 1)
    if len(pixels) != len(digits) or pixels[0].size != 784 or digits.max() > 9:
        raise LoaderError(f"{images} and {labels} hold {list(pixels.shape)} pixels and {len(digits)} labels of 0 to 9?")
    return pixels.reshape(len(pixels), 784).astype("float32") / 127.5 - 1.0, digits


def _idx(path: Path, rank: int) -> Any:
    """The array of an IDX file of bytes (yann.lecun.com/exdb/mnist)."""
    content = files.read(path)
    start = 4 + 4 * rank
    dims = struct.unpack(f">{rank}I", content[4:start]) if len(content) >= start else ()
    count = 1
    for dim in dims:
        count *= dim
    if content[:4] != bytes([0, 0, 8, rank]) or not count or len(content) != start + count:
        raise LoaderError(f"{path} is no IDX file of {rank} dims: it says {list(dims)} and has {len(content):,} bytes")
    return np.frombuffer(content, np.uint8, count, start).reshape(dims)


def _substitute(missing: str) -> tuple[Any, Any]:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        return _generated(missing)
    files.report_substitute("mnist", missing, "scikit-learn's 1,797 real digits of 8 x 8, enlarged to 28 x 28")
    small, labels = load_digits(return_X_y=True)
    large = small.reshape(-1, 8, 1, 8, 1).repeat(3, axis=2).repeat(3, axis=4).reshape(-1, 24, 24)
    images = (np.pad(large, ((0, 0), (2, 2), (2, 2))) / 8.0 - 1.0).reshape(-1, 784).astype("float32")
    return images, labels


def _generated(missing: str) -> tuple[Any, Any]:
    files.report_substitute("mnist", missing, "2,000 generated images, ten patterns in noise")
    rng = np.random.default_rng(0)
    patterns = rng.uniform(-1, 1, (10, 784))
    labels = np.arange(2000) % 10
    images = np.clip(patterns[labels] * 0.5 + rng.normal(0, 0.3, (2000, 784)), -1, 1).astype("float32")
    return images, labels
