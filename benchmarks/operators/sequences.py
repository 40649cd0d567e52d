"""Sequences of LoD tensors, and rows of tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.operators.case import Case, Inputs, Numbers, side

STEPS = 4
"""Rows of a sequence."""
FEW = 8
"""Sequences where each has a number of its own."""


def _starts(size: int) -> list[int]:
    n = side(size)
    return [*range(0, n, STEPS), n] if n % STEPS else list(range(0, n + 1, STEPS))


def _few(size: int) -> list[int]:
    n = side(size)
    return [n * i // FEW for i in range(FEW + 1)]


def _lod(*slots: str, starts: Callable[[int], list[int]] = _starts) -> Callable[[int], dict[str, Any]]:
    return lambda size: {slot: [starts(size)] for slot in slots}


def _rows(numbers: Numbers, size: int) -> Inputs:
    return {"X": numbers.normal(side(size), side(size))}


def _even_rows(numbers: Numbers, size: int) -> Inputs:
    return {"X": numbers.normal(side(size) // 2 * 2, side(size))}


def _numbers(numbers: Numbers, size: int) -> Inputs:
    return {"X": numbers.normal(side(size), 1)}


def _ids(numbers: Numbers, size: int) -> Inputs:
    return {"X": numbers.ints(1000, side(size), 1)}


def _erased(numbers: Numbers, size: int) -> Inputs:
    ids = _ids(numbers, size)["X"]
    return {"X": ids, "Values": ids}


def _filter(numbers: Numbers, size: int) -> Inputs:
    return {**_rows(numbers, size), "Filter": numbers.normal(3 * side(size), 32)}


def _few_rows(numbers: Numbers, size: int) -> Inputs:
    return {"X": numbers.normal(len(_starts(size)) - 1, side(size)), "Y": numbers.normal(side(size), 1)}


def _pair(numbers: Numbers, size: int) -> Inputs:
    return {"X": [numbers.normal(side(size), side(size)) for _ in range(2)]}


def _padded(numbers: Numbers, size: int) -> Inputs:
    return {**_rows(numbers, size), "PadValue": numbers.normal(1)}


def _parts(numbers: Numbers, size: int) -> Inputs:
    lengths = np.diff(_few(size))
    return {**_rows(numbers, size), "Offset": np.zeros((FEW, 1), "int64"), "Length": lengths[:, None] // 2}


def _batch(numbers: Numbers, size: int) -> Inputs:
    n = side(size)
    return {"X": numbers.normal(FEW, n // FEW, n), "Length": np.full(FEW, n // FEW // 2, "int64")}


def _updates(numbers: Numbers, size: int) -> Inputs:
    n, count = side(size), len(_starts(size)) - 1
    return {"X": numbers.normal(count, n), "Ids": numbers.ints(n, n, 1), "Updates": numbers.normal(n, 1)}


def _lengths(numbers: Numbers, size: int) -> Inputs:
    return {"X": numbers.ints(side(size), side(size))}


def _table(numbers: Numbers, size: int) -> Inputs:
    n = side(size)
    return {**_rows(numbers, size), "Rows": np.arange(0, n, 2), "Values": numbers.normal(len(range(0, n, 2)), n)}


def _merged(numbers: Numbers, size: int) -> Inputs:
    n = side(size)
    return {"Values": numbers.normal(n, n), "Index": np.arange(n) // 2, "Rows": np.arange((n + 1) // 2)}


def _named(numbers: Numbers, size: int) -> Inputs:
    n = side(size)
    return {"Rows": np.arange(n) // 2, "Values": numbers.normal(n, n)}


def _few_numbers(numbers: Numbers, size: int) -> Inputs:
    return {"Rows": np.arange(0, size, 4)[::-1].copy()}


def _held(numbers: Numbers, size: int) -> Inputs:
    n = side(size)
    return {"Positions": np.where(np.arange(n) % 4, -1, np.arange(n) // 4), "Values": numbers.normal(-(-n // 4), n)}


def _lookup(numbers: Numbers, size: int) -> Inputs:
    n = side(size)
    return {"Ids": numbers.ints(1000, n, 1), "OutGrad": numbers.normal(n, n)}


CLASSES = 1000


def _tree(numbers: Numbers, size: int) -> Inputs:
    n = side(size)
    return {"X": numbers.normal(n, n), "W": numbers.normal(CLASSES - 1, n), "Label": numbers.ints(CLASSES, n, 1),
            "Bias": numbers.normal(CLASSES - 1, 1)}  # fmt: skip


def _drawn(numbers: Numbers, size: int) -> Inputs:
    n = side(size)
    return {"Input": numbers.normal(n, n), "Label": numbers.ints(CLASSES, n, 1), "Weight": numbers.normal(CLASSES, n),
            "Bias": numbers.normal(CLASSES, 1), "Samples": numbers.ints(CLASSES, n, 10)}  # fmt: skip


CASES = [
    Case("hierarchical_sigmoid", _tree, attrs={"num_classes": CLASSES}, grads=("X", "W", "Bias"), share=0.1,
         tolerance=2e-2),
    Case("nce", _drawn, attrs={"num_total_classes": CLASSES}, grads=("Input", "Weight", "Bias"), share=0.1,
         outputs=("Cost",), tolerance=2e-2),
    Case("sequence_pool", _rows, attrs={"pooltype": "AVERAGE"}, grads=("X",), lod=_lod("X"), name="average"),
    Case("sequence_pool", _rows, attrs={"pooltype": "MAX"}, grads=("X",), lod=_lod("X"), name="max"),
    Case("sequence_softmax", _numbers, grads=("X",), lod=_lod("X")),
    Case("sequence_reverse", _rows, grads=("X",), outputs=("Y",), lod=_lod("X")),
    Case("sequence_expand", _few_rows, grads=("X",), lod=_lod("Y")),
    Case("sequence_expand_as", _few_rows, grads=("X",), lod=_lod("Y")),
    Case("sequence_pad", _padded, grads=("X",), lod=_lod("X")),
    Case("sequence_unpad", _batch, grads=("X",), share=0.25),
    Case("sequence_mask", _lengths, attrs={"maxlen": 64, "out_dtype": "float32"}, outputs=("Y",)),
    Case("sequence_reshape", _even_rows, attrs=lambda size: {"new_dim": side(size) * 2}, grads=("X",), share=0.5,
         lod=lambda size: {"X": [[0, side(size) // 2 * 2]]}),
    Case("sequence_concat", _pair, grads=("X",), share=0.5, lod=_lod("X", starts=_few)),
    Case("sequence_slice", _parts, grads=("X",), lod=_lod("X", starts=_few)),
    Case("sequence_scatter", _updates, grads=("X", "Updates"), lod=_lod("Ids", "Updates")),
    Case("sequence_conv", _filter, attrs={"contextLength": 3, "contextStart": -1}, grads=("X", "Filter"), share=0.25,
         lod=_lod("X"), tolerance=2e-2),
    Case("sequence_enumerate", _ids, attrs={"win_size": 3}, lod=_lod("X")),
    Case("sequence_erase", _erased, attrs={"tokens": [1, 2, 3]}, lod=_lod("X")),
    Case("lod_reset", _rows, attrs=lambda size: {"target_lod": _few(size)}, grads=("X",)),
    Case("mvn", _rows, attrs={"axis": 1}, grads=("X",)),
    Case("lookup_table_rows_grad", _lookup, attrs={"height": 1000}, outputs=("Rows", "Values")),
    Case("sum_rows", _merged), Case("dense_rows", _named, attrs=lambda size: {"height": side(size)}),
    Case("row_positions", _few_numbers, attrs=lambda size: {"height": size}), Case("rows_at", _held),
    Case("set_rows", _table),
]  # fmt: skip
