"""The functional front: values of a graph, and functions that add to it.

Usually ``import fluidlite.graph as ng``. Every function appends operators of the registry to an ordinary program (the
main one, or that of its inputs); nothing runs until a computation of a transformer is called. See docs/computations.md.
"""

from fluidlite.graph.actions import assign, broadcast, fill, sequential, set_item, value_of
from fluidlite.graph.arithmetic import (
    absolute,
    add,
    cast,
    cos,
    divide,
    dot,
    equal,
    erf,
    exp,
    floor,
    floordivide,
    greater,
    greater_equal,
    less,
    less_equal,
    log,
    maximum,
    minimum,
    mod,
    multiply,
    negative,
    not_equal,
    power,
    reciprocal,
    relu,
    safelog,
    sigmoid,
    sign,
    sin,
    sqrt,
    square,
    stop_gradient,
    subtract,
    tanh,
    where,
)
from fluidlite.graph.gradient import deriv
from fluidlite.graph.network import (
    convolution,
    cross_entropy_binary,
    cross_entropy_multi,
    deconvolution,
    lookup_table,
    normal,
    pooling,
    softmax,
    uniform,
)
from fluidlite.graph.reduction import all, any, argmax, argmin, max, mean, min, prod, squared_L2, sum, variance
from fluidlite.graph.shaping import (
    concat,
    expand_dims,
    flatten,
    one_hot,
    pad,
    reshape,
    squeeze,
    stack,
    tensor_slice,
    transpose,
)
from fluidlite.graph.storage import constant, persistent_tensor, placeholder, temporary, variable
from fluidlite.graph.value import Effect, Value, matmul

__all__ = [
    "Effect", "Value", "absolute", "add", "all", "any", "argmax", "argmin", "assign", "broadcast", "cast", "concat",
    "constant", "convolution", "cos", "cross_entropy_binary", "cross_entropy_multi", "deconvolution", "deriv", "divide",
    "dot", "equal", "erf", "exp", "expand_dims", "fill", "flatten", "floor", "floordivide", "greater", "greater_equal",
    "less", "less_equal", "log", "lookup_table", "matmul", "max", "maximum", "mean", "min", "minimum", "mod",
    "multiply", "negative", "normal", "not_equal", "one_hot", "pad", "persistent_tensor", "placeholder", "pooling",
    "power", "prod", "reciprocal", "relu", "reshape", "safelog", "sequential", "set_item", "sigmoid", "sign", "sin",
    "softmax", "sqrt", "square", "squared_L2", "squeeze", "stack", "stop_gradient", "subtract", "sum", "tanh",
    "temporary", "tensor_slice", "transpose", "uniform", "value_of", "variable", "variance", "where",
]  # fmt: skip
