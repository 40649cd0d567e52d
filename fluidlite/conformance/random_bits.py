"""Checks of random numbers: each place draws the bits of the Philox generator."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import NormalDist
from typing import Any

import numpy as np

from fluidlite.codegen import philox
from fluidlite.conformance.cases import Array
from fluidlite.conformance.check import compare
from fluidlite.conformance.op_harness import MODES, OperatorProgram, run
from fluidlite.conformance.tolerances import ConformanceError
from fluidlite.platform.place import Place
from fluidlite.program.program import Program

_SEED = 0x1234_5678_9ABC
_DIMS = (37, 29)
_DROPOUT_PROB = 0.3


def random_checks() -> dict[str, Callable[[Place], None]]:
    """The checks by name; each takes a place and raises ConformanceError."""
    checks_by_name = {
        "random[uniform]": _uniform,
        "random[gaussian]": _gaussian,
        "random[truncated_gaussian]": _truncated,
        "random[dropout_mask]": _dropout_mask,
    }
    return {name: partial(_in_every_mode, check) for name, check in checks_by_name.items()}


def _in_every_mode(check: Callable[[Place, str], None], place: Place) -> None:
    for mode in MODES:
        check(place, mode)


def _numbers() -> Array:
    """The upper 24 bits of each element's random word, computed with Python integers."""
    key = (_SEED & philox.MASK, _SEED >> 32)
    count = int(np.prod(_DIMS))
    words = [word for block in range(-(-count // 4)) for word in philox.block((block, 0, 0, 0), key)]
    return np.asarray([word >> 8 for word in words[:count]], np.int64).reshape(_DIMS)


def _draw(place: Place, mode: str, type: str, output: str, feed: dict[str, Array], attrs: dict[str, Any]) -> Any:
    program = OperatorProgram(Program())
    block = program.program.global_block()
    inputs = {slot: program.data(block, slot, array) for slot, array in feed.items()}
    outputs = {"Out": block.create_var("Out")}
    if output != "Out":
        outputs[output] = block.create_var(output)
    block.append_op(type, inputs, outputs, {**attrs, "seed": _SEED})
    (result,) = run(program, place, [outputs[output]], mode)
    return result.numpy()


def _exact(subject: str, place: Place, actual: Any, expected: Array) -> None:
    if not np.array_equal(actual, expected):
        errors = int(np.sum(actual != expected))
        raise ConformanceError(f"{place}: {subject}: {errors} of {expected.size} random numbers have other bits")


def _uniform(place: Place, mode: str) -> None:
    attrs = {"shape": list(_DIMS), "min": -2.0, "max": 6.0, "dtype": "float32"}
    expected = _numbers().astype(np.float32) * np.float32(2.0**-21) - 2  # a float32 holds each of them
    _exact("uniform_random", place, _draw(place, mode, "uniform_random", "Out", {}, attrs), expected)


def _gaussian(place: Place, mode: str) -> None:
    attrs = {"shape": list(_DIMS), "mean": 0.25, "std": 2.0, "dtype": "float32"}
    actual = _draw(place, mode, "gaussian_random", "Out", {}, attrs)
    inverse = np.vectorize(NormalDist(0.25, 2.0).inv_cdf)
    compare(f"gaussian_random on {place}", actual, inverse((_numbers() + 0.5) / 2.0**24), 1e-6, 1e-6)


def _truncated(place: Place, mode: str) -> None:
    attrs = {"shape": list(_DIMS), "mean": 0.25, "std": 2.0, "dtype": "float32"}
    actual = _draw(place, mode, "truncated_gaussian_random", "Out", {}, attrs)
    normal = NormalDist()
    low, high = normal.cdf(-2), normal.cdf(2)
    expected = 0.25 + 2.0 * np.vectorize(normal.inv_cdf)(low + (high - low) * _numbers() / 2.0**24)
    compare(f"truncated_gaussian_random on {place}", actual, expected, 1e-6, 1e-6)


def _dropout_mask(place: Place, mode: str) -> None:
    feed = {"X": np.ones(_DIMS, np.float32)}
    attrs = {"dropout_prob": _DROPOUT_PROB, "fix_seed": True}
    expected = (_numbers().astype(np.float32) * np.float32(2.0**-24) >= np.float32(_DROPOUT_PROB)).astype(np.uint8)
    _exact("dropout's mask", place, _draw(place, mode, "dropout", "Mask", feed, attrs), expected)
