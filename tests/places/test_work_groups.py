"""Groups of work-items that go through a row together: barriers and local memory, where a device names them.

PoCL has both, and gains nothing by them: its language is told to name them here, so that what is computed can be held
against the references.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from operator_checks import PAIRWISE, parsed, run_checks

import fluidlite as fluid
from fluidlite.devices.cuda.language import CUDALanguage, nvrtc_compile
from fluidlite.errors import OutOfRangeError
from fluidlite.expr.calls import leaves, traced_of
from fluidlite.platform.context_pool import get_context
from fluidlite.program.op_call import Call
from fluidlite.program.registry import ops
from fluidlite.render.loops import kernels, launches
from fluidlite.render.loops.merging import merged
from fluidlite.render.loops.nests import nests_of
from fluidlite.render.loops.schedule import MIN_BUSY_ITEMS, Schedule, schedule_of
from fluidlite.tensor.tensor_spec import Spec

L = fluid.layers
REAL = (32, 256)
SMALL = (2, 4)
"""Groups that the rows of samples fill."""
REDUCING = [
    "softmax",
    "layer_norm",
    "batch_norm",
    "softmax_with_cross_entropy",
    "reduce_sum",
    "reduce_max",
    "reduce_any",
    "arg_max",
    "logsumexp",
    "sequence_pool",
]


@pytest.fixture
def grouped() -> Iterator[list[str]]:
    """Let PoCL's kernels work in groups; the types of operators that did."""
    if not any(place.kind == "opencl" for place in fluid.places()):
        pytest.skip("there is no OpenCL")
    context, types, launch = get_context("opencl:0"), list[str](), launches._launch

    def note(call: Call, context: Any, name: str, piece: Any, *rest: Any) -> Any:
        if piece.text.members > 1:
            types.append(call.op.type)
        return launch(call, context, name, piece, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context.language, "group", SMALL)
        patch.setattr(launches, "_launch", note)
        context.prepared.clear()
        yield types
    context.prepared.clear()


@pytest.mark.opencl
@pytest.mark.parametrize("operator", [type for type in REDUCING if ops.find(type) is not None])
def test_rows_of_a_group_are_those_of_the_references(operator: str, grouped: list[str]) -> None:
    """Some samples, and gradients of some."""
    mine = [check for check in PAIRWISE if check.operator == operator and parsed(check)[2] in ("float32", "bool")]
    gradients = [".grad[" in check.id for check in mine]
    for wanted in (False, True):
        run_checks(
            [check for check, gradient in zip(mine, gradients, strict=True) if gradient is wanted][:3], "opencl:0"
        )
    assert grouped, "no kernel of it was written for a group"


def softmax_of(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.opencl
@pytest.mark.parametrize("columns", [255, 256, 257, 5000])
def test_long_rows(columns: int, grouped: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that fill a group once, nearly, and many times; the first of equal maxima, and a NaN."""
    monkeypatch.setattr(get_context("opencl:0").language, "group", REAL)
    array = np.random.default_rng(columns).normal(size=(5, columns)).astype("float32")
    array[1, 7] = array[1, columns - 3] = array[1].max() + 1
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        x = L.data("x", [5, columns], append_batch_size=False)
        fetches = [L.softmax(x), L.argmax(x, -1), L.reduce_sum(x, -1)]
        for mode in ("interpreted", "compiled"):
            made = fluid.Executor("opencl:0", mode=mode).run(feed={"x": array}, fetch_list=fetches)
            exact = array.astype("float64")
            np.testing.assert_allclose(made[0], softmax_of(exact), rtol=1e-5, atol=1e-8)
            np.testing.assert_array_equal(made[1], exact.argmax(-1))
            np.testing.assert_allclose(made[2], exact.sum(-1), rtol=1e-5, atol=1e-5 * columns)
        array[3, columns // 2] = np.nan
        (best, total) = fluid.Executor("opencl:0").run(feed={"x": array}, fetch_list=fetches[1:])
        assert np.isnan(total[3]) and best[3] == columns // 2
    assert {"softmax", "arg_max", "reduce_sum"} <= set(grouped)


@pytest.mark.opencl
@pytest.mark.parametrize(("dims", "axes"), [((3, 20000, 5), [1]), ((2500, 9, 33), [0, 2])])
def test_sums_of_many_parts(
    dims: tuple[int, ...], axes: list[int], grouped: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where items run side by side there are up to a thousand parts, which round off little when they are added."""
    monkeypatch.setattr(get_context("opencl:0").language, "group", REAL)
    array = (1e8 + np.random.default_rng(4).uniform(-1e3, 1e3, dims)).astype("float32")
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        x = L.data("x", list(dims), append_batch_size=False)
        total = L.reduce_sum(L.relu(L.scale(x, 2.0)), axes)
        (made,) = fluid.Executor("opencl:0").run(feed={"x": array}, fetch_list=[total])
    exact = 2 * array.astype("float64").sum(tuple(axes))
    assert (np.abs(made - exact) / np.spacing(exact.astype("float32"))).max() <= 20


@pytest.mark.opencl
def test_a_row_that_is_written_where_it_is_read(grouped: list[str]) -> None:
    """A softmax that lies on its operand reads all of a row before any member of the group writes."""
    array = np.random.default_rng(1).normal(size=(6, 300)).astype("float32")
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        x = L.data("x", [6, 300], append_batch_size=False)
        y = L.softmax(L.softmax(L.scale(x, 3.0)))
        (made,) = fluid.Executor("opencl:0").run(feed={"x": array}, fetch_list=[y])
    np.testing.assert_allclose(made, softmax_of(softmax_of(3 * array.astype("float64"))), rtol=1e-5)
    assert any("softmax" in type for type in grouped)


@pytest.mark.opencl
def test_an_index_out_of_range_is_found_by_a_group(grouped: list[str]) -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        label = L.data("label", [1], dtype="int64")
        x = L.data("x", [50])
        loss = L.softmax_with_cross_entropy(x, label)
        run = fluid.Executor("opencl:0").run
        feed = {"x": np.zeros((4, 50), "float32"), "label": np.full((4, 1), 50)}
        with pytest.raises(fluid.FluidError, match="50"):
            run(feed=feed, fetch_list=[loss])
        (made,) = run(feed={**feed, "label": np.full((4, 1), 49)}, fetch_list=[loss])
    np.testing.assert_allclose(made, np.log(50.0), rtol=1e-5)


def call_of(type: str, dims: tuple[int, ...], made: tuple[int, ...], **attrs: Any) -> Call:
    op = ops.get(type)
    known = {attr.name: attr.default for attr in op.attrs}
    ins = {op.inputs[0].name: (Spec.of(dims, "float32"),)}
    return Call(op, ins, {"Out": (Spec.of(made, "float32"),)}, {**known, **attrs})


def schedule(call: Call) -> Schedule:
    (nest,) = map(merged, nests_of(traced_of(call), kernels._requested(call), leaves(call)))
    return schedule_of(nest, {}, leaves(call), REAL)


def test_the_schedule_follows_sizes() -> None:
    """A row that lies side by side has a group of its length; columns have an item each, if they are many."""
    assert schedule(call_of("softmax", (100_000, 4096), (100_000, 4096))).members == 256
    assert schedule(call_of("softmax", (100_000, 100), (100_000, 100))).members == 64
    assert schedule(call_of("softmax", (100_000, 20), (100_000, 20))).members == 1
    columns = {"dim": (0,), "keep_dim": False, "reduce_all": False}
    assert schedule(call_of("reduce_sum", (512, MIN_BUSY_ITEMS), (MIN_BUSY_ITEMS,), **columns)).members == 1
    assert schedule(call_of("reduce_sum", (512, 64), (64,), **columns)).members == 256
    assert schedule(call_of("transpose", (640, 512), (512, 640), axis=(1, 0))).members == 1


@pytest.mark.parametrize(("type", "reductions"), [("softmax", 2), ("log_softmax", 2), ("reduce_sum", 1)])
def test_nvrtc_compiles_groups(type: str, reductions: int) -> None:
    nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="NVRTC comes with the extra cuda-check")
    try:
        nvrtc.getVersion()
    except (RuntimeError, OSError, ImportError) as exc:
        pytest.skip(f"NVRTC cannot be loaded: {exc}")
    sources = list[str]()

    def compile(source: str, entry: str, parameters: tuple[str, ...], form: Any) -> None:
        sources.append(nvrtc_compile(source, "compute_80").decode())
        assert "__shared__" in source
        # all have stored before one reads, after each halving, and before the next pass: PoCL puts some by itself
        assert len(re.findall(r"_all\[member\] = a\d+;\n__syncthreads\(\);\nfor \(int other", source)) == reductions
        assert len(re.findall(r"\}\n__syncthreads\(\);\n\}\na\d+ = a\d+_all", source)) == reductions
        assert source.count("__syncthreads();") >= 3 * reductions

    attrs = {"dim": (1,), "keep_dim": False, "reduce_all": False} if type == "reduce_sum" else {}
    call = call_of(type, (300, 1000), (300,) if attrs else (300, 1000), **attrs)
    context = SimpleNamespace(language=CUDALanguage(), compile=compile, place=fluid.Place("cuda", 0))
    kernels.prepare(call, context)
    assert sources and all("bar.sync" in ptx and ".shared" in ptx for ptx in sources)


def test_a_group_without_words_is_refused() -> None:
    language = CUDALanguage()
    language.keywords = {word: text for word, text in language.keywords.items() if word != "barrier"}
    context = SimpleNamespace(language=language, place=fluid.Place("cuda", 0))
    with pytest.raises(fluid.FluidError, match="groups of 32 to 256 work-items, and no keyword barrier\n  Do: name it"):
        kernels.prepare(call_of("softmax", (300, 1000), (300, 1000)), context)


SCATTERS = [(5000, 3000, 7), (3, 4000, 1), (100_000, 2500, 1), (17, 33_333, 5), (4097, 2048, 2)]
"""Rows of the target, updates, and columns: few rows, many, more than parts, and as many updates as are just enough."""


@pytest.mark.opencl
@pytest.mark.parametrize(("rows", "count", "columns"), SCATTERS)
@pytest.mark.parametrize("how", ["add", "sum", "set"])
def test_many_updates_go_where_indices_say(
    rows: int, count: int, columns: int, how: str, grouped: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Added to what is there, in place of it, or the last of those of a row."""
    monkeypatch.setattr(get_context("opencl:0").language, "group", REAL)
    random = np.random.default_rng(rows + count)
    x, updates = (random.normal(size=(n, columns)).astype("float32") for n in (rows, count))
    index = random.integers(0, rows, (count, 1))
    exact = x.astype("float64")
    if how != "add":
        exact[index[:, 0]] = 0
    if how == "set":
        exact[index[:, 0]] = updates
    else:
        np.add.at(exact, index[:, 0], updates)
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        data = [
            L.data(name, list(each.shape), dtype=str(each.dtype), append_batch_size=False)
            for name, each in (("x", x), ("index", index), ("updates", updates))
        ]
        out = L.scatter_nd_add(*data) if how == "add" else L.scatter(*data, overwrite=how == "set")
        feed = {"x": x, "index": index, "updates": updates}
        for mode in ("interpreted", "compiled"):
            executor = fluid.Executor("opencl:0", mode=mode)
            (made,) = executor.run(feed=feed, fetch_list=[out])
            np.testing.assert_allclose(made, exact, rtol=1e-5, atol=1e-4)
            (again,) = executor.run(feed=feed, fetch_list=[out])
            np.testing.assert_array_equal(again, made)
        index[count // 2] = rows
        with pytest.raises(OutOfRangeError):
            executor.run(feed=feed, fetch_list=[out])


@pytest.mark.parametrize(
    ("rows", "count", "nests"), [(100_000, 3000, 6), (17, 4000, 2), (5000, 2047, 1)], ids=["sorted", "by chunks", "few"]
)
def test_updates_are_sorted_or_added_up_by_chunks(rows: int, count: int, nests: int) -> None:
    specs = {"X": Spec.of((rows, 7), "float32"), "Index": Spec.of((count, 1), "int64")}
    specs["Updates"] = Spec.of((count, 7), "float32")
    call = Call(ops.get("scatter_nd_add"), {k: (v,) for k, v in specs.items()}, {"Out": (specs["X"],)}, {})
    found = nests_of(traced_of(call), kernels._requested(call), leaves(call), lockstep=True)
    assert len(found) == nests
    assert len(nests_of(traced_of(call), kernels._requested(call), leaves(call))) == 1


@pytest.mark.opencl
@pytest.mark.parametrize(("dims", "axis"), [((3, 900, 4), 1), ((20_000, 4, 5), 0)], ids=["by chunks", "sorted"])
def test_updates_of_several_dims_and_axes(
    dims: tuple[int, ...], axis: int, grouped: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradients of what is read along an axis, in the middle or of rows of several dims, and by a table."""
    monkeypatch.setattr(get_context("opencl:0").language, "group", REAL)
    random = np.random.default_rng(5)
    x, table = (random.normal(size=each).astype("float32") for each in (dims, (700, 6)))
    index, ids = random.integers(0, dims[axis], 3000), random.integers(0, 700, (50, 60, 1))
    read_dims = (*dims[:axis], 3000, *dims[axis + 1 :])
    along, by_table = (random.normal(size=each).astype("float32") for each in (read_dims, (50, 60, 6)))
    exact = np.zeros(x.shape), np.zeros(table.shape)
    np.add.at(exact[0].swapaxes(0, axis), index, along.astype("float64").swapaxes(0, axis))
    np.add.at(exact[1], ids[..., 0], by_table)
    feed = {"x": x, "table": table, "index": index, "ids": ids, "along": along, "by_table": by_table}
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        block = fluid.default_main_program().global_block()
        for name, each in feed.items():
            block.create_var(name, each.shape, str(each.dtype), is_data=True, stop_gradient=name not in ("x", "table"))
        read, looked_up = block.create_var("read"), block.create_var("looked_up")
        block.append_op("index_select", {"X": "x", "Index": "index"}, {"Out": read}, {"dim": axis})
        block.append_op("lookup_table", {"W": "table", "Ids": "ids"}, {"Out": looked_up})
        products = [L.elementwise_mul(a, block.var(b)) for a, b in ((read, "along"), (looked_up, "by_table"))]
        slopes = fluid.gradients([L.reduce_sum(each) for each in products], [block.var("x"), block.var("table")])
        for mode in ("interpreted", "compiled"):
            made = fluid.Executor("opencl:0", mode=mode).run(feed=feed, fetch_list=slopes)
            for found, wanted in zip(made, exact, strict=True):
                np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
