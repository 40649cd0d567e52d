"""Layers of indexing, orders and creation: values, signatures, random numbers, hashes as Fluid gives them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.base.errors import DtypeError, ProgramError

X = np.arange(12, dtype="float32").reshape(4, 3)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.unique_name.guard(),
        fluid.scope_guard(fluid.Scope()),
    ):
        yield


def data(name: str, array: Any) -> Any:
    array = np.asarray(array)
    return layers.data(name, list(array.shape), dtype=array.dtype.name, append_batch_size=False)


def run(fetch: Any, place: str = "cpu", **feed: Any) -> list[Any]:
    exe = fluid.Executor(place, fallback="allow")
    exe.run(fluid.default_startup_program())
    fetch = list(fetch) if isinstance(fetch, (list, tuple)) else [fetch]
    found: list[Any] = exe.run(feed={k: np.asarray(v) for k, v in feed.items()}, fetch_list=fetch)
    return found


SIGNATURES = {
    "argmax": "(x, axis=0)",
    "argmin": "(x, axis=0)",
    "argsort": "(input, axis=-1, descending=False, name=None)",
    "diag": "(diagonal)",
    "embedding": "(input, size, is_sparse=False, is_distributed=False, padding_idx=None, param_attr=None, "
    "dtype='float32')",
    "eye": "(num_rows, num_columns=None, batch_shape=None, dtype='float32', name=None)",
    "fill_constant": "(shape, dtype, value, force_cpu=False, out=None, name=None)",
    "gather": "(input, index, overwrite=True)",
    "gather_nd": "(input, index, name=None)",
    "gaussian_random": "(shape, mean=0.0, std=1.0, seed=0, dtype='float32', name=None)",
    "gaussian_random_batch_size_like": "(input, shape, input_dim_idx=0, output_dim_idx=0, mean=0.0, std=1.0, seed=0, "
    "dtype='float32')",
    "hash": "(input, hash_size, num_hash=1, name=None)",
    "linspace": "(start, stop, num, dtype=None, name=None)",
    "one_hot": "(input, depth, allow_out_of_range=False)",
    "ones_like": "(x, out=None)",
    "random_crop": "(x, shape, seed=None)",
    "range": "(start, end, step, dtype, name=None)",
    "sampling_id": "(x, min=0.0, max=1.0, seed=0, dtype='float32')",
    "scatter": "(input, index, updates, name=None, overwrite=True)",
    "scatter_nd": "(index, updates, shape, name=None)",
    "scatter_nd_add": "(ref, index, updates, name=None)",
    "shard_index": "(input, index_num, nshards, shard_id, ignore_value=-1)",
    "topk": "(input, k, name=None)",
    "uniform_random": "(shape, dtype='float32', min=-1.0, max=1.0, seed=0, name=None)",
    "uniform_random_batch_size_like": "(input, shape, dtype='float32', input_dim_idx=0, output_dim_idx=0, min=-1.0, "
    "max=1.0, seed=0)",
    "unique": "(x, dtype='int32')",
    "unique_with_counts": "(x, dtype='int32')",
    "where": "(condition)",
    "zeros_like": "(x, out=None)",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_those_of_fluid(name: str) -> None:
    signature = inspect.signature(getattr(layers, name))
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    assert str(inspect.Signature(bare)) == SIGNATURES[name]
    assert name in layers.__all__
    assert getattr(layers, name).__doc__


# By number ---------------------------------------------------------------------------------------------------------


def test_gather_and_scatter() -> None:
    x, index, updates = data("x", X), data("index", [2, 0]), data("updates", X[:2])
    flat = layers.reshape(index, [-1, 1])
    outs = [
        layers.gather(x, index),
        layers.gather_nd(x, flat),
        layers.scatter(x, index, updates),
        layers.scatter(x, index, updates, overwrite=False),
        layers.scatter_nd_add(x, flat, updates),
        layers.scatter_nd(flat, updates, [4, 3]),
    ]
    found = run(outs, x=X, index=[2, 2], updates=X[:2])
    replaced, summed, added, placed = X.copy(), X.copy(), X.copy(), np.zeros_like(X)
    replaced[2], summed[2], added[2], placed[2] = X[1], X[0] + X[1], X[2] + X[0] + X[1], X[0] + X[1]
    for got, wanted in zip(found, [X[[2, 2]], X[[2, 2]], replaced, summed, added, placed], strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
def test_a_row_gathered_twice_gets_the_sum_of_its_gradients(place: str) -> None:
    x, index = data("x", X), data("index", [1, 1, 3])
    x.stop_gradient = False
    loss = layers.reduce_sum(layers.gather(x, index))
    (grad,) = fluid.gradients([loss], [x])
    np.testing.assert_array_equal(run(grad, place, x=X, index=[1, 1, 3])[0][:, 0], [0, 2, 0, 1])


def test_shard_index() -> None:
    x = data("x", [[0], [3], [5]])
    found = run([layers.shard_index(x, 6, 2, i, -9) for i in range(2)], x=[[0], [3], [5]])
    assert [f.ravel().tolist() for f in found] == [[0, -9, -9], [-9, 0, 2]]


# Classes -----------------------------------------------------------------------------------------------------------


def test_one_hot_and_its_second_version() -> None:
    column, flat, depth = data("column", [[1], [0]]), data("flat", [1, 0]), data("depth", np.array([3], "int32"))
    outs = [
        layers.one_hot(column, 3),
        layers.one_hot(column, depth),
        fluid.one_hot(flat, 3),
        fluid.one_hot(flat, 1, allow_out_of_range=True),
    ]
    found = run(outs, column=[[1], [0]], flat=[1, 0], depth=np.array([3], "int32"))
    for got in found[:3]:
        np.testing.assert_array_equal(got, [[0, 1, 0], [1, 0, 0]])
    np.testing.assert_array_equal(found[3], [[0], [1]])
    assert found[0].dtype == "float32"


def test_embedding_and_its_second_version() -> None:
    ids = np.array([[1, 3], [2, 1]])
    shared = fluid.ParamAttr(name="table")
    first = layers.embedding(data("column", ids[..., None]), size=[4, 5], param_attr=shared, padding_idx=-1)
    second = fluid.embedding(data("flat", ids), size=[4, 5], param_attr=shared, padding_idx=3)
    assert fluid.default_main_program().global_block().ops[-1].type == "lookup_table_v2"
    one, other, table = run([first, second, "table"], column=ids[..., None], flat=ids)
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(one, np.where((ids == 3)[..., None], 0, table[ids]))
    assert one.shape == (2, 2, 5)


# Orders ------------------------------------------------------------------------------------------------------------


def test_argsort_topk_argmax_argmin() -> None:
    values = np.array([[3, 1, 2], [5, 9, 5]], "float32")
    x, k = data("x", values), data("k", np.array([2], "int32"))
    down, places = layers.argsort(x, axis=0, descending=True)
    outs = [
        *layers.argsort(x),
        down,
        places,
        *layers.topk(x, 2),
        *layers.topk(x, k),
        layers.argmax(x),
        layers.argmin(x, 1),
    ]
    found = run(outs, x=values, k=np.array([2], "int32"))
    expected: list[Any] = [
        [[1, 2, 3], [5, 5, 9]], [[1, 2, 0], [0, 2, 1]], [[5, 9, 5], [3, 1, 2]], [[1, 1, 1], [0, 0, 0]],
        [[3, 2], [9, 5]], [[0, 2], [1, 0]], [[3, 2], [9, 5]], [[0, 2], [1, 0]], [1, 1, 1], [1, 0],
    ]  # fmt: skip
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert {str(found[i].dtype) for i in (1, 3, 5, 8, 9)} == {"int64"}


@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
def test_long_lines_are_sorted_alike(place: str) -> None:
    rng = np.random.default_rng(3)
    floats = np.round(rng.normal(size=20_000), 2).astype("float32")
    floats[::501], floats[5], floats[7] = np.nan, -0.0, 0.0
    whole = rng.integers(-(2**62), 2**62, 5000)
    x, y = data("x", floats), data("y", whole)
    outs = [*layers.argsort(x), *layers.argsort(x, descending=True), *layers.argsort(y), *layers.topk(x, 3)]
    found = run(outs, place, x=floats, y=whole)
    order = np.argsort(floats, kind="stable")
    down = np.argsort(-floats, kind="stable")
    for got, wanted in zip(found, [floats[order], order, floats[down], down, np.sort(whole), np.argsort(whole),
                                   floats[down[:3]], down[:3]], strict=True):  # fmt: skip
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
@pytest.mark.parametrize("shape", [(70_000,), (3, 40_000), (40_000, 3), (2, 9000, 20)])
def test_the_first_of_many_equal_extremes(place: str, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(5).integers(-30, 30, shape).astype("float32")
    axis = int(np.argmax(shape))
    x = data("x", values)
    most, least = run([layers.argmax(x, axis), layers.argmin(x, axis)], place, x=values)
    np.testing.assert_array_equal(most.reshape(-1), np.argmax(values, axis).reshape(-1))
    np.testing.assert_array_equal(least.reshape(-1), np.argmin(values, axis).reshape(-1))


# Sizes that values decide ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
def test_where_and_unique_are_as_long_as_their_values_say(place: str) -> None:
    values = np.array([2, 3, 3, 1, 5, 3])
    x = data("x", values)
    places = layers.where(layers.greater_than(x, layers.fill_constant([1], "int64", 2)))
    rows = layers.gather(layers.cast(x, "float32"), places)
    out, index = layers.unique(x)
    again, number, count = layers.unique_with_counts(x, "int64")
    assert places.shape == (-1, 1)
    found = run([places, rows, out, index, again, number, count], place, x=values)
    assert found[0].tolist() == [[1], [2], [4], [5]]
    assert found[1].tolist() == [3, 3, 5, 3]
    assert found[2].tolist() == found[4].tolist() == [2, 3, 1, 5]
    assert found[3].tolist() == found[5].tolist() == [0, 1, 1, 2, 3, 1]
    assert found[6].tolist() == [1, 3, 1, 1]
    assert [str(f.dtype) for f in (found[3], found[5], found[6])] == ["int32", "int64", "int64"]
    exe = fluid.Executor(place, fallback="allow")
    none = exe.run(feed={"x": np.zeros(6, "int64")}, fetch_list=[places, out, count])
    assert [f.shape for f in none] == [(0, 1), (1,), (1,)]


# Creation ----------------------------------------------------------------------------------------------------------


def test_ranges_and_matrices() -> None:
    end, matrix = data("end", np.array([2.0], "float32")), np.array([1.0, 2.0], "float32")
    outs = [
        layers.range(0, 5, 2, "int32"), layers.range(1, end, 0.25, "float32"), layers.linspace(0, 1, 5),
        layers.linspace(2.0, end, 3, "float64"), layers.eye(2), layers.eye(2, 3, [4], "int64"), layers.diag(matrix),
        layers.diag(data("d", matrix)), layers.ones_like(end), layers.zeros_like(end),
    ]  # fmt: skip
    found = run(outs, end=np.array([2.0], "float32"), d=matrix)
    expected: list[Any] = [
        np.arange(0, 5, 2), np.arange(1, 2, 0.25), np.linspace(0, 1, 5), np.linspace(2, 2, 3), np.eye(2),
        np.tile(np.eye(2, 3), (4, 1, 1)), np.diag(matrix), np.diag(matrix), [1], [0],
    ]  # fmt: skip
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
    dtypes = ["int32", "float32", "float32", "float64", "float32", "int64", "float32", "float32", "float32", "float32"]
    assert [str(f.dtype) for f in found] == dtypes


def test_dims_and_values_may_be_variables() -> None:
    two, dims, value = data("two", np.array([2], "int32")), data("dims", np.array([2, 3])), data("value", [7])
    outs = [
        layers.fill_constant([two, 3], "float32", 1.5),
        layers.fill_constant(dims, "int64", value),
        layers.zeros([two], "int32"),
        layers.uniform_random([two, 4], min=0.0),
        layers.gaussian_random(dims),
    ]
    assert outs[0].shape == outs[1].shape == (-1, -1)
    found = run(outs, two=np.array([2], "int32"), dims=[2, 3], value=[7])
    assert [f.shape for f in found] == [(2, 3), (2, 3), (2,), (2, 4), (2, 3)]
    assert (found[0] == 1.5).all() and (found[1] == 7).all() and (found[3] >= 0).all()


@pytest.mark.parametrize("number", [2**53 + 1, np.int64(2**53 + 1), -(2**63)])
def test_constants_of_many_digits(number: int) -> None:
    given = layers.create_parameter([1], "int64", default_initializer=fluid.initializer.Constant(number))
    state = layers.create_global_var([1], number, "int64", persistable=True)
    for found in run([layers.fill_constant([1], "int64", number), layers.assign(given), layers.assign(state)]):
        assert found.tolist() == [number]


def test_random_numbers_take_their_batch_from_an_input() -> None:
    x = data("x", X)
    uniform = layers.uniform_random_batch_size_like(x, [-1, 7], input_dim_idx=1, min=2.0, max=3.0)
    normal = layers.gaussian_random_batch_size_like(x, [5, -1], output_dim_idx=1, mean=100.0)
    one, other = run([uniform, normal], x=X)
    assert one.shape == (3, 7) and other.shape == (5, 4)
    assert ((one >= 2) & (one < 3)).all() and (other > 90).all()


def one_op(type: str, inputs: dict[str, Any] | None = None, **attrs: Any) -> Any:
    out = fluid.default_main_program().global_block().create_var(fluid.unique_name.generate(type))
    fluid.default_main_program().global_block().append_op(type, inputs or {}, {"Out": out}, attrs)
    return out


def test_random_integers_and_permutations_are_alike_on_all_places() -> None:
    whole = one_op("randint", shape=[5000], low=-3, high=4, seed=7)
    short = one_op("randint", shape=[50], low=0, high=2**24, dtype="int32", seed=9)
    wide = one_op("randint", shape=[500], low=-(2**40), high=2**41, seed=9)
    order = one_op("randperm", n=1000, seed=5)
    small = one_op("randperm", n=10, dtype="int32", seed=5)
    found = {str(place): run([whole, short, order, small, wide], str(place)) for place in fluid.places()}
    first = found["cpu:0"]
    assert set(first[0].tolist()) == set(range(-3, 4))
    assert np.bincount(first[0] + 3).min() > 600
    assert first[1].dtype == first[3].dtype == "int32" and first[1].max() > 2**23
    assert -(2**40) <= first[4].min() < 0 and 2**40 < first[4].max() < 2**41
    assert sorted(first[2].tolist()) == list(range(1000)) != first[2].tolist()
    for others in found.values():
        for one, other in zip(first, others, strict=True):
            np.testing.assert_array_equal(one, other)


def test_sampling_id_draws_with_the_probabilities() -> None:
    probabilities = np.tile(np.array([0.1, 0.6, 0.3], "float32"), (4000, 1))
    x = data("x", probabilities)
    drawn = layers.sampling_id(x, seed=3)
    found = {str(place): run(drawn, str(place), x=probabilities)[0] for place in fluid.places()}
    assert found["cpu:0"].dtype == "int64"
    np.testing.assert_allclose(np.bincount(found["cpu:0"]) / 4000, [0.1, 0.6, 0.3], atol=0.03)
    for other in found.values():
        np.testing.assert_array_equal(found["cpu:0"], other)


# Fluid's own numbers -----------------------------------------------------------------------------------------------


def test_hashes_are_those_of_fluid() -> None:
    """The numbers that Fluid's own test of hash expects."""
    words = np.array([[5], [8], [9], [5], [0], [0], [1], [7]], "int32")
    expected = [[3481, 7475], [1719, 5986], [8473, 694], [3481, 7475], [4372, 9456], [4372, 9456], [6897, 3218],
                [9038, 7951]]  # fmt: skip
    (found,) = run(layers.hash(data("x", words), 10000, 2), x=words)
    assert found.shape == (8, 2, 1)
    np.testing.assert_array_equal(found[..., 0], expected)


@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
def test_random_crop_moves_on_from_its_seed(place: str) -> None:
    images = np.arange(5 * 8 * 8, dtype="float32").reshape(5, 8, 8)
    x = data("x", images)
    out = layers.random_crop(x, [3, 4], seed=11)
    exe = fluid.Executor(place, fallback="allow")
    exe.run(fluid.default_startup_program())
    runs = [exe.run(feed={"x": images}, fetch_list=[out])[0] for _ in range(3)]
    assert out.shape == (5, 3, 4)
    for found in runs:
        corners = found[:, 0, 0].astype(int)
        for i, corner in enumerate(corners):
            row, column = divmod(corner - 64 * i, 8)
            np.testing.assert_array_equal(found[i], images[i, row : row + 3, column : column + 4])
    assert len({found.tobytes() for found in runs}) == 3
    exe.run(fluid.default_startup_program())
    np.testing.assert_array_equal(exe.run(feed={"x": images}, fetch_list=[out])[0], runs[0])


# Arguments ---------------------------------------------------------------------------------------------------------


def test_bad_arguments_are_refused() -> None:
    x = data("x", X)
    for call in (
        lambda: layers.gather(X, x),
        lambda: layers.topk(x, 0),
        lambda: layers.argsort(x, axis="last"),
        lambda: layers.one_hot(x, "many"),
        lambda: layers.embedding(x, size=[4]),
        lambda: layers.uniform_random("all"),
        lambda: layers.random_crop(x, [2], seed="now"),
        lambda: layers.range("a", 3, 1, "float32"),
    ):
        with pytest.raises(ProgramError):
            call()
    with pytest.raises(DtypeError):
        layers.unique(x, None)
