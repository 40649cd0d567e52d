"""Every operator and gradient operator, at small, middle and large sizes, on each place, against NumPy and PyTorch.

    python benchmarks/operators [--torch-python PATH] [--only TYPE ...] [--sizes SIZE ...] [--places PLACE ...]
        [--rounds N] [--seconds S] [--json FILE] [--write-docs FILE]

The inputs lie on the place before anything is timed, and results stay there: no copies are measured. PyTorch runs
eagerly in a process of its own, with the same numbers.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).parents[2])

from benchmarks.common import Times, fix_environment, machine, options, report, show  # noqa: E402

PAUSE = 0.02
"""Seconds after PyTorch's turn: idle OpenMP threads spin for a while before they sleep."""

REPEAT = {"small": 32, "middle": 8, "large": 1}
"""The operator stands so often in the program that is run; the others are called so often."""

CLOCKS = "cpu: seconds of processors, which other processes change little; take --threads 1 then"


class Table:
    """Measures cases, and keeps the figures."""

    def __init__(self, arguments: argparse.Namespace, places: list[Any], peer: Any) -> None:
        self.arguments, self.places, self.peer = arguments, places, peer
        self.figures: dict[str, dict[str, Any]] = {}
        self.failures: dict[str, str] = {}

    def measure(self, case: Any, size: str, gradient: bool) -> None:
        """Check that all contenders compute the same, time them in turns, and measure what the places allocate."""
        from benchmarks.operators.checking import compare
        from benchmarks.operators.contenders import InNumPy, timed
        from benchmarks.operators.on_place import OnPlace

        repeat, clock = REPEAT[size], self.arguments.clock
        contenders: dict[str, Any] = {}
        memory: dict[str, tuple[int, int]] = {}
        first: list[Any] = []
        for place in self.places:
            one = OnPlace(case, size, place, gradient)
            memory[place.kind] = one.allocates()
            results = one.read()
            if first:
                compare(f"{place} against {self.places[0]}", results, first, case)
            else:
                first = [result.copy() for result in results]
                types = one.types
            contenders[place.kind] = OnPlace(case, size, place, gradient, repeat) if repeat > 1 else one
        if case.numpy is not None and not gradient:
            contenders["numpy"] = InNumPy(case, size)
            contenders["numpy"].run()
            compare("cpu against NumPy", first, contenders["numpy"].read(), case)
        notes = ""
        if self.peer is not None and case.torch is not None:
            answer = self.peer.load(case.label, size, gradient)
            if isinstance(answer, str):
                notes = f"PyTorch: {answer.splitlines()[0]}"
            else:
                compare("cpu against PyTorch", first, answer, case)
                contenders["torch"] = None
                notes = "view" if self.peer.views else ""
        times = {name: Times() for name in contenders}
        ends = time.perf_counter() + self.arguments.seconds
        for number in range(self.arguments.rounds + 1):
            for name, contender in contenders.items():
                if name == "torch":
                    seconds = self.peer.turn(repeat, clock)
                    time.sleep(PAUSE)
                elif name == "numpy":
                    seconds = timed(contender, repeat, clock)
                else:
                    seconds = timed(contender, 1, clock) / repeat
                if number:
                    times[name].seconds.append(seconds)
            if number >= 2 and time.perf_counter() > ends:
                break
        own = next((each for each in types if each in (f"{case.type}_grad", f"{case.type}_grad2")), None)
        label = f"{own if gradient else case.type} {case.name}".strip()
        if gradient and own is None:
            label = f"{types[0]}, the gradient of {case.label}"
        first_input = next(iter(case.inputs(size).values()), None)
        shown = first_input[0] if isinstance(first_input, list) else first_input
        self.figures[f"{label} | {size}"] = {
            "operator": label, "types": list(types), "size": size, "notes": notes,
            "dims": list(shown.shape if shown is not None else first[0].shape),
            "us": {name: [taken.median * 1e6, taken.least * 1e6] for name, taken in times.items()},
            "memory": {kind: list(pair) for kind, pair in memory.items()},
        }  # fmt: skip
        self._progress(self.figures[f"{label} | {size}"])

    def attempt(self, case: Any, size: str, gradient: bool) -> None:
        """Measure; note what fails, and go on."""
        try:
            self.measure(case, size, gradient)
        except Exception as error:  # one operator must not end the table
            name = f"{case.label}{' (gradient)' if gradient else ''} | {size}"
            self.failures[name] = f"{type(error).__name__}: {error}".splitlines()[0]
            print(f"FAILED {name}: {self.failures[name]}", file=sys.stderr, flush=True)
            if self.arguments.trace:
                traceback.print_exc()

    def _progress(self, figure: dict[str, Any]) -> None:
        from benchmarks.operators.tables import row

        print(" | ".join(str(cell) for cell in row(figure, self.arguments.median)), file=sys.stderr, flush=True)


def main() -> None:
    """Measure, and print the tables."""
    parser = options(__doc__)
    parser.add_argument("--only", nargs="+", metavar="TYPE", default=[], help="operators, or families")
    parser.add_argument("--sizes", nargs="+", choices=tuple(REPEAT), default=tuple(REPEAT))
    parser.add_argument("--places", nargs="+", metavar="PLACE")
    parser.add_argument("--torch-python", metavar="PATH", help="a Python that has PyTorch")
    parser.add_argument("--rounds", type=int, default=12, help="at most so many turns")
    parser.add_argument("--seconds", type=float, default=1.0, help="stop after so long, not before two turns")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help=CLOCKS)
    parser.add_argument("--median", action="store_true", help="ratios of medians; default: of minima")
    parser.add_argument("--forward", action="store_true", help="no gradients")
    parser.add_argument("--trace", action="store_true", help="show where a case failed")
    parser.add_argument("--join", nargs="+", metavar="FILE", type=Path, help="measure nothing: show what --json wrote")
    parser.add_argument("--write-docs", metavar="FILE", type=Path, help="write the tables between the file's markers")
    arguments = parser.parse_args()
    fix_environment(arguments.threads)
    import fluidlite as fluid
    from benchmarks.operators.families import FAMILIES, cases
    from benchmarks.operators.tables import joined, tables, write
    from benchmarks.operators.torch_peer import Peer

    if arguments.join:
        figures, facts = joined(arguments.join)
        for title, heads, rows in tables(figures, arguments.median):
            show(title, heads, rows)
        if arguments.write_docs:
            write(arguments.write_docs, figures, facts, arguments.median)
        return
    known = [place for place in fluid.places() if place.kind in ("cpu", "opencl", "cuda")]
    places = [fluid.Place.parse(name) for name in arguments.places] if arguments.places else known
    chosen = [family for family in FAMILIES if family in arguments.only]
    wanted = set(arguments.only) - set(chosen)
    with tempfile.TemporaryDirectory() as folder:
        peer = Peer(arguments.torch_python, arguments.threads, Path(folder)) if arguments.torch_python else None
        table = Table(arguments, places, peer)
        for case in cases(chosen if arguments.only and not wanted else FAMILIES):
            if wanted and case.type not in wanted:
                continue
            for size in arguments.sizes:
                table.attempt(case, size, False)
                if case.grads and not arguments.forward:
                    table.attempt(case, size, True)
        if peer is not None:
            peer.close()
    facts = machine(arguments.threads, clock=arguments.clock, **({"torch": peer.version} if peer else {}))
    for title, heads, rows in tables(table.figures, arguments.median):
        show(title, heads, rows)
    for name, reason in table.failures.items():
        print(f"failed: {name}: {reason}")
    report(arguments.json, facts, {"cases": table.figures, "failures": table.failures})
    if arguments.write_docs:
        write(arguments.write_docs, table.figures, facts, arguments.median)


if __name__ == "__main__":
    main()
