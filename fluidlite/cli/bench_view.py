"""The kernels of an operator side by side, on the terminal and as data."""

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
        found = bench(op, place, samples, dims, dtype, attrs, seconds, update)
    if as_json:
        print_json([as_data(one) for one in found])
        return
    for one in found:
        console.print(f"{op} on {one.place}, sample {one.sample}: {in_words(one.call)}", soft_wrap=True)
        console.print(kernel_table(one))
        console.print()


def in_words(call: Call) -> str:
    """The inputs of a call: ``X float32 [64, 128], ...``."""
    parts = []
    for slot, specs in call.ins.items():
        shown = ", ".join(f"{spec.dtype} {list(spec.dims)}" for spec in specs)
        parts.append(f"{slot} {shown}")
    return "; ".join(parts) or "no inputs"


def kernel_table(one: Bench) -> Table:
    """A row for each candidate, in the order in which the selection asks."""
    numbers = ("minimum", "median", "GB/s", "GFLOP/s")
    made = table("kernel", *numbers, "taken", right=numbers)
    for result in one.results:
        made.add_row(*_cells(result))
    return made


def _cells(result: Result) -> tuple[str, ...]:
    candidate, timing = result.candidate, result.timing
    name = f"{candidate.how} {candidate.name}".strip()
    said = "yes" if candidate.taken else f"no: {candidate.reason}"
    if timing is None:
        return name, "", "", "", "", f"failed: {result.error}" if result.error else said
    rate = f"{timing.nbytes / timing.median / 1e9:.2f}"
    flops = f"{timing.flops / timing.median / 1e9:.1f}" if timing.flops else ""
    return name, in_time(timing.minimum), in_time(timing.median), rate, flops, said


def in_time(seconds: float) -> str:
    """A duration for people."""
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
                "taken": result.candidate.taken,
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
    """``axis=1`` as a name and a value: JSON, or else a text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise FluidError(f"--attr {text!r} is not name=value; write it like axis=1")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value
