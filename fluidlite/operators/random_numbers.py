"""Random numbers: uniform, normal, truncated normal, integers, permutations, samples of a distribution."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt as root
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS, INTS
from fluidlite.codegen.philox import CENTRAL
from fluidlite.expr import cast, erf, floor, gaussian, log, mod, uniform
from fluidlite.operators.creation import LIKE_ATTRS, SHAPE, infer_like, infer_shape
from fluidlite.operators.inference import Inferred, number_fits, size, spec_like
from fluidlite.operators.scalar_op import Elementwise, scalar_op
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, OpDef, Slot
from fluidlite.program.operator_options import Execution, Inference, Lowering
from fluidlite.program.registry import register_op
from fluidlite.tensor.tensor_spec import Spec

_SHAPE = Attr("shape", "ints", doc="dims of Out")
_SEED = Attr("seed", "int", 0, doc="0: the program's seed; else this operator's own")


def _truncated_normal(*, mean: float, std: float) -> Any:
    """Return a normal number within two deviations of the mean, by the inverse of its distribution function.

    The inverse error function is Giles's polynomial for its central region ("Approximating the erfinv
    function", GPU Computing Gems, 2011); two deviations never leave it.
    """
    bound: Any = erf(root(2))
    t = bound * (2 * uniform() - 1)
    w = -log((1 - t) * (1 + t)) - 2.5
    p: Any = CENTRAL[-1]
    for term in CENTRAL[-2::-1]:
        p = p * w + term
    return mean + std * root(2) * p * t


_FLOAT = Attr("dtype", "dtype", "float32", choices=ALL_FLOATS, doc="dtype of Out")
_LIMITS = (Attr("min", "float", -1.0), Attr("max", "float", 1.0), _SEED)
_MOMENTS = (Attr("mean", "float", 0.0, doc="mean"), Attr("std", "float", 1.0, doc="standard deviation"), _SEED)
_DIAGONAL = (
    Attr("diag_num", "int", 0, minimum=0, doc="how many elements become diag_val: the i-th is i (diag_step + 1)"),
    Attr("diag_step", "int", 0, minimum=0, doc="elements between two of them: the row's width sets a diagonal"),
    Attr("diag_val", "float", 1.0, doc="their value"),
)
_INPUT = (Slot("Input", metadata_only=True),)


def _infer_uniform(call: Call) -> Inferred:
    if not call.attr("min") < call.attr("max"):
        call.fail_attr("min", f"less than max, which is {call.attr('max')}")
    specs = infer_like(call) if call.op.input("Input") else infer_shape(call)
    out = specs["Out"]
    assert isinstance(out, Spec)
    last, elements = (call.attr("diag_num") - 1) * (call.attr("diag_step") + 1), size(out.dims)
    if call.attr("diag_num") and 0 <= elements <= last:
        call.fail_attr("diag_num", f"elements of Out, which has {elements}; the last would be number {last}")
    return specs


def _refuse_diagonal(call: Call) -> str | None:
    return "some elements become diag_val" if call.attr("diag_num") else None


def _decompose_uniform(call: Call, build: Any) -> str | None:
    """Draw, then scatter diag_val into the flat numbers; rarely used, and so not optimised for memory."""
    if not call.attr("diag_num"):
        return "it is one expression"
    attrs = {name: call.attr(name) for name in ("min", "max", "seed", "dtype")}
    dims, number, step = call.dims("Out"), call.attr("diag_num"), call.attr("diag_step") + 1
    flat = build("uniform_random", {}, {"Out": build.temp()}, {**attrs, "shape": [size(dims)]})
    where = {"shape": [number], "dtype": "int64", "int64_values": [i * step for i in range(number)]}
    ids = build("assign_value", {}, {"Out": build.temp()}, where)
    value = {"shape": [number], "dtype": call.attr("dtype"), "value": call.attr("diag_val")}
    updates = build("fill_constant", {}, {"Out": build.temp()}, value)
    flat = build("scatter", {"X": flat, "Ids": ids, "Updates": updates}, {"Out": build.temp()})
    build("reshape2", {"X": flat}, {"Out": build.output("Out")}, {"shape": list(dims)})
    return None


def _with_diagonal(op: OpDef) -> None:
    """Let an elementwise operator also set a diagonal, by decomposition."""
    assert op.scalar is not None
    op.scalar = replace(op.scalar, supports=_refuse_diagonal)
    op.decompose = _decompose_uniform


def _uniform(*, min: float, max: float) -> Any:
    return min + (max - min) * uniform()


def _normal(*, mean: float, std: float) -> Any:
    return mean + std * gaussian()


_with_diagonal(
    scalar_op(
        "uniform_random",
        _uniform,
        Inference(_infer_uniform),
        Execution(random=True),
        attrs=(SHAPE, *_LIMITS, _FLOAT, *_DIAGONAL),
        doc="Out = random numbers, uniform in [min, max); a diagonal takes temporary memory of three times Out",
        source="Fluid uniform_random_op.cc",
    )
)

_with_diagonal(
    scalar_op(
        "uniform_random_batch_size_like",
        _uniform,
        Inference(_infer_uniform),
        Execution(random=True),
        Elementwise(slots=_INPUT),
        attrs=(*LIKE_ATTRS, *_LIMITS, _FLOAT, *_DIAGONAL),
        doc="Out = random numbers, uniform in [min, max); dim output_dim_idx of Out is dim input_dim_idx of Input",
        source="Fluid uniform_random_batch_size_like_op.cc",
    )
)

scalar_op(
    "gaussian_random",
    _normal,
    Inference(infer_shape),
    Execution(random=True),
    attrs=(SHAPE, *_MOMENTS, _FLOAT),
    doc="Out = random numbers, normal with mean and standard deviation std",
    source="Fluid gaussian_random_op.cc",
)

scalar_op(
    "gaussian_random_batch_size_like",
    _normal,
    Inference(infer_like),
    Execution(random=True),
    Elementwise(slots=_INPUT),
    attrs=(*LIKE_ATTRS, *_MOMENTS, _FLOAT),
    doc="Out = random numbers, normal; dim output_dim_idx of Out is dim input_dim_idx of Input",
    source="Fluid gaussian_random_batch_size_like_op.cc",
)

scalar_op(
    "truncated_gaussian_random",
    _truncated_normal,
    Inference(infer_shape),
    Execution(random=True),
    attrs=(_SHAPE, *_MOMENTS, _FLOAT),
    doc="Out = random numbers, normal with mean and std (before truncation), none beyond two std of the mean",
    source="Fluid truncated_gaussian_random_op.cc",
)

# randint and randperm ----------------------------------------------------------------------------------------------


def _check_bound(call: Call, name: str) -> None:
    """Raise AttributeValueError unless the dtype of Out holds all numbers below an attribute."""
    dtype = call.attr("dtype")
    limit = int(np.iinfo(dtype).max) + 1
    if call.attr(name) > limit:
        call.fail_attr(name, f"at most {limit}, for Out is {dtype}", do="choose a wider dtype")


def _infer_randint(call: Call) -> Inferred:
    low, high = call.attr("low"), call.attr("high")
    if not low < high:
        call.fail_attr("low", f"less than high, which is {high}")
    if low < -(2**63) or high > 2**63 or high - low > 2**48:
        call.fail_attr("high", f"at most low + 2 ** 48, {low + 2**48}, and numbers of 64 bits")
    number_fits(call, "low", call.attr("dtype"))
    _check_bound(call, "high")
    return infer_shape(call)


_INTEGER = Attr("dtype", "dtype", "int64", choices=INTS, doc="dtype of Out")
_RANDOM_VALUES = 2**24
"""Number of different values of a uniform random number, which has 24 bits."""


def _randint(*, low: int, high: int, dtype: str) -> Any:
    if high - low <= _RANDOM_VALUES:
        return cast(floor(uniform() * float(high - low)), dtype) + low
    first, second = (cast(floor(uniform() * float(_RANDOM_VALUES)), "int64") for _ in range(2))
    return cast(mod(first * _RANDOM_VALUES + second, high - low) + low, dtype)


scalar_op(
    "randint",
    _randint,
    Inference(_infer_randint),
    Execution(random=True),
    attrs=(
        SHAPE,
        Attr("low", "int", doc="the least"),
        Attr("high", "int", doc="one more than the largest"),
        _INTEGER,
        _SEED,
    ),
    doc="Out = random integers, uniform in [low, high)",
    source="Fluid randint_op.cc",
)


def _decompose_randperm(call: Call, build: Any) -> None:
    numbers, order = build.temp(), build.temp()
    build("uniform_random", {}, {"Out": numbers}, {"shape": [call.attr("n")], "seed": call.attr("seed")})
    out = build.output("Out")
    if call.attr("dtype") == "int64":
        build("argsort", {"X": numbers}, {"Out": None, "Indices": out})
    else:
        build("argsort", {"X": numbers}, {"Out": None, "Indices": order})
        build("cast", {"X": order}, {"Out": out}, {"out_dtype": call.attr("dtype")})


def _infer_randperm(call: Call) -> Inferred:
    _check_bound(call, "n")
    return {"Out": Spec.of((call.attr("n"),), call.attr("dtype"))}


register_op(
    "randperm",
    Inference(_infer_randperm),
    Execution(random=True, memory="the n random numbers, their sorted copy, and places while these are sorted"),
    Lowering(decompose=_decompose_randperm),
    outputs=("Out",),
    attrs=(Attr("n", "int", minimum=1, doc="how many numbers"), _SEED, _INTEGER),
    doc="Out = the numbers from 0 to n - 1 in random order",
    source="Fluid randperm_op.cc",
)

# sampling_id -------------------------------------------------------------------------------------------------------


def _infer_sampling_id(call: Call) -> Inferred:
    x = call.spec("X")
    call.need(x.rank == 2 and x.dims[1] != 0, "X", "[rows, classes]: a distribution a row")
    if not call.attr("min") < call.attr("max"):
        call.fail_attr("min", f"less than max, which is {call.attr('max')}")
    return {"Out": spec_like(x, x.dims[:1], "int64")}


register_op(
    "sampling_id",
    Inference(_infer_sampling_id),
    Execution(
        random=True, memory="where arrays compute, the running sums and whether they exceed the number: up to twice X"
    ),
    inputs=("X",),
    outputs=("Out",),
    attrs=(
        Attr("min", "float", 0.0, doc="least random number"),
        Attr("max", "float", 1.0, doc="its upper bound"),
        _SEED,
    ),
    dtypes={"X": ALL_FLOATS},
    doc="Out = the class of each row at which the running sum of X exceeds a random number in [min, max), or the last",
    source="Fluid sampling_id_op.cc",
)
