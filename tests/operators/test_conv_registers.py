"""Convolutions in vector registers and by tiles: values and gradients of images large enough, against float64 NumPy."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest

import fluidlite as fluid

PLACES = ["cpu", pytest.param("opencl:0", marks=pytest.mark.opencl)]
Array = np.ndarray[Any, Any]


class Geometry(NamedTuple):
    images: int
    channels: int
    filters: int
    size: tuple[int, int]
    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int] = (0, 0)
    dilations: tuple[int, int] = (1, 1)
    groups: int = 1
    transposed: bool = False
    dtype: str = "float32"


CASES = {
    "plain": Geometry(2, 16, 32, (14, 16), (3, 3)),
    "padded": Geometry(3, 9, 33, (17, 19), (3, 3), pads=(1, 1)),
    "padded_beyond_the_filter": Geometry(1, 8, 16, (9, 16), (3, 3), pads=(4, 5)),
    "one_by_one": Geometry(2, 20, 50, (9, 15), (1, 1)),
    "one_by_one_strided": Geometry(2, 17, 8, (15, 16), (1, 1), (2, 2)),
    "stem": Geometry(1, 3, 64, (37, 45), (7, 7), (2, 2), (3, 3)),
    "odd_strides": Geometry(2, 8, 20, (23, 29), (2, 4), (3, 2), (1, 2)),
    "strides_beyond_the_filter": Geometry(1, 8, 8, (26, 29), (2, 1), (3, 2)),
    "dilated": Geometry(2, 10, 17, (19, 20), (3, 2), (1, 1), (2, 3), (2, 3)),
    "dilated_strides": Geometry(1, 12, 16, (25, 26), (3, 3), (2, 2), (1, 1), (3, 2)),
    "groups": Geometry(2, 24, 27, (12, 18), (3, 3), (1, 1), (1, 1), groups=3),
    "many_channels": Geometry(2, 300, 40, (7, 7), (3, 3), pads=(1, 1)),
    "many_images": Geometry(40, 20, 50, (12, 12), (5, 5)),
    "double": Geometry(2, 9, 21, (15, 17), (3, 3), (1, 2), (1, 0), dtype="float64"),
    "transposed": Geometry(2, 12, 16, (8, 9), (3, 3), (2, 2), (1, 1), transposed=True),
    "transposed_groups": Geometry(1, 18, 24, (9, 10), (4, 3), (1, 3), (0, 1), groups=2, transposed=True),
}
BY_TILES = {
    "plain": CASES["plain"],
    "many_channels": CASES["many_channels"],
    "odd_sides": Geometry(3, 17, 35, (9, 13), (3, 3)),
    "no_pads_but_one": Geometry(2, 32, 16, (11, 8), (3, 3), pads=(1, 0)),
    "padded_beyond": Geometry(1, 16, 32, (6, 8), (3, 3), pads=(2, 2)),
    "groups_of_tiles": Geometry(2, 54, 99, (10, 12), (3, 3), pads=(1, 1), groups=3),
    "several_chunks": Geometry(9, 64, 48, (30, 34), (3, 3), pads=(1, 1)),
    "sent_back": Geometry(2, 33, 40, (9, 14), (3, 3), pads=(1, 1), transposed=True),
}
"""Those that Winograd's kernels take; the registers' take them too where these are preferred."""


def windows(x: Array, w: Array, g: Geometry, counts: tuple[int, int]) -> Array:
    """The convolution of a padded image: one product for each element of the filter."""
    made = np.zeros((x.shape[0], w.shape[0], *counts))
    part, (kh, kw) = w.shape[0] // g.groups, w.shape[2:]
    for group, i, j in product(range(g.groups), range(kh), range(kw)):
        top, left = i * g.dilations[0], j * g.dilations[1]
        seen = x[:, group * w.shape[1] : (group + 1) * w.shape[1], top:, left:]
        seen = seen[:, :, :: g.strides[0], :: g.strides[1]][:, :, : counts[0], : counts[1]]
        mine = slice(group * part, (group + 1) * part)
        made[:, mine] += np.einsum("nchw,mc->nmhw", seen, w[mine, :, i, j])
    return made


def spread(y: Array, w: Array, g: Geometry, size: tuple[int, int]) -> Array:
    """The windows of ``y`` sent back to an image of ``size``, with its padding."""
    made = np.zeros((y.shape[0], w.shape[1] * g.groups, size[0] + 2 * g.pads[0], size[1] + 2 * g.pads[1]))
    part = w.shape[0] // g.groups
    for group, i, j in product(range(g.groups), range(w.shape[2]), range(w.shape[3])):
        mine = slice(group * part, (group + 1) * part)
        target = made[:, group * w.shape[1] : (group + 1) * w.shape[1], i * g.dilations[0] :, j * g.dilations[1] :]
        target = target[:, :, :: g.strides[0], :: g.strides[1]][:, :, : y.shape[2], : y.shape[3]]
        target += np.einsum("nmhw,mc->nchw", y[:, mine], w[mine, :, i, j])
    return made[:, :, g.pads[0] : g.pads[0] + size[0], g.pads[1] : g.pads[1] + size[1]]


def gathered(x: Array, y: Array, g: Geometry, kernel: tuple[int, int]) -> Array:
    """The gradient of a filter, from a padded image and its windows."""
    inner, part = x.shape[1] // g.groups, y.shape[1] // g.groups
    made = np.zeros((y.shape[1], inner, *kernel))
    for group, i, j in product(range(g.groups), range(kernel[0]), range(kernel[1])):
        seen = x[:, group * inner : (group + 1) * inner, i * g.dilations[0] :, j * g.dilations[1] :]
        seen = seen[:, :, :: g.strides[0], :: g.strides[1]][:, :, : y.shape[2], : y.shape[3]]
        mine = slice(group * part, (group + 1) * part)
        made[mine, :, i, j] = np.einsum("nmhw,nchw->mc", y[:, mine], seen)
    return made


def padded(x: Array, g: Geometry) -> Array:
    return np.pad(x, ((0, 0), (0, 0), (g.pads[0],) * 2, (g.pads[1],) * 2))


def expected(g: Geometry, given: Array, w: Array, dy: Array) -> list[Array]:
    """Output, gradient of the input, gradient of the filter, in float64."""
    given, w, dy = (array.astype("float64") for array in (given, w, dy))
    if g.transposed:
        size = (dy.shape[2], dy.shape[3])
        counts = (given.shape[2], given.shape[3])
        return [spread(given, w, g, size), windows(padded(dy, g), w, g, counts),
                gathered(padded(dy, g), given, g, g.kernel)]  # fmt: skip
    counts = (dy.shape[2], dy.shape[3])
    return [
        windows(padded(given, g), w, g, counts),
        spread(dy, w, g, g.size),
        gathered(padded(given, g), dy, g, g.kernel),
    ]


def run(place: str, g: Geometry, last: bool, library: str = "winograd") -> tuple[list[Array], list[Array], set[str]]:
    """What was found, what was expected, and the libraries."""
    rng = np.random.default_rng(0)
    reach = [d * (k - 1) + 1 for d, k in zip(g.dilations, g.kernel, strict=True)]
    every = list(zip(g.size, reach, g.strides, g.pads, strict=True))
    if g.transposed:
        outs = tuple((n - 1) * s + r - 2 * p for n, r, s, p in every)
        w = rng.standard_normal((g.channels, g.filters // g.groups, *g.kernel))
    else:
        outs = tuple((n + 2 * p - r) // s + 1 for n, r, s, p in every)
        w = rng.standard_normal((g.filters, g.channels // g.groups, *g.kernel))
    given = rng.standard_normal((g.images, g.channels, *g.size))
    dy = rng.standard_normal((g.images, g.filters, *outs))
    given, w, dy = (array.astype(g.dtype) for array in (given, w, dy))

    def laid(array: Array, back: bool = False) -> Array:
        order = (0, 3, 1, 2) if back else (0, 2, 3, 1)
        return np.ascontiguousarray(array.transpose(order)) if last else array

    feed = {"x": laid(given), "w": w, "dy": laid(dy)}
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x, filters, upstream = (
            fluid.layers.data(name, list(array.shape), append_batch_size=False, dtype=g.dtype)
            for name, array in feed.items()
        )
        x.stop_gradient = filters.stop_gradient = False
        block = fluid.default_main_program().global_block()
        out = block.create_var("out")
        attrs = {"strides": g.strides, "paddings": g.pads, "dilations": g.dilations, "groups": g.groups,
                 "data_format": "NHWC" if last else "NCHW"}  # fmt: skip
        block.append_op("conv2d_transpose" if g.transposed else "conv2d", {"Input": x, "Filter": filters},
                        {"Output": out}, attrs)  # fmt: skip
        grads = fluid.gradients([out], [x, filters], [upstream])
        exe = fluid.Executor(place, libraries={place.split(":")[0]: [library]})
        found = exe.run(fluid.default_main_program(), feed, [out, *grads])
        used = {row["library"] for row in exe.explain_last().data() if row["op"].startswith("conv2d")}
    found = [laid(found[0], True), laid(found[1], True), found[2]]
    return found, expected(g, given, w, dy), used


def compare(place: str, g: Geometry, last: bool, library: str) -> set[str]:
    """Hold values and gradients to float64, and return the libraries that computed them."""
    found, wanted, used = run(place, g, last, library)
    for mine, theirs in zip(found, wanted, strict=True):
        scale = np.abs(theirs).max()
        np.testing.assert_allclose(mine / scale, theirs / scale, 0, 2e-6 if g.dtype == "float32" else 1e-14)
    return used


def has_registers(place: str) -> bool:
    return fluid.platform.device_registry.devices.unit(place).language is not None


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("place", PLACES)
def test_values_and_gradients(place: str, name: str, last: bool, require: Any) -> None:
    require(place.split(":")[0])
    used = compare(place, CASES[name], last, "registers")
    assert used == {"registers"} or name == "stem" or not has_registers(place)  # the stem's image has 3 channels


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("name", BY_TILES)
@pytest.mark.parametrize("place", PLACES)
def test_values_and_gradients_by_tiles(place: str, name: str, last: bool, require: Any) -> None:
    require(place.split(":")[0])
    used = compare(place, BY_TILES[name], last, "winograd")
    assert used == {"winograd"} or not has_registers(place)


def convolved(place: str, x: Array, w: Array, last: bool, library: str) -> Array:
    """A convolution of pads 1, its channels first."""
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        given = x.transpose(0, 2, 3, 1) if last else x
        data = fluid.layers.data("x", list(given.shape), append_batch_size=False)
        filters = fluid.layers.data("w", list(w.shape), append_batch_size=False)
        block = fluid.default_main_program().global_block()
        out = block.create_var("out")
        attrs = {"paddings": [1, 1], "data_format": "NHWC" if last else "NCHW"}
        block.append_op("conv2d", {"Input": data, "Filter": filters}, {"Output": out}, attrs)
        exe = fluid.Executor(place, libraries={place.split(":")[0]: [library]})
        (found,) = exe.run(fluid.default_main_program(), {"x": given, "w": w}, [out])
    return found.transpose(0, 3, 1, 2) if last else found


SIZES = {"a few tiles": (2, 9, 11), "blocks of tiles": (3, 60, 63)}
"""Images, and their sides: those of the second are convolved block by block."""


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("what", [np.nan, np.inf, -np.inf, 3e38], ids=["nan", "inf", "minus inf", "overflow"])
def test_what_is_not_finite_reaches_no_other_window(
    place: str, what: float, sizes: str, last: bool, require: Any
) -> None:
    require(place.split(":")[0])
    rng, (images, height, width) = np.random.default_rng(1), SIZES[sizes]
    x = rng.standard_normal((images, 18, height, width)).astype("float32")
    w = rng.standard_normal((37, 18, 3, 3)).astype("float32")
    clean = convolved(place, x, w, last, "winograd")
    x[1, 4, 5, 6] = what
    found = convolved(place, x, w, last, "winograd")
    seen = np.zeros((images, 37, height, width), bool)
    seen[1, :, 4:7, 5:8] = True  # the windows that read it
    np.testing.assert_allclose(found[~seen], clean[~seen], 0, 1e-4)
    with np.errstate(all="ignore"):
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        expected = sum(
            np.einsum("chw,mc->mhw", padded[1, :, 4 + i : 7 + i, 5 + j : 8 + j], w[:, :, i, j])
            for i, j in product(range(3), repeat=2)
        )
    mine = found[1, :, 4:7, 5:8]
    np.testing.assert_array_equal(np.isnan(mine), np.isnan(expected))
    np.testing.assert_array_equal(mine[np.isinf(expected)], expected[np.isinf(expected)])


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize(
    ("what", "sizes"),
    [*product([np.nan, np.inf], SIZES), (3e38, "a few tiles")],  # sums of more tiles would be large and finite
)
def test_what_is_not_finite_reaches_no_other_element_of_a_filter(what: float, sizes: str, last: bool) -> None:
    rng, (images, height, width) = np.random.default_rng(3), SIZES[sizes]
    x = rng.standard_normal((images, 18, height, width)).astype("float32")
    dy = rng.standard_normal((images, 37, height, width)).astype("float32")
    x[1, 4, 0, 0] = dy[0, 30, 4, 5] = what  # the first is read by 4 of 9 elements of a filter

    def gradient(library: str) -> Array:
        given = [array.transpose(0, 2, 3, 1) if last else array for array in (x, dy)]
        with fluid.program_guard(fluid.Program(), fluid.Program()):
            data, upstream = (fluid.layers.data(name, list(array.shape), append_batch_size=False)
                              for name, array in zip(("x", "dy"), given, strict=True))  # fmt: skip
            w = fluid.layers.data("w", [37, 18, 3, 3], append_batch_size=False)
            w.stop_gradient = False
            block = fluid.default_main_program().global_block()
            out = block.create_var("out")
            attrs = {"paddings": [1, 1], "data_format": "NHWC" if last else "NCHW"}
            block.append_op("conv2d", {"Input": data, "Filter": w}, {"Output": out}, attrs)
            feed = {"x": given[0], "dy": given[1], "w": np.ones((37, 18, 3, 3), "float32")}
            exe = fluid.Executor("cpu", libraries={"cpu": [library]})
            found: Array = exe.run(feed=feed, fetch_list=fluid.gradients([out], [w], [upstream]))[0]
        return found

    mine, theirs = gradient("winograd"), gradient("registers")
    np.testing.assert_allclose(mine, theirs, 1e-4, 1e-3)
    assert np.isfinite(mine[[0, 29, 31]][:, [0, 3, 5]]).all()
    assert what == 3e38 or np.isfinite(mine[0, 4]).sum() == 5


def test_transforms_made_a_few_tiles_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last ones are fewer than a product in registers takes."""
    from fluidlite.kernels.language import winograd

    monkeypatch.setattr(winograd, "MAX_CHUNK_BYTES", 1)
    compare("cpu", Geometry(1, 16, 32, (14, 14), (3, 3), pads=(1, 1)), True, "winograd")


def test_a_product_of_few_tiles_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes as many rows as it keeps in registers: perhaps more than the tiles that are transformed at a time."""
    from fluidlite.kernels.language import winograd
    from fluidlite.kernels.language.conv_vectors import tile_of
    from fluidlite.kernels.language.source import Workspace
    from fluidlite.platform.context_pool import get_context
    from fluidlite.platform.device_registry import devices

    rows, taken, take = tile_of(get_context(devices.host()), "float32", 49, 32).rows, [], Workspace.take
    monkeypatch.setattr(Workspace, "take", lambda self, nbytes: taken.append(nbytes) or take(self, nbytes))
    monkeypatch.setattr(winograd, "MAX_CHUNK_BYTES", 1)
    compare("cpu", Geometry(1, 16, 32, (14, 13), (3, 3), pads=(1, 1)), True, "winograd")
    assert [nbytes for nbytes in taken if nbytes >= max(rows, 10) * (winograd.SPOTS * 32 + winograd.MAX_LANES) * 4]


def test_one_filter_in_several_packed_forms() -> None:
    """Convolutions of other groups, and of other weights, each read their own form of it."""
    rng = np.random.default_rng(4)
    w = rng.standard_normal((64, 32, 3, 3)).astype("float32")
    given = {"x": rng.standard_normal((1, 9, 10, 32)), "y": rng.standard_normal((1, 9, 10, 64))}
    feed = {name: array.astype("float32") for name, array in given.items()}
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        data = {n: fluid.layers.data(n, list(a.shape), append_batch_size=False) for n, a in feed.items()}
        filters = fluid.layers.create_parameter([64, 32, 3, 3], "float32", name="w")
        block, outs = fluid.default_main_program().global_block(), []
        for name, type, groups in (("x", "conv2d", 1), ("y", "conv2d", 2), ("y", "conv2d_transpose", 1)):
            outs.append(block.create_var(f"out{len(outs)}"))
            attrs = {"paddings": [1, 1], "data_format": "NHWC", "groups": groups}
            block.append_op(type, {"Input": data[name], "Filter": filters}, {"Output": outs[-1]}, attrs)
        exe, scope = fluid.Executor("cpu"), fluid.Scope()
        exe.run(fluid.default_startup_program(), scope=scope)
        for scale in (1.0, -2.0):
            scope.find_var("w").get_tensor().set(np.float32(scale) * w, fluid.Place.parse("cpu"))
            for _ in range(2):
                found = exe.run(feed=feed, fetch_list=outs, scope=scope)
                x, y = (feed[name].transpose(0, 3, 1, 2).astype("float64") for name in "xy")
                one = Geometry(1, 32, 64, (9, 10), (3, 3), pads=(1, 1))
                two = Geometry(1, 64, 64, (9, 10), (3, 3), pads=(1, 1), groups=2)
                for mine, theirs in zip(found, (windows(padded(x, one), scale * w, one, (9, 10)),
                                                windows(padded(y, two), scale * w, two, (9, 10)),
                                                spread(y, scale * w, one, (9, 10))), strict=True):  # fmt: skip
                    np.testing.assert_allclose(mine.transpose(0, 3, 1, 2), theirs, 1e-4, 1e-3)


@pytest.mark.parametrize("library", ["registers", "winograd"])
@pytest.mark.parametrize("registers", [(16, 32), (16, 16)], ids=str)
def test_other_registers(registers: tuple[int, int], library: str, with_registers: Any) -> None:
    """Of processors without AVX-512, and without AVX."""
    with_registers(registers)
    g = Geometry(2, 18, 34, (9, registers[1] - 5), (3, 3), pads=(1, 1))
    assert compare("cpu", g, True, library) == {library}


def test_other_images_change_no_bit() -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((40, 32, 12, 12)).astype("float32")
    w = rng.standard_normal((48, 32, 3, 3)).astype("float32")
    whole = convolved("cpu", x, w, True, "winograd")
    np.testing.assert_array_equal(whole[7:8], convolved("cpu", x[7:8], w, True, "winograd"))
    np.testing.assert_array_equal(whole, convolved("cpu", x, w, False, "winograd"))


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_the_number_of_threads_changes_no_bit(last: bool) -> None:
    """Blocks of tiles, and the sums of a filter's gradient, are the same for any number."""
    from fluidlite.platform.context_pool import get_context
    from fluidlite.platform.device_registry import devices

    context, found = get_context(devices.host()), []
    threads = context.threads
    for number in (1, 2, 3):
        context.threads = number
        try:
            found.append(run("cpu", BY_TILES["several_chunks"], last)[0])
        finally:
            context.threads = threads
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            np.testing.assert_array_equal(one, other)


def test_what_zero_padding_would_multiply_is_not_read() -> None:
    """Infinity in the filter's rows that lie in the padding does not make NaN."""
    x = np.ones((1, 8, 16, 16), np.float32)
    w = np.ones((8, 8, 3, 1), np.float32)
    w[:, :, 0] = np.inf
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        data = fluid.layers.data("x", [8, 16, 16])
        filters = fluid.layers.data("w", [8, 8, 3, 1], append_batch_size=False)
        block = fluid.default_main_program().global_block()
        out = block.create_var("out")
        block.append_op("conv2d", {"Input": data, "Filter": filters}, {"Output": out}, {"paddings": [1, 0]})
        (found,) = fluid.Executor("cpu", libraries={"cpu": ["registers"]}).run(
            fluid.default_main_program(), {"x": x, "w": w}, [out]
        )
    assert not np.isnan(found).any()


def test_threads_do_not_change_a_bit() -> None:
    from fluidlite.platform.context_pool import get_context
    from fluidlite.platform.device_registry import devices

    context = get_context(devices.host())
    before, results = context.threads, []
    try:
        for threads in (1, 2):
            context.threads = threads
            results.append(
                [*run("cpu", CASES["many_images"], False)[0], *run("cpu", BY_TILES["several_chunks"], True)[0]]
            )
    finally:
        context.threads = before
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_small_rows_and_few_filters_are_left_to_other_kernels() -> None:
    for g, reason in (
        (Geometry(4, 32, 32, (16, 3), (3, 3), pads=(1, 1)), "a row has 3 windows; 4 fill registers"),
        (Geometry(4, 8, 4, (16, 16), (3, 3)), "a group has 4 filters; 8 fill registers"),
    ):
        with fluid.program_guard(fluid.Program(), fluid.Program()):
            data = fluid.layers.data("x", [g.channels, *g.size])
            fluid.layers.conv2d(data, g.filters, 3, padding=g.pads[0], bias_attr=False)
            report = fluid.explain(place="cpu", feed={"x": (g.images, g.channels, *g.size)}).data()
        (row,) = [row for row in report if row["op"] == "conv2d"]
        assert row["library"] not in ("registers", "winograd")
        if fluid.platform.device_registry.devices.host() and any("registers" in name for name, _ in row["refused"]):
            assert ["native registers", reason] in row["refused"]
