"""random_crop: crop a block at a random position from each instance."""

from __future__ import annotations

from fluidlite.base.dtypes import ALL
from fluidlite.operators.inference import Inferred, size
from fluidlite.program.op_call import Call
from fluidlite.program.opdef import Attr, Slot
from fluidlite.program.operator_options import Differentiation, Inference
from fluidlite.program.registry import register_op
from fluidlite.tensor.tensor_spec import Spec


def _infer_random_crop(call: Call) -> Inferred:
    x, shape = call.spec("X"), call.attr("shape")
    if not 0 < len(shape) < x.rank:
        call.fail_attr("shape", f"1 to {x.rank - 1} dims: those of an instance of X, {call.describe('X')}")
    batch_dims, instance_dims = x.dims[: -len(shape)], x.dims[-len(shape) :]
    for extent, cropped in zip(instance_dims, shape, strict=True):
        if cropped < 1 or 0 <= extent < cropped:
            call.fail_attr("shape", f"dims of 1 to those of an instance, {list(instance_dims)}")
    call.need(size(call.dims("Seed")) in (1, -1), "Seed", "one number")
    return {"Out": Spec.of((*batch_dims, *shape), x.dtype), "SeedOut": Spec.of((1,), "int64")}


register_op(
    "random_crop",
    Differentiation(no_gradient={"X": "crop data that are fed; layers.crop has a gradient"}),
    Inference(_infer_random_crop, kernel_dtype="X"),
    inputs=("X", Slot("Seed", on_host=True, doc="seed of this run, [1]")),
    outputs=("Out", Slot("SeedOut", intermediate=True, content="seed of the next run")),
    attrs=(
        Attr("shape", "ints", doc="dims of a cropped instance: the last ones of Out"),
        Attr("startup_seed", "int", 0, doc="the first seed: what Seed holds at startup"),
    ),
    dtypes={"X": ALL, "Seed": ("int64",)},
    doc="Out[i] = a block of X[i], the instance, whose dims are shape and with a random position, as Fluid draws it on "
    "the CPU",
    source="Fluid random_crop_op.cc",
)
