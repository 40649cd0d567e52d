"""Breaks a hand-written kernel's text and runs its operator's checks: ``language_mutant.py operator place point``.

The unit tests of its kernels are run too: they look at the bytes beside each buffer.

A process of its own, for a broken index may take it down. Exit status 4: caught; 0: no check failed; 3: nothing to
break; any other above 0: an error of this file. The changed line is printed first.
"""

from __future__ import annotations

import importlib.util
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from grouped import Group, Member
from operator_checks import pairwise

from fluidlite.devices.opencl import OpenCLDevice
from fluidlite.platform.context import Context
from fluidlite.testing import checks

SWAPS = {
    " + ": " - ", " - ": " + ", " += ": " -= ", " < ": " <= ", " <= ": " < ", " > ": " < ", " == ": " != ",
    " != ": " == ", " && ": " || ", " || ": " && ", " ? ": " ? !", " / ": " * ", " = 0;": " = 1;", "1.0": "1.5",
}  # fmt: skip
TOKEN = re.compile("|".join(map(re.escape, SWAPS)))

EQUIVALENT = {
    r"j \+ \w+ <=? n|j = j": "whole lanes or single elements: the rest of the loop does what is left",
    r"for \(int v = 0": "more lanes than there are, or one fewer, would only be felt in memory that is there",
    r"next = |here = ": "a coordinate that is not used by a dim of size 1",
    r"run - from <=? 4096": "a long run is copied in pieces, and an empty piece copies nothing",
    r" \? i \+ \d+ : m - 1| < m \? i": "rows beyond a matrix are computed from its last one, and thrown away",
    r"bad_index": "what an index out of range leaves behind has its own tests",
}
"""Lines that are not broken, with the reason: such mutants need not change any value."""


def broken(source: str, each: str, point: float) -> tuple[str, str]:
    """Return the source with one token of the kernel's body swapped, and the changed line."""
    start = source.rfind(each) + len(each)
    found = []
    for match in TOKEN.finditer(source, start):
        line = source[source.rfind("\n", 0, match.start()) + 1 : source.find("\n", match.end())]
        if not any(re.search(pattern, line) for pattern in EQUIVALENT):
            found.append(match)
    if not found:
        return source, ""
    match = found[int(point * len(found))]
    changed = source[: match.start()] + SWAPS[match.group()] + source[match.end() :]
    begin = changed.rfind("\n", 0, match.start()) + 1
    return changed, changed[begin : changed.find("\n", match.end())].strip()


CAUGHT = 4
UNIT = Path(__file__).parent.parent / "unit" / "test_language_kernels.py"


def unit_checks(operator: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """The unit tests of an operator's samples, on a device with borders around each buffer."""
    spec = importlib.util.spec_from_file_location("test_language_kernels", UNIT)
    assert spec is not None
    assert spec.loader is not None
    unit: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(unit)
    device = OpenCLDevice()
    device.probe()
    machine = unit.Machine(device, device.context(0, 0), device.language(0))
    group = Group([Member(operator, {"type": operator})])
    if operator in unit.FORWARD:
        yield "values", partial(unit.test_values_are_the_references, members=group, machine=machine)
    if operator in unit.DIFFERENTIABLE:
        yield "gradients", partial(unit.test_gradients_are_the_references_slopes, members=group, machine=machine)
    if operator == "sampling_id":  # whose samples have one class that can be drawn
        yield "draws", partial(unit.test_sampling_id_draws_the_numbers_of_the_definition, machine)


def main(operator: str, place: str, point: float) -> int:
    """Break, run, and tell."""
    lines: set[str] = set()
    compile_ = Context.compile

    def compile(self: Context, source: str, entry: str, parameters: tuple[str, ...]) -> Any:
        if not entry.startswith("fl_"):  # those are generated of expressions, which are broken elsewhere
            source, line = broken(source, self.language.keywords["each"], point)
            if line and line not in lines:
                lines.add(line)
                print(line, flush=True)
        return compile_(self, source, entry, parameters)

    Context.compile = compile  # type: ignore[method-assign]
    kit: Iterator[tuple[str, Callable[[], None]]] = (
        (check.id, partial(check, place)) for check in pairwise(checks([operator]))
    )
    for name, check in itertools.chain(kit, unit_checks(operator)):
        try:
            check()
        except pytest.skip.Exception:
            continue
        except Exception as exc:
            print(f"{name}: {type(exc).__name__}", flush=True)
            return CAUGHT
    return 0 if lines else 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
