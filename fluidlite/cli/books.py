"""The books of ``examples/book``: find one, train it on a place, run its saved model, and report the results."""

from __future__ import annotations

import importlib.util
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from fluidlite.base.errors import MissingExtraError, ProgramError
from fluidlite.compiler.explain import Report
from fluidlite.compiler.policy import policy_guard, set_fallback
from fluidlite.platform.context_pool import get_context

Progress = Callable[[str, int, int, float], None]
"""Called after each step with the program's name, steps done, steps in all, and the loss."""

MAX_INFERENCE_DIFFERENCE = 1e-5
"""The largest difference, relative to the largest value, between predictions in training and from the saved model."""

_NAMES = ("DATA", "METRIC", "GOAL", "BETTER", "STEPS", "train", "infer")
_PACKAGED = Path(__file__).parent.parent / "_book"
_CLONED = Path(__file__).parent.parent.parent / "examples" / "book"


@dataclass(frozen=True)
class BookProgram:
    """One program of a book (its module, variant and goal).

    ``name``: the book's file, or ``book:variant``.
    ``metric``: the name of the saved model's metric on test data.
    ``goal``: the value that it must reach.
    ``higher``: whether higher is better.
    ``steps``: number of batches of a full training.
    """

    name: str
    data: str
    metric: str
    goal: float
    higher: bool
    steps: int
    module: ModuleType = field(repr=False, compare=False)
    variant: str | None = None

    def reaches(self, value: float) -> bool:
        """Whether a value of the metric is as good as the goal."""
        return value >= self.goal if self.higher else value <= self.goal


@dataclass(frozen=True)
class StepCopies:
    """The mean number of copies of a training step into a place and out of it, and their bytes."""

    copies_in: float
    copies_out: float
    bytes_in: float
    bytes_out: float


@dataclass
class BookResult:
    """The result of a program on a place.

    ``losses``: one a step.
    ``value``: the metric, from the saved model.
    ``difference``: the largest between predictions in training and from the saved model, relative to the largest value.
    ``seconds``: the time of training, saving, loading and inference, including compilation.
    ``processor_seconds``: the processor time of all threads of this process, which hardly depends on the machine's
    load. Devices in other processes are not counted.
    ``report``: the plan of a training step.
    ``copies``: the mean copies of a step, including those of feeds and fetches; None after a single step.
    """

    program: BookProgram
    place: str
    losses: list[float]
    value: float
    difference: float
    seconds: float
    processor_seconds: float
    report: Report
    copies: StepCopies | None

    @property
    def problems(self) -> list[str]:
        """Failures; empty if there are none. A short training need not reach the goal."""
        failures = []
        if len(self.losses) >= self.program.steps and not self.program.reaches(self.value):
            failures.append(f"the {self.program.metric} is {self.value:.4f}, the goal {self.program.goal:g}")
        if not all(map(math.isfinite, self.losses)):
            failures.append("a loss is not finite")
        if not self.difference <= MAX_INFERENCE_DIFFERENCE:
            failures.append(f"the saved model's predictions differ by {self.difference:.1e} from those in training")
        return failures


def book_folder() -> Path:
    """The folder of the books: next to the package in a clone, inside it if it was installed from a wheel."""
    return _CLONED if _CLONED.is_dir() else _PACKAGED


def book_names() -> list[str]:
    """The names of the books' files in :func:`book_folder`, without suffix."""
    return sorted(path.stem for path in book_folder().glob("*.py") if not path.stem.startswith("_"))


def book_programs(name: str) -> list[BookProgram]:
    """The programs of a book.

    Parameters
    ----------
    name : str
        ``fit_a_line``; ``word2vec:sparse`` for one of several programs; or the path of such a file.

    Raises
    ------
    ProgramError
        There is no such book or program, or the file is no Python or lacks a name that a book has.
    MissingExtraError
        It imports a package that is not installed.
    """
    stem, _, requested = name.partition(":")
    path = Path(stem) if stem.endswith(".py") else book_folder() / f"{stem}.py"
    if not path.is_file():
        raise ProgramError(f"there is no book {stem!r}\n  Do: name one of {', '.join(book_names())}, or a file")
    module = _load(path)
    absent = [variant for variant in _NAMES if not hasattr(module, variant)]
    if absent:
        raise ProgramError(f"{path} has no {absent[0]}, which a book has\n  Do: see {book_folder() / 'README.md'}")
    variants = list(getattr(module, "VARIANTS", ())) or [None]
    if requested and requested not in variants:
        names = ", ".join(f"{path.stem}:{variant}" for variant in variants if variant)
        raise ProgramError(f"{path.stem} has no program {requested!r}\n  Do: name {names or path.stem}")
    return [_program(module, path.stem, variant) for variant in variants if not requested or variant == requested]


def run_program(
    program: BookProgram, place: str, steps: int | None = None, progress: Progress | None = None
) -> BookResult:
    """Train a program of a book, save the model, load it and measure it.

    Operators without a kernel on the place run on the fallback place; the report lists them.

    Parameters
    ----------
    place : str
    steps : int, optional
        Number of batches; default: as many as the goal needs.
    progress : callable, optional

    Raises
    ------
    FluidError
        The place cannot be used, or a step fails.
    """
    total = program.steps if steps is None else steps
    losses: list[float] = []
    reports: list[Report] = []
    counts = get_context(place).counts
    counts_before: list[tuple[int, ...]] = []
    counts_after: tuple[int, ...] = ()

    def on_step(executor: Any, step: int, loss: float) -> None:
        nonlocal counts_after
        losses.append(loss)
        counts_after = (counts.copy_in, counts.copy_out, counts.bytes_in, counts.bytes_out)
        if not reports:
            reports.append(executor.explain_last())
            counts_before.append(counts_after)
        if progress is not None:
            progress(program.name, step + 1, total, loss)

    options = {} if program.variant is None else {"variant": program.variant}
    begin, processor = time.perf_counter(), time.process_time()
    with policy_guard(), tempfile.TemporaryDirectory() as folder:
        set_fallback("allow")  # not silent: the report shows fallbacks
        trained = program.module.train(place, folder, steps=total, on_step=on_step, **options)
        value, inferred = program.module.infer(place, folder, **options)
    seconds, processor = time.perf_counter() - begin, time.process_time() - processor
    later = len(losses) - 1
    copies = None
    if later:
        copies = StepCopies(
            *((last - first) / later for first, last in zip(counts_before[0], counts_after, strict=True))
        )
    difference = _difference(trained, inferred)
    return BookResult(program, place, losses, float(value), difference, seconds, processor, reports[0], copies)


def main(path: str) -> None:
    """The main function of a book's file, with a place and a number of steps as arguments."""
    from fluidlite.cli.main import main as command

    place, steps = sys.argv[1:2] or ["cpu"], sys.argv[2:3]
    sys.exit(command(["run-book", path, "--place", *place, *(["--steps", *steps] if steps else [])]))


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"fluidlite_book_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        with _importable(path.parent):
            spec.loader.exec_module(module)
    except ModuleNotFoundError as exc:
        raise MissingExtraError(f"the book {path.stem} needs {exc.name}\n  Do: pip install {exc.name}") from exc
    except SyntaxError as exc:
        raise ProgramError(f"the book {path.stem} cannot be compiled: {exc}") from exc
    return module


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Make the modules of a folder importable inside the block, and remove them from ``sys.modules`` afterwards."""
    modules_before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - modules_before:
            file = getattr(sys.modules[name], "__file__", None)
            if file is not None and Path(file).parent == folder:
                del sys.modules[name]


def _program(module: ModuleType, stem: str, variant: str | None) -> BookProgram:
    def of(value: Any) -> Any:
        """Return the value of a constant for this variant."""
        return value[variant] if isinstance(value, Mapping) else value

    name = stem if variant is None else f"{stem}:{variant}"
    better = of(module.BETTER)
    if better not in ("higher", "lower"):
        raise ProgramError(f"{name}: BETTER is {better!r}; expected 'higher' or 'lower'")
    return BookProgram(
        name,
        of(module.DATA),
        of(module.METRIC),
        float(of(module.GOAL)),
        better == "higher",
        int(of(module.STEPS)),
        module,
        variant,
    )


def _difference(trained: Any, inferred: Any) -> float:
    one, other = np.asarray(trained, np.float64), np.asarray(inferred, np.float64)
    if one.shape != other.shape:
        return math.inf
    return float(np.max(np.abs(one - other), initial=0.0) / max(float(np.max(np.abs(one), initial=0.0)), 1e-30))
