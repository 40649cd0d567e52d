"""What ties the tests of two places together on which LLVM compiles kernels in C: ``llvm`` and ``loops``.

On ``llvm`` an expression is computed by its loops unless a kernel in C was written for the operator, or other operators
compute its parts. So ``loops``, where loops compute all, has the operators of which this holds left to check.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from fluidlite.expr.calls import leaves
from fluidlite.expr.number_table import NumberTable
from fluidlite.program.op_call import Call
from fluidlite.render.loops import cost, guarded_cache, kernels
from fluidlite.render.loops.launches import decode_texts, encode_texts

OTHERWISE = frozenset({
    "addmm", "assign", "auc", "bicubic_interp", "bilinear_interp", "bilinear_tensor_product", "bmm", "conv2d",
    "conv2d_transpose", "conv3d", "conv3d_transpose", "cudnn_lstm", "depthwise_conv2d", "depthwise_conv2d_transpose",
    "device_transfer", "device_view", "flatten", "flatten2", "fsp", "grid_sampler", "group_norm", "gru", "gru_unit",
    "is_empty", "lamb", "lars_momentum", "layer_norm", "linear_interp", "lstm", "lstmp", "matmul", "mean_iou", "mul",
    "nearest_interp", "pool2d", "pool3d", "precision_recall", "reduce_all", "reduce_any", "reshape", "reshape2",
    "sequence_conv", "shape", "size", "spectral_norm", "squeeze", "squeeze2", "trilinear_interp", "unpool", "unsqueeze",
    "unsqueeze2",
})  # fmt: skip
"""Operators with an expression that, or whose gradient, is not always computed by its loops on ``llvm``."""

OTHER_NAMES = {"float64", "bfloat16"}
"""Dtypes whose text differs from that of float32 and float16 in the names of types and functions."""


QUESTIONS = (kernels._READABLE, kernels._ALIASES, kernels._TEXTS, cost._ESTIMATES)


def forget_nests() -> None:
    """Forget what is known of nests, as a process does that begins: what lies on disk stays."""
    kernels._cache.clear()
    for question in QUESTIONS:
        question._caches.clear()


def keep_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lay out anew what is asked, and keep no answer on disk: a test changes what answers depend on."""
    forget_nests()
    monkeypatch.setattr(guarded_cache, "_sources", lambda: "")


def record_texts(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Types of operators whose loops are written from now on.

    What was written for other sizes, or by another process, and is used again, must be what would be written for these;
    and a file must hold all of it.
    """
    written, text_of, types = kernels.nest_codes, kernels._text, set[str]()
    sizes: list[Any] = []

    def noted(call: Call, nests: Any, language: Any, values: Any) -> Any:
        sizes.append(values.values)
        return text_of(call, nests, language, values)

    def checked(call: Call, context: Any) -> Any:
        sizes.clear()
        found = written(call, context)
        types.add(call.op.type)
        dtypes = {spec.dtype for specs in (*call.ins.values(), *call.outs.values()) for spec in specs}
        if sizes[-1:] != [leaves(call)] and not dtypes & OTHER_NAMES:
            fresh = kernels.write(call, context.language, kernels.CallNests(call))
            assert fresh is not None
            mine, theirs = ([piece.text.body for piece in pieces] for pieces in (found, fresh))
            assert mine == theirs, "\n=====\n".join([f"{call}, {leaves(call)}", *mine, "instead of", *theirs])
        table = NumberTable()
        pieces, rows = json.loads(json.dumps([encode_texts(found, table), table.rows]))
        assert repr(decode_texts(pieces, NumberTable(rows))) == repr(found)
        return found

    monkeypatch.setattr(kernels, "_text", noted)
    monkeypatch.setattr(kernels, "nest_codes", checked)
    return types
