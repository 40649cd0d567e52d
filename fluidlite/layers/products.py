"""Products and norms of rows, and activations with a parameter or a tensor operand: cos_sim, dot, pow, prelu."""

from __future__ import annotations

from typing import Any

from fluidlite.initializer import Constant
from fluidlite.layer_helper import refuse
from fluidlite.layers.declare import Bias, Weight, also, layer
from fluidlite.program.opdef import Attr
from fluidlite.program.variable import Variable

_SIZE = Attr("size", "int", minimum=1, doc="width of the result")


@layer("cos_sim")
def cos_sim(X: Variable, Y: Variable) -> Variable:
    """Return the cosine of the angle between the rows of two tensors.

    Returns: [rows, 1]
    Raises: If the rows differ in their dims, or Y has neither one row nor as many as X

    >>> cos_sim(data("X", [4, 4]), data("Y", [4, 4])).shape
    (4, 1)
    """


@layer("dot")
def dot(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Return the inner product of two vectors, as [1], or of the rows of two matrices, as [rows, 1].

    >>> dot(data("x", [2, 4]), data("y", [2, 4])).shape
    (2, 1)
    """


@layer("bilinear_tensor_product", {"size": _SIZE})
def bilinear_tensor_product(
    x: Variable,
    y: Variable,
    size: int,
    act: Any = None,
    name: str | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
) -> Variable:
    """Return act(x W[i] y^T + b[i]) of each row, for i = 0 .. size - 1.

    param_attr: Of the weight, [size, M, N]
    bias_attr: Of the bias, [1, size]; False: no bias
    Returns: [rows, size]
    Raises: If x or y is no matrix of a known width

    >>> bilinear_tensor_product(data("x", [2, 4]), data("y", [2, 1]), 1).shape
    (2, 1)
    """
    for argument, variable in (("x", x), ("y", y)):
        if len(variable.shape) != 2 or variable.shape[1] < 0:
            refuse(argument, variable, "[rows, width] with a known width: the weight's dims depend on it")
    return also(Weight=Weight([size, x.shape[1], y.shape[1]]), Bias=Bias([1, size]))


@layer("clip_by_norm")
def clip_by_norm(x: Variable, max_norm: float, name: str | None = None) -> Variable:
    """Return ``x``, scaled down to the L2 norm ``max_norm`` if its norm is larger; it has no derivative.

    It is meant for gradients. Fluid leaves out paths through it; here backward raises on one.

    >>> clip_by_norm(data("x", [2, 4]), 2).shape
    (2, 4)
    """


@layer("pow", {"factor": "factor|FactorTensor"})
def pow(x: Variable, factor: Any = 1.0, name: str | None = None) -> Variable:
    """Return ``x`` to the power ``factor``, element by element.

    x: Floating-point numbers
    factor: The exponent; a Variable holds one number, [1], and gets no gradient

    >>> pow(data("x", [2, 4, 8, 8])).shape
    (2, 4, 8, 8)
    """
    if isinstance(factor, Variable):
        factor.stop_gradient = True
    return also()


@layer("prelu")
def prelu(x: Variable, mode: str, param_attr: Any = None, name: str | None = None) -> Variable:
    """Return ``x`` where it is above 0, else ``alpha x`` with a parameter alpha.

    x: [rows, channels, ...]
    mode: ``"all"``: one alpha; ``"channel"``: one for each channel, [1, channels, 1, ...]; ``"element"``: one for
        each element of a row, [1, channels, ...]
    param_attr: Of alpha, which is initially 1
    Raises: If mode is another one, or dims that alpha needs are not known

    >>> prelu(data("x", [2, 4, 8, 8]), "all").shape
    (2, 4, 8, 8)
    """
    dims, shape = x.shape, [1]
    if mode != "all":
        if len(dims) < 2:
            refuse("x", x, "[rows, channels, ...]: with this mode alpha has those dims")
        shape = [1, dims[1], *(1,) * (len(dims) - 2)] if mode == "channel" else [1, *dims[1:]]
        if min(shape) < 0:
            refuse("x", x, f"known dims behind the first: alpha would be {shape}")
    return also(Alpha=Weight(shape, Constant(1.0)))
