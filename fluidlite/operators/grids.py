"""affine_grid: where the pixels of an image lie in another, by an affine map."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS, INTS
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, GradRule, Sample, Slot
from fluidlite.framework.registry import register_op
from fluidlite.operators.inference import Inferred, agree, all_agree, grad_inputs, grad_outputs, like
from fluidlite.operators.samples import EVERY, WIDE, rand

_ATTRS = (Attr("output_shape", "ints", (), doc="[images, channels, height, width] of the image to come"),)


_MOST = 2**20
"""The places of rows and of columns are constants of the program: so many at most."""


def _infer(call: Call) -> Inferred:
    theta, shape = call.spec("Theta"), call.attr("output_shape")
    call.need(theta.rank == 3 and all_agree(theta.dims[1:], (2, 3)), "Theta", "[images, 2, 3]: a map for each image")
    if call.has("OutputShape"):
        call.need(all_agree(call.dims("OutputShape"), (4,)), "OutputShape", "[4]: images, channels, height, width")
        value = call.value("OutputShape")
        shape = (-1, -1, -1, -1) if value is None else tuple(map(int, value))
        if value is not None and not all(1 <= d <= _MOST for d in shape[2:]):
            call.fail("OutputShape", f"a height and a width of 1 to {_MOST}", got=list(shape))
    elif len(shape) != 4 or not all(1 <= d <= _MOST for d in shape[2:]):
        call.fail_attr("output_shape", f"[images, channels, height, width], the last two 1 to {_MOST}")
    if not agree(shape[0], theta.dims[0]):
        call.fail("Theta", f"{shape[0]} maps, one for each image of the shape")
    return {"Output": like(theta, (theta.dims[0], *shape[2:], 2))}


def _lines(build: Any, height: int, width: int, dtype: str) -> tuple[Any, Any]:
    """Return the homogeneous places (x, 0, 1) of the columns and (0, y, 0) of the rows: they add up to a pixel's."""

    def line(size: int, part: int) -> Any:
        places = np.zeros((size, 3))
        places[:, part] = np.linspace(-1, 1, size)
        if part == 0:
            places[:, 2] = 1
        attrs = {"shape": [size, 3], "dtype": dtype, "fp32_values": places.ravel().tolist()}
        return build("assign_value", {}, {"Out": build.temp()}, attrs)

    return line(width, 0), line(height, 1)


def _decompose(call: Call, build: Any) -> None:
    images, height, width, _ = call.dims("Output")
    if images == 0:
        attrs = {"shape": list(call.dims("Output")), "dtype": call.dtype("Theta")}
        build("fill_constant", {}, {"Out": build.output("Output")}, attrs)
        return
    sums = []
    for line, dims in zip(
        _lines(build, height, width, call.dtype("Theta")),
        ((images, 1, width, 2), (images, height, 1, 2)),
        strict=True,
    ):
        moved = build("matmul", {"X": line, "Y": build.input("Theta")}, {"Out": build.temp()}, {"transpose_Y": True})
        sums.append(build("reshape2", {"X": moved}, {"Out": build.temp()}, {"shape": list(dims)}))
    build("elementwise_add", {"X": sums[0], "Y": sums[1]}, {"Out": build.output("Output")})


def _decompose_grad(call: Call, build: Any) -> None:
    dout, (images, height, width, _) = build.input("Output@GRAD"), call.dims("Output@GRAD")
    if images == 0:
        attrs = {"shape": [0, 2, 3], "dtype": call.dtype("Output@GRAD")}
        build("fill_constant", {}, {"Out": build.output("Theta@GRAD")}, attrs)
        return
    parts = []
    for line, axis in zip(_lines(build, height, width, call.dtype("Output@GRAD")), (1, 2), strict=True):
        summed = build("reduce_sum", {"X": dout}, {"Out": build.temp()}, {"dim": [axis]})
        parts.append(build("matmul", {"X": summed, "Y": line}, {"Out": build.temp()}, {"transpose_X": True}))
    build("elementwise_add", {"X": parts[0], "Y": parts[1]}, {"Out": build.output("Theta@GRAD")})


def _reference(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    _, _, height, width = inputs["OutputShape"] if "OutputShape" in inputs else attrs["output_shape"]
    y, x = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    return {"Output": np.einsum("nij,hwj->nhwi", inputs["Theta"], np.stack([x, y, np.ones_like(x)], axis=-1))}


register_op(
    "affine_grid",
    inputs=("Theta", Slot("OutputShape", dispensable=True, value=True, doc="[4]: the shape; wins over output_shape")),
    outputs=("Output",),
    attrs=_ATTRS,
    infer=_infer,
    grad=GradRule("affine_grid_grad", ("Output@GRAD",), ("Theta",)),
    decompose=_decompose,
    dtypes={"Theta": ALL_FLOATS, "OutputShape": INTS},
    reference=_reference,
    samples=lambda: [
        Sample({"Theta": rand(2, 2, 3)}, {"output_shape": [2, 3, 4, 5]}, ("Theta",), name="images", dtypes=EVERY),
        Sample({"Theta": rand(1, 2, 3), "OutputShape": np.array([1, 3, 2, 4], "int32")}, {}, ("Theta",), name="tensor"),
        Sample({"Theta": rand(1, 2, 3)}, {"output_shape": [1, 1, 1, 1]}, ("Theta",), name="pixel", dtypes=WIDE),
        Sample({"Theta": rand(0, 2, 3)}, {"output_shape": [0, 3, 4, 5]}, name="no_images"),
    ],
    doc="Output[n, i, j] = Theta[n] . (x, y, 1), x and y the places of column j and row i between -1 and 1",
    source="Fluid affine_grid_op.cc",
)


def _infer_grad(call: Call) -> Inferred:
    dout = call.spec("Output@GRAD")
    return {"Theta@GRAD": like(dout, (dout.dims[0], 2, 3))}


register_op(
    "affine_grid_grad",
    inputs=grad_inputs("Output@GRAD"),
    outputs=grad_outputs("Theta"),
    attrs=_ATTRS,
    infer=_infer_grad,
    decompose=_decompose_grad,
    doc="Theta@GRAD[n] = the sum over pixels of Output@GRAD (x, y, 1)",
)
