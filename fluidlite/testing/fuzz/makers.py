"""Hand-written makers of steps: the patterns that fusion and planning transform (chains, broadcasts, views, state)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL_FLOATS
from fluidlite.platform.device_registry import devices
from fluidlite.testing.fuzz.builder import Builder

UNARY = (
    "relu",
    "tanh",
    "sigmoid",
    "leaky_relu",
    "elu",
    "gelu",
    "swish",
    "softplus",
    "softsign",
    "abs",
    "sin",
    "cos",
    "relu6",
    "hard_swish",
    "logsigmoid",
    "erf",
    "selu",
    "atan",
    "square",
    "sign",
    "floor",
    "ceil",
    "round",
    "tanh_shrink",
    "softshrink",
    "hard_shrink",
    "stanh",
    "brelu",
    "mish",
    "hard_sigmoid",
    "thresholded_relu",
)
BINARY = ("add", "sub", "mul", "max", "min")
REDUCTIONS = ("sum", "mean", "max", "min", "prod")
NUMBERS = (*ALL_FLOATS, "int32", "int64")


def unary(b: Builder) -> Any:
    """A chain of one to four scalar functions."""
    x: str | None = b.pick(ALL_FLOATS)
    for _ in range(int(b.rng.integers(1, 5))):
        x = b.out(b.any(UNARY), {"X": x}) if x is not None else None
    return x


def scale(b: Builder) -> Any:
    attrs = {"scale": float(np.round(b.rng.uniform(-2, 2), 3)), "bias": float(np.round(b.rng.uniform(-1, 1), 3))}
    return b.out("scale", {"X": b.pick(ALL_FLOATS)}, {**attrs, "bias_after_scale": b.chance(0.5)})


def binary(b: Builder) -> Any:
    """A binary operator: operands of equal dims, broadcast in either direction, or aligned by Fluid's axis."""
    x = b.pick(NUMBERS)
    dims, rank, dtype = b.dims(x), len(b.dims(x)[0]), b.dtype(x)
    kind = "elementwise_" + b.any(BINARY)
    same = [n for n in b.pool[-30:] if b.dims(n) == dims and b.dtype(n) == dtype]
    form, axis = b.rng.integers(6), -1
    open_y = False
    if form == 0 or not rank:
        y = b.any(same) if same else x
    elif form == 1 and rank > 1:
        start = int(b.rng.integers(1, rank))
        stop = int(b.rng.integers(start + 1, rank + 1))
        y, axis = b.fresh(dims[0][start:stop], dtype, False), start
    elif form == 2:
        y = b.fresh((1,), dtype, False)
    elif form == 3:
        open_y = x in b.open and b.chance(0.5)
        inner = [1 if b.chance(0.5) else d for d in dims[0][1:]]
        y = b.fresh(inner if open_y else [1, *inner], dtype, open_y)
    else:
        inner = [b.size(True) if d == 1 else (1 if b.chance(0.4) else d) for d in dims[0][1:]]
        open_y = x in b.open and b.chance(0.5)
        lead = [] if open_y else [b.size(True) if dims[0][0] == 1 and x not in b.open else 1]
        y = b.fresh([*lead, *inner], dtype, open_y)
    operands = {"X": x, "Y": y} if b.chance(0.8) or axis != -1 else {"X": y, "Y": x}
    return b.out(kind, operands, {"axis": axis})


def divide(b: Builder) -> Any:
    """A quotient whose divisor is at least 0.5."""
    x = b.pick(ALL_FLOATS)
    y = b.out("abs", {"X": x})
    y = b.out("scale", {"X": y}, {"scale": 1.0, "bias": 0.5}) if y is not None else None
    return b.out("elementwise_div", {"X": x, "Y": y}) if y is not None else None


def reduce(b: Builder) -> Any:
    x = b.pick(NUMBERS, (1, 2, 3, 4))
    rank = len(b.dims(x)[0])
    kind = str(b.any(REDUCTIONS if b.dtype(x) in ALL_FLOATS else ("sum", "max", "min")))
    if kind == "prod" and b.range(x)[1] > 3:
        kind = "max"
    dim = sorted({int(d) for d in b.rng.integers(0, rank, size=int(b.rng.integers(1, 3)))})
    attrs = {"dim": [d - rank if b.chance(0.3) else d for d in dim], "keep_dim": b.chance(0.5)}
    return b.out(f"reduce_{kind}", {"X": x}, attrs if b.chance(0.85) else {"reduce_all": True, "dim": [0]})


def rejoin(b: Builder) -> Any:
    """A value combined with a reduction of itself."""
    x = b.pick(ALL_FLOATS, (2, 3, 4), nonempty=True)
    rank = len(b.dims(x)[0])
    mean = b.out(b.any(("reduce_mean", "reduce_max")), {"X": x}, {"dim": [int(b.rng.integers(rank))], "keep_dim": True})
    return b.out(f"elementwise_{b.any(BINARY)}", {"X": x, "Y": mean}) if mean is not None else None


def compare(b: Builder) -> Any:
    """A comparison, a mask or a selection."""
    x = b.pick(NUMBERS)
    same = [n for n in b.pool[-30:] if b.dims(n) == b.dims(x) and b.dtype(n) == b.dtype(x)]
    y = b.any(same) if same else x
    flag = b.out(b.any(("less_than", "greater_equal", "not_equal", "greater_than")), {"X": x, "Y": y})
    if flag is None or b.chance(0.3):
        return flag
    if b.chance(0.5):
        return b.out("where", {"Condition": flag, "X": x, "Y": y})
    mask = b.out("cast", {"X": flag}, {"in_dtype": "bool", "out_dtype": b.dtype(x)})
    return b.out("elementwise_mul", {"X": x, "Y": mask}) if mask is not None else None


def cast(b: Builder) -> Any:
    x = b.pick()
    to = str(b.any((*b.dtypes, "int32", "int64", "bool")))
    return b.out("cast", {"X": x}, {"in_dtype": b.dtype(x), "out_dtype": to})


def view(b: Builder) -> Any:
    """A view or copy that rearranges elements."""
    x = b.pick(None, (2, 3, 4))
    dims = b.dims(x)[0]
    rank, last, opened = len(dims), dims[-1], x in b.open
    lead = -1 if opened else dims[0]
    inner = int(np.prod(dims[1:]))
    start = int(b.rng.integers(0, max(1, last)))
    kinds: list[Callable[[], Any]] = [
        lambda: b.out("transpose", {"X": x}, {"axis": [int(d) for d in b.rng.permutation(rank)]}),
        lambda: b.out("transpose", {"X": x}, {"axis": [0, *(1 + int(d) for d in b.rng.permutation(rank - 1))]}),
        lambda: b.out("reshape", {"X": x}, {"shape": [lead, inner] if inner else [0, 0]}),
        lambda: b.out("slice", {"Input": x}, {"axes": [rank - 1], "starts": [start], "ends": [last]}),
        lambda: b.out(
            "strided_slice",
            {"Input": x},
            {"axes": [rank - 1], "starts": [last - 1], "ends": [-last - 1], "strides": [-2]},
        ),
        lambda: b.out("concat", {"X": (x, x)}, {"axis": int(b.rng.integers(1, rank))}),
        lambda: b.out("stack", {"X": (x, x)}, {"axis": 1}, slot="Y"),
        lambda: b.out("expand", {"X": x}, {"expand_times": [1] * (rank - 1) + [2]}),
        lambda: b.out("reverse", {"X": x}, {"axis": [int(b.rng.integers(rank))]}),
        lambda: b.out("unsqueeze", {"X": x}, {"axes": [1]}),
        lambda: b.append("split", {"X": x}, {"Out": 2}, {"axis": rank - 1, "sections": [1, last - 1]}),
    ]
    return b.any(kinds if last > 1 else kinds[:-1])()


def matmul(b: Builder) -> Any:
    """A matmul with a fed matrix, or of a value with itself."""
    x = b.pick(ALL_FLOATS, (2, 3))
    dims = b.dims(x)[0]
    form = b.rng.integers(3)
    if form == 0:
        w = b.fresh((dims[-1], b.size()), b.dtype(x), False, -1, 1)
        return b.out("mul", {"X": x, "Y": w}, {"x_num_col_dims": len(dims) - 1, "y_num_col_dims": 1})
    if form == 1 and len(dims) == 2:
        w = b.fresh((b.size(), dims[-1]), b.dtype(x), False, -1, 1)
        return b.out("matmul", {"X": x, "Y": w}, {"transpose_Y": True, "alpha": float(b.any((1.0, 0.5)))})
    first = b.chance(0.5)
    return b.out("matmul", {"X": x, "Y": x}, {"transpose_X": first, "transpose_Y": not first, "alpha": 0.25})


def linear(b: Builder) -> Any:
    """A fully connected layer: matmul, bias, activation."""
    x = b.pick(("float32", "float64"), (2,))
    size = b.size(True)
    w = b.keep(b.numbers((b.dims(x)[0][1], size), b.dtype(x), -0.7, 0.7), "w")
    product = b.out("mul", {"X": x, "Y": w})
    bias = b.keep(b.numbers((size,), b.dtype(x)), "bias")
    product = b.out("elementwise_add", {"X": product, "Y": bias}, {"axis": 1}) if product is not None else None
    return b.out(b.any(UNARY), {"X": product}) if product is not None and b.chance(0.7) else product


def gather(b: Builder) -> Any:
    """A gather of rows by fed or computed indices."""
    x = b.pick(None, (1, 2, 3), nonempty=True)
    if x in b.open:
        return None
    rows = b.dims(x)[0][0]
    if b.chance(0.5):
        fed = b.fresh((b.size(),), str(b.any(("int32", "int64"))), False, 0, rows - 1)
        return b.out("gather", {"X": x, "Index": fed})
    table = b.pick(("float32", "float64"), (2,), nonempty=True)
    chosen = b.out("arg_max", {"X": table}, {"axis": -1})
    if chosen is None:
        return None
    count = b.fresh((1,), "int64", False, rows, rows)
    index = b.out("elementwise_mod", {"X": chosen, "Y": count})
    return b.out("gather", {"X": x, "Index": index}) if index is not None else None


def constant(b: Builder) -> Any:
    """A constant combined with a computed value."""
    x = b.pick(ALL_FLOATS, (1, 2, 3))
    dims, dtype = b.dims(x)[0], b.dtype(x)
    wide = [b.size(True) if d == 1 else d for d in dims]
    if x in b.open:
        wide[0] = 1
    value = b.out("fill_constant", {}, {"shape": wide, "value": float(b.any((2.0, -0.5, 0.0))), "dtype": dtype})
    if value is None:
        return None
    value = b.out("exp", {"X": value}) if b.chance(0.3) else value
    return b.out("elementwise_mul", {"X": x, "Y": value}) if value is not None else None


def state(b: Builder) -> Any:
    """State that is read, written and read again, sometimes on the host, or fed by each run."""
    x = b.pick(("float32", "float64"), (1, 2, 3), nonempty=True)
    dims, dtype = b.dims(x)[0], b.dtype(x)
    if x in b.open:
        folded = b.out("reduce_mean", {"X": x}, {"dim": [0], "keep_dim": True})
        if folded is None:
            return None
        x, dims = folded, b.dims(folded)[0]
    variable = b.keep(b.numbers(dims, dtype))
    sequences = b.program.global_block().var(x).lod_level > 0  # the state would be declared with LoD, but fed without
    if b.chance(0.4) and not sequences:
        b.feed_state(variable, b.numbers(dims, dtype))
    reading = {"op_device": str(devices.host())} if b.chance(0.4) else {}
    before = None
    for _ in range(int(b.rng.integers(1, 4))):
        before = b.out("elementwise_add", {"X": x, "Y": variable}, reading)
        if b.chance(0.4):
            x = stage(b, x) or x
        form = b.rng.integers(3)
        if form == 0:
            b.append("scale", {"X": variable}, {"Out": [variable]}, {"scale": 0.5, "bias": 0.25})
        elif form == 1 and before is not None:
            b.append("tanh", {"X": before}, {"Out": [variable]})
        else:
            b.append("assign", {"X": x}, {"Out": [variable]})
    after = b.out("elementwise_mul", {"X": x, "Y": variable}, reading)
    return after if after is not None else before


def stage(b: Builder, x: str | None = None) -> Any:
    """A value plus a sum over a value-dependent number of elements: later steps are planned only during the run."""
    x = x or b.pick(("float32", "float64"), (1, 2, 3))
    ids, dtype = b.pick(("int32", "int64"), (1,)), b.dtype(x)
    if b.chance(0.5):
        result = b.append("unique", {"X": ids}, {"Out": 1, "Index": 1}, {"dtype": "int64"})
        chosen = result["Out"][0] if result is not None else None
    else:
        chosen = b.out("where_index", {"Condition": ids})
    if chosen is None:
        return None
    total = b.out("cast", {"X": chosen}, {"in_dtype": b.dtype(chosen), "out_dtype": dtype})
    total = b.out("reduce_sum", {"X": total}, {"reduce_all": True, "dim": [0]}) if total is not None else None
    return b.out("elementwise_add", {"X": x, "Y": total}) if total is not None else None


def overwrite(b: Builder) -> Any:
    """A variable that is overwritten after it was read."""
    x = b.pick(ALL_FLOATS, (1, 2, 3))
    copy = b.out("assign", {"X": x})
    read = b.out("tanh", {"X": copy}) if copy is not None else None
    if copy is None or read is None or read not in b.pool:
        return None
    if b.append("scale", {"X": read}, {"Out": [copy]}, {"scale": 2.0, "bias": 0.5}) is None:
        return None
    return b.out("elementwise_add", {"X": copy, "Y": read})


def noise(b: Builder) -> Any:
    """Random numbers added to a value, or a dropout."""
    x, seed = b.pick(("float32",), (1, 2, 3)), int(b.rng.integers(1, 2**40))
    if b.chance(0.6):
        how = str(b.any(("downgrade_in_infer", "upscale_in_train")))
        attrs = {"dropout_prob": 0.3, "fix_seed": True, "seed": seed, "dropout_implementation": how}
        result = b.append("dropout", {"X": x}, {"Out": 1, "Mask": 1}, attrs)
        return None if result is None else result["Out"][0]
    attrs = {"shape": list(b.dims(x)[0]), "min": -1.0, "max": 2.0, "seed": seed, "dtype": "float32"}
    if x in b.open:
        drawn = b.out("uniform_random_batch_size_like", {"Input": x}, attrs)
    else:
        drawn = b.out("uniform_random", {}, attrs)
    return b.out("elementwise_add", {"X": x, "Y": drawn}) if drawn is not None else None


def softmax(b: Builder) -> Any:
    """A softmax over some axis."""
    x = b.pick(("float32", "float64"), (2, 3), nonempty=True)
    return b.out("softmax", {"X": x}, {"axis": int(b.any((-1, -1, 1)))})


MAKERS: tuple[Callable[[Builder], Any], ...] = (
    unary,
    unary,
    scale,
    binary,
    binary,
    binary,
    divide,
    reduce,
    reduce,
    rejoin,
    compare,
    cast,
    view,
    view,
    view,
    matmul,
    linear,
    gather,
    constant,
    state,
    state,
    stage,
    overwrite,
    softmax,
    noise,
)
