"""``paddle.dataset.cifar``: images of 10 or 100 classes, float32 [3072] in 0..1 (red, green, blue), and labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fluidlite.base.array_pickle import load_arrays
from fluidlite.base.errors import LoaderError, SavedModelError
from fluidlite.paddle.dataset import files

Sample = tuple[np.ndarray[Any, Any], int]
_MAX_BATCH_BYTES = 256 << 20
_PIXELS = 3 * 32 * 32


def train10(cycle: bool = False) -> Callable[[], Iterator[Sample]]:
    """A reader of the training images of 10 classes; ``cycle``: repeats without end."""
    return partial(_samples, 10, "data_batch", cycle)


def test10(cycle: bool = False) -> Callable[[], Iterator[Sample]]:
    """A reader of the test images of 10 classes."""
    return partial(_samples, 10, "test_batch", cycle)


def train100() -> Callable[[], Iterator[Sample]]:
    """A reader of the training images of 100 classes."""
    return partial(_samples, 100, "train", False)


def test100() -> Callable[[], Iterator[Sample]]:
    """A reader of the test images of 100 classes."""
    return partial(_samples, 100, "test", False)


def _samples(classes: int, part: str, cycle: bool) -> Iterator[Sample]:
    while True:
        for images, labels in _batches(classes, part):
            for image, label in zip(images, labels, strict=True):
                yield (image / 255.0).astype("float32"), int(label)
        if not cycle:
            return


def _batches(classes: int, part: str) -> Iterator[tuple[Any, Any]]:
    name = f"cifar/cifar-{classes}-python.tar.gz"
    path = files.find(name)
    if path is None:
        yield _substitute(classes, part.startswith("test"), name)
        return
    batches = files.members(path, lambda name: part in name.rsplit("/", 1)[-1], f"named {part}", _MAX_BATCH_BYTES)
    for member, content in batches:
        yield _batch(path, member, content, classes)


def _batch(path: Path, member: str, content: bytes, classes: int) -> tuple[Any, Any]:
    """Images and labels of a pickled batch, parsed without Python's unpickler."""
    try:
        batch = load_arrays(content)
    except SavedModelError as exc:
        raise LoaderError(f"{path}: {member}: {exc}") from None
    pairs = batch.items() if isinstance(batch, dict) else ()
    fields: dict[Any, Any] = {key.decode("latin-1") if isinstance(key, bytes) else key: value for key, value in pairs}
    images: Any = fields.get("data")
    labels: Any = fields.get("labels" if classes == 10 else "fine_labels")
    is_valid = isinstance(images, np.ndarray) and images.dtype == np.uint8 and images.shape[1:] == (_PIXELS,)
    if not is_valid or not isinstance(labels, (list, np.ndarray)) or len(labels) != len(images) or not len(labels):
        raise LoaderError(f"{path}: {member} holds no images of {_PIXELS} bytes with a label each")
    numbers = np.asarray(labels)
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1 or numbers.min() < 0 or numbers.max() >= classes:
        raise LoaderError(f"{path}: {member} has labels outside 0 to {classes - 1}")
    return images, numbers


def _substitute(classes: int, test: bool, missing: str) -> tuple[Any, Any]:
    rng = np.random.default_rng(int(test))
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        files.report_substitute("cifar", missing, "1,000 generated images, coloured patterns in noise")
        patterns, digits = np.random.default_rng(7).uniform(0, 1, (10, 8, 8)), np.arange(500) % 10
        small = np.clip(patterns[digits] + rng.normal(0, 0.2, (500, 8, 8)), 0, 1)
    else:
        files.report_substitute(
            "cifar", missing, "scikit-learn's 1,797 real digits, enlarged to 32 x 32, in ten colours"
        )
        rows = slice(-297, None) if test else slice(None, -297)
        pixels, digits = load_digits(return_X_y=True)
        small, digits = pixels[rows].reshape(-1, 8, 8) / 16.0, digits[rows]
    colours = rng.integers(0, 10, len(small))
    tints = np.random.default_rng(11).uniform(0.2, 1.0, (10, 3))[colours]
    large = small.repeat(4, axis=1).repeat(4, axis=2)
    images = (large[:, None] * tints[:, :, None, None] * 255).astype(np.uint8).reshape(-1, _PIXELS)
    return images, digits if classes == 10 else digits * 10 + colours
