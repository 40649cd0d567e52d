"""Widening casts: the way to a kernel that lacks the data type, never to a narrower one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.errors import KernelNotFoundError
from fluidlite.plugin import Aliasing, Call, Execution, Inference, Registration
from fluidlite.program.kernel_registry import Kernel, kernels
from fluidlite.program.registry import ops, register_op
from fluidlite.program.widen import WIDER

MODES = ("interpreted", "compiled")
KINDS = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64,
         "int32": np.int32, "int64": np.int64}  # fmt: skip


@pytest.fixture(autouse=True)
def operator() -> Iterator[None]:
    """``thirds``: Out = X / 3 (// 3 of integers) and Count, the elements of X as int64; for nobody has a kernel."""

    def infer(call: Call) -> Any:
        return {"Out": call.spec("X"), "Count": call.spec("X").with_(dims=(1,), dtype="int64")}

    made = register_op("thirds", Inference(infer), inputs=("X",), outputs=("Out", "Count"))
    yield
    ops.remove(made)


def thirds(values: Any) -> Any:
    return values // 3 if values.dtype.kind == "i" else (values / 3).astype(values.dtype)


class Brought:
    """A kernel for ``thirds`` on one kind of places that takes one data type, through copies to and from the host."""

    def __init__(self, kind: str, *dtypes: str) -> None:
        def run(context: Any, io: Any) -> None:
            dtype = io.tensor("X").dtype
            self.seen.append(dtype)
            values = np.empty(io.tensor("X").dims, KINDS[dtype])
            context.copy_out(values.view(np.uint8).data.cast("B"), io.span("X"))
            context.wait()
            context.copy_in(io.span("Out"), thirds(values).view(np.uint8).data.cast("B"))
            context.copy_in(io.span("Count"), np.asarray([values.size]).view(np.uint8).data.cast("B"))

        self.seen: list[str] = []
        self.kernel = Kernel("thirds", (kind,), lambda call, context: run, "narrowless", dtypes=dtypes)

    def __enter__(self) -> Brought:
        kernels.add(self.kernel)
        return self

    def __exit__(self, *_: Any) -> None:
        kernels.remove(self.kernel)


def program(dtype: str, then_relu: bool = False) -> tuple[fluid.Program, list[Any]]:
    made = fluid.Program()
    with fluid.program_guard(made):
        x = fluid.layers.data("x", [-1, 8], dtype=dtype, append_batch_size=False)
        block = made.global_block()
        out, count = block.create_var(name="out"), block.create_var(name="count")
        block.append_op("thirds", {"X": x}, {"Out": out, "Count": count})
        return made, [fluid.layers.relu(out) if then_relu else out, count]


def can_cast(kind: str, narrow: str, wide: str) -> bool:
    made = fluid.Program()
    with fluid.program_guard(made):
        fluid.layers.cast(fluid.layers.data("x", [-1, 8], dtype=narrow, append_batch_size=False), wide)
    found = fluid.explain(made, kind).data()[0]
    return bool(found["place"] == f"{kind}:0" and found["how"] != "fallback")


CASTS = [(narrow, wide) for narrow, several in WIDER.items() for wide in several]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("narrow", "wide"), CASTS)
def test_a_wider_kernel_is_reached(kind: str, narrow: str, wide: str, mode: str) -> None:
    made, fetches = program(narrow, then_relu=narrow == "float32")
    values = np.arange(-16, 24).reshape(5, 8).astype(KINDS[narrow])
    exe = fluid.Executor(kind, mode=mode, fallback="allow")
    with Brought(kind, wide) as brought:
        if not (can_cast(kind, narrow, wide) and can_cast(kind, wide, narrow)):
            with pytest.raises(KernelNotFoundError):  # nobody else has a kernel
                exe.run(made, {"x": values}, fetches)
            return
        out, count = exe.run(made, {"x": values}, fetches, return_numpy=False)
    assert brought.seen == [wide]
    assert (out.dtype, count.dtype) == (narrow, "int64")
    expected = thirds(values.astype(KINDS[wide])).astype(KINDS[narrow])
    expected = np.maximum(expected, 0) if narrow == "float32" else expected
    np.testing.assert_array_equal(out.numpy(), expected)
    assert count.numpy().tolist() == [40]
    row = next(row for row in exe.explain_last().data() if row["op"] == "thirds")
    assert (row["how"], row["place"]) == ("widened", f"{kind}:0")
    assert [part["op"] for part in row["parts"]] == ["cast", "thirds", "cast"]
    size = 40 * 2 * (np.dtype(KINDS[narrow]).itemsize + np.dtype(KINDS[wide]).itemsize)
    assert row["widened"] == {"from": narrow, "to": wide, "kernel": "native narrowless", "bytes": size}
    text = exe.explain_last().text()
    assert f"widened {narrow} -> {wide} for native narrowless: {size:,} bytes of casts" in text
    assert "1 widened" in text


OTHERS = [("float32", "float64"), ("float16", "float32"), ("int32", "int64"), ("bfloat16", "float16"),
          ("float64", "int32"), ("float32", "int32")]  # fmt: skip


@pytest.mark.parametrize(("has", "asked"), OTHERS)
def test_nothing_is_narrowed_or_changed_in_kind(kind: str, has: str, asked: str) -> None:
    made, fetches = program(asked)
    with Brought(kind, has) as brought, pytest.raises(KernelNotFoundError, match=f"it takes {has}, this is {asked}"):
        fluid.Executor(kind, fallback="allow").run(made, {"x": np.ones((2, 8), KINDS[asked])}, fetches)
    assert brought.seen == []


def test_the_nearest_type_is_taken_and_a_kernel_of_its_own_before_all(kind: str) -> None:
    made, fetches = program("float16")
    exe = fluid.Executor(kind, fallback="allow")
    feed = {"x": np.ones((2, 8), np.float16)}
    if can_cast(kind, "float16", "float32"):
        with Brought(kind, "float32", "float64") as brought:
            exe.run(made, feed, fetches)
        assert brought.seen == ["float32"]
    with Brought(kind, "float16", "float32") as brought:
        if "float16" not in fluid.platform.device_registry.devices.unit(kind).info.dtypes:
            pytest.skip("it does not compute float16")
        exe.run(made, feed, fetches)
    assert brought.seen == ["float16"]


DECLARED: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "dtypes": ((), {"dtypes": {"X": ("float16",)}}),
    "random": ((Execution(random=True),), {}),
    "must_alias": ((Aliasing(must={"Out": "X"}),), {}),
    "attrs": ((), {"attrs": [fluid.plugin.Attr("dtype", "dtype", default="float16")]}),
    "infer": (
        (Inference(lambda call: {"Out": call.spec("X").with_(dtype="float16"), "Count": call.spec("X")}),),
        {},
    ),
}


@pytest.mark.parametrize("declared", DECLARED)
def test_an_operator_that_does_not_allow_it_is_left_alone(declared: str) -> None:
    options, others = DECLARED[declared]
    if declared != "infer":
        options = (*options, Inference(lambda call: {"Out": call.spec("X"), "Count": call.spec("X")}))
    made = register_op(
        "thirds", Registration(override=True), *options, inputs=("X",), outputs=("Out", "Count"), **others
    )
    try:
        program_ = fluid.Program()
        with fluid.program_guard(program_):
            x = fluid.layers.data("x", [-1, 8], dtype="float16", append_batch_size=False)
            block = program_.global_block()
            names = {slot: block.create_var(name=slot) for slot in ("Out", "Count")}
            out = {"Out": x, "Count": names["Count"]} if declared == "must_alias" else names
            block.append_op("thirds", {"X": x}, out)
        with Brought("cpu", "float32"), pytest.raises(KernelNotFoundError):
            fluid.explain(program_, "cpu")
    finally:
        ops.remove(made)


def test_gradients_and_other_operators_do_not_see_it(kind: str) -> None:
    """An operator that has kernels for its type is not widened, whatever a library brings for wider ones."""
    with Brought(kind, "float64"):
        made = fluid.Program()
        with fluid.program_guard(made):
            fluid.layers.softmax(fluid.layers.data("x", [-1, 8], append_batch_size=False))
        assert all(row["how"] != "widened" for row in fluid.explain(made, kind).data())
