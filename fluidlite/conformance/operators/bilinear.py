from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, NUMBERS, WIDE, Attrs, Inputs, Outputs, pair, rand
from fluidlite.conformance.samples import Sample, register_samples


def _rows_of_norms(*dims: int, seed: int = 0) -> Any:
    """Rows of ordinary norm, of zeros, and of a norm below the lower bound."""
    scale = np.asarray([1, 0, 2.0**-16], "float32")[(np.arange(dims[0]) + seed) % 3]
    return rand(*dims, seed=seed) * scale[:, None]


MIN_SQUARED_NORM = 1e-8
"""Lower bound of a row's sum of squares, so that a row of zeros has the cosine 0, and a gradient."""


@register_samples(
    "cos_sim",
    samples=lambda: [
        Sample(pair((5, 7), (5, 7)), {}, ("X", "Y"), name="rows", dtypes=EVERY),
        Sample(pair((5, 7), (1, 7)), {}, ("X", "Y"), name="one_row", dtypes=EVERY),
        Sample(pair((3, 2, 4), (3, 2, 4)), {}, ("X", "Y"), name="rank3"),
        Sample(pair((3, 2, 4), (1, 2, 4)), {}, ("X", "Y"), name="rank3_one_row"),
        Sample(pair((1, 3), (1, 3)), {}, ("X", "Y"), name="one"),
        Sample(pair((70, 1200), (70, 1200)), {}, name="large", dtypes=WIDE),
        Sample(pair((70, 1200), (1, 1200)), {}, name="large_one_row", dtypes=WIDE),
        Sample(pair((0, 3), (1, 3)), {}, name="empty"),
        Sample({"X": _rows_of_norms(5, 7), "Y": _rows_of_norms(5, 7, seed=1)}, {}, name="zeros", dtypes=EVERY),
        Sample({"X": _rows_of_norms(5, 7), "Y": np.zeros((1, 7), "float32")}, {}, name="one_row_of_zeros"),
    ],
)
def _reference_cos(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, y = (inputs[slot].reshape(inputs[slot].shape[0], int(np.prod(inputs[slot].shape[1:]))) for slot in "XY")
    norms = [np.sqrt(np.maximum(np.sum(a * a, axis=1, keepdims=True), MIN_SQUARED_NORM)) for a in (x, y)]
    cosine = [[a @ y[i % len(y)] / norms[0][i, 0] / norms[1][i % len(y), 0]] for i, a in enumerate(x)]
    return {"Out": np.asarray(cosine).reshape(-1, 1), "XNorm": norms[0], "YNorm": norms[1]}


register_samples(
    "dot",
    reference=lambda inputs, attrs: {"Out": np.einsum("...i,...i->...", inputs["X"], inputs["Y"])[..., None]},
    samples=lambda: [
        Sample(pair((5, 7), (5, 7)), {}, ("X", "Y"), name="rows", dtypes=NUMBERS),
        Sample(pair((6,), (6,)), {}, ("X", "Y"), name="vectors"),
        Sample(pair((1,), (1,)), {}, ("X", "Y"), name="one"),
        Sample(pair((0, 3), (0, 3)), {}, name="empty"),
    ],
)


def _samples_bilinear() -> list[Sample]:
    def case(name: str, rows: int, m: int, n: int, size: int, bias: bool, dtypes: Any, check: bool = True) -> Sample:
        inputs = {**pair((rows, m), (rows, n)), "Weight": rand(size, m, n, seed=2)}
        if bias:
            inputs["Bias"] = rand(1, size, seed=3)
        return Sample(inputs, {}, tuple(inputs) if check else (), name=name, dtypes=dtypes)

    return [
        case("bias", 5, 4, 3, 2, True, EVERY),
        case("plain", 3, 2, 5, 4, False, WIDE),
        case("one", 1, 1, 1, 1, True, WIDE),
        case("tiles", 9, 21, 35, 3, True, WIDE, check=False),
        case("no_rows", 0, 2, 3, 4, True, WIDE, check=False),
    ]


@register_samples("bilinear_tensor_product", samples=_samples_bilinear)
def _reference_bilinear(inputs: Inputs, attrs: Attrs) -> Outputs:
    out = np.einsum("bm,imn,bn->bi", inputs["X"], inputs["Weight"], inputs["Y"])
    return {"Out": out + inputs["Bias"] if "Bias" in inputs else out}


@register_samples(
    "conv_shift",
    samples=lambda: [
        Sample(pair((4, 7), (4, 3)), {}, ("X", "Y"), name="three", dtypes=EVERY),
        Sample(pair((2, 5), (2, 5)), {}, ("X", "Y"), name="whole"),
        Sample(pair((3, 4), (3, 1)), {}, ("X", "Y"), name="single"),
        Sample(pair((1, 1), (1, 1)), {}, ("X", "Y"), name="one"),
        Sample(pair((3, 50), (3, 19)), {}, ("X", "Y"), name="wide"),
        Sample(pair((0, 4), (0, 3)), {}, name="no_rows"),
    ],
)
def _reference_shift(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, y = inputs["X"], inputs["Y"]
    half = y.shape[1] // 2
    out = sum(np.roll(x, half - k, axis=1) * y[:, k : k + 1] for k in range(y.shape[1]))
    return {"Out": out}
