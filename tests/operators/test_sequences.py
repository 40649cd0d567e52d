"""Programs with sequences: LoD that operators make, and what is refused, by operator and slot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.expr.calls import traced_of
from fluidlite.expr.tensor import topological_order
from fluidlite.program.op_call import Call
from fluidlite.program.registry import ops
from fluidlite.tensor.tensor_spec import Spec

L = fluid.layers
Found = tuple[np.ndarray[Any, Any], list[list[int]]]


def ragged(array: Any, lod: list[list[int]]) -> Any:
    found = fluid.LoDTensor()
    found.set(np.asarray(array), fluid.CPUPlace())
    found.set_lod(lod)
    return found


def run(build: Callable[..., Any], levels: int = 1, lod: Any = ((0, 2, 2, 5),), **others: Any) -> Found:
    """What a layer makes of x, [5, 2] with LoD, and of other feeds."""
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        x = L.data("x", [2], lod_level=levels)
        feeds = {"x": ragged(np.arange(10, dtype="float32").reshape(5, 2), [list(level) for level in lod])}
        given = []
        for name, value in others.items():
            value = np.asarray(value)
            given.append(L.data(name, list(value.shape), dtype=str(value.dtype), append_batch_size=False))
            feeds[name] = value
        out = build(x, *given)
        (found,) = fluid.Executor(fluid.CPUPlace()).run(feed=feeds, fetch_list=[out], return_numpy=False)
        return np.asarray(found), [list(level) for level in found.lod()]


def test_layers_make_the_lod() -> None:
    assert run(lambda x: L.sequence_expand(L.sequence_pool(x, "sum"), x))[1] == []
    assert run(lambda x: L.sequence_expand(x, x))[1] == [[0, 2, 4, 7, 10, 13]]
    assert run(lambda x: L.sequence_expand_as(L.sequence_last_step(x), x))[1] == [[0, 2, 2, 5]]
    assert run(lambda x: L.sequence_reshape(x, 1))[1] == [[0, 4, 4, 10]]
    assert run(lambda x: L.sequence_concat([x, x]))[1] == [[0, 4, 4, 10]]
    assert run(L.sequence_reverse)[1] == [[0, 2, 2, 5]]


def test_upper_levels_are_left_of_a_pool() -> None:
    out, lod = run(lambda x: L.sequence_first_step(x), 2, ((0, 1, 3), (0, 2, 2, 5)))
    assert lod == [[0, 1, 3]]
    np.testing.assert_array_equal(out, [[0, 1], [0, 0], [4, 5]])


def test_what_is_padded_is_unpadded() -> None:
    def build(x: Any) -> Any:
        return L.sequence_unpad(*L.sequence_pad(x, L.fill_constant([1], "float32", 7.0)))

    out, lod = run(build)
    assert lod == [[0, 2, 2, 5]]
    np.testing.assert_array_equal(out, np.arange(10).reshape(5, 2))


def test_lod_is_reset_and_appended() -> None:
    assert run(lambda x: L.lod_reset(x, target_lod=[0, 5]))[1] == [[0, 5]]
    assert run(L.lod_reset, y=np.array([0, 1, 5]))[1] == [[0, 1, 5]]
    assert run(lambda x: L.lod_append(x, [0, 1, 2, 3, 4, 5]))[1] == [[0, 2, 2, 5], [0, 1, 2, 3, 4, 5]]


def test_masks_are_as_long_as_the_longest() -> None:
    out, _ = run(lambda x, n: L.sequence_mask(n), n=np.array([1, 3]))
    np.testing.assert_array_equal(out, [[1, 0, 0], [1, 1, 1]])


def test_erased_words_shorten_their_sequences() -> None:
    def build(x: Any) -> Any:
        block = fluid.default_main_program().global_block()
        words, out = L.cast(L.reduce_sum(x, 1, keep_dim=True), "int64"), block.create_var("erased")
        block.append_op("sequence_erase", {"X": words, "Values": words}, {"Out": out}, {"tokens": [1, 13]})
        return out

    out, lod = run(build)
    np.testing.assert_array_equal(out, [[5], [9], [17]])
    assert lod == [[0, 1, 1, 3]]


def test_concat_keeps_the_lod() -> None:
    assert run(lambda x: L.concat([x, x], axis=0))[1] == [[0, 2, 2, 5, 7, 7, 10]]
    assert run(lambda x: L.concat([x, x], axis=1))[1] == [[0, 2, 2, 5]]


@pytest.mark.parametrize(
    ("build", "others", "said"),
    [
        (lambda x: L.lod_reset(x, target_lod=[0, 4]), {}, "lod_reset.*target_lod.*end with 5"),
        (lambda x: L.lod_reset(x, target_lod=[0, 4, 3, 5]), {}, "lod_reset.*target_lod.*never fall"),
        (L.lod_reset, {"y": np.array([1, 5])}, "lod_reset.*TargetLod.*begin with 0"),
        (lambda x: L.lod_append(x, [0, 5]), {}, "lod_reset.*target_lod.*5 sequences"),
        (lambda x: L.sequence_expand(x, x, ref_level=1), {}, "sequence_expand.*ref_level"),
        (lambda x, y: L.sequence_expand_as(y, x), {"y": np.zeros((2, 1), "float32")}, "sequence_expand_as.*X.*3 rows"),
        (lambda x, y: L.sequence_expand(y, x), {"y": np.zeros((2, 1), "float32")}, "sequence_expand.*X.*3 sequences"),
        (lambda x, y: L.sequence_pool(y, "max"), {"y": np.zeros((2, 1), "float32")}, "sequence_pool.*X is.*LoD"),
        (L.sequence_softmax, {}, "sequence_softmax.*X is.*a number a row"),
        (lambda x: L.sequence_reshape(x, 4), {}, "sequence_reshape.*new_dim.*divisor"),
        (lambda x, v: L.sequence_pad(x, v, 2)[0], {"v": np.zeros(1, "float32")}, "sequence_pad.*padded_length"),
        (lambda x, y, n: L.sequence_unpad(y, n), {"y": np.zeros((2, 3), "float32"), "n": np.array([1, 4])},
         "sequence_unpad.*Length is"),
        (L.sequence_slice, {"o": np.array([[0], [1], [0]]), "n": np.array([[1], [0], [1]])}, "sequence_slice.*Offset"),
        (L.sequence_slice, {"o": np.array([[0], [0], [2]]), "n": np.array([[1], [0], [2]])}, "sequence_slice.*Length"),
    ],
)  # fmt: skip
def test_refused(build: Callable[..., Any], others: dict[str, Any], said: str) -> None:
    with pytest.raises(fluid.FluidError, match=f"(?s){said}"):
        run(build, **others)


def _thousands(layer: str, count: int) -> tuple[Any, dict[str, Any], Any, Any]:
    """A layer of many sequences: the result, feeds, and the rows and lengths that are right."""
    drawn = np.random.default_rng(count)
    lengths = drawn.integers(0, 4, count)
    if layer == "unpad":
        x = L.data("x", [-1, 3, 2], append_batch_size=False)
        n = L.data("n", [-1], dtype="int64", append_batch_size=False)
        whole = drawn.normal(size=(count, 3, 2)).astype("float32")
        return L.sequence_unpad(x, n), {"x": whole, "n": lengths}, whole[np.arange(3) < lengths[:, None]], lengths
    rows = drawn.integers(0, 5, int(lengths.sum()))
    if layer == "erase":
        x = L.data("x", [1], dtype="int64", lod_level=1)
        block, of = fluid.default_main_program().global_block(), np.repeat(np.arange(count), lengths)
        found = block.create_var("left")
        block.append_op("sequence_erase", {"X": x, "Values": x}, {"Out": found}, {"tokens": [1, 3]})
        stays = ~np.isin(rows, [1, 3])
        left = np.bincount(of[stays], minlength=count)
        return found, {"x": ragged(rows[:, None], [[0, *np.cumsum(lengths)]])}, rows[stays][:, None], left
    x = L.data("x", [1], dtype="int64", lod_level=1)
    first, n = (L.data(name, [-1, 1], dtype="int64", append_batch_size=False) for name in ("o", "n"))
    at = drawn.integers(0, lengths + 1)
    sizes = drawn.integers(0, lengths - at + 1)
    of, begins = np.repeat(np.arange(count), lengths), np.cumsum(lengths) - lengths
    step = np.arange(len(rows)) - begins[of]
    inside = (step >= at[of]) & (step < (at + sizes)[of])
    feeds = {"x": ragged(rows[:, None], [[0, *np.cumsum(lengths)]]), "o": at[:, None], "n": sizes[:, None]}
    return L.sequence_slice(x, first, n), feeds, rows[inside][:, None], sizes


@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
@pytest.mark.parametrize("layer", ["unpad", "slice", "erase"])
def test_thousands_of_sequences(layer: str, place: str) -> None:
    """What is read as numbers is a table: an expression is as large for 5000 sequences as for two."""
    for mode in ("compiled", "interpreted"):
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
            out, feeds, rows, lengths = _thousands(layer, 5000)
            (found,) = fluid.Executor(place, mode=mode, fallback="allow").run(
                feed=feeds, fetch_list=[out], return_numpy=False
            )
        np.testing.assert_array_equal(np.asarray(found), rows)
        assert found.recursive_sequence_lengths() == [lengths.tolist()]


@pytest.mark.parametrize("layer", ["unpad", "slice", "erase"])
def test_the_expression_does_not_grow(layer: str) -> None:
    sizes = []
    for count in (2, 900):
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
            _, _, rows, lengths = _thousands(layer, count)
            op = ops.get(f"sequence_{layer}")
            offsets = ((0, *np.cumsum(np.full(count, 3)).tolist()),)
            ragged_x = Spec.of((3 * count, 1), "int64", lod=offsets)
            number = Spec.of((count,), "int64")
            table = {"Length": (number.with_(value=tuple(lengths.tolist())),)}
            ins = {"X": (Spec.of((count, 3, 2), "float32"),), **table}
            if layer == "slice":
                zero = number.with_(value=(0,) * count)
                ins = {"X": (ragged_x,), "Offset": (zero,), **table}
            if layer == "erase":
                values = ragged_x.with_(lod=(), lod_level=0, value=tuple([1] * (3 * count)))
                ins = {"X": (ragged_x,), "Values": (values,)}
            outs = {
                "Out": (Spec.of((len(rows), *ins["X"][0].dims[2 if layer == "unpad" else 1 :]), ins["X"][0].dtype),)
            }
            call = Call(op, ins, outs, {"tokens": (1, 3)} if layer == "erase" else {})
            sizes.append((len(topological_order(traced_of(call).outputs["Out"])), traced_of(call)))
    assert sizes[0][0] == sizes[1][0] < 60
    assert sizes[0][1] is sizes[1][1]
