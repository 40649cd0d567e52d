"""Pool2D: one number of each window."""

from __future__ import annotations

from typing import Any

from fluidlite.base.dtypes import is_float
from fluidlite.layers import pool2d
from fluidlite.nn.layer import Layer
from fluidlite.program.variable import Variable
from fluidlite.tensor.tensor_spec import Spec


class Pool2D(Layer):
    """The maximum, or the mean, of windows of each channel.

    Parameters
    ----------
    size : int or (height, width), optional
        None: one window, the whole image.
    stride : int or pair, optional
        Default: ``size``.
    padding : int, pair, "SAME" or "VALID"
    kind : {"max", "avg"}
    name : str, optional
    """

    kind = "pool2d"

    def __init__(
        self, size: Any = None, stride: Any = None, padding: Any = 0, kind: str = "max", name: str | None = None
    ) -> None:
        super().__init__(name)
        self.size, self.padding, self.pooling = size, padding, kind
        self.stride = stride if stride is not None else (size if size is not None else 1)

    def expects(self, spec: Spec) -> str | None:
        if len(spec.dims) != 4 or not is_float(spec.dtype):
            return "images, [rows, channels, height, width], a floating-point type"
        return None

    def build(self, x: Variable) -> Variable:
        whole = self.size is None
        return pool2d(
            x, -1 if whole else self.size, self.pooling, self.stride, self.padding, global_pooling=whole, name=self.name
        )

    def config(self) -> dict[str, Any]:
        return {"size": self.size, "stride": self.stride, "padding": self.padding, "kind": self.pooling}
