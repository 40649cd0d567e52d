"""The workloads that other frameworks are measured by, in each of them that is there, in turns.

    python benchmarks/peers [--torch-python PATH] [--jax-python PATH] [--ort-python PATH] [--tinygrad-python PATH]
        [--only LETTER ...] [--places PLACE ...] [--tinygrad-devices DEV ...] [--json FILE]

a: an addition, and a chain of 100; b: gelu(x*w+b); c: a matrix product; d: MLP and e: LeNet, training; f: ResNet-18,
inference; g: a transformer's encoder, inference and training; h: peak memory of a deep network's training. All have
the same numbers, and results and losses are compared before anything is timed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[2])

from benchmarks.common import fix_environment, machine, options, report  # noqa: E402

LIBRARIES = {"torch": "torch", "jax": "jax", "ort": "onnxruntime", "tinygrad": "tinygrad"}
"""By the name of their option."""

CLOCKS = "cpu: seconds of processors, which other processes change little; take --threads 1 then"


def main() -> None:
    """Measure, and print the tables."""
    parser = options(__doc__)
    for option, library in LIBRARIES.items():
        parser.add_argument(f"--{option}-python", metavar="PATH", help=f"a Python that has {library}")
    parser.add_argument("--only", nargs="+", choices="abcdefgh", default=list("abcdefgh"), metavar="LETTER")
    parser.add_argument("--places", nargs="+", metavar="PLACE", default=["cpu"])
    parser.add_argument("--tinygrad-devices", nargs="+", metavar="DEV", default=["CPU"], help="CPU, CL, ...")
    parser.add_argument("--seconds", type=float, default=4.0, help="a workload and contender, about")
    parser.add_argument("--turn", type=float, default=0.1, help="seconds of a turn")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help=CLOCKS)
    parser.add_argument("--small", action="store_true", help="small sizes: to try it")
    arguments = parser.parse_args()
    given = {library: getattr(arguments, f"{option}_python") for option, library in LIBRARIES.items()}
    arguments.pythons = {library: python for library, python in given.items() if python is not None}
    fix_environment(arguments.threads)
    from benchmarks.peers.session import Session, tables
    from benchmarks.peers.workloads import WORKLOADS

    with tempfile.TemporaryDirectory() as folder:
        session = Session(arguments, Path(folder))
        with session.stack:
            for name, work in WORKLOADS.items():
                if work.letter in arguments.only and work.letter != "h":
                    session.measure(name)
        if "h" in arguments.only:
            session.memory()
    tables(session.rows)
    for option, library in LIBRARIES.items():
        if library not in arguments.pythons:
            print(f"left out: {library}; see --{option}-python")
    for failure in session.failures:
        print(f"failed: {failure}")
    versions = {row["contender"].split(",")[0].split()[0]: row["version"] for row in session.rows}
    figures = [
        {k: v for k, v in row.items() if k not in ("times", "file")}
        | ({"median": row["times"].median, "least": row["times"].least} if "times" in row else {})
        for row in session.rows
    ]
    facts = machine(arguments.threads, clock=arguments.clock, **versions)
    report(arguments.json, facts, {"rows": figures, "failures": session.failures})
    if session.failures:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
