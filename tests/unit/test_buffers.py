"""Array calls that write where a tensor lay that is no longer read, or where the result is to be."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from grouped import grouped

from fluidlite import expr as e
from fluidlite.codegen import functions
from fluidlite.devices.cpu import NumPyArrays
from fluidlite.expr.traced import Traced, trace, values_of
from fluidlite.render import array_functions, array_moves
from fluidlite.render.arrays import array_code

DIMS = (4, 6)
GIVEN = {"X": [(DIMS, "float64")], "Y": [(DIMS, "float64")], "Z": [((1, 6), "float64")]}


def _compute(made: Traced, arrays: dict[str, Any], host: bool, shared: dict[str, str] | None = None) -> list[Any]:
    """The outputs; those that share an input's memory are written there."""
    code, values = array_code(made, None, host, shared), values_of(GIVEN)
    outs = [
        arrays[shared[slot]] if shared and slot in shared else np.full(made.dims(slot, values, i), 77.0)
        for slot, i in code.outputs
    ]
    in_order = [outs[code.outputs.index((slot, i))] for slot, found in made.outputs.items() for i in range(len(found))]
    context = SimpleNamespace(xp=np, array=SimpleNamespace(eager=True, extra=NumPyArrays().extra))
    given, compute, kept = [arrays[slot] for slot, _ in code.operands], code.function(), list[Any]()
    if not shared:  # constants are kept of a call before
        earlier = [np.full_like(out, 55.0) for out in outs]
        compute(np, functions, array_functions, context, None, code.values(values), kept,
                *(3 - array for array in given), *earlier)  # fmt: skip
    compute(np, functions, array_functions, context, None, code.values(values), kept, *given, *outs)
    return in_order


def _program(seed: int) -> Traced:
    """Thirty tensors of operands and of each other; results are some of them, and what is last."""
    rng = np.random.default_rng(seed)

    def function(given: Any, _: Any) -> dict[str, list[e.Tensor]]:
        x, y, z = (given[slot][0] for slot in GIVEN)
        ramp = e.cast(e.iota(x.dims, 1), "float64")
        known = [x, y, ramp * 2 - 3, e.maximum(ramp, 2), e.broadcast(z, x.dims)]
        for _ in range(30):
            a, b = (known[k] for k in rng.integers(max(0, len(known) - 6), len(known), 2))
            known.append((
                lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * 0.5, lambda a, b: e.maximum(a, b),
                lambda a, b: a - e.reduce_max(b, 1, keep=True),
                lambda a, b: e.reshape(e.reshape(a, (-1,)) + 1, a.dims) - b,
                lambda a, b: e.concat([e.slice_axis(a, 1, 3, 3), e.slice_axis(b, 1, 0, 3)], 1),
                lambda a, b: e.flip(a, 1), lambda a, b: e.where(a > b, a, b),
                lambda a, b: b + e.transpose(e.transpose(a, (1, 0)) * 2, (1, 0)),
                lambda a, b: e.add_at(a, e.iota((4,), 0) // 2, 0, 4, base=b * 2),
                lambda a, b: e.put(e.slice_axis(a, 1, 0, 1), e.iota((4, 1), 0), 1, 6, base=e.where(a > b, a, b)),
                lambda a, b: a + e.pad(e.slice_axis(b, 1, 2, 3), (0, 1), (0, 2)),
                lambda a, b: e.pad(e.slice_axis(a, 0, 1, 3), (0, 0), (1, 0)) + a,
                lambda a, b: e.scan("sum", a, 1, exclusive=True) + e.scan("sum", a, 1, True, True) - b,
            )[rng.integers(15)](a, b))  # fmt: skip
        return {"Out": [known[-1], known[int(rng.integers(2, 35))], e.reshape(known[-2], (-1,))]}

    return trace(function, GIVEN, (), values_of(GIVEN))


@pytest.mark.parametrize("seed", range(80))
def test_memory_that_is_written_again_is_not_read(seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = {slot: rng.integers(-8, 8, dims).astype("float64") for slot, [(dims, _)] in GIVEN.items()}
    before = {slot: array.copy() for slot, array in arrays.items()}
    made = _program(seed)
    for found, wanted in zip(_compute(made, arrays, True), _compute(made, arrays, False), strict=True):
        np.testing.assert_array_equal(found, wanted)
    for slot, array in arrays.items():
        np.testing.assert_array_equal(array, before[slot], f"{slot} was written")


@pytest.mark.parametrize("view", [False, True])
def test_an_output_in_an_operand_s_memory_is_not_written_while_that_is_read(view: bool) -> None:
    def function(given: Any, _: Any) -> dict[str, e.Tensor]:
        x, y = given["X"][0], given["Y"][0]
        seen = e.reshape(e.reshape(x, (-1,)), x.dims) if view else x
        return {"First": x + y, "Second": seen * y, "Third": y - 1}

    arrays = {slot: np.arange(24.0).reshape(DIMS) for slot in ("X", "Y")}
    x, y = (arrays[slot].copy() for slot in ("X", "Y"))
    first, second, third = _compute(trace(function, GIVEN, (), values_of(GIVEN)), arrays, True, {"First": "X"})
    assert first is arrays["X"]
    for found, wanted in ((first, x + y), (second, x * y), (third, y - 1)):
        np.testing.assert_array_equal(found, wanted)


SECOND: dict[str, Callable[[e.Tensor, e.Tensor], e.Tensor]] = {
    "itself": lambda x, y: x,
    "view": lambda x, y: e.reshape(e.reshape(x, (-1,)), x.dims),
    "turned": lambda x, y: e.flip(x, 0),
    "short axes turned": lambda x, y: e.reshape(e.flip(e.reshape(x, (12, 2)), (0, 1)), (4, 6)),
    "transposed": lambda x, y: e.transpose(e.transpose(x, (1, 0)), (1, 0)),
    "stopped": lambda x, y: e.stop_gradient(x),
    "concat": lambda x, y: e.concat([e.slice_axis(y, 0, 0, 1), e.slice_axis(x, 0, 0, 3)], 0),
    "pad": lambda x, y: e.pad(x, (1, 0), (-1, 0)),
    "take": lambda x, y: e.take(x, e.argmax(y, 1), 0, "clamp"),
    "pick": lambda x, y: e.pick(x, e.cast(e.iota(x.dims, 1), "int64"), 0, "clamp"),
    "contract": lambda x, y: e.contract(x, e.contract(y, y, "ij,ik->jk"), "ij,jk->ik"),
    "added at": lambda x, y: e.add_at(x * 2, e.argmax(y, 1), 0, 4),
    "product added at": lambda x, y: e.add_at(
        e.contract(x, e.contract(y, y, "ij,ik->jk"), "ij,jk->ik"), e.argmax(y, 1), 0, 4
    ),
    "put": lambda x, y: e.put(x, e.cast(e.iota(x.dims, 1), "int64"), 0, 4),
    "scan": lambda x, y: e.scan("sum", x, 0),
    "where": lambda x, y: e.where(x > y, x, y),
    "product": lambda x, y: x * y,
}


@grouped(("first", "second", "host"), itertools.product(SECOND, SECOND, [True, False]), by=("first",))
def test_what_is_in_an_operand_s_memory_is_written_when_that_has_been_read(
    first: str, second: str, host: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One result in the memory of X, one that reads X; then the other in the memory of Y, which the first one reads."""
    monkeypatch.setattr(array_moves, "MIN_ANALYZED_ELEMENTS", 1)  # short axes are copied one element after the other

    def function(given: Any, _: Any) -> dict[str, e.Tensor]:
        x, y = given["X"][0], given["Y"][0]
        return {"First": SECOND[first](y, x), "Second": SECOND[second](x, y)}

    made, rng = trace(function, GIVEN, (), values_of(GIVEN)), np.random.default_rng(3)
    arrays = {slot: rng.standard_normal(DIMS) for slot in ("X", "Y")}
    wanted = _compute(made, arrays, False)
    for shared in ({"First": "X"}, {"Second": "X"}, {"First": "X", "Second": "Y"}, {"First": "Y", "Second": "X"}):
        found = _compute(made, {slot: array.copy() for slot, array in arrays.items()}, host, shared)
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, 1e-12, 1e-12, err_msg=str(shared))


def test_elementwise_calls_make_no_array_that_they_need_not() -> None:
    def function(given: Any, _: Any) -> dict[str, e.Tensor]:
        x = given["X"][0]
        return {"Out": e.exp((x - e.reduce_max(x, 1, keep=True)) * 2) + 1}

    source = array_code(trace(function, GIVEN, (), values_of(GIVEN)), None, True).source
    assert source.count("out=") == 4, source
    assert "tout0 = H.target(out0, 'float64')" in source


ADDING: dict[str, Callable[[e.Tensor, e.Tensor], e.Tensor]] = {
    "put one": lambda x, base: e.put(e.slice_axis(x, 1, 0, 1), e.iota((4, 1), 0), 1, 6, base=base),
    "put": lambda x, base: e.put(x, e.iota((4, 6), 0), 1, 6, base=base),
    "add_at": lambda x, base: e.add_at(x, e.iota((4,), 0) // 2, 0, 4, base=base),
    "add_at, other dims": lambda x, base: e.reshape(e.add_at(x, e.iota((4,), 0) // 2, 0, 4, base=base), (-1, 2)),
}


@pytest.mark.parametrize("name", ADDING)
def test_what_is_added_to_is_computed_where_the_sum_is_to_be(name: str) -> None:
    def function(given: Any, _: Any) -> dict[str, e.Tensor]:
        return {"Out": ADDING[name](given["X"][0], given["X"][0] * 2)}

    made = trace(function, GIVEN, (), values_of(GIVEN))
    assert ", out=t" in array_code(made, None, True).source
    x = np.random.default_rng(0).integers(-8, 8, DIMS).astype("float64")
    (found,), (wanted,) = _compute(made, {"X": x}, True), _compute(made, {"X": x}, False)
    np.testing.assert_array_equal(found, wanted)


def test_a_result_that_others_read_is_computed_in_its_own_memory() -> None:
    def function(given: Any, _: Any) -> dict[str, e.Tensor]:
        middle = given["X"][0] + 1
        return {"Out": e.exp(middle * 2) + middle, "Middle": middle}

    made = trace(function, GIVEN, (), values_of(GIVEN))
    assert "xp.add(a0, N[0], out=tout1)" in array_code(made, None, True).source
    x = np.arange(24.0).reshape(DIMS) / 24
    out, middle = _compute(made, {"X": x}, True)
    np.testing.assert_array_equal(middle, x + 1)
    np.testing.assert_allclose(out, np.exp(2 * (x + 1)) + x + 1)


def test_a_result_of_the_dtype_that_is_stored_is_computed_there() -> None:
    def function(given: Any, _: Any) -> dict[str, e.Tensor]:
        return {"Out": given["X"][0] + 1}

    made = trace(function, GIVEN, (), values_of(GIVEN))
    alike, rounded = (array_code(made, None, True, stored={"Out": [dtype]}).source for dtype in ("float64", "float32"))
    assert alike.splitlines()[1:] == ["    xp.add(a0, N[0], out=out0)"]
    assert "H.store(xp, out0, xp.add(" in rounded
