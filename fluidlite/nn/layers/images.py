"""Layers of images: convolution (Conv2D) and pooling (Pool2D)."""

from __future__ import annotations

from typing import Any

from fluidlite.base.dtypes import is_float
from fluidlite.layers import conv2d, pool2d
from fluidlite.nn.layer import Layer
from fluidlite.program.variable import Variable
from fluidlite.tensor.tensor_spec import Spec


class _ImageLayer(Layer):
    def expects(self, spec: Spec) -> str | None:
        if len(spec.dims) != 4 or not is_float(spec.dtype):
            return "images, [rows, channels, height, width], a floating-point type"
        return None


class Conv2D(_ImageLayer):
    """act(convolution + bias), [images, filters, height, width].

    Parameters
    ----------
    filters : int
    size : int or (height, width)
    stride, padding, dilation : int, pair, or (padding) "SAME" or "VALID"
    groups : int
    activation : str, optional
    weight, bias : Initializer or ParamAttr, optional
        Initial values; default: normal numbers of variance 2 / fan-in, and zeros. ``bias=False``: none.
    name : str, optional
    """

    kind = "conv2d"
    configured = ("filters", "size", "stride", "padding", "dilation", "groups", "activation")

    def __init__(
        self,
        filters: int,
        size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        activation: str | None = None,
        weight: Any = None,
        bias: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.filters, self.size, self.stride, self.padding = filters, size, stride, padding
        self.dilation, self.groups, self.activation = dilation, groups, activation
        self._weight, self._bias = weight, bias

    def build(self, x: Variable) -> Variable:
        return conv2d(
            x,
            self.filters,
            self.size,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
            param_attr=self.attr(self._weight),
            bias_attr=self.attr(self._bias),
            act=self.activation,
            name=self.name,
        )


class Pool2D(_ImageLayer):
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

    def build(self, x: Variable) -> Variable:
        global_pooling = self.size is None
        return pool2d(
            x,
            -1 if global_pooling else self.size,
            self.pooling,
            self.stride,
            self.padding,
            global_pooling=global_pooling,
            name=self.name,
        )

    def config(self) -> dict[str, Any]:
        return {"size": self.size, "stride": self.stride, "padding": self.padding, "kind": self.pooling}
