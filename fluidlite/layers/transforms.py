"""Layers on images and sequences that have no parameters: windows as columns, grids of places, positions, products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluidlite.base.errors import AttributeValueError
from fluidlite.framework.variable import Variable
from fluidlite.layer_helper import check_float, check_ints, check_variable, refuse
from fluidlite.layers.common import append
from fluidlite.layers.conv import _per_dim

__all__ = ["add_position_encoding", "affine_grid", "fsp_matrix", "grid_sampler", "unfold"]

Size = int | Sequence[int]


def unfold(
    x: Variable,
    kernel_sizes: Size,
    strides: Size = 1,
    paddings: Size = 0,
    dilations: Size = 1,
    name: str | None = None,
) -> Variable:
    """Return the windows of each image as columns: im2col.

    Parameters
    ----------
    x : Variable
        Images, [images, channels, height, width], floating.
    kernel_sizes : int or (height, width)
        Size of a window.
    strides : int or (height, width)
        Distance between two windows.
    paddings : int, (height, width) or (above, left, below, right)
        Zeros around each image.
    dilations : int or (height, width)
        Distance between two elements of a window.
    name : str, optional

    Returns
    -------
    Variable
        [images, channels * height * width of a window, windows].

    Raises
    ------
    AttributeValueError
        If a window is larger than the padded image, or an argument has another form.
    """
    pads = check_ints("paddings", paddings)
    pads = pads * (4 // len(pads)) if len(pads) in (1, 2, 4) else pads
    if len(pads) != 4 or min(pads) < 0:
        refuse("paddings", paddings, "an int of 0 or more, 2 or 4 of them", error=AttributeValueError)
    attrs = {
        "kernel_sizes": _per_dim("kernel_sizes", kernel_sizes, 2), "strides": _per_dim("strides", strides, 2),
        "paddings": pads, "dilations": _per_dim("dilations", dilations, 2),
    }  # fmt: skip
    return append("unfold", "unfold", {"X": check_variable("x", x)}, attrs, slot="Y", name=name)


def affine_grid(theta: Variable, out_shape: Sequence[int] | Variable, name: str | None = None) -> Variable:
    """Return where the pixels of an image lie in another, each coordinate from -1 to 1.

    Parameters
    ----------
    theta : Variable
        A map for each image, [images, 2, 3], floating.
    out_shape : sequence of int or Variable
        [images, channels, height, width] of the image to come; a Variable holds four integers.
    name : str, optional

    Returns
    -------
    Variable
        [images, height, width, 2]: x, then y.
    """
    inputs, attrs = {"Theta": check_variable("theta", theta)}, {}
    if isinstance(out_shape, Variable):
        inputs["OutputShape"] = out_shape
    else:
        attrs["output_shape"] = check_ints("out_shape", out_shape)
    return append("affine_grid", "affine_grid", inputs, attrs, slot="Output", name=name)


def grid_sampler(x: Variable, grid: Variable, name: str | None = None) -> Variable:
    """Return the images read at the places of a grid, each place from the four pixels around it.

    Parameters
    ----------
    x : Variable
        Images, [images, channels, height, width], float32 or float64.
    grid : Variable
        [images, rows, columns, 2]: x, then y, from -1 (the first pixel) to 1 (the last); see :func:`affine_grid`.
    name : str, optional

    Returns
    -------
    Variable
        [images, channels, rows, columns]; pixels outside the image count as 0.
    """
    inputs = {"X": check_variable("x", x), "Grid": check_variable("grid", grid)}
    return append("grid_sampler", "grid_sampler", inputs, slot="Output", name=name)


def add_position_encoding(input: Variable, alpha: float, beta: float, name: str | None = None) -> Variable:
    """Return ``alpha * input`` plus ``beta`` times waves that tell the steps of a sequence apart.

    Parameters
    ----------
    input : Variable
        [batch, steps, width], or sequences as a LoD tensor [steps, width]; the width is even.
    alpha : float
        0 or more.
    beta : float
        0 or more.
    name : str, optional

    Returns
    -------
    Variable
        Dims and LoD of ``input``.
    """
    inputs: dict[str, Any] = {"X": check_variable("input", input)}
    attrs = {"alpha": check_float("alpha", alpha), "beta": check_float("beta", beta)}
    return append("add_position_encoding", "add_position_encoding", inputs, attrs, name=name)


def fsp_matrix(x: Variable, y: Variable) -> Variable:
    """Return, for each image, the mean over pixels of the products of all pairs of channels.

    Parameters
    ----------
    x : Variable
        [images, channels, height, width].
    y : Variable
        [images, other channels, height, width].

    Returns
    -------
    Variable
        [images, channels of x, channels of y].
    """
    return append("fsp_matrix", "fsp", {"X": check_variable("x", x), "Y": check_variable("y", y)})
