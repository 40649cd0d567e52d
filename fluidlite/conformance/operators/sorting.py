from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, WIDE, Attrs, Inputs, Outputs, distinct, ints, rand
from fluidlite.conformance.samples import Sample, register_samples


def _values(name: str, x: Any, dtypes: tuple[str, ...] = ("float32",), **attrs: Any) -> Sample:
    """A sample without gradients."""
    return Sample({"X": x}, attrs, name=name, dtypes=dtypes)


def _argsort_samples() -> list[Sample]:
    nan, inf = np.nan, np.inf
    return [
        Sample({"X": distinct(4, 7)}, {}, ("X",), name="rows", dtypes=EVERY),
        Sample({"X": distinct(5, 7)}, {"descending": True}, ("X",), name="descending", dtypes=EVERY),
        Sample({"X": distinct(5, 4)}, {"axis": 0}, ("X",), name="columns", dtypes=EVERY),
        Sample({"X": distinct(2, 5, 3)}, {"axis": -2, "descending": True}, ("X",), name="middle"),
        _values("ties", ints(3, 90, high=9).astype("float32"), WIDE),
        _values("ties_descending", ints(3, 90, high=9).astype("float32"), WIDE, descending=True),
        _values("special", np.array([[nan, 1, inf, -inf, nan, -0.0, 0.0, -2]], "float32"), EVERY),
        _values(
            "special_descending", np.array([nan, 1, inf, -inf, nan, 0.0, -0.0, -2], "float32"), EVERY, descending=True
        ),
        _values("long", distinct(1500), WIDE),
        _values("long_rows", distinct(3, 333), WIDE, descending=True),
        _values("long_columns", distinct(70, 3), axis=0),
        _values("int32", np.array([3, -(2**31), 2**31 - 1, 0, 3], "int32"), ("int32",), descending=True),
        _values("int64", np.array([3, -(2**63), 2**63 - 1, 0, 3], "int64"), ("int64",), descending=True),
        _values("small_int64", ints(3, 80, low=-50, high=50), ("int64",)),
        Sample({"X": rand(3, 4)}, {}, lod={"X": ((0, 1, 3),)}, name="sequences"),
        Sample({"X": rand(0, 4)}, {}, name="empty"),
        Sample({"X": rand(4, 0)}, {}, name="empty_rows"),
        Sample({"X": rand(4, 1)}, {}, name="one"),
    ]


def _order(x: Any, axis: int, descending: bool) -> Any:
    """Places of the numbers in order, equal ones as they lie, NaN at the end."""
    upwards = x if not descending else -x if x.dtype.kind == "f" else ~x
    return np.argsort(upwards, axis, kind="stable")


@register_samples("argsort", samples=_argsort_samples)
def _reference_argsort(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, axis = inputs["X"], attrs["axis"]
    order = _order(x, axis, attrs["descending"])
    return {"Out": np.take_along_axis(x, order, axis), "Indices": order}


@register_samples(
    "top_k",
    samples=lambda: [
        Sample({"X": distinct(5, 7)}, {}, ("X",), name="largest", dtypes=EVERY),
        Sample({"X": distinct(5, 7)}, {"k": 3}, ("X",), name="three", dtypes=EVERY),
        Sample({"X": np.array([[1, 3, 3, 2, 3]], "float32")}, {"k": 4}, name="ties", dtypes=WIDE),
        Sample({"X": distinct(2, 3, 6)}, {"k": 6}, ("X",), name="all"),
        Sample({"X": distinct(4)}, {"k": 2}, ("X",), name="vector"),
        Sample({"X": distinct(5, 7), "K": np.array([2], "int32")}, {}, ("X",), name="k_tensor"),
        Sample({"X": distinct(2, 300)}, {"k": 40}, name="many_of_a_row", dtypes=WIDE),
        Sample({"X": ints(2, 1500, high=400).astype("float32")}, {"k": 100}, name="many_of_a_long_row", dtypes=WIDE),
        Sample({"X": ints(3, 5, dtype="int32")}, {"k": 2}, name="int32", dtypes=("int32",)),
        Sample({"X": rand(0, 5)}, {"k": 2}, name="no_rows"),
    ],
)
def _reference_top_k(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, k = inputs["X"], int(inputs["K"][0]) if "K" in inputs else attrs["k"]
    order = _order(x, -1, descending=True)[..., :k]
    return {"Out": np.take_along_axis(x, order, -1), "Indices": order}


def _reference_arg(function: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    def reference(inputs: Inputs, attrs: Attrs) -> Outputs:
        axis = None if attrs["flatten"] else attrs["axis"]
        out = function(inputs["X"], axis, keepdims=attrs["keepdims"] and axis is not None)
        return {"Out": np.asarray(out, attrs["dtype"] or "int64").reshape(out.shape or (1,))}

    return reference


def _arg_samples() -> list[Sample]:
    nan, inf = np.nan, np.inf
    return [
        Sample({"X": distinct(5, 7)}, {"axis": 1}, name="rows", dtypes=EVERY),
        Sample({"X": distinct(5, 7)}, {"axis": 0}, name="columns", dtypes=EVERY),
        Sample({"X": distinct(3, 4, 5)}, {"axis": -2, "keepdims": True}, name="middle_kept", dtypes=WIDE),
        Sample({"X": distinct(3, 4)}, {"axis": 0, "flatten": True}, name="flat"),
        Sample({"X": distinct(3, 4)}, {"axis": -1, "dtype": "int32"}, name="int32_out"),
        Sample({"X": ints(4, 9, high=3).astype("float32")}, {"axis": 1}, name="ties", dtypes=EVERY),
        Sample({"X": ints(9, 4, high=3).astype("float32")}, {"axis": 0}, name="ties_in_columns", dtypes=EVERY),
        Sample({"X": np.array([[1, nan, 2, nan], [inf, 1, inf, -inf]], "float32")}, {"axis": 1}, name="special"),
        _values("special_in_columns", np.array([[1, nan, 2], [inf, nan, -inf], [3, 1, inf]], "float32"), axis=0),
        Sample({"X": distinct(6)}, {"axis": 0}, name="vector"),
        Sample({"X": distinct(2, 3000)}, {"axis": 1}, name="long"),
        Sample({"X": ints(4, 9, low=-9)}, {"axis": 1}, name="int64", dtypes=("int64",)),
        Sample({"X": ints(4, 9, low=-9, dtype="int32")}, {"axis": 0}, name="int32", dtypes=("int32",)),
        Sample({"X": ints(4, 9, high=200, dtype="uint8")}, {"axis": 0}, name="uint8", dtypes=("uint8",)),
        Sample({"X": rand(0, 4)}, {"axis": 1}, name="empty"),
    ]


register_samples("arg_max", reference=_reference_arg(np.argmax), samples=_arg_samples)
register_samples("arg_min", reference=_reference_arg(np.argmin), samples=_arg_samples)
