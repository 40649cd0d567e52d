"""Operators of another checkout, such as the commit before, against this one's: case by case, in turns.

    python benchmarks/before.py ROOT [--python PATH] [--place PLACE] [--sizes SIZE ...] [--only LABEL ...]
        [--rounds N] [--slow RATIO] [--json FILE]

Each checkout has a process, which runs its own cases of ``benchmarks/operators`` in the interpreter on one thread;
cases that both have are timed by the processor's clock. A ratio above 1: this checkout is faster. What both compute is
not compared here: the tests and ``benchmarks/operators`` do that.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from math import exp, log
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1]
TURN = {"small": 0.01, "middle": 0.02, "large": 0.05}
"""Seconds of processor time of a turn, at least two calls."""


def main() -> None:
    """Measure, and print the rows that became slower, and geometric means."""
    if sys.argv[1] == "--serve":
        serve(Path(sys.argv[2]), sys.argv[3])
        return
    sys.path[0] = str(HERE)
    from benchmarks.common import fix_environment, machine, options, report, show

    parser = options(__doc__)
    parser.add_argument("root", metavar="ROOT", type=Path, help="the other checkout")
    parser.add_argument("--python", metavar="PATH", help="its Python; default: ROOT/.venv's")
    parser.add_argument("--place", default="cpu", metavar="PLACE")
    parser.add_argument("--sizes", nargs="+", choices=tuple(TURN), default=["middle", "large"])
    parser.add_argument("--only", nargs="+", metavar="LABEL", help="some cases, as the tables call them")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slow", type=float, default=0.9, metavar="RATIO", help="show rows below it")
    arguments = parser.parse_args()
    fix_environment(1)
    python = arguments.python or str(arguments.root / ".venv/bin/python")
    pair = {"now": Server(sys.executable, HERE, arguments), "before": Server(python, arguments.root, arguments)}
    rows, failures = [], {}
    for label, gradients in pair["now"].cases.items():
        if label not in pair["before"].cases or (arguments.only and label not in arguments.only):
            continue
        for size in arguments.sizes:
            for gradient in (False, True)[: 1 + (gradients and pair["before"].cases[label])]:
                try:
                    rows.append(measured(pair, label, size, gradient, arguments.rounds))
                except RuntimeError as error:
                    failures[f"{label} | {size} | {gradient}"] = str(error)
    slow = sorted((row for row in rows if row["ratio"] < arguments.slow), key=lambda row: row["ratio"])
    heads = ["operator", "size", "", "now, us", "before, us", "ratio"]
    cells = [[r["label"], r["size"], "gradient" if r["gradient"] else "", r["now"] * 1e6, r["before"] * 1e6, r["ratio"]]
             for r in slow]  # fmt: skip
    show(f"Slower than before on {arguments.place}", heads, [[_text(cell) for cell in row] for row in cells])
    means = {size: geometric([r["ratio"] for r in rows if r["size"] == size]) for size in arguments.sizes}
    means["all"] = geometric([row["ratio"] for row in rows])
    print(f"{len(rows)} rows, geometric means: {', '.join(f'{size} {mean:.3f}' for size, mean in means.items())}")
    for name, reason in failures.items():
        print(f"failed: {name}: {reason}")
    report(arguments.json, machine(1, clock="cpu"), {"rows": rows, "means": means, "failures": failures})


class Server:
    """A process that runs the cases of one checkout."""

    def __init__(self, python: str, root: Path, arguments: argparse.Namespace) -> None:
        command = [python, __file__, "--serve", str(root.resolve()), arguments.place]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.cases: dict[str, bool] = self._read()

    def ask(self, *question: Any) -> Any:
        """Send a question, and return the answer; RuntimeError with what went wrong."""
        assert self._process.stdin is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        answer = self._read()
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["seconds"]

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line else {"error": "the process ended"}


def measured(pair: dict[str, Server], label: str, size: str, gradient: bool, rounds: int) -> dict[str, Any]:
    """Time a case in both checkouts; who goes first alternates."""
    for server in pair.values():
        server.ask("load", label, size, gradient)
    times: dict[str, list[float]] = {name: [] for name in pair}
    for number in range(rounds):
        for name in list(pair) if number % 2 else reversed(list(pair)):
            times[name].append(pair[name].ask("turn", size))
    now, before = (min(times[name]) for name in ("now", "before"))
    return {"label": label, "size": size, "gradient": gradient, "now": now, "before": before, "ratio": before / now}


def serve(root: Path, place: str) -> None:
    """Answer questions on standard input about the cases of a checkout."""
    sys.path[0] = str(root)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is printed on the way is no answer
    from benchmarks.operators.__main__ import REPEAT
    from benchmarks.operators.families import FAMILIES, cases
    from benchmarks.operators.on_place import OnPlace

    known = {case.label: case for case in cases(FAMILIES)}
    print(json.dumps({label: bool(case.grads) for label, case in known.items()}), file=out, flush=True)
    loaded: Any = None
    for line in sys.stdin:
        verb, *rest = json.loads(line)
        answer: dict[str, Any] = {"seconds": 0.0}
        try:
            if verb == "load":
                label, size, gradient = rest
                loaded = None
                gc.collect()
                loaded = OnPlace(known[label], size, place, gradient, REPEAT[size])
                loaded.run()
            else:
                answer["seconds"] = least(loaded, TURN[rest[0]]) / REPEAT[rest[0]]
        except Exception as error:  # one operator must not end the table
            answer = {"error": f"{root.name}: {type(error).__name__}: {str(error).splitlines()[0]}"}
        print(json.dumps(answer), file=out, flush=True)


def least(case: Any, seconds: float) -> float:
    """The least seconds of a run of a case, by the processor's clock."""
    found: list[float] = []
    while len(found) < 2 or (sum(found) < seconds and len(found) < 50):
        start = time.process_time()
        case.run()
        found.append(time.process_time() - start)
    return min(found)


def geometric(ratios: list[float]) -> float:
    """The geometric mean; 1 of none."""
    return exp(sum(map(log, ratios)) / len(ratios)) if ratios else 1.0


def _text(cell: Any) -> str:
    return f"{cell:.3g}" if isinstance(cell, float) else str(cell)


if __name__ == "__main__":
    main()
