"""Output of the benchmark of an operator's kernels, on the terminal and as data."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from fluidlite.base.errors import FluidError
from fluidlite.cli.bench import Bench, Result, bench
from fluidlite.cli.terminal import print_json, table
from fluidlite.program.op_call import Call


def show(
    console: Console,
    op: str,
    place: str,
    samples: Sequence[str],
    dims: Mapping[str, Sequence[int]],
    dtype: str | None,
    attrs: Mapping[str, Any],
    seconds: float,
    as_json: bool,
) -> None:
    with console.status("preparing", spinner="line") as status:
        update: Callable[[str], None] | None = status.update if console.is_terminal and not as_json else None
        benches = bench(op, place, samples, dims, dtype, attrs, seconds, update)
    if as_json:
        print_json([as_data(bench_result) for bench_result in benches])
        return
    for bench_result in benches:
        console.print(
            f"{op} on {bench_result.place}, sample {bench_result.sample}: {in_words(bench_result.call)}", soft_wrap=True
        )
        console.print(kernel_table(bench_result))
        console.print()


def in_words(call: Call) -> str:
    """Describe the inputs of a call: ``X float32 [64, 128], ...``."""
    parts = []
    for slot, specs in call.ins.items():
        specs_text = ", ".join(f"{spec.dtype} {list(spec.dims)}" for spec in specs)
        parts.append(f"{slot} {specs_text}")
    return "; ".join(parts) or "no inputs"


def kernel_table(one: Bench) -> Table:
    """A row for each candidate, in the order of kernel selection."""
    numbers = ("minimum", "median", "GB/s", "GFLOP/s")
    result_table = table("kernel", *numbers, "taken", right=numbers)
    for result in one.results:
        result_table.add_row(*_cells(result))
    return result_table


def _cells(result: Result) -> tuple[str, ...]:
    candidate, timing = result.candidate, result.timing
    name = f"{candidate.how} {candidate.name}".strip()
    decision = "yes" if candidate.is_selected else f"no: {candidate.reason}"
    if timing is None:
        return name, "", "", "", "", f"failed: {result.error}" if result.error else decision
    rate = f"{timing.nbytes / timing.median / 1e9:.2f}"
    flops = f"{timing.flops / timing.median / 1e9:.1f}" if timing.flops else ""
    return name, in_time(timing.minimum), in_time(timing.median), rate, flops, decision


def in_time(seconds: float) -> str:
    """Format a duration with a unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}" if seconds * scale < 1000 else f"{seconds * scale:.0f} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def as_data(one: Bench) -> dict[str, Any]:
    return {
        "place": str(one.place),
        "sample": one.sample,
        "inputs": {slot: [[spec.dtype, list(spec.dims)] for spec in specs] for slot, specs in one.call.ins.items()},
        "kernels": [
            {
                "how": result.candidate.how,
                "kernel": result.candidate.name,
                "taken": result.candidate.is_selected,
                "reason": result.candidate.reason,
                "error": result.error,
                **({} if result.timing is None else _timing_data(result)),
            }
            for result in one.results
        ],
    }


def _timing_data(result: Result) -> dict[str, Any]:
    timing = result.timing
    assert timing is not None
    return {
        "minimum_seconds": timing.minimum,
        "median_seconds": timing.median,
        "runs": len(timing.seconds),
        "bytes": timing.nbytes,
        "flops": timing.flops or None,
    }


def read_attr(text: str) -> tuple[str, Any]:
    """Parse ``axis=1`` to a name and a value: JSON, or else a text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise FluidError(f"--attr {text!r} is not name=value; write it like axis=1")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value
