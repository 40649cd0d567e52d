"""Reductions by work-items that go through a row together, and by items alone, on places whose language names groups.

Both compute the same operators, but for the schedule of their kernels; they alternate, and the place is waited for.
"""

from __future__ import annotations

from typing import Any

from common import fix_environment, in_turns, machine, options, report, show

FAMILIES = ["reduce", "norm", "softmax"]
REPEAT = 20
"""So many operators stand in a program: a run's own cost counts little then."""


def main() -> None:
    """Measure, and print the table."""
    parser = options(__doc__)
    parser.add_argument("--places", nargs="+", metavar="PLACE", help="default: all whose language names a group")
    parser.add_argument("--sizes", nargs="+", choices=("small", "middle", "large"), default=["middle", "large"])
    parser.add_argument("--only", nargs="+", metavar="LABEL", help="some cases, as the tables of operators call them")
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    fix_environment(arguments.threads)
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).parents[1]))
    import fluidlite as fluid
    from benchmarks.operators.families import cases
    from fluidlite.platform.device_registry import devices
    from fluidlite.platform.kernel_language import runs_side_by_side

    named = [p for p in fluid.places() if runs_side_by_side(devices.unit(p).language)]
    places = [fluid.Place.parse(name) for name in arguments.places] if arguments.places else named
    rows: list[list[Any]] = []
    for place in places:
        for case in [each for each in cases(FAMILIES) if not arguments.only or each.label in arguments.only]:
            for size in arguments.sizes:
                for gradient in (False, True)[: 1 + bool(case.grads)]:
                    rows += measured(case, size, place, gradient, arguments.rounds)
    rows.sort(key=lambda row: -row[-1])
    show("Groups of work-items, and items alone", ["operator", "size", "", "place", "together, us", "alone, us",
         "alone / together"], rows)  # fmt: skip
    report(arguments.json, machine(arguments.threads), {"rows": rows})


def measured(case: Any, size: str, place: Any, gradient: bool, rounds: int) -> list[list[Any]]:
    """The row of a case. Each schedule has a context, whose kernels are its own."""
    from benchmarks.operators.on_place import OnPlace
    from fluidlite.platform.context_pool import new_context, using
    from fluidlite.platform.device_registry import devices

    language: Any = type(devices.unit(place).language)
    group, runs = language.group, {}
    try:
        for name, one in (("together", group), ("alone", None)):
            language.group = one
            context = new_context(place)
            with using(context):
                there = OnPlace(case, size, place, gradient, REPEAT)
                there.run()

            def run(context: Any = context, there: Any = there) -> None:
                with using(context):
                    there.run()

            runs[name] = run
    finally:
        language.group = group
    times = in_turns(runs, rounds, 1)
    together, alone = (times[name].least / REPEAT * 1e6 for name in ("together", "alone"))
    return [[case.label, size, "gradient" if gradient else "", str(place), together, alone, alone / together]]


if __name__ == "__main__":
    main()
