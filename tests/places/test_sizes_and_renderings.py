"""An elementwise operator gives the same for 4,096 numbers, compiled, and for ten at a time, by an array namespace.

What is NaN or infinite, and every sign, is equal; the rest differs by what the primitives' bounds allow. The numbers
are those at which something happens, and some of usual size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.program.registry import ops

SPECIAL = (
    0.0, 1.0, 0.5, 1.5, 2.5, 3.0, 6.0, 1e-3, 2e-4, 5.3, 20.0, 64.0, 88.0, 89.0, 91.0, 104.0, 710.0, 1e4, 3.4e15, 1e22,
    3e38, 1e-38, 1e-40, 1e-45, math.inf, math.nan,
)  # fmt: skip
FEW, COUNT = 10, 4096
PLAIN = [
    type for type in sorted(ops._ops)
    if (op := ops.get(type)).scalar is not None and not op.random
    and [slot.name for slot in op.inputs if not slot.dispensable] == ["X"]
    and [slot.name for slot in op.outputs] == ["Out"] and "float32" in op.dtypes.get("X", ())
    and not any(attr.required for attr in op.attrs) and type not in ("assign", "clip")
]  # fmt: skip
"""Operators of one tensor, with their default attributes."""


@pytest.fixture(scope="module", autouse=True)
def strict(load_plugin: Callable[[str, str], None]) -> None:
    pytest.importorskip("array_api_strict")
    load_plugin("strict", "strict_device")


def results(type: str, place: str, mode: str, parts: list[Any]) -> Iterator[tuple[Any, Any]]:
    """The operator's output and X's gradient, for each part."""
    main = fluid.Program()
    with fluid.scope_guard(fluid.Scope()), fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        x = fluid.layers.data("x", [parts[0].size], dtype=parts[0].dtype.name, append_batch_size=False)
        x.stop_gradient = False
        out = main.global_block().create_var(name="out", dtype=parts[0].dtype.name, shape=x.shape)
        main.global_block().append_op(type=type, inputs={"X": [x]}, outputs={"Out": [out]})
        fetches = [out]
        if ops.get(type).grad is not None:
            fetches += fluid.gradients([out], [x])
        exe = fluid.Executor(place, mode=mode)
        for part in parts:
            yield tuple(np.asarray(value) for value in exe.run(main, {"x": part}, fetches))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("type", PLAIN)
def test_few_and_many(type: str, dtype: str) -> None:
    rng = np.random.default_rng(8)
    with np.errstate(all="ignore"):
        special = np.array([*SPECIAL, *(-v for v in SPECIAL)]).astype(dtype)
    special = np.concatenate([special, rng.uniform(-9, 9, -special.size % FEW).astype(dtype)])
    usual = rng.uniform(-30, 30, COUNT - special.size).astype(dtype)
    x = np.concatenate([special, usual])
    (many,) = results(type, "cpu", "compiled", [x])
    parts = [x[i : i + FEW].copy() for i in range(0, special.size + FEW, FEW)]
    for place in ("cpu", "strict"):
        for i, few in enumerate(results(type, place, "interpreted", parts)):
            for a, b in zip(few, many, strict=True):
                compare(a, b[i * FEW : (i + 1) * FEW], parts[i], dtype)


def compare(few: Any, many: Any, x: Any, dtype: str) -> None:
    limits = np.finfo(dtype)
    say = f"of {x}: {few} and {many}"
    np.testing.assert_array_equal(np.isnan(few), np.isnan(many), say)
    np.testing.assert_array_equal(np.isinf(few), np.isinf(many), say)
    known = np.isfinite(few)
    np.testing.assert_array_equal(np.signbit(few[known]), np.signbit(many[known]), say)
    # a difference of numbers that are nearly equal, such as 1 - tanh(x)^2, is as far off as those
    near = 1e4 * limits.eps * np.abs(many[known])
    least = 64 * float(limits.smallest_subnormal) + 8 * float(limits.eps) * (np.abs(many[known]) < 1e-3)
    assert (np.abs(few[known] - many[known]) <= near + least).all(), say


@pytest.mark.parametrize("size", [FEW, COUNT])
@pytest.mark.parametrize("place", [*map(str, fluid.places()), "strict"])
@pytest.mark.parametrize(
    ("build", "given", "exact", "ulps"),
    [
        (fluid.layers.gelu, -5.3, -3.068e-7, 40), (fluid.layers.tanh_shrink, 2e-4, 8e-12 / 3, 4),
        (fluid.layers.swish, -91.0, -91 * math.exp(-91.0), 6), (fluid.layers.elu, -0.0, -0.0, 0),
        (fluid.layers.selu, -0.0, -0.0, 0), (lambda x: fluid.layers.pow(x, 0.5), -math.inf, math.inf, 0),
        (lambda x: fluid.layers.pow(x, 0.5), -0.0, 0.0, 0),
    ],
    ids=["gelu", "tanh_shrink", "swish", "elu", "selu", "pow", "pow_of_zero"],
)  # fmt: skip
def test_digits_and_signs(
    place: str, size: int, build: Callable[..., Any], given: float, exact: float, ulps: int
) -> None:
    main = fluid.Program()
    with fluid.scope_guard(fluid.Scope()), fluid.program_guard(main, fluid.Program()):
        out = build(fluid.layers.data("x", [size], append_batch_size=False))
        (got,) = fluid.Executor(place).run(main, {"x": np.full(size, given, "float32")}, [out])
    expected = np.float32(exact)
    if given == -5.3:  # 0.5 x erfc(-x / sqrt(2))
        expected = np.float32(0.5 * float(np.float32(given)) * math.erfc(-float(np.float32(given)) / math.sqrt(2)))
    assert (np.signbit(got) == np.signbit(expected)).all()
    same = np.isinf(expected) or expected == 0
    assert (got == expected).all() if same else (np.abs(got - expected) <= ulps * np.spacing(abs(expected))).all()


def test_there_are_enough() -> None:
    assert len(PLAIN) > 35
