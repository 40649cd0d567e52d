"""Parts of a tensor, tensors in larger ones, elements moved: slice, crop, pad, expand, reverse and their kin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluidlite.framework.variable import Variable
from fluidlite.layer_helper import (
    LayerHelper,
    check_float,
    check_int,
    check_ints,
    check_variable,
    check_variables,
    refuse,
)
from fluidlite.layers.common import append
from fluidlite.layers.numbers import Numbers, numbers

__all__ = [
    "crop", "crop_tensor", "expand", "expand_as", "flip", "meshgrid", "multiplex", "pad", "pad2d", "pad_constant_like",
    "reverse", "roll", "slice", "strided_slice", "tril", "triu",
]  # fmt: skip

# Parts -------------------------------------------------------------------------------------------------------------


def _bounds(type: str, input: Variable, axes: Any, **bounds: Any) -> Variable:
    inputs: dict[str, Any] = {"Input": check_variable("input", input)}
    attrs: dict[str, Any] = {"axes": check_ints("axes", axes)}
    flags = [1] * len(attrs["axes"])
    for name, value in bounds.items():
        slot = name.capitalize() + "Tensor"
        given: Numbers = numbers(name, value, slot, slot + "List", 1 if name == "strides" else 0)
        inputs.update(given.inputs)
        attrs[name] = given.attr
        if slot in given.inputs:
            flags = [-1] * len(flags)
        for i, unknown in enumerate(given.unknown[: len(flags)]):
            flags[i] = -1 if unknown else flags[i]
    return append(type, type, inputs, {**attrs, "infer_flags": flags})


def slice(input: Variable, axes: Sequence[int], starts: Any, ends: Any) -> Variable:
    """Cut dims.

    Parameters
    ----------
    input : Variable
    axes : sequence of int
        The dims that are cut.
    starts, ends : Variable, or sequence of int or Variable
        The first index that is kept of each, and the first that is not; negative ones count from the end, large
        ones are the end.

    Returns
    -------
    Variable
    """
    return _bounds("slice", input, axes, starts=starts, ends=ends)


def strided_slice(input: Variable, axes: Sequence[int], starts: Any, ends: Any, strides: Any) -> Variable:
    """Cut dims, by steps.

    Parameters
    ----------
    input : Variable
    axes : sequence of int
        The dims that are cut.
    starts, ends, strides : Variable, or sequence of int or Variable
        The first index that is kept of each, the first that is not, and the step between those kept. Of a negative
        step, an end of -1 is in front of the first index.

    Returns
    -------
    Variable
    """
    return _bounds("strided_slice", input, axes, starts=starts, ends=ends, strides=strides)


def crop(x: Variable, shape: Any = None, offsets: Any = None, name: str | None = None) -> Variable:
    """Cut a block out of ``x``.

    Parameters
    ----------
    x : Variable
    shape : Variable or sequence of int
        Dims of the block, or a Variable that has them.
    offsets : Variable or sequence of int, optional
        Where it begins; default: 0 everywhere.
    name : str, optional

    Returns
    -------
    Variable
    """
    inputs = {"X": check_variable("x", x)}
    attrs: dict[str, Any] = {}
    if isinstance(shape, Variable):
        inputs["Y"] = shape
    elif shape is None:
        refuse("shape", None, "dims, or a Variable that has them")
    else:
        attrs["shape"] = check_ints("shape", shape)
    if isinstance(offsets, Variable):
        inputs["Offsets"] = offsets
    else:
        attrs["offsets"] = [0] * len(x.shape) if offsets is None else check_ints("offsets", offsets)
    return append("crop", "crop", inputs, attrs, name=name)


def crop_tensor(x: Variable, shape: Any = None, offsets: Any = None, name: str | None = None) -> Variable:
    """Cut a block out of ``x``.

    Parameters
    ----------
    x : Variable
    shape : Variable, or sequence of int or Variable
        Dims of the block; -1: all from the offset on. A Variable holds integers: these dims.
    offsets : Variable, or sequence of int or Variable, optional
        Where it begins; default: 0 everywhere.
    name : str, optional

    Returns
    -------
    Variable
    """
    check_variable("x", x)
    if shape is None:
        refuse("shape", None, "dims: ints, Variables, or one Variable that holds them")
    dims = numbers("shape", shape, "Shape", "ShapeTensor")
    starts = numbers("offsets", [0] * len(x.shape) if offsets is None else offsets, "Offsets", "OffsetsTensor")
    inputs = {"X": x, **dims.inputs, **starts.inputs}
    return append("crop_tensor", "crop_tensor", inputs, {"shape": dims.attr, "offsets": starts.attr}, name=name)


def multiplex(inputs: Sequence[Variable], index: Variable) -> Variable:
    """Choose rows: the ``i``-th is that of ``inputs[index[i]]``.

    Parameters
    ----------
    inputs : list of two Variables or more
        Of equal dims.
    index : Variable
        Integers, [rows, 1].

    Returns
    -------
    Variable

    Raises
    ------
    OutOfRangeError
        When it runs, if an index names no input.
    """
    given = {"X": check_variables("inputs", inputs), "Ids": check_variable("index", index)}
    return append("multiplex", "multiplex", given)


# Larger ones -------------------------------------------------------------------------------------------------------


def expand(x: Variable, expand_times: Any, name: str | None = None) -> Variable:
    """Repeat ``x`` along each dim, so often as ``expand_times`` (ints, Variables, or one Variable) says.

    Parameters
    ----------
    x : Variable
    expand_times : list of int or Variable, or Variable
        A number for each dim.
    name : str, optional

    Returns
    -------
    Variable
    """
    given = numbers("expand_times", expand_times, "ExpandTimes", "expand_times_tensor")
    inputs = {"X": check_variable("x", x), **given.inputs}
    return append("expand", "expand", inputs, {"expand_times": given.attr}, name=name)


def expand_as(x: Variable, target_tensor: Variable, name: str | None = None) -> Variable:
    """Repeat ``x`` along each dim, up to the dims of ``target_tensor``, which are multiples of its own.

    Parameters
    ----------
    x, target_tensor : Variable
        Of one rank; only the dims of the target are read.
    name : str, optional

    Returns
    -------
    Variable
    """
    inputs = {"X": check_variable("x", x), "target_tensor": check_variable("target_tensor", target_tensor)}
    return append("expand_as", "expand_as", inputs, name=name)


def pad(x: Variable, paddings: Sequence[int], pad_value: float = 0.0, name: str | None = None) -> Variable:
    """Put ``pad_value`` around ``x``.

    Parameters
    ----------
    x : Variable
    paddings : sequence of int
        How much in front of and behind each dim, in turn.
    pad_value : float
    name : str, optional

    Returns
    -------
    Variable
    """
    attrs = {"paddings": check_ints("paddings", paddings), "pad_value": check_float("pad_value", pad_value)}
    return append("pad", "pad", {"X": check_variable("x", x)}, attrs, name=name)


def pad2d(
    input: Variable,
    paddings: Any = [0, 0, 0, 0],  # noqa: B006  Fluid's default
    mode: str = "constant",
    pad_value: float = 0.0,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Variable:
    """Put a border around images.

    Parameters
    ----------
    input : Variable
        [batch, channels, height, width], or with the channels last.
    paddings : Variable or sequence of int
        Rows above, rows below, columns left, columns right.
    mode : str
        ``"constant"``: ``pad_value``; ``"reflect"``: the image, mirrored at its border; ``"edge"``: its border.
    pad_value : float
    data_format : str
        ``"NCHW"`` or ``"NHWC"``.
    name : str, optional

    Returns
    -------
    Variable

    Raises
    ------
    ShapeError
        If as many rows or columns are mirrored as there are.
    """
    inputs = {"X": check_variable("input", input)}
    attrs: dict[str, Any] = {"mode": mode, "pad_value": check_float("pad_value", pad_value), "data_format": data_format}
    if isinstance(paddings, Variable):
        inputs["Paddings"] = paddings
        attrs["paddings"] = []
    else:
        attrs["paddings"] = check_ints("paddings", paddings)
    return append("pad2d", "pad2d", inputs, attrs, name=name)


def pad_constant_like(x: Variable, y: Variable, pad_value: float = 0.0, name: str | None = None) -> Variable:
    """Return ``y`` with ``pad_value`` behind each dim, up to the dims of ``x``.

    Parameters
    ----------
    x, y : Variable
        Of one rank and dtype; no dim of ``y`` is larger than that of ``x``, whose dims alone are read.
    pad_value : float
    name : str, optional

    Returns
    -------
    Variable
    """
    inputs = {"X": check_variable("x", x), "Y": check_variable("y", y)}
    attrs = {"pad_value": check_float("pad_value", pad_value)}
    return append("pad_constant_like", "pad_constant_like", inputs, attrs, name=name)


def meshgrid(input: Sequence[Variable], name: str | None = None) -> list[Variable]:
    """Return for each of the vectors a tensor that is it along its dim, repeated along those of the others.

    Parameters
    ----------
    input : list of Variable
        Vectors, [size].
    name : str, optional

    Returns
    -------
    list of Variable
        Each of the dims [size of the first, size of the second, ...].
    """
    vectors = check_variables("input", input)
    helper = LayerHelper("meshgrid", name=name)
    outs = [helper.create_variable_for_type_inference(vector.dtype) for vector in vectors]
    helper.append_op("meshgrid", {"X": vectors}, {"Out": outs})
    return outs


# Moved elements ----------------------------------------------------------------------------------------------------


def reverse(x: Variable, axis: int | Sequence[int]) -> Variable:
    """Return ``x`` with the dims in ``axis`` in reverse order.

    Parameters
    ----------
    x : Variable
    axis : int or list of int

    Returns
    -------
    Variable
    """
    return append("reverse", "reverse", {"X": check_variable("x", x)}, {"axis": check_ints("axis", axis)})


def flip(input: Variable, dims: int | Sequence[int], name: str | None = None) -> Variable:
    """Return ``input`` with the dims in ``dims`` in reverse order.

    Parameters
    ----------
    input : Variable
    dims : int or list of int
    name : str, optional

    Returns
    -------
    Variable
    """
    return append("flip", "flip", {"X": check_variable("input", input)}, {"dims": check_ints("dims", dims)}, name=name)


def roll(input: Variable, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Variable:
    """Roll dims: what leaves one at its end comes in at its beginning.

    Parameters
    ----------
    input : Variable
    shifts : int or sequence of int
        How far; negative ones roll towards the beginning.
    dims : int or sequence of int, optional
        Which; default: ``input`` as one row.

    Returns
    -------
    Variable
    """
    attrs = {"shifts": check_ints("shifts", shifts), "dims": [] if dims is None else check_ints("dims", dims)}
    return append("roll", "roll", {"X": check_variable("input", input)}, attrs)


def _triangle(type: str, input: Variable, diagonal: int, lower: bool, name: str | None) -> Variable:
    attrs = {"diagonal": check_int("diagonal", diagonal), "lower": lower}
    return append(type, "tril_triu", {"X": check_variable("input", input)}, attrs, name=name)


def tril(input: Variable, diagonal: int = 0, name: str | None = None) -> Variable:
    """Return the matrices of ``input`` on and below a diagonal (0: the main one, 1: that above), else 0.

    Parameters
    ----------
    input : Variable
        [..., rows, columns].
    diagonal : int
    name : str, optional

    Returns
    -------
    Variable
    """
    return _triangle("tril", input, diagonal, True, name)


def triu(input: Variable, diagonal: int = 0, name: str | None = None) -> Variable:
    """Return the matrices of ``input`` on and above a diagonal (0: the main one, 1: that above), else 0.

    Parameters
    ----------
    input : Variable
        [..., rows, columns].
    diagonal : int
    name : str, optional

    Returns
    -------
    Variable
    """
    return _triangle("triu", input, diagonal, False, name)
