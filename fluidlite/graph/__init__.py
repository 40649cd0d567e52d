"""The functional front end: values of a graph, and functions that append to it.

Usually ``import fluidlite.graph as ng``. Every function appends operators of the registry to an ordinary program (the
main one, or that of its inputs); nothing runs until a computation of a transformer is called. See docs/computations.md.
"""

from fluidlite.base.exports import export as _export
from fluidlite.graph.arithmetic import (
    absolute as absolute,
    add as add,
    cast as cast,
    cos as cos,
    divide as divide,
    dot as dot,
    equal as equal,
    erf as erf,
    exp as exp,
    floor as floor,
    greater as greater,
    greater_equal as greater_equal,
    less as less,
    less_equal as less_equal,
    log as log,
    maximum as maximum,
    minimum as minimum,
    mod as mod,
    multiply as multiply,
    negative as negative,
    not_equal as not_equal,
    power as power,
    reciprocal as reciprocal,
    relu as relu,
    safelog as safelog,
    sigmoid as sigmoid,
    sign as sign,
    sin as sin,
    sqrt as sqrt,
    square as square,
    stop_gradient as stop_gradient,
    subtract as subtract,
    tanh as tanh,
    where as where,
)
from fluidlite.graph.effects import (
    assign as assign,
    broadcast as broadcast,
    fill as fill,
    sequential as sequential,
    set_item as set_item,
    value_of as value_of,
)
from fluidlite.graph.gradient import deriv as deriv
from fluidlite.graph.network import (
    convolution as convolution,
    cross_entropy_binary as cross_entropy_binary,
    cross_entropy_multi as cross_entropy_multi,
    deconvolution as deconvolution,
    lookup_table as lookup_table,
    normal as normal,
    pooling as pooling,
    softmax as softmax,
    uniform as uniform,
)
from fluidlite.graph.reduction import (
    all as all,
    any as any,
    argmax as argmax,
    argmin as argmin,
    max as max,
    mean as mean,
    min as min,
    prod as prod,
    squared_L2 as squared_L2,
    sum as sum,
    variance as variance,
)
from fluidlite.graph.shape import (
    concat as concat,
    expand_dims as expand_dims,
    flatten as flatten,
    one_hot as one_hot,
    pad as pad,
    reshape as reshape,
    squeeze as squeeze,
    stack as stack,
    tensor_slice as tensor_slice,
    transpose as transpose,
)
from fluidlite.graph.value import Effect as Effect, Value as Value, floordivide as floordivide, matmul as matmul
from fluidlite.graph.variables import (
    constant as constant,
    persistent_tensor as persistent_tensor,
    placeholder as placeholder,
    temporary as temporary,
    variable as variable,
)

_export(__name__)
