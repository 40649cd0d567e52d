"""Sums of products as products of matrices: whatever axes are rows and columns, however much is copied at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fluidlite import expr as e
from fluidlite.expr.traced import trace
from fluidlite.platform.place import Place
from fluidlite.program.decompose import decompose
from fluidlite.program.op_call import Call
from fluidlite.program.operator_arguments import check_attrs
from fluidlite.program.registry import ops
from fluidlite.program.source_location import NOWHERE
from fluidlite.render import array_functions, contractions
from fluidlite.render.arrays import array_code
from fluidlite.tensor.tensor_spec import Spec, specs_of

LETTERS = (
    "ik,kj->ij", "ki,jk->ji", "aik,akj->aij", "abik,kj->abij", "ik,akj->aij", "abik,abkj->kij", "ij,ij->", "ij,k->kij",
    "iab,jba->ij", "ngcaibj,gmcij->ngmab", "ngmab,gmcij->ngcijab", "ngcaibj,ngmab->gmcij", "naibjgc,gmcij->nabgm",
    "naibjgc,nabgm->gmcij", "nabgm,gmcij->nijgcab",
)  # fmt: skip


@pytest.mark.parametrize(("copied", "enough"), [(4 << 20, 1 << 15), (4 << 20, 1), (64, 1), (1, 1 << 30), (1, 1)])
@pytest.mark.parametrize("letters", LETTERS)
def test_products_in_parts(letters: str, copied: int, enough: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contractions, "MAX_COPIED_BYTES", copied)
    monkeypatch.setattr(contractions, "MIN_MATMUL_PRODUCTS", enough)
    rng = np.random.default_rng(len(letters))
    operands, out = letters.split("->")
    mine, theirs = operands.split(",")
    for turn in range(6):
        sizes = {name: int(rng.choice([1, 2, 3, 4] if turn else [0, 1, 2])) for name in mine + theirs if name != ","}
        x, y = (rng.standard_normal([sizes[n] for n in names]) for names in (mine, theirs))
        if turn % 2:  # elements that do not lie in the order of their axes
            order = rng.permutation(x.ndim)
            x, y = np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order)), np.flip(y)
        expected = np.einsum(letters, x, y)
        for into in (None, np.full(expected.shape, np.nan)):
            found = contractions.contract(np, x, y, mine, theirs, out, into)
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
            assert found.shape == expected.shape


@pytest.mark.parametrize("in_order", [1 << 10, 6, 3])
@pytest.mark.parametrize("letters", ["ntwd,wd->ntd", "ntwd,ntd->wd", "ntd,td->nd"])
def test_lines_are_read_where_they_are(letters: str, in_order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No operand of products for each channel is copied where channels lie side by side; sums are of few numbers."""
    most, einsum = 0, np.einsum

    def watching(text: str, x: Any, y: Any, **more: Any) -> Any:
        nonlocal most
        mine, theirs = (set(each) for each in text.partition("->")[0].split(","))
        sizes = dict(zip(text, (*x.shape, 0, *y.shape), strict=False))
        summed = (mine | theirs) - set(text.partition("->")[2])
        most = max(most, int(np.prod([sizes[n] for n in summed])))
        return einsum(text, x, y, **more)

    class Uncopied:
        def __getattr__(self, name: str) -> Any:
            assert name in ("empty", "add"), f"{name} makes matrices"
            return getattr(np, name)

    contractions._plans.clear()
    monkeypatch.setattr(contractions, "MAX_SEQUENTIAL_TERMS", in_order)
    monkeypatch.setattr(np, "einsum", watching)
    rng, sizes = np.random.default_rng(0), {"n": 2, "t": 5, "w": 3, "d": 20}
    names, out = letters.split("->")
    mine, theirs = names.split(",")
    x, y = (rng.standard_normal([sizes[n] for n in each]) for each in (mine, theirs))
    if mine == "ntwd":
        x = array_functions.window_view(np, rng.standard_normal((2, 7, 20)), 1, 3, 5, 1, 1)
    expected = einsum(letters, x, y)
    for into in (None, np.full(expected.shape, np.nan)):
        found = contractions.contract(Uncopied(), x, y, mine, theirs, out, into)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
        assert found.flags.c_contiguous
    assert 0 < most <= in_order
    contractions._plans.clear()


def test_windows_are_copied_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A contraction of windows takes memory for some of them at a time, in a sum and in a result."""
    monkeypatch.setattr(contractions, "MAX_COPIED_BYTES", 1 << 14)
    largest = 0
    reshape = np.reshape

    class Watching:
        def __getattr__(self, name: str) -> Any:
            return getattr(np, name)

        def reshape(self, x: Any, dims: Any, copy: bool | None = None) -> Any:
            nonlocal largest
            if copy:
                largest = max(largest, x.nbytes)
            return reshape(x, dims, copy=copy)

    x, w = np.ones((8, 16, 64), "float32"), np.ones((4, 16, 5), "float32")
    windows = array_functions.window_view(np, x, 2, 5, 60, 1, 1)  # 150 kB
    found = contractions.contract(Watching(), windows, w, "ncok", "mck", "nmo")
    assert (found == 80).all()
    contractions.contract(Watching(), windows, found, "ncok", "nmo", "mck")
    assert 0 < largest <= 2 << 14


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dilation", [1, 3])
def test_windows_of_windows_are_added_up(stride: int, dilation: int) -> None:
    rng = np.random.default_rng(0)
    parts = rng.standard_normal((2, 4, 3, 5, 2, 3, 2))
    sizes = [(n - 1) * stride + (k - 1) * dilation + 1 for n, k in ((4, 3), (5, 2), (3, 2))]

    def function(x: e.Tensor) -> e.Tensor:
        for axis, size in ((5, sizes[2] + 2), (3, sizes[1]), (1, sizes[0])):
            x = e.unwindow(x, axis, size, stride, dilation)
        return x

    traced = trace(lambda given, _: {"Out": function(given["X"][0])}, {"X": [(parts.shape, "float64")]})
    code = array_code(traced)
    expected = np.zeros((2, sizes[0], sizes[1], sizes[2] + 2))
    for a, i, b, j, c, k in np.ndindex(*parts.shape[1:]):
        at = (a * stride + i * dilation, b * stride + j * dilation, c * stride + k * dilation)
        expected[(slice(None), *at)] += parts[:, a, i, b, j, c, k]
    out = np.empty(expected.shape)
    sizes_of = {f"X.0.{axis}": size for axis, size in enumerate(parts.shape)}
    code.function()(np, None, array_functions, None, None, code.values(sizes_of), [], parts, out)
    np.testing.assert_allclose(out, expected, rtol=1e-12)


@pytest.mark.parametrize("type", ["conv2d", "depthwise_conv2d", "conv2d_transpose", "depthwise_conv2d_transpose"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_is_fused_is_beside_the_convolution(type: str, dtype: str) -> None:
    """Kernels know convolutions alone: one with a bias or an activation is one of them, and operators beside it."""
    op = ops.get(type)
    ins = {slot: (Spec.of(dims, dtype),) for slot, dims in
           (("Input", (2, 3, 5, 5)), ("Filter", (3, 1, 3, 3)), ("Bias", (3,)))}  # fmt: skip
    attrs, _ = check_attrs(op, {"groups": 3, "fuse_relu": True, "strides": [2, 1]}, NOWHERE)
    assert type in _parts(Call(op, ins, {}, attrs, Place("cpu")))
    attrs, _ = check_attrs(op, {"groups": 3}, NOWHERE)
    del ins["Bias"]
    assert type not in _parts(Call(op, ins, {}, attrs, Place("cpu")))


def test_the_gradient_of_a_relu_before_is_beside_the_convolution() -> None:
    op = ops.get("depthwise_conv2d_grad")
    ins = {slot: (Spec.of(dims, "float32"),) for slot, dims in
           (("Input", (2, 3, 5, 5)), ("Filter", (3, 1, 3, 3)), ("Output@GRAD", (2, 3, 3, 3)))}  # fmt: skip
    attrs, _ = check_attrs(op, {"groups": 3, "fuse_relu_before_depthwise_conv": True}, NOWHERE)
    outs = {"Input@GRAD": ins["Input"], "Filter@GRAD": ins["Filter"]}
    found = _parts(Call(op, ins, outs, attrs, Place("cpu")))
    assert found.count(op.type) == 2  # one for each output


def _parts(call: Call) -> list[str]:
    """The operators that a call is decomposed into."""
    assert call.op.infer is not None
    if not call.outs:
        call = call.with_outs({slot: specs_of(found) for slot, found in call.op.infer(call).items()})
    parts = decompose(call)
    assert not isinstance(parts, str), parts
    return [part.call.op.type for part in parts]
