"""What nests of loops store, share and write out: rules of render.loops, each by an operator that needs it."""

from __future__ import annotations

import re
from copy import copy
from types import SimpleNamespace
from typing import Any

import pytest
from loop_texts import forget_nests, keep_nothing

import fluidlite as fluid
from fluidlite import expr as e
from fluidlite.expr.calls import infer, leaves, traced_of
from fluidlite.expr.declare import operator as declare
from fluidlite.platform.context_pool import get_context
from fluidlite.program.op_call import Call
from fluidlite.program.registry import ops
from fluidlite.render.loops import kernels
from fluidlite.render.loops.merging import elements_of
from fluidlite.render.loops.nest import Nest
from fluidlite.render.loops.nests import nests_of
from fluidlite.render.loops.text import ROWS
from fluidlite.tensor.tensor_spec import Spec, specs_of


def call_of(type: str, inputs: dict[str, tuple[tuple[int, ...], str]], attrs: dict[str, Any], *outputs: str) -> Call:
    op = ops.get(type)
    ins = {slot: (Spec.of(dims, dtype),) for slot, (dims, dtype) in inputs.items()}
    filled = {attr.name: attrs.get(attr.name, attr.default) for attr in op.attrs}
    made = infer(Call(op, ins, {}, filled, None, False))
    return Call(op, ins, {slot: specs_of(made[slot]) for slot in outputs}, filled, None, False)


def nests(call: Call) -> tuple[Nest, ...]:
    return nests_of(traced_of(call), {(slot, 0): specs[0].dtype for slot, specs in call.outs.items()}, leaves(call))


def texts(call: Call, **keywords: str) -> list[str]:
    language = copy(get_context(fluid.CPUPlace()).language)
    language.keywords = {**language.keywords, **keywords}
    pieces = kernels.write(call, language, kernels.CallNests(call))
    assert pieces is not None
    return [piece.text.body for piece in pieces]


def test_a_window_of_nine_is_written_out() -> None:
    attrs = {"pooling_type": "avg", "ksize": (3, 3), "strides": (2, 2), "paddings": (1, 1)}
    call = call_of("pool2d", {"X": ((4, 16, 32, 32), "float32")}, attrs, "Out")
    assert not [x for nest in nests(call) for x in elements_of(nest) if x.op == "reduce"]


@pytest.mark.parametrize(("rows", "count"), [(256, 1), (2, 2)])
def test_an_elementwise_result_shares_the_items_of_rows(rows: int, count: int) -> None:
    """Unless there are too few rows to share the work."""
    x = ((rows, 512), "float32")
    assert len(nests(call_of("smooth_l1_loss", {"X": x, "Y": x}, {}, "Diff", "Out"))) == count


def test_an_exponential_waits_in_the_output_that_is_made_of_it() -> None:
    given = {"Logits": ((64, 1000), "float32"), "Label": ((64, 1), "int64")}
    (body,) = texts(call_of("softmax_with_cross_entropy", given, {}, "Softmax", "Loss"))
    assert body.count("exp") == 2  # in a loop of whole vectors, and in what is left


def test_indices_that_are_computed_are_stored_once() -> None:
    given = {"X": ((8, 16, 32, 32), "float32"), "Grid": ((8, 64, 64, 2), "float32")}
    made = [store for nest in nests(call_of("grid_sampler", given, {}, "Output")) for store in nest.stores]
    assert sorted(store.dtype for store in made if store.target[0] == "made") == ["float32", "int64"]


def test_indices_of_a_tile_are_looked_at_behind_its_loop() -> None:
    given = {"X": ((64, 64), "float32"), "Index": ((4096, 2), "int64")}
    (body,) = texts(call_of("gather_nd", given, {}, "Out"))
    loop, _, behind = body.rpartition("}\nif (")
    assert "bad_index" not in loop.split("for (int v", 1)[1].split("}\n", 1)[0]
    assert "bad_index(" in behind


def test_rows_of_a_whole_square_are_written_out_side_by_side() -> None:
    (body,) = texts(call_of("transpose", {"X": ((100, 200), "float32")}, {"axis": (1, 0)}, "Out"))
    whole, _, rest = body.partition("} else {")
    assert [text.count("out_Out_0[") for text in (whole, rest)] == [ROWS, 1]


@pytest.mark.parametrize(
    ("operator", "dims", "attrs"),
    [("transpose", (112, 208), {"axis": (1, 0)}), ("reduce_sum", (300, 64), {"dim": (0,), "keep_dim": False})],
)
def test_where_tiles_fit_there_is_no_text_for_the_rest(operator: str, dims: tuple[int, ...], attrs: Any) -> None:
    defaults = {attr.name: attr.default for attr in ops.get(operator).attrs}
    whole, rest = (
        texts(call_of(operator, {"X": (each, "float32")}, {**defaults, **attrs}, "Out"))
        for each in (dims, (dims[0], dims[1] + 1))
    )
    assert [body.count("if (width == 16") for body in whole] == [0]
    assert [body.count("if (width == 16") for body in rest] == [1]


def test_loops_of_equal_structure_are_one_kernel() -> None:
    """Whatever their operators and slots are called."""
    context, made = get_context("cpu"), dict[Any, str]()

    def compile(source: str, entry: str, parameters: tuple[str, ...], form: Any) -> object:
        assert entry in source
        return made.setdefault((form, parameters), entry)

    facts = SimpleNamespace(language=context.language, compile=compile, place=context.place, unit=context.unit)

    def product(x: Any, y: Any) -> Any:
        return e.reduce_sum(x * y, 1)

    def weighted(p: Any, q: Any) -> Any:
        return e.reduce_sum(p * q, 1)

    def difference(x: Any, y: Any) -> Any:
        return e.reduce_sum(x - y, 1)

    for function, inputs in ((product, ("X", "Y")), (weighted, ("P", "Q")), (difference, ("X", "Y"))):
        type = f"{function.__name__}_of_rows"
        declare(type, inputs=inputs, outputs=("R",))(function)
        try:
            given = dict(zip(inputs, (((64, 100), "float32"), ((100,), "float32")), strict=True))
            kernels.prepare(call_of(type, given, {}, "R"), facts)
        finally:
            ops.remove(ops.get(type))
    assert [*made.values()] == ["loops_product_of_rows_0", "loops_difference_of_rows_0"]


@pytest.mark.parametrize(("images", "size", "steps"), [(64, 64, 2), (1, 8, 0)])
def test_what_lies_apart_in_a_long_tile_is_read_by_steps_from_the_first(images: int, size: int, steps: int) -> None:
    attrs = {"pooling_type": "max", "ksize": (2, 2), "strides": (2, 2)}
    *_, body = texts(call_of("pool2d", {"X": ((images, 1, size, size), "float32")}, attrs, "Out"))
    assert body.count(" + 2L * v;") == steps


def test_a_choice_that_is_the_same_for_a_tile_is_made_before_its_loop() -> None:
    attrs = {"seg_num": 4, "shift_ratio": 0.25}
    (body,) = texts(call_of("temporal_shift", {"X": ((32, 32, 64, 64), "float32")}, attrs, "Out"))
    assert body.count("} else ") == 5
    assert "?" not in body.partition("if (")[2]


@pytest.mark.parametrize(("columns", "count"), [(3, 0), (6, 1)])
def test_what_lies_far_apart_is_read_one_by_one_where_the_language_can_say_so(columns: int, count: int) -> None:
    (body,) = texts(call_of("transpose", {"X": ((4096, columns), "float32")}, {"axis": (1, 0)}, "Out"), apart="APART")
    assert body.count("APART for") == count


@pytest.mark.parametrize(("width", "count"), [(64, 1), (1024, 3)])
def test_narrow_borders_of_short_rows_have_no_loops_of_their_own(width: int, count: int) -> None:
    attrs = {"paddings": (1, 1, 2, 2), "mode": "edge"}
    assert len(nests(call_of("pad2d", {"X": ((4, 16, 64, width), "float32")}, attrs, "Out"))) == count


def test_a_short_loop_is_unrolled_where_the_language_can_say_so() -> None:
    x = ((30_000, 3), "float32")
    (body,) = texts(call_of("cross", {"X": x, "Y": x}, {"dim": 1}, "Out"), unroll="UNROLL")
    assert re.findall("UNROLL for .*< (.*);", body) == ["3L"]


@pytest.mark.parametrize(("operator", "dims", "count"), [("data_norm", (256, 512), 2), ("batch_norm", (8, 64, 512), 0)])
def test_functions_that_differ_for_neighbours_are_computed_once_for_all_rows(
    operator: str, dims: tuple[int, ...], count: int
) -> None:
    line = ((dims[1],), "float32")
    slots = (
        ("BatchSize", "BatchSum", "BatchSquareSum")
        if operator == "data_norm"
        else ("Scale", "Bias", "Mean", "Variance")
    )
    call = call_of(operator, {"X": (dims, "float32"), **dict.fromkeys(slots, line)}, {"is_test": True}, "Y")
    made = [store for nest in nests(call) for store in nest.stores if store.target[0] == "made"]
    assert len(made) == count


def test_what_lies_in_the_product_of_checked_indices_is_not_checked_again() -> None:
    given = {"X": ((64, 32), "float32"), "Index": ((4096, 2), "int64")}
    (nest,) = nests(call_of("gather_nd", given, {}, "Out"))
    assert sum(x.op == "checked" for x in elements_of(nest)) == 2


@pytest.mark.parametrize(("updates", "count"), [(1 << 16, 2), (64, 1)])
def test_indices_of_a_scatter_are_checked_once_for_all_of_its_owners(updates: int, count: int) -> None:
    given = {"X": ((64, 64), "float32"), "Index": ((updates, 2), "int64"), "Out@GRAD": ((updates,), "float32")}
    bodies = texts(call_of("gather_nd_grad", given, {}, "X@GRAD"))
    assert len(bodies) == count
    assert ["bad_index" in body for body in bodies] == [True, False][:count]


@pytest.mark.parametrize(("columns", "asked"), [(40, False), (0, True)])
def test_a_checked_index_is_one_of_the_target(columns: int, asked: bool) -> None:
    """A row of nothing has no place for an index that was moved there."""
    given = {"X": ((64, columns), "float32"), "Index": ((64, 8), "int64"), "Out@GRAD": ((64, 8), "float32")}
    (body,) = texts(call_of("index_sample_grad", given, {}, "X@GRAD"))
    assert ("\nif (v" in body) == asked


@pytest.mark.parametrize("axis", [0, 1])
def test_scans_are_in_the_nest_that_reads_them(axis: int) -> None:
    """What is in front of an element is not stored, and what is behind it is near."""
    given = {"X": ((64, 96), "float32"), "Out@GRAD": (((96, 64)[axis],), "float32")}
    (body,) = texts(call_of("reduce_prod_grad", given, {"dim": (axis,)}, "X@GRAD"))
    assert "made_1[" in body
    assert "made_0[" not in body


@pytest.mark.parametrize(("function", "count"), [(e.floor, 1), (e.exp, 2)])
def test_scans_whose_reader_costs_functions_stay_apart(function: Any, count: int) -> None:
    @declare("of_running_sums", doc="Out = a function of running sums")
    def of_running_sums(x: Any) -> Any:
        return function(e.scan("sum", x, 1))

    try:
        assert len(texts(call_of("of_running_sums", {"X": ((64, 96), "float32")}, {}, "Out"))) == count
    finally:
        ops.remove(ops.get("of_running_sums"))


def test_lines_that_lie_apart_are_scanned_a_block_at_a_time() -> None:
    (body,) = texts(call_of("cumsum", {"X": ((64, 96), "float32")}, {"axis": 1}, "Out"))
    assert body.index("i1_at += 16") < body.index("int v = 0; v < 4; ++v) { const index_t i0") < body.index("++i1")


@pytest.mark.parametrize(("columns", "known"), [(16, True), (17, False)])
def test_the_text_knows_how_long_a_short_row_is(columns: int, known: bool) -> None:
    (body,) = texts(call_of("reduce_max", {"X": ((64, columns), "float32")}, {"dim": (1,)}, "Out"))
    assert ("<= 16L" in body) == known


def test_truth_values_of_a_row_are_joined_in_bytes() -> None:
    (body,) = texts(call_of("reduce_all", {"X": ((64, 1000), "bool")}, {"dim": (1,)}, "Out"))
    assert f"{get_context(fluid.CPUPlace()).language.types['uint8']} a1[16];" in body
    many = texts(call_of("isnan", {"X": ((64, 1000), "float32")}, {}, "Out"))
    assert not any(" char a1[16];" in body for body in many), "of wider values, lanes would be cut and widened"


@pytest.mark.parametrize("type", ["reduce_max", "reduce_mean"])
@pytest.mark.parametrize(("columns", "lanes"), [(2048, 128), (512, 64)])
def test_bare_reductions_of_many_columns_are_wide(type: str, columns: int, lanes: int) -> None:
    (body,) = texts(call_of(type, {"X": ((64, columns), "float32")}, {"dim": (0,)}, "Out"))
    assert f"tile * {lanes};" in body


def test_rows_of_nothing_are_no_reason_to_divide() -> None:
    x = ((3, 0), "float32")
    given = {"X": x, "Out": ((0,), "float32"), "Out@GRAD": ((0,), "float32")}
    for type, attrs, slots in (("reduce_sum", {"dim": (0,)}, {"X": x}), ("reduce_max_grad", {"dim": (0,)}, given)):
        assert texts(call_of(type, slots, attrs, "X@GRAD" if type.endswith("_grad") else "Out"))


SIZES: list[tuple[str, dict[str, Any], dict[str, Any], tuple[str, ...]]] = [
    (
        "pool2d",
        {"X": ((-1, 3, -1, 8), "float32")},
        {"ksize": (2, 2), "strides": (2, 2), "pooling_type": "max"},
        ("Out",),
    ),
    ("softmax", {"X": ((-1, -1), "float32")}, {}, ("Out",)),
    ("mean", {"X": ((-1, -1), "float32")}, {}, ("Out",)),
    ("reduce_sum", {"X": ((-1, -1, 4), "float32")}, {"dim": (1,)}, ("Out",)),
    ("transpose", {"X": ((-1, -1), "float32")}, {"axis": (1, 0)}, ("Out",)),
    ("layer_norm", {"X": ((-1, -1), "float32")}, {}, ("Y", "Mean", "Variance")),
]
"""Operators with dims (-1) of which it depends what is written."""


@pytest.mark.parametrize(("type", "inputs", "attrs", "outputs"), SIZES, ids=[each[0] for each in SIZES])
def test_a_text_is_of_its_own_sizes_whoever_asked_before(
    type: str, inputs: dict[str, Any], attrs: dict[str, Any], outputs: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What others asked of nests, before a text was written, leaves no text of their sizes."""
    context = get_context(fluid.CPUPlace())

    def at(size: int, rows: int) -> Call:
        free = iter((rows, size, size))
        dims = {
            slot: (tuple(next(free) if d < 0 else d for d in dims), dtype) for slot, (dims, dtype) in inputs.items()
        }
        return call_of(type, dims, attrs, *outputs)

    def written(call: Call) -> list[str]:
        return [piece.text.body for piece in kernels.nest_codes(call, context)]

    keep_nothing(monkeypatch)
    sizes = [(2, 2), (2, 64), (8, 2), (16, 3), (64, 64), (600, 40), (4096, 4), (4, 4096), (300, 512)]
    for before in sizes:
        for mine in sizes:
            forget_nests()
            alone = written(at(*mine))
            forget_nests()
            kernels._call_nests(at(*before))
            assert written(at(*mine)) == alone, (before, mine)
            written(at(*before))
            assert written(at(*mine)) == alone, (before, mine)


@pytest.mark.parametrize(
    ("rows", "columns", "count"), [(512, 512, 1), (16384, 256, 1), (2048, 1024, 1), (4096, 1024, 2)]
)
def test_rows_that_no_cache_holds_are_stored_row_by_row(rows: int, columns: int, count: int) -> None:
    """Beside a sum of their columns, smaller ones are stored as that goes by."""
    full, row = (Spec.of((rows, columns), "float32"),), (Spec.of((columns,), "float32"),)
    op = ops.get("elementwise_add_grad")
    attrs = {attr.name: attr.default for attr in op.attrs}
    ins, outs = {"X": full, "Y": row, "Out@GRAD": full}, {"X@GRAD": full, "Y@GRAD": row}
    assert len(nests(Call(op, ins, outs, attrs, None, False))) == count


def test_large_rows_are_stored_as_their_sum_goes_by() -> None:
    x = ((4096, 1024), "float32")
    assert len(nests(call_of("smooth_l1_loss", {"X": x, "Y": x}, {}, "Diff", "Out"))) == 1


@pytest.mark.parametrize(("rows", "stored"), [(32, 2), (2, 1)])
def test_sums_of_columns_are_stored_where_a_sum_reads_them(rows: int, stored: int) -> None:
    """Neighbours are then computed side by side; of few numbers only what is read twice is stored."""
    call = call_of("affine_grid_grad", {"Output@GRAD": ((256, rows, 32, 2), "float32")}, {}, "Theta@GRAD")
    stores = [store for nest in nests(call) for store in nest.stores if store.target[0] == "made"]
    assert len([store for store in stores if store.value.op == "reduce"]) == stored


def test_products_that_sum_nothing_are_loops() -> None:
    """Each element of both meets several of the other, yet there is no product of matrices."""
    for interpolation in ("bilinear_interp_grad", "trilinear_interp_grad"):
        dims = (2, 3, 8, 8) if interpolation.startswith("bi") else (2, 3, 8, 8, 8)
        given = {"X": (dims, "float32"), "Out@GRAD": ((*dims[:2], *(2 * d for d in dims[2:])), "float32")}
        attrs = {"interp_method": interpolation.removesuffix("_interp_grad"), "scale": 2.0}
        assert not kernels.prefers_decomposition(call_of(interpolation, given, attrs, "X@GRAD"))


def test_what_is_too_deep_for_loops_is_computed_by_parts() -> None:
    """Nests are made by a function that calls itself for each primitive."""
    given = {"Weight": ((5, 4), "float32"), "U": ((5,), "float32"), "V": ((4,), "float32")}
    given["Out@GRAD"] = ((5, 4), "float32")
    few, many = (call_of("spectral_norm_grad", given, {"power_iters": n}, "Weight@GRAD") for n in (5, 200))
    assert kernels.refusal(few) is None
    assert kernels.refusal(many) == "its expression is 3617 primitives deep, of which loops go through 512"


def test_narrow_borders_of_functions_or_other_operands_are_loops_of_their_own() -> None:
    """In the loop over the row, each element would pay for them."""
    given = {"X": ((65536, 64), "float32"), "CVM": ((65536, 2), "float32")}
    assert len(nests(call_of("cvm", given, {"use_cvm": True}, "Y"))) > 1
    given["Y@GRAD"] = given["X"]
    assert len(nests(call_of("cvm_grad", given, {"use_cvm": True}, "X@GRAD"))) > 1


@pytest.mark.parametrize(("batch", "stored"), [(16, True), (2, False)])
def test_polynomials_that_several_read_are_stored(batch: int, stored: bool) -> None:
    call = call_of("add_position_encoding", {"X": ((batch, 64, 64), "float32")}, {"alpha": 1.0, "beta": 1.0}, "Out")
    assert (len(nests(call)) > 1) == stored
