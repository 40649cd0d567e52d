"""A new elementwise operator with its gradient, checked on every place."""

from __future__ import annotations

from typing import Any

import numpy as np

import fluidlite as fluid
from fluidlite import expr
from fluidlite.plugin import Sample, register_samples, unary
from fluidlite.testing import check_gradient, check_sample


def lisht(x: Any) -> Any:
    """Return x tanh(x)."""
    return x * expr.tanh(x)


def lisht_grad(x: Any, dout: Any) -> Any:
    """Return the gradient of X. The parameters name the variables that backward needs: X, and the gradient of Out."""
    t = expr.tanh(x)
    return dout * (t + x * (1 - t * t))


unary(
    "lisht",
    lisht,
    grad=lisht_grad,
)
register_samples(
    "lisht",
    reference=lambda inputs, attrs: {"Out": inputs["X"] * np.tanh(inputs["X"])},
    samples=[Sample({"X": np.linspace(-3, 3, 12, dtype="float32").reshape(3, 4)}, grads=("X",))],
)

for place in fluid.places():
    check_sample("lisht", place)
    check_gradient("lisht", place)
    with fluid.program_guard(fluid.Program()):
        x = fluid.layers.data("x", shape=[4])
        out = fluid.default_main_program().global_block().create_var("out")
        fluid.default_main_program().global_block().append_op("lisht", {"X": x}, {"Out": out})
        (line,) = fluid.explain(place=place).data()
    print(f"{place}: right, {line['how']} ({line['kernel']}, on {line['place']})")
