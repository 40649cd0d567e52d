"""Random words, uniforms and gaussians: known answers, and the same on every emitter."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import array_api_strict
import numpy as np
import pytest
from codegen_harness import ArrayContext, CContext, execute

from fluidlite import expr
from fluidlite.codegen import philox
from fluidlite.codegen.array import BLOCK
from fluidlite.program.opdef import Attr, OpDef, Slot
from fluidlite.program.rules import ScalarRule
from fluidlite.tensor.tensor_spec import Spec

KEY = (0x12345678, 0x9ABCDEF0, 7, 42)


def test_known_answers() -> None:
    """The vectors that the authors of Philox publish."""
    ones = 0xFFFFFFFF
    assert philox.block((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox.block((ones,) * 4, (ones,) * 2) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    counter = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    assert philox.block(counter, (0xA4093822, 0x299F31D0)) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize(("start", "count"), [(0, 9), (3, 6), (4, 1), (2**34 + 1, 5), (0, 0)])
def test_words(device: Any, start: int, count: int) -> None:
    got = philox.words(np, start, count, KEY, 5, device)
    expected = []
    for i in range(start, start + count):
        block = i // 4
        expected.append(philox.block((block & philox.MASK, block >> 32, KEY[2], KEY[3] + 5), KEY[:2])[i % 4])
    assert got.tolist() == expected


def random_op(function: Any, dtype: str = "float32") -> OpDef:
    def infer(call: Any) -> dict[str, Spec]:
        return {slot: Spec.of(call.attr("shape"), dtype) for slot in slots}

    count = 2 if "two" in function.__name__ else 1
    slots = ("Out", "Second")[:count]
    rule = ScalarRule(function, slots)
    return OpDef("random", (), tuple(map(Slot, slots)), (Attr("shape", "ints"),), infer, scalar=rule)


def contexts() -> list[Any]:
    found = [ArrayContext(), ArrayContext(np, out=False), ArrayContext(array_api_strict, out=False)]
    return [*found, CContext(), CContext(libm=True)] if CContext.available else found


@pytest.mark.parametrize("shape", [(7,), (3, 5), (300, 251)])
def test_uniform_has_the_same_bits_everywhere(shape: tuple[int, ...]) -> None:
    op = random_op(lambda: expr.uniform())
    size = int(np.prod(shape))
    expected = (philox.words(np, 0, size, KEY, 0) >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)
    for context in contexts():
        got = execute(context, op, {}, {"shape": shape}, random=KEY)["Out"]
        np.testing.assert_array_equal(got.ravel(), expected)


def test_each_use_has_its_own_stream() -> None:
    def two() -> Any:
        return expr.uniform(), expr.uniform()

    for context in contexts():
        got = execute(context, random_op(two), {}, {"shape": (64,)}, random=KEY)
        other = execute(context, random_op(lambda: expr.uniform()), {}, {"shape": (64,)}, random=(*KEY[:3], 43))
        np.testing.assert_array_equal(got["Second"], other["Out"])
        assert (got["Out"] != got["Second"]).mean() > 0.9


def test_gaussian_agrees_to_4_ulp_and_is_normal() -> None:
    op = random_op(lambda: expr.gaussian())
    size = BLOCK + 5000
    whole = 2 * (philox.words(np, 0, size, KEY, 0) >> np.uint64(8)).astype(np.int64) + 1 - 2**24
    exact = np.array([NormalDist().inv_cdf((k * 2.0**-24 + 1) / 2) for k in whole[:5000].tolist()])
    results = [execute(context, op, {}, {"shape": (size,)}, random=KEY)["Out"] for context in contexts()]
    for got in results:
        assert abs(got.mean()) < 0.02 and abs(got.std() - 1) < 0.01
        np.testing.assert_allclose(got[:5000], exact, rtol=2e-6)
        difference = np.abs(got.astype("f8") - results[0]) / np.spacing(np.abs(results[0]))
        assert difference.max() <= 4


def test_float64_uses_the_same_numbers() -> None:
    for context in contexts():
        single = execute(context, random_op(lambda: expr.uniform()), {}, {"shape": (33,)}, random=KEY)["Out"]
        double = execute(context, random_op(lambda: expr.uniform(), "float64"), {}, {"shape": (33,)}, random=KEY)["Out"]
        np.testing.assert_array_equal(single.astype("f8"), double)
