"""A new elementwise operator with its gradient, on every place, and how each place computes it."""

from __future__ import annotations

from typing import Any

import numpy as np

import fluidlite as fluid
from fluidlite.codegen.expr import exp
from fluidlite.operators.scalar_op import unary
from fluidlite.testing import check_gradient, check_sample


def mish(x: Any) -> Any:
    """Return x tanh(log(1 + e^x)), where tanh(log(1 + e)) is (e e + 2 e) / (e e + 2 e + 2)."""
    e = exp(x)
    return x * (e * e + 2 * e) / (e * e + 2 * e + 2)


def mish_grad(x: Any, dout: Any) -> Any:
    """Return the gradient of X. The parameters say what backward keeps: X, and the gradient of Out."""
    e = exp(x)
    n, d = e * e + 2 * e, e * e + 2 * e + 2
    return dout * (n / d + x * 4 * e * (e + 1) / (d * d))


unary(
    "mish",
    mish,
    grad=mish_grad,
    reference=lambda inputs, attrs: {"Out": inputs["X"] * np.tanh(np.log1p(np.exp(inputs["X"])))},
    samples=[fluid.Sample({"X": np.linspace(-3, 3, 12, dtype="float32").reshape(3, 4)}, grads=("X",))],
)

for place in fluid.places():
    check_sample("mish", place)
    check_gradient("mish", place)
    with fluid.program_guard(fluid.Program()):
        x = fluid.layers.data("x", shape=[4])
        out = fluid.default_main_program().global_block().create_var("out")
        fluid.default_main_program().global_block().append_op("mish", {"X": x}, {"Out": out})
        (line,) = fluid.explain(place=place).data()
    print(f"{place}: right, {line['how']} ({line['kernel']}, on {line['place']})")
