"""cvm: take logarithms of the show and click counts in the first two features of each row."""

from __future__ import annotations

from fluidlite import expr as e
from fluidlite.base.dtypes import FLOATS
from fluidlite.expr.declare import gradient, operator
from fluidlite.program.opdef import Attr, Slot


def _check(x: e.Tensor, cvm: e.Tensor, use_cvm: bool) -> e.Number:
    """Check X and CVM; return the number of features of Y."""
    if x.rank != 2:
        e.fail("X", "[rows, features], 2 features or more")
    e.need(x.dims[1] >= 2, "X", "[rows, features], 2 features or more")
    e.same_dtype(cvm, x)
    if not e.all_agree(cvm.dims, (x.dims[0], e.number(2))):
        e.fail("CVM", f"{e.describe_dims((x.dims[0], e.number(2)))}: a show and a click for each row of X")
    return x.dims[1] if use_cvm else x.dims[1] - 2


@operator(
    "cvm",
    inputs=(
        Slot(
            "X",
            doc="float32 or float64, [rows, features]: the first two features are how often a row was shown and "
            "clicked",
        ),
        Slot(
            "CVM",
            metadata_only=True,
            doc="show and click of each row, which are the gradient of the first two features",
        ),
    ),
    outputs=("Y",),
    attrs=(Attr("use_cvm", "bool", True, doc="keep the first two features, as logarithms; False: leave them out"),),
    dtypes={"X": FLOATS, "CVM": FLOATS},
    source="Fluid cvm_op.cc",
    doc="Y = ln(X0 + 1), ln(X1 + 1) - ln(X0 + 1), and the other features of X as they are",
)
def cvm(x: e.Tensor, cvm: e.Tensor, *, use_cvm: bool) -> e.Tensor:
    """Take logarithms of the shows and of the click rate."""
    _check(x, cvm, use_cvm)
    rest = e.slice_axis(x, 1, 2, x.dims[1] - 2)
    if not use_cvm:
        return rest
    show, click = (e.log1p(e.slice_axis(x, 1, k, 1)) for k in (0, 1))
    return e.concat([show, click - show, rest], 1)


@gradient(
    cvm,
    metadata=("X",),
    source="Fluid cvm_op.h",
    doc="X@GRAD = CVM, and Y@GRAD of the other features: the first two are no gradients, as in Fluid",
)
def cvm_grad(x: e.Tensor, cvm: e.Tensor, dy: e.Tensor, *, use_cvm: bool) -> e.Tensor:
    """Hand-written: Fluid's values for the first two features are no derivatives."""
    dims = (x.dims[0], _check(x, cvm, use_cvm))
    if not e.all_agree(dy.dims, dims):
        e.fail("Y@GRAD", f"{e.describe_dims(dims)}, the dims of Y")
    gradients = e.reshape(dy, dims)
    return e.concat([cvm, e.slice_axis(gradients, 1, 2, x.dims[1] - 2) if use_cvm else gradients], 1)
