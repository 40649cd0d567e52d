"""``paddle.dataset.flowers``: images of 102 kinds of flowers, float32 [3 * 224 * 224], and their labels from 0."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fluidlite.base.errors import LoaderError, MissingExtraError
from fluidlite.paddle.dataset import files
from fluidlite.paddle.dataset.image import load_image_bytes, simple_transform
from fluidlite.reader import map_readers, xmap_readers

Mapper = Callable[[Any], Any]
_FOLDER = "flowers"
_IMAGES, _LABELS, _SETS = (f"{_FOLDER}/{name}" for name in ("102flowers.tgz", "imagelabels.mat", "setid.mat"))
_KINDS = 102
_MEAN = [103.94, 116.78, 123.68]
_PARTS = {"train": "tstid", "test": "trnid", "valid": "valid"}
"""The set of each reader; as in Paddle, the large test set is used for training."""


def default_mapper(is_train: bool, sample: tuple[bytes, int]) -> tuple[np.ndarray[Any, Any], int]:
    """An image and its label: decoded, cropped to 224 x 224, minus the mean, flat."""
    content, label = sample
    image = load_image_bytes(content)
    return simple_transform(image, 256, 224, is_train, mean=_MEAN).flatten().astype("float32"), label


train_mapper = partial(default_mapper, True)
test_mapper = partial(default_mapper, False)


def train(
    mapper: Mapper = train_mapper, buffered_size: int = 1024, use_xmap: bool = True, cycle: bool = False
) -> Callable[[], Iterator[Any]]:
    """A reader of the training images.

    Parameters
    ----------
    mapper : callable
        Takes the bytes of a JPEG file and a label; default: random crops and flips.
    buffered_size : int
        Samples read ahead, with ``use_xmap``.
    use_xmap : bool
        Decode images in threads.
    cycle : bool
        Repeat without end.
    """
    return partial(_samples, "train", mapper, buffered_size, use_xmap, cycle)


def test(
    mapper: Mapper = test_mapper, buffered_size: int = 1024, use_xmap: bool = True, cycle: bool = False
) -> Callable[[], Iterator[Any]]:
    """A reader of the test images; see :func:`train`."""
    return partial(_samples, "test", mapper, buffered_size, use_xmap, cycle)


def valid(
    mapper: Mapper = test_mapper, buffered_size: int = 1024, use_xmap: bool = True
) -> Callable[[], Iterator[Any]]:
    """A reader of the images for validation; see :func:`train`."""
    return partial(_samples, "valid", mapper, buffered_size, use_xmap, False)


def _samples(part: str, mapper: Mapper, buffered_size: int, use_xmap: bool, cycle: bool) -> Iterator[Any]:
    if None in (files.find(name) for name in (_IMAGES, _LABELS, _SETS)):
        mapped: Callable[[], Iterable[Any]] = partial(_generated, part)
    elif use_xmap:
        mapped = xmap_readers(mapper, partial(_files, part), 4, max(1, buffered_size))
    else:
        mapped = map_readers(mapper, partial(_files, part))
    while True:
        yield from mapped()
        if not cycle:
            return


def _numbers(path: Path, name: str) -> list[int]:
    """An integer table of a MATLAB file."""
    try:
        loadmat = import_module("scipy.io").loadmat
    except ImportError:
        raise MissingExtraError(f"{path} is read by SciPy\n  Do: pip install 'fluidlite[paddle]'") from None
    try:
        table = np.ravel(loadmat(io.BytesIO(files.read(path)), variable_names=[name])[name])
    except Exception as exc:  # SciPy's reader raises many types
        raise LoaderError(f"{path} is no MATLAB file with {name!r}: {exc}") from None
    if table.dtype.kind not in "iu":
        raise LoaderError(f"{path}: {name!r} is {table.dtype}; expected whole numbers")
    return [int(number) for number in table]


def _files(part: str) -> Iterator[tuple[bytes, int]]:
    """The bytes of images with their labels."""
    images, labels, sets = (files.find(name) for name in (_IMAGES, _LABELS, _SETS))
    assert images is not None and labels is not None and sets is not None
    classes, numbers = _numbers(labels, "labels"), _numbers(sets, _PARTS[part])
    invalid = [number for number in numbers if not 1 <= number <= len(classes)]
    if invalid or not all(1 <= class_ <= _KINDS for class_ in classes):
        raise LoaderError(f"{sets} and {labels} do not fit: image {invalid[:1]} of {len(classes)}, or a kind above 102")
    with files.Archive(images) as archive:
        for number in numbers:
            yield archive.read(f"jpg/image_{number:05d}.jpg"), classes[number - 1] - 1


def _generated(part: str) -> Iterator[tuple[np.ndarray[Any, Any], int]]:
    files.report_substitute("flowers", _IMAGES, "generated images of 102 kinds: petals in colours")
    rng = np.random.default_rng(sum(map(ord, part)))
    rows, columns = np.mgrid[-1:1:224j, -1:1:224j]
    angle, radius = np.arctan2(rows, columns), np.hypot(rows, columns)
    for number in range(408 if part == "train" else 102):
        kind = number % _KINDS
        petals, colour = 3 + kind % 6, np.array([kind // 6 % 3, kind // 18 % 3, kind // 54 % 3]) / 2.0
        shape = radius < 0.5 + 0.3 * np.cos(petals * angle + rng.uniform(0, 2 * np.pi))
        image = np.where(shape, (colour * 2 - 1)[:, None, None], -0.5) + rng.normal(0, 0.1, (3, 224, 224))
        yield (image * 120).astype("float32").flatten(), kind
