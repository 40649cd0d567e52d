"""The differential check: run a recipe in both modes, compare results with the reference and between modes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Any

from fluidlite.base.errors import (
    AttributeValueError,
    FallbackWarning,
    FluidError,
    GradientError,
    OutOfRangeError,
    ShapeError,
)
from fluidlite.conformance.op_harness import MODES
from fluidlite.platform.place import Place
from fluidlite.testing.fuzz.builder import is_conditioned
from fluidlite.testing.fuzz.execute import Results, RunFailed, execute, new_scope
from fluidlite.testing.fuzz.gradients import compare_gradients
from fluidlite.testing.fuzz.outcome import Finding, Outcome, differs
from fluidlite.testing.fuzz.recipe import Built, Recipe, build
from fluidlite.testing.fuzz.reference import evaluate
from fluidlite.testing.fuzz.tolerance import Array, Bounded


def check(recipe: Recipe, place: Place) -> Outcome:
    from fluidlite.executor import Executor

    outcome = Outcome()
    try:
        try:
            built = build(recipe)
        except GradientError as error:
            outcome.discarded["no gradient: " + str(error).split("\n")[0][:60]] += 1
            recipe = replace(recipe, targets=(), wrt=())
            built = build(recipe)
    except FluidError as error:
        outcome.findings.append(Finding("error", f"{type(error).__name__}: not built: {_line(error)}", "", recipe))
        return outcome
    block = built.program.global_block()
    dtypes = {name: block.var(name).dtype for step in recipe.steps for name in step.writes()}
    expected = evaluate(recipe, dtypes)
    results: dict[str, Results | RunFailed] = {}
    executors = {mode: Executor(place, mode=mode, fallback="allow") for mode in MODES}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        for mode, executor in executors.items():
            try:
                results[mode] = execute(recipe, built, executor, new_scope(recipe, place), place)
            except RunFailed as failure:
                results[mode] = failure
        failures = [(mode, result) for mode, result in results.items() if isinstance(result, RunFailed)]
        plain: dict[str, Any] = results
        if failures:
            _errors(recipe, results, failures, outcome)
        else:
            _values(recipe, expected, plain, outcome)
            if built.gradients:
                compare_gradients(recipe, built, plain, place, outcome)
            if recipe.threads > 1:
                _threads(recipe, built, executors["compiled"], place, plain["compiled"], outcome)
            if recipe.broken:
                _broken(recipe, built, executors, place, plain, outcome)
    for executor in executors.values():
        executor.close()
    return outcome


def _errors(
    recipe: Recipe, results: Mapping[str, Any], failures: list[tuple[str, RunFailed]], outcome: Outcome
) -> None:
    for mode, failure in failures:
        error = failure.error
        if not isinstance(error, FluidError):
            what = f"{type(error).__name__}: {mode}, run {failure.turn}: {_line(error)}"
            outcome.findings.append(Finding("foreign", what, "", recipe))
            return
    mode, failure = failures[0]
    if len(failures) < len(MODES) or not _are_alike(*(failure.error for _, failure in failures)):
        texts = "; ".join(
            f"{mode}: {type(r.error).__name__} in run {r.turn}, {_line(r.error)}"
            if isinstance(r, RunFailed)
            else f"{mode}: no error"
            for mode, r in results.items()
        )
        outcome.findings.append(
            Finding("error", f"{type(failure.error).__name__}: one mode alone: {texts}", "", recipe)
        )
    elif _by_value(recipe, failure.error):
        outcome.discarded["refused by numbers that only the run knows"] += 1
    else:
        what = f"{type(failure.error).__name__}: both modes refuse what the definitions took: {_line(failure.error)}"
        outcome.findings.append(Finding("error", what, "", recipe))


def _are_alike(first: object, second: object) -> bool:
    """Whether errors of two modes are of one class; a deferred error may be of a subclass."""
    return isinstance(first, type(second)) or isinstance(second, type(first))


def _broken(
    recipe: Recipe,
    built: Built,
    executors: Mapping[str, Any],
    place: Place,
    results: Mapping[str, Results],
    outcome: Outcome,
) -> None:
    """Run an invalid feed: both modes must raise one class of error, and the next run must give the same as before."""
    bad = replace(recipe, runs=({**recipe.runs[0], **recipe.broken},))
    errors: dict[str, BaseException | None] = {}
    for mode, executor in executors.items():
        try:
            execute(bad, built, executor, new_scope(recipe, place), place)
            errors[mode] = None
        except RunFailed as failed:
            errors[mode] = failed.error
    first, second = (errors[mode] for mode in MODES)
    all_fluid = all(error is None or isinstance(error, FluidError) for error in errors.values())
    if not _are_alike(first, second) or not all_fluid:
        texts = "; ".join(
            f"{mode}: {type(e).__name__}, {_line(e)}" if e is not None else f"{mode}: no error"
            for mode, e in errors.items()
        )
        outcome.findings.append(Finding("feed", f"a wrong feed of {', '.join(recipe.broken)}: {texts}", "", recipe))
        return
    rerun = replace(recipe, runs=recipe.runs[:1])
    for mode, executor in executors.items():
        try:
            got = execute(rerun, built, executor, new_scope(recipe, place), place)[0]
        except RunFailed as failed:
            outcome.findings.append(
                Finding("feed", f"{mode} raises after a wrong feed: {_line(failed.error)}", "", recipe)
            )
            return
        for name, array in got.items():
            if array.tobytes() != results[mode][0][name].tobytes() and name not in built.gradients.values():
                outcome.findings.append(Finding("feed", f"{mode} gives another {name} after a wrong feed", "", recipe))
                return


def _by_value(recipe: Recipe, error: BaseException) -> bool:
    """Whether a run refused value-dependent dims, which no definition can check before, or a negative index.

    References index like NumPy, where negative indices count from the end.
    """
    if isinstance(error, OutOfRangeError) and "index -" in str(error):
        return True
    return isinstance(error, (ShapeError, AttributeValueError)) and any(
        step.op.dynamic or any(slot.value for slot in step.op.inputs if step.inputs.get(slot.name))
        for step in recipe.steps
    )


def _line(error: BaseException) -> str:
    return " / ".join(str(error).split("\n")[:2])[:300]


def _values(
    recipe: Recipe, expected: list[dict[str, Bounded]], results: Mapping[str, Results], outcome: Outcome
) -> None:
    """Compare each mode with the reference, then the modes with each other."""
    labels = [*recipe.fetches, *("state " + name for name in recipe.state)]
    for turn, values in enumerate(expected):
        for label in labels:
            value = values.get(label.removeprefix("state "))
            first, second = (results[mode][turn][label] for mode in MODES)
            reason = _metadata(first, second, value)
            if reason:
                outcome.findings.append(Finding("metadata", f"{label} in run {turn}: {reason}", label, recipe))
                return
            if value is None or not is_conditioned(value):
                outcome.discarded["value: ill conditioned" if value is not None else "value: no reference"] += 1
                continue
            outcome.compared += 1
            for mode in MODES:
                reason = differs(results[mode][turn][label], value)
                if reason:
                    text = f"{label} in run {turn}, {mode} against the reference: {reason}"
                    outcome.findings.append(Finding("value", text, label, recipe))
                    return
            reason = differs(second, Bounded(first, 2 * value.bound))
            if reason:
                text = f"{label} in run {turn}, compiled against interpreted: {reason}"
                outcome.findings.append(Finding("modes", text, label, recipe))
                return


def _metadata(first: Array, second: Array, value: Bounded | None) -> str:
    if first.dtype != second.dtype or first.shape != second.shape:
        return f"interpreted {first.dtype} {list(first.shape)}, compiled {second.dtype} {list(second.shape)}"
    if value is not None and (value.value.shape != first.shape or value.value.dtype != first.dtype):
        return f"{first.dtype} {list(first.shape)}, the reference has {value.value.dtype} {list(value.value.shape)}"
    return ""


def _threads(recipe: Recipe, built: Built, executor: Any, place: Place, alone: Any, outcome: Outcome) -> None:
    """Run one executor in several threads with a scope each: results must have the same bits as in one thread."""
    started = Barrier(recipe.threads)

    def failure(number: int) -> str:
        started.wait()  # so that each runs in a thread of its own
        try:
            got = execute(recipe, built, executor, new_scope(recipe, place), place)
        except RunFailed as failed:
            return f"thread {number}: {type(failed.error).__name__}: {_line(failed.error)}"
        for turn, (mine, other) in enumerate(zip(got, alone, strict=True)):
            for name, array in mine.items():
                if array.tobytes() != other[name].tobytes() and not name.endswith("@GRAD"):
                    return f"thread {number}: {name} in run {turn} has other bits than alone"
        return ""

    with ThreadPoolExecutor(recipe.threads) as pool:
        failures = list(filter(None, pool.map(failure, range(recipe.threads))))
    if failures:
        outcome.findings.append(Finding("threads", failures[0], "", recipe))
