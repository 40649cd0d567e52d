"""Layers on images and sequences without parameters: unfold, affine_grid, grid_sampler, fsp_matrix."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite.layers.conv import four_paddings, per_dim
from fluidlite.layers.declare import also, layer
from fluidlite.program.variable import Variable

Size = int | Sequence[int]


@layer("unfold", dict.fromkeys(("kernel_sizes", "strides", "paddings", "dilations"), ""))
def unfold(
    x: Variable,
    kernel_sizes: Size,
    strides: Size = 1,
    paddings: Size = 0,
    dilations: Size = 1,
    name: str | None = None,
) -> Variable:
    """Return the windows of each image as columns: im2col.

    kernel_sizes: Size of a window
    strides: Distance between two windows
    paddings: Zeros around each image
    dilations: Distance between two elements of a window
    Returns: [images, channels * height * width of a window, windows]
    Raises: If a window is larger than the padded image, or an argument has another form

    >>> unfold(data("x", [2, 4, 8, 8]), 4).shape
    (2, 64, 25)
    """
    return also(
        kernel_sizes=per_dim("kernel_sizes", kernel_sizes, 2),
        strides=per_dim("strides", strides, 2),
        paddings=four_paddings("paddings", paddings),
        dilations=per_dim("dilations", dilations, 2),
    )


@layer("affine_grid", {"out_shape": "output_shape"})
def affine_grid(theta: Variable, out_shape: Sequence[int] | Variable, name: str | None = None) -> Variable:
    """Return the positions of an image's pixels in another image, each coordinate from -1 to 1.

    Returns: [images, height, width, 2]: x, then y

    >>> affine_grid(data("theta", [2, 2, 3]), [2, 3, 4, 4]).shape
    (2, 4, 4, 2)
    """


@layer("grid_sampler")
def grid_sampler(x: Variable, grid: Variable, name: str | None = None) -> Variable:
    """Sample images at the positions of a grid, each from the four nearest pixels.

    Returns: [images, channels, rows, columns]; pixels outside the image count as 0

    >>> grid_sampler(data("x", [2, 4, 8, 8]), data("grid", [2, 3, 3, 2])).shape
    (2, 4, 3, 3)
    """


@layer("add_position_encoding")
def add_position_encoding(input: Variable, alpha: float, beta: float, name: str | None = None) -> Variable:
    """Return ``alpha * input`` plus ``beta`` times sine and cosine waves of the step number.

    Returns: Dims and LoD of ``input``

    >>> add_position_encoding(data("input", [2, 3, 4]), 2, 2).shape
    (2, 3, 4)
    """


@layer("fsp")
def fsp_matrix(x: Variable, y: Variable) -> Variable:
    """Return, for each image, the mean over pixels of the products of all pairs of channels.

    Returns: [images, channels of x, channels of y]

    >>> fsp_matrix(data("x", [2, 4, 8, 8]), data("y", [2, 4, 8, 8])).shape
    (2, 4, 4)
    """


@layer("cvm", called="cvm")
def continuous_value_model(input: Variable, cvm: Variable, use_cvm: bool = True) -> Variable:
    """Replace the counts of shows and clicks at the begin of each row by logarithms, or remove them.

    Returns: As ``input``, or two features narrower

    >>> continuous_value_model(data("input", [2, 4]), data("cvm", [2, 2])).shape
    (2, 4)
    """


@layer("similarity_focus", stop_gradient=True)
def similarity_focus(input: Variable, axis: int, indexes: Sequence[int], name: str | None = None) -> Variable:
    """Return a mask of the positions of the maxima of some planes of ``input``.

    input: float32 or float64, [batch, a, b, c]
    Returns: As ``input``

    >>> similarity_focus(data("input", [2, 4, 8, 8]), 1, [0]).shape
    (2, 4, 8, 8)
    """
