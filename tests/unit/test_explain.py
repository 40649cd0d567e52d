"""Reports: text, data, HTML, sums and copies. What a plan holds is tested in test_planner."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.errors import FeedError
from fluidlite.compiler.policy import KERNEL_KINDS
from fluidlite.program.kernel_registry import kernels
from fluidlite.tensor.tensor_spec import Spec

sys.path.append(str(Path(__file__).parents[1] / "plugins"))
from fake_device import FakeDevice, installed

layers = fluid.layers


@pytest.fixture
def fake() -> Iterator[str]:
    fluid.places()
    fluid.set_fallback("allow")
    with installed(FakeDevice()) as device:
        yield device.kind


@pytest.fixture
def program() -> Any:
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        x = layers.data("x", [4])
        main.result = layers.mean(layers.relu(layers.scale(x, 2.0)))
    return main


def test_the_text_on_the_host(program: Any) -> None:
    text = fluid.explain(program, "cpu", {"x": (2, 4)}, [program.result], mode="interpreted").text()
    head, *rows, fetch, last = text.splitlines()
    assert head == "Plan on cpu:0"
    assert [row.split()[:3] for row in rows] == [
        ["scale", "generated", "cpu:0"],
        ["relu", "generated", "cpu:0"],
        ["mean", "generated", "cpu:0"],
    ]
    assert "# test_explain.py:" in rows[0]
    assert fetch == "  fetch mean_0.tmp_0 from cpu:0, 4 bytes"
    assert last == "3 operators: 3 generated; 0 feeds copied, 0 transfers, 1 fetches, 0 bytes moved"


def test_what_is_fetched_is_shown_as_it_will_run(program: Any) -> None:
    report = fluid.explain(program, "cpu", {"x": (2, 4)}, [program.result])
    assert str(report) == str(fluid.explain(program, "cpu", {"x": (2, 4)}, [program.result], mode="compiled"))
    assert [made.split()[0] for made in report.data()[0]["made_of"]] == ["scale", "relu"]
    exe = fluid.Executor("cpu")
    exe.run(program, {"x": np.ones((2, 4), "float32")}, [program.result])
    assert str(exe.explain_last()) == str(report)
    with pytest.raises(fluid.FluidError, match=r"mode is 'quick'; expected one of interpreted, compiled"):
        fluid.explain(program, "cpu", mode="quick")


def test_the_text_names_moves_with_bytes_and_reasons(fake: str) -> None:
    main = fluid.Program()
    block = main.global_block()
    block.create_var("w", [8], "float32", persistable=True)
    block.append_op("scale", {"X": "w"}, {"Out": "w"}, {"bias": 1.0})
    text = str(fluid.explain(main, fake))
    assert f"move w {fake}:0 -> cpu:0, 32 bytes (transfer)" in text
    assert f"move w cpu:0 -> {fake}:0, 32 bytes (home)" in text
    assert f"because native: no kernel is registered for {fake}" in text
    assert text.splitlines()[-1] == "1 operators: 1 fallback; 0 feeds copied, 2 transfers, 0 fetches, 64 bytes moved"


def test_data_is_plain(program: Any) -> None:
    report = fluid.explain(program, "cpu", {"x": (2, 4)})
    rows = json.loads(json.dumps(report.data()))
    assert [row["op"] for row in rows] == ["scale", "relu", "mean"]
    for row in rows:
        assert row["how"] in KERNEL_KINDS
        assert row["place"] == "cpu:0"
        assert row["line"].startswith("test_explain.py:")
        assert row["kernel"]
    assert json.loads(json.dumps(report.summary))["operators"] == 3


class _Tags(HTMLParser):
    """Opens and closes in order; keeps what stands in table cells and folded lists."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: Counter[str] = Counter()
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.seen[tag] += 1

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_html_is_one_well_formed_page(program: Any) -> None:
    html = fluid.explain(program, "cpu", {"x": (2, 4)})._repr_html_()
    page = _Tags(html)
    assert page.open == []
    assert page.seen["tr"] == 4
    assert "http" not in html
    assert {"Plan on cpu:0", "scale", "relu", "mean", "generated"} <= set(page.texts)
    assert "None: it is made for compiled programs whose dims are all known." in page.texts


def test_html_escapes_what_others_named() -> None:
    main = fluid.Program()
    block = main.global_block()
    block.create_var("<script>w</script>", [8], "float32", persistable=True)
    block.append_op("scale", {"X": "<script>w</script>"}, {"Out": "<script>w</script>"}, {"bias": 1.0})
    html = fluid.explain(main, "cpu").html()
    assert "script" not in _Tags(html).seen
    assert "<script>w</script>" in _Tags(html).texts


def test_html_folds_moves_and_refusals_and_shows_the_memory_plan(fake: str) -> None:
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        x = layers.data("x", [4])
        with fluid.device_guard("cpu"):
            middle = layers.softmax(x)
        result = layers.mean(layers.softmax(middle))
    page = _Tags(fluid.explain(main, fake, {"x": (2, 4)}, [result]).html())
    assert page.seen["details"] >= 2
    assert page.seen["svg"] == 1
    text = "".join(page.texts)
    assert "no kernel is registered for " in text
    assert "buffers: planned " in text
    unknown = "".join(_Tags(fluid.explain(main, fake, fetch_list=[result]).html()).texts)
    assert "None: it is made for compiled programs" in unknown


def test_unknown_dims_are_unknown_bytes(fake: str) -> None:
    @fluid.register_kernel("relu", fake)
    def relu(call: Any, context: Any) -> Any:
        raise AssertionError("explain prepares nothing")

    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        result = layers.softmax(layers.relu(layers.data("x", [4])))
    try:
        report = fluid.explain(main, fake, fetch_list=[result])
    finally:
        kernels.remove(relu)
    moves = [move for row in report.data() for move in row["moves"]]
    assert [(m["name"], m["bytes"]) for m in moves] == [("x", None), ("relu_0.tmp_0", None)]
    assert report.summary["bytes"] is None
    assert "unknown bytes moved" in report.summary_line()
    text = "".join(_Tags(report.html()).texts)
    assert "1 move, bytes unknown" in text
    assert "0\N{NO-BREAK SPACE}B" not in text


def test_feeds_are_dims_arrays_tensors_or_specs(program: Any) -> None:
    reports = [
        fluid.explain(program, "cpu", {"x": value}, [program.result])
        for value in (
            (2, 4),
            [2, 4],
            np.zeros((2, 4), "float32"),
            fluid.Tensor().set(np.zeros((2, 4), "float32")),
            Spec.of((2, 4), "float32"),
        )
    ]
    assert len({str(report) for report in reports}) == 1


def test_copies_by_place(program: Any, fake: str) -> None:
    assert fluid.explain(program, "cpu", {"x": (2, 4)}, [program.result]).copies() == {
        fluid.Place("cpu"): {"copy_in": 0, "copy_out": 1}
    }
    main = fluid.Program()
    block = main.global_block()
    block.create_var("w", [8], "float32", persistable=True)
    block.append_op("scale", {"X": "w"}, {"Out": "w"}, {"bias": 1.0})
    report = fluid.explain(main, fake, fetch_list=["w"])
    assert report.copies() == {fluid.Place(fake): {"copy_in": 1, "copy_out": 2}}


def test_an_unknown_place_or_variable(program: Any) -> None:
    with pytest.raises(fluid.FluidError, match="no device serves place 'nowhere:0'"):
        fluid.explain(program, "nowhere")
    with pytest.raises(fluid.FluidError, match="nope"):
        fluid.explain(program, "cpu", fetch_list=["nope"])


@pytest.mark.parametrize("place", [*map(str, fluid.places())])
def test_recurrences_are_explained_before_their_sequences_are_known(place: str) -> None:
    """And as they run, once they are."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        x = fluid.layers.data("x", [8], lod_level=1)
        hidden, _ = fluid.layers.dynamic_lstm(fluid.layers.fc(x, 16), 16)
        loss = fluid.layers.reduce_mean(hidden)
        fluid.optimizer.SGD(0.1).minimize(loss)
    ways = {line.op.type: line.how for line in fluid.explain(main, place).plan.lines}
    assert {"lstm", "lstm_grad"} <= ways.keys()
    exe, scope = fluid.Executor(place, mode="interpreted"), fluid.Scope()
    exe.run(startup, scope=scope)
    feed = {"x": fluid.create_lod_tensor(np.ones((5, 8), "float32"), [[2, 3]], fluid.CPUPlace())}
    exe.run(main, feed, [loss], scope=scope)
    run = {line.op.type: line.how for line in exe.explain_last().plan.lines}
    assert {type: ways[type] for type in ("lstm", "lstm_grad")} == {type: run[type] for type in ("lstm", "lstm_grad")}


def test_a_feed_of_fractions_is_refused() -> None:
    x = fluid.layers.data("x", [3])
    fluid.layers.scale(x)
    with pytest.raises(FeedError, match="expected dims, such as"):
        fluid.explain(feed={"x": (2.5, 3)})
