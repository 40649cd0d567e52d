"""hash: XXH64 of each row's bytes, under several seeds."""

from __future__ import annotations

from fluidlite.base.dtypes import INTS
from fluidlite.operators.inference import Inferred, spec_like
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr
from fluidlite.program.operator_options import Execution, Inference
from fluidlite.program.registry import register_op


def _infer_hash(call: Call) -> Inferred:
    x = call.spec("X")
    call.need(x.rank == 2, "X", "[rows, width]: each row is hashed")
    if x.dtype == "int32" and call.attr("mod_by") > 2**31:
        call.fail_attr("mod_by", "at most 2 ** 31: Out is int32, as X")
    return {"Out": spec_like(x, (x.dims[0], call.attr("num_hash"), 1))}


register_op(
    "hash",
    Inference(_infer_hash),
    Execution(memory="where arrays compute, the state of each row's hash, some ten words of 64 bits, and a copy of X"),
    inputs=("X",),
    outputs=("Out",),
    attrs=(
        Attr("num_hash", "int", 1, minimum=1, doc="how many hashes: the seeds are 0, 1, ..."),
        Attr("mod_by", "int", 100000, minimum=1, maximum=2**63 - 1, doc="hashes are taken modulo this"),
    ),
    dtypes={"X": INTS},
    doc="Out[i, j, 0] = XXH64 of the bytes of X[i] under seed j, modulo mod_by",
    source="Fluid hash_op.cc",
)
