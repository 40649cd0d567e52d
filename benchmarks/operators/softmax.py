"""Softmax and its relatives."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.operators.case import Array, Case, Inputs, Numbers, functional, image, side, torch, unary


def _classes(numbers: Numbers, size: int) -> Inputs:
    columns = min(side(size), 1000)
    rows = size // columns
    return {"Logits": numbers.normal(rows, columns), "Label": numbers.ints(columns, rows, 1)}


def _soft(numbers: Numbers, size: int) -> Inputs:
    columns = min(side(size), 1000)
    return {"Logits": numbers.normal(size // columns, columns), "Label": numbers.classes(size // columns, columns)}


def _softmax(x: Array, axis: int = 1) -> Any:
    powers = np.exp(x - x.max(axis, keepdims=True))
    powers /= powers.sum(axis, keepdims=True)
    return powers


def _log_softmax(x: Array) -> Any:
    shifted = x - x.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def _loss(x: Array, label: Array) -> Any:
    return -np.take_along_axis(_log_softmax(x), label, 1)


CASES = [
    unary("softmax", _softmax, lambda x: torch.softmax(x, 1)),
    Case("softmax", lambda numbers, size: {"X": numbers.normal(*image(size))}, _softmax, lambda x: torch.softmax(x, 1),
         {"axis": 1}, ("X",), name="of channels"),
    unary("log_softmax", _log_softmax, lambda x: torch.log_softmax(x, 1)),
    Case("softmax_with_cross_entropy", _classes, _loss,
         lambda x, i: functional.cross_entropy(x, i[:, 0], reduction="none"), {}, ("Logits",), ("Loss",)),
    Case("softmax_with_cross_entropy", _soft, lambda x, p: -(p * _log_softmax(x)).sum(1),
         lambda x, p: functional.cross_entropy(x, p, reduction="none"), {"soft_label": True}, ("Logits",), ("Loss",),
         name="of soft labels"),
]  # fmt: skip
