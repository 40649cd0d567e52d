"""``paddle.dataset.image``: decoding, resizing and cropping images, arrays [H, W, 3] of blue, green, red."""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np

from fluidlite.base.errors import LoaderError, MissingExtraError

__all__ = [
    "center_crop",
    "left_right_flip",
    "load_and_transform",
    "load_image",
    "load_image_bytes",
    "random_crop",
    "resize_short",
    "simple_transform",
    "to_chw",
]

Image = np.ndarray[Any, Any]
_MAX_PIXELS = 64 << 20  # of a decoded image


def open_image(content: bytes, what: str) -> Any:
    """Open and decode an image by Pillow, of at most 64 million pixels.

    Raises
    ------
    LoaderError
        The image is damaged, of another format, or too large.
    MissingExtraError
        Pillow is not installed.
    """
    try:
        from PIL import Image as Pillow
    except ImportError:
        raise MissingExtraError("images are decoded by Pillow\n  Do: pip install 'fluidlite[paddle]'") from None
    try:
        image = Pillow.open(io.BytesIO(content), formats=("JPEG", "PNG"))
        if image.width * image.height > _MAX_PIXELS:
            raise LoaderError(f"{what} has {image.width} x {image.height} pixels; at most {_MAX_PIXELS:,} are read")
        image.load()
    except LoaderError:
        raise
    except Exception as exc:  # Pillow's decoders raise many types
        raise LoaderError(f"{what} is no image that can be read: {exc}") from None
    return image


def load_image_bytes(bytes: bytes, is_color: bool = True) -> Image:
    """Decode an image: [H, W, 3], or [H, W] of grey; uint8."""
    image = open_image(bytes, "the image")
    if not is_color:
        return np.asarray(image.convert("L"))
    return np.ascontiguousarray(np.asarray(image.convert("RGB"))[:, :, ::-1])


def load_image(file: str, is_color: bool = True) -> Image:
    """Decode the image of a file."""
    try:
        with open(file, "rb") as stream:
            return load_image_bytes(stream.read(), is_color)
    except OSError as exc:
        raise LoaderError(f"{os.fspath(file)!r} cannot be read: {exc.strerror or exc}") from None


def resize_short(im: Image, size: int) -> Image:
    """Resize so that the shorter edge has ``size`` pixels, by bilinear interpolation of pixel centres."""
    height, width = im.shape[:2]
    if height > width:
        return _resized(im, size * height // width, size)
    return _resized(im, size, size * width // height)


def _resized(im: Image, height: int, width: int) -> Image:
    def positions(count: int, old_count: int) -> tuple[Any, Any, Any]:
        position = np.clip((np.arange(count) + 0.5) * old_count / count - 0.5, 0, old_count - 1)
        lower = position.astype(int)
        return lower, np.minimum(lower + 1, old_count - 1), position - lower

    top, bottom, down = positions(height, im.shape[0])
    left, right, across = positions(width, im.shape[1])
    channel_dims = (1,) * (im.ndim - 2)
    across, down = across.reshape(1, -1, *channel_dims), down.reshape(-1, 1, *channel_dims)
    rows = im[:, left] * (1 - across) + im[:, right] * across
    values = rows[top] * (1 - down) + rows[bottom] * down
    resized: Image = np.rint(values).astype(im.dtype) if im.dtype == np.uint8 else values.astype(im.dtype)
    return resized


def to_chw(im: Image, order: tuple[int, ...] = (2, 0, 1)) -> Image:
    """Transpose to channels first."""
    return im.transpose(order)


def _check_size(im: Image, size: int) -> None:
    if im.shape[0] < size or im.shape[1] < size:
        raise LoaderError(f"an image of {im.shape[0]} x {im.shape[1]} pixels cannot be cut to {size} x {size}")


def center_crop(im: Image, size: int, is_color: bool = True) -> Image:
    """Crop the centre of an image."""
    _check_size(im, size)
    top, left = (im.shape[0] - size) // 2, (im.shape[1] - size) // 2
    return im[top : top + size, left : left + size]


def random_crop(im: Image, size: int, is_color: bool = True) -> Image:
    """Crop a random part of an image (by NumPy's global generator)."""
    _check_size(im, size)
    top, left = (int(np.random.randint(0, edge - size + 1)) for edge in im.shape[:2])
    return im[top : top + size, left : left + size]


def left_right_flip(im: Image, is_color: bool = True) -> Image:
    """Flip an image horizontally."""
    return im[:, ::-1]


def simple_transform(
    im: Image, resize_size: int, crop_size: int, is_train: bool, is_color: bool = True, mean: Any = None
) -> Image:
    """Resize, crop (randomly and with random flips in training, else centred), channels first, minus mean."""
    im = resize_short(im, resize_size)
    if is_train:
        im = random_crop(im, crop_size, is_color)
        if np.random.randint(2) == 0:
            im = left_right_flip(im, is_color)
    else:
        im = center_crop(im, crop_size, is_color)
    image: Image = (to_chw(im) if im.ndim == 3 else im).astype("float32")
    if mean is None:
        return image
    means: Any = np.asarray(mean, "float32")
    centred: Image = image - (means[:, None, None] if means.ndim == 1 and is_color else means)
    return centred


def load_and_transform(
    filename: str, resize_size: int, crop_size: int, is_train: bool, is_color: bool = True, mean: Any = None
) -> Image:
    """:func:`load_image`, then :func:`simple_transform`."""
    return simple_transform(load_image(filename, is_color), resize_size, crop_size, is_train, is_color, mean)
