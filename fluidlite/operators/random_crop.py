"""random_crop: a block out of each instance, somewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.base.dtypes import ALL
from fluidlite.framework.call import Call
from fluidlite.framework.opdef import Attr, Sample, Slot
from fluidlite.framework.registry import register_op
from fluidlite.framework.spec import Spec
from fluidlite.operators.inference import Inferred, size
from fluidlite.operators.samples import EVERY, ints, rand


def _infer_random_crop(call: Call) -> Inferred:
    x, shape = call.spec("X"), call.attr("shape")
    if not 0 < len(shape) < x.rank:
        call.fail_attr("shape", f"1 to {x.rank - 1} dims: those of an instance of X, {call.shown('X')}")
    kept, whole = x.dims[: -len(shape)], x.dims[-len(shape) :]
    for given, wanted in zip(whole, shape, strict=True):
        if wanted < 1 or 0 <= given < wanted:
            call.fail_attr("shape", f"dims of 1 to those of an instance, {list(whole)}")
    call.need(size(call.dims("Seed")) in (1, -1), "Seed", "one number")
    return {"Out": Spec.of((*kept, *shape), x.dtype), "SeedOut": Spec.of((1,), "int64")}


class _Engine:
    """C++'s ``minstd_rand``, number by number."""

    def __init__(self, seed: int) -> None:
        self.state = int(np.uint64(seed % 2**64)) % 2147483647 or 1  # C++ takes it unsigned

    def draw(self) -> int:
        self.state = self.state * 48271 % 2147483647
        return self.state


def _reference_random_crop(inputs: Mapping[str, Any], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x, shape, seed = inputs["X"], attrs["shape"], int(inputs["Seed"][0])
    batch = x.shape[: -len(shape)]
    out = np.zeros((*batch, *shape), x.dtype)
    engine = _Engine(seed)
    for where in np.ndindex(batch):
        window = []
        for whole, part in zip(x.shape[-len(shape) :], shape, strict=True):
            share = 2147483645 // (whole - part + 1)
            start = (engine.draw() - 1) // share
            window.append(slice(start, start + part))
        out[where] = x[(*where, *window)]
    return {"Out": out, "SeedOut": np.array([engine.draw()])}


def _seed(number: int) -> Any:
    return np.array([number])


register_op(
    "random_crop",
    inputs=("X", Slot("Seed", on_host=True, doc="seed of this run, [1]")),
    outputs=("Out", Slot("SeedOut", intermediate=True, content="seed of the next run")),
    attrs=(
        Attr("shape", "ints", doc="dims of a cropped instance: the last ones of Out"),
        Attr("startup_seed", "int", 0, doc="the first seed: what Seed holds at startup"),
    ),
    infer=_infer_random_crop,
    kernel_dtype="X",
    dtypes={"X": ALL, "Seed": ("int64",)},
    reference=_reference_random_crop,
    samples=lambda: [
        Sample({"X": rand(7, 3, 9, 8), "Seed": _seed(11)}, {"shape": [3, 5, 4]}, name="images", dtypes=EVERY),
        Sample({"X": rand(3, 4, 6), "Seed": _seed(-3)}, {"shape": [2], "startup_seed": 5}, name="last_dim"),
        Sample({"X": rand(4, 6), "Seed": _seed(0)}, {"shape": [6]}, name="whole"),
        Sample({"X": ints(5, 9, high=200, dtype="uint8"), "Seed": _seed(2**40)}, {"shape": [1]}, name="uint8",
               dtypes=("uint8",)),
    ],
    doc="Out[i] = a block of X[i], the instance, whose dims are shape and whose place is random, as Fluid draws it on "
    "the CPU",
    source="Fluid random_crop_op.cc",
)  # fmt: skip
