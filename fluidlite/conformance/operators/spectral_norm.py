from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import WIDE, Attrs, Inputs, Outputs, rand
from fluidlite.conformance.samples import Sample, register_samples


def _iterated(inputs: Inputs, attrs: Attrs) -> tuple[Any, Any, Any, Any]:
    """The matrix, its singular value and singular vectors."""
    matrix = np.moveaxis(inputs["Weight"], attrs["dim"], 0)
    matrix = matrix.reshape(len(matrix), -1)
    u, v = inputs["U"].reshape(-1), inputs["V"].reshape(-1)
    for _ in range(attrs["power_iters"]):
        v = matrix.T @ u
        v = v / (np.sqrt(v @ v) + attrs["eps"])
        u = matrix @ v
        u = u / (np.sqrt(u @ u) + attrs["eps"])
    return matrix, u @ matrix @ v, u, v


def _inputs(dims: tuple[int, ...], dim: int, *, columns: bool = False) -> dict[str, Any]:
    """U and V near the singular vectors of the weight, so that the singular value is not small."""
    weight = rand(*dims, low=0.2)
    rows, tail = dims[dim], (1,) * columns
    u, v = rand(rows, *tail, low=0.2, seed=1), rand(prod(dims) // rows, *tail, low=0.2, seed=2)
    return {"Weight": weight, "U": u, "V": v}


_GRAD = ("Weight",)
_NO_ITERATIONS: dict[str, Any] = {"power_iters": 0}


@register_samples(
    "spectral_norm",
    samples=lambda: [
        Sample(_inputs((5, 7), 0), {}, name="rows", dtypes=WIDE),
        Sample(_inputs((5, 7), 1), {"dim": 1}, name="columns", dtypes=WIDE),
        Sample(_inputs((5, 7), 0), _NO_ITERATIONS, _GRAD, name="as_given", dtypes=WIDE),
        Sample(_inputs((4, 3, 2, 3), 1), {"dim": 1, **_NO_ITERATIONS}, _GRAD, name="filter_as_given"),
        Sample(_inputs((4, 3, 2, 3), 1), {"dim": 1, "power_iters": 3}, name="filter"),
        Sample(_inputs((2, 3, 4), 0), {"power_iters": 2, "eps": 0.5}, name="eps"),
        Sample(_inputs((2, 3, 2, 1, 2), 1), {"dim": 1}, name="rank5"),
        Sample(_inputs((5, 7), 0, columns=True), {}, name="vectors_as_columns"),
        Sample(_inputs((1, 1), 0), {}, name="one"),
    ],
)
def _reference(inputs: Inputs, attrs: Attrs) -> Outputs:
    return {"Out": inputs["Weight"] / _iterated(inputs, attrs)[1]}


@register_samples(
    "spectral_norm_grad",
    samples=lambda: [
        Sample({**_inputs((5, 7), 0), "Out@GRAD": rand(5, 7, seed=3)}, {}, name="rows", dtypes=WIDE),
        Sample({**_inputs((5, 7), 1), "Out@GRAD": rand(5, 7, seed=3)}, {"dim": 1}, name="columns"),
        Sample({**_inputs((4, 3, 2), 1), "Out@GRAD": rand(4, 3, 2, seed=3)}, {"dim": 1, "power_iters": 3}, name="more"),
        Sample({**_inputs((4, 3, 2), 0), "Out@GRAD": rand(4, 3, 2, seed=3)}, {"eps": 0.5}, name="eps"),
    ],
)
def _reference_grad(inputs: Inputs, attrs: Attrs) -> Outputs:
    _, sigma, u, v = _iterated(inputs, attrs)
    weight, dout = inputs["Weight"], inputs["Out@GRAD"]
    column_dims = [d for i, d in enumerate(weight.shape) if i != attrs["dim"]]
    of_sigma = np.moveaxis(np.outer(u, v).reshape(len(u), *column_dims), 0, attrs["dim"])
    return {"Weight@GRAD": dout / sigma - np.sum(dout * weight) / sigma**2 * of_sigma}
