"""Reductions, running sums, norms of vectors, orders."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.operators.case import Array, Case, Inputs, Numbers, functional, side, square, torch, unary

_COLUMNS, _ROWS, _ALL = {"dim": [0]}, {"dim": [1]}, {"reduce_all": True}


def _truths(numbers: Numbers, size: int) -> Inputs:
    return {"X": ~(numbers.uniform(0, 1, side(size), side(size)) < 1e-4)}


def _near_one(numbers: Numbers, size: int) -> Inputs:
    return {"X": numbers.uniform(0.99, 1.01, side(size), side(size))}


def _ties(numbers: Numbers, size: int) -> Inputs:
    return {"X": numbers.distinct(side(size), side(size))}


def _flat(numbers: Numbers, size: int) -> Inputs:
    return {"X": numbers.ints(max(size // 64, 2), size)}


def _top(x: Array) -> Any:
    where = np.argpartition(-x, 4, 1)[:, :4]
    values = np.take_along_axis(x, where, 1)
    order = np.argsort(-values, 1, "stable")
    return np.take_along_axis(values, order, 1), np.take_along_axis(where, order, 1)


def _unique(x: Array) -> Any:
    values, first, inverse, counts = np.unique(x, True, True, True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    return values[order], place[inverse].astype(np.int32), counts[order].astype(np.int32)


def _cos(x: Array, y: Array) -> Any:
    lengths = np.sqrt((x * x).sum(1, keepdims=True)), np.sqrt((y * y).sum(1, keepdims=True))
    return (x * y).sum(1, keepdims=True) / (lengths[0] * lengths[1])


def _reduced(type: str, numpy: str, torch_name: str, **more: Any) -> list[Case]:
    """Over columns, rows and all."""

    def of(axis: int | None) -> Any:
        return lambda x: getattr(np, numpy)(x, axis)

    def eager(axis: int | None) -> Any:
        return lambda x: getattr(torch, torch_name)(x, **({} if axis is None else {"dim": axis}))

    return [
        unary(type, of(0), eager(0), attrs=_COLUMNS, name="of columns", **more),
        unary(type, of(1), eager(1), attrs=_ROWS, name="of rows", **more),
        unary(type, of(None), eager(None), attrs=_ALL, name="of all", **more),
    ]


CASES = [
    *_reduced("reduce_sum", "sum", "sum", tolerance=2e-2),
    *_reduced("reduce_mean", "mean", "mean", tolerance=2e-2),
    *_reduced("reduce_max", "max", "amax"),
    *_reduced("reduce_min", "min", "amin"),
    Case("reduce_prod", _near_one, lambda x: np.prod(x, 1), lambda x: torch.prod(x, 1), _ROWS, ("X",)),
    Case("reduce_prod", _near_one, lambda x: np.prod(x, 0), lambda x: torch.prod(x, 0), _COLUMNS, ("X",),
         name="of columns"),
    unary("logsumexp", lambda x: np.log(np.exp(x).sum(1)), lambda x: torch.logsumexp(x, 1), attrs=_ROWS),
    Case("reduce_all", _truths, lambda x: np.all(x, 1), lambda x: torch.all(x, 1), _ROWS),
    Case("reduce_any", _truths, lambda x: np.any(x, 1), lambda x: torch.any(x, 1), _ROWS),
    unary("mean", lambda x: np.mean(x), lambda x: torch.mean(x), tolerance=0.1),
    unary("squared_l2_norm", lambda x: np.dot(x.reshape(-1), x.reshape(-1)), lambda x: torch.sum(x * x)),
    unary("l1_norm", lambda x: np.abs(x).sum(), lambda x: torch.sum(torch.abs(x))),
    Case("squared_l2_distance", square("X", "Y"), lambda x, y: np.square(x - y).sum(1, keepdims=True),
         lambda x, y: torch.square(x - y).sum(1, keepdim=True), grads=("X", "Y")),
    Case("dot", square("X", "Y", low=0), lambda x, y: np.einsum("ij,ij->i", x, y)[:, None],
         lambda x, y: (x * y).sum(1, keepdim=True), grads=("X", "Y")),
    Case("cos_sim", square("X", "Y", low=0), _cos, lambda x, y: functional.cosine_similarity(x, y, 1).reshape(-1, 1),
         grads=("X", "Y")),
    unary("clip_by_norm", lambda x: x * np.float32(1 / max(1.0, float(np.linalg.norm(x)))),
          lambda x: x * torch.clamp(1 / torch.linalg.vector_norm(x), max=1.0), attrs={"max_norm": 1.0}, grad=False),
    unary("norm", lambda x: x / np.sqrt((x * x).sum(1, keepdims=True) + 1e-10),
          lambda x: functional.normalize(x, dim=1), attrs={"axis": 1}),
    unary("isfinite", lambda x: np.isfinite(x).all(), lambda x: torch.isfinite(x).all(), grad=False),
    unary("isinf", lambda x: np.isinf(x).any(), lambda x: torch.isinf(x).any(), grad=False),
    unary("isnan", lambda x: np.isnan(x).any(), lambda x: torch.isnan(x).any(), grad=False),
    unary("cumsum", lambda x: np.cumsum(x, 1), lambda x: torch.cumsum(x, 1), low=0),
    unary("cumsum", lambda x: np.cumsum(x, 0), lambda x: torch.cumsum(x, 0), low=0, attrs={"axis": 0},
          name="of columns"),
    Case("arg_max", _ties, lambda x: np.argmax(x, 1), lambda x: torch.argmax(x, 1), {"axis": 1}),
    Case("arg_min", _ties, lambda x: np.argmin(x, 0), lambda x: torch.argmin(x, 0), {"axis": 0}, name="of columns"),
    Case("argsort", _ties, lambda x: (np.take_along_axis(x, order := np.argsort(x, 1), 1), order),
         lambda x: tuple(torch.sort(x, 1)), grads=("X",), outputs=("Out", "Indices"), share=0.25),
    Case("top_k", _ties, _top, lambda x: tuple(torch.topk(x, 4)), {"k": 4}, ("X",), ("Out", "Indices"), share=0.5),
    Case("unique", _flat, lambda x: _unique(x)[:2], None, {"dtype": "int32"}, (), ("Out", "Index"), share=0.25),
    Case("unique_with_counts", _flat, _unique, None, {"dtype": "int32"}, (), ("Out", "Index", "Count"), share=0.25),
    Case("where_index", lambda numbers, size: {"Condition": numbers.bools(side(size), side(size))},
         np.argwhere, lambda x: torch.nonzero(x)),
]  # fmt: skip
