"""``paddle.dataset.voc2012``: images [H, W, 3] with the class of each pixel [H, W]; 0: background, 255: border."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from fluidlite.base.errors import LoaderError
from fluidlite.paddle.dataset import files
from fluidlite.paddle.dataset.image import open_image

Sample = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
_FILE = "voc2012/VOCtrainval_11-May-2012.tar"
_ROOT = "VOCdevkit/VOC2012"


def train() -> Callable[[], Iterator[Sample]]:
    """A reader of the images of the set trainval, as in Paddle."""
    return partial(_samples, "trainval")


def test() -> Callable[[], Iterator[Sample]]:
    """A reader of the images of the set train, as in Paddle."""
    return partial(_samples, "train")


def val() -> Callable[[], Iterator[Sample]]:
    """A reader of the images for validation."""
    return partial(_samples, "val")


def _samples(part: str) -> Iterator[Sample]:
    path = files.find(_FILE)
    if path is None:
        yield from _generated(part)
        return
    with files.Archive(path) as archive:
        names = archive.read(f"{_ROOT}/ImageSets/Segmentation/{part}.txt").decode("ascii", "replace").split()
        for name in names:
            if not name.replace("_", "").isalnum():
                raise LoaderError(f"{path}: {name!r:.60} is no name of an image")
            image, classes = f"{_ROOT}/JPEGImages/{name}.jpg", f"{_ROOT}/SegmentationClass/{name}.png"
            pixels = np.array(open_image(archive.read(image), f"{path}: {image}").convert("RGB"))
            class_image = open_image(archive.read(classes), f"{path}: {classes}")
            if class_image.mode not in ("P", "L") or class_image.size != pixels.shape[1::-1]:
                raise LoaderError(f"{path}: {classes} has not one class for each pixel of {image}")
            yield pixels, np.array(class_image)


def _generated(part: str) -> Iterator[Sample]:
    """Discs and squares on grey, with a colour for each class."""
    files.report_substitute("voc2012", _FILE, "generated images of coloured discs and rectangles, 20 classes")
    rng = np.random.default_rng(sum(map(ord, part)))
    colours = np.random.default_rng(3).integers(0, 256, (21, 3))
    colours[0] = 128
    rows, columns = np.mgrid[:96, :128]
    for _ in range(160 if part == "trainval" else 80):
        classes = np.zeros((96, 128), "uint8")
        for _ in range(rng.integers(1, 4)):
            kind, y, x, size = (int(rng.integers(*ends)) for ends in ((1, 21), (15, 80), (15, 110), (8, 25)))
            inside = np.hypot(rows - y, columns - x) < size
            if kind % 2:
                inside = (abs(rows - y) < size) & (abs(columns - x) < size)
            classes[inside] = kind
        image = colours[classes] + rng.integers(-20, 21, (96, 128, 3))
        yield np.clip(image, 0, 255).astype("uint8"), classes
