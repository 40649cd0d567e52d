"""The checks of a place by id: of the device, of random numbers, and of each operator's samples and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from fluidlite.base.errors import FluidError
from fluidlite.conformance.cases import cases
from fluidlite.conformance.check import check_sample, check_sample_gradients
from fluidlite.conformance.device_checks import device_checks
from fluidlite.conformance.random_bits import random_checks
from fluidlite.platform.place import Place, PlaceLike


@dataclass(frozen=True)
class Check:
    """A named check; call it with a place.

    Attributes
    ----------
    id : str
        ``device[copy_within]``, ``relu[rank4:float64]``, or ``relu.grad[rank4:float64]``.
    run : callable
        Takes a Place.
    """

    id: str
    run: Callable[[Place], None]

    def __call__(self, place: PlaceLike) -> None:
        self.run(Place.parse(place))

    @property
    def operator(self) -> str:
        """The operator that it checks, or ``device`` or ``random``."""
        return self.id.partition("[")[0].removesuffix(".grad")

    def names(self) -> tuple[str, ...]:
        """The names by which a line of known failures may refer to this check, from exact to broad."""
        operator, _, rest = self.id.partition("[")
        broad = (f"{operator}[{rest.rpartition(':')[0]}]", operator) if ":" in rest else (operator,)
        return (self.id, *broad)


def checks(operators: Iterable[str] | None = None) -> list[Check]:
    """All checks: of the device, of random numbers, then of each operator's samples and gradients."""
    extra = {**device_checks(), **random_checks()} if operators is None else {}
    selected = [Check(name, check) for name, check in extra.items()]
    for case in cases(operators):
        selected.append(Check(case.id, partial(check_sample, case)))
        if case.sample.grads:
            selected.append(
                Check(f"{case.op.type}.grad[{case.label}:{case.dtype}]", partial(check_sample_gradients, case))
            )
    return selected


def read_known_failures(text: str) -> dict[str, str]:
    """Read known failures: a line each, ``op[sample]: reason``; ``#`` starts a comment.

    ``op[sample:dtype]`` means one check, ``op[sample]`` all dtypes, ``op`` all of an operator's values
    (``op.grad`` its gradients).

    Raises
    ------
    FluidError
        A line has no reason.
    """
    reasons: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        name, colon, reason = line.partition("]:") if "[" in line else line.partition(":")
        if not colon or not reason.strip():
            raise FluidError(f"known failures, line {number}: {line!r} has no reason; write `op[sample]: reason`")
        reasons[name.strip() + ("]" if "[" in line else "")] = reason.strip()
    return reasons
