"""Embedding: rows of a table, by their ids."""

from __future__ import annotations

from typing import Any

from fluidlite.base.dtypes import INTS
from fluidlite.input import embedding
from fluidlite.nn.layer import Layer
from fluidlite.param_attr import ParamAttr
from fluidlite.program.variable import Variable
from fluidlite.tensor.tensor_spec import Spec


class Embedding(Layer):
    """The rows of a table that ids name, [..., width].

    Parameters
    ----------
    vocabulary : int
        Rows of the table.
    width : int
    padding : int, optional
        Rows of this id are zeros, and are not trained.
    weight : Initializer or ParamAttr, optional
        First values of the table.
    name : str, optional
    """

    kind = "embedding"
    configured = ("vocabulary", "width", "padding")

    def __init__(
        self, vocabulary: int, width: int, padding: int | None = None, weight: Any = None, name: str | None = None
    ) -> None:
        super().__init__(name)
        self.vocabulary, self.width, self.padding, self._weight = vocabulary, width, padding, weight

    def expects(self, spec: Spec) -> str | None:
        return None if spec.dtype in INTS else f"ids, one of {', '.join(INTS)}"

    def build(self, x: Variable) -> Variable:
        """Append a look-up; the table is named as those of other layers."""
        attr = self.attr(self._weight) or ParamAttr()
        if attr.name is None:
            attr = attr.copy()
            attr.name = f"{self.name}.w_0"
        return embedding(x, [self.vocabulary, self.width], padding_idx=self.padding, param_attr=attr)
