"""Hand-written kernels of the kernel language against the loops that an operator's expression becomes, side by side.

    python benchmarks/hand_written.py [--only TYPE ...] [--sizes SIZE ...] [--places PLACE ...] [--rounds N]

A kernel stays where it takes at most 1 / 1.1 of the loops' time on a row of this table: docs/hand_written_kernels.md
lists those that do. Both compute on the same tensors, in turns, and the results are compared before anything is timed.
Times are seconds of processors with one thread, so that what else runs on the machine changes little.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).parents[1])

from benchmarks.common import fix_environment, machine, options, report, show  # noqa: E402

TURN = 0.01
"""Seconds a turn, at least."""
TOLERANCE = 2e-3


def compared(types: frozenset[str]) -> frozenset[str]:
    """The operators among those that have both a hand-written kernel and loops."""
    from fluidlite.program.kernel_registry import kernels
    from fluidlite.program.registry import ops

    return frozenset(
        type for type in types
        if type in ops and ops.get(type).expression is not None
        and any("language" in kernel.places for kernel in kernels.of(type))
    )  # fmt: skip


def calls(
    case: Any, size: str, place: Any, gradient: bool, wanted: frozenset[str]
) -> Iterator[tuple[Any, list[Any]]]:  # fmt: skip
    """The calls of the operators that are wanted in a case's program, each with the tensors that it reads."""
    from benchmarks.operators.on_place import OnPlace
    from fluidlite.program.op_call import Call

    one = OnPlace(case, size, place, gradient)
    one.run()

    def tensor(name: str) -> Any:
        return one.scope.var(name).get_tensor()

    def spec(name: str) -> Any:
        found = tensor(name)
        return found.spec if found.spec is not None else one.block.var(name)._spec()

    for op in one.block.ops:
        if op.type not in wanted:
            continue
        ins = {slot: tuple(spec(name) for name in names) for slot, names in op.inputs.items() if names}
        for declared in op.definition.inputs:
            if declared.value and declared.name in ins:
                values = [tuple(tensor(name).numpy().reshape(-1).tolist()) for name in op.inputs[declared.name]]
                ins[declared.name] = tuple(s.with_(value=v) for s, v in zip(ins[declared.name], values, strict=True))
        outs = {slot: tuple(spec(name) for name in names) for slot, names in op.outputs.items() if names}
        inputs = [tensor(name) for slot in ins for name in op.inputs[slot]]
        yield Call(op.definition, ins, outs, op.attrs, None, gradient).at(one.place), inputs


def contenders(call: Any, inputs: list[Any], context: Any) -> dict[str, Callable[[], Any]]:
    """What runs the hand-written kernel, and the loops; none if one of them cannot."""
    from fluidlite.cli.bench import _launcher
    from fluidlite.compiler.selection.choice import Choice
    from fluidlite.compiler.selection.refusals import kernel_refusal
    from fluidlite.platform.device_registry import devices
    from fluidlite.program.codegen_registry import generators
    from fluidlite.program.kernel_registry import kernels
    from fluidlite.tensor.tensor import Tensor

    unit = devices.unit(context.place)
    kernel = next(
        (k for k in kernels.of(call.op.type) if "language" in k.places and kernel_refusal(k, call, unit) is None), None
    )
    if kernel is None or generators["language"].refuse(call, unit) is not None:
        return {}
    found: dict[str, Callable[[], Any]] = {}
    results = []
    for name, choice in (
        ("hand", Choice("generic", unit.place, kernel.library, kernel, "language")),
        ("loops", Choice("generated", unit.place, "language", None, "language")),
    ):
        outputs = [Tensor.of(spec, context.place) for specs in call.outs.values() for spec in specs]
        found[name] = _launcher(choice, call, [*inputs, *outputs], outputs, context)
        found[name]()
        context.wait()
        results.append([output.numpy().copy() for output in outputs])
    _check(call, *results)
    return found


def _check(call: Any, hand: list[Any], loops: list[Any]) -> None:
    import numpy as np

    for a, b in zip(hand, loops, strict=True):
        scale = max(float(np.max(np.abs(a), initial=0)), 1e-6)
        if not np.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE * scale, equal_nan=True):
            print(f"DIFFERENT {call.op.type}: {np.max(np.abs(a - b))} of {scale}", file=sys.stderr)


def least(found: dict[str, Callable[[], Any]], context: Any, rounds: int) -> dict[str, float]:
    """The least seconds of processors a call, of some turns of each."""
    times = dict.fromkeys(found, float("inf"))
    repeats = dict.fromkeys(found, 1)
    for number in range(rounds + 1):
        for name, step in found.items():
            start = time.process_time()
            for _ in range(repeats[name]):
                step()
            context.wait()
            taken = time.process_time() - start
            if number:
                times[name] = min(times[name], taken / repeats[name])
            else:
                repeats[name] = max(1, round(repeats[name] * TURN / max(taken, 1e-5)))
    return times


def main() -> None:
    """Measure, and print the table."""
    parser = options(__doc__)
    parser.add_argument("--only", nargs="+", metavar="TYPE", default=[])
    parser.add_argument("--sizes", nargs="+", default=["middle", "large"])
    parser.add_argument("--places", nargs="+", default=["cpu", "opencl:0"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.set_defaults(threads=1)
    arguments = parser.parse_args()
    fix_environment(arguments.threads)
    from benchmarks.operators.families import cases
    from fluidlite.platform.context_pool import get_context
    from fluidlite.platform.device_registry import devices
    from fluidlite.platform.place import Place

    devices.places()  # plugins register kernels
    rows: list[list[Any]] = []
    for case in cases():
        for gradient in (False, True)[: 1 + bool(case.grads)]:
            names = [case.type] if not gradient else [f"{case.type}_grad", case.type.removesuffix("2") + "_grad2"]
            wanted = compared(frozenset(names) & frozenset(arguments.only or names))
            if not wanted:
                continue
            for size in arguments.sizes:
                for name in arguments.places:
                    place = Place.parse(name)
                    context = get_context(place)
                    try:
                        for call, inputs in calls(case, size, place, gradient, wanted):
                            with context.activate():
                                found = contenders(call, inputs, context)
                                times = least(found, context, arguments.rounds) if found else {}
                            if times:
                                row = [call.op.type, case.name, size, name, times["hand"] * 1e6, times["loops"] * 1e6,
                                       times["hand"] / times["loops"]]  # fmt: skip
                                rows.append(row)
                                print(" | ".join(f"{c:.3g}" if isinstance(c, float) else c for c in row),
                                      file=sys.stderr, flush=True)  # fmt: skip
                    except Exception as error:  # one operator must not end the table
                        print(f"FAILED {case.label} {size} {name}: {type(error).__name__}: {error}", file=sys.stderr,
                              flush=True)  # fmt: skip
    heads = ["operator", "case", "size", "place", "hand-written us", "loops us", "hand-written / loops"]
    show("Hand-written kernels against loops", heads, rows)
    report(arguments.json, machine(arguments.threads, clock="cpu"), {"rows": rows})


if __name__ == "__main__":
    main()
