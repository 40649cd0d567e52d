"""Elementwise operators on two tensors, scale and increment.

Y is broadcast against X as in Fluid: its dims, less trailing ones, are a run of X's dims that starts at ``axis``
(-1: that ends with X's last).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS, ALL_INTS, INTS
from fluidlite.codegen.expr import floordiv, log, maximum, minimum, mod, pow_, where
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, Sample, Slot
from fluidlite.operators.inference import Inferred, like, one_number
from fluidlite.operators.samples import EVERY, WIDE, ints, pairwise, rand, unary_samples
from fluidlite.operators.scalar_op import SUMMED, binary, scalar_op, unary

_SOURCE = "Fluid elementwise_op.h"
_NUMBERS = (*ALL_FLOATS, *ALL_INTS)

_UNUSED = (
    *(Attr(f"{name}_data_format", "str", "", doc="a hint for Fluid's oneDNN kernels; of no effect") for name in "xy"),
    *(Attr(f"Scale_{name}", "float", 1.0, doc="of Fluid's int8 kernels; of no effect") for name in ("x", "y", "out")),
)
_pair = partial(binary, attrs=_UNUSED)


def _both(*types: str) -> dict[str, tuple[str, ...]]:
    return {"X": types, "Y": types}


def _samples(
    low: float = 0.3,
    high: float = 2.0,
    grads: tuple[str, ...] = ("X", "Y"),
    integers: bool = True,
    floats: bool = True,
) -> Callable[[], list[Sample]]:
    """Return samples of every form of broadcasting. X and Y are never nearer than 1/32."""

    def samples() -> list[Sample]:
        def pair(x: tuple[int, ...], y: tuple[int, ...]) -> dict[str, Any]:
            a, b = rand(*x, low=low, high=high, seed=1), rand(*y, low=low, high=high, seed=2)
            return {"X": np.round(a * 16) / 16, "Y": np.round(b * 16) / 16 + np.float32(0.03125)}

        found = []
        if floats:
            found = [
                Sample(pair((5, 7), (5, 7)), {}, grads, name="same", dtypes=EVERY),
                Sample(pair((1,), (1,)), {}, grads, name="one"),
                Sample(pair((), ()), {}, grads, name="rank0"),
                Sample(pair((3, 4), (1,)), {}, grads, name="scalar_y", dtypes=WIDE),
                Sample(pair((5, 7), (7,)), {}, grads, name="bias", dtypes=EVERY),
                Sample(pair((3, 3), (3,)), {"axis": 0}, grads, name="axis0", dtypes=WIDE),
                Sample(pair((2, 3, 4, 5), (3, 4)), {"axis": 1}, grads, name="middle", dtypes=WIDE),
                Sample(pair((2, 3, 4), (3, 1)), {"axis": 1}, grads, name="trailing_one"),
                Sample(pair((2, 3, 4), (2, 1, 4)), {}, grads, name="inner_one"),
                Sample(pair((4, 3), (1, 3)), {}, grads, name="row"),
                Sample(pair((4, 3), (4, 1)), {}, grads, name="column"),
                Sample(pair((4,), (3, 4)), {}, grads, name="small_x", dtypes=WIDE),
                Sample(pair((3,), (2, 3, 4)), {"axis": 1}, grads, name="small_x_axis1"),
                Sample(pair((1,), (3, 2)), {}, grads, name="scalar_x"),
                Sample(pair((40, 65), (65,)), {}, name="large", dtypes=WIDE),
                Sample(pair((0, 3), (3,)), {}, name="empty"),
            ]
        if integers:
            for dtype in INTS:
                x, y = ints(4, 5, low=-9, dtype=dtype), ints(4, 5, low=1, high=4, seed=1, dtype=dtype)
                found.append(Sample({"X": x, "Y": y}, {}, name=dtype, dtypes=(dtype,)))
                found.append(Sample({"X": x, "Y": y[:, 0]}, {"axis": 0}, name=dtype + "_axis0", dtypes=(dtype,)))
        return found

    return samples


def _truncated(x: Any, y: Any) -> Any:
    """Divide; integers truncate toward zero, as C does."""
    return np.trunc(x / y).astype(x.dtype) if x.dtype.kind in "iu" else x / y


_pair("elementwise_add", lambda x, y: x + y, grad=lambda dout: (dout, dout), dtypes=_both(*_NUMBERS),
      reference=pairwise(np.add), samples=_samples(), may_alias={"Out": "X"},
      doc="Out = X + Y", source=_SOURCE)  # fmt: skip

_pair("elementwise_sub", lambda x, y: x - y, grad=lambda dout: (dout, -dout), dtypes=_both(*_NUMBERS),
      reference=pairwise(np.subtract), samples=_samples(), may_alias={"Out": "X"},
      doc="Out = X - Y", source=_SOURCE)  # fmt: skip

_pair("elementwise_mul", lambda x, y: x * y, grad=lambda x, y, dout: (dout * y, dout * x), dtypes=_both(*_NUMBERS),
      reference=pairwise(np.multiply), samples=_samples(), may_alias={"Out": "X"},
      grad_memory=SUMMED, doc="Out = X Y", source=_SOURCE)  # fmt: skip

_pair("elementwise_div", lambda x, y: x / y, grad=lambda y, out, dout: (dout / y, -dout * out / y),
      reference=pairwise(_truncated), samples=_samples(), dtypes=_both(*_NUMBERS), may_alias={"Out": "X"},
      grad_memory=SUMMED, doc="Out = X / Y; integers truncate toward 0", source=_SOURCE)  # fmt: skip

# Equal elements pass the gradient to Y, in both.
_pair("elementwise_max", maximum, grad=lambda x, y, dout: (where(x > y, dout, 0), where(x > y, 0, dout)),
      reference=pairwise(np.maximum), samples=_samples(-1, 1), dtypes=_both(*_NUMBERS), may_alias={"Out": "X"},
      grad_memory=SUMMED, doc="Out = max(X, Y); NaN if one is NaN", source=_SOURCE)  # fmt: skip

_pair("elementwise_min", minimum, grad=lambda x, y, dout: (where(x < y, dout, 0), where(x < y, 0, dout)),
      reference=pairwise(np.minimum), samples=_samples(-1, 1), dtypes=_both(*_NUMBERS), may_alias={"Out": "X"},
      grad_memory=SUMMED, doc="Out = min(X, Y); NaN if one is NaN", source=_SOURCE)  # fmt: skip

_pair("elementwise_pow", pow_, grad=lambda x, y, out, dout: (dout * y * pow_(x, y - 1), dout * log(x) * out),
      reference=pairwise(np.power), samples=_samples(), dtypes=_both(*ALL_FLOATS, *INTS),
      may_alias={"Out": "X"}, grad_memory=SUMMED, doc="Out = X ^ Y; integers wrap", source=_SOURCE)  # fmt: skip

_pair("elementwise_mod", mod, reference=pairwise(np.mod), dtypes=_both(*_NUMBERS),
      samples=_samples(-2, 2, grads=()), may_alias={"Out": "X"},
      doc="Out = X - Y floor(X / Y): the remainder has the sign of Y", source=_SOURCE)  # fmt: skip

_pair("elementwise_floordiv", floordiv, reference=pairwise(np.floor_divide), dtypes=_both(*ALL_INTS),
      samples=_samples(floats=False, grads=()), may_alias={"Out": "X"},
      doc="Out = floor(X / Y), as Python's //; Fluid 1.x truncates, which differs where the signs do",
      source=_SOURCE)  # fmt: skip

# minus has no axis attribute in Fluid: X and Y have equal dims.
scalar_op("minus", lambda x, y: x - y, grad=lambda dout: (dout, -dout), dtypes=_both(*ALL_FLOATS),
       reference=pairwise(np.subtract), differentiable=("X", "Y"),
       samples=lambda: [s for s in _samples(integers=False)() if s.name in ("same", "one", "rank0")],
       doc="Out = X - Y", source="Fluid minus_op.cc")  # fmt: skip


# scale and increment -----------------------------------------------------------------------------------------------


def _scale(x: Any, scale_tensor: Any, *, scale: Any, bias: Any, bias_after_scale: bool) -> Any:
    factor = scale if scale_tensor is None else scale_tensor
    return x * factor + bias if bias_after_scale else (x + bias) * factor


def _infer_scale(call: Call) -> Inferred:
    one_number(call, "ScaleTensor", like="X")
    return {"Out": like(call.spec("X"))}


def _scale_grad(maker: Any) -> None:
    inputs = {"X": maker.output_grad("Out")}
    if maker.count("ScaleTensor"):
        inputs["ScaleTensor"] = maker.input("ScaleTensor")
    maker.op("scale", inputs, {"Out": maker.input_grad("X")}, {"scale": maker.attr("scale")})


def _reference_scale(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, s, b = inputs["X"], inputs.get("ScaleTensor", attrs["scale"]), attrs["bias"]
    out = x * s + b if attrs["bias_after_scale"] else (x + b) * s
    return {"Out": np.asarray(out, x.dtype)}


unary("scale", _scale, grad=_scale_grad, dtypes={"X": _NUMBERS, "ScaleTensor": _NUMBERS}, reference=_reference_scale,
      slots={"ScaleTensor": Slot("ScaleTensor", dispensable=True,
                                 doc="[1]: the factor instead of scale; it gets no gradient")},
      infer=_infer_scale, may_alias={"Out": "X"},
      attrs=(Attr("scale", "float", 1.0), Attr("bias", "float", 0.0),
             Attr("bias_after_scale", "bool", True, doc="False: Out = scale (X + bias)")),
      samples=lambda: [
          Sample({"X": rand(5, 7), "ScaleTensor": rand(1, low=2, high=3)}, {"scale": 9.0, "bias": 0.5}, ("X",),
                 name="tensor", dtypes=EVERY),
          Sample({"X": rand(2, 3), "ScaleTensor": rand(1, low=2, high=3)}, {"bias": 0.5, "bias_after_scale": False},
                 ("X",), name="tensor_last"),
          Sample({"X": ints(4, 3), "ScaleTensor": np.array([3])}, {"bias": 2.0}, name="tensor_int64",
                 dtypes=("int64",)),
          *unary_samples(attrs=({}, {"scale": 2.5}, {"bias": -1.0, "scale": 3.0},
                                {"scale": 2.0, "bias": 0.5, "bias_after_scale": False}))(),
          *(Sample({"X": ints(3, 4, low=-9, dtype=t)}, {"scale": 3.0, "bias": 2.0}, name=t, dtypes=(t,)) for t in INTS),
      ],
      doc="Out = scale X + bias, or scale (X + bias)", source="Fluid scale_op.cc")  # fmt: skip

unary("increment", lambda x, *, step: x + step, dtypes={"X": _NUMBERS}, attrs=(Attr("step", "float", 1.0),),
      reference=lambda inputs, attrs: {"Out": np.asarray(inputs["X"] + attrs["step"], inputs["X"].dtype)},
      samples=lambda: [
          Sample({"X": rand(1)}, {}, name="one", dtypes=WIDE),
          Sample({"X": rand(1)}, {"step": -2.5}, name="step"),
          *(Sample({"X": ints(1, dtype=t)}, {"step": 2.0}, name=t, dtypes=(t,)) for t in INTS),
      ],
      doc="Out = X + step", source="Fluid increment_op.cc")  # fmt: skip
