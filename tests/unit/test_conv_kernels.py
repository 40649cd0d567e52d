"""Convolutions whose images are done in several parts: some images, some rows at a time."""

from __future__ import annotations

import re
from math import prod
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.conformance.samples import reference_of
from fluidlite.kernel_support import convolutions_of
from fluidlite.program.op_call import Call
from fluidlite.program.operator_arguments import check_attrs
from fluidlite.program.registry import ops
from fluidlite.program.source_location import NOWHERE
from fluidlite.tensor.tensor_spec import Spec

SMALL = [
    ("conv2d", (3, 4, 9, 8), (4, 2, 3, 3), {"groups": 2, "paddings": [1, 2], "strides": [2, 1], "dilations": [1, 2]}),
    ("conv2d", (2, 3, 9, 8), (4, 3, 1, 1), {}),
    ("conv2d", (2, 9, 8, 3), (4, 3, 3, 2), {"data_format": "NHWC", "paddings": [2, 0]}),
    ("depthwise_conv2d", (2, 8, 7, 6), (8, 1, 3, 3), {"groups": 8, "paddings": [1, 1]}),
    ("conv3d", (2, 3, 4, 5, 6), (4, 3, 2, 3, 3), {"paddings": [1, 1, 1], "strides": [1, 2, 1]}),
    ("conv2d_transpose", (2, 3, 5, 6), (3, 4, 4, 3), {"strides": [2, 3], "paddings": [1, 1]}),
    ("conv3d_transpose", (1, 2, 3, 4, 3), (2, 3, 3, 2, 3), {"strides": [2, 1, 2]}),
]
"""Array calls compute them."""
LARGER = [
    ("conv2d", (3, 16, 9, 8), (16, 8, 3, 3), {"groups": 2, "paddings": [1, 2], "strides": [2, 1], "dilations": [1, 2]}),
    ("conv2d", (2, 8, 9, 8), (9, 8, 1, 1), {}),
    ("conv2d", (2, 9, 8, 8), (9, 8, 3, 2), {"data_format": "NHWC", "paddings": [2, 0]}),
    ("conv3d", (2, 8, 4, 5, 6), (9, 8, 2, 3, 3), {"paddings": [1, 1, 1], "strides": [1, 2, 1]}),
    ("conv2d_transpose", (2, 8, 5, 6), (8, 9, 4, 3), {"strides": [2, 3], "paddings": [1, 1]}),
    ("conv3d_transpose", (1, 8, 3, 4, 3), (8, 9, 3, 2, 3), {"strides": [2, 1, 2]}),
]
"""With enough channels and filters for BLAS."""


def values(
    type: str, x: Any, w: Any, attrs: dict[str, Any], place: str, library: str = "", used: tuple[str, ...] = ()
) -> list[Any]:
    """Return Output, and the gradients of the sum of its squares.

    ``used``: the libraries of both, if not ``library``.
    """
    with fluid.program_guard(fluid.Program()):
        block = fluid.default_main_program().global_block()
        inputs = [
            fluid.layers.data(name, list(array.shape), dtype="float64", append_batch_size=False, stop_gradient=False)
            for name, array in (("x", x), ("w", w))
        ]
        out = block.create_var("out")
        block.append_op(type, {"Input": inputs[0], "Filter": inputs[1]}, {"Output": out}, attrs)
        loss = fluid.layers.reduce_sum(fluid.layers.square(out))
        fetched: list[Any] = [out, *fluid.gradients([loss], inputs)]
        executor = fluid.Executor(place, libraries={"cpu": [library]} if library else None)
        found = list(executor.run(fluid.default_main_program(), feed={"x": x, "w": w}, fetch_list=fetched))
        report = str(executor.explain_last())
        if used or library in ("blas", "im2col"):
            expected = used or (library, library)
            native = re.findall(r"conv\S+ +native +cpu:0 +(\S+)", report)
            assert tuple(native) == tuple(filter(None, expected)), report
        return found


@pytest.mark.parametrize(
    ("type", "x", "w", "attrs", "library", "bound"),
    [(*case, "blas", "MAX_UNROLLED_BYTES") for case in LARGER]
    + [(*case, "plain", "MAX_COPIED_BYTES") for case in SMALL],
)
def test_rows_at_a_time(
    type: str, x: Any, w: Any, attrs: dict[str, Any], library: str, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fluidlite.kernels.blas import conv as blas
    from fluidlite.render import contractions as plain

    arrays, whole = checked_values(type, x, w, attrs, library)
    for nbytes in (1, 4000):
        monkeypatch.setattr({"blas": blas, "plain": plain}[library], bound, nbytes)
        for part, one in zip(values(type, *arrays, attrs, "cpu", library), whole, strict=True):
            np.testing.assert_allclose(part, one, rtol=1e-10, atol=1e-10)


def checked_values(
    type: str,
    x: Any,
    w: Any,
    attrs: dict[str, Any],
    library: str = "",
    used: tuple[str, ...] = (),
    place: str = "cpu",
) -> tuple[Any, list[Any]]:
    """An image and a filter, and what is computed of them, compared with the reference and with its slopes."""
    rng = np.random.default_rng(0)
    arrays = rng.standard_normal(x), rng.standard_normal(w)
    whole = values(type, *arrays, attrs, place, library, used)
    reference, checked = reference_of(type), check_attrs(ops.get(type), attrs, NOWHERE)[0]

    def expected(image: Any, filter: Any) -> Any:
        return reference({"Input": image, "Filter": filter}, checked)["Output"]

    out = expected(*arrays)
    np.testing.assert_allclose(whole[0], out, rtol=1e-10, atol=1e-10)
    along = rng.standard_normal(x), rng.standard_normal(w)  # it is linear in each: slopes along these are exact
    slopes = [2 * np.vdot(out, moved) for moved in (expected(along[0], arrays[1]), expected(arrays[0], along[1]))]
    np.testing.assert_allclose([np.vdot(g, v) for g, v in zip(whole[1:], along, strict=True)], slopes, rtol=1e-10)
    return arrays, whole


ONE_WINDOW = [
    ("conv2d", (3, 1, 9, 24), (16, 1, 3, 24), {}),
    ("conv2d", (2, 4, 24, 6), (18, 2, 24, 3), {"groups": 2, "paddings": [0, 1], "strides": [5, 1]}),
    ("conv2d", (2, 1, 12, 3), (16, 3, 3, 5), {"paddings": [1, 1, 2, 2], "strides": [1, 2], "data_format": "NHWC"}),
    ("conv2d", (1, 2, 7, 21), (16, 2, 3, 11), {"dilations": [2, 2]}),
    ("conv2d", (2, 3, 1, 1), (16, 3, 3, 3), {"paddings": [1, 1]}),
    ("conv3d", (2, 2, 4, 1, 17), (16, 2, 2, 1, 17), {"paddings": [1, 0, 0]}),
    ("conv2d_transpose", (2, 16, 5, 1), (16, 2, 3, 19), {"strides": [2, 3], "paddings": [1, 0]}),
]
"""Filters as large as the image along a dim, where it has one window."""


@pytest.mark.parametrize(("images", "run", "nbytes"), [(2, 1, 1 << 22), (3, 1, 1), (4, 1 << 20, 1)])
@pytest.mark.parametrize(("type", "x", "w", "attrs"), [*LARGER, *ONE_WINDOW])
def test_unrolled_windows(
    type: str,
    x: Any,
    w: Any,
    attrs: dict[str, Any],
    images: int,
    run: int,
    nbytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Calls of other dims are prepared anew."""
    from fluidlite.kernels.blas import im2col

    made, products = [], im2col._Products
    monkeypatch.setattr(im2col, "has_few_windows", lambda one: True)
    monkeypatch.setattr(im2col.registers, "supports", lambda call: "left to others")
    monkeypatch.setattr(im2col, "_Products", lambda *args: made.append(args[2:]) or products(*args))
    monkeypatch.setattr(im2col, "MAX_UNROLLED_BYTES", nbytes)
    monkeypatch.setattr(im2col, "MIN_ROW_WINDOWS", run)
    checked_values(type, (images, *x[1:]), w, attrs, "im2col")
    assert {images for _, images in made} == {1 if nbytes == 1 else images} and len(made) == 3
    assert run > 1 or {by_taps for by_taps, _ in made} == {True}


@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
@pytest.mark.parametrize(("type", "x", "w", "attrs"), ONE_WINDOW)
def test_one_window_along_a_dim(type: str, x: Any, w: Any, attrs: dict[str, Any], place: str) -> None:
    checked_values(type, x, w, attrs, "plain" if place == "cpu" else "", place=place)


LAST, EACH = {"data_format": "NHWC"}, {"data_format": "NHWC", "groups": 24}
GROUPS_OF_ONE = [
    ("conv2d", (3, 9, 8, 24), (24, 1, 3, 3), EACH | {"paddings": [1, 1]}),
    ("conv2d", (2, 11, 12, 24), (24, 1, 4, 3), EACH | {"paddings": [2, 0, 0, 1], "strides": [2, 3]}),
    ("conv2d", (2, 13, 9, 24), (24, 1, 3, 2), EACH | {"paddings": [2, 2], "dilations": [2, 3], "strides": [1, 2]}),
    ("conv2d", (1, 7, 6, 66), (66, 1, 3, 3), LAST | {"groups": 66, "padding_algorithm": "SAME", "strides": [2, 2]}),
    ("depthwise_conv2d", (1, 40, 30, 16), (16, 1, 5, 5), LAST | {"groups": 16, "paddings": [2, 2]}),
    ("conv3d", (2, 4, 5, 6, 8), (8, 1, 2, 3, 3), {"data_format": "NDHWC", "groups": 8, "paddings": [0, 1, 1]}),
    ("conv2d_transpose", (2, 5, 6, 24), (24, 1, 4, 3), EACH | {"strides": [2, 3], "paddings": [1, 1]}),
]
"""Each channel a group, and channels side by side: loops compute them where a kernel language does."""
FEWER = [
    ("conv2d", (2, 9, 8, 12), (12, 1, 3, 3), LAST | {"groups": 12}),
    ("conv2d", (2, 9, 8, 8), (16, 1, 3, 3), LAST | {"groups": 8, "paddings": [1, 1]}),
]


@pytest.mark.parametrize(
    ("place", "case"),
    [(str(place), case) for place in fluid.places() for case in GROUPS_OF_ONE + FEWER if place.kind == "cpu"]
    + [(str(place), case) for place in fluid.places() for case in GROUPS_OF_ONE[:2] if place.kind != "cpu"],
)
def test_groups_of_one_channel(place: str, case: Any) -> None:
    checked_values(*case, place=place)


@pytest.mark.parametrize(("type", "x", "w", "attrs"), [*GROUPS_OF_ONE, *FEWER])
def test_loops_go_through_channels_side_by_side(type: str, x: Any, w: Any, attrs: dict[str, Any]) -> None:
    from fluidlite.kernels.language.conv import supports

    loops = (type, x, w, attrs) in GROUPS_OF_ONE
    assert (supports(call_of(type, x, w, attrs)) is not None) == loops
    assert (supports(call_of(f"{type}_grad", x, w, attrs)) is not None) == loops
    first = attrs | {"data_format": "NCDHW" if len(x) == 5 else "NCHW"}
    assert supports(call_of(type, (x[0], x[-1], *x[1:-1]), w, first)) is None, "planes lie side by side"


def call_of(type: str, x: Any, w: Any, attrs: dict[str, Any], place: str = "cpu") -> Call:
    """A call, or a gradient's, of an image, a filter and windows of these dims."""
    forward = ops.get(type.removesuffix("_grad"))
    ins = {"Input": (Spec.of(x, "float32"),), "Filter": (Spec.of(w, "float32"),)}
    known = check_attrs(forward, attrs, NOWHERE)[0]
    call = Call(forward, ins, {"Output": (Spec.of((1,), "float32"),)}, known)
    out = forward.infer(call)["Output"]
    if forward.type == type:
        return call.with_outs({"Output": (out,)}).at(fluid.Executor(place).place)
    wanted = {f"{slot}@GRAD": specs for slot, specs in ins.items()}
    attrs = check_attrs(ops.get(type), attrs, NOWHERE)[0]
    return Call(ops.get(type), {**ins, "Output@GRAD": (out,)}, wanted, attrs).at(fluid.Executor(place).place)


@pytest.mark.parametrize("training", [False, True])
def test_a_depthwise_convolution_is_fused_where_channels_come_to_lie_last(training: bool) -> None:
    """Between convolutions in registers, whose program has channels first; as the interpreter computes it."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        y = x = fluid.layers.data("x", [16, 14, 14])
        for filters, size, groups in ((32, 1, 1), (32, 3, 32), (64, 1, 1), (16, 1, 1)):
            y = fluid.layers.conv2d(y, filters, size, padding=size // 2, groups=groups, bias_attr=False)
            y = fluid.layers.batch_norm(y, act="relu", is_test=not training)
        x.stop_gradient = False
        weights = [each for each in main.all_parameters() if each.trainable]
        fetched = [y, *(fluid.gradients([fluid.layers.square(y)], [x, *weights]) if training else ())]
    main.random_seed = startup.random_seed = 5
    feed = {"x": np.random.default_rng(3).standard_normal((8, 16, 14, 14)).astype("float32")}
    found = []
    for mode in ("compiled", "interpreted"):
        with fluid.scope_guard(fluid.Scope()):
            executor = fluid.Executor("cpu", mode=mode)
            executor.run(startup)
            found.append(executor.run(main, feed=feed, fetch_list=fetched))
            if mode == "compiled":
                report = str(executor.explain_last())
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-3 * np.abs(theirs).max())
    registers = re.findall(r"conv2d +native +cpu:0 +registers", report)
    assert len(registers) == 3 and "plain (language)" not in report, report
    assert training or re.search(r"fused\.\S*conv2d_batch_norm_relu +generated", report), report


def test_elements_of_windows_are_not_stored() -> None:
    """Of a gradient through strides the filter is, in the order in which it is read, and sums along one dim."""
    from fluidlite.expr.calls import leaves
    from fluidlite.render.loops.kernels import tiled_nests

    (case,) = [case for case in GROUPS_OF_ONE if case[0] == "conv2d" and case[3].get("strides") == [2, 3]]
    type, _, w, attrs = case
    call = call_of(f"{type}_grad", (8, 40, 41, 24), w, attrs)
    nests = tiled_nests(call)
    made = [store.dims for nest in nests for store in nest.stores if store.target[0] == "made"]
    sizes = [prod(d.evaluate(leaves(call)) for d in dims) for dims in made]
    filter, sums = sizes
    assert filter == prod(w) and sums < 2.2 * prod((8, 40, 41, 24)), made


def test_places_beside_windows_are_left_out() -> None:
    """Of 32 texts of 100 x 128 under filters of 3 x 128: 98 windows a text, and one tap for each place along a word."""
    from fluidlite.kernels.language.conv import _order, _positions

    for counts, lengths in (((98, 1, 32), (100, 128, 32)), ((1, 98, 1), (1, 100, 128)), ((98, 30, 1), (98, 30, 300))):
        order = _order(counts, lengths)
        assert _positions([counts[k] for k in order], [lengths[k] for k in order]) == np.prod(counts)
    assert _order((1, 30, 30), (1, 32, 32)) == (0, 1, 2), "as in memory, where that is not twice as much"

    x, w, y = Spec.of((32, 1, 100, 128), "float32"), Spec.of((100, 1, 3, 128), "float32"), (32, 100, 98, 1)
    attrs, _ = check_attrs(ops.get("conv2d_grad"), {}, NOWHERE)
    ins = {"Input": (x,), "Filter": (w,), "Output@GRAD": (Spec.of(y, "float32"),)}
    image, _ = convolutions_of(Call(ops.get("conv2d_grad"), ins, {"Input@GRAD": (x,), "Filter@GRAD": (w,)}, attrs))
    assert {(rows.taps, words.taps, words.count) for rows, words in image.correlations()} == {(3, 1, 1)}


FEW = [
    ("conv2d", (2, 96, 2, 2), (96, 96, 3, 3), {"paddings": [1, 1]}, "im2col", "im2col"),
    ("conv2d", (2, 96, 4, 5), (96, 96, 3, 3), {"paddings": [1, 1]}, "registers", "im2col"),
    ("conv2d", (1, 128, 1, 1), (128, 128, 3, 3), {"paddings": [1, 1]}, "im2col", "im2col"),
    (
        "conv2d",
        (3, 3, 3, 128),
        (128, 64, 3, 3),
        {"groups": 2, "paddings": [1, 1], "data_format": "NHWC"},
        *["im2col"] * 2,
    ),
    ("conv2d", (4, 256, 1, 1), (256, 256, 1, 1), {}, "im2col", "im2col"),
    ("conv2d_transpose", (96, 96, 1, 1), (96, 96, 3, 3), {"paddings": [1, 1]}, "im2col", "im2col"),
    ("conv3d", (1, 32, 2, 3, 2), (96, 32, 3, 3, 3), {"paddings": [1, 1, 1], "strides": [2, 1, 2]}, "im2col", "im2col"),
    ("conv2d", (25, 96, 2, 2), (96, 96, 3, 3), {"paddings": [1, 1]}, "blas", "blas"),
    ("conv2d", (2, 32, 2, 2), (32, 32, 3, 3), {"paddings": [1, 1]}, "blas", "blas"),
    ("conv2d", (0, 96, 2, 2), (96, 96, 3, 3), {"paddings": [1, 1]}, "blas", "blas"),
    ("conv2d", (2, 1, 9, 128), (16, 1, 3, 128), {}, "", "im2col"),
]
"""The last two: the library of the convolution, and of its gradient."""


@pytest.mark.parametrize(("type", "x", "w", "attrs", "forward", "backward"), FEW)
def test_few_windows_are_unrolled(
    type: str, x: Any, w: Any, attrs: dict[str, Any], forward: str, backward: str
) -> None:
    checked_values(type, x, w, attrs, used=(forward, backward))


@pytest.mark.parametrize("place", [str(place) for place in fluid.places() if place.kind != "cpu"])
@pytest.mark.parametrize(("type", "w"), [("conv2d", (2, 32, 3, 3)), ("conv2d_transpose", (32, 2, 3, 3))])
def test_images_at_a_time(type: str, w: tuple[int, ...], place: str) -> None:
    """The planes of these images take more than a workspace."""
    rng = np.random.default_rng(0)
    x, kernel = rng.standard_normal((5, 32, 96, 90)), rng.standard_normal(w)
    for a, b in zip(values(type, x, kernel, {}, place), values(type, x, kernel, {}, "cpu"), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("filters", "channels", "groups"), [(7, 64, 1), (64, 7, 1), (64, 2, 32), (8, 8, 1)])
def test_blas_leaves_few_channels_or_filters_of_a_group(filters: int, channels: int, groups: int) -> None:
    from fluidlite.kernels.blas.conv import conv2d

    x, w = Spec.of((2, channels * groups, 9, 9), "float32"), Spec.of((filters, channels, 3, 3), "float32")
    attrs, _ = check_attrs(ops.get("conv2d"), {"groups": groups}, NOWHERE)
    out = Spec.of((2, filters, 7, 7), "float32")
    call = Call(ops.get("conv2d"), {"Input": (x,), "Filter": (w,)}, {"Output": (out,)}, attrs)
    assert conv2d.supports is not None
    refused = conv2d.supports(call)
    fewest = min(filters // groups, channels)
    assert (refused is None) == (fewest >= 8), refused
    assert refused is None or f"a group has {fewest} channels or filters" in refused
