"""The checks of all operators as a few test cases: one an operator, that runs all of its checks and names all failures.

A case for each check would be 20,000 cases on three places, of which collection alone takes longer than their runs.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

import pytest
from grouped import family, raise_all, wanted

import fluidlite as fluid
from fluidlite.conformance.check import check_sample_gradients
from fluidlite.conformance.op_harness import MODES
from fluidlite.program.kernel_registry import CAPABILITIES, kernels
from fluidlite.testing import Case, Check, check_sample, checks


def parsed(check: Check) -> tuple[str, str, str]:
    """What a check checks (an operator, or its gradient), on which sample, and in which dtype; "" where it has none."""
    subject, _, rest = check.id.partition("[")
    label, _, dtype = rest.removesuffix("]").rpartition(":")
    return subject, label, dtype


def case_of(check: Check) -> Case | None:
    """The case of a sample's check, or of that of its gradients; None of a check of a device or of random numbers."""
    return CASES.get(check.id.replace(".grad[", "[", 1))


def pairwise(found: Iterable[Check], kinds: Iterable[str] = CAPABILITIES) -> list[Check]:
    """Fewer checks, for places beside the cpu; all are run on the cpu, and by ``fluidlite certify``.

    ``kinds`` are the kinds and capabilities whose kernels the place takes: what somebody wrote for others is not run.

    - Each sample is run in float32 (or in its first dtype), and each other dtype in the first sample that has it.
      What depends on a sample's dims and attributes does not depend on its dtype, and the other way round: kernels are
      chosen and printed by each of the two alone. Of generated operators of one module, one in turn is run in each
      other dtype: how a primitive is printed in a dtype is the primitives' tests'.
    - A sample that generated operators of one module have in common (its name, dims, LoD and attributes) is run with
      one of them in turn, and with those whose first it is. Nobody wrote a kernel for such an operator: one generator
      prints its function, which it knows by primitives, for the dims that are given.
    - The first sample of an operator, and of its gradient, is run in both modes; those that follow in one mode in
      turn. What a mode does is no sample's.
    - Gradients are made alone, and from those of intermediate outputs, in the first of the samples that have most:
      what an operator leaves out depends on what is wanted.
    """
    base, others = _base_dtypes(list(found))
    found, firsts = [*base, *others], _firsts(base)
    by_hand = written(kinds)
    sharing: dict[str, list[Check]] = {}
    for path, some in ((path_of, base), (dtype_path_of, others)):
        for check in some:
            sharing.setdefault(path(check, by_hand), []).append(check)
    chosen = {alike[i % len(alike)].id for i, alike in enumerate(sharing.values())}
    return _modes_in_turn([check for check in found if check.id in firsts or check.id in chosen])


def _firsts(found: Sequence[Check]) -> set[str]:
    """The names of the first check of each operator, and of each gradient."""
    return {check.id for check in {parsed(check)[0]: check for check in reversed(found)}.values()}


QUARTERS = {
    "opencl": (1,), "llvm": (0, 2, 3), "nvrtc": (1,),
    "recording": (0, 2), "strict": (1,), "cpu without llvmlite": (3,),
}  # fmt: skip
"""Which quarters of the checks that they share places run that compute by the same texts, or by the same calls.

``nvrtc`` compiles these texts and computes nothing.
"""


def shared(found: Sequence[Check], quarters: Collection[int], kinds: Iterable[str] = ()) -> list[Check]:
    """Some quarters of the checks, for one of several places that compute by the same texts, or the same array calls.

    All of these places run the first check of each operator and gradient, and all of operators with a kernel that
    somebody wrote for ``kinds``: of array calls all places, which have other namespaces; of texts OpenCL, whose words
    and types are its own. Each of the others is in one quarter.
    """
    firsts, by_hand = _firsts(found), written(kinds)
    return [
        check
        for check in found
        if check.id in firsts
        or (case := case_of(check)) is None
        or _is_by_hand(case, by_hand)
        or zlib.crc32(check.id.encode()) % 4 in quarters
    ]


def written_for(found: Iterable[Check], kind: str) -> list[Check]:
    """Those of operators that have, or whose gradient has, a kernel that somebody wrote for this kind alone."""
    own = written([kind])
    return [check for check in found if {check.operator, f"{check.operator}_grad"} & own]


def first_of_each(found: Sequence[Check], dtypes: bool = False) -> list[Check]:
    """The first check of each operator and of each gradient; with ``dtypes``, the first in each dtype."""
    firsts = {(parsed(check)[0], parsed(check)[2] if dtypes else ""): check for check in reversed(found)}
    return [check for check in found if check in firsts.values()]


def where_most_falls_back(found: Sequence[Check], kind: str) -> list[Check]:
    """Fewer checks, for a kind of place that has neither arrays nor a kernel language, but kernels of a few operators.

    All of these, and the first of each other operator and gradient, which the cpu computes: that values go there and
    come back is not the operator's.
    """
    firsts, own = _firsts(found), {check.id for check in written_for(found, kind)}
    return [check for check in found if check.id in firsts or check.id in own or case_of(check) is None]


def _base_dtypes(found: Sequence[Check]) -> tuple[list[Check], list[Check]]:
    """Each sample in its base dtype, float32 or its first one; and each other dtype in the first sample that has it."""
    base: dict[tuple[str, str], str] = {}
    for check in found:
        subject, label, dtype = parsed(check)
        if dtype == "float32" or (subject, label) not in base:
            base[subject, label] = dtype
    kept, others, seen = [], [], set[tuple[str, str]]()
    for check in found:
        subject, label, dtype = parsed(check)
        if dtype == base[subject, label]:
            kept.append(check)
        elif (subject, dtype) not in seen:
            others.append(check)
        seen.add((subject, dtype))
    return kept, others


def written(kinds: Iterable[str]) -> frozenset[str]:
    """Operators with kernels that somebody wrote for one of these kinds or capabilities."""
    kinds = set(kinds)
    return frozenset(kernel.op for kernel in kernels if kinds.intersection(kernel.places))


def path_of(check: Check, by_hand: Collection[str]) -> str:
    """What checks of one path have in common, as text; the check's id, if the operator has a kernel by hand.

    So it is for samples whose base is another dtype than float32.
    """
    case = case_of(check)
    subject, label, dtype = parsed(check)
    if case is None or dtype != "float32" or _is_by_hand(case, by_hand):
        return check.id
    dims = [(slot, [(a.shape, a.dtype) for a in arrays]) for slot, arrays in case.inputs().items()]
    attrs = sorted(case.sample.attrs.items())
    return repr((family(case.op), subject.endswith(".grad"), label, dims, case.sample.lod, case.sample.grads, attrs))


def dtype_path_of(check: Check, by_hand: Collection[str]) -> str:
    """The same of checks in another dtype than their sample's base: dims and attributes do not count."""
    case = case_of(check)
    subject, _, dtype = parsed(check)
    if case is None or _is_by_hand(case, by_hand):
        return check.id
    return repr((family(case.op), subject.endswith(".grad"), dtype))


def _is_by_hand(case: Case, by_hand: Collection[str]) -> bool:
    return case.op.type in by_hand or f"{case.op.type}_grad" in by_hand


def _modes_in_turn(found: Iterable[Check]) -> list[Check]:
    """The first check of a subject in both modes, others in one; subsets of gradients once."""
    subjects: dict[str, list[Check]] = {}
    for check in found:
        subjects.setdefault(parsed(check)[0], []).append(check)
    made = []
    for checks_of in subjects.values():
        most = max(checks_of, key=_gradients)
        for i, check in enumerate(checks_of):
            case, modes = case_of(check), MODES if i == 0 else (MODES[i % 2],)
            if case is None:
                made.append(check)
            elif ".grad[" in check.id:
                run = partial(check_sample_gradients, case, modes=modes, subsets=check is most)
                made.append(Check(check.id, run))
            else:
                made.append(Check(check.id, partial(check_sample, case, modes=modes)))
    return made


def _gradients(check: Check) -> tuple[int, bool]:
    case = case_of(check)
    return len(case.sample.grads) if case else 0, parsed(check)[2] == "float32"


def by_operator(found: Iterable[Check]) -> list[Any]:
    """A parameter for each operator: the list of its checks."""
    groups: dict[str, list[Check]] = {}
    for check in found:
        groups.setdefault(check.operator, []).append(check)
    return [pytest.param(group, id=operator) for operator, group in groups.items()]


def run_checks(
    group: Iterable[Check], place: Any, passed_over: Callable[[Exception], bool] = lambda error: False
) -> int:
    """Run checks on a place, each of them with names of its own; return how many ran to their end.

    ``--check`` leaves those whose names it says.

    Raises
    ------
    AssertionError
        Some failed: it names all of them, and shows their errors.
    """
    failures, ran = list[tuple[str, BaseException]](), 0
    group = list(group)
    left = [check for check in group if wanted(check.id)]
    if group and not left:
        pytest.skip("--check names none of these checks")
    for check in left:
        try:
            with fluid.unique_name.guard():
                check(place)
        except Exception as error:
            if not passed_over(error):
                failures.append((check.id, error))
        else:
            ran += 1
    if failures:
        raise_all(failures, f"{len(failures)} checks fail on {place}")
    return ran


CHECKS = checks()
CASES = {case.id: case for check in CHECKS for case in getattr(check.run, "args", ()) if isinstance(case, Case)}
PAIRWISE = pairwise(CHECKS)
