"""Operators that read or write where indices say."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.operators.case import Array, Case, Inputs, Numbers, functional, side, torch


def _rows(numbers: Numbers, size: int) -> Inputs:
    n = side(size)
    return {"X": numbers.normal(n, n), "Index": numbers.ints(n, n)}


def _pairs(numbers: Numbers, size: int) -> Inputs:
    n = side(size)
    return {"X": numbers.normal(n, n), "Index": numbers.ints(n, size // 4, 2)}


def _columns(numbers: Numbers, size: int) -> Inputs:
    n = side(size)
    return {"X": numbers.normal(n, n), "Index": numbers.ints(n, n, n // 2)}


def _updates(numbers: Numbers, size: int) -> Inputs:
    n = side(size)
    ids = numbers.random.permutation(n)[: n // 2].astype("int64")
    return {"X": numbers.normal(n, n), "Ids": ids, "Updates": numbers.normal(n // 2, n)}


def _sums(numbers: Numbers, size: int) -> Inputs:
    n = side(size)
    return {"X": numbers.normal(n, n), "Index": numbers.ints(n, size // 4, 2), "Updates": numbers.normal(size // 4)}


def _words(*last: int) -> Callable[[Numbers, int], Inputs]:
    def make(numbers: Numbers, size: int) -> Inputs:
        width = min(64, side(size))
        return {"W": numbers.normal(max(size // 256, 16), width),
                "Ids": numbers.ints(max(size // 256, 16), size // width, *last)}  # fmt: skip

    return make


def _labels(*last: int) -> Callable[[Numbers, int], Inputs]:
    return lambda numbers, size: {"X": numbers.ints(64, max(size // 64, 16), *last)}


def _choices(numbers: Numbers, size: int) -> Inputs:
    n = side(size)
    return {"Ids": numbers.ints(3, n, 1, dtype="int32"), "X": [numbers.normal(n, n) for _ in range(3)]}


def _scattered(x: Array, ids: Array, updates: Array) -> Array:
    out = x.copy()
    out[ids] = updates
    return out


def _added(x: Array, index: Array, updates: Array) -> Array:
    out = x.copy()
    np.add.at(out, (index[:, 0], index[:, 1]), updates)
    return out


def _shard(x: Array) -> Array:
    half = (1000 + 1) // 2
    return np.where(x // half == 1, x - half, -1)


def _beams(numbers: Numbers, size: int) -> Inputs:
    dims = (16, max(size // 128, 1), 8)
    return {"Ids": numbers.ints(1000, *dims), "Parents": numbers.ints(8, *dims)}


def _cvm(x: Array, cvm: Array) -> Array:
    logs = np.log(x[:, :2] + 1)
    return np.concatenate([logs[:, :1], logs[:, 1:] - logs[:, :1], x[:, 2:]], 1)


CASES = [
    Case("gather", _rows, lambda x, i: x[i], lambda x, i: x[i], grads=("X",)),
    Case("gather_nd", _pairs, lambda x, i: x[i[:, 0], i[:, 1]], lambda x, i: x[i[:, 0], i[:, 1]], grads=("X",)),
    Case("index_select", _rows, lambda x, i: np.take(x, i, 1), lambda x, i: torch.index_select(x, 1, i), {"dim": 1},
         ("X",)),
    Case("index_sample", _columns, lambda x, i: np.take_along_axis(x, i, 1), lambda x, i: torch.gather(x, 1, i),
         grads=("X",)),
    Case("scatter", _updates, _scattered, lambda x, i, u: x.index_copy(0, i, u), grads=("X", "Updates")),
    Case("scatter", _updates, None, None, {"overwrite": False}, name="that adds"),
    Case("scatter_nd_add", _sums, _added, lambda x, i, u: x.index_put((i[:, 0], i[:, 1]), u, accumulate=True),
         grads=("X", "Updates"), share=0.25),
    Case("lookup_table", _words(1), lambda w, i: w[i[:, 0]], lambda w, i: functional.embedding(i[:, 0], w), {}, ("W",)),
    Case("lookup_table_v2", _words(), lambda w, i: w[i], lambda w, i: functional.embedding(i, w), {}, ("W",)),
    Case("one_hot", _labels(1), lambda x: np.eye(64, dtype=np.float32)[x[:, 0]],
         lambda x: functional.one_hot(x[:, 0], 64).float(), {"depth": 64}),
    Case("one_hot_v2", _labels(), lambda x: np.eye(64, dtype=np.float32)[x],
         lambda x: functional.one_hot(x, 64).float(), {"depth": 64}),
    Case("multiplex", _choices, lambda i, *x: np.stack(x)[i[:, 0], np.arange(len(i))],
         lambda i, *x: torch.stack(x)[i[:, 0].long(), torch.arange(len(i))], grads=("X",), share=0.5),
    Case("similarity_focus", lambda numbers, size: {"X": numbers.normal(max(size // 4096, 1), 4, 32, 32)}, None, None,
         {"axis": 1, "indexes": [0, 2]}, share=0.25),
    Case("cvm", lambda numbers, size: {"X": numbers.positive(max(size // 64, 1), 64),
                                       "CVM": numbers.positive(max(size // 64, 1), 2)}, _cvm, None, {}, ("X",),
         ("Y",)),
    Case("gather_tree", _beams, None, None, share=0.25),
    Case("shard_index", lambda numbers, size: {"X": numbers.ints(1000, size, 1)}, _shard,
         lambda x: torch.where(x // 500 == 1, x - 500, -1),
         {"index_num": 1000, "nshards": 2, "shard_id": 1}),
    Case("hash", lambda numbers, size: {"X": numbers.ints(10**6, size // 4, 4, dtype="int32")}, None, None,
         {"num_hash": 2, "mod_by": 10000}, share=0.25),
    Case("random_crop", lambda numbers, size: {"X": numbers.normal(max(size // 4096, 1), 64, min(64, size // 64)),
                                               "Seed": np.asarray([7])},
         None, None, lambda size: {"shape": [32, min(64, size // 64) // 2]}, check="dims"),
]  # fmt: skip
