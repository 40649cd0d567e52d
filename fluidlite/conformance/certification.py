"""Certify a place: distribute the checks to worker processes, collect outcomes, describe device and versions."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from fluidlite import plugin_loader
from fluidlite.base.arguments import did_you_mean
from fluidlite.base.dtypes import NUMPY
from fluidlite.base.errors import DeviceUnavailable, FluidError
from fluidlite.conformance.certificate import FAILED, KNOWN, Certificate, CheckOutcome
from fluidlite.conformance.checks import Check, checks
from fluidlite.conformance.device_checks import NAMESPACE, device_checks
from fluidlite.conformance.plugin_modules import load_plugin_modules
from fluidlite.conformance.tolerances import tolerances
from fluidlite.conformance.worker import run_check
from fluidlite.conformance.workers import run_in_processes
from fluidlite.platform.device_registry import Unit, devices
from fluidlite.platform.place import PlaceLike
from fluidlite.program.registry import ops

MAX_DEFAULT_JOBS = 4
"""Maximum number of worker processes by default."""
Progress = Callable[[CheckOutcome, int, int], None]
"""Called after each check with its outcome, the number done and the number in all."""


def certify(
    place: PlaceLike,
    operators: Iterable[str] = (),
    only: Iterable[str] = (),
    jobs: int | None = None,
    plugins: Iterable[str] = (),
    known_failures: Mapping[str, str] | None = None,
    timeout: float = 300.0,
    progress: Progress | None = None,
) -> Certificate:
    """Run the conformance checks on a place, in worker processes.

    The array namespace is checked first: if it lacks a required function, no other check is run.

    Parameters
    ----------
    place : Place or str
    operators : iterable of str
        Only these operators (with wildcards ``*`` and ``?``), without checks of the device; empty: all, and the device.
    only : iterable of str
        Only these checks, by id, such as ``relu[rank4:float64]``.
    jobs : int, optional
        Number of worker processes; default: one for each core, 4 at most.
    plugins : iterable of str
        Modules of plugins that are not installed (see :func:`load_plugin_modules`).
    known_failures : mapping of check to reason, optional
        As :func:`fluidlite.testing.read_known_failures` gives it. One that passes fails the certificate.
    timeout : float
        Seconds that a check may take.
    progress : callable, optional
        Called after each check: ``progress(outcome, done, total)``.

    Raises
    ------
    PlaceError, DeviceUnavailable
        The place cannot be used.
    FluidError
        No check has such a name; a plugin cannot be loaded; the checking processes do not start.
    """
    modules = tuple(load_plugin_modules(plugins))
    unit = devices.unit(place)
    if not unit.info.computes:
        raise DeviceUnavailable(f"{unit.place} computes nothing that could be checked: {unit.info.name}")
    patterns, ids, reasons = tuple(operators), tuple(only), dict(known_failures or {})
    selected = _selected(checks(), patterns, ids)
    known_names = {check.id: next((name for name in check.names() if name in reasons), None) for check in selected}
    if not patterns and not ids and (unused := set(reasons) - set(known_names.values())):
        raise FluidError(f"known failures: no check is called {', '.join(sorted(map(str, unused)))}")
    count = jobs if jobs is not None else min(MAX_DEFAULT_JOBS, os.cpu_count() or 1)
    if count < 1:
        raise FluidError(f"jobs is {count}; expected 1 or more")
    namespace_outcome, _ = run_check(Check(NAMESPACE, device_checks()[NAMESPACE]), str(unit.place))
    if namespace_outcome.state == FAILED and NAMESPACE not in reasons:
        selected, known_names = [], {}
    chunks: dict[str, list[str]] = {}
    for check in selected:
        chunks.setdefault(check.operator, []).append(check.id)
    date, start = datetime.now(UTC), time.perf_counter()
    outcomes: list[CheckOutcome] = [] if selected else [namespace_outcome]
    if progress is not None and outcomes:
        progress(namespace_outcome, 1, 1)
    setup = {"place": str(unit.place), "plugins": list(modules)}
    for raw in run_in_processes(list(chunks.values()), count, setup, timeout):
        name = known_names[raw.id]
        outcome = raw if name is None else _as_known_failure(raw, reasons[name], exact=name == raw.id)
        outcomes.append(outcome)
        if progress is not None:
            progress(outcome, len(outcomes), len(selected))
    return Certificate(
        place=str(unit.place),
        device=_device(unit),
        plugin=_plugin(unit),
        versions=_versions(),
        date=date.strftime("%Y-%m-%d %H:%M UTC"),
        seconds=time.perf_counter() - start,
        jobs=max(min(count, len(chunks)), 1),
        scope=", ".join((*patterns, *ids)),
        tolerances=tolerances(unit.place),
        outcomes=outcomes,
        plugins=modules,
    )


def _selected(available: list[Check], patterns: tuple[str, ...], ids: tuple[str, ...]) -> list[Check]:
    """The requested checks; each name must match at least one."""
    if not patterns and not ids:
        return available
    selected: dict[str, Check] = {}
    operators = dict.fromkeys(check.operator for check in available)
    for pattern in patterns:
        matching = [check for check in available if fnmatchcase(check.operator, pattern)]
        if not matching:
            raise FluidError(f"no check of operator {pattern!r}{_reason_unchecked(pattern, list(operators))}")
        selected |= {check.id: check for check in matching}
    for id in ids:
        matching = [check for check in available if check.id == id]
        if not matching:
            raise FluidError(f"no check is called {id!r}{did_you_mean(id, _similar_ids(id, available), 1, 0.3)}")
        selected |= {check.id: check for check in matching}
    return list(selected.values())


def _similar_ids(id: str, available: list[Check]) -> list[str]:
    """Ids of the same operator; all ids if it has none."""
    ids = [check.id for check in available]
    return [other for other in ids if other.partition("[")[0] == id.partition("[")[0]] or ids


def _reason_unchecked(type: str, operators: list[str]) -> str:
    op = ops.find(type)
    if op is None:
        return f": no operator is called so{did_you_mean(type, operators, 1, 0.3)}"
    forward = type.removesuffix("_grad")
    if forward != type and forward in operators:
        return f": it is checked with {forward!r}"
    if op.random:
        return ": the bits of random numbers are checked with 'random'"
    return ": it has no reference, or no samples"


def _as_known_failure(outcome: CheckOutcome, reason: str, exact: bool) -> CheckOutcome:
    """The outcome of a check that is known to fail; if it passes and is listed by its exact id, that is a failure."""
    if outcome.state == FAILED:
        return CheckOutcome(outcome.id, KNOWN, outcome.seconds, reason, outcome.traceback, outcome.uses)
    if exact:
        error = f"it passes, but is listed as a known failure: {reason}"
        return CheckOutcome(outcome.id, FAILED, outcome.seconds, error, "", outcome.uses)
    return outcome


def _device(unit: Unit) -> dict[str, Any]:
    info = unit.info
    return {
        "kind": unit.place.kind,
        "name": info.name,
        "memory": info.memory,
        "alignment": info.alignment,
        "queues": info.queues,
        "capabilities": list(unit.capabilities()),
        "dtypes": list(info.dtypes),
        "lacks": [dtype for dtype in NUMPY if dtype not in info.dtypes],
        "host": info.host,
    }


def _plugin(unit: Unit) -> dict[str, str]:
    for record in plugin_loader.plugins():
        if unit.place.kind in record.brought.get("devices", ()):
            return {"name": record.name, "version": record.version, "origin": record.origin}
    return {"name": "none", "version": "", "origin": "registered by hand"}


def _versions() -> dict[str, str]:
    from fluidlite import __version__

    return {
        "fluidlite": __version__,
        "plugin API": str(plugin_loader.API),
        "Python": platform.python_version(),
        "NumPy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}",
    }
