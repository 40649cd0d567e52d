"""Kernels side by side: every candidate is timed or says why not, and the one that is taken is selection's."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from fluidlite.base.errors import FluidError
from fluidlite.cli.bench import bench, flops_of
from fluidlite.cli.bench_view import in_time
from fluidlite.cli.kernel_matrix import sample_calls
from fluidlite.cli.main import main
from fluidlite.compiler.policy import Policy
from fluidlite.compiler.selection.kernel_candidates import candidates
from fluidlite.compiler.selection.kernel_selection import select_kernel
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place
from fluidlite.program.registry import ops

HERE = [place for place in devices.places() if place.index == 0]


@pytest.mark.parametrize("place", HERE, ids=str)
def test_one_candidate_is_taken_and_the_others_say_why_not(place: Place) -> None:
    """Over all operators that have samples."""
    allow = Policy("allow")
    for op in ops:
        if op.run is not None or op.marker:
            continue
        for call in [calls[0] for calls in sample_calls(op).values()]:
            found, chosen = candidates(call, place, allow), select_kernel(call, place, allow)
            taken = [each for each in found if each.is_selected]
            elsewhere = chosen.how in ("fallback", "pinned")
            assert len(taken) == (0 if elsewhere else 1), (call, chosen, found)
            for each in taken:
                assert each.choice is not None
                assert (each.how, each.choice.library, each.reason) == (chosen.how, chosen.library, "")
            assert all(each.reason for each in found if not each.is_selected), (call, found)


@pytest.mark.parametrize("place", HERE, ids=str)
@pytest.mark.parametrize("op", ["matmul", "softmax", "relu_grad", "mean", "adam", "dropout", "lookup_table", "concat"])
def test_what_can_run_is_timed(op: str, place: Place) -> None:
    for one in bench(op, place, seconds=0.001)[:3]:
        for result in one.results:
            assert result.error == "", result
            assert (result.timing is None) == (result.candidate.choice is None)
            if result.timing is not None:
                assert 0 < result.timing.minimum <= result.timing.median
                assert result.timing.nbytes > 0


def test_given_dims_and_known_operations() -> None:
    (one,) = bench("matmul", "cpu", dims={"X": (8, 16), "Y": (16, 4)}, seconds=0.001)
    assert [list(spec.dims) for specs in one.call.ins.values() for spec in specs] == [[8, 16], [16, 4]]
    assert flops_of(one.call) == 2 * 8 * 16 * 4
    (timing,) = [each.timing for each in one.results if each.candidate.name == "blas"]
    assert timing is not None
    assert timing.nbytes == 4 * (8 * 16 + 16 * 4 + 8 * 4)
    (conv,) = bench("conv2d", "cpu", ["plain"], seconds=0.001)
    images, channels, *_ = conv.call.dims("Input")
    filters, _, height, width = conv.call.dims("Filter")
    rows, columns = conv.call.dims("Output")[2:]
    assert flops_of(conv.call) == 2 * images * channels * filters * height * width * rows * columns
    assert flops_of(bench("relu", "cpu", dims={"X": (2, 2)}, seconds=0.001)[0].call) == 0


def test_the_table_and_its_data(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "matmul", "--place", "cpu", "--dims", "X=32x32", "--dims", "Y=32x32", "--seconds", "0.005"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "matmul on cpu:0, sample matrices: X float32 [32, 32]; Y float32 [32, 32]" in out
    assert re.search(r"native blas +\S+ \w+ +\S+ \w+ +[\d.]+ +[\d.]+ +yes", out)
    assert re.search(r"generated expression \(array\) .* no: native comes before generated", out)
    assert main([*arguments, "--json", "--attr", "alpha=0.5"]) == 0
    (data,) = json.loads(capsys.readouterr().out)
    assert data["inputs"]["X"] == [["float32", [32, 32]]]
    assert [kernel["kernel"] for kernel in data["kernels"] if kernel["taken"]] == ["blas"]
    assert [each["flops"] for each in data["kernels"] if each["taken"]] == [2 * 32**3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rleu"], "no operator is called 'rleu'; did you mean"),
        (["relu", "--sample", "no_such"], "has no sample 'no_such'; it has"),
        (["relu", "--dims", "Z=3"], "the sample has no input 'Z'; it has X"),
        (["relu", "--dims", "X"], "--dims 'X' is not slot=dims"),
        (["relu", "--attr", "alpha"], "--attr 'alpha' is not name=value"),
        (["matmul", "--dims", "X=3x4"], "operator matmul"),
        (["relu", "--place", "nowhere"], "no device serves place 'nowhere:0'"),
        (["relu", "--dtype", "nosuch"], "'nosuch' is not a data type of fluidlite; use one of"),
        (["relu", "--dtype", ""], "'' is not a data type of fluidlite; use one of"),
        (["relu", "--dtype", "int64"], "X is int64[5, 7]; expected dtype float16"),
        *(
            ([op, "--dims", f"X={dims}"], "OutOfMemoryError: input 'X' of dims [")
            for op in ("softmax", "concat")
            for dims in (
                "99999999999x9",
                "999999999999999999999x9",
                "999999999999999999999x0",
                "99999999999x99999999999",
            )
        ),
    ],
)
def test_what_cannot_be_timed_is_said(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_kernel_that_fails_is_a_line_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    from fluidlite.cli import bench as module

    def broken(*args: Any) -> Any:
        raise FluidError("it is broken")

    monkeypatch.setattr(module, "run_kernel", broken)
    (one,) = bench("relu", "cpu", dims={"X": (2, 3)}, seconds=0.001)
    assert {result.error for result in one.results} == {"FluidError: it is broken"}


def test_durations() -> None:
    assert [in_time(s) for s in (2.0, 0.5, 1.5e-3, 3e-6, 4e-9)] == ["2 s", "500 ms", "1.5 ms", "3 us", "4 ns"]
