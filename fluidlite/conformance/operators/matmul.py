from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.conformance.sample_helpers import EVERY, WIDE, Attrs, Inputs, Outputs, rand
from fluidlite.conformance.samples import Sample, register_samples


@register_samples(
    "mul",
    samples=lambda: [
        Sample({"X": rand(5, 7), "Y": rand(7, 3, seed=1)}, {}, ("X", "Y"), name="matrices", dtypes=EVERY),
        Sample({"X": rand(32, 65), "Y": rand(65, 33, seed=1)}, {}, name="tiles", dtypes=WIDE),
        Sample({"X": rand(9, 17), "Y": rand(17, 35, seed=1)}, {}, ("X", "Y"), name="odd_tiles", dtypes=WIDE),
        Sample(
            {"X": rand(2, 3, 4), "Y": rand(2, 2, 5, seed=1)},
            {"x_num_col_dims": 2, "y_num_col_dims": 2},
            ("X", "Y"),
            name="flattened",
        ),
        Sample({"X": rand(2, 3, 4), "Y": rand(12, 5, seed=1)}, {}, ("X", "Y"), name="flatten_x"),
        Sample({"X": rand(1, 1), "Y": rand(1, 1, seed=1)}, {}, ("X", "Y"), name="one"),
        Sample({"X": rand(0, 4), "Y": rand(4, 3, seed=1)}, {}, name="no_rows"),
        Sample({"X": rand(3, 0), "Y": rand(0, 2)}, {}, name="no_columns"),
    ],
)
def _reference_mul(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, y = inputs["X"], inputs["Y"]
    n = y.ndim - attrs["y_num_col_dims"]
    left = x.shape[: attrs["x_num_col_dims"]]
    flat = np.zeros((int(np.prod(left)), int(np.prod(y.shape[y.ndim - n :]))))
    a = x.reshape(flat.shape[0], -1) if x.size else np.zeros((flat.shape[0], 0))
    b = y.reshape(-1, flat.shape[1]) if y.size else np.zeros((0, flat.shape[1]))
    for k in range(a.shape[1]):
        flat += np.outer(a[:, k], b[k])
    return {"Out": flat.reshape(left + y.shape[y.ndim - n :])}


def _samples_matmul() -> list[Sample]:
    def case(name: str, x: tuple[int, ...], y: tuple[int, ...], check: bool = True, **attrs: Any) -> Sample:
        dtypes = EVERY if len(x) == len(y) == 2 else WIDE
        inputs = {"X": rand(*x), "Y": rand(*y, seed=1)}
        return Sample(inputs, attrs, ("X", "Y") if check else (), name=name, dtypes=dtypes)

    return [
        case("matrices", (5, 7), (7, 3)),
        case("tiles", (33, 65), (65, 34), check=False),
        case("packed", (70, 9), (9, 67), check=False),
        case("packed_transposed", (9, 70), (67, 9), check=False, transpose_X=True, transpose_Y=True),
        case("packed_batches", (2, 3, 65), (2, 3, 66), check=False, transpose_X=True),
        case("tiles_alpha", (9, 17), (17, 35), alpha=2.0),
        case("tiles_transposed", (17, 9), (35, 17), transpose_X=True, transpose_Y=True, alpha=2.0),
        case("transpose_x", (7, 5), (7, 3), transpose_X=True),
        case("transpose_y", (5, 7), (3, 7), transpose_Y=True),
        case("transpose_both", (7, 5), (3, 7), transpose_X=True, transpose_Y=True, alpha=-0.5),
        case("transpose_x_alpha", (7, 5), (7, 3), transpose_X=True, alpha=2.0),
        case("transpose_y_alpha", (5, 7), (3, 7), transpose_Y=True, alpha=2.0),
        case("alpha", (2, 3), (3, 2), alpha=2.5),
        case("vectors", (4,), (4,)),
        case("vector_matrix", (4,), (4, 3)),
        case("matrix_vector", (3, 4), (4,)),
        case("vector_row", (4,), (1, 3), transpose_X=True),
        case("column_vector", (3, 1), (4,), transpose_Y=True),
        case("vector_batch", (4,), (2, 4, 3)),
        case("batch_vector", (2, 3, 4), (4,)),
        case("batches", (2, 3, 4), (2, 4, 5)),
        case("batches_transposed", (2, 4, 3), (2, 5, 4), transpose_X=True, transpose_Y=True),
        case("batches_transpose_x", (2, 4, 3), (2, 4, 5), transpose_X=True, alpha=3.0),
        case("batches_transpose_y", (2, 3, 4), (2, 5, 4), transpose_Y=True),
        case("rank4", (2, 3, 4, 2), (2, 3, 2, 3)),
        case("batch_matrix", (2, 3, 4), (4, 5)),
        case("matrix_batch", (3, 4), (2, 4, 5)),
        case("batch_matrix_alpha", (2, 3, 4), (4, 5), alpha=2.0),
        case("matrix_batch_alpha", (3, 4), (2, 4, 5), alpha=2.0),
        case("batch_matrix_transposed", (2, 4, 3), (5, 4), transpose_X=True, transpose_Y=True),
        case("matrix_batch_transposed", (4, 3), (2, 5, 4), transpose_X=True, transpose_Y=True),
        case("one", (1, 1), (1, 1)),
        case("no_inner", (3, 0), (0, 2), check=False),
        case("no_batch", (0, 3, 4), (0, 4, 2), check=False),
    ]


@register_samples("matmul", samples=_samples_matmul)
def _reference_matmul(inputs: Inputs, attrs: Attrs) -> Outputs:
    x, y = inputs["X"], inputs["Y"]
    a = x[None, :] if x.ndim == 1 else x
    b = y[:, None] if y.ndim == 1 else y
    a = np.swapaxes(a, -1, -2) if attrs["transpose_X"] else a
    b = np.swapaxes(b, -1, -2) if attrs["transpose_Y"] else b
    out = attrs["alpha"] * np.sum(a[..., :, :, None] * b[..., None, :, :], axis=-2)
    if x.ndim == 1 and out.shape[-2] == 1:
        out = out[..., 0, :]
    if y.ndim == 1 and out.shape[-1] == 1:
        out = out[..., 0]
    return {"Out": out.reshape(out.shape or (1,))}
