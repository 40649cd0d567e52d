"""Elementwise operators, updates and fills: each is a program of the board's vector unit, in postfix notation.

A word of a program is an input slot, an attribute of the operator, or an instruction of the board; an operator of
several outputs has a program for each. Gradients of broadcast inputs are summed, so a gradient is one launch, too.
"""

from __future__ import annotations

from math import prod
from typing import Any

from fluidlite.plugin import KernelOptions, fill_number, register_kernel

from fluidlite_fpga.kernels import FLOATS, Dims, Run, launch, same_dtype

Programs = dict[str, str]
"""By output slot."""

UNARY = {
    "relu": ("X 0 max", "Out 0 > Out@GRAD 0 select"),
    "sigmoid": ("1 1 X neg exp + /", "Out@GRAD Out * 1 Out - *"),
    "tanh": ("X tanh", "Out@GRAD 1 Out Out * - *"),
    "exp": ("X exp", "Out@GRAD Out *"),
    "log": ("X log", "Out@GRAD X /"),
    "sqrt": ("X sqrt", "0.5 Out@GRAD * Out /"),
    "rsqrt": ("1 X sqrt /", "-0.5 Out@GRAD * Out * Out * Out *"),
    "square": ("X X *", "2 Out@GRAD * X *"),
    "abs": ("X abs", "Out@GRAD X sign *"),
    "reciprocal": ("1 X /", "Out@GRAD neg Out * Out *"),
    "softsign": ("X 1 X abs + /", "Out@GRAD 1 X abs + 1 X abs + * /"),
    "leaky_relu": ("X alpha X * max", "1 alpha < X neg X select 0 < alpha Out@GRAD * Out@GRAD select"),
}
"""Operators of X, with their gradients."""

BINARY = {
    "elementwise_add": ("X Y +", "Out@GRAD", "Out@GRAD"),
    "elementwise_sub": ("X Y -", "Out@GRAD", "Out@GRAD neg"),
    "elementwise_mul": ("X Y *", "Out@GRAD Y *", "Out@GRAD X *"),
    "elementwise_div": ("X Y /", "Out@GRAD Y /", "Out@GRAD neg Out * Y /"),
    "elementwise_max": ("X Y max", "X Y > Out@GRAD 0 select", "X Y > 0 Out@GRAD select"),
    "elementwise_min": ("X Y min", "X Y < Out@GRAD 0 select", "X Y < 0 Out@GRAD select"),
}
"""Operators of X and Y that broadcast, with the gradients of both."""

UPDATES: dict[str, Programs] = {
    "sgd": {"ParamOut": "Param LearningRate Grad * -"},
    "momentum": {
        "ParamOut": "Param LearningRate mu Velocity * Grad + * -",
        "VelocityOut": "mu Velocity * Grad +",
    },
}
"""Updates of parameters, in place."""


def broadcast(call: Any, rank: int, slot: str) -> Dims:
    """Dims of a slot extended to ``rank``, with ones where it is broadcast.

    Y, or X if that is the smaller, starts at the attribute ``axis``; tensors of full rank are unchanged.
    """
    dims = call.dims(slot)
    if len(dims) == rank:
        return tuple(dims)
    axis = call.attrs.get("axis", -1)
    start = rank - len(dims) if axis == -1 else axis
    while start + len(dims) > rank:  # trailing dims of 1
        dims = dims[:-1]
    return (*(1,) * start, *dims, *(1,) * (rank - start - len(dims)))


def translate(programs: list[str], call: Any) -> tuple[str, list[str], list[float]]:
    """Translate programs to one of the board; return it with the input slots and scalars that it reads."""
    slots: list[str] = []
    scalars: list[float] = []
    words = []
    for word in " ".join(programs).split():
        if word in call.ins:
            if word not in slots:
                slots.append(word)
            words.append(f"x{slots.index(word)}")
        elif word in call.attrs:
            scalars.append(float(call.attr(word)))
            words.append(f"s{len(scalars) - 1}")
        else:
            words.append(word)
    return " ".join(words), slots, scalars


def vector(call: Any, programs: Programs) -> Run:
    """Return a prepared kernel that runs programs, by output slot, in one launch."""
    output_programs = {slot: text for slot, text in programs.items() if call.has(slot)}
    program, slots, scalars = translate(list(output_programs.values()), call)
    operands = [*slots, *output_programs]
    rank = max(len(call.dims(slot)) for slot in operands)
    flat = [n for slot in operands for n in broadcast(call, rank, slot)]
    dtype, counts = call.dtype(operands[0]), (len(slots), len(output_programs))

    def run(context: Any, io: Any) -> None:
        spans = [io.span(slot) for slot in operands]
        guarded = bool(call.op.must_alias) and context.may_have_error
        if guarded:  # an earlier kernel may have recorded an error: then the update must not be written
            spans.append(context.status_span())
        context.enqueue("vector", dtype, spans, (*counts, guarded, rank, *flat), scalars, program)

    return run


def _elementwise(op: str, programs: Programs, supports: Any = None, guarded: bool = False) -> Any:
    @register_kernel(
        op,
        "fpga",
        library="fpgann",
        dtypes=FLOATS,
        supports=supports,
        inplace=True,
        options=KernelOptions(predicated=guarded),
    )
    def elementwise(call: Any, context: Any) -> Run:
        return vector(call, programs)

    return elementwise


def update_refusal(call: Any) -> str | None:
    """Return the reason for momentum variants without a program, or inputs of another dtype than the parameter's."""
    if call.op.type == "momentum" and (call.attr("use_nesterov") or call.attr("regularization_method")):
        return "fpgann has no Nesterov momentum and no weight decay"
    if any(call.dtype(slot) != call.dtype("Param") for slot in call.ins):
        return "fpgann computes in one dtype"
    return None


GENERATED_KERNELS = [
    *(_elementwise(op, {"Out": forward}) for op, (forward, _) in UNARY.items()),
    *(_elementwise(f"{op}_grad", {"X@GRAD": grad}) for op, (_, grad) in UNARY.items()),
    *(_elementwise(op, {"Out": forward}, same_dtype) for op, (forward, *_) in BINARY.items()),
    *(_elementwise(f"{op}_grad", {"X@GRAD": dx, "Y@GRAD": dy}) for op, (_, dx, dy) in BINARY.items()),
    *(_elementwise(op, programs, update_refusal, guarded=True) for op, programs in UPDATES.items()),
]
"""Kernels created by functions of this module; the plugin registers each of them."""


def scale_refusal(call: Any) -> str | None:
    """Return the reason if the scale is a tensor."""
    return "fpgann scales by an attribute, ScaleTensor is given" if call.has("ScaleTensor") else None


@register_kernel("scale", "fpga", library="fpgann", dtypes=FLOATS, supports=scale_refusal, inplace=True)
def scale(call: Any, context: Any) -> Run:
    """``Out = scale X + bias``, or ``scale (X + bias)``."""
    after = call.attr("bias_after_scale")
    return vector(call, {"Out": "X scale * bias +" if after else "X bias + scale *"})


@register_kernel("increment", "fpga", library="fpgann", dtypes=FLOATS, inplace=True)
def increment(call: Any, context: Any) -> Run:
    """``Out = X + step``."""
    return vector(call, {"Out": "X step +"})


@register_kernel("sum", "fpga", library="fpgann", dtypes=FLOATS)
def sum_(call: Any, context: Any) -> Run:
    """``Out = X[0] + X[1] + ...``, in this order."""
    count, size = call.count("X"), prod(call.dims("Out"))
    program = " ".join(["x0", *(f"x{i} +" for i in range(1, count))])
    numbers = (count, 1, 0, 1, *(size,) * (count + 1))

    def run(context: Any, io: Any) -> None:
        spans = [io.span("X", i) for i in range(count)]
        context.enqueue("vector", call.dtype("X"), [*spans, io.span("Out")], numbers, (), program)

    return run


STORED = (*FLOATS, "int32", "int64")


def _fill(op: str) -> Any:
    @register_kernel(op, "fpga", library="fpgann", dtypes={"Out": STORED})
    def fill(call: Any, context: Any) -> Run:
        return fill_run(call, repr(fill_number(call)))

    return fill


def fill_run(call: Any, number: str) -> Run:
    """Return a prepared kernel that fills Out with one number."""
    return launch("vector", call.dtype("Out"), ("Out",), (0, 1, 0, 1, prod(call.dims("Out"))), (), number)


GENERATED_KERNELS += [_fill(op) for op in ("fill_constant", "fill_constant_batch_size_like", "fill_any_like")]


@register_kernel("fill_zeros_like", "fpga", library="fpgann", dtypes={"Out": STORED})
def fill_zeros_like(call: Any, context: Any) -> Run:
    """``Out = 0``, with X's dims."""
    return fill_run(call, "0")


def random_refusal(call: Any) -> str | None:
    """Return the reason if a diagonal is to be set."""
    return "fpgann sets no diagonal" if call.attrs.get("diag_num") else None


def _random(op: str, program: str, base: str, factor: Any) -> Any:
    @register_kernel(op, "fpga", library="fpgann", dtypes={"Out": FLOATS}, supports=random_refusal)
    def random(call: Any, context: Any) -> Run:
        count, scalars = prod(call.dims("Out")), (float(call.attr(base)), float(factor(call)))

        def run(context: Any, io: Any) -> None:
            numbers = (count, *io.random)
            context.enqueue("random", call.dtype("Out"), [io.span("Out")], numbers, scalars, program)

        return run

    return random


def _range(call: Any) -> float:
    return float(call.attr("max") - call.attr("min"))


def _std(call: Any) -> float:
    return float(call.attr("std"))


GENERATED_KERNELS += [
    *(_random(f"uniform_random{like}", "uniform", "min", _range) for like in ("", "_batch_size_like")),
    *(_random(f"gaussian_random{like}", "gaussian", "mean", _std) for like in ("", "_batch_size_like")),
    _random("truncated_gaussian_random", "truncated", "mean", _std),
]
