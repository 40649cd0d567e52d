"""Layers on shapes: values against NumPy, dims while the program is built, Fluid's signatures, indices of variables."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.base.errors import ProgramError

A = np.arange(24, dtype="float32").reshape(2, 3, 4)
M = np.arange(12, dtype="float32").reshape(3, 4) - 5
IMAGES = np.arange(2 * 3 * 4 * 5, dtype="float32").reshape(2, 3, 4, 5)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Give every test new programs, names and scope."""
    with (
        fluid.unique_name.guard(),
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.scope_guard(fluid.Scope()),
    ):
        yield


def data(name: str, array: Any, known: bool = True) -> Any:
    dims = array.shape if known else (-1,) * array.ndim
    return layers.data(name, dims, dtype=str(array.dtype), append_batch_size=False, stop_gradient=False)


def check(make: Callable[..., Any], expected: Any, *arrays: Any) -> None:
    """Hold a layer's results against arrays: with dims known while the program is built, and without."""
    for known in (True, False):
        with fluid.program_guard(fluid.Program(), fluid.Program()):
            given = [data(f"x{i}", array, known or array.dtype.kind != "f") for i, array in enumerate(arrays)]
            made = make(*given)
            outs = made if isinstance(made, list) else [made]
            feed = {f"x{i}": array for i, array in enumerate(arrays)}
            wanted = expected if isinstance(expected, list) else [expected]
            found = fluid.Executor("cpu").run(fluid.default_main_program(), feed=feed, fetch_list=outs)
            for out, got, want in zip(outs, found, wanted, strict=True):
                np.testing.assert_array_equal(got, want)
                assert got.shape == want.shape and got.dtype == want.dtype == out.dtype
                assert len(out.shape) == got.ndim
                assert all(d in (-1, n) for d, n in zip(out.shape, got.shape, strict=True))


def n(*numbers: int, dtype: str = "int32") -> Any:
    return np.asarray(numbers, dtype)


CASES: dict[str, tuple[Any, ...]] = {
    "reshape": (lambda x: layers.reshape(x, [0, -1]), A.reshape(2, 12), A),
    "reshape act": (lambda x: layers.reshape(x, [-1], act="relu"), np.maximum(M, 0).reshape(-1), M),
    "reshape by variables": (lambda x, k: layers.reshape(x, [k, -1, 2]), A.reshape(4, 3, 2), A, n(4)),
    "reshape by a variable": (lambda x, k: layers.reshape(x, k), A.reshape(3, 8), A, n(3, -1)),
    "reshape actual": (lambda x, k: layers.reshape(x, [-1, 8], actual_shape=k), A.reshape(3, 8), A, n(3, 8)),
    "reshape other actual": (lambda x, k: layers.reshape(x, [-1, 2], k), A.reshape(12, 2), A, n(12, 2, dtype="int64")),
    "squeeze": (lambda x: layers.squeeze(x, [0, -1]), A[0, :, 0], A[:1, :, :1]),
    "unsqueeze": (lambda x: layers.unsqueeze(x, [0, 3]), M[None, :, :, None], M),
    "unsqueeze one": (lambda x: layers.unsqueeze(x, 1), M[:, None], M),
    "unsqueeze by variables": (lambda x, k: layers.unsqueeze(x, [k, 0]), M[None, :, None], M, n(1)),
    "unsqueeze by a variable": (lambda x, k: layers.unsqueeze(x, k), M[:, None], M, n(1)),
    "flatten": (lambda x: layers.flatten(x), A.reshape(2, 12), A),
    "flatten 2": (lambda x: layers.flatten(x, axis=2), A.reshape(6, 4), A),
    "transpose": (lambda x: layers.transpose(x, [2, 0, 1]), A.transpose(2, 0, 1), A),
    "stack": (lambda x, y: layers.stack([x, y], axis=1), np.stack([M, 2 * M], 1), M, 2 * M),
    "stack one": (lambda x: layers.stack(x), M[None], M),
    "unstack": (lambda x: layers.unstack(x, axis=0, num=3), list(M), M),
    "split": (lambda x: layers.split(x, 2), [M[:, :2], M[:, 2:]], M),
    "split sections": (lambda x: layers.split(x, [1, -1], dim=0), [M[:1], M[1:]], M),
    "split by variables": (lambda x, k: layers.split(x, [k, -1], 0), [M[:2], M[2:]], M, n(2)),
    "split along a variable": (lambda x, k: layers.split(x, 3, dim=k), [M[:1], M[1:2], M[2:]], M, n(0)),
    "concat along a variable": (lambda x, k: layers.concat([x, x], axis=k), np.concatenate([M, M], 1), M, n(-1)),
    "shape": (lambda x: layers.shape(x), n(2, 3, 4), A),
    "rank": (lambda x: layers.rank(x), np.asarray(3, "int32"), A),
    "size": (lambda x: layers.size(x), n(24, dtype="int64"), A),
    "is_empty": (lambda x: layers.is_empty(x), np.asarray([False]), A),
    "is_empty of nothing": (lambda x: layers.is_empty(x), np.asarray([True]), A[:0]),
    "slice": (lambda x: layers.slice(x, [0, 2], [1, -3], [9, -1]), A[1:, :, 1:3], A),
    "slice by variables": (lambda x, k: layers.slice(x, [1, 2], [k, 0], [3, 2]), A[:, 1:3, :2], A, n(1)),
    "slice by a variable": (lambda x, k: layers.slice(x, [1], [0], k), A[:, :2], A, n(2)),
    "strided_slice": (lambda x: layers.strided_slice(x, [0, 2], [1, 0], [0, 4], [-1, 3]), A[1:0:-1, :, ::3], A),
    "strided_slice by variables": (lambda x, k: layers.strided_slice(x, [2], [0], [4], [k]), A[:, :, ::2], A, n(2)),
    "crop": (lambda x: layers.crop(x, [1, 2, 3], [1, 0, 1]), A[1:, :2, 1:], A),
    "crop default": (lambda x: layers.crop(x, [1, 2, 3]), A[:1, :2, :3], A),
    "crop like": (lambda x, y: layers.crop(x, y, [1, 1]), M[1:3, 1:3], M, M[:2, :2]),
    "crop by a variable": (lambda x, k: layers.crop(x, [2, 2], k), M[1:3, 2:], M, n(1, 2)),
    "crop_tensor": (lambda x: layers.crop_tensor(x, [2, -1], [1, 2]), M[1:, 2:], M),
    "crop_tensor by variables": (lambda x, k: layers.crop_tensor(x, [k, 3], [0, k]), M[:1, 1:], M, n(1)),
    "crop_tensor by a variable": (lambda x, k: layers.crop_tensor(x, k), M[:2, :3], M, n(2, 3)),
    "similarity_focus": (
        lambda x: layers.similarity_focus(x, 3, [1]), np.repeat(np.eye(3, 4, 1, "float32").reshape(1, 3, 4, 1), 2, 3),
        np.arange(24, dtype="float32").reshape(1, 3, 4, 2),
    ),
    "continuous_value_model": (
        lambda x, y: layers.continuous_value_model(x, y, False), M[:, 2:], M, M[:, :2].copy(),
    ),
    "gather_tree": (
        lambda x, y: layers.gather_tree(x, y), n(7, 7, 2, 3).reshape(2, 1, 2), n(7, 8, 2, 3).reshape(2, 1, 2),
        n(0, 0, 0, 0).reshape(2, 1, 2),
    ),
    "multiplex": (
        lambda x, y, k: layers.multiplex([x, y], k), np.stack([M[0], -M[1], M[2]]), M, -M, n(0, 1, 0).reshape(3, 1),
    ),
    "expand": (lambda x: layers.expand(x, [2, 3]), np.tile(M, (2, 3)), M),
    "expand by variables": (lambda x, k: layers.expand(x, [k, 1]), np.tile(M, (2, 1)), M, n(2)),
    "expand by a variable": (lambda x, k: layers.expand(x, k), np.tile(M, (2, 3)), M, n(2, 3)),
    "expand_as": (lambda x, y: layers.expand_as(x, y), np.tile(M[:1], (3, 1)), M[:1], M),
    "pad": (lambda x: layers.pad(x, [0, 1, 2, 0], 7.0), np.pad(M, [(0, 1), (2, 0)], constant_values=7), M),
    "pad2d": (lambda x: layers.pad2d(x), IMAGES, IMAGES),
    "pad2d reflect": (
        lambda x: layers.pad2d(x, [1, 0, 2, 3], "reflect"),
        np.pad(IMAGES, [(0, 0), (0, 0), (1, 0), (2, 3)], "reflect"), IMAGES,
    ),
    "pad2d by a variable": (
        lambda x, k: layers.pad2d(x, k, "edge", data_format="NHWC"),
        np.pad(IMAGES, [(0, 0), (1, 2), (0, 1), (0, 0)], "edge"), IMAGES, n(1, 2, 0, 1),
    ),
    "pad_constant_like": (
        lambda x, y: layers.pad_constant_like(x, y, 2.0), np.pad(M[:2, :1], [(0, 1), (0, 3)], constant_values=2),
        M, M[:2, :1],
    ),
    "meshgrid": (
        lambda x, y: layers.meshgrid([x, y]), list(map(np.array, np.meshgrid(M[0], M[:, 0], indexing="ij"))),
        M[0], M[:, 0],
    ),
    "reverse": (lambda x: layers.reverse(x, [0, -1]), A[::-1, :, ::-1], A),
    "reverse one": (lambda x: layers.reverse(x, 1), A[:, ::-1], A),
    "flip": (lambda x: layers.flip(x, [0, 1]), A[::-1, ::-1], A),
    "roll": (lambda x: layers.roll(x, 1, 0), np.roll(A, 1, 0), A),
    "roll all": (lambda x: layers.roll(x, 5), np.roll(A, 5), A),
    "roll two": (lambda x: layers.roll(x, [1, -1], [0, 2]), np.roll(A, (1, -1), (0, 2)), A),
    "tril": (lambda x: layers.tril(x), np.tril(A), A),
    "triu": (lambda x: layers.triu(x, diagonal=1), np.triu(A, 1), A),
    "a row": (lambda x: x[1], A[1], A),
    "the last row": (lambda x: x[-1], A[-1], A),
    "an element": (lambda x: x[1, 2, 3], A[1, 2, 3].reshape(1), A),
    "an element and None": (lambda x: x[1, 2, 3, None], A[1, 2, 3, None], A),
    "slices": (lambda x: x[1:, :-1, 1:3], A[1:, :-1, 1:3], A),
    "dots": (lambda x: x[..., 1], A[..., 1], A),
    "dots and None": (lambda x: x[0:1, ..., None], A[0:1, ..., None], A),
    "None between": (lambda x: x[:, None, 0], A[:, None, 0], A),
    "steps": (lambda x: x[:, ::2, 3:0:-2], A[:, ::2, 3:0:-2], A),
    "backwards": (lambda x: x[::-1], A[::-1], A),
    "steps by a variable": (lambda x, k: x[:, :, ::k], A[:, :, ::2], A, n(2)),
    "backwards to a variable": (lambda x, k: x[:, :, 3:k:-1], A[:, :, 3:1:-1], A, n(1)),
    "a variable": (lambda x, k: x[k], A[1], A, n(1)),
    "a variable of -1": (lambda x, k: x[:, k], A[:, -1], A, n(-1, dtype="int64")),
    "bounds are variables": (lambda x, k: x[:, k:, :k], A[:, 2:, :2], A, n(2)),
    "all of it": (lambda x: x[:] * 1.0, A, A),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    make, expected, *arrays = CASES[name]
    check(make, expected, *arrays)


def test_unbind_and_unstack_take_what_is_known() -> None:
    x = data("x", M)
    outs = [*layers.unbind(x), *layers.unstack(x, axis=-1)]
    got = fluid.Executor("cpu").run(feed={"x": M}, fetch_list=outs)
    assert len(outs) == 7
    for found, expected in zip(got, [*M, *M.T], strict=True):
        np.testing.assert_array_equal(found, expected)
    for layer in (layers.unbind, layers.unstack):
        with pytest.raises(ProgramError, match=r"test_layers_shape.py.*known dim 0"):
            layer(layers.data("y", [4]))  # type: ignore[operator]


def test_squeeze_of_all_dims_that_are_known_to_be_one() -> None:
    assert layers.squeeze(layers.data("x", [1, 3, 1]), []).shape == (-1, 3)


def test_gradients_go_through_indices_and_variables() -> None:
    x, k = data("x", A), data("k", n(1))
    k.stop_gradient = True
    total = (
        layers.reduce_sum(x[k] * 2.0) + layers.reduce_sum(x[..., ::2]) + layers.reduce_sum(layers.reshape(x, [k, -1]))
    )
    (grad,) = fluid.gradients(total, x)
    expected = np.ones_like(A)
    expected[1] += 2
    expected[..., ::2] += 1
    np.testing.assert_array_equal(fluid.Executor("cpu").run(feed={"x": A, "k": n(1)}, fetch_list=[grad])[0], expected)


def test_is_empty_writes_where_it_is_told() -> None:
    cond = layers.create_tensor("bool")
    assert layers.is_empty(data("x", A), cond=cond) is cond


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ((0, 0, 0, 0), "indexed by 4 items; it has 3 dims"),
        ((..., 0, ...), "more than one"),
        ("a", "indexed by 'a'"),
        (1.5, "indexed by 1.5"),
        (True, "indexed by True"),
        (slice(0, 1.5), "sliced by 1.5"),
        (slice(None, None, 0), "with step 0"),
        (slice(None, -1, -1), "nothing is left"),
    ],
)
def test_indices_that_say_nothing(key: Any, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        data("x", A)[key]


def test_messages() -> None:
    x = data("x", A)
    for make, words in (
        (lambda: layers.reshape(x, "3"), "'shape'"),
        (lambda: layers.crop(x), "'shape'"),
        (lambda: layers.crop_tensor(x), "'shape'"),
        (lambda: layers.split(x, []), "one section or more"),
        (lambda: layers.stack([]), "'x'"),
        (lambda: layers.unstack(x, axis=3), r"an axis in \[-3, 3\)"),
        (lambda: layers.expand(3, [1]), "'x' is int 3"),
        (lambda: layers.pad2d(x, [1.5, 0, 0, 0]), "'paddings'"),
    ):
        with pytest.raises(ProgramError, match=words):
            make()


SIGNATURES = {
    "reshape": "(x, shape, actual_shape=None, act=None, inplace=False, name=None)",
    "squeeze": "(input, axes, name=None)",
    "unsqueeze": "(input, axes, name=None)",
    "flatten": "(x, axis=1, name=None)",
    "transpose": "(x, perm, name=None)",
    "stack": "(x, axis=0, name=None)",
    "unstack": "(x, axis=0, num=None)",
    "unbind": "(input, axis=0)",
    "split": "(input, num_or_sections, dim=-1, name=None)",
    "concat": "(input, axis=0, name=None)",
    "shape": "(input)",
    "rank": "(input)",
    "size": "(input)",
    "is_empty": "(x, cond=None)",
    "slice": "(input, axes, starts, ends)",
    "strided_slice": "(input, axes, starts, ends, strides)",
    "crop": "(x, shape=None, offsets=None, name=None)",
    "crop_tensor": "(x, shape=None, offsets=None, name=None)",
    "gather_tree": "(ids, parents)",
    "similarity_focus": "(input, axis, indexes, name=None)",
    "continuous_value_model": "(input, cvm, use_cvm=True)",
    "multiplex": "(inputs, index)",
    "expand": "(x, expand_times, name=None)",
    "expand_as": "(x, target_tensor, name=None)",
    "pad": "(x, paddings, pad_value=0.0, name=None)",
    "pad2d": "(input, paddings=[0, 0, 0, 0], mode='constant', pad_value=0.0, data_format='NCHW', name=None)",
    "pad_constant_like": "(x, y, pad_value=0.0, name=None)",
    "meshgrid": "(input, name=None)",
    "reverse": "(x, axis)",
    "flip": "(input, dims, name=None)",
    "roll": "(input, shifts, dims=None)",
    "tril": "(input, diagonal=0, name=None)",
    "triu": "(input, diagonal=0, name=None)",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_fluids(name: str) -> None:
    signature = inspect.signature(getattr(layers, name))
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    assert str(inspect.Signature(bare)) == SIGNATURES[name]
    assert name in layers.__all__
