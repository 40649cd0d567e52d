"""Products of matrices, and of windows of rows."""

from __future__ import annotations

import numpy as np

from benchmarks.operators.case import Case, Inputs, Numbers, side, torch


def _matrices(numbers: Numbers, size: int) -> Inputs:
    n = side(size)
    return {"X": numbers.normal(n, n), "Y": numbers.normal(n, n)}


def _batch(numbers: Numbers, size: int) -> Inputs:
    n = max(size // 8192, 1)
    rows = min(128, side(size))
    return {"X": numbers.normal(n, rows, 64), "Y": numbers.normal(n, 64, rows)}


def _vector(numbers: Numbers, size: int) -> Inputs:
    return {"X": numbers.normal(side(size), side(size)), "Y": numbers.normal(side(size))}


def _bilinear(numbers: Numbers, size: int) -> Inputs:
    n = max(side(size) // 8, 4)
    return {"X": numbers.normal(n, n), "Y": numbers.normal(n, n), "Weight": numbers.normal(8, n, n),
            "Bias": numbers.normal(1, 8)}  # fmt: skip


def _circular(numbers: Numbers, size: int) -> Inputs:
    return {"X": numbers.normal(side(size), side(size)), "Y": numbers.normal(side(size), 7)}


def _sequence(numbers: Numbers, size: int) -> Inputs:
    return {"X": numbers.normal(side(size), side(size)), "Filter": numbers.normal(4, side(size))}


def _sum(numbers: Numbers, size: int) -> Inputs:
    return {"Input": numbers.normal(side(size), side(size)), **_matrices(numbers, size)}


def _blocks(numbers: Numbers, size: int) -> Inputs:
    return {"X": numbers.normal(side(size) // 8, side(size) // 8), "Y": numbers.normal(8, 8)}


def _threes(numbers: Numbers, size: int) -> Inputs:
    return {"X": numbers.normal(size // 3, 3), "Y": numbers.normal(size // 3, 3)}


_BOTH = ("X", "Y")


def _gates_of_rows(numbers: Numbers, size: int) -> Inputs:
    n = side(size)
    return {"Input": numbers.normal(n, 3 * n), "HiddenPrev": numbers.normal(n, n), "Weight": numbers.normal(n, 3 * n)}


def _cells(numbers: Numbers, size: int) -> Inputs:
    n = side(size // 4)
    return {"X": numbers.normal(n, 4 * n), "C_prev": numbers.normal(n, n)}


CASES = [
    Case("mul", _matrices, lambda x, y: x @ y, lambda x, y: x @ y, grads=_BOTH, share=0.25),
    Case("matmul", _matrices, lambda x, y: x @ y.T, lambda x, y: x @ y.T, {"transpose_Y": True}, _BOTH, share=0.25,
         name="with Y transposed"),
    Case("matmul", _batch, lambda x, y: x @ y, lambda x, y: x @ y, grads=_BOTH, share=0.25, name="of a batch"),
    Case("matmul", _vector, lambda x, y: x @ y, lambda x, y: x @ y, grads=_BOTH, name="by a vector", tolerance=2e-2),
    Case("bilinear_tensor_product", _bilinear,
         lambda x, y, w, b: np.einsum("ni,kij,nj->nk", x, w, y, optimize=True) + b,
         lambda x, y, w, b: torch.nn.functional.bilinear(x, y, w, b[0]), grads=("X", "Y", "Weight", "Bias"), share=0.5),
    Case("conv_shift", _circular, lambda x, y: sum(np.roll(x, 3 - k, 1) * y[:, k : k + 1] for k in range(7)),
         lambda x, y: sum(torch.roll(x, 3 - k, 1) * y[:, k : k + 1] for k in range(7)), grads=_BOTH, share=0.25),
    Case("row_conv", _sequence, lambda x, w: sum(np.pad(x, ((0, 3), (0, 0)))[k : k + len(x)] * w[k] for k in range(4)),
         lambda x, w: sum(torch.nn.functional.pad(x, (0, 0, 0, 3))[k : k + len(x)] * w[k] for k in range(4)),
         grads=("X", "Filter"), share=0.5, lod=lambda size: {"X": [[0, side(size)]]}),
    Case("bmm", _batch, lambda x, y: x @ y, lambda x, y: torch.bmm(x, y), grads=_BOTH, share=0.25),
    Case("addmm", _sum, lambda a, x, y: a + x @ y, lambda a, x, y: torch.addmm(a, x, y), {}, ("Input", "X", "Y"),
         share=0.25),
    Case("kron", _blocks, np.kron, lambda x, y: torch.kron(x, y), grads=_BOTH, tolerance=1e-2),
    Case("cross", _threes, lambda x, y: np.cross(x, y), lambda x, y: torch.linalg.cross(x, y), {"dim": 1}, _BOTH,
         share=0.5),
    Case("dist", _matrices, lambda x, y: np.sqrt(np.square(x - y).sum()), lambda x, y: torch.dist(x, y), {"p": 2.0},
         _BOTH, tolerance=1e-2),
    Case("gru_unit", _gates_of_rows, None, None, grads=("Input", "HiddenPrev", "Weight"), outputs=("Hidden",),
         share=0.25),
    Case("lstm_unit", _cells, None, None, grads=("X", "C_prev"), outputs=("C", "H"), share=0.5),
]  # fmt: skip
