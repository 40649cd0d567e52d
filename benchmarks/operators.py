"""Operators with large inputs on each place, against what one would write with NumPy.

    python benchmarks/operators.py [--only TYPE ...] [--places PLACE ...] [--json FILE]

The inputs lie on the place before anything is timed, and results stay there: no copies are measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from common import Times, fix_environment, in_turns, machine, options, report, show

REPEAT = 4
"""The operator stands so often in the program that is run, with outputs of its own: the run's own cost then counts
little, and results do not fall into memory that is still in the cache."""


def on_place(case: Any, place: Any) -> tuple[Callable[[], None], Callable[[], Any]]:
    """Return a call that runs the operator ``REPEAT`` times on a place, and one that reads its first output."""
    import fluidlite as fluid
    from fluidlite.base.dtypes import dtype_name
    from fluidlite.platform.pool import get_context

    program, scope = fluid.Program(), fluid.Scope()
    block = program.global_block()
    inputs: dict[str, list[Any]] = {}
    for slot, value in case.inputs.items():
        inputs[slot] = []
        for i, array in enumerate(value if isinstance(value, list) else [value]):
            name = f"{slot}.{i}"
            inputs[slot].append(block.create_var(name, array.shape, dtype_name(array.dtype), persistable=True))
            scope.var(name).get_tensor().set(array, place)
    for number in range(REPEAT):
        outputs = {
            slot: inputs[case.updates[slot]]
            if slot in case.updates
            else [block.create_var(f"{slot}.out{number}", persistable=True)]
            for slot in case.outputs
        }
        block.append_op(case.type, inputs, outputs, dict(case.attrs))
    executor, context = fluid.Executor(place, fallback="error"), get_context(place)
    first = scope.var(outputs[case.outputs[0]][0].name)

    def run() -> None:
        executor.run(program, scope=scope)
        context.wait()

    return run, lambda: first.get_tensor().numpy()


def with_numpy(case: Any, dims: tuple[int, ...], dtype: Any) -> tuple[Callable[[], None], Callable[[], Any]]:
    """Return the same of NumPy."""
    import numpy as np

    arrays = [
        array.copy() for value in case.inputs.values() for array in (value if isinstance(value, list) else [value])
    ]
    outs = [np.empty(dims, dtype) for _ in range(REPEAT)]
    last: list[Any] = [None]

    def run() -> None:
        for out in outs:
            last[0] = case.numpy(*arrays, out)

    return run, lambda: last[0]


def measure(case: Any, places: list[Any], rounds: int) -> dict[str, Times]:
    """Check that all compute the same, and time them in turns."""
    import numpy as np

    contenders: dict[str, Callable[[], None]] = {}
    results: dict[str, Any] = {}
    for place in places:
        run, read = on_place(case, place)
        run()
        results[str(place)], contenders[str(place)] = np.array(read()), run
    given = next(iter(results.values()))
    run, read = with_numpy(case, given.shape, given.dtype)
    run()
    for name, result in results.items():
        np.testing.assert_allclose(result, read(), 2e-3, 2e-3, err_msg=f"{case.label} on {name}")
    return {name: times / REPEAT for name, times in in_turns({"numpy": run, **contenders}, rounds).items()}


def main() -> None:
    """Print the table."""
    parser = options(__doc__)
    parser.add_argument("--only", nargs="+", metavar="TYPE", default=[])
    parser.add_argument("--places", nargs="+", metavar="PLACE")
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    fix_environment(arguments.threads)
    from operator_cases import cases

    import fluidlite as fluid

    known = [place for place in fluid.places() if place.kind in ("cpu", "opencl", "cuda")]
    places = [fluid.Place.parse(name) for name in arguments.places] if arguments.places else known
    rows: list[list[Any]] = []
    figures: dict[str, Any] = {}
    for case in cases():
        if arguments.only and case.type not in arguments.only:
            continue
        times = measure(case, places, arguments.rounds)
        base = times.pop("numpy")
        row: list[Any] = [case.label, base.median * 1e6]
        for time in times.values():
            row += [time.median * 1e6, time.median / base.median, time.least / base.least]
        rows.append(row)
        figures[case.label] = {
            name: {"median_us": time.median * 1e6, "least_us": time.least * 1e6}
            for name, time in {"numpy": base, **times}.items()
        }
    heads = ["operator", "NumPy, us"]
    for place in places:
        heads += [f"{place}, us", "ratio", "of minima"]
    show(f"Operators against NumPy, float32, {arguments.rounds} rounds; a ratio below 1 is faster", heads, rows)
    report(arguments.json, machine(arguments.threads), figures)


if __name__ == "__main__":
    main()
