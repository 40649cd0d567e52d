"""What an iteration of a While costs: 10,000 of a counter and an addition on the cpu, beside calls of the same body.

python benchmarks/control_flow.py [--json FILE]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from common import fix_environment, in_turns, machine, options, report, show

STEPS = 10_000
ROUNDS = 15
LIMIT_MS = 50


def loop(mode: str) -> Callable[[], Any]:
    """A call of a program with the loop."""
    import fluidlite as fluid
    from fluidlite import layers

    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        n, i = layers.fill_constant([1], "int64", STEPS), layers.fill_constant([1], "int64", 0)
        total, one = layers.fill_constant([1], "float32", 0.0), layers.fill_constant([1], "float32", 1.0)
        more = layers.less_than(i, n)
        with layers.While(more, max_iterations=STEPS).block():
            layers.assign(total + one, output=total)
            layers.increment(i)
            layers.less_than(i, n, cond=more)
    executor, scope = fluid.Executor("cpu", mode=mode), fluid.Scope()

    def call() -> Any:
        (found,) = executor.run(program, fetch_list=[total], scope=scope)
        if float(found[0]) != STEPS:
            raise RuntimeError(f"the loop gave {found}")

    return call


def calls() -> Callable[[], Any]:
    """As many calls of a compiled program that does what one iteration does."""
    import fluidlite as fluid
    from fluidlite import layers

    program, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(program, startup):
        i, n = (layers.create_global_var([1], value, "int64", persistable=True) for value in (0, 10**9))
        total = layers.create_global_var([1], 0.0, "float32", persistable=True)
        one = layers.create_global_var([1], 1.0, "float32", persistable=True)
        layers.assign(total + one, output=total)
        layers.increment(i)
        more = layers.less_than(i, n)
    executor, scope = fluid.Executor("cpu"), fluid.Scope()
    executor.run(startup, scope=scope)

    def call() -> None:
        for _ in range(STEPS):
            (found,) = executor.run(program, None, [more], scope=scope)
            bool(found)

    return call


def main() -> None:
    """Measure, and print a table."""
    parser = options(__doc__)
    arguments = parser.parse_args()
    fix_environment(arguments.threads)
    contenders = {
        "While, compiled": loop("compiled"),
        "as many calls of a compiled program": calls(),
        "While, interpreted": loop("interpreted"),
    }
    times = in_turns(contenders, ROUNDS, clock=time.process_time)
    base = times["While, compiled"].least
    rows = [
        [name, f"{1e3 * each.median:.1f}", f"{1e3 * each.least:.1f}", f"{1e6 * each.least / STEPS:.2f}",
         f"{each.least / base:.2f}"]
        for name, each in times.items()
    ]  # fmt: skip
    show(f"{STEPS:,} iterations of a counter and an addition; under {LIMIT_MS} ms is asked",
         ["contender", "ms, median", "ms, least", "us an iteration", "to While, compiled"], rows)  # fmt: skip
    report(arguments.json, machine(arguments.threads), {name: each.seconds for name, each in times.items()})


if __name__ == "__main__":
    main()
