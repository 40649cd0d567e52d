"""Checks that are too many to be a test case each: one case runs a group of them, and tells of all that fail.

Collecting a case, dealing it to a process and reporting it take a few milliseconds, in three processes: more than
most checks of a primitive, an attribute or a sample.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import fluidlite as fluid
from fluidlite.compiler.policy import policy_guard
from fluidlite.program.opdef import OpDef

MAX_SHOWN = 20
"""How many failures of a case are shown in full."""
chosen: list[str] = []
"""What ``--check`` names: only checks whose names contain one of them run; all if it is empty."""

left_out: list[str] = []
"""Why checks of the case that runs now were skipped, where others of it ran: the end of a run counts them."""


@contextmanager
def fresh() -> Iterator[None]:
    """Programs, scope, names and preferences of its own: no check depends on those before it."""
    with (
        policy_guard(),
        fluid.unique_name.guard(),
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.scope_guard(fluid.Scope()),
    ):
        yield


def wanted(name: str) -> bool:
    """Whether ``--check`` leaves a check."""
    return not chosen or any(text in name for text in chosen)


def alone(name: str) -> str:
    """How to run one check of the case that runs now."""
    case = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    return f"pytest '{case}' --check '{name}'"


@dataclass(frozen=True)
class Member:
    """One check of a case: its name, and its parameters."""

    name: str
    values: dict[str, Any]


class Group(list[Member]):
    """The checks of one case."""


def text_of(value: Any) -> str:
    """The name of a parameter's value: an operator's type, a sample's name, the text of what else there is."""
    named = getattr(value, "type", None) or getattr(value, "name", None) or getattr(value, "__name__", None)
    return named if isinstance(named, str) else str(value)


def grouped(
    names: Sequence[str],
    cases: Iterable[Any],
    by: Sequence[str] | Callable[..., str],
    inner: tuple[str, Callable[..., Iterable[Any]]] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Parametrize a test as ``pytest.mark.parametrize(names, cases)``, with one case for a group of its parameters.

    Parameters
    ----------
    names : sequence of str
        Names of parameters.
    cases : iterable
        Their values: tuples, or ``pytest.param(...)`` with marks and an id.
    by : sequence of str, or function
        The parameters that are alike in a group; or what names the group of given values.
    inner : tuple of str and function, optional
        Another parameter, and what gives its values for those of the others: asked when the case runs, where making
        them takes a while.

    Raises
    ------
    ValueError
        Cases of one group have different marks: they could not be skipped together.
    """
    groups: dict[str, Group] = {}
    marks: dict[str, Any] = {}
    for case in cases:
        values = case.values if isinstance(case, type(pytest.param())) else tuple(case)
        member = dict(zip(names, values, strict=True))
        name = getattr(case, "id", None) or "-".join(text_of(value) for value in values)
        key = by(*values) if callable(by) else "-".join(text_of(member[each]) for each in by)
        mine = tuple(getattr(case, "marks", ()))
        if marks.setdefault(key, mine) != mine:
            raise ValueError(f"{name} has other marks than the group {key}: it cannot be skipped with it")
        groups.setdefault(key, Group()).append(Member(name, member))

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        def run_group(members: Group, **fixtures: Any) -> None:
            every = members if inner is None else [part for member in members for part in parts(member, *inner)]
            run_each(every, lambda member: test(**fixtures, **member.values))

        signature = inspect.signature(test)
        given = {*names, inner[0] if inner else ""}
        others = [each for name, each in signature.parameters.items() if name not in given]
        parameter = inspect.Parameter("members", inspect.Parameter.KEYWORD_ONLY)
        run_group.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in others), parameter]
        )
        run_group.__name__, run_group.__doc__ = test.__name__, test.__doc__
        run_group.__module__, run_group.__dict__ = test.__module__, {**test.__dict__, **run_group.__dict__}
        parameters = [pytest.param(group, id=key, marks=marks[key]) for key, group in groups.items()]
        decorated: Callable[..., None] = pytest.mark.parametrize("members", parameters)(run_group)
        return decorated

    return decorate


def parts(member: Member, name: str, values: Callable[..., Iterable[Any]]) -> Iterator[Member]:
    """The checks of a member: one for each value of another parameter."""
    for value in values(*member.values.values()):
        yield Member(f"{member.name}-{text_of(value)}", {**member.values, name: value})


@functools.cache
def _stem(origin: str) -> str:
    return Path(origin.rpartition(":")[0] or origin).stem


def family(op: OpDef, *parameters: Any) -> str:
    """The module that says an operator."""
    return _stem(op.origin)


def run_each(members: Iterable[Member], run: Callable[[Member], None]) -> None:
    """Run each check in programs of its own, to the end whatever fails.

    Raises
    ------
    AssertionError
        Some failed: it names all of them, shows their errors, and says how to run one alone.
    """
    members = [member for member in members if wanted(member.name)]
    if not members:
        pytest.skip(f"no check of this case is called {' or '.join(chosen)}")
    failures: list[tuple[str, BaseException]] = []
    skipped: dict[str, str] = {}
    for member in members:
        try:
            with fresh():
                run(member)
        except pytest.skip.Exception as reason:
            skipped[member.name] = str(reason.msg)
        except (Exception, pytest.fail.Exception) as error:
            failures.append((member.name, error))
            if isinstance(error, pytest.fail.Exception) and str(error).startswith("Timeout"):
                break  # the time is that of the case: nothing would stop those that follow
    if failures:
        raise_all(failures, f"{len(failures)} of {len(members)} checks fail")
    if len(skipped) == len(members):
        pytest.skip("; ".join(dict.fromkeys(skipped.values())))
    left_out.extend(skipped.values())


def raise_all(failures: Sequence[tuple[str, BaseException]], what: str) -> None:
    """Raise one error that names all failures.

    Raises
    ------
    AssertionError
        Always, with the first failure as its cause.
    """
    names = ", ".join(name for name, _ in failures)
    shown = "\n".join(f"{name}: {type(error).__name__}: {error}" for name, error in failures[:MAX_SHOWN])
    raise AssertionError(f"{what}: {names}\n{shown}\nOne alone: {alone(failures[0][0])}") from failures[0][1]
